# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus diff``: what changed from one target to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kcensus.commands.shared import (
    CONTEXT_SETTINGS,
    Exit,
    Reading,
    Showing,
    check_output,
    context_options,
    examples_epilog,
    opened,
    reading_options,
    show,
    showing_options,
    take,
    target_argument,
)

if TYPE_CHECKING:
    from kcensus.reports import Report

_HELP = """What changed between two kernels, or two dumps of one?

Runs every analysis on both, and shows for each of its figures and tables what is different: new
rows, rows that are gone, rows that changed, the largest change first. Ratios and other columns
of a table are in --json, --csv and --parquet.

What could not be read on either side is a gap of that side: a change may be nothing but that."""

_EXAMPLES = (
    ("kcensus diff monday.vmcore friday.vmcore", "what grew in a week"),
    ("kcensus diff before.vmcore after.vmcore --analyses slab", "one analysis alone"),
)


def _run(before: str, after: str, analyses: str | None, **values: Any) -> Exit:
    from kcensus.compare import compare
    from kcensus.results import Gap

    reading, showing = take(Reading, values), take(Showing, values)
    check_output(showing)
    first, second = (_examined(target, analyses, reading) for target in (before, after))
    pairs = [
        (one.result, other.result)
        for one, other in zip(first.sections, second.sections, strict=True)
        if one.result and other.result
    ]
    result = compare(pairs, first.target, second.target)
    for made in (first, second):
        result.gaps += [
            Gap(f"{section.name} on {made.target}", section.error, 1, "it cannot be compared")
            for section in made.sections
            if section.result is None
        ]
    status = show(result, showing)
    return status if pairs else Exit.TARGET


def _examined(target: str, names: str | None, reading: Reading) -> Report:
    from kcensus.analyses.runner import Context
    from kcensus.commands.shared import chosen_analyses
    from kcensus.reports import report

    with opened(target, reading) as (opened_target, progress):
        context = Context.of(opened_target, progress=progress, **context_options(reading))
        return report(context, chosen_analyses(names))


COMMAND = click.Command(
    "diff",
    callback=_run,
    params=[
        target_argument("before", required=True),
        target_argument("after", required=True),
        click.Option(["--analyses"], metavar="NAME,…", help="Run these only. Default: all."),
        *showing_options(),
        *reading_options(),
    ],
    help=_HELP,
    short_help="what changed between two kernels, or two dumps of one?",
    epilog=examples_epilog(_EXAMPLES),
    context_settings=CONTEXT_SETTINGS,
)
