# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that wait for free memory of the machine, in *synthetic* kernels."""

from __future__ import annotations

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.memory.cgroups import FREED
from kcensus.kernel.waiting.finders.memory.reclaim import FREE_MEMORY, OOM_VICTIMS, FreeMemory
from kcensus.kernel.waiting.graph import SERVED
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
struct task_struct 64 : 16 struct signal_struct * signal
struct signal_struct 64 : 8 struct mm_struct * oom_mm
struct mm_struct 64 : 8 unsigned long flags
struct wait_queue_head 16
struct pglist_data 256
    0 int node_id; 16 struct wait_queue_head pfmemalloc_wait
    64 struct wait_queue_head [4] reclaim_wait; 128 struct task_struct * kswapd
"""


class Machine(Sleepers):
    def __init__(self, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        nodes = self.k.symbols["node_data"]
        self.node = self.k.alloc("struct pglist_data", node_id=0, kswapd=self.task[-1])
        self.k.set(nodes[0], self.node)
        for other in range(1, nodes.type_.length or 0):
            self.k.set(nodes[other], 0)  # one NUMA node only

    @property
    def address(self) -> int:
        return int(self.node.address_)


def _having(scene: Machine, lane: int, *outer: str) -> None:
    """Let a task have called further functions."""
    scene.waits.stacks.names.update({int(scene.waits.stacks.pc[lane]): outer[0]})


def test_a_waiter_for_kswapd_leads_to_what_kswapd_waits_for() -> None:
    scene = Machine("throttle_direct_reclaim", "xfs_buf_lock")
    scene.wait(0, scene.address + 16, "struct wait_queue_head")
    _having(scene, 0, "try_to_free_pages")
    graph, finder = scene.run(FreeMemory)
    assert scene.waits.object[0] == scene.address
    assert links(graph) == {
        (FREE_MEMORY, scene.address, SERVED, scene.task[1], int(Strength.DERIVED))
    }
    assert finder.names[FREE_MEMORY, scene.address] == "of the machine"


def test_an_idle_kswapd_keeps_nobody() -> None:
    scene = Machine("reclaim_throttle", "kswapd")
    scene.wait(0, scene.address + 80, "struct wait_queue_head")
    _having(scene, 0, "do_try_to_free_pages")
    graph, _ = scene.run(FreeMemory)
    assert scene.waits.object[0] == scene.address
    assert not len(graph.source)


def test_reclaim_of_a_cgroup_is_not_that_of_the_machine() -> None:
    scene = Machine("reclaim_throttle", "kswapd")
    scene.wait(0, scene.address + 80, "struct wait_queue_head")
    _having(scene, 0, "try_to_free_mem_cgroup_pages")
    scene.run(FreeMemory)
    assert scene.waits.object[0] == scene.address + 80


def _kill(scene: Machine, lane: int) -> None:
    signal = scene.k.alloc("struct signal_struct", oom_mm=scene.k.alloc("struct mm_struct"))
    scene.k.write_words(scene.task[lane] + 16, int(signal.address_))


def test_a_victim_in_state_d_keeps_those_that_ran_out_of_memory() -> None:
    scene = Machine("out_of_memory", "xfs_buf_lock", "kswapd")
    _kill(scene, 1)
    graph, _ = scene.run(FreeMemory)
    assert links(graph) == {
        (FREE_MEMORY, scene.address, FREED, scene.task[1], int(Strength.DERIVED))
    }


def test_the_oom_killer_of_a_cgroup_is_not_that_of_the_machine() -> None:
    scene = Machine("out_of_memory", "xfs_buf_lock", "kswapd")
    _having(scene, 0, "mem_cgroup_out_of_memory")
    _kill(scene, 1)
    assert not len(scene.run(FreeMemory)[0].source)


def test_a_suspend_waits_for_victims() -> None:
    scene = Machine("oom_killer_disable", "xfs_buf_lock", "kswapd")
    queue = int(scene.k.variable("oom_victims_wait", "struct wait_queue_head").address_)
    _kill(scene, 1)
    graph, _ = scene.run(FreeMemory)
    assert scene.waits.object[0] == queue
    assert links(graph) == {(OOM_VICTIMS, queue, FREED, scene.task[1], int(Strength.DERIVED))}
