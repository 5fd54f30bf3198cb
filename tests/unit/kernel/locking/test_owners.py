# SPDX-License-Identifier: LGPL-2.1-or-later
"""Owners of locks of *synthetic* kernels, in the words that locks of each era have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import HANDED_OVER, Holders, Mode, Strength, holders
from tests.unit.fakekernel import DIRECT_MAP, FakeKernel

_TASK, _OTHER = DIRECT_MAP + 0x5000_0040, DIRECT_MAP + 0x5000_8040
_WAITING, _ACTIVE = -(1 << 32), 1

_COMMON = """
struct atomic_long_t 8 : 0 long counter
struct atomic_t 4 : 0 int counter
struct rt_mutex_base 8 : 0 struct task_struct * owner
struct rcuwait 8 : 0 struct task_struct * task
struct rw_semaphore 16 : 0 struct atomic_long_t count; 8 struct task_struct * owner
"""
_ERAS = {
    "mutex of 3.10": "struct mutex 16 : 0 struct atomic_t count; 8 struct task_struct * owner",
    "mutex of 4.10": "struct mutex 16 : 0 struct atomic_long_t owner",
    "mutex of PREEMPT_RT": "struct mutex 8 : 0 struct rt_mutex_base rtmutex",
    "rwsem of 4.4": "struct rw_semaphore 16 : 0 long count; 8 struct task_struct * owner",
    "rwsem of 4.18": "",
    "rwsem of 5.3": """
struct rw_semaphore 16 : 0 struct atomic_long_t count; 8 struct atomic_long_t owner
""",
    "rwsem of PREEMPT_RT": """
struct rwbase_rt 16 : 0 struct atomic_t readers; 8 struct rt_mutex_base rtmutex
struct rw_semaphore 16 : 0 struct rwbase_rt rwbase
""",
    "rwlock of PREEMPT_RT": """
struct rwbase_rt 16 : 0 struct atomic_t readers; 8 struct rt_mutex_base rtmutex
""",
    "semaphore of 4.18": "struct semaphore 16 : 0 unsigned int count",
    "semaphore of 6.16": "struct semaphore 16 : 0 unsigned int count; 8 unsigned long last_holder",
    "percpu_rwsem of 4.18": """
struct percpu_rw_semaphore 32
    0 struct rw_semaphore rw_sem; 16 struct rcuwait writer; 24 int readers_block
""",
    "percpu_rwsem of 4.4": """
struct percpu_rw_semaphore 32
    0 struct rw_semaphore rw_sem; 16 unsigned int * fast_read_ctr; 24 struct atomic_t slow_read_ctr
""",
    "percpu_rwsem of 3.10": """
struct rw_semaphore 8 : 0 long count
struct percpu_rw_semaphore 24
    0 struct rw_semaphore rw_sem; 8 unsigned int * fast_read_ctr; 16 struct atomic_t slow_read_ctr
    20 struct atomic_t write_ctr
""",
    "percpu_rwsem of 6.12": """
struct percpu_rw_semaphore 24
    0 struct rcuwait writer; 8 struct atomic_t block; 16 unsigned int * read_count
""",
    "percpu_rwsem of 5.7": (
        "struct percpu_rw_semaphore 16 : 0 struct rcuwait writer; 8 struct atomic_t block"
    ),
}


class Lock(NamedTuple):
    k: FakeKernel
    type: str

    def holders(self, *words: int) -> Holders:
        place = self.k.alloc(self.type)
        self.k.write_words(place.address_, *(word % (1 << 64) for word in words))
        address = np.array([place.address_], np.uint64)
        found = holders(Kernel(self.k.prog), self.type, address)
        assert not found.faults
        return found


def lock_of(era: str) -> Lock:
    k = FakeKernel("6.10", _COMMON + _ERAS[era])
    name = era.split()[0]
    names = {"rwsem": "rw_semaphore", "percpu_rwsem": "percpu_rw_semaphore"}
    names["rwlock"] = "rwbase_rt"
    return Lock(k, f"struct {names.get(name, name)}")


def owner(found: Holders) -> tuple[int, Mode, Strength]:
    assert found.lock.tolist() == [0]
    return int(found.task[0]), found.mode[0], Strength(int(found.strength[0]))


def state(found: Holders) -> str:
    if not found.is_held[0]:
        return "free"
    if found.is_write[0]:
        return "written"
    return f"{found.readers[0]} readers" if found.readers[0] > 0 else "held"


_MUTEX = Mode.NONE, Strength.PROVEN
_WRITER = Mode.WRITE, Strength.PROVEN


@pytest.mark.parametrize(
    ("era", "words", "named", "expected"),
    [
        ("mutex of 3.10", (0, _TASK), _MUTEX, "held"),
        ("mutex of 4.10", (_TASK,), _MUTEX, "held"),
        ("mutex of 4.10", (_TASK | 1,), _MUTEX, "held"),
        ("mutex of 4.10", (_TASK | 3,), _MUTEX, "held"),
        ("mutex of PREEMPT_RT", (_TASK | 1,), _MUTEX, "held"),
        # MUTEX_FLAG_WAITERS and _PICKUP: given to a waiter; without an owner, the next takes it.
        ("mutex of 4.10", (_TASK | 5,), _MUTEX, "held"),
        ("mutex of 3.10", (1, 0), None, "free"),
        ("mutex of 4.10", (1,), None, "free"),
        ("mutex of PREEMPT_RT", (1,), None, "free"),
        ("rwsem of 4.4", (_WAITING + _ACTIVE, _TASK), _WRITER, "written"),
        ("rwsem of 4.18", (2 * _WAITING + _ACTIVE, _TASK), _WRITER, "written"),
        ("rwsem of 5.3", (1, _TASK), _WRITER, "written"),
        # RWSEM_FLAG_WAITERS, and RWSEM_NONSPINNABLE of the owner.
        ("rwsem of 5.3", (3, _TASK | 2), _WRITER, "written"),
        ("rwsem of PREEMPT_RT", (1 << 30, _TASK | 1), _WRITER, "written"),
        ("rwsem of PREEMPT_RT", (2, _TASK | 1), _WRITER, "written"),
        ("rwlock of PREEMPT_RT", (1 << 30, _TASK | 1), _WRITER, "written"),
        ("rwlock of PREEMPT_RT", (2, _TASK | 1), _WRITER, "written"),
        ("rwsem of 5.3", (1 << 8 | 2, _TASK | 1), (Mode.READ, Strength.DERIVED), "1 readers"),
        ("rwsem of 5.3", (3 << 8, _TASK | 3), (Mode.READ, Strength.POSSIBLE), "3 readers"),
        # RWSEM_FLAG_READFAIL is no reader.
        ("rwsem of 5.3", (1 << 63 | 1 << 8, _TASK | 1), (Mode.READ, Strength.DERIVED), "1 readers"),
        # Readers that no word names.
        ("rwsem of 4.4", (2, 0), None, "2 readers"),
        ("rwsem of 4.18", (_WAITING + 3, 1), None, "3 readers"),
        ("rwsem of PREEMPT_RT", ((1 << 31) + 2, 0), None, "2 readers"),
        ("rwlock of PREEMPT_RT", ((1 << 31) + 2, 0), None, "2 readers"),
        # A free one names who left.
        ("rwsem of 5.3", (0, _TASK | 1), None, "free"),
        # It may have more holders, and who takes it for an event stays there when another posts it.
        ("semaphore of 6.16", (0, _TASK), (Mode.NONE, Strength.POSSIBLE), "held"),
        ("semaphore of 6.16", (1, _TASK), None, "free"),
        ("semaphore of 4.18", (0,), None, "held"),
        ("percpu_rwsem of 5.7", (_TASK, 1), _WRITER, "written"),
        ("percpu_rwsem of 5.7", (0, 1), None, "written"),
        ("percpu_rwsem of 5.7", (0, 0), None, "held"),
        ("percpu_rwsem of 4.18", (_WAITING + _ACTIVE, _TASK, _OTHER, 1), _WRITER, "written"),
    ],
)
def test_holders(
    era: str, words: tuple[int, ...], named: tuple[Mode, Strength] | None, expected: str
) -> None:
    found = lock_of(era).holders(*words)
    if named is None:
        assert len(found.task) == 0
    else:
        assert owner(found) == (_TASK, *named)
    assert state(found) == expected


def test_a_mutex_that_has_been_given_to_a_waiter() -> None:
    lock = lock_of("mutex of 4.10")
    assert lock.holders(_TASK | 5).evidence == [HANDED_OVER]
    assert lock.holders(_TASK | 3).evidence != [HANDED_OVER]


def test_percpu_rwsems_of_which_the_inner_rwsem_names_the_writer() -> None:
    old = lock_of("percpu_rwsem of 4.4")
    counters = old.k.percpu_of("unsigned int")
    # A reader left on another CPU than it came by, and one came by the slow path.
    for cpu, count in enumerate((2, -1)):
        old.k.set(old.k.per_cpu("unsigned int", counters, cpu), count % (1 << 32))
    found = old.holders(_WAITING + _ACTIVE, _OTHER, counters, 1)
    assert owner(found) == (_OTHER, Mode.WRITE, Strength.PROVEN)
    assert found.is_write.all()
    assert found.readers.tolist() == [2]
    read = old.holders(0, 0, counters, 0)
    assert (read.is_write.tolist(), read.is_held.tolist()) == ([False], [True])
    for cpu in (0, 1):
        old.k.set(old.k.per_cpu("unsigned int", counters, cpu), 0)
    # The writer has moved the readers' count: two are still inside.
    assert old.holders(_WAITING + _ACTIVE, _OTHER, counters, 2).readers.tolist() == [2]
    assert not old.holders(0, 0, counters, 0).is_held.any()


def test_percpu_rwsems_that_only_count_writers() -> None:
    old = lock_of("percpu_rwsem of 3.10")
    counters = old.k.percpu_of("unsigned int")
    found = old.holders(_ACTIVE, counters, 1 | 1 << 32)
    assert len(found.task) == 0
    assert (found.is_write.tolist(), found.readers.tolist()) == ([True], [1])
    assert not old.holders(0, counters, 0).is_held.any()


def test_a_writer_that_waits_for_readers_has_some() -> None:
    lock = lock_of("percpu_rwsem of 6.12")
    counters = lock.k.percpu_of("unsigned int")
    lock.k.set(lock.k.per_cpu("unsigned int", counters, 1), 1)
    assert lock.holders(_TASK, 1, counters).readers.tolist() == [1]
    lock.k.set(lock.k.per_cpu("unsigned int", counters, 1), 0)
    assert not lock.holders(0, 1, counters).readers.any()
    place = lock.k.alloc(lock.type)
    lock.k.write_words(place.address_, _TASK, 1, counters)
    found = holders(Kernel(lock.k.prog), lock.type, np.array([place.address_], np.uint64))
    assert found.faults.total() == 1


def test_several_locks_at_once_and_one_that_is_not_in_the_dump() -> None:
    k = lock_of("mutex of 4.10").k
    places = [k.alloc("struct mutex", alone=True) for _ in range(4)]
    for place, word in zip(places, (_TASK, 0, _OTHER | 1, _TASK), strict=True):
        k.write_words(place.address_, word)
    k.drop(places[3].address_)
    address = np.array([place.address_ for place in places], np.uint64)
    found = holders(Kernel(k.prog), "struct mutex", address)
    assert found.lock.tolist() == [0, 2]
    assert found.task.tolist() == [_TASK, _OTHER]
    assert found.is_held.tolist() == [True, False, True, True]  # the last one is unknown
    assert found.place.tolist() == [address[0], address[2]]
    assert found.faults.total() == 1
    assert len(holders(Kernel(k.prog), "struct mutex", address[:0]).task) == 0
