# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks on *synthetic* stacks: of PREEMPT_RT, and with a ring of waiters, as since v7.1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.tasks.functions import WaitKind, lock_type, waits_in
from kcensus.kernel.waiting.objects.locks import blockers, locks_of_rings
from kcensus.kernel.waiting.objects.queued import queued
from kcensus.kernel.waiting.objects.reading import Facts, Reading
from tests.unit.kernel.waiting.making import SIZE, Sleepers, words

_NOWHERE = 0xFFFF_C900_0000_0000
_WAITER = "0 struct list_head list\n16 struct task_struct * task"
_TYPES = """
struct wait_queue_entry 40
    0 unsigned int flags; 8 void * private; 16 void * func; 24 struct list_head entry
struct mutex 32 : 0 unsigned long owner; 16 struct mutex_waiter * first_waiter
struct rw_semaphore 32 : 0 long count; 16 struct rwsem_waiter * first_waiter
struct semaphore 32 : 0 int count; 16 struct list_head wait_list
struct mutex_waiter 32 : 0 struct list_head list; 16 struct task_struct * task
struct rwsem_waiter 32 : 0 struct list_head list; 16 struct task_struct * task
struct semaphore_waiter 32 : 0 struct list_head list; 16 struct task_struct * task
struct task_struct 64 : 8 struct mm_struct * mm
struct mm_struct 64 : 16 struct rw_semaphore mmap_lock
"""
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
        lock = self.k.alloc(type_, first_waiter=first)
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


def test_a_task_has_no_lock_without_its_address_or_with_those_of_two() -> None:
    scene = Ring()
    lock = scene.lock(_MUTEX, scene.waiters[0], 2)
    assert scene.locks(_MUTEX, 0, 1, 2) == {2: lock}
    scene.lock(_MUTEX, scene.waiters[1], 2)
    assert scene.locks(_MUTEX, 2) == {}


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


@pytest.mark.parametrize("bent", [0, _NOWHERE, 0x7FFF_1234_5678, "itself", "unreadable"])
def test_a_torn_ring_ends(bent: int | str) -> None:
    """Each task is in the part of the ring that its own waiter leads to."""
    scene = Ring()
    lock = scene.lock(_MUTEX, scene.waiters[2], 0, 1, 2)
    if bent == "unreadable":
        scene.k.drop(scene.stack[1])
    else:
        scene.put(1, scene.waiters[1] if bent == "itself" else int(bent), place=_PLACE)
    found = scene.locks(_MUTEX, 0, 1, 2)
    assert set(found.values()) <= {lock}
    assert found.get(1) is None


def test_a_ring_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Ring(50)
    lock = scene.lock(_MUTEX, scene.waiters[7], *range(50))
    words: list[int] = []
    memory = scene.kernel.memory
    word = memory.word

    def counted(_: Memory, node: int) -> int:
        words.append(node)
        return word(node)

    monkeypatch.setattr(type(memory), "word", counted)
    assert scene.locks(_MUTEX, *range(50)) == dict.fromkeys(range(50), lock)
    assert sorted(words) == sorted(scene.waiters)


_SLOW = ("__schedule", "rt_mutex_schedule", "rt_mutex_slowlock_block")
_RT_TYPES = """
struct task_struct 64
struct rt_mutex_base 32 : 24 struct task_struct * owner
struct rt_mutex_waiter 64 : 32 struct task_struct * task; 40 struct rt_mutex_base * lock
struct atomic_t 4 : 0 int counter
struct rwbase_rt 40 : 0 struct atomic_t readers; 8 struct rt_mutex_base rtmutex
struct mutex 32 : 0 struct rt_mutex_base rtmutex
struct rw_semaphore 40 : 0 struct rwbase_rt rwbase
"""
_READ = (*_SLOW, "rwbase_read_lock", "down_read", "code")
_RT_MUTEX = (*_SLOW, "__rt_mutex_lock", "code")
_DRAIN = ("__schedule", "rwbase_schedule", "rwbase_write_lock", "down_write", "code")


_ON_STACK = 1024


def reader(
    *stacks: tuple[str, ...], readers: int = 0, inside: int = 0, state: int = 2
) -> tuple[Reading, int]:
    """A reader of tasks with these functions, and an rwsem; all but writers wait for its mutex.

    The last task owns that, and has the address of a member on its stack.
    """
    scene = Sleepers(_RT_TYPES, *(waits_in(stack) for stack in stacks))
    rwsem = int(scene.k.alloc("struct rw_semaphore").address_)
    scene.k.write_words(rwsem, readers)
    scene.k.write_words(rwsem + 32, scene.task[-1] | 1)
    scene.put(len(stacks) - 1, rwsem + inside, place=_ON_STACK)
    waiting = []
    for task, stack in zip(scene.task, stacks, strict=True):
        waiter = int(scene.k.alloc("struct rt_mutex_waiter").address_)
        scene.k.write_words(waiter + 32, task, rwsem + 8)
        waiting.append(waiter if "rt_mutex_schedule" in stack else 0)
    made = Reading.__new__(Reading)
    made.kernel, made.faults, made.missing = scene.kernel, Faults(), []
    states = words(*[state] * len(stacks))
    made.known = replace(scene.known, pi_blocked_on=words(*waiting), state=states)
    made.rows, made.object = np.arange(len(stacks)), words(*[0] * len(stacks))
    made.facts = [Facts.of(stack, {}) for stack in stacks]
    made.kind, made.type = [WaitKind.OTHER] * len(stacks), [""] * len(stacks)
    made.evidence, made.stacks = [""] * len(stacks), scene.waits.stacks
    blockers(made)
    return made, rwsem


def test_functions() -> None:
    assert [lock_type(stack) for stack in (_READ, _DRAIN)] == ["struct rw_semaphore"] * 2
    assert lock_type(_RT_MUTEX) == ""
    assert lock_type((*_SLOW, "__rwbase_read_lock", "code")) == "struct rw_semaphore"
    rwlock = (*_SLOW, "rwbase_read_lock", "rt_read_lock", "code")
    assert lock_type(rwlock) == "struct rwbase_rt"
    assert lock_type((*_SLOW, "mutex_lock", "code")) == "struct mutex"
    assert {waits_in(stack) for stack in (_READ, _DRAIN, _RT_MUTEX)} == {"code"}


def test_an_rt_mutex_in_an_rwsem_is_the_rwsem() -> None:
    made, rwsem = reader(_READ, _RT_MUTEX)
    assert made.object.tolist() == [rwsem, rwsem + 8]
    assert made.type == ["struct rw_semaphore", "struct rt_mutex_base"]
    assert made.missing == []


def test_an_rt_mutex_in_a_mutex_is_the_mutex() -> None:
    made, rwsem = reader((*_SLOW, "mutex_lock", "code"))
    assert (made.object.tolist(), made.type) == ([rwsem + 8], ["struct mutex"])


@pytest.mark.parametrize("inside", [0, 8])
def test_writers_that_wait_for_readers(inside: int) -> None:
    made, rwsem = reader(_DRAIN, readers=2, inside=inside)
    assert (made.object.tolist(), made.type) == ([rwsem], ["struct rw_semaphore"])
    assert made.evidence == ["rw_semaphore.rwbase.rtmutex.owner"]


@pytest.mark.parametrize("readers", [0, 1 << 30, (1 << 31) + 2])
def test_rwsems_without_a_writer_that_waits_for_readers(readers: int) -> None:
    """It is free, or the writer's, or readers'."""
    made, _ = reader(_DRAIN, readers=readers)
    assert (made.object.tolist(), made.missing) == ([0], [])


def test_readers_behind_a_writer_that_waits_for_readers() -> None:
    made, rwsem = reader(_READ, _DRAIN, readers=2)
    assert made.object.tolist() == [rwsem, rwsem]
    assert made.evidence == ["task.pi_blocked_on", "rw_semaphore.rwbase.rtmutex.owner"]


def test_rwlocks() -> None:
    """A reader behind a writer that waits for readers."""
    read = ("__schedule", "schedule_rtlock", "rwbase_read_lock", "rt_read_lock", "code")
    drain = ("__schedule", "schedule_rtlock", "rwbase_write_lock", "rt_write_lock", "code")
    assert [waits_in(stack) for stack in (read, drain)] == ["code"] * 2
    made, lock = reader((*_SLOW, *read[2:]), drain, readers=2, state=0x1000)
    assert (made.object.tolist(), made.type) == ([lock] * 2, ["struct rwbase_rt"] * 2)
    assert made.evidence == ["task.pi_blocked_on", "rwlock_t.rwbase.rtmutex.owner"]
    made, _ = reader(drain, readers=1 << 30, state=0x1000)
    assert made.object.tolist() == [0]  # the writer has it


@pytest.mark.parametrize(
    ("code", "type_", "inside"),
    [("mutex_lock", "struct mutex", 8), ("down_write", "struct rw_semaphore", 0)],
)
def test_a_task_that_takes_a_lock_twice_is_stopped(code: str, type_: str, inside: int) -> None:
    """In state S, without a waiter: it is no longer in the list of those who wait."""
    stack = ("__schedule", "__rt_mutex_slowlock", code, "code")
    made, rwsem = reader(stack, readers=1 << 30, inside=inside, state=1)
    assert (made.object.tolist(), made.type) == ([rwsem + inside], [type_])
    made, _ = reader(stack, readers=1 << 30, inside=inside)
    assert made.object.tolist() == [0]
