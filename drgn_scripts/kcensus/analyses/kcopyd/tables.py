# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of kcopyd."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.kernel.dm.kcopyd import LISTS
from kcensus.kernel.dm.snapshots import UNLIMITED
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec

_NONE, _COUNT, _BYTES, _TEXT = Unit.NONE, Unit.COUNT, Unit.BYTES, Unit.TEXT
_ADDRESS, _SECONDS, _PAGES = Unit.ADDRESS, Unit.SECONDS, Unit.PAGES
_ALWAYS, _WIDE, _DATA = Show.ALWAYS, Show.WIDE, Show.DATA

_NUMBER = Column(_TEXT, "number", _WIDE, "Its major:minor.")
_POOL = Column(_NONE, "pool", _ALWAYS, "Id of the worker pool.")
_CPU = Column(_NONE, "CPU", _ALWAYS, "CPU of the pool; none for unbound pools.")
_STALLED = Column(_NONE, "stalled", _ALWAYS, "Work is pending, and none starts.")
_RUNNING = Column(_SECONDS, "for at least", _WIDE, "How long the longest has been running.")
_WORKQUEUE = Column(_TEXT, "workqueue", _ALWAYS, "Name of the workqueue.")
_FUNCTION = Column(_TEXT, "function", _ALWAYS, "Function of the work.")
_MODULE = Column(_TEXT, "module", _WIDE, "Module of the function.")

CLIENTS = TableSpec(
    "clients",
    "kcopyd clients",
    {
        "device": Column(_TEXT, "device", _ALWAYS, "Name of the mapped device."),
        "number": _NUMBER,
        "target": Column(_TEXT, "target", _ALWAYS, "Type of the target that owns the client."),
        "jobs": Column(_COUNT, "jobs", _ALWAYS, "Jobs in use."),
        "bytes": Column(_BYTES, "bytes", _ALWAYS, "Slots of these jobs."),
        "nr_jobs": Column(_COUNT, "nr_jobs", _WIDE, "The client's own count."),
        "split": Column(_COUNT, "split", _DATA, "Jobs split into sub-jobs."),
        "sub_jobs": Column(_COUNT, "sub-jobs", _DATA, "Running sub-jobs."),
        "callback_jobs": Column(_COUNT, "callback_jobs", _WIDE, "Jobs that wait for a callback."),
        "complete_jobs": Column(
            _COUNT, "complete_jobs", _WIDE, "Copied jobs whose callback is due."
        ),
        "io_jobs": Column(_COUNT, "io_jobs", _WIDE, "Jobs and sub-jobs that wait for I/O."),
        "pages_jobs": Column(_COUNT, "pages_jobs", _WIDE, "Jobs and sub-jobs that wait for pages."),
        "in_flight": Column(
            _COUNT, "in flight", _ALWAYS, "Jobs and sub-jobs on none of the lists."
        ),
        "page_bytes": Column(_BYTES, "copy pages", _WIDE, "Pages that hold the data of the jobs."),
        "reserved_jobs": Column(_COUNT, "preallocated", _DATA, "Elements of the client's mempool."),
        "reserved_pages": Column(_PAGES, "reserved", _DATA, "nr_reserved_pages."),
        "free_pages": Column(_PAGES, "free", _DATA, "nr_free_pages."),
        "throttle": Column(_NONE, "throttle %", _DATA, "Percentage of time for copying."),
        "work": Column(_TEXT, "work item", _WIDE, "State of kcopyd_work and PID of its worker."),
        "pool": Column(_NONE, "pool", _DATA, "Id of the worker pool of the work item."),
        "address": Column(
            _ADDRESS,
            "client",
            _DATA,
            "Address of dm_kcopyd_client.",
            type="struct dm_kcopyd_client",
        ),
    },
    "A dm_kcopyd_client; (unknown) where no target of an active table owns it.",
    ("jobs", "address"),
    key=("device", "target"),
    series=("jobs", "bytes", "page_bytes"),
)

SNAPSHOTS = TableSpec(
    "snapshots",
    "Snapshots",
    {
        "device": Column(_TEXT, "device", _ALWAYS, "Name of the snapshot."),
        "number": _NUMBER,
        "target": Column(_TEXT, "target", _DATA, "snapshot or snapshot-merge."),
        "origin": Column(_TEXT, "origin", _WIDE, "Device of which it is a snapshot."),
        "cow": Column(_TEXT, "COW device", _WIDE, "Device of the exception store."),
        "store": Column(_TEXT, "store", _DATA, "P (persistent) or N (transient)."),
        "chunk_bytes": Column(_BYTES, "chunk", _WIDE, "Size of a chunk, the unit of copies."),
        "state": Column(_TEXT, "state", _WIDE, "valid, invalid or overflowed."),
        "in_flight": Column(
            _COUNT, "copies in flight", _ALWAYS, "Its own count, else the jobs of its client."
        ),
        "limit": Column(
            _COUNT,
            "limit",
            _ALWAYS,
            "Copies it may have in flight; none where unlimited or unknown.",
        ),
        "waiting": Column(_COUNT, "tasks waiting", _ALWAYS, "Tasks that wait for copies."),
        "waiting_tasks": Column(_TEXT, "waiting tasks", _DATA, "Their names and PIDs."),
        "pending_exceptions": Column(
            _COUNT, "pending exceptions", _WIDE, "Chunks being copied: pending_exceptions_count."
        ),
        "exceptions": Column(
            _COUNT, "exceptions", _WIDE, "Completed exceptions, each a run of chunks."
        ),
        "exception_bytes": Column(_BYTES, "exception bytes", _DATA, "Slots of these exceptions."),
        "used_bytes": Column(_BYTES, "COW used", _WIDE, "Used space, as dmsetup status shows."),
        "job_bytes": Column(_BYTES, "jobs", _WIDE, "Slots of the jobs of its client."),
        "address": Column(
            _ADDRESS, "dm_snapshot", _DATA, "Address of dm_snapshot.", type="struct dm_snapshot"
        ),
    },
    "A dm_snapshot.",
    ("in_flight", "number"),
    key=("device",),
    series=("in_flight", "limit", "pending_exceptions", "used_bytes", "exception_bytes"),
)

POOLS = TableSpec(
    "pools",
    "Worker pools",
    {
        "pool": _POOL,
        "cpu": _CPU,
        "node": Column(_NONE, "node", _DATA, "NUMA node of the workers."),
        "kind": Column(_TEXT, "kind", _WIDE, "bound, unbound, or BH (softirq)."),
        "nice": Column(_NONE, "nice", _WIDE, "Nice level of the workers."),
        "stalled": _STALLED,
        "age": Column(_SECONDS, "since progress", _ALWAYS, "Time since it last started work."),
        "pending": Column(_COUNT, "pending", _ALWAYS, "Items on its worklist."),
        "inactive": Column(_COUNT, "inactive", _DATA, "Items held back by max_active."),
        "workers": Column(_COUNT, "workers", _WIDE, "All workers."),
        "idle": Column(_COUNT, "idle", _WIDE, "Idle workers."),
        "running": Column(_TEXT, "running", _WIDE, "Functions and PIDs of busy workers."),
        "running_seconds": _RUNNING,
        "address": Column(
            _ADDRESS, "worker_pool", _DATA, "Address of worker_pool.", type="struct worker_pool"
        ),
    },
    "A worker pool, stalled ones first.",
)

PENDING_WORK = TableSpec(
    "pending_work",
    "Running and pending work",
    {
        "pool": _POOL,
        "cpu": replace(_CPU, show=_WIDE),
        "workqueue": _WORKQUEUE,
        "client": Column(_TEXT, "kcopyd client", _WIDE, "Device of the workqueue's client."),
        "state": Column(_TEXT, "state", _ALWAYS, "in-flight, scheduled, pending or inactive."),
        "function": _FUNCTION,
        "module": _MODULE,
        "count": Column(_COUNT, "items", _ALWAYS, "Work items."),
        "pids": Column(_TEXT, "workers", _WIDE, "PIDs of the workers that run them."),
        "seconds": _RUNNING,
        "stalled": replace(_STALLED, show=_DATA),
        "behind_kcopyd": Column(_NONE, "behind kcopyd", _WIDE, "They wait while kcopyd runs."),
        "wq": Column(
            _ADDRESS,
            "address",
            _DATA,
            "Address of workqueue_struct.",
            type="struct workqueue_struct",
        ),
    },
    "Work items of equal pool, workqueue, function and state.",
    ("stalled", "pool", "state", "workqueue", "wq", "function"),
)

RELATED_SLABS = TableSpec(
    "related_slabs",
    "Slab caches that grow with kcopyd jobs",
    {
        "cache": Column(_TEXT, "cache", _ALWAYS, "Name of the slab cache."),
        "role": Column(_TEXT, "holds", _ALWAYS, "What kcopyd uses it for."),
        "merged": Column(_NONE, "merged", _ALWAYS, "Other caches are merged into it."),
        "objects_active": Column(_COUNT, "active", _ALWAYS, "Allocated objects."),
        "objects_total": Column(_COUNT, "slots", _WIDE, "Slots of all slabs."),
        "slot_size": Column(_BYTES, "slot", _DATA, "Distance of two objects."),
        "bytes": Column(_BYTES, "bytes", _ALWAYS, "Slab pages."),
        "share_of_unreclaimable": Column(
            Unit.RATIO, "of SUnreclaim", _WIDE, "Share of all unreclaimable slab pages."
        ),
        "address": Column(
            _ADDRESS, "kmem_cache", _DATA, "Address of kmem_cache.", type="struct kmem_cache"
        ),
    },
    "A slab cache that jobs, bios or exceptions are allocated from.",
    ("bytes", "cache"),
)

LOG_EVENTS = TableSpec(
    "log_events",
    "Kernel log events",
    {
        "time": Column(_NONE, "time [s]", _ALWAYS, "Seconds since boot, as in the log."),
        "event": Column(_TEXT, "event", _ALWAYS, "Kind of message."),
        "pool": replace(_POOL, show=_WIDE),
        "cpus": Column(_TEXT, "CPUs", _WIDE, "CPUs of the pool, or the CPU that is stuck."),
        "workqueue": _WORKQUEUE,
        "function": _FUNCTION,
        "module": _MODULE,
        "pid": Column(_NONE, "PID", _WIDE, "PID of the worker or task."),
        "comm": Column(_TEXT, "task", _WIDE, "Name of the task."),
        "seconds": Column(_SECONDS, "for", _WIDE, "How long it was stuck, hung or running."),
        "used_bytes": Column(_BYTES, "used", _WIDE, "Allocated objects of the slab cache."),
        "total_bytes": Column(_BYTES, "total", _WIDE, "All slots of the slab cache."),
        "count": Column(_COUNT, "count", _DATA, "Items, workers or pages, by kind of message."),
        "detail": Column(_TEXT, "detail", _ALWAYS, "Slab cache, idle workers, or GFP flags."),
        "now_seconds": Column(_SECONDS, "pool's age now", _DATA, "Since the pool's last progress."),
        "now_bytes": Column(_BYTES, "slab bytes now", _DATA, "Slab pages of the cache in memory."),
    },
    "A message, in log order, with the value in memory for comparison.",
)

TABLES = (CLIENTS, SNAPSHOTS, POOLS, PENDING_WORK, RELATED_SLABS, LOG_EVENTS)


def tables(figures: Figures) -> dict[str, Table]:
    """Return all tables by name; where kcopyd is not in use, only those of other trouble."""
    made = {
        "clients": CLIENTS.of(_clients(figures)),
        "snapshots": SNAPSHOTS.of(_snapshots(figures)),
        "pools": POOLS.of(_pools(figures)),
        "pending_work": PENDING_WORK.of(_pending_work(figures)),
        "related_slabs": RELATED_SLABS.of(_related_slabs(figures)),
        "log_events": log_events(figures.log, figures),
    }
    census = figures.census
    known = {
        "clients": census.has_jobs,
        "snapshots": census.has_snapshots,
        "pools": "workqueues" not in census.errors,
        "pending_work": "workqueues" not in census.errors,
        "log_events": "kernel log" not in census.errors,
    }
    if census.in_use:
        made |= {name: replace(made[name], is_known=known[name]) for name in known}
        return made
    shown = ["pools", "pending_work"] if figures.stalled else []
    shown += ["log_events"] if figures.log.events else []
    return {name: made[name] for name in shown}


def _optional(values: Iterable[int | None]) -> Any:
    """Return integers of which negative ones and None are missing."""
    known = (None if value is None or value < 0 else value for value in values)
    return pd.array(list(known), "Int64")


def _columns(rows: Sequence[Any], **members: str) -> dict[str, list[Any]]:
    """Return members of some rows as columns."""
    return {name: [getattr(row, member) for row in rows] for name, member in members.items()}


def _clients(figures: Figures) -> dict[str, Any]:
    clients, jobs, owners = figures.census.clients, figures.census.jobs, figures.owners
    states = [figures.work_states.get(work, ("idle", -1)) for work in clients.work.tolist()]
    return {
        **vars(jobs),
        **vars(clients),
        **{f"{name}_jobs": jobs.listed[:, column] for column, name in enumerate(LISTS)},
        "device": [owner.device for owner in owners],
        "number": [owner.number for owner in owners],
        "target": [owner.target for owner in owners],
        "bytes": jobs.jobs * figures.census.job_slab.slot_size,
        "page_bytes": jobs.pages * figures.kernel.memory.page_size,
        "reserved_jobs": clients.reserves,
        "throttle": _optional(clients.throttle.tolist()),
        "work": [state for state, _ in states],
        "pool": _optional(pool for _, pool in states),
    }


def _snapshots(figures: Figures) -> dict[str, Any]:
    census, snapshots = figures.census, figures.snapshots
    names = census.devices.by_number()
    exception_size = figures.slab_of("exceptions").slot_size
    limits = [figures.limit_of(row) for row in snapshots]
    job_size = census.job_slab.slot_size
    return {
        **_columns(snapshots, target="target", store="store", address="address"),
        **_columns(snapshots, pending_exceptions="pending", exceptions="exceptions"),
        "device": [row.device.name for row in snapshots],
        "number": [row.device.number for row in snapshots],
        "origin": [_named(row.origin, {row.origin: row.origin_disk} | names) for row in snapshots],
        "cow": [_named(row.cow, names) for row in snapshots],
        "chunk_bytes": _optional(
            None if row.chunk_sectors is None else row.chunk_sectors * 512 for row in snapshots
        ),
        "state": [
            "invalid" if not row.valid else "overflowed" if row.overflowed else "valid"
            for row in snapshots
        ],
        "in_flight": _optional(figures.copies(row) for row in snapshots),
        "limit": _optional(None if limit == UNLIMITED else limit for limit in limits),
        "waiting": [len(row.waiters) for row in snapshots],
        "waiting_tasks": [
            ", ".join(f"{task.comm}:{task.pid}" for task in row.waiters) for row in snapshots
        ],
        "exception_bytes": [row.exceptions * exception_size for row in snapshots],
        "used_bytes": _optional(
            None if row.used_sectors is None else row.used_sectors * 512 for row in snapshots
        ),
        "job_bytes": [(figures.jobs_of(row) or 0) * job_size for row in snapshots],
    }


def _named(number: str, names: Mapping[str, str]) -> str:
    return f"{names[number]} ({number})" if names.get(number) else number


def _pools(figures: Figures) -> dict[str, Any]:
    pools = sorted(
        figures.census.workqueues.pools,
        key=lambda pool: (not pool.is_stalled, -pool.pending, pool.id),
    )
    # Since Linux kernel commit 4cb1ef64609f ("workqueue: Implement BH workqueues to eventually
    # replace tasklets") (in v6.9), flag 1 means that a pool runs in softirq context.
    bh = 0
    with contextlib.suppress(LookupError):
        bh = int(figures.kernel.prog.constant("POOL_BH"))
    items, describe = figures.census.workqueues.items, figures.functions.described
    inactive = items["pool"][items["state"] == "inactive"].value_counts()
    busy = items[items["state"] == "in-flight"]
    longest = busy.groupby("pool")["seconds"].max()
    running: dict[int, list[str]] = {}
    for pool, func, pid in zip(busy["pool"], busy["func"].tolist(), busy["pid"], strict=True):
        running.setdefault(pool, []).append(f"{describe(func)} ({pid})")
    return {
        **_columns(pools, pool="id", stalled="is_stalled", address="address"),
        **_columns(pools, pending="pending", workers="workers", idle="idle"),
        "cpu": _optional(pool.cpu for pool in pools),
        "node": _optional(pool.node for pool in pools),
        "kind": [
            "unbound" if pool.cpu < 0 else "BH" if pool.flags & bh else "bound" for pool in pools
        ],
        "nice": pd.array([pool.nice for pool in pools], "Int64"),
        "age": np.array([pool.age for pool in pools], float),
        "inactive": [inactive.get(pool.id, 0) for pool in pools],
        "running": [", ".join(sorted(running.get(pool.id, []))) for pool in pools],
        "running_seconds": np.array([longest.get(pool.id) for pool in pools], float),
    }


def _pending_work(figures: Figures) -> pd.DataFrame:
    queues = figures.census.workqueues
    groups = queues.items.groupby(["pool", "wq", "func", "state"])
    work = groups.agg(
        count=("work", "size"),
        pids=("pid", lambda pids: ", ".join(str(pid) for pid in sorted(set(pids)) if pid)),
        seconds=("seconds", "max"),
    ).reset_index()
    pools = [queues.by_id.get(pool) for pool in work["pool"].tolist()]
    wqs = work["wq"].tolist()
    functions = [figures.functions(func) for func in work["func"].tolist()]
    is_running = work["state"] == "in-flight"
    runs_kcopyd = is_running & np.array([figures.is_kcopyd(wq) for wq in wqs], np.bool_)
    return work.assign(
        cpu=_optional(pool.cpu if pool else None for pool in pools),
        workqueue=[queues.names.get(wq, "?") for wq in wqs],
        client=[figures.devices_of_wqs.get(wq, "") for wq in wqs],
        function=[name for name, _ in functions],
        module=[module for _, module in functions],
        stalled=[pool is not None and pool.is_stalled for pool in pools],
        behind_kcopyd=work["pool"].isin(work["pool"][runs_kcopyd]) & ~is_running,
    )


def _related_slabs(figures: Figures) -> dict[str, Any]:
    slabs, whole = figures.census.slabs, figures.unreclaimable_bytes or np.nan
    return {
        **_columns(slabs, cache="name", role="role", merged="merged", slot_size="slot_size"),
        **_columns(slabs, objects_active="active", objects_total="objects", bytes="bytes"),
        "address": np.array([use.address for use in slabs], np.uint64),
        "share_of_unreclaimable": [use.bytes / whole for use in slabs],
    }


def log_events(log: LogEvents, figures: Figures | None = None) -> Table:
    """Return the events of a log, beside what memory holds now."""
    pools = figures.census.workqueues.by_id if figures else {}
    of_cpus = {str(pool.cpu): pool for pool in pools.values() if pool.nice in (0, None)}
    slabs = {use.name: use.bytes for use in figures.census.slabs} if figures else {}
    ages, sizes = [], []
    for event in log.events:
        pool = None
        if event.event in ("lockup", "pool"):
            pool = pools.get(-1 if event.pool is None else event.pool)
        if pool is None and event.event == "lockup":
            pool = of_cpus.get(event.cpus or "")
        ages.append(pool.age if pool else None)
        sizes.append(slabs.get(event.detail or "") if event.event == "slab" else None)
    frame = log.frame()
    frame["now_seconds"] = np.array(ages, float)
    frame["now_bytes"] = pd.array(sizes, "Int64")
    table = LOG_EVENTS.of(frame)
    # Most logs have few kinds of events, and leave the columns of others empty.
    table.columns = {
        name: replace(column, show=_DATA) if frame[name].isna().all() else column
        for name, column in table.columns.items()
    }
    return table
