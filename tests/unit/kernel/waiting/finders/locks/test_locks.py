# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holders of the locks of *synthetic* kernels, by the locks themselves."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.code.call_sites import CallSites, Held
from kcensus.kernel.locking.owners import Mode, Strength
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.waiting.finders.locks.locks import (
    MUTEX,
    PERCPU_READERS,
    RWSEM,
    RWSEM_QUEUE,
    Locks,
)
from kcensus.kernel.waiting.graph import HELD, QUEUED
from tests.unit.kernel.waiting.making import SIZE, Sleepers, edges, links, words

_TYPES = """
struct task_struct 64 : 8 struct mm_struct * mm
struct mm_struct 64 : 0 struct rw_semaphore mmap_lock
struct vm_area_struct 64
struct atomic_long_t 8 : 0 long counter
struct mutex 16 : 0 struct atomic_long_t owner
struct rw_semaphore 16 : 0 struct atomic_long_t count; 8 struct atomic_long_t owner
"""
_MUTEX, _RWSEM = "struct mutex", "struct rw_semaphore"
_PROVEN = int(Strength.PROVEN)
_READER_BIAS, _READER_OWNED = 1 << 8, 1


def test_the_owner_of_a_mutex_has_flags_in_its_lowest_bits() -> None:
    scene = Sleepers(_TYPES, "open", "owns")
    mutex = int(scene.k.alloc(_MUTEX).address_)
    scene.k.write_words(mutex, scene.task[1] | 1)
    scene.wait(0, mutex, _MUTEX)
    graph, finder = scene.run(Locks)
    assert links(graph) == {(MUTEX, mutex, HELD, scene.task[1], _PROVEN)}
    assert MUTEX.is_in_log
    assert finder.draft.missing == []


def test_a_free_mutex_has_no_holder() -> None:
    scene = Sleepers(_TYPES, "open")
    scene.wait(0, int(scene.k.alloc(_MUTEX).address_), _MUTEX)
    assert len(scene.run(Locks)[0]) == 0


def test_readers_are_queued_behind_a_writer() -> None:
    scene = Sleepers(_TYPES, "down_read", "down_write", "holds")
    rwsem = int(scene.k.alloc(_RWSEM).address_)
    scene.k.write_words(rwsem, _READER_BIAS, scene.task[2] | _READER_OWNED)
    for lane in (0, 1):
        scene.wait(lane, rwsem, _RWSEM)
    graph, finder = scene.run(Locks)
    assert (rwsem, QUEUED, scene.task[1]) in edges(graph)
    assert [finder.draft.kind_of(lane) for lane in (0, 1)] == [RWSEM_QUEUE, RWSEM]
    assert RWSEM_QUEUE.queue_of is RWSEM
    assert finder.readers == {rwsem: 1}
    # The last reader stays noted when it has left.
    held = [row for row, edge in enumerate(graph.edge) if edge is HELD]
    assert [int(graph.strength[row]) for row in held] == [int(Strength.POSSIBLE)]


def test_a_writer_that_drains_readers_waits_for_them() -> None:
    scene = Sleepers(_TYPES, "percpu_down_write")
    scene.wait(0, 0xFFFF_8881_0000_0000, "struct percpu_rw_semaphore")
    scene.waits.evidence[0] = "percpu_rw_semaphore.writer"
    _, finder = scene.run(Locks)
    assert finder.draft.kind_of(0) is PERCPU_READERS


@pytest.mark.parametrize(
    ("function", "mode"), [("rt_write_lock", Mode.WRITE), ("rt_read_lock", Mode.READ)]
)
def test_the_mode_of_rwlocks_with_inlined_functions(function: str, mode: Mode) -> None:
    scene = Sleepers(_TYPES, function)
    scene.wait(0, 0xFFFF_8881_0000_0000, "struct rwbase_rt")
    _, finder = scene.run(Locks)
    assert finder.draft.mode[0] is mode


def _in_faults(
    monkeypatch: pytest.MonkeyPatch,
    outer: str,
    is_sure: bool,
    callee: str = "copy",
    types: str = _TYPES,
) -> dict[int, Strength]:
    """Return the holders of the lock of a memory map, for which a task waits within a function.

    A writer is in the queue before it.
    """
    functions = ["down_read", "do_user_addr_fault", callee, outer, "down_write"]
    scene = Sleepers(types, "do_user_addr_fault", "writes")
    mm = int(scene.k.alloc("struct mm_struct").address_)
    scene.k.write_words(scene.task[0] + 8, mm)
    scene.k.write_words(mm, _READER_BIAS, _READER_OWNED)
    for lane in (0, 1):
        scene.wait(lane, mm, _RWSEM)
    codes = np.arange(len(functions), dtype=np.uint64) + np.uint64(0xFFFF_FFFF_8100_0000)
    names = dict(zip(codes.tolist(), functions, strict=True))
    places = words(*(scene.stack[0] + 512 + 64 * row for row in range(len(functions))))
    stacks = Stacks(np.array([0, 0, 0, 0, 1]), codes, places, codes == 0, names, SIZE)
    object.__setattr__(scene.waits, "stacks", stacks)
    found = {
        int(codes[1]): Held(_RWSEM, Mode.READ, 0, False, True, is_taking=True),
        int(codes[3]): Held(_RWSEM, Mode.READ, 0, is_sure, True, is_taking=False),
    }
    monkeypatch.setattr(CallSites, "held", lambda _, pc, __: [found[pc]] if pc in found else [])
    graph, _ = scene.run(Locks)
    return {
        int(graph.address[graph.target[row]]) - scene.task[0]: Strength(int(graph.strength[row]))
        for row, edge in enumerate(graph.edge)
        if edge is HELD
    }


@pytest.mark.parametrize("is_sure", [True, False])
def test_a_fault_within_a_fault(monkeypatch: pytest.MonkeyPatch, is_sure: bool) -> None:
    # Without locks of areas, the outer one holds the lock, whatever its code says.
    assert _in_faults(monkeypatch, "do_user_addr_fault", is_sure) == {0: Strength.DERIVED}


@pytest.mark.parametrize(
    ("callee", "takers", "strength"),
    [
        ("handle_mm_fault", {0x2000}, Strength.DERIVED),
        ("handle_mm_fault", {0x1000}, Strength.POSSIBLE),
        ("handle_mm_fault", {0, 0x2000}, Strength.POSSIBLE),
        ("handle_mm_fault", set(), Strength.POSSIBLE),
        ("copy", {0x2000}, Strength.POSSIBLE),
    ],
)
def test_a_fault_with_the_lock_of_an_area_or_of_the_whole_memory_map(
    monkeypatch: pytest.MonkeyPatch, callee: str, takers: set[int], strength: Strength
) -> None:
    monkeypatch.setattr(CallSites, "takers", lambda *_: takers)
    monkeypatch.setattr(CallSites, "addresses", lambda *_: [0x1000])
    types = _TYPES.replace("vm_area_struct 64", "vm_area_struct 64 : 0 unsigned long vm_lock_seq")
    outer = "do_user_addr_fault"
    assert _in_faults(monkeypatch, outer, False, callee, types) == {0: strength}


def test_a_function_whose_callees_take_the_lock_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _in_faults(monkeypatch, "get_user_pages_unlocked", True) == {}
