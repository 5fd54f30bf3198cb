# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checks of the census of kcopyd against the kernel's counters, and its gaps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults
from kcensus.kernel.dm.devices import CLIENTS_OF_TARGETS, mapped_devices
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import DAMAGED
from kcensus.results import Check, Gap, Gauge, Unit, nonzero_gaps

_MAX_GAUGED = 64
"""Most mapped devices whose tables are read for a gauge; each takes half a millisecond."""
_EFFECTS = {
    "kernel log": "its events are missing",
    "records of the kernel log": "events, and findings about them, may be missing",
    "snapshot_cow_threshold": "the limit of copies is unknown",
    "snapshots": "no snapshot is counted",
    "workqueues": "worker pools and pending work are unknown",
    "targets": "their clients have no owner",
    "pages of kmalloc() slabs": "idle clients of unknown targets may be missing",
    "mempools of clients": "their preallocated jobs may count as in use",
    "jobs": "these jobs are missing from the table clients",
    "pages of jobs": "the memory of copies may be too low",
    "lists of clients": "jobs beyond the damage count as in flight",
    "devices or tables": "their clients have no owner, and their snapshots are missing",
    "snapshots or their lists": "exceptions, waiting tasks or chunk sizes may be wrong or missing",
    "worker pools or lists of workqueues": "pools, or work beyond the damage, are missing",
    "bios": "the memory of kcopyd does not include bios",
    "busy clients without a device": "their jobs have no device, and snapshots may be missing",
    "slab caches of bios and exceptions": "these caches are missing from the table related_slabs",
    "clients": "jobs include the preallocated ones; clients and snapshots are unknown",
}


def checks(figures: Figures) -> Iterator[Check]:
    """Compare jobs and exceptions with slabs and with the counters of clients and snapshots."""
    census, jobs, snapshots = figures.census, figures.census.jobs, figures.snapshots
    if not census.in_use:
        return
    slab = "active objects of the slab cache"
    ours: int | None
    if census.has_jobs:
        ours = int(jobs.jobs.sum()) + jobs.reserve + jobs.unknown
        name = "jobs in use, preallocated, and of unknown clients"
        yield Check(name, ours, census.job_slab.active, source=slab)
        ours, counter = int((jobs.jobs + jobs.sub_jobs).sum()), int(census.clients.nr_jobs.sum())
        source = "dm_kcopyd_client.nr_jobs"
        check = _completion_check(figures, "jobs and sub-jobs", ours, counter, source)
        yield check.over(counter, census.nr_jobs_after)
        source = "kcopyd_job.source.count"
        ours, expected = jobs.pages_followed, jobs.pages_expected
        yield Check("copy pages of jobs", ours, expected, Unit.PAGES, source)
        ours, counter = jobs.free_pages_followed, int(census.clients.free_pages.sum())
        source = "dm_kcopyd_client.nr_free_pages"
        yield Check("free reserved pages", ours, counter, Unit.PAGES, source)
        if census.bios_expected is not None:
            ours, source = census.bios_found, "jobs in flight, bios sent to devices"
            yield Check("least number of bios", ours, census.bios_expected, source=source)
    queues, devices = census.workqueues, census.devices
    if queues.cpu_pools is not None:
        ours, source = queues.bound_pools, "cpu_worker_pools"
        yield Check("worker pools of CPUs", ours, queues.cpu_pools, source=source)
    if devices.named is not None:
        ours, source = len(devices.devices), "names in the index of dm ioctl"
        yield Check("mapped devices", ours, devices.named, source=source)
    if not census.has_snapshots:
        return
    if census.snapshots.registered is not None:
        ours, source = len(snapshots), "_origins"
        yield Check("snapshots", ours, census.snapshots.registered, source=source)
    if census.has_jobs:
        # dm_snapshot counts no copies while it merges.
        copying = [snapshot for snapshot in snapshots if snapshot.target == "snapshot"]
        counts = [snapshot.in_flight for snapshot in copying if snapshot.in_flight is not None]
        total = sum(counts) if len(counts) == len(copying) else None
        ours = sum(figures.jobs_of(snapshot) or 0 for snapshot in copying)
        source = "dm_snapshot.in_progress"
        yield _completion_check(figures, "jobs of snapshots", ours, total, source)
    ours = sum(snapshot.pending_in_table for snapshot in snapshots)
    counter = sum(snapshot.pending for snapshot in snapshots)
    source = "dm_snapshot.pending_exceptions_count"
    yield Check("pending exceptions in tables", ours, counter, source=source)
    ours = sum(snapshot.exceptions for snapshot in snapshots)
    for use in census.slabs:
        if use.role == "exceptions" and not use.merged:
            yield Check("exceptions in tables", ours, use.active, source=slab)


def _completion_check(
    figures: Figures, name: str, ours: int, counter: int | None, source: str
) -> Check:
    """Check jobs against a counter that includes jobs with a running callback."""
    states = figures.work_states.values()
    running = sum(state.startswith("running") for state, _ in states)
    if counter is None or not 0 < counter - ours <= running:
        return Check(name, ours, counter, source=source)
    note = (
        f"{source.partition('.')[2]} drops only after the completion callback returns, but the job "
        f"is freed earlier; {running} client{'s are' if running > 1 else ' is'} running"
    )
    return Check(name, ours, counter, source=source, note=note, explained=counter - ours)


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the jobs and sub-jobs of the clients of all mapped devices, unless there are too many.

    The analysis finds more clients, so its check has another source.
    """
    with contextlib.suppress(*DAMAGED):
        entries, _ = idr_entries(kernel.memory, kernel.prog["_minor_idr"])
        if len(entries) > _MAX_GAUGED:
            return
        members = layout(kernel.prog, "struct dm_kcopyd_client", {"jobs": "nr_jobs.counter"})
        targets = [target for each in mapped_devices(kernel).devices for target in each.targets]
        clients: set[int] = set()
        for target in targets:
            if reader := CLIENTS_OF_TARGETS.get(target.type_name):
                with contextlib.suppress(*DAMAGED):
                    clients.update(reader(kernel.prog, target.private))
        addresses, faults = np.array(sorted(clients), np.uint64), Faults()
        jobs = gather(kernel.memory, addresses, members, faults)["jobs"]
        if len(clients) and not faults:
            source = "dm_kcopyd_client.nr_jobs, mapped devices"
            yield Gauge("nr_jobs", int(jobs.astype(np.int64).sum()), label="jobs", source=source)


def gaps(figures: Figures) -> list[Gap]:
    """Return the unreadable or inconsistent parts of the census."""
    census, jobs, search = figures.census, figures.census.jobs, figures.census.search.slabs
    has_owner = np.isin(census.clients.address, np.array(list(census.owners), np.uint64))
    unowned = int(np.count_nonzero(~has_owner & (jobs.jobs > 0))) if census.has_jobs else 0
    known = (
        ("clients", "no debug info of dm_mod", int(census.in_use and not census.has_jobs)),
        ("busy clients without a device", "no target of an active table owns them", unowned),
        ("slab caches of bios and exceptions", "unreadable, or unknown", census.caches_unknown),
        ("targets", "their client is unreadable or invalid", census.targets_unreadable),
        ("pages of kmalloc() slabs", reasons(search), search.total()),
        ("mempools of clients", "unreadable", census.clients.reserves_lost),
        ("records of the kernel log", figures.log.damage, figures.log.lost),
        ("jobs", "their client is unreadable", jobs.unknown),
        ("pages of jobs", "missing, or about to be given", jobs.pageless),
        ("lists of clients", "torn", jobs.torn),
        ("devices or tables", "unreadable or inconsistent", census.devices.damaged),
        ("snapshots or their lists", "unreadable or inconsistent", census.snapshots.damaged),
        (
            "worker pools or lists of workqueues",
            "torn, unreadable or inconsistent",
            census.workqueues.damaged,
        ),
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
