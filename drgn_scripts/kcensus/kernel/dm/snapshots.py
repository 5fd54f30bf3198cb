# SPDX-License-Identifier: LGPL-2.1-or-later
"""dm-snapshot: copies in flight, exceptions, and the tasks that wait for the limit of copies."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

import drgn
import numpy as np
from drgn import Object, Program, cast

from kcensus.engine.chase import Damage, circular, collect, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.dm.devices import DmTarget, MappedDevice
from kcensus.kernel.names import decode, decode_array, name_at

TARGETS = ("snapshot", "snapshot-merge")
_MAX_WAITERS = 1 << 20
_MAX_EXCEPTIONS = 1 << 24
"""Exceptions in a hash bucket."""
_MAX_BUCKETS = 1 << 22
"""Buckets of an exception table, which takes at most 2 MiB."""


class Limit(enum.Enum):
    """How a kernel limits the copies of a snapshot."""

    NONE = "none"
    """Not limited."""
    SEMAPHORE = "semaphore"
    """``cow_count``; it can deadlock, since tasks wait for it with locks held."""
    IN_PROGRESS = "in_progress"
    """A counter, and a wait queue where no lock is held."""


MEMBERS = {Limit.SEMAPHORE: "cow_count", Limit.IN_PROGRESS: "in_progress"}
"""The member of ``struct dm_snapshot`` that counts copies."""


def limit_mechanism(prog: Program) -> Limit:
    """Return how this kernel limits copies.

    :raises LookupError: ``dm_snapshot`` has no debug info
    """
    type_ = prog.type("struct dm_snapshot")
    # Since Linux kernel commit b21555786f18 ("dm snapshot: rework COW throttling to fix deadlock")
    # (in v5.4, and stable), in_progress replaces the semaphore of Linux kernel commit 721b1d98fb51
    # ("dm snapshot: Fix excessive memory usage and workqueue stalls") (in v5.0, and stable).
    if type_.has_member("in_progress"):
        return Limit.IN_PROGRESS
    return Limit.SEMAPHORE if type_.has_member("cow_count") else Limit.NONE


def cow_threshold(prog: Program) -> int | None:
    """Return ``snapshot_cow_threshold``, or None where the kernel has no such parameter.

    :raises drgn.FaultError: it is unreadable
    """
    try:
        return int(prog["cow_threshold"])
    except (LookupError, drgn.ObjectAbsentError):
        return None


UNLIMITED = (1 << 31) - 1
"""The smallest threshold that no number of copies reaches."""


@dataclass(frozen=True)
class Waiter:
    """A task that waits for the limit."""

    pid: int
    comm: str


@dataclass(frozen=True)
class Snapshot:
    """A ``struct dm_snapshot``."""

    address: int
    device: MappedDevice
    target: str
    """Type of its target."""
    origin: str
    """``major:minor``"""
    origin_disk: str
    """Name of its disk; empty where unreadable."""
    cow: str
    """``major:minor``"""
    store: str
    """``P`` (persistent) or ``N`` (transient)."""
    chunk_sectors: int
    valid: bool
    overflowed: bool
    in_flight: int | None
    """Copies in flight by the snapshot's own count; None where it has none."""
    pending: int
    """``pending_exceptions_count``"""
    exceptions: int
    """Completed exceptions, counted in their table."""
    pending_in_table: int
    used_sectors: int | None
    """Of the COW device, as ``dmsetup status`` shows; None where the type of store is unknown."""
    client: int
    """Address of its ``struct dm_kcopyd_client``."""
    waiters: tuple[Waiter, ...]


@dataclass
class Snapshots:
    """All snapshots, in the order of their devices."""

    all: list[Snapshot] = field(default_factory=list)
    damaged: int = 0
    """Unreadable snapshots, and torn lists of theirs."""


def snapshots(memory: Memory, devices: Iterable[MappedDevice], threshold: int | None) -> Snapshots:
    """Return the snapshots among ``devices``.

    :param threshold: ``snapshot_cow_threshold``
    :raises LookupError: ``dm_snapshot`` has no debug info
    """
    reader = _Reader(memory, threshold)
    for device in devices:
        for target in device.targets:
            if target.type_name in TARGETS:
                try:
                    reader.snapshots.all.append(reader.snapshot(device, target))
                except drgn.FaultError:
                    reader.snapshots.damaged += 1
    return reader.snapshots


class _Reader:
    def __init__(self, memory: Memory, threshold: int | None) -> None:
        self.memory = memory
        self.prog = memory.prog
        self.threshold = threshold
        self.limit = limit_mechanism(self.prog)
        self.snapshots = Snapshots()
        self.faults = Faults()

    def snapshot(self, device: MappedDevice, target: DmTarget) -> Snapshot:
        """Return the snapshot of a target.

        :raises drgn.FaultError: it is unreadable
        """
        snapshot = Object(self.prog, "struct dm_snapshot *", value=target.private)
        in_flight, waiters = self._copies(snapshot)
        store = snapshot.store
        return Snapshot(
            address=target.private,
            device=device,
            target=target.type_name,
            origin=decode(snapshot.origin.name.string_()),
            origin_disk=_disk(snapshot.origin),
            cow=decode(snapshot.cow.name.string_()),
            store=name_at(store.type.name),
            chunk_sectors=int(store.chunk_size),
            valid=bool(snapshot.valid),
            # Since Linux kernel commit "dm snapshot: don't invalidate on-disk image on snapshot
            # write overflow" (commit not verified).
            overflowed=bool(getattr(snapshot, "snapshot_overflowed", 0)),
            in_flight=in_flight,
            pending=int(snapshot.pending_exceptions_count.counter),
            exceptions=self._entries(snapshot.complete),
            pending_in_table=self._entries(snapshot.pending),
            used_sectors=_used(store),
            client=int(snapshot.kcopyd_client),
            waiters=waiters,
        )

    def _copies(self, snapshot: Object) -> tuple[int | None, tuple[Waiter, ...]]:
        """Return the copies in flight by the snapshot's count, and the tasks that wait."""
        if self.limit is Limit.IN_PROGRESS:
            queue = snapshot.in_progress_wait
            # Since Linux kernel commits ac6424b981bc ("sched/wait: Rename wait_queue_t =>
            # wait_queue_entry_t") and 2055da97389a ("sched/wait: Disambiguate wq_entry->task_list
            # and wq_head->task_list naming") (in v4.13).
            path = ("head", "struct wait_queue_entry", "entry")
            if not hasattr(queue, "head"):
                path = ("task_list", "struct __wait_queue", "task_list")
            return int(snapshot.in_progress), self._tasks(queue, *path, "private")
        if self.limit is Limit.NONE:
            return None, ()
        in_flight = None
        if self.threshold is not None:
            # The semaphore counts down from the threshold at the snapshot's creation.
            start = self.threshold if 0 < self.threshold < UNLIMITED else UNLIMITED
            in_flight = max(start - int(snapshot.cow_count.count), 0)
        path = ("wait_list", "struct semaphore_waiter", "list")
        return in_flight, self._tasks(snapshot.cow_count, *path, "task")

    def _entries(self, table: Object) -> int:
        """Return the number of exceptions in a hash table."""
        buckets = int(table.hash_mask) + 1
        if not table.table or buckets > _MAX_BUCKETS:
            self.snapshots.damaged += buckets > _MAX_BUCKETS
            return 0
        head = table.table.type_.type
        steps = np.arange(buckets, dtype=np.uint64) * np.uint64(drgn.sizeof(head))
        addresses = np.uint64(table.table.value_()) + steps
        # Since Linux kernel commit f79ae415b64c ("dm snapshot: Make exception tables scalable") (in
        # v5.2), a bucket is a hlist_bl_head, whose pointer holds a lock bit, not a list_head. Since
        # Linux kernel commit 8581b19eb2c5 ("dm-snapshot: fix 'scheduling while atomic' on real-time
        # kernels") (in v6.19), it is a dm_hlist_head.
        is_circular = head.type_name() == "struct list_head"
        path = "next" if is_circular else ("first", "head.first")
        first = gather(self.memory, addresses, layout(self.prog, head, {"node": path}), self.faults)
        node = self.prog.type("struct dm_exception").member("hash_list").type
        link = layout(self.prog, node, ["next"])
        heads, damage = first["node"].astype(np.uint64) & ~np.uint64(1), Damage()
        step = pointer_step(self.memory, link, "next", self.faults)
        ends = addresses if is_circular else None
        lanes, _ = collect(heads, step, limit=_MAX_EXCEPTIONS, damage=damage, ends=ends)
        self.snapshots.damaged += damage.lists + int((~first.readable).sum())
        return len(lanes)

    def _tasks(
        self, queue: Object, head: str, type_name: str, link: str, task: str
    ) -> tuple[Waiter, ...]:
        """Return the tasks on a list: their nodes are ``link``, their pointers ``task``."""
        type_ = self.prog.type(type_name)
        address = int(queue.member_(head).address_of_().value_())
        nodes, torn = circular(self.memory, address, self.faults, limit=_MAX_WAITERS)
        self.snapshots.damaged += torn
        waiters = nodes - np.uint64(drgn.offsetof(type_, link))
        pointer = layout(self.prog, type_, {"task": task})
        pointers = gather(self.memory, waiters, pointer, self.faults)
        members = layout(self.prog, "struct task_struct", ["pid", "comm"])
        tasks = gather(self.memory, pointers["task"], members, self.faults)
        columns = (tasks[name][tasks.readable].tolist() for name in ("pid", "comm"))
        return tuple(Waiter(pid, decode_array(comm)) for pid, comm in zip(*columns, strict=True))


def _disk(device: Object) -> str:
    with contextlib.suppress(LookupError, AttributeError, drgn.FaultError):
        return decode(device.bdev.bd_disk.disk_name.string_())
    return ""


def _used(store: Object) -> int | None:
    """Return the allocated sectors of an exception store; None where its type is unknown."""
    with contextlib.suppress(LookupError, drgn.FaultError):
        name = name_at(store.type.name)
        if name.startswith("N"):
            return int(cast("struct transient_c *", store.context).next_free)
        if name.startswith("P"):
            return int(cast("struct pstore *", store.context).next_free) * int(store.chunk_size)
    return None
