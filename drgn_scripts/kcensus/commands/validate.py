# SPDX-License-Identifier: LGPL-2.1-or-later
"""Does a patch have the promised effect on these dumps?"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options, values
from kcensus.commands.shared.output import check_output, show
from kcensus.commands.shared.target import context_of, load_catalogue, opened, progress_bars
from kcensus.text import printable

_HELP = """Check whether a patch has the promised effect on pairs of dumps.

BEFORE is a target without the patch, AFTER one with it, under the same workload. The figure that
the patch reduces is measured on both. A reduction of at least 10 % and half of the model's
prediction from BEFORE confirms the patch; none, or less than 10 % where 20 % is predicted,
contradicts it. Both may have the patch if a module parameter switches it off, such as
snapshot_cow_threshold of dm-snapshot.

A patch of I/O schedulers can also be judged by two traces of blktrace, or the output of blkparse,
without a dump (--traces). A trace shows no types: AFTER is assumed to have the patch unless the
messages of its scheduler contradict that. With --as-given, AFTER is assumed to have the patch in
dumps, too, where types cannot show the patch, or a tunable has the same effect.

Both sides must use the scheduler that the patch changes. Only BFQ and CFQ leave messages with their
names in a trace; for other schedulers, --as-given asserts the scheduler and the disk of both.

A pair counts only if memory, CPUs, workload and uptime are alike: see the table "conditions". With
several pairs the figures are medians, with a 95% confidence interval.

\b
Exit status: 0 confirmed, 1 contradicted, 5 inconclusive,
             2 not a valid pair, 3 a target is unusable."""


def _run(
    patch: str,
    before: str,
    after: str,
    more: tuple[tuple[str, str], ...],
    traces: bool,
    as_given: bool,
    catalogue: tuple[Path, ...],
    reading: options.Reading,
    showing: options.Showing,
) -> Exit:
    from kcensus.catalogue.validate import Refused, Verdict, judge, look_at, validation_result
    from kcensus.reports import conclude, measured, traced

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
        pairs = [look_at(chosen, sides[a], sides[b], as_given=as_given) for a, b in names]
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


COMMAND = options.command(
    "validate",
    _run,
    [
        click.Argument(
            ["patch"], shell_complete=values.one_of(lambda: values.patches(validated=True))
        ),
        options.target("before", required=True),
        options.target("after", required=True),
        options.option(
            "--more", "BEFORE AFTER", "Another pair. May be repeated.", nargs=2, multiple=True
        ),
        options.flag(
            "--traces",
            "BEFORE and AFTER are traces: PREFIX of the files of blktrace, their directory, or a "
            "file with the output of blkparse.",
        ),
        options.flag(
            "--as-given",
            "Assert that only the patch, or a tunable with its effect, differs; for traces also "
            "that both are of the same disk and of the scheduler of the patch.",
        ),
        options.catalogue(),
        *options.showing(),
        options.help_tables("kcensus.catalogue.validate:TABLES"),
        *options.reading(several=True),
    ],
    _HELP,
    (
        ("kcensus validate list-lru-memory old.vmcore new.vmcore", "one pair"),
        (
            "kcensus validate list-lru-memory a1 b1 --more a2 b2 --more a3 b3",
            "several pairs, for a confidence interval",
        ),
        (
            "kcensus validate cfq-async-starvation --traces old/sda new/sda",
            "two traces of blktrace: the longest waits of async writes",
        ),
    ),
)
