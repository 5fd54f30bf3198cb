# SPDX-License-Identifier: LGPL-2.1-or-later
"""The notebooks that come with kcensus: percent scripts, as Jupytext reads them.

A notebook is a file ``NAME.py`` whose cells begin with ``# %%``. Its first cell is Markdown: the
title, and one sentence on what it shows. One cell has the tag ``parameters``: one assignment of a
literal per line, with a comment that describes it. A parameter whose comment begins with its own
name in capitals, such as ``BEFORE:``, is an argument of the command.

Nothing here needs the packages that run notebooks, so that they can always be listed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | list[str]


def packaged_directory(package: Path) -> Path:
    """Return the directory of the notebooks that come with the import package in a directory."""
    installed = package / "notebooks"
    # A wheel has them beside the code; a checkout keeps them in a top-level directory.
    return installed if installed.is_dir() else package.parents[1] / "notebooks"


PACKAGED = packaged_directory(Path(__file__).parents[2])

_TRUTH = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)
_TAG = re.compile(r"\btags=\[[^]]*\"parameters\"")
_PARAMETER = re.compile(r"^(\w+)(?::[^=]+)? = (.+?)  # (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Parameter:
    """A value that the user may set."""

    name: str
    default: Value
    help: str
    is_target: bool
    """Whether it is an argument of the command, rather than an option."""

    def parse(self, text: str) -> Value:
        """Return the value of ``-p NAME=text``.

        :raises ValueError: the text is not of the type of the default
        """
        match self.default:
            case bool():
                if text.lower() not in _TRUTH:
                    raise ValueError(f"{text!r} is not yes or no")
                return _TRUTH[text.lower()]
            case int():
                if not re.fullmatch(r"0*[1-9][0-9]*", text):
                    raise ValueError(f"{text!r} is not an integer >= 1")
                return int(text)
            case float():
                if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)", text):
                    raise ValueError(f"{text!r} is not a number")
                return float(text)
            case list():
                return text.split(",") if text else []
        return text


@dataclass(frozen=True)
class Notebook:
    """One of the notebooks that come with kcensus."""

    name: str
    path: Path
    title: str
    summary: str
    """Its contents, in one sentence."""
    parameters: Mapping[str, Parameter]

    @property
    def targets(self) -> tuple[Parameter, ...]:
        """The parameters that are arguments of the command, in their order."""
        return tuple(each for each in self.parameters.values() if each.is_target)


def notebooks(directory: Path = PACKAGED) -> dict[str, Notebook]:
    """Return the notebooks of a directory by name, in alphabetical order."""
    return {path.stem: _read(path) for path in sorted(directory.glob("*.py"))}


def cells(text: str) -> Iterator[tuple[str, str]]:
    """Yield the marker line and the text of each cell of a percent script."""
    pieces = _CELL.split(text)
    return zip(pieces[1::2], pieces[2::2], strict=True)


def _read(path: Path) -> Notebook:
    found = list(cells(path.read_text(encoding="utf-8")))
    lines = [line.removeprefix("#").strip() for line in found[0][1].splitlines()]
    title, _, rest = "\n".join(lines).strip().partition("\n")
    summary = " ".join(rest.strip().partition("\n\n")[0].split())
    source = "".join(text for marker, text in found if _TAG.search(marker))
    parameters = {match[1]: _parameter(*match.groups()) for match in _PARAMETER.finditer(source)}
    return Notebook(path.stem, path, title.removeprefix("# "), summary, parameters)


def _parameter(name: str, default: str, comment: str) -> Parameter:
    metavar, _, rest = comment.partition(": ")
    is_target = metavar == name.upper()
    return Parameter(name, ast.literal_eval(default), rest if is_target else comment, is_target)
