# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages with charts: memory by use, the effect of a patch, growth over time."""

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

from kcensus.commands import Exit
from kcensus.commands.notebook.library import Notebook, Value, notebooks
from kcensus.commands.shared import options, values
from kcensus.commands.shared.target import progress_bars
from kcensus.outputs import OutputError, check_writable, replacing
from kcensus.text import how_to_install, printable

if TYPE_CHECKING:
    from nbformat import NotebookNode

_HELP = """Run a notebook that comes with kcensus on your own kernels, or open it.

A notebook explains its charts: the memory of a machine, the effect of a patch, growth over time.
Without NAME, list the notebooks, their targets and their parameters. Omitted targets are samples
that come with kcensus.

With -o, the notebook runs, and its results are written: as one HTML page that loads nothing else,
or as an .ipynb file for Jupyter. Without -o, it is written to the current directory as an .ipynb
file and opened in JupyterLab, where you run and change it.

Notebooks run in a process of their own, in the Python environment of kcensus. They need the
packages of `pip install '.[notebook]'` in the clone."""

_FORMS = (".html", ".ipynb")
_TARGET_ERRORS = (
    "TargetError",
    "AnalysisError",
    "BadCapsule",
    "MissingDebugInfoError",
    "StoreError",
)
"""Errors in a notebook that mean an unusable target."""
_WIDTH, _INDENT = 100, "    "


def _run(
    name: str | None,
    targets: tuple[str, ...],
    output: Path | None,
    parameters: tuple[str, ...],
    code: bool,
    reading: options.Reading,
) -> Exit:
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
    notebook: Notebook, targets: Sequence[str], settings: Sequence[str], reading: options.Reading
) -> dict[str, Value]:
    wanted = [each.name for each in notebook.targets]
    if len(targets) > len(wanted):
        takes = " ".join(map(str.upper, wanted))
        raise click.UsageError(f"{len(targets)} targets given; {notebook.name} takes {takes}.")
    if options.session_is_open() and ("session" in targets or not targets):
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
            problem = f"{notebook.name} has no such parameter" if equals else "is not NAME=VALUE"
            names = ", ".join(notebook.parameters)
            raise click.UsageError(f"-p: '{printable(setting)}' {problem} (it has {names}).")
        try:
            values[name] = parameter.parse(text)
        except ValueError as error:
            raise click.UsageError(f"-p {name}: {printable(str(error))}.") from None
    return values


def _executed(
    notebook: Notebook, values: Mapping[str, Value], output: Path, reading: options.Reading
) -> NotebookNode:
    from kcensus.sources import TargetError

    with progress_bars(reading.no_progress) as progress:
        with progress.step("starting Python", 0):
            _check_packages()
            from kcensus.commands.notebook.execute import Stopped, executed
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
            raise OutputError(sentence) from None


def _check_packages() -> None:
    needed = ("ipykernel", "jupytext", "matplotlib", "papermill")
    if missing := [name for name in needed if find_spec(name) is None]:
        problem = f"notebooks need packages that are not installed ({', '.join(missing)})"
        raise OutputError(f"{problem}: {how_to_install('notebook')}")


def _write(node: NotebookNode, path: Path, code: bool) -> None:
    import nbformat

    if path.suffix == ".html":
        from kcensus.commands.notebook.page import page

        text = page(node, code=code)
    else:
        text = nbformat.writes(node)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _open(notebook: Notebook, values: Mapping[str, Value]) -> Exit:
    """Write a notebook to the current directory, and become JupyterLab, if there is one."""
    path = Path(f"{notebook.name}.ipynb")
    if os.path.lexists(path):
        raise click.UsageError(
            f"'{path}' exists; open it with `jupyter lab {path}`, or rename it to start again."
        )
    _check_packages()
    from kcensus.commands.notebook.execute import prepared
    from kcensus.limits.children import python

    _write(prepared(notebook, values), path, False)
    if find_spec("jupyterlab") is not None:
        click.echo(f"{path}: opening in JupyterLab; press Ctrl-C twice to stop JupyterLab")
        sys.stdout.flush()
        command = [*python("from jupyterlab.labapp import main; sys.exit(main())"), str(path)]
        os.execv(command[0], command)
    click.echo(
        f"{path} is written, but JupyterLab is not installed; install it with `pip install "
        "jupyterlab`"
    )
    click.echo(f"`kcensus notebook {notebook.name} … -o report.html` needs no JupyterLab")
    return Exit.DONE


COMMAND = options.command(
    "notebook",
    _run,
    [
        click.Argument(["name"], required=False, shell_complete=values.one_of(values.notebooks)),
        options.words("targets", "[TARGET]..."),
        options.files(
            "-o --output",
            "FILE",
            "Run the notebook and write FILE, whose name ends with .html or .ipynb.",
        ),
        options.option(
            "parameters -p",
            "NAME=VALUE",
            "Set a parameter of the notebook. May be repeated.",
            multiple=True,
        ),
        options.flag("--code", "Show the code of the notebook in the page."),
        *options.reading(),
    ],
    _HELP,
    (
        ("kcensus notebook", "list the notebooks"),
        ("kcensus notebook capacity_report -o report.html", "on the sample"),
        ("kcensus notebook capacity_report vmcore -s vmlinux -o report.html", "on a vmcore"),
        ("kcensus notebook patch_validation before.vmcore after.vmcore -o effect.html", "on two"),
        ("kcensus notebook capacity_report vmcore -p top=20 -o report.ipynb", "for Jupyter"),
    ),
)
