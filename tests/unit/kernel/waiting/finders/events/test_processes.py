# SPDX-License-Identifier: LGPL-2.1-or-later
"""Threads that wait for a core dump, and parents of vfork(), in words of *synthetic* kernels."""

from __future__ import annotations

import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.events.core_dumps import CoreDumps
from kcensus.kernel.waiting.finders.events.vfork import Children
from kcensus.kernel.waiting.graph import COMPLETED_BY, HELD
from tests.unit.kernel.waiting.making import Sleepers, edges

_NOWHERE = 0xFFFF_C900_0000_0000
_CORE = """
struct core_state 32 : 0 struct core_thread dumper
struct core_thread 16 : 0 struct task_struct * task
struct task_struct 64 : 8 struct signal_struct * signal; 16 struct mm_struct * mm
struct signal_struct 64
struct mm_struct 64
"""
_CORES = {
    "5.10": "struct mm_struct 64 : 8 struct core_state * core_state",
    "5.16": "struct signal_struct 64 : 8 struct core_state * core_state",
}


@pytest.mark.parametrize("era", _CORES)
def test_threads_wait_for_the_one_that_dumps(era: str) -> None:
    functions = "coredump_task_exit", "do_exit", "coredump_task_exit", "pipe_write"
    scene = Sleepers(_CORE + _CORES[era], *functions)
    own = {"5.10": "mm_struct", "5.16": "signal_struct"}[era]
    owner, state = scene.k.alloc(f"struct {own}"), scene.k.alloc("struct core_state")
    for lane, address in enumerate([owner.address_, owner.address_, _NOWHERE, owner.address_]):
        scene.k.write_words(scene.task[lane] + (16 if era == "5.10" else 8), address)
    scene.k.set(owner.core_state, state)
    scene.k.set(state.dumper.task, scene.task[3])
    graph, _ = scene.run(CoreDumps)
    # The third one's owner is unreadable; the fourth one is the one that dumps.
    assert scene.waits.object.tolist() == [state.address_, state.address_, 0, 0]
    assert edges(graph) == [(state.address_, HELD, scene.task[3])]
    assert scene.waits.evidence[0] == f"{own}.core_state"


def test_a_core_dump_that_is_unreadable_proves_nothing() -> None:
    scene = Sleepers(_CORE + _CORES["5.16"], "coredump_task_exit")
    signal = scene.k.alloc("struct signal_struct")
    scene.k.write_words(scene.task[0] + 8, signal.address_)
    scene.k.set(signal.core_state, _NOWHERE)
    assert len(scene.run(CoreDumps)[0]) == 0
    assert scene.waits.object.tolist() == [0]


_CHILD_TYPES = """
struct task_struct 64 : 8 struct completion * vfork_done
struct completion 32
"""
_ITEM, _NEXT = 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_0100


def test_a_parent_waits_for_the_child_that_vfork_made() -> None:
    scene = Sleepers(_CHILD_TYPES, "wait_for_vfork_done", "exec", "read")
    # The third one is the child of a task that waits for no more.
    for lane, done in ((1, _ITEM), (2, _NEXT)):
        scene.k.write_words(scene.task[lane] + 8, done)
    scene.wait(0, _ITEM, "struct completion")
    graph, _ = scene.run(Children)
    assert edges(graph) == [(_ITEM, COMPLETED_BY, scene.task[1])]
    assert graph.strength.tolist() == [int(Strength.PROVEN)]
    assert scene.faults.total() == 0
