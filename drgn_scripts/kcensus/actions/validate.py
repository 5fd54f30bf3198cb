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
from kcensus.actions.shared.target import context_of, opened
from kcensus.catalogue import Catalogue, Patch
from kcensus.catalogue.validate import Refused, Verdict, judge, look_at
from kcensus.catalogue.verdict import validation_result
from kcensus.reports import conclude, measured
from kcensus.text import printable


def run(
    patch: str,
    before: str,
    after: str,
    more: tuple[tuple[str, str], ...],
    catalogue: tuple[Path, ...],
    reading: Reading,
    showing: Showing,
) -> Exit:
    """Judge a patch by pairs of targets."""
    check_output(showing)
    known = load_catalogue(catalogue)
    chosen = _patch(known, patch)
    names = [(before, after), *more]
    _check_pairs(names)
    sides = {}
    for name in dict.fromkeys(itertools.chain(*names)):
        with opened(name, reading) as (target, progress):
            sides[name] = measured(context_of(target, progress, reading), chosen, known)
    try:
        pairs = [look_at(chosen, sides[first], sides[second]) for first, second in names]
    except Refused as error:
        raise click.UsageError(f"{error}.") from None
    judgement = judge(chosen, pairs)
    status = show(conclude(validation_result(chosen, judgement), known), showing)
    statuses = {Verdict.CONFIRMED: status, Verdict.CONTRADICTED: Exit.FINDING}
    return statuses.get(judgement.verdict, Exit.INCONCLUSIVE)


def _patch(catalogue: Catalogue, name: str) -> Patch:
    patch = catalogue.patches.get(name)
    choices = [other.id for other in catalogue.patches.values() if other.validation]
    if patch is None or patch.validation is None:
        problem = "unknown patch" if patch is None else "no validation is defined for"
        raise click.UsageError(f"{problem} '{printable(name)}' (choose from {', '.join(choices)}).")
    return patch


def _check_pairs(pairs: list[tuple[str, str]]) -> None:
    paths = [(os.path.realpath(before), os.path.realpath(after)) for before, after in pairs]
    for (before, after), (first, second) in zip(pairs, paths, strict=True):
        if first == second:
            raise click.UsageError(
                f"'{printable(before)}' and '{printable(after)}' are the same target."
            )
    if len(set(paths)) < len(paths):
        raise click.UsageError("a pair is given twice; give each pair once.")
