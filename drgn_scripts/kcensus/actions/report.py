# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus report``."""

from __future__ import annotations

from pathlib import Path

import click

from kcensus.actions import Exit, Reading, Showing, deferred
from kcensus.actions.output import (
    check_output,
    console_for,
    exit_status,
    list_written,
    stdout,
    write_csv,
    write_parquet,
)
from kcensus.actions.patches import load_catalogue
from kcensus.actions.target import context_of, opened
from kcensus.analyses import analyses
from kcensus.reports import examine
from kcensus.text import printable

_write_html = deferred("kcensus.render.html:write_report_html")
_write_json = deferred("kcensus.render.json:write_report_json")
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
    with opened(target, reading) as (opened_target, progress):
        report = examine(context_of(opened_target, progress, reading), patches)
    directory = showing.csv or showing.parquet
    if directory:
        write = write_csv if showing.csv else write_parquet
        for name, error in report.errors.items():
            click.echo(f"kcensus: {printable(f'{name} failed on this target: {error}')}", err=True)
        for name, result in report.results.items():
            list_written(write(result, directory / name))
    elif showing.html:
        list_written(_write_html(report, showing.html))
    elif showing.json:
        _write_json(report, stdout(encoding="utf-8"))
    else:
        _write_terminal(report, console_for(stdout()), showing.top, full)
    if not any(name in analyses() for name in report.results):
        return Exit.TARGET
    return exit_status((finding for _, finding in report.findings), showing.fail_on)
