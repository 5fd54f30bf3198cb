# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds locks, as far as the locks themselves say.

A mutex and a writer's rwsem name their owner. Readers are counted, and only the last one to come is
named, even after it has gone. A percpu_rw_semaphore and a semaphore name no task, or only who waits
for the readers, or who came last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import Gathered, gather, gather_words
from kcensus.engine.layout import Path, layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.kernel.kernel import Kernel

Numbers = npt.NDArray[np.int64]

_MUTEX_FLAGS = np.uint64(7)
"""MUTEX_FLAG_WAITERS, _HANDOFF and _PICKUP; of an rwsem, RWSEM_READER_OWNED and _NONSPINNABLE."""
_PICKUP = np.uint64(4)
"""MUTEX_FLAG_PICKUP: who unlocked the mutex gave it to the first waiter, which has yet to run.

Since v4.11 (commit not verified).
"""
HANDED_OVER = "mutex.owner: handed over"
"""Evidence of that: a task that still waits for the mutex does not hold it."""
_READER_OWNED = np.uint64(1)
_WRITER_LOCKED = np.uint64(1)
_READER_SHIFT = np.uint64(8)
_READERS = np.uint64((1 << 55) - 1)
"""Bits of the count of readers: above them is RWSEM_FLAG_READFAIL."""
_ACTIVE = np.uint64((1 << 32) - 1)
"""RWSEM_ACTIVE_MASK on 64-bit machines."""
_RT_OWNER = ~np.uint64(1)
"""Without RT_MUTEX_HAS_WAITERS."""
_RT_WRITER = 1 << 30
"""WRITER_BIAS of a PREEMPT_RT rwsem; READER_BIAS is the sign bit."""


class Strength(IntEnum):
    """How sure an edge is."""

    POSSIBLE = 1
    """Something hints at it: a word on a stack, the last reader."""
    DERIVED = 2
    """It follows from what functions do, or from who could act."""
    PROVEN = 3
    """A pointer in the kernel says so."""


class Mode(Enum):
    """How a lock is held."""

    NONE = ""
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class Holders:
    """Tasks that hold locks, as columns: a row per lock and task."""

    lock: Lanes
    """Index of the lock in what was asked for."""
    task: Words
    """``struct task_struct *``."""
    mode: list[Mode]
    strength: Numbers
    """:class:`Strength`."""
    evidence: list[str]
    """The member that says so."""
    place: Words
    """Where this member is."""
    readers: Numbers
    """Per lock: how many readers hold it; -1 if it has none or that is unknown."""
    is_held: Mask
    """Per lock: whether it is held at all; true where that is unknown."""
    is_write: Mask
    """Per lock: whether a writer holds it, or keeps new readers out."""
    faults: Faults = field(default_factory=Faults)


class _Rows:
    def __init__(self, count: int) -> None:
        self.parts: list[tuple[Lanes, Words, Mode, Strength, str, Words]] = []
        self.readers = np.full(count, -1)
        self.is_held = np.ones(count, np.bool_)
        self.is_write = np.zeros(count, np.bool_)

    def add(
        self,
        lock: Lanes,
        task: Words,
        mode: Mode,
        strength: Strength,
        evidence: str,
        place: Words,
    ) -> None:
        self.parts.append((lock, task, mode, strength, evidence, place))

    def holders(self, faults: Faults) -> Holders:
        none, empty = np.empty(0, np.int64), np.empty(0, np.uint64)
        return Holders(
            lock=np.concatenate([none, *(part[0] for part in self.parts)]),
            task=np.concatenate([empty, *(part[1] for part in self.parts)]),
            mode=[part[2] for part in self.parts for _ in part[0]],
            strength=np.concatenate(
                [none, *(np.full(len(part[0]), int(part[3])) for part in self.parts)]
            ),
            evidence=[part[4] for part in self.parts for _ in part[0]],
            place=np.concatenate([empty, *(part[5] for part in self.parts)]),
            readers=self.readers,
            is_held=self.is_held,
            is_write=self.is_write,
            faults=faults,
        )


def holders(kernel: Kernel, type_name: str, locks: Words) -> Holders:
    """Return who holds each lock of a type, as far as the locks say.

    :param type_name: C type, such as ``struct mutex``; of others than locks nothing is known
    :param locks: addresses
    :raises LookupError: the debug info lacks the type or a member
    """
    rows, faults = _Rows(len(locks)), Faults()
    read = _READERS_OF.get(type_name)
    if read is not None and len(locks):
        read(kernel, locks, rows, faults)
    return rows.holders(faults)


def _read(
    kernel: Kernel,
    type_: drgn.Type | str,
    locks: Words,
    members: Mapping[str, Path],
    faults: Faults,
    optional: Mapping[str, Path] | None = None,
) -> tuple[Gathered, dict[str, Words]]:
    """Return members of locks, and where each member is."""
    fields = layout(kernel.prog, type_, members, optional)
    read = gather(kernel.memory, locks, fields, faults)
    places = {name: locks + np.uint64(each.offset) for name, each in fields.fields.items()}
    return read, places


def _mutexes(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    # Since Linux kernel commit 3ca0ff571b09 ("locking/mutex: Rework mutex::owner") (in v4.10), the
    # owner has flags in its lowest bits; before, it is a pointer, and there with CONFIG_SMP. With
    # PREEMPT_RT, the mutex has an rt_mutex: `lock` before v5.15 (commit not verified).
    members = {"owner": ("owner.counter", "owner", "rtmutex.owner", "lock.owner")}
    read, places = _read(kernel, "struct mutex", locks, members, faults)
    type_ = kernel.prog.type("struct mutex")
    inner = next((name for name in ("rtmutex", "lock") if type_.has_member(name)), "")
    word = read["owner"].astype(np.uint64)
    owner = word & ~_MUTEX_FLAGS
    rows.is_held[read.readable] = owner[read.readable] != 0
    name = f"mutex.{inner}.owner" if inner else "mutex.owner"
    is_handed = (word & _PICKUP) != 0
    for mask, proof in ((~is_handed, name), (is_handed, HANDED_OVER)):
        known = np.flatnonzero((owner != 0) & mask)
        rows.add(known, owner[known], Mode.NONE, Strength.PROVEN, proof, places["owner"][known])


def _rt_mutexes(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    type_ = kernel.prog.type("struct rt_mutex_waiter").member("lock").type.type
    read, places = _read(kernel, type_, locks, {"owner": ("owner", "rtmutex.owner")}, faults)
    owner = read["owner"] & _RT_OWNER
    known = np.flatnonzero(owner)
    rows.is_held[read.readable] = owner[read.readable] != 0
    proof = "rt_mutex.owner"
    rows.add(known, owner[known], Mode.NONE, Strength.PROVEN, proof, places["owner"][known])


def _rwsems(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    type_ = kernel.prog.type("struct rw_semaphore")
    if type_.has_member("rwbase"):
        _rt_rwsems(kernel, locks, rows, faults)
        return
    members = {"count": ("count.counter", "count")}
    read, places = _read(
        kernel, type_, locks, members, faults, {"owner": ("owner.counter", "owner")}
    )
    count = read["count"].astype(np.int64).view(np.uint64)
    owner = read.columns.get("owner", np.zeros(len(locks), np.uint64)).astype(np.uint64)
    task, is_reader = owner & ~_MUTEX_FLAGS, (owner & _READER_OWNED) != 0
    # Since Linux kernel commit 94a9717b3c40 ("locking/rwsem: Make rwsem->owner an atomic_long_t")
    # (in v5.3), and 64489e78004c of the same release, a bit of the count is the writer's.
    if type_.has_member("owner") and type_.member("owner").type.kind != drgn.TypeKind.POINTER:
        is_write = (count & _WRITER_LOCKED) != 0
        readers = ((count >> _READER_SHIFT) & _READERS).astype(np.int64)
    else:
        # The lower half counts who is active: a writer, or readers. Waiters make it negative.
        active = (count & _ACTIVE).astype(np.int64)
        is_write = (active > 0) & (task != 0) & ~is_reader
        readers = np.where(is_write, 0, active)
    rows.readers[read.readable] = readers[read.readable]
    rows.is_write[read.readable] = is_write[read.readable]
    rows.is_held[read.readable] = (is_write | (readers > 0))[read.readable]
    place = places.get("owner", locks)
    writer = np.flatnonzero(is_write & (task != 0) & ~is_reader & read.readable)
    proof = "rw_semaphore.owner"
    rows.add(writer, task[writer], Mode.WRITE, Strength.PROVEN, proof, place[writer])
    # The last reader to come stays there when it leaves.
    last = (readers > 0) & is_reader & (task != 0) & read.readable
    for mask, strength in (
        (last & (readers == 1), Strength.DERIVED),
        (last & (readers > 1), Strength.POSSIBLE),
    ):
        lane = np.flatnonzero(mask)
        rows.add(lane, task[lane], Mode.READ, strength, f"{proof}: last reader", place[lane])


def _rt_rwsems(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    """Read the rwsems of PREEMPT_RT: a count of readers, and an rt_mutex of the writer."""
    members = {"readers": "rwbase.readers.counter", "owner": "rwbase.rtmutex.owner"}
    read, places = _read(kernel, "struct rw_semaphore", locks, members, faults)
    value = read["readers"].astype(np.int64) & 0xFFFFFFFF
    owner = read["owner"] & _RT_OWNER
    is_write = value == _RT_WRITER
    # Who waits for readers to leave holds the rt_mutex, too, and took the bias away.
    draining = (value & (1 << 31)) == 0
    count = np.where(is_write, 0, value & (_RT_WRITER - 1))
    rows.readers[read.readable] = count[read.readable]
    rows.is_write[read.readable] = (is_write | draining)[read.readable]
    rows.is_held[read.readable] = (is_write | (count > 0) | (owner != 0))[read.readable]
    known = np.flatnonzero((owner != 0) & (is_write | draining) & read.readable)
    proof = "rw_semaphore.rwbase.rtmutex.owner"
    rows.add(known, owner[known], Mode.WRITE, Strength.PROVEN, proof, places["owner"][known])


def _semaphores(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    # Since v6.16 (commit not verified), with CONFIG_DETECT_HUNG_TASK_BLOCKER.
    optional = {"last": "last_holder"}
    read, places = _read(kernel, "struct semaphore", locks, {"count": "count"}, faults, optional)
    rows.is_held[read.readable] = (read["count"] == 0)[read.readable]
    if "last" not in read.columns:
        return
    # A semaphore may have several holders, and up() of another task leaves the last one there: a
    # thread that others wake up by up() is its own last holder as long as it sleeps.
    known = np.flatnonzero((read["last"] != 0) & (read["count"] == 0))
    task, proof = read["last"][known].astype(np.uint64), "semaphore.last_holder"
    rows.add(known, task, Mode.NONE, Strength.POSSIBLE, proof, places["last"][known])


def _percpu_rwsems(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    optional = {
        "writer": "writer.task",
        # Since Linux kernel commit 7f26482a872c ("locking/percpu-rwsem: Remove the embedded rwsem")
        # (in v5.7), `block` says that there is a writer; before, it owns rw_sem.
        "block": "block.counter",
        # Before v4.8 (commit not verified), rw_sem alone says so, and before v4.3 (not verified)
        # `write_ctr` counts writers. Readers that come or leave meanwhile are counted apart.
        "readers_block": "readers_block",
        "write_ctr": "write_ctr.counter",
        "owner": ("rw_sem.owner.counter", "rw_sem.owner"),
        "counters": ("read_count", "fast_read_ctr"),
        "slow": "slow_read_ctr.counter",
    }
    read, places = _read(kernel, "struct percpu_rw_semaphore", locks, {}, faults, optional)
    columns = read.columns
    none = np.zeros(len(locks), np.uint64)
    owner = columns.get("owner", none).astype(np.uint64)
    is_owned = (owner & _READER_OWNED) == 0
    owner &= ~_MUTEX_FLAGS
    if "counters" in columns:
        rows.readers[:] = _inside(kernel, columns["counters"], faults)
        rows.readers[:] += columns.get("slow", none).astype(np.int64)
    blocked = columns.get("block", columns.get("readers_block", none)).astype(np.int64) != 0
    if "block" not in columns and "readers_block" not in columns:
        blocked = (columns.get("write_ctr", none) != 0) | ((owner != 0) & is_owned)
    rows.is_write[:] = blocked
    rows.is_held[:] = blocked | (rows.readers != 0)
    draining = columns.get("writer", none)
    by_owner = np.flatnonzero((owner != 0) & is_owned & blocked)
    proof = "percpu_rw_semaphore.rw_sem.owner"
    place = places.get("owner", locks)
    rows.add(by_owner, owner[by_owner], Mode.WRITE, Strength.PROVEN, proof, place[by_owner])
    # Who waits for the readers to leave already keeps new ones out.
    waits = np.flatnonzero((draining != 0) & blocked & ~((owner != 0) & is_owned))
    proof = "percpu_rw_semaphore.writer"
    place = places.get("writer", locks)
    rows.add(waits, draining[waits], Mode.WRITE, Strength.PROVEN, proof, place[waits])


def _inside(kernel: Kernel, counters: Words, faults: Faults) -> Numbers:
    """Return how many readers are inside: the sum of the counters of all possible CPUs."""
    total = np.zeros(len(counters), np.int64)
    word = np.dtype(np.uint32).newbyteorder(word_dtype(kernel.prog).byteorder)
    for offset in cpu_offsets(kernel.prog):
        values, _ = gather_words(kernel.memory, counters + offset, word, faults)
        total += values.astype(np.uint32).view(np.int32)
    # A reader may leave on another CPU; only the sum, modulo 2^32, counts.
    return total.astype(np.uint32).view(np.int32).astype(np.int64)


_READERS_OF = {
    "struct mutex": _mutexes,
    "struct rt_mutex": _rt_mutexes,
    "struct rt_mutex_base": _rt_mutexes,
    "struct rw_semaphore": _rwsems,
    "struct semaphore": _semaphores,
    "struct percpu_rw_semaphore": _percpu_rwsems,
}
LOCK_TYPES = frozenset(_READERS_OF)
"""C types that :func:`holders` knows."""
