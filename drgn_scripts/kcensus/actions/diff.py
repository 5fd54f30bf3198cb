# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus diff``."""

from __future__ import annotations

from dataclasses import replace

import click

from kcensus import saved
from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.shared.output import check_output, show
from kcensus.actions.shared.target import chosen_analyses, context_of, left_out, opened
from kcensus.compare import FIRST_TABLES, compare
from kcensus.reports import report
from kcensus.text import printable


def run(
    before: str, after: str | None, analyses: str | None, reading: Reading, showing: Showing
) -> Exit:
    """Run the analyses on both targets and show what differs."""
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
