# SPDX-License-Identifier: LGPL-2.1-or-later
"""Areas of memory maps in words of *synthetic* kernels."""

from __future__ import annotations

import pytest

from kcensus.kernel.waiting.finders.locks.areas import AREA, Areas
from kcensus.kernel.waiting.graph import HELD
from tests.unit.kernel.waiting.making import Sleepers, edges

_NOWHERE = 0xFFFF_C900_0000_0000
_AREA = """
struct task_struct 64 : 8 struct mm_struct * mm
struct mm_struct 64 : 8 struct rcuwait vma_writer_wait
struct rcuwait 8 : 0 struct task_struct * task
struct refcount_t 4 : 0 int refs
struct atomic_t 4 : 0 int counter
struct refcount_struct 4 : 0 struct atomic_t refs
struct vm_area_struct 64 : 16 struct mm_struct * vm_mm; 32 struct refcount_struct vm_refcnt
"""


@pytest.mark.parametrize("count", [0x40000002, 2])
def test_areas_of_memory_maps(count: int) -> None:
    scene = Sleepers(_AREA, "__vma_start_write", "handle_mm_fault", "handle_mm_fault", "read")
    k = scene.k
    memory, others = k.alloc("struct mm_struct"), k.alloc("struct mm_struct")
    area = k.alloc("struct vm_area_struct", vm_mm=memory)
    k.set(memory.vma_writer_wait.task, scene.task[0])
    k.set(area.vm_refcnt.refs.counter, count)
    for lane, mm in enumerate((memory, memory, others, memory)):
        k.write_words(scene.task[lane] + 8, mm.address_)
        # The last of them has no page fault, the one before it is in another memory map.
        scene.put(lane, _NOWHERE, area.address_)
    graph, _ = scene.run(Areas)
    if count == 2:
        # No writer keeps readers out.
        assert (len(graph), scene.waits.object.tolist()) == (0, [0] * 4)
        return
    assert int(scene.waits.object[0]) == area.address_
    assert edges(graph) == [(area.address_, HELD, scene.task[1])]
    assert graph.kind.count(AREA) == 1
