# SPDX-License-Identifier: LGPL-2.1-or-later
"""Workqueues: worker pools, their running and waiting items, and stalled pools."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import drgn
import numpy as np
import pandas as pd
from drgn import Type
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.percpu import per_cpu

from kcensus.engine.chase import Damage, Lanes, collect, pointer_step
from kcensus.engine.gather import Gathered, gather, gather_arrays
from kcensus.engine.layout import Layout, layout, word_dtype
from kcensus.engine.memory import Faults, Memory, Numbers, Words
from kcensus.kernel.clock import elapsed, hz
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import before, in_order, list_members
from kcensus.kernel.names import ABSENT, MISSING, decode_array

_DEFAULT_THRESHOLD = 30
"""Seconds; the default of ``wq_watchdog_thresh``."""
_MAX_ITEMS = 1 << 24
_MAX_WORKQUEUES = 1 << 20
"""Most workqueues and pool_workqueues: large machines have some hundred thousand."""
_ITEM_TYPES = {
    "pool": np.int64,
    "wq": np.uint64,
    "work": np.uint64,
    "func": np.uint64,
    "state": object,
    "pid": np.int64,
    "seconds": np.float64,
    "color": np.int64,
}


@dataclass(frozen=True)
class Pool:
    """A ``struct worker_pool``."""

    address: int
    id: int
    cpu: int
    """CPU of a bound pool; -1 if its workers may run on several CPUs."""
    node: int
    nice: int | None
    flags: int
    workers: int
    idle: int
    pending: int
    age: float | None
    """Seconds since its last progress; None where the kernel has no such stamp."""
    is_stalled: bool
    """Whether the kernel's watchdog would call it stalled."""


def _no_items() -> pd.DataFrame:
    return pd.DataFrame({name: np.empty(0, type_) for name, type_ in _ITEM_TYPES.items()})


@dataclass
class Workqueues:
    """All pools, and the running and waiting work items."""

    pools: list[Pool] = field(default_factory=list)
    """Pools in the order of their id."""
    items: pd.DataFrame = field(default_factory=_no_items)
    """A row per item: ``pool`` (id, -1 unknown), ``wq``, ``work``, ``func`` (addresses), ``state``
    (in-flight, scheduled, pending, inactive), ``pid`` (of the worker, else 0), ``seconds`` (run
    time; before v7.0 a lower bound; NaN unknown), ``color`` (of a running item, for flushes; -1
    unknown)."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of workqueues by address; not safe to print."""
    threshold: int = _DEFAULT_THRESHOLD
    """Seconds without progress after which a pool is stalled."""
    has_watchdog: bool = False
    """Whether :attr:`threshold` is the kernel's own."""
    cpu_pools: int | None = None
    """The kernel's number of bound pools, by its per-CPU variables; None if unknown."""
    damaged: int = 0
    """Torn or unreadable lists, and pools that contradict their index."""

    @property
    def bound_pools(self) -> int:
        """Number of :attr:`pools` bound to a CPU."""
        return sum(pool.cpu >= 0 for pool in self.pools)

    @cached_property
    def by_id(self) -> dict[int, Pool]:
        return {pool.id: pool for pool in self.pools}


@once
def workqueues(kernel: Kernel) -> Workqueues:
    """Return all pools, and the running and waiting work items.

    :raises LookupError: the debug info lacks workqueues or jiffies
    :raises drgn.FaultError: their heads are unreadable
    """
    return _Reader(kernel.memory, verify=not kernel.live).read()


class _Reader:
    def __init__(self, memory: Memory, *, verify: bool = True) -> None:
        self.memory = memory
        self.verify = verify
        self.prog = prog = memory.prog
        self.faults = Faults()
        self.damaged = 0
        self.pool_type = prog.type("struct worker_pool")
        self.now, self.hz = int(prog["jiffies_64"]), hz(prog)
        threshold = 0
        with contextlib.suppress(*ABSENT):
            # With CONFIG_WQ_WATCHDOG; 0 turns the watchdog off.
            threshold = int(prog["wq_watchdog_thresh"])
        self.has_watchdog = threshold > 0
        self.threshold = threshold if self.has_watchdog else _DEFAULT_THRESHOLD

    def read(self) -> Workqueues:
        pools, lanes, entries = self._pools()
        ids = np.array([pool.id for pool in pools], np.int64)
        names, pwqs, inactive = self._queues()
        pending = self._items(entries, "pending", ids[lanes])
        frames = [*self._busy(pools, ids), pending, inactive]
        # Columns of empty frames have no types.
        items = pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)
        known = pwqs.set_index("pwq").reindex(items["pwq"], fill_value=0).reset_index(drop=True)
        home = known["pool"].map({pool.address: pool.id for pool in pools})
        items["wq"] = known["wq"]
        items["color"] = items["color"].fillna(-1) if "color" in items else -1
        items["pool"] = items["pool"].where(items["pool"] >= 0, home).fillna(-1)
        return Workqueues(
            pools=sorted(pools, key=lambda pool: pool.id),
            items=items[list(_ITEM_TYPES)].astype(_ITEM_TYPES),
            names=names,
            threshold=self.threshold,
            has_watchdog=self.has_watchdog,
            cpu_pools=self._cpu_pools(),
            damaged=self.damaged + self.faults.total(),
        )

    def _gather(self, addresses: Words, columns: Layout) -> Gathered:
        return gather(self.memory, addresses, columns, self.faults)

    def _cpu_pools(self) -> int | None:
        try:
            cpus = sum(1 for _ in for_each_possible_cpu(self.prog))
            pools = len(self.prog["cpu_worker_pools"])
        except MISSING:
            return None
        with contextlib.suppress(*MISSING):
            # Since Linux kernel commit 4cb1ef64609f ("workqueue: Implement BH workqueues to
            # eventually replace tasklets") (in v6.9).
            pools += len(self.prog["bh_worker_pools"])
        return cpus * pools

    def _pools(self) -> tuple[list[Pool], Lanes, Words]:
        """Return the pools, and the entries of their worklists with the index of their pool."""
        try:
            pointers, damaged = idr_entries(self.memory, self.prog["worker_pool_idr"])
        except drgn.FaultError:
            pointers, damaged = [], 1
        numbers = {name: name for name in ("id", "cpu", "node", "flags")}
        numbers |= {"workers": "nr_workers", "idle": "nr_idle"}
        # Since Linux kernel commit 82607adcf9cd ("workqueue: implement lockup detector") (in v4.5),
        # watchdog_ts; since Linux kernel commit 6037160e52d7 ("workqueue: Rename pool->watchdog_ts
        # to pool->last_progress_ts") (in v7.0), last_progress_ts.
        stamps = {"stamp": ("last_progress_ts", "watchdog_ts")}
        members = layout(self.prog, self.pool_type, numbers | {"attrs": "attrs"}, stamps)
        addresses = np.array([pointer for pointer in pointers if pointer], np.uint64)
        read = self._gather(addresses, members)
        self.damaged += damaged + int((~read.readable).sum())
        addresses = addresses[read.readable]
        columns = {name: column[read.readable] for name, column in read.columns.items()}
        self.damaged += len(addresses) - len(np.unique(columns["id"]))
        lanes, entries = self._listed(addresses, self.pool_type, "worklist")
        pending = np.bincount(lanes, minlength=len(addresses)).tolist()
        nice = layout(self.prog, "struct workqueue_attrs", ["nice"])
        attrs = gather(self.memory, columns["attrs"], nice, self.faults)
        pools = []
        for row, address in enumerate(addresses.tolist()):
            pool = {name: int(columns[name][row]) for name in numbers}
            age, is_stalled = None, False
            if "stamp" in columns:
                stamp = int(columns["stamp"][row])
                age = elapsed(self.now, stamp) / self.hz
                idle = elapsed(self.now, self._touched(stamp, pool["cpu"])) / self.hz
                is_stalled = pending[row] > 0 and idle > self.threshold
            pools.append(
                Pool(
                    address,
                    nice=int(attrs["nice"][row]) if attrs.readable[row] else None,
                    pending=pending[row],
                    age=age,
                    is_stalled=is_stalled,
                    **pool,
                )
            )
        return pools, lanes, entries

    def _touched(self, stamp: int, cpu: int) -> int:
        """Return the later of the stamp and the last touch_*_watchdog(), as the watchdog does."""
        touched = stamp
        if self.has_watchdog:
            with contextlib.suppress(LookupError, drgn.FaultError):
                if cpu >= 0:
                    touched = int(per_cpu(self.prog["wq_watchdog_touched_cpu"], cpu))
                else:
                    touched = int(self.prog["wq_watchdog_touched"])
        return touched if elapsed(touched, stamp) else stamp

    def _listed(
        self, address: Words, type_: Type, member: str, total: int | None = None
    ) -> tuple[Lanes, Words]:
        heads = address + np.uint64(drgn.offsetof(type_, member))
        lanes, nodes, torn = list_members(
            self.memory, heads, self.faults, limit=_MAX_ITEMS, total=total, verify=self.verify
        )
        self.damaged += len(torn)
        return lanes, nodes

    def _hashed(self, buckets: Words, first: Words) -> tuple[Lanes, Words]:
        link = layout(self.prog, "struct hlist_node", ["next", "pprev"])
        damage = Damage()
        step = pointer_step(self.memory, link, "next", self.faults)
        lanes, nodes = in_order(*collect(first, step, limit=_MAX_ITEMS, damage=damage))
        torn = damage.lanes()
        if self.verify:
            back = self._gather(nodes, link)["pprev"]
            torn = np.union1d(torn, lanes[back != before(lanes, nodes, buckets)])
        self.damaged += len(torn)
        return lanes, nodes

    def _items(self, entries: Words, state: str, pool: Numbers, **columns: Any) -> pd.DataFrame:
        """Return a row per ``work_struct.entry``, with ``columns`` in place of the items' own."""
        type_ = self.prog.type("struct work_struct")
        members = layout(self.prog, type_, {"data": "data.counter", "func": "func"})
        works = entries - np.uint64(drgn.offsetof(type_, "entry"))
        read = self._gather(works, members)
        data = read["data"].astype(np.uint64)
        queued = np.uint64(1 << int(self.prog.constant("WORK_STRUCT_PWQ_BIT")))
        try:
            # Since Linux kernel commit e9a8e01f9b13 ("workqueue: Clean up enum work_bits and
            # related constants") (in v6.9); WORK_STRUCT_FLAG_BITS is smaller there.
            shift = np.uint64(self.prog.constant("WORK_STRUCT_PWQ_SHIFT").value_())
        except LookupError:
            shift = np.uint64(self.prog.constant("WORK_STRUCT_FLAG_BITS").value_())
        pwq = np.where((data & queued) != 0, data >> shift << shift, np.uint64(0))
        items = {"pool": pool, "pwq": pwq, "work": works, "func": read["func"], "state": state}
        return pd.DataFrame(items | {"pid": 0, "seconds": np.nan} | columns)

    def _queues(self) -> tuple[dict[int, str], pd.DataFrame, pd.DataFrame]:
        """Return the names of workqueues, their pool_workqueues, and their inactive items."""
        type_ = self.prog.type("struct workqueue_struct")
        pwq_type = self.prog.type("struct pool_workqueue")
        head = np.array([self.prog["workqueues"].address_of_().value_()], np.uint64)
        _, nodes, torn = list_members(
            self.memory, head, self.faults, limit=_MAX_WORKQUEUES, verify=self.verify
        )
        self.damaged += len(torn)
        wqs = nodes - np.uint64(drgn.offsetof(type_, "list"))
        read = self._gather(wqs, layout(self.prog, type_, ["name"]))
        names = dict(zip(wqs.tolist(), map(decode_array, read["name"].tolist()), strict=True))
        lanes, links = self._listed(wqs, type_, "pwqs", _MAX_WORKQUEUES)
        address = links - np.uint64(drgn.offsetof(pwq_type, "pwqs_node"))
        # Since Linux kernel commit f97a4a1a3f87 ("workqueue: Rename "delayed" (delayed by active
        # management) to "inactive"") (in v5.15).
        inactive = "inactive_works" if pwq_type.has_member("inactive_works") else "delayed_works"
        pwq = self._gather(address, layout(self.prog, pwq_type, ["pool"]))
        pwqs = pd.DataFrame({"pwq": address, "pool": pwq["pool"], "wq": wqs[lanes]})
        lanes, entries = self._listed(address, pwq_type, inactive)
        pool = np.full(len(entries), -1)
        waiting = self._items(entries, "inactive", pool, pwq=address[lanes])
        return names, pwqs.drop_duplicates("pwq"), waiting

    def _busy(self, pools: Sequence[Pool], ids: Numbers) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the running items, and the items scheduled right after them."""
        offset = np.uint64(drgn.offsetof(self.pool_type, "busy_hash"))
        buckets = self.pool_type.member("busy_hash").type.length or 0
        hashes = np.array([pool.address for pool in pools], np.uint64) + offset
        heads, _ = gather_arrays(self.memory, hashes, buckets, word_dtype(self.prog), self.faults)
        steps = np.uint64(8) * np.arange(buckets, dtype=np.uint64)
        lanes, nodes = self._hashed((hashes[:, None] + steps).ravel(), heads.ravel())
        worker_type = self.prog.type("struct worker")
        workers = nodes - np.uint64(drgn.offsetof(worker_type, "hentry"))
        home = lanes // max(buckets, 1)
        members = layout(
            self.prog,
            worker_type,
            ["current_work", "current_func", "current_pwq", "task"],
            # Since Linux kernel commit e8e14ac7cfe4 ("workqueue: Show in-flight work item duration
            # in stall diagnostics") (in v7.0). Since v5.15 or so (commit not verified), a worker
            # notes the color of its item.
            {"start": "current_start", "color": "current_color", "pool": "pool"},
        )
        read = self._gather(workers, members)
        if "pool" in members:
            # A damaged pointer leads to anything that has pointers.
            own = read["pool"] == np.array([pool.address for pool in pools], np.uint64)[home]
            self.damaged += int((~own).sum())
            workers, home = workers[own], home[own]
            read = read.rows(own)
        tasks = self._gather(read["task"], layout(self.prog, "struct task_struct", ["pid"]))
        if "start" in members:
            seconds = [elapsed(self.now, int(start)) / self.hz for start in read["start"]]
        else:
            # The stamp of the pool is at least as late as the start of its running items.
            seconds = [pools[pool].age for pool in home.tolist()]
        running = pd.DataFrame(
            {
                "pool": ids[home],
                "pwq": read["current_pwq"],
                "work": read["current_work"],
                "func": read["current_func"],
                "state": "in-flight",
                "pid": tasks["pid"].astype(np.int64),
                "seconds": np.array(seconds, np.float64),
                "color": read.columns.get("color", np.full(len(workers), -1)).astype(np.int64),
            }
        )
        lanes, entries = self._listed(workers, worker_type, "scheduled")
        pid = running["pid"].to_numpy()[lanes]
        return running, self._items(entries, "scheduled", ids[home][lanes], pid=pid)
