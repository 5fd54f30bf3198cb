# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks of *synthetic* kernels in the graph of waits."""

from __future__ import annotations

import drgn

from kcensus.kernel.tasks.waits import sleeps
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.graph import EdgeKind
from kcensus.kernel.waiting.reader import unread_code, waiting
from tests.unit.kernel.waiting.making import Sleepers, edges

_TYPES = {
    "struct task_struct": (64, "8 struct mm_struct * mm"),
    # Of a kernel before v4.10, without CONFIG_SMP.
    "struct mutex": (16, "0 int count"),
    "struct rw_semaphore": (16, "0 long count\n8 struct task_struct * owner"),
    "struct slow_readers": (4, "0 int counter"),
    "struct mm_struct": (64, "0 struct rw_semaphore mmap_sem"),
}
_PERCPU = "struct percpu_rw_semaphore"
_PERCPU_OF_4_4 = (
    32,
    "0 struct rw_semaphore rw_sem\n16 unsigned int * fast_read_ctr"
    "\n24 struct slow_readers slow_read_ctr",
)


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
    assert (rwsem, EdgeKind.HELD, scene.task[2]) in edges(found.graph)
    assert "owners of struct mutex" in found.missing
    assert "owners of struct rw_semaphore" not in found.missing
    assert unread_code(scene.k.prog.platform) == []


def test_code_of_another_architecture_is_said_not_to_be_read() -> None:
    (said,) = unread_code(drgn.Platform(drgn.Architecture.AARCH64))
    assert "aarch64" in said
    assert unread_code(None) == []


def test_a_writer_that_waits_for_readers_does_not_wait_for_itself() -> None:
    """Before v4.8, its queue is not called after it, and the inner rwsem says that it has it."""
    scene = Sleepers({**_TYPES, _PERCPU: _PERCPU_OF_4_4}, "drains", "reads")
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
