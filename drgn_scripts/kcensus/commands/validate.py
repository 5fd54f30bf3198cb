# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus validate``: does a patch have the promised effect on a pair of dumps?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kcensus.commands.patches import catalogue_option, load_catalogue
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
    from kcensus.catalogue import Catalogue, Patch
    from kcensus.catalogue.validate import Side

_HELP = """Check whether a patch has the promised effect on pairs of dumps.

BEFORE is a target without the patch, AFTER one with it, under the same workload. The figure that
the patch reduces is measured on both, and compared with the published figures and with what the
model predicts from BEFORE. Both may have the patch if a module parameter switches it off, such as
snapshot_cow_threshold of dm-snapshot.

A pair counts only if memory, CPUs, workload and uptime are alike; the table "conditions" shows
them. With several pairs the figures are medians, with a 95% confidence interval.

\b
Exit status: 0 confirmed, 1 contradicted, 5 inconclusive,
             2 not a valid pair, 3 a target is unusable."""

_EXAMPLES = (
    ("kcensus validate list-lru-memory old.vmcore new.vmcore", "one pair"),
    (
        "kcensus validate list-lru-memory a1 b1 --more a2 b2 --more a3 b3",
        "several pairs, for a confidence interval",
    ),
)


def _run(
    patch: str,
    before: str,
    after: str,
    more: tuple[tuple[str, str], ...],
    catalogue: tuple[Path, ...],
    **values: Any,
) -> Exit:
    from kcensus.catalogue.validate import Refused, Verdict, judge, look_at
    from kcensus.catalogue.verdict import validation_result

    reading, showing = take(Reading, values), take(Showing, values)
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
    from kcensus.text import printable

    patch = catalogue.patches.get(name)
    choices = [other.id for other in catalogue.patches.values() if other.validation]
    if patch is None or patch.validation is None:
        problem = "unknown patch" if patch is None else "no validation is defined for"
        raise click.UsageError(f"{problem} '{printable(name)}' (choose from {', '.join(choices)}).")
    return patch


def _all_different(pairs: list[tuple[str, str]]) -> None:
    from kcensus.text import printable

    for before, after in pairs:
        if os.path.realpath(before) == os.path.realpath(after):
            raise click.UsageError(
                f"'{printable(before)}' and '{printable(after)}' are the same target."
            )
    if len({tuple(map(os.path.realpath, pair)) for pair in pairs}) < len(pairs):
        raise click.UsageError("a pair is given twice; give each pair once.")


def _side(name: str, patch: Patch, catalogue: Catalogue, reading: Reading) -> Side:
    from kcensus.analyses.runner import Context
    from kcensus.reports import measured

    with opened(name, reading) as (target, progress):
        context = Context.of(target, progress=progress, **context_options(reading))
        return measured(context, patch, catalogue)


COMMAND = click.Command(
    "validate",
    callback=_run,
    params=[
        click.Argument(["patch"]),
        target_argument("before", required=True),
        target_argument("after", required=True),
        click.Option(
            ["--more"],
            type=str,
            nargs=2,
            multiple=True,
            metavar="BEFORE AFTER",
            help="Another pair. May be repeated.",
        ),
        catalogue_option(),
        *showing_options(),
        *reading_options(),
    ],
    help=_HELP,
    short_help="does a patch have the promised effect on these dumps?",
    epilog=examples_epilog(_EXAMPLES),
    context_settings=CONTEXT_SETTINGS,
)
