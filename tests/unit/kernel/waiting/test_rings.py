# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks whose waiters form a ring without a head, as since v7.1, on *synthetic* stacks."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.tasks.queued import queued
from kcensus.kernel.tasks.rings import locks_of_rings
from tests.unit.kernel.waiting.making import SIZE, Sleepers

_NOWHERE = 0xFFFF_C900_0000_0000
_WAITER = "0 struct list_head list\n16 struct task_struct * task"
_TYPES = {
    "struct wait_queue_entry": (
        40,
        "0 unsigned int flags\n8 void * private\n16 void * func\n24 struct list_head entry",
    ),
    "struct mutex": (32, "0 unsigned long owner\n16 struct mutex_waiter * first_waiter"),
    "struct rw_semaphore": (32, "0 long count\n16 struct rwsem_waiter * first_waiter"),
    "struct semaphore": (32, "0 int count\n16 struct list_head wait_list"),
    "struct mutex_waiter": (32, _WAITER),
    "struct rwsem_waiter": (32, _WAITER),
    "struct semaphore_waiter": (32, _WAITER),
    "struct task_struct": (64, "8 struct mm_struct * mm"),
    "struct mm_struct": (64, "16 struct rw_semaphore mmap_lock"),
}
_MUTEX, _RWSEM = "struct mutex", "struct rw_semaphore"
_PLACE = 1024


class Ring(Sleepers):
    """Three tasks that wait for one lock, in the order 0, 1, 2."""

    def __init__(self, count: int = 3) -> None:
        super().__init__(_TYPES, *["mutex_lock"] * count)
        self.waiters = [stack + _PLACE for stack in self.stack]
        for lane in range(count):
            after = self.waiters[(lane + 1) % count]
            self.put(lane, after, self.waiters[lane - 1], self.task[lane], place=_PLACE)

    def lock(self, type_: str, first: int, *lanes: int) -> int:
        """A lock with a first waiter, whose address is on some stacks."""
        lock = self.k.alloc(type_)
        self.k.set(lock.first_waiter, first)
        for lane in lanes:
            self.mention(lane, int(lock.address_))
        return int(lock.address_)

    def mention(self, lane: int, address: int) -> None:
        place = self.stack[lane] + 2048
        while self.k.word(place):
            place += 8
        self.k.write_words(place, address)

    def locks(self, type_: str, *lanes: int) -> dict[int, int]:
        rows = np.arange(len(self.task))
        links = queued(self.kernel, self.known, rows)
        wanted = dict.fromkeys(lanes, type_)
        return locks_of_rings(self.kernel, self.known, rows, links, wanted, SIZE)


@pytest.mark.parametrize("first", range(3))
def test_any_waiter_of_a_ring_leads_to_its_lock(first: int) -> None:
    scene = Ring()
    lock = scene.lock(_MUTEX, scene.waiters[first], 0, 1, 2)
    # Another lock of which others are first, and one that is free.
    scene.lock(_MUTEX, _NOWHERE, 0, 1)
    scene.lock(_MUTEX, 0, 1, 2)
    assert scene.locks(_MUTEX, 0, 1, 2) == dict.fromkeys(range(3), lock)


def test_a_task_without_the_address_of_the_lock_has_none() -> None:
    scene = Ring()
    lock = scene.lock(_MUTEX, scene.waiters[0], 2)
    assert scene.locks(_MUTEX, 0, 1, 2) == {2: lock}


def test_two_locks_with_waiters_of_the_same_ring_are_none() -> None:
    scene = Ring()
    for first in scene.waiters[:2]:
        scene.lock(_MUTEX, first, 0)
    assert scene.locks(_MUTEX, 0) == {}


def test_the_only_waiter_is_a_ring_by_itself() -> None:
    scene = Ring(1)
    lock = scene.lock(_MUTEX, scene.waiters[0], 0)
    assert scene.locks(_MUTEX, 0) == {0: lock}
    # Somebody else's waiter is not.
    scene = Ring(1)
    scene.lock(_MUTEX, scene.waiters[0], 0)
    scene.put(0, scene.stack[0], place=_PLACE + 16)
    assert scene.locks(_MUTEX, 0) == {}


def test_the_lock_of_the_address_space_is_on_no_stack() -> None:
    scene = Ring()
    memory = scene.k.alloc("struct mm_struct")
    scene.k.set(memory.mmap_lock.first_waiter, scene.waiters[0])
    for task in scene.task:
        scene.k.write_words(task + 8, memory.address_)
    lock = int(memory.mmap_lock.address_)
    assert scene.locks(_RWSEM, 0, 1, 2) == dict.fromkeys(range(3), lock)


def test_locks_with_a_list_are_left_to_others() -> None:
    scene = Ring()
    scene.mention(0, int(scene.k.alloc("struct semaphore").address_))
    assert scene.locks("struct semaphore", 0) == {}


@pytest.mark.parametrize("bent", [0, _NOWHERE, 0x7FFF_1234_5678, "itself"])
def test_a_torn_ring_ends(bent: int | str) -> None:
    """Each task is in the part of the ring that its own waiter leads to."""
    scene = Ring()
    lock = scene.lock(_MUTEX, scene.waiters[2], 0, 1, 2)
    target = scene.waiters[1] if bent == "itself" else int(bent)
    scene.put(1, target, place=_PLACE)
    found = scene.locks(_MUTEX, 0, 1, 2)
    assert set(found.values()) <= {lock}
    assert found.get(1) is None


def test_unreadable_stacks() -> None:
    scene = Ring()
    lock = scene.lock(_MUTEX, scene.waiters[0], 0, 1, 2)
    scene.k.drop(scene.stack[1])
    assert set(scene.locks(_MUTEX, 0, 1, 2).values()) <= {lock}


def test_a_ring_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Ring(50)
    lock = scene.lock(_MUTEX, scene.waiters[7], *range(50))
    words: list[int] = []
    memory = scene.kernel.memory
    word = memory.word
    monkeypatch.setattr(type(memory), "word", lambda _, node: words.append(node) or word(node))
    assert scene.locks(_MUTEX, *range(50)) == dict.fromkeys(range(50), lock)
    assert sorted(words) == sorted(scene.waiters)
