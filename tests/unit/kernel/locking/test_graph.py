# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks of *synthetic* kernels in the graph of waits."""

from __future__ import annotations

import drgn
import pytest

from kcensus.kernel.code.call_sites import CallSites, Held
from kcensus.kernel.locking.owners import Mode, Strength
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.finders.locks.locks import SEMAPHORE
from kcensus.kernel.waiting.graph import HELD
from kcensus.kernel.waiting.reader import Waiting, unread_code, waiting
from kcensus.kernel.waiting.sleeps import sleeps
from tests.unit.kernel.waiting.making import Sleepers, edges, links

_TYPES = """
struct task_struct 64 : 8 struct mm_struct * mm
struct mutex 16 : 0 int count
struct rw_semaphore 16 : 0 long count; 8 struct task_struct * owner
struct slow_readers 4 : 0 int counter
struct percpu_rw_semaphore 32
    0 struct rw_semaphore rw_sem; 16 unsigned int * fast_read_ctr
    24 struct slow_readers slow_read_ctr
struct mm_struct 64 : 0 struct rw_semaphore mmap_sem
"""
_PERCPU = "struct percpu_rw_semaphore"


def test_one_type_of_locks_without_owners_does_not_hide_the_others() -> None:
    scene = Sleepers(_TYPES, "reads", "locks", "owns")
    scene.remember(sleeps, scene.waits)
    rwsem, mutex = (
        int(scene.k.alloc(name).address_) for name in ("struct rw_semaphore", "struct mutex")
    )
    scene.k.write_words(rwsem, 1, scene.task[2])
    scene.wait(0, rwsem, "struct rw_semaphore")
    scene.wait(1, mutex, "struct mutex")
    found = waiting(scene.kernel)
    assert (rwsem, HELD, scene.task[2]) in edges(found.graph)
    assert "owners of struct mutex" in found.missing
    assert "owners of struct rw_semaphore" not in found.missing
    # Code of other architectures is not read.
    assert unread_code(scene.k.prog.platform) == unread_code(None) == []
    assert len(unread_code(drgn.Platform(drgn.Architecture.PPC64))) == 1


def test_a_writer_that_waits_for_readers_does_not_wait_for_itself() -> None:
    """Before v4.8, its queue is not called after it, and the inner rwsem says that it has it."""
    scene = Sleepers(_TYPES, "drains", "reads")
    scene.remember(sleeps, scene.waits)
    lock = int(scene.k.alloc(_PERCPU).address_)
    counters = scene.k.percpu_of("unsigned int")
    scene.k.write_words(lock, 1, scene.task[0], counters, 1)
    for lane, member in enumerate(("write_waitq", "wait_list")):
        scene.wait(lane, lock, _PERCPU)
        scene.waits.evidence[lane] = f"percpu_rw_semaphore.{member}"
    graph = waiting(scene.kernel).graph
    (reader, writer) = (graph.address.tolist().index(scene.task[lane]) for lane in (1, 0))
    assert graph.reached([reader])[writer]
    assert not graph.reached([writer])[reader]
    assert cycles(graph) == []


_SEMAPHORE = "struct semaphore"
_SEMAPHORE_TYPES = """
struct task_struct 64 : 8 struct mm_struct * mm
struct mm_struct 64 : 0 int mmap_lock
struct semaphore 16 : 0 unsigned int count; 8 unsigned long last_holder
"""


def _waiting(monkeypatch: pytest.MonkeyPatch, last: int, code: str = "") -> tuple[Waiting, int]:
    """The first task waits for a semaphore.

    :param last: the task that took it last
    :param code: what its function has taken: ``it``, ``some`` semaphore, or nothing
    """
    scene = Sleepers(_SEMAPHORE_TYPES, "down", "mutex_lock")
    semaphore = scene.k.alloc(_SEMAPHORE, last_holder=scene.task[last])
    address = int(semaphore.address_)
    scene.wait(0, address, _SEMAPHORE)
    scene.remember(sleeps, scene.waits)
    own = int(scene.waits.stacks.pc[last])
    held = [Held(_SEMAPHORE, Mode.NONE, address if code == "it" else 0, True, True, False)]
    monkeypatch.setattr(
        CallSites, "held", lambda _, pc, *__, **___: held if code and pc == own else []
    )
    return waiting(scene.kernel), scene.task[last]


def _holders(found: Waiting) -> dict[int, Strength]:
    holders = [each for each in links(found.graph) if each[0] is SEMAPHORE]
    return {task: Strength(sure) for _, _, _, task, sure in holders}


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_one_that_took_it_may_have_dropped_it(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is the waiter itself, others wake it up: that is no deadlock."""
    found, task = _waiting(monkeypatch, last)
    assert _holders(found) == {task: Strength.POSSIBLE}
    assert [cycle.strength for cycle in cycles(found.graph)] == [Strength.POSSIBLE] * (last == 0)


@pytest.mark.parametrize("code", ["it", "some"])
def test_code_on_the_stack_that_took_it(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, task = _waiting(monkeypatch, 1, code)
    assert _holders(found) == {task: Strength.DERIVED}
    # A task that waits for it took this one before only if its code names it.
    found, task = _waiting(monkeypatch, 0, code)
    strength = Strength.DERIVED if code == "it" else Strength.POSSIBLE
    assert _holders(found) == {task: strength}
