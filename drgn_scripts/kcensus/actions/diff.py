# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus diff``."""

from __future__ import annotations

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.output import check_output, show
from kcensus.actions.target import chosen_analyses, context_of, opened
from kcensus.compare import compare
from kcensus.reports import report
from kcensus.results import Gap


def run(before: str, after: str, analyses: str | None, reading: Reading, showing: Showing) -> Exit:
    """Run the analyses on both targets and show what differs."""
    check_output(showing)
    chosen = chosen_analyses(analyses)
    reports = []
    for target in (before, after):
        with opened(target, reading) as (opened_target, progress):
            reports.append(report(context_of(opened_target, progress, reading), chosen))
    pairs = [
        (older, newer)
        for name, older in reports[0].results.items()
        if (newer := reports[1].results.get(name))
    ]
    result = compare(pairs, *(made.head.target for made in reports))
    result.gaps += [
        Gap(f"{name} on {made.head.target}", error, 1, "it is not compared")
        for made in reports
        for name, error in made.errors.items()
    ]
    status = show(result, showing)
    return status if pairs else Exit.TARGET
