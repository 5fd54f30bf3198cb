# SPDX-License-Identifier: LGPL-2.1-or-later
"""Snapshots: what they copy, what they have copied, and who waits until they may copy more."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

import drgn
import numpy as np
from drgn import Object, Program, cast

from kcensus.engine.chase import Damage, chase, circular, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.dm.devices import MappedDevice, name_at, text

TARGETS = ("snapshot", "snapshot-merge")
_MAX_WAITERS = 1 << 20
_MAX_EXCEPTIONS = 1 << 24
"""In one bucket of a table: more is damage."""
_MAX_BUCKETS = 1 << 22
"""Of a table, which takes 2 MiB at most: more is damage."""


class Limit(enum.Enum):
    """What keeps a snapshot from copying too much at once."""

    NONE = "none"
    """Nothing, up to 4.20."""
    SEMAPHORE = "semaphore"
    """``cow_count``, 5.0 to 5.3: it can deadlock, since one waits for it with locks held."""
    IN_PROGRESS = "in_progress"
    """A count, and a queue to wait in without locks, since 5.4."""


def limit_mechanism(prog: Program) -> Limit:
    """Which of them this kernel has, by the members of its snapshots.

    :raises LookupError: ``dm_snapshot`` has no debug info here
    """
    type_ = prog.type("struct dm_snapshot")
    # b21555786f18 (5.4) replaced the semaphore of 721b1d98fb51 (5.0); both were backported.
    if type_.has_member("in_progress"):
        return Limit.IN_PROGRESS
    return Limit.SEMAPHORE if type_.has_member("cow_count") else Limit.NONE


def cow_threshold(prog: Program) -> int | None:
    """``snapshot_cow_threshold``; None where this kernel has no such parameter.

    :raises drgn.FaultError: it cannot be read
    """
    try:
        return int(prog["cow_threshold"])
    except (LookupError, drgn.ObjectAbsentError):
        return None


UNLIMITED = (1 << 31) - 1
"""A threshold from here on lets everything through: nothing makes that many copies at once."""


@dataclass(frozen=True)
class Waiter:
    """A task that waits for copies to finish."""

    pid: int
    comm: str


@dataclass(frozen=True)
class Snapshot:
    """One ``struct dm_snapshot``."""

    address: int
    device: MappedDevice
    target: str
    """Name of its target's type."""
    origin: str
    """``major:minor``"""
    origin_disk: str
    """Name of the disk it is on; empty if that cannot be read."""
    cow: str
    """``major:minor``"""
    store: str
    """``P`` if it survives a reboot, ``N`` if not."""
    chunk_sectors: int
    valid: bool
    overflowed: bool
    active: bool
    in_flight: int | None
    """Copies in progress as the snapshot counts them; None where it does not."""
    pending: int
    """``pending_exceptions_count``"""
    exceptions: int
    """In its table of completed ones."""
    pending_in_table: int
    used_sectors: int | None
    """Of the COW device, as ``dmsetup status`` has it; None for a store nobody knows."""
    client: int
    """Address of its ``struct dm_kcopyd_client``."""
    waiters: tuple[Waiter, ...]


@dataclass
class Snapshots:
    """All snapshots, in the order of their devices."""

    all: list[Snapshot] = field(default_factory=list)
    damaged: int = 0
    """Snapshots that could not be read, and lists of theirs that were cut short."""
    faults: Faults = field(default_factory=Faults)


def snapshots(memory: Memory, devices: Iterable[MappedDevice], threshold: int | None) -> Snapshots:
    """The snapshots among mapped devices.

    :raises LookupError: ``dm_snapshot`` has no debug info here
    """
    found = Snapshots()
    type_ = memory.prog.type("struct dm_snapshot *")
    limit = limit_mechanism(memory.prog)
    for device in devices:
        for target in device.targets:
            if target.type_name not in TARGETS:
                continue
            snapshot = Object(memory.prog, type_, value=target.private)
            try:
                found.all.append(
                    _snapshot(memory, snapshot, device, target.type_name, limit, threshold, found)
                )
            except drgn.FaultError:
                found.damaged += 1
    return found


def _snapshot(
    memory: Memory,
    snapshot: Object,
    device: MappedDevice,
    target: str,
    limit: Limit,
    threshold: int | None,
    found: Snapshots,
) -> Snapshot:
    in_flight: int | None = None
    waiters: tuple[Waiter, ...] = ()
    if limit is Limit.IN_PROGRESS:
        in_flight = int(snapshot.in_progress)
        waiters = _queue(memory, snapshot.in_progress_wait, found)
    elif limit is Limit.SEMAPHORE:
        # It counts down from what the threshold was when the snapshot was made.
        if threshold is not None:
            start = threshold if 0 < threshold < UNLIMITED else UNLIMITED
            in_flight = max(start - int(snapshot.cow_count.count), 0)
        waiters = _semaphore(memory, snapshot.cow_count, found)
    store = snapshot.store
    return Snapshot(
        address=int(snapshot.value_()),
        device=device,
        target=target,
        origin=text(snapshot.origin.name.string_()),
        origin_disk=_disk(snapshot.origin),
        cow=text(snapshot.cow.name.string_()),
        store=name_at(store.type.name),
        chunk_sectors=int(store.chunk_size),
        valid=bool(snapshot.valid),
        # Not yet in the oldest kernels.
        overflowed=bool(getattr(snapshot, "snapshot_overflowed", 0)),
        active=bool(snapshot.active),
        in_flight=in_flight,
        pending=int(snapshot.pending_exceptions_count.counter),
        exceptions=_entries(memory, snapshot.complete, found),
        pending_in_table=_entries(memory, snapshot.pending, found),
        used_sectors=_used(store),
        client=int(snapshot.kcopyd_client),
        waiters=waiters,
    )


def _disk(device: Object) -> str:
    try:
        return text(device.bdev.bd_disk.disk_name.string_())
    except (LookupError, AttributeError, drgn.FaultError):
        return ""


def _used(store: Object) -> int | None:
    """What the store says it has allocated; None for an invalid or unknown one."""
    try:
        name = name_at(store.type.name)
        if name.startswith("N"):
            return int(cast("struct transient_c *", store.context).next_free)
        if name.startswith("P"):
            return int(cast("struct pstore *", store.context).next_free) * int(store.chunk_size)
    except (LookupError, drgn.FaultError):
        pass
    return None


def _entries(memory: Memory, table: Object, found: Snapshots) -> int:
    """Exceptions in a hash table: all its buckets are followed together."""
    buckets = int(table.hash_mask) + 1
    if not table.table or buckets > _MAX_BUCKETS:
        found.damaged += buckets > _MAX_BUCKETS
        return 0
    head = table.table.type_.type
    size = drgn.sizeof(head)
    name = head.type_name()
    addresses = np.uint64(table.table.value_()) + np.arange(buckets, dtype=np.uint64) * np.uint64(
        size
    )
    # A bucket was a list_head in older kernels, had a lock in its pointer (hlist_bl_head) in 5.10
    # to 6.12, and has it beside the pointer (dm_hlist_head) in 7.3.
    ends: Words | None = None
    if name == "struct list_head":
        first, ends = layout(memory.prog, head, {"first": "next"}), addresses
    else:
        first = layout(memory.prog, head, {"first": ("first", "head.first")})
    starts = gather(memory, addresses, first, found.faults)
    heads = starts["first"].astype(np.uint64) & ~np.uint64(1)
    member = memory.prog.type("struct dm_exception").member("hash_list").type
    link = layout(memory.prog, member, ["next"])
    damage = Damage()
    step = pointer_step(memory, link, "next", found.faults)
    counted = sum(
        len(nodes)
        for _, nodes in chase(heads, step, limit=_MAX_EXCEPTIONS, damage=damage, ends=ends)
    )
    found.damaged += damage.lists + int((~starts.readable).sum())
    return counted


def _queue(memory: Memory, queue: Object, found: Snapshots) -> tuple[Waiter, ...]:
    """Tasks on a wait queue."""
    # 4.13 renamed the struct and its members.
    try:
        head, type_, member = queue.head, "struct wait_queue_entry", "entry"
        memory.prog.type(type_)
    except (AttributeError, LookupError):
        head, type_, member = queue.task_list, "struct __wait_queue", "task_list"
    return _tasks(memory, head, type_, member, "private", found)


def _semaphore(memory: Memory, semaphore: Object, found: Snapshots) -> tuple[Waiter, ...]:
    """Tasks on a semaphore."""
    head, type_ = semaphore.wait_list, "struct semaphore_waiter"
    return _tasks(memory, head, type_, "list", "task", found)


def _tasks(
    memory: Memory, head: Object, type_name: str, link: str, task: str, found: Snapshots
) -> tuple[Waiter, ...]:
    prog = memory.prog
    type_ = prog.type(type_name)
    back = np.uint64(drgn.offsetof(type_, link))
    place = int(head.address_of_().value_())
    nodes, torn = circular(memory, place, found.faults, limit=_MAX_WAITERS)
    found.damaged += torn
    read = gather(memory, nodes - back, layout(prog, type_, {"task": task}), found.faults)
    members = layout(prog, "struct task_struct", ["pid", "comm"])
    tasks = gather(memory, read["task"], members, found.faults)
    return tuple(
        Waiter(int(pid), text(bytes(comm).split(b"\0")[0]))
        for pid, comm, readable in zip(
            tasks["pid"].tolist(), tasks["comm"].tolist(), tasks.readable.tolist(), strict=True
        )
        if readable
    )
