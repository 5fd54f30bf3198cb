# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus validate``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.output import check_output, show
from kcensus.actions.patches import load_catalogue
from kcensus.actions.target import context_of, opened
from kcensus.catalogue import Catalogue, Patch
from kcensus.catalogue.validate import Refused, Side, Verdict, judge, look_at
from kcensus.catalogue.verdict import validation_result
from kcensus.reports import measured
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
    _all_different(names)
    sides = {name: _side(name, chosen, known, reading) for pair in names for name in pair}
    try:
        pairs = [look_at(chosen, sides[first], sides[second]) for first, second in names]
    except Refused as error:
        raise click.UsageError(f"{error}.") from None
    judgement = judge(chosen, pairs)
    status = show(validation_result(chosen, judgement), showing)
    if judgement.verdict is Verdict.CONFIRMED:
        return status
    contradicted = judgement.verdict is Verdict.CONTRADICTED
    return Exit.FINDING if contradicted else Exit.INCONCLUSIVE


def _patch(catalogue: Catalogue, name: str) -> Patch:
    patch = catalogue.patches.get(name)
    choices = [other.id for other in catalogue.patches.values() if other.validation]
    if patch is None or patch.validation is None:
        problem = "unknown patch" if patch is None else "no validation is defined for"
        raise click.UsageError(f"{problem} '{printable(name)}' (choose from {', '.join(choices)}).")
    return patch


def _all_different(pairs: list[tuple[str, str]]) -> None:
    for before, after in pairs:
        if os.path.realpath(before) == os.path.realpath(after):
            raise click.UsageError(
                f"'{printable(before)}' and '{printable(after)}' are the same target."
            )
    if len({tuple(map(os.path.realpath, pair)) for pair in pairs}) < len(pairs):
        raise click.UsageError("a pair is given twice; give each pair once.")


def _side(name: str, patch: Patch, catalogue: Catalogue, reading: Reading) -> Side:
    with opened(name, reading) as (target, progress):
        return measured(context_of(target, progress, reading), patch, catalogue)
