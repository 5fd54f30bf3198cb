# SPDX-License-Identifier: LGPL-2.1-or-later
"""Append the figures of a target to a series over time."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcensus.analyses import Analysis
from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.errors import complain, verdict
from kcensus.commands.shared.target import chosen_analyses, context_of, opened
from kcensus.commands.shared.ticks import ticks
from kcensus.store import require_store
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.reports import Report
    from kcensus.store.records import Record

_HELP = """Append the figures of targets to a store, for `kcensus trend`.

A store is a Delta Lake table of Parquet files, which pandas, Polars, Dask and DuckDB read.
A record takes a few kilobytes: all figures of the summaries, the largest rows of the tables, and
the findings. The dumps need not be kept. TARGET can be a vmcore, a capsule, a file of --json, or a
running kernel.

Each printed line is a record on disk. Recording the same dump again changes nothing. Several
kcensus processes, also of several machines, can write to one store, and can be killed at any time.

--every records running kernels until Ctrl-C: at once, then at multiples of the interval. Failed
analyses, restarted guests and a full disk do not stop it."""

_SEVERITY = (Exit.DONE, Exit.INCOMPLETE, Exit.USAGE, Exit.TARGET, Exit.FAILED)
"""From the best status to the worst."""


def _run(
    targets: tuple[str, ...],
    store: Path,
    every: int | None,
    count: int | None,
    host: str,
    analyses: str | None,
    reading: options.Reading,
) -> Exit:
    if count is not None and every is None:
        raise click.UsageError("--count needs --every; add --every INTERVAL.")
    require_store()
    from kcensus.store.apart import apart

    wanted = chosen_analyses(analyses)
    apart(_prepare, store)
    specs = targets or (None,)

    def record(spec: str | None) -> Exit:
        return _record(spec, store, wanted, reading, host, needs_live=every is not None)

    if every is None:
        return _each(specs, record, raises=len(specs) == 1)
    return _repeat(every, count, lambda is_first: _each(specs, record, raises=is_first))


def _worst(first: Exit, second: Exit) -> Exit:
    return max(first, second, key=_SEVERITY.index)


def _each(
    specs: Sequence[str | None], record: Callable[[str | None], Exit], *, raises: bool
) -> Exit:
    """Record all targets; an unreadable one does not stop the others.

    :param raises: whether to raise the last error if every target has one
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
    reading: options.Reading,
    host: str,
    *,
    needs_live: bool,
) -> Exit:
    from kcensus import saved
    from kcensus.store import records
    from kcensus.store.apart import apart
    from kcensus.store.layout import UNNAMED

    made = _report(spec, wanted, reading, needs_live=needs_live)
    has = {*made.results, *made.errors}
    wanted = [analysis for analysis in wanted if analysis.name in has]
    for analysis in wanted:
        if error := made.errors.get(analysis.name):
            complain(f"{analysis.name} failed on {made.head.target}: {error}")
    if not any(analysis.name in made.results for analysis in wanted):
        complain(f"nothing recorded of {made.head.target}: no analysis has a result")
        return Exit.TARGET
    entry = records.record(made, wanted, time.time(), is_saved=saved.is_document(spec), name=host)
    if entry.host in UNNAMED and not needs_live:  # once, instead of each time
        complain(
            f"{made.head.target} has no name of a host: pass --host NAME to tell it from others"
        )
    is_new = apart(_add, store, entry)
    done = f"recorded {entry.rows.num_rows:,} numbers" if is_new else "is in the store already"
    taken = f"{entry.host}, {entry.time:%Y-%m-%d %H:%M:%S} UTC"
    click.echo(printable(f"{made.head.target}: {taken}: {done}"))
    if not entry.has_time:
        complain(f"{made.head.target} does not say its time: the record has the time of this clock")
    return Exit.DONE if all(each.name in made.results for each in wanted) else Exit.INCOMPLETE


# delta-rs is imported in the child alone.


def _prepare(store: Path) -> None:
    from kcensus.store import dataset

    dataset.prepare(store)


def _add(store: Path, entry: Record) -> bool:
    from kcensus.store import dataset

    return dataset.add(store, entry)


def _report(
    spec: str | None, wanted: Sequence[Analysis], reading: options.Reading, *, needs_live: bool
) -> Report:
    from kcensus import saved
    from kcensus.reports import report

    if saved.is_document(spec):
        is_live, name = False, printable(str(spec))
    else:
        with opened(spec, reading) as (target, progress):
            is_live, name = target.live, target.name
            if is_live or not needs_live:
                return report(context_of(target, progress, reading), wanted)
    if needs_live:
        raise click.UsageError(
            f"--every needs a running kernel, and '{name}' is not one; omit --every."
        )
    return saved.load(str(spec))


def _repeat(every: int, count: int | None, work: Callable[[bool], Exit]) -> Exit:
    """Do the work at once, then at intervals.

    :param work: takes whether it is the first time
    """
    worst, done, failed = Exit.DONE, 0, 0

    @functools.cache
    def late() -> None:
        complain(
            f"a record takes longer than the interval of {every} s, so some are skipped; pass a "
            "longer --every"
        )

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
        click.echo(
            f"\nkcensus: stopped after {done:,} round{'s' * (done != 1)}{problems}", err=True
        )
    return worst


COMMAND = options.command(
    "record",
    _run,
    [
        options.words("targets", "[TARGET]..."),
        options.files("--store", "DIR", "The store; created if missing.", required=True),
        options.option(
            "--every",
            "INTERVAL",
            "Record repeatedly: 30s, 5m, 1h. For running kernels.",
            type=options.interval,
        ),
        options.option(
            "--count", "N", "With --every, stop after N rounds.", type=click.IntRange(1)
        ),
        options.option(
            "--host", "NAME", "Name of the host, for targets that do not have one.", default=""
        ),
        options.analyses(),
        *options.reading(),
    ],
    _HELP,
    (
        ("kcensus record vmcore --store series", "one dump; any number of them, from any host"),
        ("kcensus record vmcore --store series --host web7", "a dump without the name of its host"),
        ("kcensus record *.json --store series", "files of `kcensus report --json`"),
        ("kcensus record --store series --every 5m", "the running kernel, until Ctrl-C"),
        ("kcensus record qmp:/run/guest.qmp --store series --every 1h", "a QEMU guest"),
        ("kcensus trend series", "the growth, and the times to its limits"),
    ),
)
