# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holders of locks, as far as the locks themselves name them.

A mutex and a writer's rwsem name their owner. Readers are counted, and only the last one to come is
named, even after it has gone. A percpu_rw_semaphore names only a writer that waits for readers, and
a semaphore only its last holder, if any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import drgn
import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import Gathered, gather, gather_words
from kcensus.engine.layout import Path, layout, number_dtype
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.engine.tags import untagged
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import RW_LOCK

_MUTEX_FLAGS = np.uint64(7)
"""MUTEX_FLAG_WAITERS, _HANDOFF and _PICKUP; of an rwsem, RWSEM_READER_OWNED and _NONSPINNABLE."""
_PICKUP = np.uint64(4)
"""MUTEX_FLAG_PICKUP: the mutex was handed over to its first waiter, which has yet to run.

Since Linux kernel commit e274795ea7b7 ("locking/mutex: Fix mutex handoff") (in v4.11).
"""
HANDED_OVER = "mutex.owner: handed over"
"""Evidence of a hand-over: a task that still waits for the mutex does not hold it."""
_READER_OWNED = np.uint64(1)
_WRITER_LOCKED = np.uint64(1)
_READER_SHIFT = np.uint64(8)
_READERS = np.uint64((1 << 55) - 1)
"""Bits of the count of readers: above them is RWSEM_FLAG_READFAIL."""
_ACTIVE = np.uint64((1 << 32) - 1)
"""RWSEM_ACTIVE_MASK on 64-bit machines."""
RT_OWNER = ~np.uint64(1)
"""Without RT_MUTEX_HAS_WAITERS."""
RT_WRITER = 1 << 30
"""WRITER_BIAS of a PREEMPT_RT rwsem; READER_BIAS is the sign bit."""


class Strength(IntEnum):
    """Certainty of an edge."""

    POSSIBLE = 1
    """A hint: a word on a stack, the last reader."""
    DERIVED = 2
    """A consequence of functions on stacks, or of the tasks that could act."""
    PROVEN = 3
    """A pointer in the kernel."""


class Mode(Enum):
    """Mode of a lock."""

    NONE = ""
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class Holders:
    """Tasks that hold locks, as columns: a row per lock and task."""

    lock: Lanes
    """Index of the lock in the given addresses."""
    task: Words
    """``struct task_struct *``."""
    mode: list[Mode]
    strength: Numbers
    """:class:`Strength`."""
    evidence: list[str]
    """The member that names the task."""
    place: Words
    """Address of the member."""
    readers: Numbers
    """Number of readers of each lock; -1 if unknown, and for locks without readers."""
    is_held: Mask
    """Whether each lock is held; true if unknown."""
    is_write: Mask
    """Whether a writer holds each lock, or keeps new readers out."""
    faults: Faults = field(default_factory=Faults)


class _Rows:
    def __init__(self, count: int) -> None:
        self.parts: list[tuple[Lanes, Words, Mode, Strength, str, Words]] = []
        self.readers = np.full(count, -1)
        self.is_held = np.ones(count, np.bool_)
        self.is_write = np.zeros(count, np.bool_)

    def add(
        self,
        held: Mask,
        task: Words,
        evidence: str,
        place: Words,
        mode: Mode = Mode.NONE,
        strength: Strength = Strength.PROVEN,
    ) -> None:
        """Add the tasks of the locks in ``held``."""
        lock = np.flatnonzero(held)
        self.parts.append((lock, task[lock], mode, strength, evidence, place[lock]))

    def note(self, readable: Mask, readers: Numbers, is_write: Mask, is_held: Mask) -> None:
        """Note the states of the readable locks."""
        self.readers[readable] = readers[readable]
        self.is_write[readable] = is_write[readable]
        self.is_held[readable] = is_held[readable]

    def holders(self, faults: Faults, tag: int) -> Holders:
        none, empty = np.empty(0, np.int64), np.empty(0, np.uint64)
        task = np.concatenate([empty, *(part[1] for part in self.parts)])
        return Holders(
            lock=np.concatenate([none, *(part[0] for part in self.parts)]),
            task=untagged(task, tag),
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
    """Return the holders of each lock of a type, as far as the locks name them.

    :param type_name: C type, such as ``struct mutex``; other types than locks have no holders
    :param locks: addresses
    :raises LookupError: the debug info lacks the type or a member
    """
    rows, faults = _Rows(len(locks)), Faults()
    read = _READERS_OF.get(type_name)
    if read is not None and len(locks):
        read(kernel, locks, rows, faults)
    return rows.holders(faults, kernel.memory.tag)


def _read(
    kernel: Kernel,
    type_: drgn.Type | str,
    locks: Words,
    members: Mapping[str, Path],
    faults: Faults,
    optional: Mapping[str, Path] | None = None,
) -> tuple[Gathered, dict[str, Words]]:
    fields = layout(kernel.prog, type_, members, optional)
    read = gather(kernel.memory, locks, fields, faults)
    places = {name: locks + np.uint64(each.offset) for name, each in fields.fields.items()}
    return read, places


def _mutexes(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    # Since Linux kernel commit 3ca0ff571b09 ("locking/mutex: Rework mutex::owner") (in v4.10), the
    # owner has flags in its lowest bits; before, it is a pointer, present with CONFIG_SMP. With
    # PREEMPT_RT, the mutex has an rt_mutex, in mainline since commit bb630f9f7a7d
    # ("locking/rtmutex: Add mutex variant for RT") (in v5.15): `rtmutex`; before, `lock`.
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
        rows.add((owner != 0) & mask, owner, proof, places["owner"])


def _rt_mutexes(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    type_ = kernel.prog.type("struct rt_mutex_waiter").member("lock").type.type
    read, places = _read(kernel, type_, locks, {"owner": ("owner", "rtmutex.owner")}, faults)
    owner = read["owner"] & RT_OWNER
    rows.is_held[read.readable] = owner[read.readable] != 0
    rows.add(owner != 0, owner, "rt_mutex.owner", places["owner"])


def _rwsems(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    type_ = kernel.prog.type("struct rw_semaphore")
    if type_.has_member("rwbase"):
        _rt_rwlocks(kernel, locks, rows, faults, "struct rw_semaphore", "rwbase.")
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
        # The lower half counts active tasks: a writer, or readers. Waiters make it negative.
        active = (count & _ACTIVE).astype(np.int64)
        is_write = (active > 0) & (task != 0) & ~is_reader
        readers = np.where(is_write, 0, active)
    rows.note(read.readable, readers, is_write, is_write | (readers > 0))
    proof, place = "rw_semaphore.owner", places.get("owner", locks)
    named = (task != 0) & read.readable
    rows.add(is_write & named & ~is_reader, task, proof, place, Mode.WRITE)
    # The last reader to come stays noted after its release.
    last, proof = named & is_reader, f"{proof}: last reader"
    rows.add(last & (readers == 1), task, proof, place, Mode.READ, Strength.DERIVED)
    rows.add(last & (readers > 1), task, proof, place, Mode.READ, Strength.POSSIBLE)


def _rt_rwlocks(
    kernel: Kernel,
    locks: Words,
    rows: _Rows,
    faults: Faults,
    type_: str = RW_LOCK,
    inside: str = "",
) -> None:
    """Read rwlocks or rwsems of PREEMPT_RT: a count of readers, and an rt_mutex of the writer."""
    members = {"readers": f"{inside}readers.counter", "owner": f"{inside}rtmutex.owner"}
    read, places = _read(kernel, type_, locks, members, faults)
    value = read["readers"].astype(np.int64) & 0xFFFFFFFF
    owner = read["owner"] & RT_OWNER
    is_write = value == RT_WRITER
    # A writer that waits for readers to leave holds the rt_mutex, too, and took the bias away.
    draining = (value & (1 << 31)) == 0
    count = np.where(is_write, 0, value & (RT_WRITER - 1))
    is_held = is_write | (count > 0) | (owner != 0)
    rows.note(read.readable, count, is_write | draining, is_held)
    name = "rw_semaphore" if inside else "rwlock_t"
    known, proof = (owner != 0) & (is_write | draining), f"{name}.rwbase.rtmutex.owner"
    rows.add(known & read.readable, owner, proof, places["owner"], Mode.WRITE)


def _semaphores(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    # Since Linux kernel commit 194a9b9e843b ("hung_task: show the blocker task if the task is hung
    # on semaphore") (in v6.16), with CONFIG_DETECT_HUNG_TASK_BLOCKER.
    optional = {"last": "last_holder"}
    read, places = _read(kernel, "struct semaphore", locks, {"count": "count"}, faults, optional)
    rows.is_held[read.readable] = (read["count"] == 0)[read.readable]
    if "last" not in read.columns:
        return
    # A semaphore may have several holders, and up() of another task leaves the last one noted: a
    # thread woken up with up() is its own last holder as long as it sleeps.
    task = read["last"].astype(np.uint64)
    known, proof = (task != 0) & (read["count"] == 0), "semaphore.last_holder"
    rows.add(known, task, proof, places["last"], strength=Strength.POSSIBLE)


def _percpu_rwsems(kernel: Kernel, locks: Words, rows: _Rows, faults: Faults) -> None:
    optional = {
        "writer": "writer.task",
        # Since Linux kernel commit 7f26482a872c ("locking/percpu-rwsem: Remove the embedded rwsem")
        # (in v5.7), `block` marks a writer; before, the writer owns rw_sem.
        "block": "block.counter",
        # Before v4.8 (commit not verified), only rw_sem marks it, and before v4.3 (not verified)
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
    by_owner, proof = (owner != 0) & is_owned, "percpu_rw_semaphore.rw_sem.owner"
    rows.add(by_owner & blocked, owner, proof, places.get("owner", locks), Mode.WRITE)
    # The last reader to leave wakes the writer that waits.
    lost = np.count_nonzero((draining != 0) & (rows.readers == 0))
    faults.add("writers wait for readers that are not counted", lost)
    # A writer that waits for the readers to leave already keeps new ones out.
    waits, proof = (draining != 0) & ~by_owner, "percpu_rw_semaphore.writer"
    rows.add(waits & blocked, draining, proof, places.get("writer", locks), Mode.WRITE)


def _inside(kernel: Kernel, counters: Words, faults: Faults) -> Numbers:
    """Return the number of readers: the sum of the counters of all possible CPUs."""
    total = np.zeros(len(counters), np.int64)
    word = number_dtype(kernel.prog, "u4")
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
    RW_LOCK: _rt_rwlocks,
    "struct semaphore": _semaphores,
    "struct percpu_rw_semaphore": _percpu_rwsems,
}
LOCK_TYPES = frozenset(_READERS_OF)
"""C types supported by :func:`holders`."""
