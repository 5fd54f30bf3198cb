# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus record``."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from kcensus import saved
from kcensus.actions import Exit, Reading
from kcensus.actions.shared.errors import complain, verdict
from kcensus.actions.shared.target import chosen_analyses, context_of, opened
from kcensus.actions.shared.ticks import ticks
from kcensus.analyses import Analysis
from kcensus.reports import Report, report
from kcensus.store import require_arrow
from kcensus.text import printable

_SEVERITY = (Exit.DONE, Exit.INCOMPLETE, Exit.USAGE, Exit.TARGET, Exit.FAILED)
"""From the best status to the worst."""


def run(
    targets: tuple[str, ...],
    store: Path,
    every: int | None,
    count: int | None,
    analyses: str | None,
    reading: Reading,
) -> Exit:
    """Append records of targets to a store, once or at intervals."""
    if count is not None and every is None:
        raise click.UsageError("--count is for --every; add that option.")
    require_arrow()
    from kcensus.store import dataset

    wanted = chosen_analyses(analyses)
    dataset.prepare(store)
    specs = targets or (None,)

    def record(spec: str | None) -> Exit:
        return _record(spec, store, wanted, reading, needs_live=every is not None)

    if every is None:
        return _each(specs, record, raises=len(specs) == 1)
    return _repeat(every, count, lambda is_first: _each(specs, record, raises=is_first))


def _worst(first: Exit, second: Exit) -> Exit:
    return max(first, second, key=_SEVERITY.index)


def _each(
    specs: Sequence[str | None], record: Callable[[str | None], Exit], *, raises: bool
) -> Exit:
    """Record all targets; one that cannot be read does not stop the others.

    :param raises: whether the last error is raised if every target has one
    """
    worst, errors = Exit.DONE, 0
    for spec in specs:
        try:
            status = record(spec)
        except Exception as error:
            errors += 1
            if isinstance(error, click.UsageError) or (raises and errors == len(specs)):
                raise
            status, sentence, _ = verdict(error)
            complain(sentence)
        worst = _worst(worst, status)
    return worst


def _record(
    spec: str | None,
    store: Path,
    wanted: Sequence[Analysis],
    reading: Reading,
    *,
    needs_live: bool,
) -> Exit:
    from kcensus.store import dataset, records

    made = _report(spec, wanted, reading, needs_live=needs_live)
    has = {*made.results, *made.errors}
    wanted = [analysis for analysis in wanted if analysis.name in has]
    for analysis in wanted:
        if error := made.errors.get(analysis.name):
            complain(f"{analysis.name} failed on {made.head.target}: {error}")
    if not any(analysis.name in made.results for analysis in wanted):
        complain(f"nothing recorded of {made.head.target}: no analysis has a result")
        return Exit.TARGET
    entry = records.record(made, wanted, time.time(), is_saved=saved.is_document(spec))
    is_new = dataset.add(store, entry)
    done = f"recorded {entry.rows.num_rows:,} numbers" if is_new else "is in the store already"
    taken = f"{entry.host}, {entry.time:%Y-%m-%d %H:%M:%S} UTC"
    click.echo(printable(f"{made.head.target}: {taken}: {done}"))
    return Exit.DONE if all(each.name in made.results for each in wanted) else Exit.INCOMPLETE


def _report(
    spec: str | None, wanted: Sequence[Analysis], reading: Reading, *, needs_live: bool
) -> Report:
    if saved.is_document(spec):
        is_live, name = False, printable(str(spec))
    else:
        with opened(spec, reading) as (target, progress):
            is_live, name = target.live, target.name
            if is_live or not needs_live:
                return report(context_of(target, progress, reading), wanted)
    if needs_live:
        raise click.UsageError(
            f"--every is for kernels that run, but '{name}' stays as it is; leave out --every."
        )
    return saved.load(str(spec))


def _repeat(every: int, count: int | None, work: Callable[[bool], Exit]) -> Exit:
    """Do the work at once, then at multiples of ``every`` seconds, until Ctrl-C.

    :param work: takes whether it is the first time
    """
    worst, done, failed = Exit.DONE, 0, 0

    @functools.cache
    def late() -> None:
        complain(f"a record takes longer than {every} s, so some are left out")

    try:
        for _ in ticks(every, late):
            status = work(done == 0)
            worst = _worst(worst, status)
            done += 1
            failed += status is not Exit.DONE
            # A target is opened each time: the guest may have been restarted, modules loaded.
            # A QEMU guest serves one client, so the connection must not outlive the record.
            gc.collect()
            if done == count:
                break
    except KeyboardInterrupt:
        if not done:
            raise
        problems = f", {failed:,} with problems" if failed else ""
        click.echo(f"\nkcensus: stopped after {done:,} times{problems}", err=True)
    return worst
