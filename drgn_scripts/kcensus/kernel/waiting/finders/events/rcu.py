# SPDX-License-Identifier: LGPL-2.1-or-later
"""CPUs and tasks that hold up grace periods of RCU.

A grace period ends when each CPU has been outside of all read-side sections, and each task that was
preempted inside of one has left it. The leaves of a tree of ``struct rcu_node`` have a bit per CPU
that is still due, and the list of those tasks. Grace periods of SRCU and of RCU Tasks are not read:
they stay completions.
"""

from __future__ import annotations

from dataclasses import dataclass

import drgn
import numpy as np

from kcensus.engine.chase import Damage, collect, pointer_step
from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Mask, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import ABSENT
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.run_queues import run_queues
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.cpus.occupied import CPU, add_cpus
from kcensus.kernel.waiting.graph import COMPLETION, QUEUED, SERVED, TASK, EdgeKind, NodeKind

_MAX_NODES = 1 << 10
"""NUM_RCU_NODES of 8,192 CPUs is 529."""
_MAX_READERS = 1 << 16
"""Most tasks that were preempted in read-side sections, per node."""
_SEQUENCE_STATE = np.uint64(3)
"""RCU_SEQ_STATE_MASK: not 0 while a grace period is in progress."""
_SCHED = frozenset({"synchronize_sched", "cond_synchronize_sched", "synchronize_sched_expedited"})
_NORMAL = frozenset(
    {"synchronize_rcu", "synchronize_rcu_normal", "synchronize_rcu_expedited"}
    | {"cond_synchronize_rcu", "cond_synchronize_rcu_full", *_SCHED}
)
"""Functions that wait for a grace period; expedited ones fall back to a normal one on request."""
_SLEEPS = _NORMAL | {"__wait_rcu_gp", "wait_rcu_gp"}
_EXPEDITED = frozenset(
    {"synchronize_rcu_expedited", "synchronize_sched_expedited", "_synchronize_rcu_expedited"}
)
_EXPEDITING = frozenset(
    {"synchronize_rcu_expedited_wait", "synchronize_rcu_expedited_wait_once"}
    | {"synchronize_sched_expedited_wait", "rcu_exp_wait_wake", "rcu_exp_sel_wait_wake"}
    | {"wait_rcu_exp_gp"}
)
"""Functions of the worker that makes an expedited grace period, and waits for its end."""
_BARRIERS = frozenset({"rcu_barrier", "_rcu_barrier"})
_STATE, _NODE = "struct rcu_state", "struct rcu_node"


@dataclass(frozen=True)
class _Flavor:
    """RCU, or up to v4.19 one of its flavors."""

    state: drgn.Object
    nodes: Words
    """All ``struct rcu_node``, the root first."""
    read: Gathered

    @property
    def address(self) -> int:
        return int(self.state.address_ or 0)

    @property
    def is_leaf(self) -> Mask:
        level = self.read["level"]
        return np.asarray(self.read.readable & (level == level.max(initial=0)))


GRACE_PERIOD = NodeKind("RCU grace period", (_STATE, _NODE))
HELD_UP = EdgeKind(
    "held up by", "holds up", advice="Only the task itself can leave its RCU read-side section"
)


class GracePeriods(Finder):
    """Finds the grace periods that tasks wait for, and the CPUs and tasks that hold them up."""

    about = "grace periods of RCU"
    kinds = (GRACE_PERIOD,)

    def note(self) -> None:
        """Note grace periods, and the CPUs and tasks that hold them up.

        :raises LookupError: the debug info lacks a type or variable
        """
        lanes = self._having(_NORMAL | _EXPEDITED | _EXPEDITING | _BARRIERS)
        flavors: dict[str, _Flavor] = {}
        normal, expedited = dict[int, _Flavor](), dict[int, _Flavor]()
        for lane in lanes.tolist():
            names = {plain(name) for name in self.waits.stacks.functions(lane)}
            variable = self._variable(names)
            if variable not in flavors:
                flavors[variable] = self._flavor(variable)
            flavor = flavors[variable]
            function, type_ = self.waits.function[lane], self.type[lane]
            root = int(flavor.nodes[0])
            if function in _SLEEPS and type_ == "struct completion":
                self._note(lane, flavor.address, _STATE, "rcu_synchronize.completion")
                normal[flavor.address] = flavor
            elif function in _EXPEDITED and self._is_inside(flavor, int(self.object[lane])):
                self._note(lane, root, _NODE, "rcu_node.exp_wq")
                expedited[root] = flavor
            elif function in _EXPEDITING and not self.object[lane]:
                self._note(lane, root, _NODE, "rcu_state.expedited_wq")
                expedited[root] = flavor
            elif function in _BARRIERS and type_ == "struct completion":
                # The awaited callbacks run after a grace period.
                self.build.edges(
                    QUEUED,
                    (COMPLETION, self.object[[lane]]),
                    (GRACE_PERIOD, np.array([flavor.address], np.uint64)),
                    "rcu_barrier: callbacks run after a grace period",
                    strength=Strength.DERIVED,
                )
                normal[flavor.address] = flavor
        for flavor in normal.values():
            self._name(flavor, flavor.address, _STATE, "")
            if not self._is_in_progress(flavor):
                # Without a grace period, no task holds it up.
                self.draft.torn += int(flavor.read["gp_tasks"].any())
                self._thread(flavor)
            elif not self._held_up(flavor, flavor.address, "qsmask", "gp_tasks"):
                self._thread(flavor)
        for root, flavor in expedited.items():
            self._name(flavor, root, _NODE, " (expedited)")
            self._held_up(flavor, root, "expmask", "exp_tasks")

    def _variable(self, names: set[str]) -> str:
        """Return the variable with the state of the flavor in the functions of a stack."""
        # Since v4.20 (commit not verified), the only flavor has the variable rcu_state. Before,
        # synchronize_rcu() waits for preemptible readers, if the kernel has them.
        wanted = ["rcu_state", "rcu_preempt_state", "rcu_sched_state"]
        if names & _SCHED:
            wanted.remove("rcu_preempt_state")
        for name in wanted:
            try:
                self.kernel.prog.variable(name)
            except LookupError:
                continue
            return name
        raise LookupError("the debug info has no rcu_state")

    def _flavor(self, variable: str) -> _Flavor:
        prog = self.kernel.prog
        state = prog[variable]
        array = state.node
        known, count = array.type_.length or 0, 0
        try:
            count = int(prog["rcu_num_nodes"])
        except ABSENT:
            count = known
        count = min(count if 0 < count <= known else known, _MAX_NODES)
        stride = np.uint64(drgn.sizeof(array.type_.type))
        nodes = np.uint64(array.address_) + np.arange(count, dtype=np.uint64) * stride
        members = {name: name for name in ("qsmask", "level", "grplo", "gp_tasks")}
        # Since v4.3 (commit not verified), expedited grace periods use the tree, too.
        optional = {name: name for name in ("expmask", "exp_tasks")}
        columns = layout(prog, _NODE, members, optional)
        return _Flavor(state, nodes, gather(self.kernel.memory, nodes, columns, self.faults))

    def _is_inside(self, flavor: _Flavor, address: int) -> bool:
        size = int(drgn.sizeof(self.kernel.prog.type(_STATE)))
        return flavor.address <= address < flavor.address + size

    def _name(self, flavor: _Flavor, address: int, type_: str, suffix: str) -> None:
        node = GRACE_PERIOD, address
        self.types[node] = type_
        try:
            name = flavor.state.name.string_().decode("ascii", "replace")
        except (*ABSENT, AttributeError):
            name = "RCU"
        self.names[node] = f"of {name}{suffix}"

    # Holders of a grace period

    def _held_up(self, flavor: _Flavor, node: int, mask: str, list_: str) -> bool:
        """Add the CPUs and tasks that hold up a grace period; return whether any is busy."""
        cpus = self._cpus(flavor, node, mask)
        return self._readers(flavor, node, list_) or cpus

    def _is_in_progress(self, flavor: _Flavor) -> bool:
        state = flavor.state
        # Since v4.19 (commit not verified), a sequence number tells; before, two numbers differ.
        if state.type_.has_member("gp_seq"):
            return bool(int(state.gp_seq) & int(_SEQUENCE_STATE))
        return int(state.gpnum) != int(state.completed)

    def _cpus(self, flavor: _Flavor, node: int, mask: str) -> bool:
        """Add the CPUs that have not reported; return whether any of them is busy."""
        if mask not in flavor.read.columns:
            return False
        leaves = np.flatnonzero(flavor.is_leaf)
        bits = flavor.read[mask][leaves].astype(np.uint64)
        shifted = bits[:, None] >> np.arange(64, dtype=np.uint64)
        leaf, bit = np.nonzero(shifted & np.uint64(1))
        number = flavor.read["grplo"][leaves[leaf]].astype(np.int64) + bit
        if not len(number):
            return False
        queues = run_queues(self.kernel)
        known = [at for at, each in enumerate(number.tolist()) if each in queues.row]
        self.draft.torn += len(number) - len(known)
        row = np.array([queues.row[int(number[at])] for at in known], np.int64)
        place = flavor.nodes[leaves[leaf[known]]] + self._offset(_NODE, mask)
        source = GRACE_PERIOD, np.full(len(row), node, np.uint64)
        target = CPU, queues.address[row]
        self.build.edges(HELD_UP, source, target, f"rcu_node.{mask}", place=place)
        return bool(len(add_cpus(self, row)))

    def _readers(self, flavor: _Flavor, node: int, list_: str) -> bool:
        """Add the tasks that were preempted in read-side sections; return whether any was."""
        if list_ not in flavor.read.columns:
            return False
        prog, memory = self.kernel.prog, self.kernel.memory
        first = flavor.read[list_].astype(np.uint64)
        used = np.flatnonzero(first)
        task = prog.type("struct task_struct")
        # Without CONFIG_PREEMPT_RCU, no reader is preempted.
        if not len(used) or not task.has_member("rcu_blocked_node"):
            return False
        link, damage = layout(prog, "struct list_head", ["next"]), Damage()
        ends = flavor.nodes[used] + self._offset(_NODE, "blkd_tasks")
        step = pointer_step(memory, link, "next", self.faults)
        lane, entry = collect(first[used], step, limit=_MAX_READERS, damage=damage, ends=ends)
        tasks = entry - np.uint64(drgn.offsetof(task, "rcu_node_entry"))
        owner = self._member("struct task_struct", "rcu_blocked_node", tasks)
        own = flavor.nodes[used[lane]]
        sound = np.flatnonzero((self.known.rows(tasks) >= 0) & (owner == own))
        self.draft.torn += damage.lists
        source, target = (GRACE_PERIOD, np.full(len(sound), node, np.uint64)), (TASK, tasks[sound])
        evidence = f"rcu_node.{list_}"
        self.build.edges(HELD_UP, source, target, evidence, mode="read", place=entry[sound])
        return bool(len(sound))

    def _thread(self, flavor: _Flavor) -> None:
        """Add the thread of the grace periods, as the only one that holds up this one."""
        try:
            thread = np.array([int(flavor.state.gp_kthread)], np.uint64)
        except ABSENT:
            return
        if self.known.rows(thread)[0] >= 0:
            self.build.edges(
                SERVED,
                (GRACE_PERIOD, np.array([flavor.address], np.uint64)),
                (TASK, thread),
                "rcu_state.gp_kthread",
                strength=Strength.DERIVED,
            )


FINDER = GracePeriods
