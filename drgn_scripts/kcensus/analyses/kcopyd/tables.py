# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of kcopyd."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.log_events import Event
from kcensus.charts import ChartSpec, RamUse
from kcensus.kernel.dm.snapshots import UNLIMITED
from kcensus.kernel.workqueues import Pool
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
_CPU = Column(NONE, "CPU", ALWAYS, "CPU of the pool; none for unbound pools.",
    lambda row: row.pool and _known(row.pool.cpu))  # fmt: skip
_STALLED = Column(NONE, "stalled", ALWAYS, "Whether work is pending, and none starts.")
_RUNNING = Column(SECONDS, "for at least", WIDE, "Longest run so far.")
_WORKQUEUE = Column(TEXT, "workqueue", ALWAYS, "Name of the workqueue.")
_FUNCTION = Column(TEXT, "function", ALWAYS, "Function of the work.")
_MODULE = Column(TEXT, "module", WIDE, "Module of the function.")


class _Row(NamedTuple):
    figures: Figures
    of: Any


def _known(number: int | None) -> int | None:
    return None if number is None or number < 0 else number


def _optional(numbers: Iterable[int]) -> Any:
    """Return integers as a column with missing values for negative ones."""
    return pd.array([*map(_known, numbers)], "Int64")


CLIENTS = TableSpec("clients", "kcopyd clients", {
    "device": Column(TEXT, "", ALWAYS, "Name of the mapped device.",
        lambda f: [owner.device for owner in f.owners]),
    "number": replace(_NUMBER, get=lambda f: [owner.number for owner in f.owners]),
    "target": Column(TEXT, "", ALWAYS, "Type of the target that owns the client.",
        lambda f: [owner.target for owner in f.owners]),
    "jobs": Column(COUNT, "", ALWAYS, "Jobs in use.", "census.jobs.jobs"),
    "bytes": Column(BYTES, "", ALWAYS, "Slots of these jobs.",
        lambda f: f.census.jobs.jobs * f.census.job_slab.slot_size),
    "nr_jobs": Column(COUNT, "nr_jobs", WIDE, "dm_kcopyd_client.nr_jobs.",
        "census.clients.nr_jobs"),
    "split": Column(COUNT, "", DATA, "Jobs split into sub-jobs.", "census.jobs.split"),
    "sub_jobs": Column(COUNT, "sub-jobs", DATA, "Running sub-jobs.", "census.jobs.sub_jobs"),
    "callback_jobs": Column(COUNT, "callback_jobs", WIDE, "Jobs that wait for a callback.",
        lambda f: f.census.jobs.on("callback")),
    "complete_jobs": Column(COUNT, "complete_jobs", WIDE, "Copied jobs whose callback is due.",
        lambda f: f.census.jobs.on("complete")),
    "io_jobs": Column(COUNT, "io_jobs", WIDE, "Jobs and sub-jobs that wait for I/O.",
        lambda f: f.census.jobs.on("io")),
    "pages_jobs": Column(COUNT, "pages_jobs", WIDE, "Jobs and sub-jobs that wait for pages.",
        lambda f: f.census.jobs.on("pages")),
    "in_flight": Column(COUNT, "", ALWAYS, "Jobs and sub-jobs on none of the lists.",
        "census.jobs.in_flight"),
    "page_bytes": Column(BYTES, "copy pages", WIDE, "Data pages of the jobs.",
        lambda f: f.census.jobs.pages * f.kernel.memory.page_size),
    "reserved_jobs": Column(COUNT, "preallocated", DATA, "Elements of the client's mempool.",
        "census.clients.reserves"),
    "reserved_pages": Column(PAGES, "reserved", DATA, "nr_reserved_pages.",
        "census.clients.reserved_pages"),
    "free_pages": Column(PAGES, "free", DATA, "nr_free_pages.", "census.clients.free_pages"),
    "throttle": Column(NONE, "throttle %", DATA, "Percentage of time for copying.",
        lambda f: _optional(f.census.clients.throttle.tolist())),
    "work": Column(TEXT, "work item", WIDE, "State of kcopyd_work and PID of its worker.",
        lambda f: [state for state, _ in f.client_works]),
    "pool": Column(NONE, "", DATA, "Id of the worker pool of the work item.",
        lambda f: _optional(pool for _, pool in f.client_works)),
    "address": address("struct dm_kcopyd_client", "client", get="census.clients.address"),
}, "A dm_kcopyd_client; (unknown) if no target of an active table owns it.", ("jobs", "address"),
    key=("device", "target"), series=("jobs", "bytes", "page_bytes"),
    is_known=lambda f: f.census.has_jobs)  # fmt: skip


def _named(number: str, names: Mapping[str, str]) -> str:
    return f"{names[number]} ({number})" if names.get(number) else number


def _origin(row: _Row) -> str:
    snapshot = row.of
    return _named(snapshot.origin, {snapshot.origin: snapshot.origin_disk} | row.figures.devices)


def _limit(row: _Row) -> int | None:
    limit = row.figures.limit_of(row.of)
    return None if limit == UNLIMITED else limit


SNAPSHOTS = TableSpec("snapshots", "Snapshots", {
    "device": Column(TEXT, "", ALWAYS, "Name of the snapshot.", "of.device.name"),
    "number": replace(_NUMBER, get="of.device.number"),
    "target": Column(TEXT, "", DATA, "snapshot or snapshot-merge.", "of.target"),
    "origin": Column(TEXT, "", WIDE, "Device with the original data.", _origin),
    "cow": Column(TEXT, "COW device", WIDE, "Device of the exception store.",
        lambda row: _named(row.of.cow, row.figures.devices)),
    "store": Column(TEXT, "", DATA, "P (persistent) or N (transient).", "of.store"),
    "chunk_bytes": Column(BYTES, "chunk", WIDE, "Size of a chunk, the unit of copies.",
        "of.chunk_bytes"),
    "state": Column(TEXT, "", WIDE, "valid, invalid or overflowed.", "of.state"),
    "in_flight": Column(COUNT, "copies in flight", ALWAYS,
        "Copies in flight: the snapshot's counter, or else the jobs of its client.",
        lambda row: row.figures.copies(row.of)),
    "limit": Column(COUNT, "", ALWAYS,
        "Most copies in flight; none if unlimited or unknown.", _limit),
    "waiting": Column(COUNT, "tasks waiting", ALWAYS, "Tasks that wait for the copy limit.",
        lambda row: len(row.of.waiters)),
    "waiting_tasks": Column(TEXT, "", DATA, "Names and PIDs of these tasks.",
        lambda row: ", ".join(f"{task.comm}:{task.pid}" for task in row.of.waiters)),
    "pending_exceptions": Column(COUNT, "", WIDE, "Chunks being copied: pending_exceptions_count.",
        "of.pending"),
    "exceptions": Column(COUNT, "", WIDE, "Completed exceptions, each a run of chunks.",
        "of.exceptions"),
    "exception_bytes": Column(BYTES, "", DATA, "Slots of these exceptions.",
        lambda row: row.of.exceptions * row.figures.slab_of("exceptions").slot_size),
    "used_bytes": Column(BYTES, "COW used", WIDE, "Used space, as dmsetup status shows.",
        "of.used_bytes"),
    "job_bytes": Column(BYTES, "jobs", WIDE, "Slots of the jobs of the client.",
        lambda row: (row.figures.jobs_of(row.of) or 0) * row.figures.census.job_slab.slot_size),
    "address": address("struct dm_snapshot", get="of.address"),
}, "A dm_snapshot.", ("in_flight", "number"), key=("device",),
    series=("in_flight", "limit", "pending_exceptions", "used_bytes", "exception_bytes"),
    rows=lambda f: [_Row(f, snapshot) for snapshot in f.snapshots],
    is_known=lambda f: f.census.has_snapshots)  # fmt: skip


class _Pool(NamedTuple):
    """A worker pool and its items."""

    figures: Figures
    pool: Pool
    items: pd.DataFrame

    @property
    def busy(self) -> pd.DataFrame:
        return self.items[self.items["state"] == "in-flight"]

    @property
    def kind(self) -> str:
        # Since Linux kernel commit 4cb1ef64609f ("workqueue: Implement BH workqueues to eventually
        # replace tasklets") (in v6.9), flag 1 means that a pool runs in softirq context.
        bh = 0
        with contextlib.suppress(LookupError):
            bh = int(self.figures.kernel.prog.constant("POOL_BH"))
        return "unbound" if self.pool.cpu < 0 else "BH" if self.pool.flags & bh else "bound"

    @property
    def running(self) -> str:
        """Functions and PIDs of the busy workers."""
        describe, busy = self.figures.functions.described, self.busy
        pairs = zip(busy["func"].tolist(), busy["pid"], strict=True)
        return ", ".join(sorted(f"{describe(func)} ({pid})" for func, pid in pairs))


def _pools(figures: Figures) -> list[_Pool]:
    queues = figures.census.workqueues
    items, none = dict([*queues.items.groupby("pool")]), queues.items.head(0)
    pools = sorted(queues.pools, key=lambda pool: (not pool.is_stalled, -pool.pending, pool.id))
    return [_Pool(figures, pool, items.get(pool.id, none)) for pool in pools]


def _has_workqueues(figures: Figures) -> bool:
    return "workqueues" not in figures.census.errors


POOLS = TableSpec("pools", "Worker pools", {
    "pool": replace(_POOL, get="pool.id"),
    "cpu": _CPU,
    "node": Column(NONE, "", DATA, "NUMA node of the workers.", lambda row: _known(row.pool.node)),
    "kind": Column(TEXT, "", WIDE, "bound, unbound, or BH (softirq)."),
    "nice": Column(NONE, "", WIDE, "Nice level of the workers.", "pool.nice"),
    "stalled": replace(_STALLED, get="pool.is_stalled"),
    "age": Column(SECONDS, "since progress", ALWAYS, "Time since the pool last started work.",
        "pool.age"),
    "pending": Column(COUNT, "", ALWAYS, "Items on the worklist of the pool.", "pool.pending"),
    "inactive": Column(COUNT, "", DATA, "Items held back by max_active.",
        lambda row: int((row.items["state"] == "inactive").sum())),
    "workers": Column(COUNT, "", WIDE, "All workers.", "pool.workers"),
    "idle": Column(COUNT, "", WIDE, "Idle workers.", "pool.idle"),
    "running": Column(TEXT, "", WIDE, "Functions and PIDs of busy workers."),
    "running_seconds": replace(_RUNNING, get=lambda row: row.busy["seconds"].max()),
    "address": address("struct worker_pool", get="pool.address"),
}, "A worker pool, stalled ones first.", rows=_pools, is_known=_has_workqueues)  # fmt: skip


class _Work(NamedTuple):
    """Items of equal pool, workqueue, function and state."""

    figures: Figures
    items: pd.DataFrame
    pool_id: int
    wq: int
    func: int
    state: str

    @property
    def pool(self) -> Pool | None:
        return self.figures.census.workqueues.by_id.get(self.pool_id)

    @property
    def pids(self) -> str:
        return ", ".join(str(pid) for pid in sorted(set(self.items["pid"])) if pid)


def _pending_work(figures: Figures) -> list[_Work]:
    items = figures.census.workqueues.items
    groups: Any = items.groupby(["pool", "wq", "func", "state"])
    return [_Work(figures, rows, *key) for key, rows in groups]


PENDING_WORK = TableSpec("pending_work", "Running and pending work", {
    "pool": replace(_POOL, get="pool_id"),
    "cpu": replace(_CPU, show=WIDE),
    "workqueue": replace(_WORKQUEUE,
        get=lambda row: row.figures.census.workqueues.names.get(row.wq, "?")),
    "client": Column(TEXT, "kcopyd client", WIDE, "Device of the workqueue's client.",
        lambda row: row.figures.devices_of_wqs.get(row.wq, "")),
    "state": Column(TEXT, "", ALWAYS, "in-flight, scheduled, pending or inactive."),
    "function": replace(_FUNCTION, get=lambda row: row.figures.functions(row.func)[0]),
    "module": replace(_MODULE, get=lambda row: row.figures.functions(row.func)[1]),
    "count": Column(COUNT, "items", ALWAYS, "Work items.", lambda row: len(row.items)),
    "pids": Column(TEXT, "workers", WIDE, "PIDs of the workers that run the items."),
    "seconds": replace(_RUNNING, get=lambda row: row.items["seconds"].max()),
    "stalled": replace(_STALLED, show=DATA,
        get=lambda row: row.pool is not None and row.pool.is_stalled),
    "behind_kcopyd": Column(NONE, "", WIDE, "Whether the items wait behind kcopyd.",
        lambda row: row.state != "in-flight" and row.pool_id in row.figures.kcopyd_pools),
    "wq": address("struct workqueue_struct", "address"),
}, "Work items of equal pool, workqueue, function and state.",
    ("stalled", "pool", "state", "workqueue", "wq", "function"), rows=_pending_work,
    is_known=_has_workqueues)  # fmt: skip

RELATED_SLABS = TableSpec("related_slabs", "Slab caches that grow with kcopyd jobs", {
    "cache": Column(TEXT, "", ALWAYS, "Name of the slab cache.", "of.name"),
    "role": Column(TEXT, "holds", ALWAYS, "Objects of kcopyd in the cache.", "of.role"),
    "merged": Column(NONE, "", ALWAYS, "Whether SLUB merged other caches into it.", "of.merged"),
    "objects_active": Column(COUNT, "active", ALWAYS, "Allocated objects.", "of.active"),
    "objects_total": Column(COUNT, "slots", WIDE, "Slots of all slabs.", "of.objects"),
    "slot_size": Column(BYTES, "slot", DATA, "Size of a slot.", "of.slot_size"),
    "bytes": Column(BYTES, "", ALWAYS, "Slab pages.", "of.bytes"),
    "share_of_unreclaimable": Column(RATIO, "of SUnreclaim", WIDE,
        "Share of all unreclaimable slab pages.",
        lambda row: row.of.bytes / (row.figures.unreclaimable_bytes or np.nan)),
    "address": address("struct kmem_cache", get="of.address"),
}, "A slab cache of jobs, bios or exceptions.", ("bytes", "cache"),
    rows=lambda f: [_Row(f, use) for use in f.census.slabs])  # fmt: skip


class _Logged(NamedTuple):
    """An event, and the state of its pool and slab cache in memory."""

    event: Event
    pool: Pool | None
    slab_bytes: int | None

    @property
    def seconds(self) -> float | None:
        return None if self.event.seconds is None else float(self.event.seconds)


def _log_events(figures: Figures) -> list[_Logged]:
    pools = figures.census.workqueues.by_id
    of_cpus = {str(pool.cpu): pool for pool in pools.values() if pool.nice in (0, None)}
    slabs = {use.name: use.bytes for use in figures.census.slabs}
    logged = []
    for event in figures.log.events:
        pool = None
        if event.event in ("lockup", "pool"):
            pool = pools.get(-1 if event.pool is None else event.pool)
        if pool is None and event.event == "lockup":
            pool = of_cpus.get(event.cpus or "")
        size = slabs.get(event.detail or "") if event.event == "slab" else None
        logged.append(_Logged(event, pool, size))
    return logged


LOG_EVENTS = TableSpec("log_events", "Kernel log events", {
    "time": Column(NONE, "time [s]", ALWAYS, "Seconds since boot, as in the log.", "event.time"),
    "event": Column(TEXT, "", ALWAYS, "Kind of message.", "event.event"),
    "pool": replace(_POOL, show=WIDE, get="event.pool"),
    "cpus": Column(TEXT, "CPUs", WIDE, "CPUs of the pool, or the stuck CPU.", "event.cpus"),
    "workqueue": replace(_WORKQUEUE, get="event.workqueue"),
    "function": replace(_FUNCTION, get="event.function"),
    "module": replace(_MODULE, get="event.module"),
    "pid": Column(NONE, "PID", WIDE, "PID of the worker or task.", "event.pid"),
    "comm": Column(TEXT, "task", WIDE, "Name of the task.", "event.comm"),
    "seconds": Column(SECONDS, "for", WIDE, "Time that the subject was stuck, hung or running."),
    "used_bytes": Column(BYTES, "used", WIDE, "Allocated objects of the slab cache.",
        "event.used_bytes"),
    "total_bytes": Column(BYTES, "total", WIDE, "All slots of the slab cache.",
        "event.total_bytes"),
    "count": Column(COUNT, "", DATA, "Items, workers or pages, by kind of message.", "event.count"),
    "detail": Column(TEXT, "", ALWAYS, "Slab cache, idle workers, or GFP flags.", "event.detail"),
    "now_seconds": Column(SECONDS, "pool's age now", DATA, "Since the pool's last progress.",
        lambda row: row.pool and row.pool.age),
    "now_bytes": Column(BYTES, "slab bytes now", DATA, "Slab pages of the cache in memory.",
        "slab_bytes"),
}, "A message, in log order, with the value in memory for comparison.", rows=_log_events,
    is_known=lambda f: "kernel log" not in f.census.errors, hides_empty=True)  # fmt: skip

TABLES = (CLIENTS, SNAPSHOTS, POOLS, PENDING_WORK, RELATED_SLABS, LOG_EVENTS)


def tables(figures: Figures) -> dict[str, Table]:
    """Return all tables by name; if kcopyd is not in use, only those with other trouble."""
    if figures.census.in_use:
        return make_tables(TABLES, figures)
    shown = (POOLS, PENDING_WORK) if figures.stalled else ()
    return make_tables((*shown, *((LOG_EVENTS,) if figures.log.events else ())), figures)


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
