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
}


def checks(figures: Figures) -> list[Check]:
    """Hold jobs and exceptions against slabs and the counters of clients and snapshots."""
    return [*_job_checks(figures), *_snapshot_checks(figures)]


def _note(figures: Figures) -> str:
    return "the kernel changed while it was read" if figures.kernel.live else ""


def _job_checks(figures: Figures) -> Iterator[Check]:
    census, jobs = figures.census, figures.census.jobs
    if not census.has_jobs:
        return
    yield Check(
        "jobs in use, preallocated, and of unknown clients",
        int(jobs.jobs.sum()) + jobs.reserve + jobs.unknown,
        census.job_slab.active,
        source="active objects of the slab cache",
        note=_note(figures),
    )
    yield _completion_check(
        figures,
        "jobs and sub-jobs",
        int((jobs.jobs + jobs.sub_jobs).sum()),
        int(census.clients.nr_jobs.sum()),
        "dm_kcopyd_client.nr_jobs",
    )


def _completion_check(figures: Figures, name: str, ours: int, counter: int, source: str) -> Check:
    """Check jobs against a counter that includes those whose callbacks are running."""
    states = figures.work_states.values()
    running = sum(state.startswith("running") for state, _ in states)
    if not 0 < counter - ours <= running:
        return Check(name, ours, counter, source=source, note=_note(figures))
    note = (
        f"{source.partition('.')[2]} drops only after the completion callback returns, but the job "
        f"is freed before; {running} client{'s are' if running > 1 else ' is'} running"
    )
    return Check(name, ours, counter, source=source, note=note, explained=counter - ours)


def _snapshot_checks(figures: Figures) -> Iterator[Check]:
    census, note = figures.census, _note(figures)
    if not census.has_snapshots:
        return
    if census.has_jobs:
        # dm_snapshot counts no copies while it merges.
        copying = [
            (snapshot, row)
            for snapshot, row in zip(figures.snapshots, figures.snapshot_rows, strict=True)
            if snapshot.target == "snapshot"
        ]
        counts = [snapshot.in_flight for snapshot, _ in copying if snapshot.in_flight is not None]
        ours = sum(int(census.jobs.jobs[row]) for _, row in copying if row >= 0)
        name = "jobs of snapshots"
        source = f"dm_snapshot.{MEMBERS.get(census.limit or Limit.NONE, 'in_progress')}"
        if len(counts) < len(copying):
            yield Check(name, ours, None, source=source, note=note)
        else:
            yield _completion_check(figures, name, ours, sum(counts), source)
    yield Check(
        "pending exceptions in tables",
        sum(snapshot.pending_in_table for snapshot in figures.snapshots),
        sum(snapshot.pending for snapshot in figures.snapshots),
        source="dm_snapshot.pending_exceptions_count",
        note=note,
    )
    for use in census.related:
        if use.role == "exceptions" and not use.merged:
            yield Check(
                "exceptions in tables",
                sum(snapshot.exceptions for snapshot in figures.snapshots),
                use.active,
                source="active objects of the slab cache",
                note=note,
            )


def gaps(figures: Figures) -> list[Gap]:
    """Return what the census could not read or make sense of."""
    census, jobs, torn = figures.census, figures.census.jobs, "torn or unreadable"
    return [
        *(Gap(what, error, 1, _EFFECTS[what]) for what, error in census.errors.items()),
        *scan_gaps(figures.kernel.slab_map, census.report, "kcopyd jobs"),
        *(
            Gap(f"{name} targets", "their types are unknown", count, "their clients have no owner")
            for name, count in sorted(census.targets_undescribed.items())
        ),
        *nonzero_gaps(
            Gap("targets", "unreadable", census.targets_unreadable, "their clients have no owner"),
            Gap(
                "pages of kmalloc() slabs",
                reasons(census.search.slabs),
                census.search.slabs.total(),
                "idle clients of unknown targets may be missing",
            ),
            Gap(
                "mempools of clients",
                "unreadable",
                census.clients.reserves_lost,
                "their preallocated jobs may count as in use",
            ),
            Gap("jobs", "their client is unreadable", jobs.unknown, "no client counts them"),
            Gap("lists of clients", "torn", jobs.torn, "jobs on them count as in flight"),
            Gap(
                "devices or tables",
                "unreadable",
                census.devices.damaged,
                "their clients have no owner",
            ),
            Gap(
                "lists of snapshots",
                torn,
                census.snapshots.damaged,
                "exceptions and waiting tasks are too few",
            ),
            Gap(
                "lists of workqueues",
                torn,
                census.workqueues.damaged,
                "work behind the tear is missing",
            ),
        ),
    ]
