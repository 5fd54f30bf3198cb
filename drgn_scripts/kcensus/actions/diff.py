# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus diff``."""

from __future__ import annotations

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.output import check_output, show
from kcensus.actions.target import chosen_analyses, context_of, opened
from kcensus.compare import compare
from kcensus.reports import Report, report
from kcensus.results import Gap


def run(before: str, after: str, analyses: str | None, reading: Reading, showing: Showing) -> Exit:
    """Run the analyses on both targets and show what differs."""
    check_output(showing)
    reports = [_report(target, analyses, reading) for target in (before, after)]
    pairs = [
        (older.result, newer.result)
        for older, newer in zip(*(made.sections for made in reports), strict=True)
        if older.result and newer.result
    ]
    result = compare(pairs, *(made.target for made in reports))
    result.gaps += [
        Gap(f"{section.name} on {made.target}", section.error, 1, "it is not compared")
        for made in reports
        for section in made.sections
        if section.result is None
    ]
    status = show(result, showing)
    return status if pairs else Exit.TARGET


def _report(target: str, names: str | None, reading: Reading) -> Report:
    chosen = chosen_analyses(names)
    with opened(target, reading) as (opened_target, progress):
        return report(context_of(opened_target, progress, reading), chosen)
