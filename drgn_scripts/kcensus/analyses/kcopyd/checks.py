# SPDX-License-Identifier: LGPL-2.1-or-later
"""The census of kcopyd, held against what the kernel counts itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.analyses.kcopyd.census import KcopydCensus
from kcensus.analyses.kcopyd.tables import work_states
from kcensus.results import Check


def kcopyd_checks(census: KcopydCensus, live: bool) -> list[Check]:
    """All checks."""
    note = "the kernel went on while it was read" if live else ""
    return [*_jobs(census, note), *_snapshots(census, note)]


def _jobs(census: KcopydCensus, note: str) -> Iterator[Check]:
    jobs, clients = census.jobs, census.clients
    if jobs is None or clients is None or census.job_slab is None:
        return
    yield Check(
        "jobs of all clients, in reserve, and unknown",
        int(jobs.jobs.sum()) + jobs.reserve + jobs.unknown,
        census.job_slab.active,
        source="active objects of the slab cache",
        note=note,
    )
    yield _counted_until_called_back(
        census,
        "jobs and sub-jobs",
        int((jobs.jobs + jobs.sub_jobs).sum()),
        int(clients.nr_jobs.sum()),
        "dm_kcopyd_client.nr_jobs",
        note,
    )


def _counted_until_called_back(
    census: KcopydCensus, name: str, ours: int, counter: int, source: str, note: str
) -> Check:
    """Jobs against a counter that still has the ones whose callbacks are running."""
    running = _running(census)
    if 0 < counter - ours <= running:
        clients = f"{running} client{'' if running == 1 else 's'}"
        note = (
            "a job is freed before its callback and counts until that has returned; the work of "
            f"{clients} is running"
        )
        return Check(name, ours, counter, source=source, note=note, explained=counter - ours)
    return Check(name, ours, counter, source=source, note=note)


def _running(census: KcopydCensus) -> int:
    """Clients whose work item is being run."""
    states = work_states(census)
    return sum(state.startswith("running") for state, _ in states.values())


def _snapshots(census: KcopydCensus, note: str) -> Iterator[Check]:
    if census.snapshots is None:
        return
    shots = census.snapshots.all
    if census.jobs is not None and census.clients is not None:
        # Merging copies as well, and is not counted by the snapshot.
        copying = [one for one in shots if one.target == "snapshot"]
        rows = census.clients.rows(np.array([one.client for one in copying], np.uint64))
        counted = [one.in_flight for one in copying if one.in_flight is not None]
        ours = int(census.jobs.jobs[rows[rows >= 0]].sum())
        source = f"dm_snapshot.{census.limit.value if census.limit else 'in_progress'}"
        if len(counted) < len(copying):
            yield Check("jobs of snapshots", ours, None, source=source, note=note)
        else:
            yield _counted_until_called_back(
                census, "jobs of snapshots", ours, sum(counted), source, note
            )
    yield Check(
        "pending exceptions in tables",
        sum(one.pending_in_table for one in shots),
        sum(one.pending for one in shots),
        source="dm_snapshot.pending_exceptions_count",
        note=note,
    )
    for use in census.related:
        if use.role == "exceptions" and not use.merged:
            yield Check(
                "exceptions in tables",
                sum(one.exceptions for one in shots),
                use.active,
                source="active objects of the slab cache",
                note=note,
            )
