# SPDX-License-Identifier: LGPL-2.1-or-later
"""Blocks ``console``: commands behind ``$`` with their exact output, at a width of 100.

A command that is `kcensus …` alone, or the first one of a pipe, runs in this process; all else
runs in a shell that finds `kcensus`. The commands of a page share a directory. In shown output, a
line of three dots stands for any number of lines.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from kcensus import analyses, cli
from tests.pages import ROOT, Block, blocks
from tests.running import recorded_analyses

_COLUMNS = "100"
_DOTS = "..."
_VERSION = re.compile(r"^(  kcensus  )\S+(?=, JSON schema)", re.MULTILINE)
"""The version in the header of a report, which changes without its content."""
_SHELL = re.compile(r"[|&;<>()$`\\\n*?{}]")
"""Characters for which a command needs a shell, outside of quotes."""

_outputs: dict[str, str] = {}
"""Outputs of commands that read and wrote no file of the page's directory."""


@dataclass(frozen=True)
class Step:
    """A command of a block, and the output that the page shows."""

    command: str
    shown: str


def steps(block: Block) -> list[Step]:
    """Return the commands of a block; lines behind ``> `` continue one that ends in a backslash."""
    found: list[list[str]] = []
    for line in block.text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append([line[2:].rstrip("\n"), ""])
        elif not found:
            raise ValueError(f"{block}: begins with output; the first line needs `$ `")
        elif found[-1][0].endswith("\\") and line.startswith("> "):
            found[-1][0] += "\n" + line[2:].rstrip("\n")
        else:
            found[-1][1] += line
    return [Step(command, shown) for command, shown in found]


def matches(shown: str, printed: str) -> bool:
    """Return whether a page shows an output."""
    parts: list[list[str]] = [[]]
    for line in _VERSION.sub(r"\1", shown).splitlines():
        if line.strip() == _DOTS:
            parts.append([])
        else:
            parts[-1].append(line)
    lines = [line.rstrip() for line in _VERSION.sub(r"\1", printed).splitlines()]
    first, *others = parts
    if lines[: len(first)] != first:
        return False
    if not others:
        return lines == first
    place, last = len(first), others.pop()
    for part in others:
        ends = (end for end in range(place + len(part), len(lines) + 1))
        found = next((end for end in ends if lines[end - len(part) : end] == part), None)
        if found is None:
            return False
        place = found
    return len(lines) - len(last) >= place and lines[len(lines) - len(last) :] == last


def is_elided(shown: str) -> bool:
    """Return whether an output leaves lines out."""
    return any(line.strip() == _DOTS for line in shown.splitlines())


def run_page(page: Path, directory: Path) -> Iterator[tuple[Block, list[tuple[Step, str]]]]:
    """Run the commands of all blocks of a page in order; yield each with its output.

    :param directory: an empty directory
    """
    with _as_a_reader(directory):
        for block in blocks(page):
            if block.language == "console":
                yield block, [(step, _output(step.command)) for step in steps(block)]


def recorded_only() -> AbstractContextManager[object]:
    """Leave out analyses that the samples were not recorded for."""
    recorded = {name: analyses.analyses()[name] for name in recorded_analyses()}
    return mock.patch.object(analyses, "_discover", return_value=recorded)


@contextmanager
def _as_a_reader(directory: Path) -> Iterator[None]:
    """Have the width of the documentation, the recorded analyses, and `kcensus` in the PATH."""
    programs = directory / ".bin"
    programs.mkdir()
    (programs / "kcensus").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kcensus "$@"\n'
    )
    (programs / "kcensus").chmod(0o755)
    settings = {
        "COLUMNS": _COLUMNS,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'drgn_scripts'}:{os.environ.get('PYTHONPATH', '')}",
    }
    before = Path.cwd()
    os.chdir(directory)
    try:
        with recorded_only(), mock.patch.dict(os.environ, settings):
            yield
    finally:
        os.chdir(before)


def _output(command: str) -> str:
    first, rest = _parted(command)
    words = shlex.split(first) if first else []
    if words[:1] == ["kcensus"]:
        printed = _once(first, lambda: _kcensus(words[1:]))
        if rest:
            printed = _shell(rest, printed)
    else:
        printed = _once(command, lambda: _shell(command))
    return "\n".join(line.rstrip() for line in printed.splitlines())


def _once(command: str, run: Callable[[], str]) -> str:
    """Return the output of a command, which runs anew only where files can matter."""
    is_clean = os.listdir() == [".bin"]
    if is_clean and command in _outputs:
        return _outputs[command]
    printed = run()
    if is_clean and os.listdir() == [".bin"]:
        _outputs[command] = printed
    return printed


def _parted(command: str) -> tuple[str, str]:
    """Return the first command of a pipe and the rest; nothing first if a shell must read it."""
    bare = re.sub(r"'[^']*'|\"[^\"$`\\]*\"", lambda quoted: "_" * len(quoted[0]), command)
    end = bare.find(" | ")
    first = command if end < 0 else command[:end]
    if _SHELL.search(bare[: len(first)]):
        return "", ""
    return first, "" if end < 0 else command[end + 3 :]


def _kcensus(words: list[str]) -> str:
    buffer = io.BytesIO()
    out = io.TextIOWrapper(buffer, encoding="utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(out):
        cli.main(words)
        out.flush()
    return buffer.getvalue().decode()


def _shell(command: str, text: str | None = None) -> str:
    done = subprocess.run(
        ["sh", "-c", command],
        input="" if text is None else text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout
