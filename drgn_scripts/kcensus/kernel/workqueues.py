# SPDX-License-Identifier: LGPL-2.1-or-later
"""Workqueues: pools of workers, what they run, what waits for them, and which of them are stuck.

The picture is that of the kernel's "Showing busy workqueues and worker pools", from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import drgn
import numpy as np
import numpy.typing as npt
import pandas as pd
from drgn import Object, Program
from drgn.helpers.linux.kallsyms import module_kallsyms
from drgn.helpers.linux.module import address_to_module
from drgn.helpers.linux.percpu import per_cpu

from kcensus.engine.chase import Damage, Lanes, chase, circular, pointer_step
from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.clock import elapsed, hz, jiffies
from kcensus.kernel.dm.devices import UNKNOWN, text
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel, once

_DEFAULT_THRESHOLD = 30
"""Seconds; the kernel's own default, where it does not watch its workqueues itself."""
_MAX_ITEMS = 1 << 24
_MAX_WORKQUEUES = 1 << 20


@dataclass(frozen=True)
class Pool:
    """One ``struct worker_pool``."""

    address: int
    id: int
    cpu: int
    """-1 where its workers may run on several CPUs."""
    node: int
    nice: int | None
    flags: int
    workers: int
    idle: int
    pending: int
    """Items on its worklist."""
    age: float | None
    """Seconds since it last made progress; None where this kernel does not keep that."""
    stalled: bool
    """By the rule of the kernel's own watchdog."""


@dataclass
class Workqueues:
    """All pools, and what runs and waits."""

    pools: list[Pool]
    """By id."""
    items: pd.DataFrame
    """One row per item that runs or waits: ``pool`` (id, -1 unknown), ``wq`` (address), ``work``,
    ``func`` (addresses), ``state`` (in-flight, scheduled, pending, inactive), ``pid`` (of the
    worker, else 0), ``comm``, ``seconds`` (how long it has been running, NaN unknown), ``exact``
    (False: at least that long)."""
    names: dict[int, str]
    """Names of workqueues by address; not safe to print."""
    threshold: int
    """Seconds without progress that are too many."""
    threshold_known: bool
    """Whether it is the kernel's own figure."""
    damaged: int = 0
    """Lists that were cut short."""
    faults: Faults = field(default_factory=Faults)

    @cached_property
    def by_id(self) -> dict[int, Pool]:
        """Pools by id."""
        return {pool.id: pool for pool in self.pools}


class Functions:
    """Names of functions and of the modules that they are in."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self._known: dict[int, tuple[str, str]] = {}
        self._symbols: dict[int, dict[int, str]] = {}

    def __call__(self, address: int) -> tuple[str, str]:
        """Name and module of a function; its address where no symbol is known."""
        if address not in self._known:
            module, name = self._module(address)
            self._known[address] = (self._name(address, module), name)
        return self._known[address]

    def _name(self, address: int, module: Object | None) -> str:
        try:
            return str(self.prog.symbol(address).name)
        except LookupError:
            pass
        # Of modules without debug info the kernel itself has the symbols.
        if module is not None and (name := self._symbols_of(module).get(address)):
            return name
        return f"0x{address:x}" if address else "?"

    def _symbols_of(self, module: Object) -> dict[int, str]:
        base = int(module.value_())
        if base not in self._symbols:
            try:
                found = {symbol.address: str(symbol.name) for symbol in module_kallsyms(module)}
            except (LookupError, AttributeError, ValueError, drgn.FaultError):
                found = {}
            self._symbols[base] = found
        return self._symbols[base]

    def _module(self, address: int) -> tuple[Object | None, str]:
        try:
            module = address_to_module(self.prog, address)
            return (module, text(module.name.string_())) if module else (None, "")
        except (LookupError, AttributeError, drgn.FaultError):
            return None, ""


@once
def workqueues(kernel: Kernel) -> Workqueues:
    """Look at all pools and queues.

    :raises LookupError: this kernel's workqueues cannot be found
    """
    return _Reader(kernel.memory).read()


class _Reader:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.prog = prog = memory.prog
        self.faults = Faults()
        self.damaged = 0
        self.pool_type = prog.type("struct worker_pool")
        self.work = layout(
            prog,
            "struct work_struct",
            {"data": "data.counter", "func": "func", "next": "entry.next"},
        )
        self.entry = np.uint64(drgn.offsetof(prog.type("struct work_struct"), "entry"))
        self.link = layout(prog, "struct list_head", ["next"])
        self.now, self.hz = jiffies(prog), hz(prog)
        try:
            # CONFIG_WQ_WATCHDOG; 0 turns it off.
            self.threshold = int(prog["wq_watchdog_thresh"])
        except UNKNOWN:
            self.threshold = 0
        self.known = self.threshold > 0
        self.threshold = self.threshold or _DEFAULT_THRESHOLD

    def read(self) -> Workqueues:
        pools = self._pool_addresses()
        members = layout(
            self.prog,
            self.pool_type,
            {
                "cpu": "cpu",
                "node": "node",
                "id": "id",
                "flags": "flags",
                "workers": "nr_workers",
                "idle": "nr_idle",
                "worklist": "worklist.next",
                "attrs": "attrs",
            },
            # Since 4.5; 6037160e52d7 (7.0) renamed it.
            {"stamp": ("last_progress_ts", "watchdog_ts")},
        )
        read = gather(self.memory, pools, members, self.faults)
        self.damaged += int((~read.readable).sum())
        rows = np.flatnonzero(read.readable)
        pools = pools[rows]
        head = pools + np.uint64(drgn.offsetof(self.pool_type, "worklist"))
        lanes, nodes = self._follow(read["worklist"][rows], head)
        pending = np.bincount(lanes, minlength=len(pools))
        nice = layout(self.prog, "struct workqueue_attrs", ["nice"])
        attrs = gather(self.memory, read["attrs"][rows], nice, Faults())
        found = []
        for at, row in enumerate(rows.tolist()):
            cpu = int(read["cpu"][row])
            stamp = int(read["stamp"][row]) if "stamp" in members else None
            age = None
            if stamp is not None:
                age = elapsed(self.now, self._touched(stamp, cpu)) / self.hz
            found.append(
                Pool(
                    address=int(pools[at]),
                    id=int(read["id"][row]),
                    cpu=cpu,
                    node=int(read["node"][row]),
                    nice=int(attrs["nice"][at]) if attrs.readable[at] else None,
                    flags=int(read["flags"][row]),
                    workers=int(read["workers"][row]),
                    idle=int(read["idle"][row]),
                    pending=int(pending[at]),
                    age=None if stamp is None else elapsed(self.now, stamp) / self.hz,
                    stalled=age is not None and bool(pending[at]) and age > self.threshold,
                )
            )
        ids = np.array([pool.id for pool in found], np.int64)
        names, pwqs, inactive = self._queues()
        frames = [
            self._busy(pools, found),
            self._items(nodes, ids[lanes], "pending", pwqs),
            *inactive,
        ]
        items = pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)
        known = pwqs.set_index("pwq")
        items["wq"] = items["pwq"].map(known["wq"]).fillna(0).astype(np.uint64)
        by_address = {pool.address: pool.id for pool in found}
        home = items["pwq"].map(known["pool"]).map(by_address)
        items["pool"] = items["pool"].where(items["pool"] >= 0, home).fillna(-1).astype(np.int64)
        return Workqueues(
            pools=sorted(found, key=lambda pool: pool.id),
            items=items.drop(columns="pwq"),
            names=names,
            threshold=self.threshold,
            threshold_known=self.known,
            damaged=self.damaged,
            faults=self.faults,
        )

    def _pool_addresses(self) -> Words:
        try:
            found, damaged = idr_entries(self.memory, self.prog["worker_pool_idr"])
        except drgn.FaultError:
            found, damaged = [], 1
        self.damaged += damaged
        return np.array(sorted(set(found) - {0}), np.uint64)

    def _touched(self, stamp: int, cpu: int) -> int:
        """The stamp, or when somebody last told the watchdog to be patient, if that is later."""
        if not self.known:
            return stamp
        try:
            if cpu >= 0:
                touched = int(per_cpu(self.prog["wq_watchdog_touched_cpu"], cpu))
            else:
                touched = int(self.prog["wq_watchdog_touched"])
        except (LookupError, drgn.FaultError):
            return stamp
        return touched if elapsed(touched, stamp) else stamp

    def _follow(self, first: Words, heads: Words) -> tuple[Lanes, Words]:
        """All nodes of many ``list_head`` lists, in the order of the lists and in their own."""
        damage = Damage()
        step = pointer_step(self.memory, self.link, "next", self.faults)
        walk = list(chase(first, step, limit=_MAX_ITEMS, damage=damage, ends=heads))
        self.damaged += damage.lists
        if not walk:
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        lanes = np.concatenate([lanes for lanes, _ in walk])
        nodes = np.concatenate([nodes for _, nodes in walk])
        order = np.argsort(lanes, kind="stable")
        lanes, nodes = lanes[order], nodes[order]
        if damage.cyclic:
            # Nodes of a cycle come more than once.
            again = pd.DataFrame({"lane": lanes, "node": nodes}).duplicated().to_numpy()
            lanes, nodes = lanes[~again], nodes[~again]
        return lanes, nodes

    # What waits

    @cached_property
    def _pwq_mask(self) -> int:
        """What of work_struct.data is a pointer to a pool_workqueue."""
        # 6.10 gave the shift a name of its own, and WORK_STRUCT_FLAG_BITS less to hold.
        for name in ("WORK_STRUCT_PWQ_SHIFT", "WORK_STRUCT_FLAG_BITS"):
            try:
                return ~((1 << int(self.prog.constant(name))) - 1) & ((1 << 64) - 1)
            except LookupError:
                continue
        raise LookupError("neither WORK_STRUCT_PWQ_SHIFT nor WORK_STRUCT_FLAG_BITS is known")

    def _pwq_of(self, data: Words) -> Words:
        queued = np.uint64(1 << int(self.prog.constant("WORK_STRUCT_PWQ_BIT")))
        pwq = data.astype(np.uint64) & np.uint64(self._pwq_mask)
        return np.where((data.astype(np.uint64) & queued) != 0, pwq, np.uint64(0))

    def _items(
        self, entries: Words, pool: npt.NDArray[np.int64], state: str, pwqs: pd.DataFrame
    ) -> pd.DataFrame:
        works = entries - self.entry
        read = gather(self.memory, works, self.work, self.faults)
        return pd.DataFrame(
            {
                "pool": pool,
                "pwq": self._pwq_of(read["data"]),
                "work": works,
                "func": read["func"],
                "state": state,
                "pid": 0,
                "comm": "",
                "seconds": np.nan,
                "exact": False,
            }
        )

    def _queues(self) -> tuple[dict[int, str], pd.DataFrame, list[pd.DataFrame]]:
        """Names of workqueues, their pool_workqueues, and items that must not run yet."""
        type_ = self.prog.type("struct workqueue_struct")
        pwq_type = self.prog.type("struct pool_workqueue")
        head = int(self.prog["workqueues"].address_of_().value_())
        nodes, torn = circular(self.memory, head, self.faults, limit=_MAX_WORKQUEUES)
        self.damaged += torn
        wqs = nodes - np.uint64(drgn.offsetof(type_, "list"))
        read = gather(
            self.memory,
            wqs,
            layout(self.prog, type_, {"name": "name", "pwqs": "pwqs.next"}),
            self.faults,
        )
        names = {
            int(wq): text(bytes(name).split(b"\0")[0])
            for wq, name in zip(wqs.tolist(), read["name"].tolist(), strict=True)
        }
        heads = wqs + np.uint64(drgn.offsetof(type_, "pwqs"))
        lanes, links = self._follow(np.where(read.readable, read["pwqs"], heads), heads)
        address = links - np.uint64(drgn.offsetof(pwq_type, "pwqs_node"))
        # f97a4a1a3f87 (5.15) renamed delayed_works.
        inactive = "inactive_works" if pwq_type.has_member("inactive_works") else "delayed_works"
        pwq = gather(
            self.memory,
            address,
            layout(self.prog, pwq_type, {"pool": "pool", "inactive": f"{inactive}.next"}),
            self.faults,
        )
        pwqs = pd.DataFrame({"pwq": address, "pool": pwq["pool"], "wq": wqs[lanes]})
        pwqs = pwqs.drop_duplicates("pwq")
        ends = address + np.uint64(drgn.offsetof(pwq_type, inactive))
        at, entries = self._follow(np.where(pwq.readable, pwq["inactive"], ends), ends)
        waiting = self._items(entries, np.full(len(entries), -1), "inactive", pwqs)
        waiting["pwq"] = address[at]
        return names, pwqs, [waiting]

    # What runs

    def _busy(self, pools: Words, found: Sequence[Pool]) -> pd.DataFrame:
        """Workers with an item, and items that are scheduled to run right after it."""
        offset = drgn.offsetof(self.pool_type, "busy_hash")
        buckets = self.pool_type.member("busy_hash").type.length or 0
        heads, _ = gather_arrays(
            self.memory, pools + np.uint64(offset), buckets, np.uint64, self.faults
        )
        worker_type = self.prog.type("struct worker")
        back = np.uint64(drgn.offsetof(worker_type, "hentry"))
        damage = Damage()
        step = pointer_step(
            self.memory, layout(self.prog, "struct hlist_node", ["next"]), "next", self.faults
        )
        walk = list(chase(heads.ravel(), step, limit=_MAX_ITEMS, damage=damage))
        self.damaged += damage.lists
        lanes = np.concatenate([part for part, _ in walk] or [np.empty(0, np.int64)])
        nodes = np.concatenate([part for _, part in walk] or [np.empty(0, np.uint64)])
        workers, pool = nodes - back, lanes // max(buckets, 1)
        members = layout(
            self.prog,
            worker_type,
            {
                "work": "current_work",
                "func": "current_func",
                "pwq": "current_pwq",
                "task": "task",
                "scheduled": "scheduled.next",
            },
            {"start": "current_start"},  # e8e14ac7cfe4 (7.0)
        )
        read = gather(self.memory, workers, members, self.faults)
        task = layout(self.prog, "struct task_struct", ["pid", "comm"])
        tasks = gather(self.memory, read["task"], task, self.faults)
        seconds = np.full(len(workers), np.nan)
        for row, home in enumerate(pool.tolist()):
            if "start" in members:
                seconds[row] = elapsed(self.now, int(read["start"][row])) / self.hz
            else:
                # The stamp is never older than the beginning of what runs.
                age = found[home].age
                seconds[row] = np.nan if age is None else age
        ids = np.array([one.id for one in found], np.int64)
        running = pd.DataFrame(
            {
                "pool": ids[pool],
                "pwq": read["pwq"],
                "work": read["work"],
                "func": read["func"],
                "state": "in-flight",
                "pid": tasks["pid"].astype(np.int64),
                "comm": [text(bytes(comm).split(b"\0")[0]) for comm in tasks["comm"].tolist()],
                "seconds": seconds,
                "exact": "start" in members,
            }
        )
        ends = workers + np.uint64(drgn.offsetof(worker_type, "scheduled"))
        first = np.where(read.readable, read["scheduled"], ends)
        at, entries = self._follow(first, ends)
        behind = self._items(entries, ids[pool][at], "scheduled", running)
        behind["pid"] = running["pid"].to_numpy()[at]
        return pd.concat([running, behind], ignore_index=True) if len(behind) else running
