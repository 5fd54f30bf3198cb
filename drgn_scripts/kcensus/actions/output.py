# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shows results in the form that was asked for."""

from __future__ import annotations

import io
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from kcensus.actions import Exit, Showing, deferred
from kcensus.render.directory import OutputError, check_replaceable, prepare
from kcensus.results import Danger, Finding, Result, Severity
from kcensus.text import printable

# Each form loads a library of its own, so only the one that is asked for is imported.
write_csv = deferred("kcensus.render.csvdir:write_csv")
write_parquet = deferred("kcensus.render.parquet:write_parquet")
_write_html = deferred("kcensus.render.html:write_html")
_write_json = deferred("kcensus.render.json:write_json")
_write_terminal = deferred("kcensus.render.terminal:write_terminal")
console_for = deferred("kcensus.render.screen:console_for")


def check_output(showing: Showing) -> None:
    """Raise an error for a path that cannot be written, before any work is done.

    :raises click.UsageError: more than one form is asked for, or it cannot be written there
    """
    paths = (showing.csv, showing.parquet, showing.html)
    if showing.json + sum(path is not None for path in paths) > 1:
        raise click.UsageError("give only one of --json, --csv, --parquet and --html.")
    if showing.html and showing.html.is_dir():
        raise click.UsageError(f"--html: '{showing.html}' is a directory; give a file.")
    if showing.html and not showing.html.parent.is_dir():
        raise click.UsageError(f"--html: '{showing.html.parent}' is not a directory.")
    directory = showing.csv or showing.parquet
    try:
        if showing.html:
            check_replaceable(showing.html)
        if directory:
            prepare(directory)
    except OutputError as error:
        raise click.UsageError(str(error)) from None


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
    result: Result, showing: Showing, first: Sequence[str] = (), known: Iterable[str] = ()
) -> Exit:
    """Show a result in the form that was asked for.

    :param first: tables that a screen shows by default; all where empty
    :param known: names of tables that the result could have had
    :return: the exit status that its findings have
    """
    if showing.csv:
        list_written(write_csv(result, showing.csv))
    elif showing.parquet:
        list_written(write_parquet(result, showing.parquet))
    elif showing.html:
        list_written(_write_html(result, showing.html))
    elif showing.json:
        _write_json(result, stdout(encoding="utf-8"))
    else:
        check_tables(showing, dict.fromkeys([*known, *result.tables]))
        _write_terminal(
            result,
            console_for(stdout()),
            showing.top,
            showing.tables,
            first,
            every=showing.every_table,
        )
    return exit_status(result.findings, showing.fail_on)


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


def list_written(paths: Sequence[Path]) -> None:
    """Print the names of the files that were written."""
    for path in paths:
        click.echo(printable(str(path)))
