# SPDX-License-Identifier: LGPL-2.1-or-later
"""Show results in the requested forms."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from kcensus import samples
from kcensus.commands import Exit
from kcensus.commands.shared.options import Showing, session_is_open
from kcensus.outputs import OutputError, check_replaceable, prepare, replacing
from kcensus.results import Danger, Finding, Result, Severity
from kcensus.text import how_to_install, printable

if TYPE_CHECKING:
    from kcensus.reports import Report


_OTHER_PICTURES = (".png", ".jpg", ".jpeg", ".pdf", ".gif", ".webp", ".html")
_STARTS = {"--json": b"{", "--reply": b"W"}
"""First bytes of what options with an optional file write."""


def check_output(showing: Showing) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    for option in ("json", "reply"):
        if getattr(showing, option) == "":
            raise click.UsageError(f"--{option}: '' is no file; give a name.")
    if showing.json == showing.reply == "-":
        raise click.UsageError("--json and --reply: only one can go to the screen; give a file.")
    if showing.brief and not showing.html:
        raise click.UsageError("--brief is about the page of --html; give that, too.")
    document, text = map(_named, (showing.json, showing.reply))
    files = (
        ("--json", document),
        ("--reply", text),
        ("--html", showing.html),
        ("--dot", showing.dot),
        ("--svg", showing.svg),
    )
    for (one, path), (other, same) in combinations(files, 2):
        if path and same and os.path.realpath(path) == os.path.realpath(same):
            raise click.UsageError(f"{one} and {other} are both '{path}'; give two files.")
    for option, path in files:
        if path and path.is_dir():
            raise click.UsageError(f"{option}: '{path}' is a directory; give a file.")
        if path and option == "--svg" and path.suffix.lower() in _OTHER_PICTURES:
            raise click.UsageError(
                f"{option}: '{path}' is the name of another kind of file; end it with .svg."
            )
        if path and not path.parent.is_dir():
            raise click.UsageError(f"{option}: '{path.parent}' is not a directory.")
    if showing.parquet and find_spec("pyarrow") is None:
        raise click.UsageError(
            f"--parquet needs pyarrow: {how_to_install('parquet')}, or the package kcensus-store."
        )
    for option, path in (("--json", document), ("--reply", text)):
        if path and _is_target(path, _STARTS[option]):
            raise click.UsageError(
                f"{option}: '{path}' looks like a target; put it before {option}, "
                "or give the file to write."
            )
    try:
        for path in filter(None, (path for _, path in files)):
            check_replaceable(path)
        for directory in filter(None, (showing.csv, showing.parquet)):
            prepare(directory)
    except OutputError as error:
        raise click.UsageError(str(error)) from None


def _named(file: str | None) -> Path | None:
    return Path(file) if file and file != "-" else None


def _is_target(path: Path, start: bytes) -> bool:
    """Return whether an option whose file is optional would replace a vmcore.

    :param start: first byte of what the option writes
    """
    if path.is_file():
        with path.open("rb") as file:
            return file.read(1) not in (b"", start)
    return bool(samples.capsule(str(path))) or str(path).startswith("qmp:")


def check_tables(showing: Showing, names: Collection[str]) -> None:
    """Refuse tables of ``--table`` that are not in ``names``."""
    for name in showing.tables:
        if name not in names:
            choices = ", ".join(names) or "none: it has only a summary"
            raise click.UsageError(
                f"--table: unknown table '{printable(name)}' (choose from {choices})"
            )


def show(
    result: Result, showing: Showing, first: Sequence[str] = (), known: Iterable[str] = ()
) -> Exit:
    """Show a result in the requested forms.

    :param first: tables that a screen shows by default; all if empty
    :param known: names of tables that the result could have had
    :return: the exit status of its findings
    """
    from kcensus.sources import session

    session.keep(result)
    pictures = {"dot:write_dot": showing.dot, "forecast:write_svg": showing.svg}
    for writer, path in pictures.items():
        if path:
            resolve_name(f"kcensus.render.graphs.{writer}")(result, path)
            click.echo(printable(str(path)), err=showing.json == "-")
    if not write_files(result, showing) and not any(pictures.values()):
        from kcensus.render.terminal import write_terminal

        check_tables(showing, dict.fromkeys([*known, *result.tables]))
        with console(showing) as screen:
            write_terminal(
                result, screen, showing.top, showing.tables, first, every=showing.every_table
            )
    return exit_status(result.findings, showing.fail_on)


def write_files(subject: Result | Report, showing: Showing) -> bool:
    """Write a result or a report in the requested forms, and list the files.

    :return: whether any was requested; else a screen shows it
    """
    written: list[Path] = []
    # Each form imports a library of its own.
    for form, module in (("csv", "csvdir"), ("parquet", "parquet"), ("html", "html")):
        if path := getattr(showing, form):
            write = resolve_name(f"kcensus.render.{module}:write_{form}")
            written += write(subject, path, **({"brief": showing.brief} if form == "html" else {}))
    for form, place in (("json", showing.json), ("reply", showing.reply)):
        if not place:
            continue
        write = resolve_name(f"kcensus.render.{form}:write_{form}")
        if place == "-":
            write(subject, stdout(encoding="utf-8" if form == "json" else None))
            continue
        with replacing(Path(place)) as part, part.open("w", encoding="utf-8") as file:
            write(subject, file)
        written.append(Path(place))
    on_screen = "-" in (showing.json, showing.reply)
    for path in written:
        click.echo(printable(str(path)), err=on_screen)
    return bool(written or on_screen)


def console(showing: Showing) -> AbstractContextManager[Any]:
    """Return a context with a console on standard output, or on a pager.

    No pager opens at the prompt of crash or drgn, where it would take the lines that are pasted
    after the command.
    """
    from kcensus.render.screen import paged_console

    wanted = not (showing.no_pager or session_is_open())
    return paged_console(stdout(), wanted=wanted)


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
    """Return standard output; characters that its encoding, or the locale's, lacks are escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    return sys.stdout
