# SPDX-License-Identifier: LGPL-2.1-or-later
"""The census of kcopyd, held against the kernel's own counters; what it could not read."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.kernel.dm.snapshots import MEMBERS, Limit
from kcensus.results import Check, Gap, nonzero_gaps

_EFFECTS = {
    "kernel log": "its events are missing",
    "snapshot_cow_threshold": "the limit of copies is unknown",
    "snapshots": "no snapshot is counted",
    "workqueues": "worker pools and pending work are unknown",
    "targets": "their clients have no owner",
    "pages of kmalloc() slabs": "idle clients of unknown targets may be missing",
    "mempools of clients": "their preallocated jobs may count as in use",
    "jobs": "no client counts them",
    "lists of clients": "jobs on them count as in flight",
    "devices or tables": "their clients have no owner",
    "lists of snapshots": "exceptions and waiting tasks are too few",
    "lists of workqueues": "work behind the tear is missing",
}


def checks(figures: Figures) -> list[Check]:
    """Hold jobs and exceptions against slabs and the counters of clients and snapshots."""
    note = "the kernel changed while it was read" if figures.kernel.live else ""
    return list(_checks(figures, note))


def _checks(figures: Figures, note: str) -> Iterator[Check]:
    census, jobs, snapshots = figures.census, figures.census.jobs, figures.snapshots
    slab = "active objects of the slab cache"
    if census.has_jobs:
        ours = int(jobs.jobs.sum()) + jobs.reserve + jobs.unknown
        name = "jobs in use, preallocated, and of unknown clients"
        yield Check(name, ours, census.job_slab.active, source=slab, note=note)
        ours, counter = int((jobs.jobs + jobs.sub_jobs).sum()), int(census.clients.nr_jobs.sum())
        source = "dm_kcopyd_client.nr_jobs"
        yield _completion_check(figures, "jobs and sub-jobs", ours, counter, source, note)
    if not census.has_snapshots:
        return
    if census.has_jobs:
        # dm_snapshot counts no copies while it merges.
        copying = [snapshot for snapshot in snapshots if snapshot.target == "snapshot"]
        counts = [snapshot.in_flight for snapshot in copying if snapshot.in_flight is not None]
        total = sum(counts) if len(counts) == len(copying) else None
        ours = sum(figures.jobs_of(snapshot) or 0 for snapshot in copying)
        source = f"dm_snapshot.{MEMBERS.get(census.limit or Limit.NONE, 'in_progress')}"
        yield _completion_check(figures, "jobs of snapshots", ours, total, source, note)
    ours = sum(snapshot.pending_in_table for snapshot in snapshots)
    counter = sum(snapshot.pending for snapshot in snapshots)
    source = "dm_snapshot.pending_exceptions_count"
    yield Check("pending exceptions in tables", ours, counter, source=source, note=note)
    ours = sum(snapshot.exceptions for snapshot in snapshots)
    for use in census.slabs:
        if use.role == "exceptions" and not use.merged:
            yield Check("exceptions in tables", ours, use.active, source=slab, note=note)


def _completion_check(
    figures: Figures, name: str, ours: int, counter: int | None, source: str, note: str
) -> Check:
    """Check jobs against a counter that includes those whose callbacks are running."""
    states = figures.work_states.values()
    running = sum(state.startswith("running") for state, _ in states)
    if counter is None or not 0 < counter - ours <= running:
        return Check(name, ours, counter, source=source, note=note)
    note = (
        f"{source.partition('.')[2]} drops only after the completion callback returns, but the job "
        f"is freed before; {running} client{'s are' if running > 1 else ' is'} running"
    )
    return Check(name, ours, counter, source=source, note=note, explained=counter - ours)


def gaps(figures: Figures) -> list[Gap]:
    """Return what the census could not read or make sense of."""
    census, jobs, search = figures.census, figures.census.jobs, figures.census.search.slabs
    known = (
        ("targets", "unreadable", census.targets_unreadable),
        ("pages of kmalloc() slabs", reasons(search), search.total()),
        ("mempools of clients", "unreadable", census.clients.reserves_lost),
        ("jobs", "their client is unreadable", jobs.unknown),
        ("lists of clients", "torn", jobs.torn),
        ("devices or tables", "unreadable", census.devices.damaged),
        ("lists of snapshots", "torn or unreadable", census.snapshots.damaged),
        ("lists of workqueues", "torn or unreadable", census.workqueues.damaged),
    )
    return [
        *(Gap(what, error, 1, _EFFECTS[what]) for what, error in census.errors.items()),
        *scan_gaps(figures.kernel.slab_map, census.report, "kcopyd jobs"),
        *(
            Gap(f"{name} targets", "their types are unknown", count, _EFFECTS["targets"])
            for name, count in sorted(census.targets_undescribed.items())
        ),
        *nonzero_gaps(*(Gap(what, why, count, _EFFECTS[what]) for what, why, count in known)),
    ]
