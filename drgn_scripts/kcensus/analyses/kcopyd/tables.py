# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of kcopyd."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.charts import ChartSpec, RamUse
from kcensus.kernel.dm.kcopyd import LISTS
from kcensus.kernel.dm.snapshots import UNLIMITED
from kcensus.results import Result
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    NONE,
    PAGES,
    RATIO,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    Table,
    TableSpec,
    address,
    make_tables,
)

_NUMBER = Column(TEXT, "number", WIDE, "major:minor of the device.")
_POOL = Column(NONE, "pool", ALWAYS, "Id of the worker pool.")
_CPU = Column(NONE, "CPU", ALWAYS, "CPU of the pool; none for unbound pools.")
_STALLED = Column(NONE, "stalled", ALWAYS, "Whether work is pending, and none starts.")
_RUNNING = Column(SECONDS, "for at least", WIDE, "Longest run so far.")
_WORKQUEUE = Column(TEXT, "workqueue", ALWAYS, "Name of the workqueue.")
_FUNCTION = Column(TEXT, "function", ALWAYS, "Function of the work.")
_MODULE = Column(TEXT, "module", WIDE, "Module of the function.")


def _optional(values: Iterable[int | None]) -> Any:
    """Return integers as a column with missing values for None and negative ones."""
    known = (None if value is None or value < 0 else value for value in values)
    return pd.array(list(known), "Int64")


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


CLIENTS = TableSpec(
    "clients",
    "kcopyd clients",
    {
        "device": Column(TEXT, "device", ALWAYS, "Name of the mapped device."),
        "number": _NUMBER,
        "target": Column(TEXT, "target", ALWAYS, "Type of the target that owns the client."),
        "jobs": Column(COUNT, "jobs", ALWAYS, "Jobs in use."),
        "bytes": Column(BYTES, "bytes", ALWAYS, "Slots of these jobs."),
        "nr_jobs": Column(COUNT, "nr_jobs", WIDE, "dm_kcopyd_client.nr_jobs."),
        "split": Column(COUNT, "split", DATA, "Jobs split into sub-jobs."),
        "sub_jobs": Column(COUNT, "sub-jobs", DATA, "Running sub-jobs."),
        "callback_jobs": Column(COUNT, "callback_jobs", WIDE, "Jobs that wait for a callback."),
        "complete_jobs": Column(COUNT, "complete_jobs", WIDE, "Copied jobs whose callback is due."),
        "io_jobs": Column(COUNT, "io_jobs", WIDE, "Jobs and sub-jobs that wait for I/O."),
        "pages_jobs": Column(COUNT, "pages_jobs", WIDE, "Jobs and sub-jobs that wait for pages."),
        "in_flight": Column(COUNT, "in flight", ALWAYS, "Jobs and sub-jobs on none of the lists."),
        "page_bytes": Column(BYTES, "copy pages", WIDE, "Data pages of the jobs."),
        "reserved_jobs": Column(COUNT, "preallocated", DATA, "Elements of the client's mempool."),
        "reserved_pages": Column(PAGES, "reserved", DATA, "nr_reserved_pages."),
        "free_pages": Column(PAGES, "free", DATA, "nr_free_pages."),
        "throttle": Column(NONE, "throttle %", DATA, "Percentage of time for copying."),
        "work": Column(TEXT, "work item", WIDE, "State of kcopyd_work and PID of its worker."),
        "pool": Column(NONE, "pool", DATA, "Id of the worker pool of the work item."),
        "address": address("struct dm_kcopyd_client", "client"),
    },
    "A dm_kcopyd_client; (unknown) if no target of an active table owns it.",
    ("jobs", "address"),
    key=("device", "target"),
    series=("jobs", "bytes", "page_bytes"),
    rows=_clients,
)


def _snapshots(figures: Figures) -> list[dict[str, Any]]:
    census, names = figures.census, figures.census.devices.by_number()
    exception_size, job_size = figures.slab_of("exceptions").slot_size, census.job_slab.slot_size
    limits = {row.address: figures.limit_of(row) for row in figures.snapshots}
    return [
        {
            **vars(row),
            "device": row.device.name,
            "number": row.device.number,
            "origin": _named(row.origin, {row.origin: row.origin_disk} | names),
            "cow": _named(row.cow, names),
            "chunk_bytes": _bytes(row.chunk_sectors),
            "state": "invalid" if not row.valid else "overflowed" if row.overflowed else "valid",
            "in_flight": figures.copies(row),
            "limit": None if limits[row.address] == UNLIMITED else limits[row.address],
            "waiting": len(row.waiters),
            "waiting_tasks": ", ".join(f"{task.comm}:{task.pid}" for task in row.waiters),
            "pending_exceptions": row.pending,
            "exception_bytes": row.exceptions * exception_size,
            "used_bytes": _bytes(row.used_sectors),
            "job_bytes": (figures.jobs_of(row) or 0) * job_size,
        }
        for row in figures.snapshots
    ]


def _bytes(sectors: int | None) -> int | None:
    return None if sectors is None else sectors * 512


def _named(number: str, names: Mapping[str, str]) -> str:
    return f"{names[number]} ({number})" if names.get(number) else number


SNAPSHOTS = TableSpec(
    "snapshots",
    "Snapshots",
    {
        "device": Column(TEXT, "device", ALWAYS, "Name of the snapshot."),
        "number": _NUMBER,
        "target": Column(TEXT, "target", DATA, "snapshot or snapshot-merge."),
        "origin": Column(TEXT, "origin", WIDE, "Device with the original data."),
        "cow": Column(TEXT, "COW device", WIDE, "Device of the exception store."),
        "store": Column(TEXT, "store", DATA, "P (persistent) or N (transient)."),
        "chunk_bytes": Column(BYTES, "chunk", WIDE, "Size of a chunk, the unit of copies."),
        "state": Column(TEXT, "state", WIDE, "valid, invalid or overflowed."),
        "in_flight": Column(
            COUNT,
            "copies in flight",
            ALWAYS,
            "Copies in flight: the snapshot's counter, or else the jobs of its client.",
        ),
        "limit": Column(
            COUNT, "limit", ALWAYS, "Most copies in flight; none if unlimited or unknown."
        ),
        "waiting": Column(COUNT, "tasks waiting", ALWAYS, "Tasks that wait for the copy limit."),
        "waiting_tasks": Column(TEXT, "waiting tasks", DATA, "Names and PIDs of these tasks."),
        "pending_exceptions": Column(
            COUNT, "pending exceptions", WIDE, "Chunks being copied: pending_exceptions_count."
        ),
        "exceptions": Column(
            COUNT, "exceptions", WIDE, "Completed exceptions, each a run of chunks."
        ),
        "exception_bytes": Column(BYTES, "exception bytes", DATA, "Slots of these exceptions."),
        "used_bytes": Column(BYTES, "COW used", WIDE, "Used space, as dmsetup status shows."),
        "job_bytes": Column(BYTES, "jobs", WIDE, "Slots of the jobs of the client."),
        "address": address("struct dm_snapshot"),
    },
    "A dm_snapshot.",
    ("in_flight", "number"),
    key=("device",),
    series=("in_flight", "limit", "pending_exceptions", "used_bytes", "exception_bytes"),
    rows=_snapshots,
)


def _pools(figures: Figures) -> list[dict[str, Any]]:
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
    return [
        {
            **vars(pool),
            "pool": pool.id,
            "cpu": None if pool.cpu < 0 else pool.cpu,
            "node": None if pool.node < 0 else pool.node,
            "kind": "unbound" if pool.cpu < 0 else "BH" if pool.flags & bh else "bound",
            "stalled": pool.is_stalled,
            "inactive": inactive.get(pool.id, 0),
            "running": ", ".join(sorted(running.get(pool.id, []))),
            "running_seconds": longest.get(pool.id),
        }
        for pool in pools
    ]


POOLS = TableSpec(
    "pools",
    "Worker pools",
    {
        "pool": _POOL,
        "cpu": _CPU,
        "node": Column(NONE, "node", DATA, "NUMA node of the workers."),
        "kind": Column(TEXT, "kind", WIDE, "bound, unbound, or BH (softirq)."),
        "nice": Column(NONE, "nice", WIDE, "Nice level of the workers."),
        "stalled": _STALLED,
        "age": Column(SECONDS, "since progress", ALWAYS, "Time since the pool last started work."),
        "pending": Column(COUNT, "pending", ALWAYS, "Items on the worklist of the pool."),
        "inactive": Column(COUNT, "inactive", DATA, "Items held back by max_active."),
        "workers": Column(COUNT, "workers", WIDE, "All workers."),
        "idle": Column(COUNT, "idle", WIDE, "Idle workers."),
        "running": Column(TEXT, "running", WIDE, "Functions and PIDs of busy workers."),
        "running_seconds": _RUNNING,
        "address": address("struct worker_pool"),
    },
    "A worker pool, stalled ones first.",
    rows=_pools,
)


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


PENDING_WORK = TableSpec(
    "pending_work",
    "Running and pending work",
    {
        "pool": _POOL,
        "cpu": replace(_CPU, show=WIDE),
        "workqueue": _WORKQUEUE,
        "client": Column(TEXT, "kcopyd client", WIDE, "Device of the workqueue's client."),
        "state": Column(TEXT, "state", ALWAYS, "in-flight, scheduled, pending or inactive."),
        "function": _FUNCTION,
        "module": _MODULE,
        "count": Column(COUNT, "items", ALWAYS, "Work items."),
        "pids": Column(TEXT, "workers", WIDE, "PIDs of the workers that run the items."),
        "seconds": _RUNNING,
        "stalled": replace(_STALLED, show=DATA),
        "behind_kcopyd": Column(
            NONE, "behind kcopyd", WIDE, "Whether the items wait behind kcopyd."
        ),
        "wq": address("struct workqueue_struct", "address"),
    },
    "Work items of equal pool, workqueue, function and state.",
    ("stalled", "pool", "state", "workqueue", "wq", "function"),
    rows=_pending_work,
)


def _related_slabs(figures: Figures) -> list[dict[str, Any]]:
    whole = figures.unreclaimable_bytes or np.nan
    return [
        vars(use)
        | {"cache": use.name, "objects_active": use.active, "objects_total": use.objects}
        | {"share_of_unreclaimable": use.bytes / whole}
        for use in figures.census.slabs
    ]


RELATED_SLABS = TableSpec(
    "related_slabs",
    "Slab caches that grow with kcopyd jobs",
    {
        "cache": Column(TEXT, "cache", ALWAYS, "Name of the slab cache."),
        "role": Column(TEXT, "holds", ALWAYS, "Objects of kcopyd in the cache."),
        "merged": Column(NONE, "merged", ALWAYS, "Whether SLUB merged other caches into it."),
        "objects_active": Column(COUNT, "active", ALWAYS, "Allocated objects."),
        "objects_total": Column(COUNT, "slots", WIDE, "Slots of all slabs."),
        "slot_size": Column(BYTES, "slot", DATA, "Size of a slot."),
        "bytes": Column(BYTES, "bytes", ALWAYS, "Slab pages."),
        "share_of_unreclaimable": Column(
            RATIO, "of SUnreclaim", WIDE, "Share of all unreclaimable slab pages."
        ),
        "address": address("struct kmem_cache"),
    },
    "A slab cache of jobs, bios or exceptions.",
    ("bytes", "cache"),
    rows=_related_slabs,
)

LOG_EVENTS = TableSpec(
    "log_events",
    "Kernel log events",
    {
        "time": Column(NONE, "time [s]", ALWAYS, "Seconds since boot, as in the log."),
        "event": Column(TEXT, "event", ALWAYS, "Kind of message."),
        "pool": replace(_POOL, show=WIDE),
        "cpus": Column(TEXT, "CPUs", WIDE, "CPUs of the pool, or the stuck CPU."),
        "workqueue": _WORKQUEUE,
        "function": _FUNCTION,
        "module": _MODULE,
        "pid": Column(NONE, "PID", WIDE, "PID of the worker or task."),
        "comm": Column(TEXT, "task", WIDE, "Name of the task."),
        "seconds": Column(
            SECONDS, "for", WIDE, "Time that the subject was stuck, hung or running."
        ),
        "used_bytes": Column(BYTES, "used", WIDE, "Allocated objects of the slab cache."),
        "total_bytes": Column(BYTES, "total", WIDE, "All slots of the slab cache."),
        "count": Column(COUNT, "count", DATA, "Items, workers or pages, by kind of message."),
        "detail": Column(TEXT, "detail", ALWAYS, "Slab cache, idle workers, or GFP flags."),
        "now_seconds": Column(SECONDS, "pool's age now", DATA, "Since the pool's last progress."),
        "now_bytes": Column(BYTES, "slab bytes now", DATA, "Slab pages of the cache in memory."),
    },
    "A message, in log order, with the value in memory for comparison.",
)

TABLES = (CLIENTS, SNAPSHOTS, POOLS, PENDING_WORK, RELATED_SLABS, LOG_EVENTS)


def tables(figures: Figures) -> dict[str, Table]:
    """Return all tables by name; if kcopyd is not in use, only those with other trouble."""
    made = make_tables(TABLES[:-1], figures) | {"log_events": log_events(figures.log, figures)}
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


def log_events(log: LogEvents, figures: Figures | None = None) -> Table:
    """Return the events of a log beside the present state of their pools."""
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
    # Most logs have few kinds of events, and leave most columns empty.
    table.columns = {
        name: replace(column, show=DATA) if frame[name].isna().all() else column
        for name, column in table.columns.items()
    }
    return table


CHARTS = (
    ChartSpec(
        "jobs",
        "clients",
        "kcopyd jobs by client and state",
        ("callback_jobs", "complete_jobs", "io_jobs", "pages_jobs", "in_flight"),
        "device",
        measure="jobs",
    ),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield the slabs of jobs and the pages of copies; bios and exceptions share their slabs."""
    yield RamUse("kcopyd jobs and pages", result.amount("job_bytes"), in_slabs=True)
    yield RamUse("kcopyd jobs and pages", result.amount("page_bytes"), in_slabs=False)
