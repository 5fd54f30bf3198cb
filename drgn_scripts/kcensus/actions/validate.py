# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus validate``."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import click

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.patches import load_catalogue
from kcensus.actions.shared.output import check_output, show
from kcensus.actions.shared.target import context_of, opened, progress_bars
from kcensus.catalogue.validate import Refused, Verdict, judge, look_at
from kcensus.catalogue.verdict import validation_result
from kcensus.reports import conclude, measured, traced
from kcensus.text import printable


def run(
    patch: str,
    before: str,
    after: str,
    more: tuple[tuple[str, str], ...],
    traces: bool,
    as_given: bool,
    catalogue: tuple[Path, ...],
    reading: Reading,
    showing: Showing,
) -> Exit:
    """Judge a patch by pairs of targets."""
    check_output(showing)
    known = load_catalogue(catalogue)
    try:
        chosen = known.validated(patch, traces=traces)
    except LookupError as error:
        raise click.UsageError(f"{error}.") from None
    names = [(before, after), *more]
    _check_pairs(names)
    sides = {}
    for name in dict.fromkeys(itertools.chain(*names)):
        if traces:
            with progress_bars(reading.no_progress) as progress:
                sides[name] = traced(chosen, name, progress)
            continue
        with opened(name, reading) as (target, progress):
            sides[name] = measured(context_of(target, progress, reading), chosen, known)
    try:
        pairs = [
            look_at(chosen, sides[first], sides[second], as_given=as_given)
            for first, second in names
        ]
    except Refused as error:
        raise click.UsageError(f"{error}.") from None
    judgement = judge(chosen, pairs)
    status = show(conclude(validation_result(chosen, judgement), known), showing)
    statuses = {Verdict.CONFIRMED: status, Verdict.CONTRADICTED: Exit.FINDING}
    return statuses.get(judgement.verdict, Exit.INCONCLUSIVE)


def _check_pairs(pairs: list[tuple[str, str]]) -> None:
    paths = [(os.path.realpath(before), os.path.realpath(after)) for before, after in pairs]
    for (before, after), (first, second) in zip(pairs, paths, strict=True):
        if first == second:
            raise click.UsageError(
                f"'{printable(before)}' and '{printable(after)}' are the same target."
            )
    if len(set(paths)) < len(paths):
        raise click.UsageError("a pair is given twice; give each pair once.")
