# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs one analysis, and shows its result."""

from __future__ import annotations

from typing import Any

import click

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.shared.output import check_output, check_tables, show
from kcensus.actions.shared.target import context_of, opened, progress_bars, saved_result
from kcensus.analyses import Analysis
from kcensus.analyses.runner import Context
from kcensus.reports import analyse
from kcensus.text import printable


def run(
    analysis: Analysis,
    target: str | None,
    reading: Reading,
    showing: Showing,
    **params: Any,
) -> Exit:
    """Run ``analysis`` on a target, or on nothing where its parameters replace one."""
    check_output(showing)
    known = [spec.name for spec in analysis.tables()]
    if known:
        check_tables(showing, known)
    result = saved_result(target, analysis.name)
    if result is not None:
        for name in analysis.without_target:
            if params.get(name) is not None:
                raise click.UsageError(
                    f"--{name} needs the dump itself: '{printable(str(target))}' is a saved result."
                )
    elif analysis.needs_target(target, params):
        with opened(target, reading) as (opened_target, progress):
            result = analyse(context_of(opened_target, progress, reading), analysis, **params)
    else:
        with progress_bars(reading.no_progress) as progress:
            result = analyse(Context.without_target(progress), analysis, **params)
    return show(result, showing, analysis.first_tables, known)
