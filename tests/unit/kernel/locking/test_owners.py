# SPDX-License-Identifier: LGPL-2.1-or-later
"""Owners of locks of *synthetic* kernels, in the words that locks of each era have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import HANDED_OVER, Holders, Mode, Strength, holders
from tests.unit.fakekernel import DIRECT_MAP, FakeKernel, add_types
from tests.unit.fakekernel.types import Table

_TASK, _OTHER = DIRECT_MAP + 0x5000_0040, DIRECT_MAP + 0x5000_8040
_WAITING, _ACTIVE = -(1 << 32), 1

_ATOMIC: Table = {
    "struct atomic_long_t": (8, "0 long counter"),
    "struct atomic_t": (4, "0 int counter"),
}
_RT_MUTEX = {"struct rt_mutex_base": (8, "0 struct task_struct * owner")}
_MUTEX = "struct mutex"
_RWSEM = "struct rw_semaphore"
_PERCPU = "struct percpu_rw_semaphore"
_ERAS: dict[str, Table] = {
    "mutex of 3.10": {_MUTEX: (16, "0 struct atomic_t count\n8 struct task_struct * owner")},
    "mutex of 4.10": {_MUTEX: (16, "0 struct atomic_long_t owner")},
    "mutex of PREEMPT_RT": {**_RT_MUTEX, _MUTEX: (8, "0 struct rt_mutex_base rtmutex")},
    "rwsem of 4.4": {_RWSEM: (16, "0 long count\n8 struct task_struct * owner")},
    "rwsem of 4.18": {_RWSEM: (16, "0 struct atomic_long_t count\n8 struct task_struct * owner")},
    "rwsem of 5.3": {_RWSEM: (16, "0 struct atomic_long_t count\n8 struct atomic_long_t owner")},
    "rwsem of PREEMPT_RT": {
        **_RT_MUTEX,
        "struct rwbase_rt": (16, "0 struct atomic_t readers\n8 struct rt_mutex_base rtmutex"),
        _RWSEM: (16, "0 struct rwbase_rt rwbase"),
    },
    "semaphore of 4.18": {"struct semaphore": (16, "0 unsigned int count")},
    "semaphore of 6.16": {
        "struct semaphore": (16, "0 unsigned int count\n8 unsigned long last_holder")
    },
    "percpu_rwsem of 4.18": {
        _RWSEM: (16, "0 struct atomic_long_t count\n8 struct task_struct * owner"),
        "struct rcuwait": (8, "0 struct task_struct * task"),
        _PERCPU: (
            32,
            "0 struct rw_semaphore rw_sem\n16 struct rcuwait writer\n24 int readers_block",
        ),
    },
    "percpu_rwsem of 4.4": {
        _RWSEM: (16, "0 struct atomic_long_t count\n8 struct task_struct * owner"),
        _PERCPU: (
            32,
            "0 struct rw_semaphore rw_sem\n16 unsigned int * fast_read_ctr\n"
            "24 struct atomic_t slow_read_ctr",
        ),
    },
    "percpu_rwsem of 3.10": {
        _RWSEM: (8, "0 long count"),
        _PERCPU: (
            24,
            "0 struct rw_semaphore rw_sem\n8 unsigned int * fast_read_ctr\n"
            "16 struct atomic_t slow_read_ctr\n20 struct atomic_t write_ctr",
        ),
    },
    "percpu_rwsem of 5.7": {
        "struct rcuwait": (8, "0 struct task_struct * task"),
        _PERCPU: (16, "0 struct rcuwait writer\n8 struct atomic_t block"),
    },
}


@dataclass
class Lock:
    """A lock made of words."""

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
    k = FakeKernel("6.10")
    add_types(k.prog, {**_ATOMIC, **_ERAS[era]}, "locks")
    name = era.split()[0]
    names = {"rwsem": "rw_semaphore", "percpu_rwsem": "percpu_rw_semaphore"}
    return Lock(k, f"struct {names.get(name, name)}")


def owner(found: Holders) -> tuple[int, Mode, Strength]:
    assert found.lock.tolist() == [0]
    return int(found.task[0]), found.mode[0], Strength(int(found.strength[0]))


@pytest.mark.parametrize(
    ("era", "words"),
    [
        ("mutex of 3.10", (0, _TASK)),
        ("mutex of 4.10", (_TASK,)),
        ("mutex of 4.10", (_TASK | 1,)),
        ("mutex of 4.10", (_TASK | 3,)),
        ("mutex of PREEMPT_RT", (_TASK | 1,)),
    ],
)
def test_mutexes(era: str, words: tuple[int, ...]) -> None:
    found = lock_of(era).holders(*words)
    assert owner(found) == (_TASK, Mode.NONE, Strength.PROVEN)
    assert found.is_held.all()


def test_a_mutex_that_has_been_given_to_a_waiter() -> None:
    # MUTEX_FLAG_WAITERS and _PICKUP.
    given = lock_of("mutex of 4.10").holders(_TASK | 5)
    assert owner(given) == (_TASK, Mode.NONE, Strength.PROVEN)
    assert given.evidence == [HANDED_OVER]
    taken = lock_of("mutex of 4.10").holders(_TASK | 3)
    assert taken.evidence != [HANDED_OVER]


@pytest.mark.parametrize("era", ["mutex of 3.10", "mutex of 4.10", "mutex of PREEMPT_RT"])
def test_a_mutex_that_is_handed_over(era: str) -> None:
    # MUTEX_FLAG_WAITERS and _PICKUP without an owner: the next one takes it.
    found = lock_of(era).holders(*((1, 0) if "3.10" in era else (1,)))
    assert len(found.task) == 0
    assert not found.is_held.any()


@pytest.mark.parametrize(
    ("era", "words"),
    [
        ("rwsem of 4.4", (_WAITING + _ACTIVE, _TASK)),
        ("rwsem of 4.18", (2 * _WAITING + _ACTIVE, _TASK)),
        ("rwsem of 5.3", (1, _TASK)),
        # RWSEM_FLAG_WAITERS, and RWSEM_NONSPINNABLE of the owner.
        ("rwsem of 5.3", (3, _TASK | 2)),
        ("rwsem of PREEMPT_RT", (1 << 30, _TASK | 1)),
        ("rwsem of PREEMPT_RT", (2, _TASK | 1)),
    ],
)
def test_writers_of_rwsems(era: str, words: tuple[int, ...]) -> None:
    found = lock_of(era).holders(*words)
    assert owner(found) == (_TASK, Mode.WRITE, Strength.PROVEN)
    assert found.is_write.all()


def test_readers_of_rwsems() -> None:
    one = lock_of("rwsem of 5.3").holders(1 << 8 | 2, _TASK | 1)
    assert owner(one) == (_TASK, Mode.READ, Strength.DERIVED)
    several = lock_of("rwsem of 5.3").holders(3 << 8, _TASK | 3)
    assert owner(several) == (_TASK, Mode.READ, Strength.POSSIBLE)
    assert several.readers.tolist() == [3]
    assert not several.is_write.any()
    # RWSEM_FLAG_READFAIL is no reader.
    assert lock_of("rwsem of 5.3").holders(1 << 63 | 1 << 8, _TASK | 1).readers.tolist() == [1]


@pytest.mark.parametrize(
    ("era", "words", "readers"),
    [
        ("rwsem of 4.4", (2, 0), 2),
        ("rwsem of 4.18", (_WAITING + 3, 1), 3),
        ("rwsem of PREEMPT_RT", (-(1 << 31) + 2, 0), 2),
    ],
)
def test_readers_that_no_word_names(era: str, words: tuple[int, ...], readers: int) -> None:
    found = lock_of(era).holders(words[0] % (1 << 32) if "RT" in era else words[0], words[1])
    assert len(found.task) == 0
    assert found.readers.tolist() == [readers]
    assert found.is_held.all()


def test_a_free_rwsem_names_who_left() -> None:
    found = lock_of("rwsem of 5.3").holders(0, _TASK | 1)
    assert len(found.task) == 0
    assert not found.is_held.any()


def test_semaphores() -> None:
    # It may have more holders, and who takes it for an event stays there when another posts it.
    found = owner(lock_of("semaphore of 6.16").holders(0, _TASK))
    assert found == (_TASK, Mode.NONE, Strength.POSSIBLE)
    assert len(lock_of("semaphore of 6.16").holders(1, _TASK).task) == 0
    old = lock_of("semaphore of 4.18").holders(0)
    assert len(old.task) == 0
    assert old.is_held.all()


def test_percpu_rwsems() -> None:
    new = lock_of("percpu_rwsem of 5.7")
    waits = new.holders(_TASK, 1)
    assert owner(waits) == (_TASK, Mode.WRITE, Strength.PROVEN)
    inside = new.holders(0, 1)
    assert len(inside.task) == 0
    assert inside.is_write.all()
    assert not new.holders(0, 0).is_write.any()
    old = lock_of("percpu_rwsem of 4.18").holders(_WAITING + _ACTIVE, _OTHER, _TASK, 1)
    assert owner(old) == (_OTHER, Mode.WRITE, Strength.PROVEN)


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


def test_several_locks_at_once_and_none() -> None:
    lock = lock_of("mutex of 4.10")
    places = [lock.k.alloc("struct mutex") for _ in range(3)]
    for place, word in zip(places, (_TASK, 0, _OTHER | 1), strict=True):
        lock.k.write_words(place.address_, word)
    address = np.array([place.address_ for place in places], np.uint64)
    found = holders(Kernel(lock.k.prog), "struct mutex", address)
    assert found.lock.tolist() == [0, 2]
    assert found.task.tolist() == [_TASK, _OTHER]
    assert found.is_held.tolist() == [True, False, True]
    assert found.place.tolist() == [address[0], address[2]]
    none = holders(Kernel(lock.k.prog), "struct mutex", np.empty(0, np.uint64))
    assert len(none.task) == 0


def test_what_is_not_in_the_dump() -> None:
    lock = lock_of("mutex of 4.10")
    place = lock.k.alloc("struct mutex", alone=True)
    lock.k.write_words(place.address_, _TASK)
    lock.k.drop(place.address_)
    found = holders(Kernel(lock.k.prog), "struct mutex", np.array([place.address_], np.uint64))
    assert len(found.task) == 0
    assert found.is_held.tolist() == [True]  # unknown
    assert found.faults.total() == 1
