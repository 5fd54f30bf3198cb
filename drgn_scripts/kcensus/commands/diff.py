# SPDX-License-Identifier: LGPL-2.1-or-later
"""What grew between two kernels, or two dumps of one?"""

from __future__ import annotations

from dataclasses import replace

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.output import check_output, show
from kcensus.commands.shared.target import chosen_analyses, context_of, left_out, opened
from kcensus.text import printable

_HELP = """Show what grew between two kernels, or two dumps of one.

Runs every analysis on both. Grown memory comes first, the largest growth on top; then the figures
and table rows that differ. Rows are matched by name; --all shows all tables, and ratios and the
other columns are in --json, --csv and --parquet.

Each side is a target, or a file that --json wrote, of a report or of one analysis. Inside crash and
drgn, AFTER defaults to the open kernel. Memory unreadable on one side can look like a change, so it
is a gap of that side; if an analysis fails on one side, the exit status is 6."""


def _run(
    before: str,
    after: str | None,
    analyses: str | None,
    reading: options.Reading,
    showing: options.Showing,
) -> Exit:
    from kcensus import saved
    from kcensus.compare import FIRST_TABLES, compare
    from kcensus.reports import report

    after = left_out("AFTER") if after is None else after
    check_output(showing)
    chosen = chosen_analyses(analyses)
    documents = {name: saved.load(name) for name in (before, after) if saved.is_document(name)}
    for name, document in documents.items():
        has = {*document.results, *document.errors}
        chosen = [analysis for analysis in chosen if analysis.name in has]
        if not chosen:
            raise click.UsageError(f"'{printable(name)}' has no analysis to compare.")
    names = [analysis.name for analysis in chosen]
    sides = []
    for target in (before, after):
        if target in documents:
            made = documents[target]
            sections = [section for section in made.sections if section.name in names]
            sides.append(replace(made, sections=sections))
        else:
            with opened(target, reading) as (opened_target, progress):
                sides.append(report(context_of(opened_target, progress, reading), chosen))
    status = show(compare(*sides), showing, FIRST_TABLES)
    return status if sides[0].results.keys() & sides[1].results.keys() else Exit.TARGET


COMMAND = options.command(
    "diff",
    _run,
    [
        options.target("before", required=True),
        options.target("after", metavar="AFTER"),
        options.analyses(),
        *options.showing(),
        *options.reading(several=True),
    ],
    _HELP,
    (
        ("kcensus diff monday.vmcore friday.vmcore", "what grew in a week"),
        ("kcensus diff before.vmcore after.vmcore --analyses slab", "one analysis only"),
        ("kcensus diff monday.json vmcore", "against Monday's `report --json`"),
    ),
)
