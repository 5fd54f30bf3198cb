# SPDX-License-Identifier: LGPL-2.1-or-later
"""dm-snapshot: copies in flight, exceptions, and tasks waiting for the limit of copies."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

import drgn
import numpy as np
from drgn import Object, Program, cast

from kcensus.engine.chase import Damage, collect, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.dm.devices import DmTarget, MappedDevice
from kcensus.kernel.lists import before, in_order, list_members
from kcensus.kernel.names import MISSING, decode, decode_array, name_at

TARGETS = ("snapshot", "snapshot-merge")
_MAX_MEMBERS = 1 << 20
"""Most waiting tasks, snapshots of an origin, or origins with the same hash."""
_ORIGIN_HASH_SIZE = 256
_MAX_EXCEPTIONS = 1 << 24
_MAX_BUCKETS = 1 << 22
"""Most buckets: the exception table takes at most 2 MiB."""


class Limit(enum.Enum):
    """Mechanism that limits the copies of a snapshot."""

    NONE = "none"
    SEMAPHORE = "semaphore"
    """``cow_count``; it can deadlock, since tasks wait for it with locks held."""
    IN_PROGRESS = "in_progress"
    """A counter, and a wait queue for tasks without locks."""


def limit_mechanism(prog: Program) -> Limit:
    """Return the mechanism that limits copies in this kernel.

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
    """Return ``snapshot_cow_threshold``, or None; raise drgn.FaultError if unreadable."""
    try:
        return int(prog["cow_threshold"])
    except (LookupError, drgn.ObjectAbsentError):
        return None


UNLIMITED = (1 << 31) - 1
"""The smallest threshold beyond any number of copies."""


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
    origin: str
    """``major:minor``"""
    origin_disk: str
    """Name of the origin's disk, or empty."""
    cow: str
    """``major:minor``"""
    store: str
    """``P`` (persistent) or ``N`` (transient)."""
    chunk_sectors: int | None
    """Sectors of a chunk; None if the members of the store contradict each other."""
    valid: bool
    overflowed: bool
    in_flight: int | None
    """``in_progress``: copies in flight; None if the kernel lacks it."""
    available: int | None
    """``cow_count.count``: further copies that the semaphore admits; None without it."""
    pending: int
    exceptions: int
    """Completed exceptions in the table."""
    pending_in_table: int
    used_sectors: int | None
    """Used sectors of the COW device, as in ``dmsetup status``; None for an unknown type."""
    client: int
    waiters: tuple[Waiter, ...]

    @property
    def state(self) -> str:
        """``valid``, ``invalid`` or ``overflowed``."""
        return "invalid" if not self.valid else "overflowed" if self.overflowed else "valid"

    @property
    def chunk_bytes(self) -> int | None:
        return None if self.chunk_sectors is None else self.chunk_sectors * 512

    @property
    def used_bytes(self) -> int | None:
        return None if self.used_sectors is None else self.used_sectors * 512


@dataclass
class Snapshots:
    """All snapshots, in the order of their devices."""

    all: list[Snapshot] = field(default_factory=list)
    registered: int | None = None
    """Snapshots in the hash table of origins, inactive tables included; None if unreadable."""
    damaged: int = 0
    """Unreadable or inconsistent snapshots, and their torn lists."""


def snapshots(memory: Memory, devices: Iterable[MappedDevice], *, live: bool = False) -> Snapshots:
    """Return the snapshots among ``devices``.

    :param live: whether lists may change while they are read
    :raises LookupError: ``dm_snapshot`` has no debug info
    """
    reader = _Reader(memory, verify=not live)
    for device in devices:
        for target in device.targets:
            if target.type_name in TARGETS:
                try:
                    reader.snapshots.all.append(reader.snapshot(device, target))
                except drgn.FaultError:
                    reader.snapshots.damaged += 1
    with contextlib.suppress(*MISSING):
        reader.snapshots.registered = reader.registered()
    return reader.snapshots


class _Reader:
    def __init__(self, memory: Memory, *, verify: bool) -> None:
        self.memory = memory
        self.prog = memory.prog
        self.verify = verify
        self.limit = limit_mechanism(self.prog)
        self.snapshots = Snapshots()
        self.faults = Faults()

    def snapshot(self, device: MappedDevice, target: DmTarget) -> Snapshot:
        snapshot = Object(self.prog, "struct dm_snapshot *", value=target.private)
        in_flight, available, waiters = self._copies(snapshot)
        store = snapshot.store
        return Snapshot(
            address=target.private,
            device=device,
            target=target.type_name,
            origin=decode(snapshot.origin.name.string_()),
            origin_disk=_disk(snapshot.origin),
            cow=decode(snapshot.cow.name.string_()),
            store=name_at(store.type.name),
            chunk_sectors=self._chunk(store),
            valid=bool(snapshot.valid),
            # Since Linux kernel commit "dm snapshot: don't invalidate on-disk image on snapshot
            # write overflow" (commit not verified).
            overflowed=bool(getattr(snapshot, "snapshot_overflowed", 0)),
            in_flight=in_flight,
            available=available,
            pending=int(snapshot.pending_exceptions_count.counter),
            exceptions=self._entries(snapshot.complete),
            pending_in_table=self._entries(snapshot.pending),
            used_sectors=_used(store),
            client=int(snapshot.kcopyd_client),
            waiters=waiters,
        )

    def _chunk(self, store: Object) -> int | None:
        """Return the size of a chunk in sectors, a power of two; None if it is impossible."""
        sectors, mask, shift = (
            int(store.member_(f"chunk_{name}")) for name in ("size", "mask", "shift")
        )
        if sectors == mask + 1 and mask.bit_length() == shift and not sectors & mask:
            return sectors
        self.snapshots.damaged += 1
        return None

    def _copies(self, snapshot: Object) -> tuple[int | None, int | None, tuple[Waiter, ...]]:
        """Return ``in_flight``, ``available`` and ``waiters`` of a snapshot."""
        if self.limit is Limit.IN_PROGRESS:
            queue = snapshot.in_progress_wait
            # Since Linux kernel commits ac6424b981bc ("sched/wait: Rename wait_queue_t =>
            # wait_queue_entry_t") and 2055da97389a ("sched/wait: Disambiguate wq_entry->task_list
            # and wq_head->task_list naming") (in v4.13).
            path = ("head", "struct wait_queue_entry", "entry")
            if not hasattr(queue, "head"):
                path = ("task_list", "struct __wait_queue", "task_list")
            return int(snapshot.in_progress), None, self._tasks(queue, *path, "private")
        if self.limit is Limit.NONE:
            return None, None, ()
        path = ("wait_list", "struct semaphore_waiter", "list")
        semaphore = snapshot.cow_count
        return None, int(semaphore.count), self._tasks(semaphore, *path, "task")

    def registered(self) -> int:
        size = np.uint64(drgn.sizeof(self.prog.type("struct list_head")))
        first = np.uint64(self.prog["_origins"].value_())
        heads = first + size * np.arange(_ORIGIN_HASH_SIZE, dtype=np.uint64)
        origin = self.prog.type("struct origin")
        nodes = self._members(heads) - np.uint64(drgn.offsetof(origin, "hash_list"))
        return len(self._members(nodes + np.uint64(drgn.offsetof(origin, "snapshots"))))

    def _members(self, heads: Words) -> Words:
        _, nodes, torn = list_members(
            self.memory, heads, self.faults, limit=_MAX_MEMBERS, verify=self.verify
        )
        self.snapshots.damaged += len(torn)
        return nodes

    def _entries(self, table: Object) -> int:
        buckets = int(table.hash_mask) + 1
        if not table.table or buckets > _MAX_BUCKETS or buckets & (buckets - 1):
            self.snapshots.damaged += 1
            return 0
        head = table.table.type_.type
        steps = np.arange(buckets, dtype=np.uint64) * np.uint64(drgn.sizeof(head))
        addresses = np.uint64(table.table.value_()) + steps
        # Since Linux kernel commit f79ae415b64c ("dm snapshot: Make exception tables scalable") (in
        # v5.2), a bucket is a hlist_bl_head, with a lock bit in its pointer, not a list_head. Since
        # Linux kernel commit 8581b19eb2c5 ("dm-snapshot: fix 'scheduling while atomic' on real-time
        # kernels") (in v6.19), it is a dm_hlist_head.
        is_circular = head.type_name() == "struct list_head"
        path = "next" if is_circular else ("first", "head.first")
        members = layout(self.prog, head, {"node": path})
        # An empty hlist is zero.
        first = gather(self.memory, addresses, members, self.faults, may_be_zero=not is_circular)
        node = self.prog.type("struct dm_exception").member("hash_list").type
        link = layout(self.prog, node, {"next": "next", "back": ("prev", "pprev")})
        heads, damage = first["node"].astype(np.uint64) & ~np.uint64(1), Damage()
        step = pointer_step(self.memory, link, "next", self.faults)
        ends = addresses if is_circular else None
        lanes, nodes = in_order(
            *collect(heads, step, limit=_MAX_EXCEPTIONS, damage=damage, ends=ends)
        )
        torn = damage.lanes()
        if self.verify:
            # pprev points to the next of the node before it, its first member, or to the head's.
            starts = addresses + np.uint64(members.fields["node"].offset)
            back = gather(self.memory, nodes, link, self.faults)["back"]
            torn = np.union1d(torn, lanes[back != before(lanes, nodes, starts)])
        self.snapshots.damaged += len(torn) + int((~first.readable).sum())
        return len(lanes)

    def _tasks(
        self, queue: Object, head: str, type_name: str, link: str, task: str
    ) -> tuple[Waiter, ...]:
        type_ = self.prog.type(type_name)
        address = int(queue.member_(head).address_of_().value_())
        nodes = self._members(np.array([address], np.uint64))
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
    with contextlib.suppress(LookupError, drgn.FaultError):
        name = name_at(store.type.name)
        if name.startswith("N"):
            return int(cast("struct transient_c *", store.context).next_free)
        if name.startswith("P"):
            return int(cast("struct pstore *", store.context).next_free) * int(store.chunk_size)
    return None
