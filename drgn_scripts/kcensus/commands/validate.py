# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus validate``: does a patch do on these dumps what it promises?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kcensus.commands.patches import load_catalogue
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
    from kcensus.patches import Catalogue, Patch
    from kcensus.patches.validate import Side
    from kcensus.progress import Progress
    from kcensus.sources import Target

_HELP = """Does a patch do on these dumps what it promises?

BEFORE is a target without the patch, AFTER one with it, under the same load. The figure that the
patch is to make smaller is measured on both, and compared with what was published and with what
the model predicts from BEFORE. Where a module parameter switches the patch off, as in the case of
dm-snapshot's limit, both may have it.

A pair counts only if it is alike in memory, CPUs, load, and about the time to get there; the table
of conditions tells. With several pairs the figures are medians, with a 95% confidence interval.

\b
Exit status: 0 confirmed, 1 contradicted, 5 inconclusive,
             2 what is no pair at all, 3 a target that cannot be used."""

_EXAMPLES = (
    ("kcensus validate list-lru-memory old.vmcore new.vmcore", "one pair"),
    (
        "kcensus validate list-lru-memory a1 b1 --more a2 b2 --more a3 b3",
        "several, for a confidence interval",
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
    from kcensus.patches.validate import Refused, Verdict, judge, look_at
    from kcensus.patches.verdict import validation_result

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
    able = [one.id for one in catalogue.patches.values() if one.validation]
    if patch is None or patch.validation is None:
        problem = "is not known" if patch is None else "has no figure that a pair could show"
        raise click.UsageError(
            f"the patch '{printable(name)}' {problem}; those that have are: {', '.join(able)}."
        )
    return patch


def _all_different(pairs: list[tuple[str, str]]) -> None:
    from kcensus.text import printable

    for before, after in pairs:
        if os.path.realpath(before) == os.path.realpath(after):
            raise click.UsageError(f"{printable(before)} and {printable(after)} are the same.")
    if len({tuple(map(os.path.realpath, pair)) for pair in pairs}) < len(pairs):
        raise click.UsageError("a pair given twice says nothing more.")


def _side(name: str, patch: Patch, catalogue: Catalogue, reading: Reading) -> Side:
    with opened(name, reading) as (target, progress):
        return measured(target, patch, catalogue, progress, context_options(reading))


def measured(
    target: Target,
    patch: Patch,
    catalogue: Catalogue,
    progress: Progress,
    options: Mapping[str, Any],
) -> Side:
    """What a target has of a patch, and the figures that show it."""
    from kcensus.analyses import analyses
    from kcensus.kernel.machine import machine
    from kcensus.patches import Prober, detect, modules
    from kcensus.patches.validate import Side
    from kcensus.reports import report

    validation = patch.validation
    assert validation is not None
    asked = [validation.metric, *(one.metric for one in validation.workload)]
    if validation.predicted is not None:
        asked.append(validation.predicted)
    wanted = dict.fromkeys(metric.analysis for metric in asked)
    lacking = target.need_modules(*modules(catalogue.patches))
    prober = Prober(target.prog, lacking)
    every = analyses()
    chosen = [every[name] for name in wanted if name in every]
    made = report(target, chosen, progress=progress, **options)
    failed = {one.name: one.error for one in made.sections if not one.result}
    failed |= {name: "there is no analysis of this name" for name in wanted if name not in every}
    size = machine(target.prog)
    return Side(
        target=target.name,
        kernel=target.kernel,
        detected=detect(catalogue.patches, prober, target.kernel)[patch.id],
        results={one.name: one.result for one in made.sections if one.result},
        failed=failed,
        ram_bytes=size.ram_bytes,
        cpus=size.cpus,
        uptime_seconds=size.uptime_seconds,
        switch=prober.number(validation.switch) if validation.switch else None,
    )


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
        click.Option(
            ["--catalogue"],
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="DIR",
            help="A directory of patch files of your own. May be repeated.",
        ),
        *showing_options(),
        *reading_options(),
    ],
    help=_HELP,
    short_help="does a patch do on these dumps what it promises?",
    epilog=examples_epilog(_EXAMPLES),
    context_settings=CONTEXT_SETTINGS,
)
