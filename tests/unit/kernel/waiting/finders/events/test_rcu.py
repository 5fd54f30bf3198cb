# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds up grace periods of RCU, in words of *synthetic* kernels."""

from __future__ import annotations

import pytest
from drgn import Object

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.cpus.occupied import CPU, RUNS
from kcensus.kernel.waiting.finders.events.rcu import GRACE_PERIOD, HELD_UP, GracePeriods
from kcensus.kernel.waiting.graph import COMPLETION, QUEUED, SERVED, EdgeKind, Graph, NodeKind
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
typedef u8 unsigned char
struct rcu_node 64
    0 unsigned long qsmask; 8 u8 level; 12 int grplo; 16 struct list_head blkd_tasks
    32 struct list_head * gp_tasks; 40 unsigned long expmask; 48 struct list_head * exp_tasks
struct rcu_state 256
    0 struct rcu_node [3] node; 192 unsigned long gp_seq; 200 struct task_struct * gp_kthread
    208 char * name; 216 char [16] expedited_wq
struct rq 32 : 0 struct task_struct * curr; 8 struct task_struct * idle; 16 int cpu; 20 int online
struct task_struct 64
    16 struct list_head tasks; 32 struct list_head rcu_node_entry
    48 struct rcu_node * rcu_blocked_node
"""


class Readers(Sleepers):
    """A kernel with two leaves, each of 64 CPUs: CPU 0 is of the first one; task 0 waits."""

    def __init__(self, *functions: str, variable: str = "rcu_state") -> None:
        super().__init__(_TYPES, *functions)
        self.wait(0, 0x1234, "struct completion")
        self.state = self.k.variable(variable, "struct rcu_state")
        self.k.fill(self.state, gp_seq=4 * 7 + 1, gp_kthread=self.task[-1], name=b"rcu_preempt")
        self.k.constant("rcu_num_nodes", 3, "int")
        for number in (1, 2):
            self.k.fill(self.state.node[number], level=1, grplo=64 * (number - 1))
        queues = self.k.percpu_of("struct rq")
        self.k.symbols["runqueues"] = Object(self.k.prog, "struct rq", address=queues)
        self.queues = [self.k.per_cpu("struct rq", queues, cpu) for cpu in (0, 1)]
        for cpu, queue in enumerate(self.queues):
            self.k.fill(queue, curr=self.task[0], cpu=cpu, online=1)

    def preempt(self, lane: int, leaf: int, which: str = "gp_tasks") -> None:
        """Preempt a task in a read-side section, as the last one of a leaf."""
        node, task = self.state.node[leaf], self.task[lane]
        entry = Object(self.k.prog, "struct task_struct", address=task).rcu_node_entry
        if not node.blkd_tasks.next:
            self.k.list_init(node.blkd_tasks)
        self.k.list_add_tail(entry, node.blkd_tasks)
        self.k.write_words(task + 48, node.address_)
        if not node.member_(which):
            self.k.set(node.member_(which), entry.address_)


def _edges(graph: Graph) -> set[tuple[NodeKind, EdgeKind, int, int]]:
    return {(kind, edge, to, sure) for kind, _, edge, to, sure in links(graph)}


_PERIOD, _PROVEN, _DERIVED = GRACE_PERIOD, int(Strength.PROVEN), int(Strength.DERIVED)


def test_a_cpu_that_has_not_reported_and_its_task() -> None:
    scene = Readers("synchronize_rcu", "rcu_gp_kthread")
    scene.k.set(scene.state.node[1].qsmask, 1)
    # The bits of the root are leaves.
    scene.k.set(scene.state.node[0].qsmask, 3)
    graph, found = scene.run(GracePeriods)
    assert scene.waits.object[0] == scene.state.address_
    assert scene.waits.type[0] == "struct rcu_state"
    cpu = scene.queues[0].address_
    assert _edges(graph) == {(_PERIOD, HELD_UP, cpu, _PROVEN), (CPU, RUNS, scene.task[0], _DERIVED)}
    assert found.names[CPU, cpu] == "0"
    assert found.names[_PERIOD, scene.state.address_] == "of rcu_preempt"


@pytest.mark.parametrize("state", ["idle", "offline"])
def test_a_cpu_without_a_task_to_blame(state: str) -> None:
    scene = Readers("synchronize_rcu", "rcu_gp_kthread")
    scene.k.set(scene.state.node[1].qsmask, 2)
    if state == "idle":
        scene.k.set(scene.queues[1].idle, scene.task[0])
    else:
        scene.k.set(scene.queues[1].online, 0)
    graph, found = scene.run(GracePeriods)
    cpu = scene.queues[1].address_
    # The thread of the grace periods reports for it.
    assert _edges(graph) == {
        (_PERIOD, HELD_UP, cpu, _PROVEN),
        (_PERIOD, SERVED, scene.task[1], _DERIVED),
    }
    assert found.names[CPU, cpu] == f"1 ({state})"


def test_tasks_that_were_preempted() -> None:
    scene = Readers("__wait_rcu_gp", "earlier", "first", "second", "damaged", "rcu_gp_kthread")
    scene.waits.stacks.names[int(scene.waits.stacks.pc[0])] = "synchronize_rcu"
    for lane in (1, 2, 3, 4):
        scene.preempt(lane, 2)
    # The first one came before the grace period was, and the last one is of another leaf.
    entry = Object(scene.k.prog, "struct task_struct", address=scene.task[2]).rcu_node_entry
    scene.k.set(scene.state.node[2].gp_tasks, entry.address_)
    scene.k.write_words(scene.task[4] + 48, scene.state.node[1].address_)
    graph, _ = scene.run(GracePeriods)
    assert _edges(graph) == {(_PERIOD, HELD_UP, scene.task[lane], _PROVEN) for lane in (2, 3)}


def test_no_grace_period_is_in_progress() -> None:
    scene = Readers("synchronize_rcu", "rcu_gp_kthread")
    scene.k.set(scene.state.node[1].qsmask, 1)
    scene.k.set(scene.state.gp_seq, 4 * 7)
    graph, _ = scene.run(GracePeriods)
    assert _edges(graph) == {(_PERIOD, SERVED, scene.task[1], _DERIVED)}


def test_expedited_ones_have_their_own_bits_and_tasks() -> None:
    scene = Readers("synchronize_rcu_expedited", "synchronize_rcu_expedited_wait_once", "reader")
    scene.wait(0, scene.state.node[2].address_ + 24, "struct wait_queue_head")
    scene.k.set(scene.state.node[1].expmask, 1)
    scene.preempt(2, 1, "exp_tasks")
    graph, found = scene.run(GracePeriods)
    root = scene.state.node[0].address_
    assert scene.waits.object.tolist() == [root, root, 0]
    assert _edges(graph) == {
        (_PERIOD, HELD_UP, scene.queues[0].address_, _PROVEN),
        (_PERIOD, HELD_UP, scene.task[2], _PROVEN),
        (CPU, RUNS, scene.task[0], _DERIVED),
    }
    assert found.names[_PERIOD, root] == "of rcu_preempt (expedited)"


@pytest.mark.parametrize(
    ("function", "wanted"),
    [("synchronize_sched", "rcu_sched_state"), ("synchronize_rcu", "rcu_preempt_state")],
)
def test_flavors_before_4_20(function: str, wanted: str) -> None:
    scene = Readers(function, "rcu_gp_kthread", variable="rcu_sched_state")
    scene.k.symbols["rcu_preempt_state"] = scene.k.alloc("struct rcu_state")
    scene.run(GracePeriods)
    assert scene.waits.object[0] == scene.k.symbols[wanted].address_


@pytest.mark.parametrize("function", ["synchronize_rcu_tasks", "synchronize_srcu", "read"])
def test_other_completions_stay(function: str) -> None:
    scene = Readers(function, "rcu_gp_kthread")
    graph, _ = scene.run(GracePeriods)
    assert (scene.waits.object[0], len(graph.source)) == (0x1234, 0)


def test_a_barrier_is_behind_a_grace_period() -> None:
    scene = Readers("rcu_barrier", "rcu_gp_kthread")
    graph, _ = scene.run(GracePeriods)
    assert scene.waits.object[0] == 0x1234
    assert (COMPLETION, QUEUED, scene.state.address_, _DERIVED) in _edges(graph)


def test_a_list_of_readers_that_is_torn() -> None:
    scene = Readers("synchronize_rcu", "reader", "rcu_gp_kthread")
    scene.preempt(1, 1)
    scene.k.write_words(scene.task[1] + 32, 0xFFFF_C900_0000_0000)
    graph, found = scene.run(GracePeriods)
    assert _edges(graph) == {(_PERIOD, HELD_UP, scene.task[1], _PROVEN)}
    assert found.draft.torn == 1
