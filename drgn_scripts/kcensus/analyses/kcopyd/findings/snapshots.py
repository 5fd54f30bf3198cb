# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about snapshots: tasks that wait for the limit of copies, and unusable snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.findings.remedies import LIMIT_PATCH, released_first, set_limit
from kcensus.analyses.kcopyd.findings.words import counts, kept_phrase, number
from kcensus.analyses.kcopyd.kept import keepers, waits
from kcensus.human import counted, human_bytes, listed
from kcensus.kernel.dm.snapshots import UNLIMITED, Limit, Snapshot
from kcensus.results import Danger, Finding, Remedy, Severity
from kcensus.text import task_name

_LIST_INVALID = Remedy(
    effect="List invalid snapshots; remove each with lvremove or dmsetup remove",
    command="dmsetup status --target snapshot | grep Invalid",
    risk="removal is final; invalid snapshots have lost their content already",
)
_SHOW_USED = Remedy(
    effect="Show how full each snapshot is; extend the COW device with lvextend",
    command="dmsetup status --target snapshot",
)
_SHOW_BUSY = Remedy(
    effect=(
        "Show how busy the COW devices are; only a faster COW device shortens the wait, a higher "
        "limit defers it"
    ),
    command="iostat -xd 2 5",
)


def waiters(figures: Figures) -> Iterator[Finding]:
    """Yield a finding for each snapshot for whose limit of copies tasks wait."""
    is_semaphore = figures.census.limit is Limit.SEMAPHORE
    for snapshot in figures.snapshots:
        if not snapshot.waiters:
            continue
        copies, limit = figures.copies(snapshot), figures.limit_of(snapshot)
        tasks = [task_name(task.comm, task.pid) for task in snapshot.waiters]
        known = "none" if limit == UNLIMITED else number(limit)
        higher = _raise_limit(figures, snapshot, limit)
        # A limit below the default is probably too low.
        is_low = limit and limit < DEFAULT_THRESHOLD
        evidence = (
            f"copies in flight: {number(copies)}, limit: {known}; the COW device completes copies "
            "more slowly than the origin is written; waiting: "
            f"{listed(tasks)}"
        )
        kept, stalls = keepers(figures.kernel, [snapshot]), waits(figures.kernel, snapshot)
        evidence += kept_phrase(kept)
        remedies = (*higher, _SHOW_BUSY) if is_low else (_SHOW_BUSY, *higher)
        how = Severity.WARNING if is_semaphore else Severity.NOTICE
        how = max([how, *(each.severity for each in stalls)])
        if is_semaphore:
            evidence += "; the tasks wait for cow_count, and may hold _origins_lock"
        yield Finding(
            id=f"dm-snapshot-waiters:{snapshot.device.name}",
            severity=how,
            danger=Danger.STALL if how >= Severity.WARNING else Danger.NONE,
            title=(
                f"{counted(len(tasks), 'task', 'wait')} for the copy limit of snapshot "
                f"{snapshot.device.name}"
                + (", a semaphore that can deadlock" if is_semaphore else "")
            ),
            evidence=evidence,
            tasks=frozenset(int(task.pid) for task in snapshot.waiters),
            figures=counts(tasks=len(tasks), copies=copies, limit=limit),
            remedies=(*released_first(kept), *remedies),
            covers=frozenset(each.finding.id for each in kept),
            patch=LIMIT_PATCH if is_semaphore else "",
        )


def _raise_limit(figures: Figures, snapshot: Snapshot, limit: int | None) -> tuple[Remedy, ...]:
    if not limit or limit == UNLIMITED:
        return ()
    is_semaphore = figures.census.limit is Limit.SEMAPHORE
    higher = max(2 * limit, DEFAULT_THRESHOLD)
    job = figures.census.job_slab.slot_size + (snapshot.chunk_sectors or 0) * 512
    more = human_bytes((higher - limit) * job)
    scope = "each snapshot created from now on" if is_semaphore else "each snapshot at once"
    return (
        set_limit(
            figures,
            higher,
            f"Raise the limit from {limit:,} to {higher:,} copies in flight, for {scope}",
            f"up to {more} more memory for each snapshot",
        ),
    )


def unusable(figures: Figures) -> Iterator[Finding]:
    """Yield the findings about invalid and full snapshots."""
    valid = [row for row in figures.snapshots if row.valid]
    states = {
        "invalid": (
            [row for row in figures.snapshots if not row.valid],
            "dm_snapshot.valid is 0: the COW device was full or failed",
            _LIST_INVALID,
        ),
        "full": (
            [row for row in valid if row.overflowed],
            "dm_snapshot.snapshot_overflowed is 1: writes to the snapshot fail",
            _SHOW_USED,
        ),
    }
    for state, (rows, evidence, remedy) in states.items():
        if names := sorted(row.device.name for row in rows):
            verb = "is" if len(names) == 1 else "are"
            yield Finding(
                id=f"dm-snapshot-{state}",
                severity=Severity.NOTICE,
                title=f"{counted(len(names), 'snapshot')} {verb} {state}: {listed(names)}",
                evidence=evidence,
                figures=counts(snapshots=len(names)),
                remedies=(remedy,),
            )
