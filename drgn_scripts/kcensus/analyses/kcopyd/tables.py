# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of kcopyd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.kcopyd.census import KcopydCensus, Owner, SlabUse
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.kernel.dm.kcopyd import LISTS
from kcensus.kernel.workqueues import Functions, Pool, Workqueues
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table

_COUNT, _BYTES, _TEXT, _SECONDS = Unit.COUNT, Unit.BYTES, Unit.TEXT, Unit.SECONDS
UNKNOWN = Owner("(unknown)", "", "")


def work_states(census: KcopydCensus) -> dict[int, tuple[str, int]]:
    """What the clients' work items are doing, and in which pool, by their address; idle ones are
    left out."""
    found: dict[int, tuple[str, int]] = {}
    if census.workqueues is None or census.clients is None:
        return found
    items = census.workqueues.items
    ours = items[items["work"].isin(census.clients.work)].sort_values("state", kind="stable")
    for work, state, pid, pool in zip(
        ours["work"].tolist(), ours["state"], ours["pid"], ours["pool"].tolist(), strict=True
    ):
        named = f"running ({pid})" if state == "in-flight" else str(state)
        before, first = found.get(work, ("", pool))
        found[work] = (f"{before}, {named}" if before else named), first
    return found


def clients(census: KcopydCensus, page_size: int) -> Table:
    """One row per client, the largest first."""
    found, jobs = census.clients, census.jobs
    number = len(found) if found is not None else 0
    nothing = np.zeros(number, np.int64)
    addresses = found.address.tolist() if found is not None else []
    owners = [census.owners.get(address, UNKNOWN) for address in addresses]
    states = work_states(census)
    work = [states.get(int(at), ("idle", -1)) for at in (found.work if found is not None else ())]
    slot = census.job_slab.slot_size if census.job_slab else 0
    counted = jobs.jobs if jobs else nothing
    listed = jobs.listed if jobs else np.zeros((number, len(LISTS)), np.int64)
    split, parts = (jobs.split, jobs.sub_jobs) if jobs else (nothing, nothing)
    in_flight, pages = (jobs.in_flight, jobs.pages) if jobs else (nothing, nothing)

    def own(name: str) -> npt.NDArray[np.int64]:
        column: npt.NDArray[np.int64] = getattr(found, name) if found is not None else nothing
        return column

    per_list = {
        f"{name}_jobs": (listed[:, at], Column(_COUNT, _LIST_LABELS[name]))
        for at, name in enumerate(LISTS)
    }
    pools = pd.array([pool if pool >= 0 else None for _, pool in work], "Int64")
    throttle = [None if value < 0 else int(value) for value in own("throttle").tolist()]
    return Table.of(
        "Clients of kcopyd",
        {
            "device": ([owner.device for owner in owners], Column(_TEXT, "device", Show.ALWAYS)),
            "number": ([owner.number for owner in owners], Column(_TEXT, "number")),
            "target": ([owner.target for owner in owners], Column(_TEXT, "target", Show.ALWAYS)),
            "jobs": (counted, Column(_COUNT, "jobs", Show.ALWAYS)),
            "bytes": (counted * slot, Column(_BYTES, "bytes", Show.ALWAYS)),
            "nr_jobs": (own("nr_jobs"), Column(_COUNT, "nr_jobs")),
            "split": (split, Column(_COUNT, "split", Show.DATA)),
            "sub_jobs": (parts, Column(_COUNT, "sub-jobs", Show.DATA)),
        }
        | per_list
        | {
            "in_flight": (in_flight, Column(_COUNT, "in flight", Show.ALWAYS)),
            "page_bytes": (pages * page_size, Column(_BYTES, "data pages")),
            "reserved_jobs": (own("reserves"), Column(_COUNT, "jobs in reserve", Show.DATA)),
            "reserved_pages": (own("reserved_pages"), Column(Unit.PAGES, "reserved", Show.DATA)),
            "free_pages": (own("free_pages"), Column(Unit.PAGES, "of these free", Show.DATA)),
            "throttle": (pd.array(throttle, "Int64"), Column(Unit.NONE, "throttle %", Show.DATA)),
            "work": ([state for state, _ in work], Column(_TEXT, "work item")),
            "pool": (pools, Column(Unit.NONE, "pool", Show.DATA)),
            "address": (np.array(addresses, np.uint64), Column(Unit.ADDRESS, "client", Show.DATA)),
        },
    ).largest_first("jobs", "address")


_LIST_LABELS = {
    "callback": "callbacks",
    "complete": "complete",
    "io": "to issue",
    "pages": "want pages",
}


def snapshots(census: KcopydCensus) -> Table:
    """One row per snapshot, the one with the most copies in flight first."""
    found = census.snapshots.all if census.snapshots else []
    names = census.devices.by_number() if census.devices else {}
    slot = next((use.slot_size for use in census.related if "exceptions" in _roles(use)), 0)
    job_slot = census.job_slab.slot_size if census.job_slab else 0
    rows = (
        census.clients.rows(np.array([one.client for one in found], np.uint64))
        if (census.clients is not None)
        else np.full(len(found), -1)
    )
    jobs = [
        int(census.jobs.jobs[row]) if census.jobs is not None and row >= 0 else 0 for row in rows
    ]
    counts = pd.array([census.copies(one) for one in found], "Int64")
    exceptions = np.array([one.exceptions for one in found], np.int64)
    used = [None if one.used_sectors is None else one.used_sectors * 512 for one in found]
    return Table.of(
        "Snapshots",
        {
            "device": ([one.device.name for one in found], Column(_TEXT, "device", Show.ALWAYS)),
            "number": ([one.device.number for one in found], Column(_TEXT, "number")),
            "target": ([one.target for one in found], Column(_TEXT, "target", Show.DATA)),
            "origin": (
                [_named(one.origin, {one.origin: one.origin_disk} | names) for one in found],
                Column(_TEXT, "origin"),
            ),
            "cow": ([_named(one.cow, names) for one in found], Column(_TEXT, "COW device")),
            "store": ([one.store for one in found], Column(_TEXT, "store", Show.DATA)),
            "chunk_bytes": (
                np.array([one.chunk_sectors * 512 for one in found], np.int64),
                Column(_BYTES, "chunk"),
            ),
            "state": ([_state(one.valid, one.overflowed) for one in found], Column(_TEXT, "state")),
            "in_flight": (counts, Column(_COUNT, "copies in flight", Show.ALWAYS)),
            "limit": (
                pd.array([_limit(census)] * len(found), "Int64"),
                Column(_COUNT, "limit", Show.ALWAYS),
            ),
            "waiting": (
                np.array([len(one.waiters) for one in found], np.int64),
                Column(_COUNT, "tasks waiting", Show.ALWAYS),
            ),
            "waiting_tasks": (
                [", ".join(f"{w.comm}:{w.pid}" for w in one.waiters) for one in found],
                Column(_TEXT, "who waits", Show.DATA),
            ),
            "pending_exceptions": (
                np.array([one.pending for one in found], np.int64),
                Column(_COUNT, "pending exceptions"),
            ),
            "exceptions": (exceptions, Column(_COUNT, "exceptions")),
            "exception_bytes": (exceptions * slot, Column(_BYTES, "exception bytes", Show.DATA)),
            "used_bytes": (pd.array(used, "Int64"), Column(_BYTES, "COW used")),
            "job_bytes": (np.array(jobs, np.int64) * job_slot, Column(_BYTES, "jobs")),
            "address": (
                np.array([one.address for one in found], np.uint64),
                Column(Unit.ADDRESS, "dm_snapshot", Show.DATA),
            ),
        },
    ).largest_first("in_flight", "number")


def _limit(census: KcopydCensus) -> int | None:
    return None if census.unlimited else census.threshold


def _roles(use: SlabUse) -> list[str]:
    return use.role.split(", ")


def _state(valid: bool, overflowed: bool) -> str:
    if not valid:
        return "invalid"
    return "overflowed" if overflowed else "valid"


def _named(number: str, names: dict[str, str]) -> str:
    return f"{names[number]} ({number})" if names.get(number) else number


def pool_kind(pool: Pool, bottom_half: bool) -> str:
    """How a pool is bound."""
    if pool.cpu < 0:
        return "unbound"
    return "BH" if bottom_half and pool.flags & 1 else "bound"


def pools(queues: Workqueues | None, functions: Functions, bottom_half: bool) -> Table:
    """One row per worker pool: stalled ones first, then those with the most waiting.

    :param bottom_half: whether the kernel has pools that run in soft interrupts (since 6.9)
    """
    found = queues.pools if queues else []
    running: dict[int, list[str]] = {}
    longest: dict[int, float] = {}
    if queues:
        busy = queues.items[queues.items["state"] == "in-flight"]
        for pool, func, pid, seconds in zip(
            busy["pool"], busy["func"], busy["pid"], busy["seconds"], strict=True
        ):
            running.setdefault(int(pool), []).append(f"{described(functions, int(func))} ({pid})")
            longest[int(pool)] = max(longest.get(int(pool), 0.0), float(seconds))
    inactive = (
        queues.items[queues.items["state"] == "inactive"]["pool"].value_counts().to_dict()
        if queues
        else {}
    )
    table = Table.of(
        "Worker pools",
        {
            "pool": ([pool.id for pool in found], Column(Unit.NONE, "pool", Show.ALWAYS)),
            "cpu": (
                pd.array([pool.cpu if pool.cpu >= 0 else None for pool in found], "Int64"),
                Column(Unit.NONE, "CPU", Show.ALWAYS),
            ),
            "node": (
                pd.array([pool.node if pool.node >= 0 else None for pool in found], "Int64"),
                Column(Unit.NONE, "node", Show.DATA),
            ),
            "kind": ([pool_kind(pool, bottom_half) for pool in found], Column(_TEXT, "kind")),
            "nice": (pd.array([pool.nice for pool in found], "Int64"), Column(Unit.NONE, "nice")),
            "stalled": (
                [pool.stalled for pool in found],
                Column(Unit.NONE, "stalled", Show.ALWAYS),
            ),
            "age": (
                np.array([np.nan if p.age is None else p.age for p in found], float),
                Column(_SECONDS, "since progress", Show.ALWAYS),
            ),
            "pending": (
                np.array([pool.pending for pool in found], np.int64),
                Column(_COUNT, "pending", Show.ALWAYS),
            ),
            "inactive": (
                np.array([inactive.get(pool.id, 0) for pool in found], np.int64),
                Column(_COUNT, "inactive", Show.DATA),
            ),
            "workers": (
                np.array([pool.workers for pool in found], np.int64),
                Column(_COUNT, "workers"),
            ),
            "idle": (np.array([pool.idle for pool in found], np.int64), Column(_COUNT, "idle")),
            "running": (
                [", ".join(sorted(running.get(pool.id, []))) for pool in found],
                Column(_TEXT, "running"),
            ),
            "running_seconds": (
                np.array([longest.get(pool.id, np.nan) for pool in found], float),
                Column(_SECONDS, "for at least"),
            ),
        },
    )
    table.frame = table.frame.sort_values(
        ["stalled", "pending", "pool"], ascending=[False, False, True], ignore_index=True
    )
    return table


def described(functions: Functions, address: int) -> str:
    """A function as the kernel prints it."""
    name, module = functions(address)
    return f"{name} [{module}]" if module else name


def pending_work(census: KcopydCensus, functions: Functions) -> Table:
    """Items that run or wait, by pool, queue and function; as "Showing busy workqueues"."""
    queues = census.workqueues
    columns = ["pool", "wq", "func", "state"]
    if queues is None or not len(queues.items):
        grouped = pd.DataFrame({name: [] for name in [*columns, "count", "pids", "seconds"]})
    else:
        by = queues.items.groupby(columns, sort=True)
        grouped = by.agg(
            count=("work", "size"),
            pids=("pid", lambda pids: ", ".join(str(pid) for pid in sorted(set(pids)) if pid)),
            seconds=("seconds", "max"),
        ).reset_index()
    names = queues.names if queues else {}
    known = queues.by_id if queues else {}
    wqs = census.clients.wq.tolist() if census.clients is not None else []
    ours = {
        wq: census.owners.get(address, UNKNOWN).device
        for wq, address in zip(
            wqs, census.clients.address.tolist() if census.clients is not None else [], strict=True
        )
    }
    kcopyd_pools = {
        int(pool)
        for pool, wq, state in zip(grouped["pool"], grouped["wq"], grouped["state"], strict=True)
        if state == "in-flight" and (int(wq) in ours or names.get(int(wq)) == "kcopyd")
    }
    functions_of = [functions(int(func)) for func in grouped["func"]]
    pools_of = [known.get(int(pool)) for pool in grouped["pool"]]
    table = Table.of(
        "Work that runs or waits",
        {
            "pool": (grouped["pool"].astype(np.int64), Column(Unit.NONE, "pool", Show.ALWAYS)),
            "cpu": (
                pd.array(
                    [None if pool is None or pool.cpu < 0 else pool.cpu for pool in pools_of],
                    "Int64",
                ),
                Column(Unit.NONE, "CPU"),
            ),
            "workqueue": (
                [names.get(int(wq), "?") for wq in grouped["wq"]],
                Column(_TEXT, "workqueue", Show.ALWAYS),
            ),
            "client": (
                [ours.get(int(wq), "") for wq in grouped["wq"]],
                Column(_TEXT, "kcopyd client"),
            ),
            "state": (grouped["state"].astype(str), Column(_TEXT, "state", Show.ALWAYS)),
            "function": (
                [name for name, _ in functions_of],
                Column(_TEXT, "function", Show.ALWAYS),
            ),
            "module": ([module for _, module in functions_of], Column(_TEXT, "module")),
            "count": (grouped["count"].astype(np.int64), Column(_COUNT, "items", Show.ALWAYS)),
            "pids": (grouped["pids"].astype(str), Column(_TEXT, "workers")),
            "seconds": (grouped["seconds"].astype(float), Column(_SECONDS, "for at least")),
            "stalled": (
                [pool is not None and pool.stalled for pool in pools_of],
                Column(Unit.NONE, "stalled", Show.DATA),
            ),
            "behind_kcopyd": (
                [
                    int(pool) in kcopyd_pools and state != "in-flight"
                    for pool, state in zip(grouped["pool"], grouped["state"], strict=True)
                ],
                Column(Unit.NONE, "behind kcopyd"),
            ),
            "wq": (grouped["wq"].astype(np.uint64), Column(Unit.ADDRESS, "queue", Show.DATA)),
        },
    )
    table.frame = table.frame.sort_values(
        ["stalled", "pool", "state", "workqueue", "wq", "function"],
        ascending=[False, True, True, True, True, True],
        ignore_index=True,
    )
    return table


def related_slabs(census: KcopydCensus, unreclaimable: int | None) -> Table:
    """The cache of jobs and those that grow with it."""
    uses = [census.job_slab] if census.job_slab else []
    uses += census.related
    return Table.of(
        "Slab caches that grow with kcopyd's jobs",
        {
            "cache": ([use.name for use in uses], Column(_TEXT, "cache", Show.ALWAYS)),
            "role": ([use.role for use in uses], Column(_TEXT, "holds", Show.ALWAYS)),
            "merged": ([use.merged for use in uses], Column(Unit.NONE, "and others", Show.ALWAYS)),
            "objects_active": (
                np.array([use.active for use in uses], np.int64),
                Column(_COUNT, "active", Show.ALWAYS),
            ),
            "objects_total": (
                np.array([use.objects for use in uses], np.int64),
                Column(_COUNT, "slots"),
            ),
            "slot_size": (
                np.array([use.slot_size for use in uses], np.int64),
                Column(_BYTES, "slot", Show.DATA),
            ),
            "bytes": (
                np.array([use.bytes for use in uses], np.int64),
                Column(_BYTES, "bytes", Show.ALWAYS),
            ),
            "share_of_unreclaimable": (
                np.array([use.bytes / unreclaimable if unreclaimable else np.nan for use in uses]),
                Column(Unit.RATIO, "of unreclaimable"),
            ),
        },
    ).largest_first("bytes", "cache")


def log_events(log: LogEvents, census: KcopydCensus | None) -> Table:
    """What the log tells, in its order, beside what memory says now."""
    frame = log.frame()
    known = census.workqueues.by_id if census and census.workqueues else {}
    by_cpu = {
        str(pool.cpu): pool for pool in known.values() if pool.cpu >= 0 and pool.nice in (0, None)
    }
    uses = {}
    if census:
        uses = {use.name: use for use in [census.job_slab, *census.related] if use}
    ages, bytes_now = [], []
    for event in log.events:
        pool = known.get(event.pool) if event.pool is not None else None
        if pool is None and event.event == "lockup":
            pool = by_cpu.get(event.cpus or "")
        wanted = event.event in ("lockup", "pool")
        ages.append(pool.age if wanted and pool and pool.age is not None else np.nan)
        use = uses.get(event.detail or "") if event.event == "slab" else None
        bytes_now.append(use.bytes if use else None)
    frame["now_seconds"] = np.array(ages, float)
    frame["now_bytes"] = pd.array(bytes_now, "Int64")
    described = {
        # As the log has it, to be found there again.
        "time": Column(Unit.NONE, "time [s]", Show.ALWAYS),
        "event": Column(_TEXT, "event", Show.ALWAYS),
        "pool": Column(Unit.NONE, "pool"),
        "cpus": Column(_TEXT, "CPUs"),
        "workqueue": Column(_TEXT, "workqueue", Show.ALWAYS),
        "function": Column(_TEXT, "function", Show.ALWAYS),
        "module": Column(_TEXT, "module"),
        "pid": Column(Unit.NONE, "PID"),
        "comm": Column(_TEXT, "task"),
        "seconds": Column(_SECONDS, "for"),
        "used_bytes": Column(_BYTES, "used"),
        "total_bytes": Column(_BYTES, "total"),
        "count": Column(_COUNT, "count", Show.DATA),
        "detail": Column(_TEXT, "detail", Show.ALWAYS),
        "now_seconds": Column(_SECONDS, "pool's age now", Show.DATA),
        "now_bytes": Column(_BYTES, "slab's bytes now", Show.DATA),
    }
    for name in frame.columns[frame.isna().all()]:
        # Most logs tell of one kind of trouble, and leave the columns of the others empty.
        described[name] = replace(described[name], show=Show.DATA)
    return Table(frame, described, "What the kernel's log says")
