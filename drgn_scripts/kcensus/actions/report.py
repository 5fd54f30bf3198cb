# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus report``."""

from __future__ import annotations

from pathlib import Path

import click

from kcensus import saved
from kcensus.actions import Exit, Reading, Showing, deferred
from kcensus.actions.patches import load_catalogue
from kcensus.actions.shared.output import Faces, check_output, console, exit_status, write_files
from kcensus.actions.shared.target import context_of, opened
from kcensus.reports import examine
from kcensus.sources import session
from kcensus.text import printable

_REPORT = Faces(
    deferred("kcensus.render.json:write_report_json"),
    deferred("kcensus.render.csvdir:write_report_csv"),
    deferred("kcensus.render.parquet:write_report_parquet"),
    deferred("kcensus.render.html:write_report_html"),
)
_write_terminal = deferred("kcensus.render.report:write_report")


def run(
    target: str | None,
    catalogue: tuple[Path, ...],
    full: bool,
    reading: Reading,
    showing: Showing,
) -> Exit:
    """Run all analyses on a target and show the report."""
    check_output(showing)
    patches = load_catalogue(catalogue)
    if saved.is_document(target):
        report = saved.load(str(target))
    else:
        with opened(target, reading) as (opened_target, progress):
            report = examine(context_of(opened_target, progress, reading), patches)
    session.keep(report)
    if showing.csv or showing.parquet:
        for name, error in report.errors.items():
            click.echo(f"kcensus: {printable(f'{name} failed on this target: {error}')}", err=True)
    if not write_files(report, _REPORT, showing):
        with console(showing) as screen:
            _write_terminal(report, screen, showing.top, full, showing.every_table)
    if not report.results or (report.errors and {*report.results} == {"patches"}):
        return Exit.TARGET
    return exit_status((finding for _, finding in report.findings), showing.fail_on)
