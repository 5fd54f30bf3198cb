# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs one analysis, and shows its result."""

from __future__ import annotations

from typing import Any

import click

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.output import check_output, check_tables, show
from kcensus.actions.target import context_of, opened, progress_bars
from kcensus.analyses import Analysis
from kcensus.analyses.runner import Context
from kcensus.reports import analyse
from kcensus.results.tables import Column, Show


def run(
    analysis: Analysis,
    target: str | None,
    reading: Reading,
    showing: Showing,
    help_tables: bool,
    **params: Any,
) -> Exit:
    """Run ``analysis`` on a target, or on nothing where its parameters replace one."""
    if help_tables:
        click.echo(_help_tables(analysis))
        return Exit.DONE
    check_output(showing)
    known = [spec.name for spec in analysis.tables()]
    if known:
        check_tables(showing, known)
    if analysis.needs_target(target, params):
        with opened(target, reading) as (opened_target, progress):
            result = analyse(context_of(opened_target, progress, reading), analysis, **params)
    else:
        with progress_bars(reading.no_progress) as progress:
            result = analyse(Context.without_target(progress), analysis, **params)
    return show(result, showing, analysis.first_tables, known)


def _help_tables(analysis: Analysis) -> str:
    """Return what a row of each table is, and its columns."""
    formatter = click.get_current_context().make_formatter()
    for spec in analysis.tables():
        with formatter.section(spec.name):
            formatter.write_text(f"{spec.title}. Row: {spec.help}")
            formatter.write_paragraph()
            formatter.write_dl([(name, _help(name, each)) for name, each in spec.columns.items()])
    formatter.write_paragraph()
    formatter.write_text(
        "Columns marked (data) are in --json, --csv and --parquet, not on screen."
        if analysis.tables()
        else "This analysis does not describe its tables."
    )
    return formatter.getvalue().strip("\n")


def _help(name: str, column: Column) -> str:
    heading = "" if column.label in ("", name.replace("_", " ")) else f'"{column.label}": '
    unit = f" [{column.unit.value}]" if column.unit.value not in ("", "text", "count") else ""
    return f"{heading}{column.help}{unit}{' (data)' if column.show is Show.DATA else ''}".strip()
