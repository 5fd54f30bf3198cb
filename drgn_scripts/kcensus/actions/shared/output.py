# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shows results in the forms that were asked for."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import click

from kcensus.actions import Exit, Showing, deferred, is_sample
from kcensus.render.directory import OutputError, check_replaceable, prepare, replacing
from kcensus.results import Danger, Finding, Result, Severity
from kcensus.sources import session
from kcensus.text import printable


@dataclass(frozen=True)
class Faces:
    """What writes each form of a result or a report.

    Each form loads a library of its own, so only the ones that are asked for are imported.
    """

    json: Callable[..., Any]
    csv: Callable[..., Any]
    parquet: Callable[..., Any]
    html: Callable[..., Any]


_RESULT = Faces(
    deferred("kcensus.render.json:write_json"),
    deferred("kcensus.render.csvdir:write_csv"),
    deferred("kcensus.render.parquet:write_parquet"),
    deferred("kcensus.render.html:write_html"),
)
_write_dot = deferred("kcensus.render.graphs.dot:write_dot")
_write_terminal = deferred("kcensus.render.terminal:write_terminal")
_paged_console = deferred("kcensus.render.screen.pager:paged_console")


def check_output(showing: Showing) -> None:
    """Raise an error for a path that cannot be written, before any work is done.

    :raises click.UsageError: a form of output cannot be written there
    """
    document = Path(showing.json) if showing.json and showing.json != "-" else None
    files = (("--json", document), ("--html", showing.html), ("--dot", showing.dot))
    for (one, path), (other, same) in combinations(files, 2):
        if path and same and path.resolve() == same.resolve():
            raise click.UsageError(f"{one} and {other} are both '{path}'; give two files.")
    for option, path in files:
        if path and path.is_dir():
            raise click.UsageError(f"{option}: '{path}' is a directory; give a file.")
        if path and not path.parent.is_dir():
            raise click.UsageError(f"{option}: '{path.parent}' is not a directory.")
    if showing.parquet and find_spec("pyarrow") is None:
        raise click.UsageError("--parquet needs pyarrow: install kcensus[parquet].")
    if document and _is_target(document):
        raise click.UsageError(
            f"--json: '{document}' looks like a target; put it before --json, "
            "or give the file of the document."
        )
    try:
        for path in filter(None, (showing.html, document, showing.dot)):
            check_replaceable(path)
        for directory in filter(None, (showing.csv, showing.parquet)):
            prepare(directory)
    except OutputError as error:
        raise click.UsageError(str(error)) from None


def _is_target(path: Path) -> bool:
    """Return whether ``--json`` would replace a vmcore: its file name is optional."""
    if path.is_file():
        with path.open("rb") as file:
            return file.read(1) not in (b"", b"{")
    return is_sample(str(path)) or str(path).startswith("qmp:")


def check_tables(showing: Showing, names: Collection[str]) -> None:
    """Refuse names of tables that do not exist.

    :raises click.UsageError: ``--table`` names one that is not in ``names``
    """
    for name in showing.tables:
        if name not in names:
            choices = ", ".join(names) or "none: it has only a summary"
            raise click.UsageError(
                f"--table: unknown table '{printable(name)}' (choose from {choices})"
            )


def show(
    result: Result,
    showing: Showing,
    first: Sequence[str] = (),
    known: Iterable[str] = (),
) -> Exit:
    """Show a result in the forms that were asked for.

    :param first: tables that a screen shows by default; all where empty
    :param known: names of tables that the result could have had
    :return: the exit status that its findings have
    """
    session.keep(result)
    if showing.dot:
        _write_dot(result, showing.dot)
        click.echo(printable(str(showing.dot)), err=showing.json == "-")
    if not write_files(result, _RESULT, showing) and not showing.dot:
        check_tables(showing, dict.fromkeys([*known, *result.tables]))
        with console(showing) as screen:
            _write_terminal(
                result,
                screen,
                showing.top,
                showing.tables,
                first,
                every=showing.every_table,
            )
    return exit_status(result.findings, showing.fail_on)


def write_files(subject: Any, faces: Faces, showing: Showing) -> bool:
    """Write a result or a report in the forms that were asked for, and list the files.

    :return: whether any was asked for; if none was, a screen is
    """
    written: list[Path] = []
    for write, path in (
        (faces.csv, showing.csv),
        (faces.parquet, showing.parquet),
        (faces.html, showing.html),
    ):
        if path:
            written += write(subject, path)
    if showing.json == "-":
        faces.json(subject, stdout(encoding="utf-8"))
    elif showing.json:
        path = Path(showing.json)
        with replacing(path) as part, part.open("w", encoding="utf-8") as file:
            faces.json(subject, file)
        written.append(path)
    for path in written:
        click.echo(printable(str(path)), err=showing.json == "-")
    return bool(written or showing.json)


def console(showing: Showing) -> AbstractContextManager[Any]:
    """Return a context with a console on standard output, or on a pager."""
    made: AbstractContextManager[Any] = _paged_console(stdout(), wanted=not showing.no_pager)
    return made


def exit_status(findings: Iterable[Finding], fail_on: str | None) -> Exit:
    """Return the exit status: under ``--fail-on``, a finding about the kernel goes first."""
    incomplete = False
    for finding in findings:
        if finding.danger is Danger.INCOMPLETE:
            incomplete = True
        elif fail_on and finding.severity >= Severity[fail_on.upper()]:
            return Exit.FINDING
    return Exit.INCOMPLETE if incomplete else Exit.DONE


def stdout(encoding: str | None = None) -> Any:
    """Return standard output; characters that its encoding lacks are escaped.

    :param encoding: by default that of the locale
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    return sys.stdout
