# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus notebook``."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcensus.actions import Exit, Reading
from kcensus.actions.notebooks.library import Notebook, Value, notebooks
from kcensus.actions.shared.target import progress_bars
from kcensus.render.directory import OutputError, check_writable, replacing
from kcensus.sources import TargetError
from kcensus.sources.session import is_open
from kcensus.text import printable

if TYPE_CHECKING:
    from nbformat import NotebookNode

_FORMS = (".html", ".ipynb")
_TARGET_ERRORS = (
    "TargetError",
    "AnalysisError",
    "BadCapsule",
    "MissingDebugInfoError",
    "StoreError",
)
"""Errors in a notebook that mean that the target is unusable."""
_WIDTH, _INDENT = 100, "    "


class NotebookError(OutputError):
    """A notebook cannot run, or a cell of it failed; the message is one sentence for the user."""


def run(
    name: str | None,
    targets: tuple[str, ...],
    output: Path | None,
    parameters: tuple[str, ...],
    code: bool,
    reading: Reading,
) -> Exit:
    """Run a notebook, open it, or list all of them."""
    known = notebooks()
    if name is None:
        if output is not None or parameters or code:
            names = ", ".join(known)
            raise click.UsageError(f"-o, -p and --code need the NAME of a notebook ({names}).")
        _list(list(known.values()))
        return Exit.DONE
    notebook = _chosen(known, name)
    values = _values(notebook, targets, parameters, reading)
    if output is None:
        return _open(notebook, values)
    if output.suffix not in _FORMS:
        problem = f"'{printable(str(output))}' ends neither with .html nor with .ipynb"
        raise click.UsageError(f"--output: {problem}.")
    if code and output.suffix != ".html":
        raise click.UsageError("--code is for HTML pages; a notebook file always has its code.")
    if not output.parent.is_dir():
        raise click.UsageError(f"--output: '{printable(str(output.parent))}' is not a directory.")
    check_writable(output)
    _write(_executed(notebook, values, output, reading), output, code)
    click.echo(printable(str(output)))
    return Exit.DONE


def _list(known: Sequence[Notebook]) -> None:
    for notebook in known:
        arguments = " ".join(f"[{each.name.upper()}]" for each in notebook.targets)
        click.secho(f"kcensus notebook {notebook.name} {arguments}", bold=True)
        click.echo(_filled(notebook.summary, _INDENT))
        for each in notebook.parameters.values():
            if each.name != "symbols":
                title = each.name.upper() if each.is_target else f"-p {each.name}="
                first = f"{_INDENT}{title:14} "
                value = ",".join(each.default) if isinstance(each.default, list) else each.default
                text = each.help if value == "" else f"{each.help}. Default: {value}"
                click.echo(_filled(text, first))
        click.echo()
    click.echo("-o FILE.html runs one and writes a page; `kcensus notebook --help` says more.")


def _filled(text: str, start: str) -> str:
    """Return lines that are as wide as the terminal, all of them indented as the first one."""
    width = min(_WIDTH, shutil.get_terminal_size().columns)
    indent = " " * len(start)
    return textwrap.fill(
        text, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    )


def _chosen(known: Mapping[str, Notebook], name: str) -> Notebook:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(known)}"
        raise click.UsageError(f"unknown notebook '{printable(name)}' ({hint})")
    return known[name]


def _values(
    notebook: Notebook, targets: Sequence[str], settings: Sequence[str], reading: Reading
) -> dict[str, Value]:
    """Return the parameters to set, by name.

    :raises click.UsageError: there are too many targets, or a setting is impossible
    """
    wanted = [each.name for each in notebook.targets]
    if len(targets) > len(wanted):
        takes = " ".join(map(str.upper, wanted))
        raise click.UsageError(f"{len(targets)} targets given; {notebook.name} takes {takes}.")
    if is_open() and ("session" in targets or not targets):
        problem = "a notebook runs in a process of its own, which has no access to this session"
        raise click.UsageError(f"{problem}; give the path of the vmcore.")
    values: dict[str, Value] = dict(zip(wanted, targets, strict=False))
    if reading.symbols:
        if "symbols" not in notebook.parameters:
            raise click.UsageError(f"--symbols: {notebook.name} does not read debug info.")
        values["symbols"] = [str(path) for path in reading.symbols]
    for setting in settings:
        name, equals, text = setting.partition("=")
        parameter = notebook.parameters.get(name)
        if parameter is None or not equals:
            problem = (
                "is not NAME=VALUE" if not equals else f"{notebook.name} has no such parameter"
            )
            names = ", ".join(notebook.parameters)
            raise click.UsageError(f"-p: '{printable(setting)}' {problem} (it has {names}).")
        try:
            values[name] = parameter.parse(text)
        except ValueError as error:
            raise click.UsageError(f"-p {name}: {printable(str(error))}.") from None
    return values


def _executed(
    notebook: Notebook, values: Mapping[str, Value], output: Path, reading: Reading
) -> NotebookNode:
    """Run a notebook.

    :raises TargetError: the target is unusable
    :raises NotebookError: the packages that run notebooks are not installed, or a cell failed
    """
    with progress_bars(reading.no_progress) as progress:
        with progress.step("starting Python", 0):
            _check_packages()
            from kcensus.actions.notebooks.execute import Stopped, executed
        try:
            return executed(notebook, values, progress)
        except Stopped as stopped:
            if stopped.error == click.UsageError.__name__:  # a parameter has an impossible value
                raise click.UsageError(stopped.message) from None
            sentence = f"{stopped.place} of {notebook.name} failed: {stopped.error}"
            if stopped.message:
                sentence += f": {stopped.message.rstrip('.')}"
            if stopped.partial is not None:
                partial = output.with_name(f"{output.stem}.failed.ipynb")
                _write(stopped.partial, partial, False)
                sentence += f"; the notebook up to there is '{partial}'"
            elif stopped.error in _TARGET_ERRORS:
                raise TargetError(stopped.message) from None
            if stopped.error in _TARGET_ERRORS:
                raise TargetError(sentence) from None
            raise NotebookError(sentence) from None


def _check_packages() -> None:
    missing = [
        name
        for name in ("ipykernel", "jupytext", "matplotlib", "nbconvert", "papermill")
        if find_spec(name) is None
    ]
    if missing:
        problem = f"notebooks need packages that are not installed ({', '.join(missing)})"
        raise NotebookError(f"{problem}: pip install 'kcensus[notebook]'")


def _write(node: NotebookNode, path: Path, code: bool) -> None:
    import nbformat

    if path.suffix == ".html":
        from kcensus.actions.notebooks.page import page

        text = page(node, code=code)
    else:
        text = nbformat.writes(node)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _open(notebook: Notebook, values: Mapping[str, Value]) -> Exit:
    """Write a notebook to the current directory, and become JupyterLab, which opens it.

    Without JupyterLab, say how to open it.
    """
    path = Path(f"{notebook.name}.ipynb")
    if os.path.lexists(path):
        raise click.UsageError(
            f"'{path}' exists; open it with `jupyter lab {path}`, or rename it to start again."
        )
    _check_packages()
    from kcensus.actions.notebooks.execute import prepared, python

    _write(prepared(notebook, values), path, False)
    if find_spec("jupyterlab") is not None:
        click.echo(f"{path}: opening it in JupyterLab; Ctrl-C twice ends that")
        sys.stdout.flush()
        command = [*python("from jupyterlab.labapp import main; sys.exit(main())"), str(path)]
        os.execv(command[0], command)
    click.echo(f"{path}: JupyterLab, which opens it, is not installed (pip install jupyterlab)")
    click.echo(f"`kcensus notebook {notebook.name} … -o report.html` runs it without")
    return Exit.DONE
