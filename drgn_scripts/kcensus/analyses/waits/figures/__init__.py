# SPDX-License-Identifier: LGPL-2.1-or-later
"""The graph of waits, with its cycles, its roots, and the tasks behind each node."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from kcensus.analyses.waits.figures.log import Log, kernel_log
from kcensus.analyses.waits.figures.names import Names
from kcensus.analyses.waits.figures.tasks import TaskNodes
from kcensus.engine.memory import Mask, Numbers
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.tasks.hung import present, replaced
from kcensus.kernel.tasks.tasks import switches, tasks
from kcensus.kernel.waiting.cycles import Behind, Cycle, behind, cycles, roots
from kcensus.kernel.waiting.graph import Graph
from kcensus.kernel.waiting.reader import Waiting, waiting
from kcensus.results.severity import LATE

_MAX_STACKS = 32
"""Most tasks with a stack in the table."""
_MAX_LATE = 64
"""Most tasks with a stack in the table for their long sleep alone."""
_LONG_NS = 10**9
_TICK_NS = 10**7
"""Ages that differ by less are equal: the clocks of CPUs differ, too."""


class _Switches:
    """Detector of tasks that run on a live kernel while it is read.

    The waits and locks of such a task were read at different times, and do not prove a deadlock.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.tasks = tasks(kernel).address
        self.before = switches(kernel, self.tasks)

    def ran(self) -> set[int]:
        """Return the addresses of the tasks that have run since, or are unreadable."""
        moved = (switches(self.kernel, self.tasks) != self.before).any(axis=1)
        moved |= (self.before == 0).all(axis=1)
        return set(self.tasks[moved].tolist())


class Figures:
    """The graph of waits of one kernel, with its cycles, roots and names."""

    def __init__(self, kernel: Kernel) -> None:
        found = self._look(kernel)
        if self.cycles_unsteady:
            # Tasks of a deadlock may wake up for a moment, but hardly during both reads.
            found = self._look(kernel.renewed())
        with kernel.progress.step("following waits", 0):
            # Count only derived and proven edges; a possible holder is a hint.
            self.behind: Behind = behind(self.graph.sure, self.ages)
            self.tasks = TaskNodes(
                self.kernel, self.waiting, self.behind, self.task_rows, self.ages, self.is_least
            )
            self.cycles: list[Cycle] = [self._turned(cycle) for cycle in found]
            self.names = Names(self.kernel, self.waiting, self.tasks, self.behind, self.cycles)

    def _look(self, kernel: Kernel) -> list[Cycle]:
        """Read the graph; return the cycles whose tasks slept during the whole read."""
        self.kernel = kernel
        before = _Switches(kernel) if kernel.live else None
        self.waiting: Waiting = waiting(kernel)
        self.graph: Graph = self.waiting.graph
        with kernel.progress.step("looking for cycles", 0):
            found = cycles(self.graph)
        ran = before.ran() if before is not None and found else set()
        steady = [each for each in found if ran.isdisjoint(self._addresses(each))]
        self.cycles_unsteady = len(found) - len(steady)
        """Cycles with tasks that ran on a live kernel while they were read."""
        return steady

    def _addresses(self, cycle: Cycle) -> set[int]:
        return {int(self.graph.address[node]) for node in cycle.nodes if self.graph.is_task[node]}

    def _turned(self, cycle: Cycle) -> Cycle:
        """Return a cycle rotated to start with its longest sleeping task, then the lowest PID.

        Two dumps of one hang then have the same text.
        """
        tasks = [at for at, node in enumerate(cycle.nodes) if self.graph.is_task[node]]
        ages = {at: int(self.ages[cycle.nodes[at]]) // _TICK_NS for at in tasks}
        first = min(tasks, key=lambda at: (-ages[at], self.tasks.pid(cycle.nodes[at])), default=0)
        return replace(
            cycle,
            nodes=cycle.nodes[first:] + cycle.nodes[:first],
            edges=cycle.edges[first:] + cycle.edges[:first],
        )

    @cached_property
    def task_rows(self) -> Numbers:
        """Row of each node's task among all tasks, or -1."""
        rows = self.waiting.tasks.rows(self.graph.address)
        return np.where(self.graph.is_task, rows, -1)

    @cached_property
    def task_nodes(self) -> list[int]:
        """Nodes that are tasks."""
        return np.flatnonzero(self.graph.is_task).tolist()

    @cached_property
    def ages(self) -> Numbers:
        """Nanoseconds that each node's task has waited; -1 for other nodes, and if unknown."""
        return np.where(self.task_rows >= 0, np.append(self._ages[0], -1)[self.task_rows], -1)

    @cached_property
    def is_least(self) -> Mask:
        """Mask of the nodes whose task may have waited for longer than its age."""
        return np.append(self._ages[1], False)[self.task_rows]

    @cached_property
    def _ages(self) -> tuple[Numbers, Mask]:
        """Age of the wait of each task, and whether it may be longer."""
        tasks, waits = self.waiting.tasks, self.waiting.waits
        ages, is_least = tasks.off_cpu_ns.copy(), np.zeros(len(tasks), np.bool_)
        own = tasks.rows(waits.task)
        ages[own], is_least[own] = waits.since_ns, waits.is_least
        for row in np.flatnonzero((ages < 0) & tasks.is_blocked).tolist():
            # The log reports tasks that have not run for so long.
            if seconds := self.hung.get(int(tasks.pid[row])):
                ages[row], is_least[row] = seconds * 10**9, True
        return ages, is_least

    @property
    def could_look(self) -> bool:
        """Whether most sleeping tasks have a readable stack: waits are hardly known without."""
        functions = self.waiting.waits.function
        return 2 * sum(map(bool, functions)) >= len(functions)

    @cached_property
    def blocked(self) -> int:
        """Number of tasks in state D."""
        return int(self.waiting.tasks.is_blocked.sum())

    @cached_property
    def longest(self) -> float:
        """Longest wait of a task in state D, seconds."""
        return int(self._ages[0][self.waiting.tasks.is_blocked].max(initial=0)) / 1e9

    def is_sure(self, cycle: Cycle) -> bool:
        """Return whether a cycle is a deadlock, rather than a coincidence of short sleeps."""
        # A running kernel changes while it is read: two facts may never have been true together.
        if cycle.strength >= Strength.PROVEN and not self.kernel.live:
            return True
        ages = [int(self.ages[node]) for node in cycle.nodes if self.graph.is_task[node]]
        # -1: unknown.
        is_old = all(age < 0 or age >= _LONG_NS for age in ages)
        return cycle.strength >= Strength.DERIVED and is_old

    @cached_property
    def unheld(self) -> int:
        """Number of locks without a known holder, with tasks that have waited for a second or more.

        Running tasks release locks with shorter waits all the time.
        """
        graph, count = self.graph, 0
        for node, kind in enumerate(graph.kind):
            oldest = int(self.behind.oldest[node])
            if not kind.is_lock or oldest < 0 or 0 <= int(self.ages[oldest]) < _LONG_NS:
                continue
            holders = sum(
                int(graph.strength[edge]) > Strength.POSSIBLE for edge in graph.following[node]
            )
            count += not holders or holders < self.waiting.readers.get(int(graph.address[node]), 0)
        return count

    @cached_property
    def roots(self) -> list[int]:
        """Nodes that end a way of waits without a cycle, by tasks behind, then longest sleep."""
        known, tasks = roots(self.graph.sure, self.cycles), self.behind.tasks
        ages = np.append(self.ages, -1)[self.behind.oldest]
        return sorted(known, key=lambda node: (-int(tasks[node]), -int(ages[node]), node))

    @cached_property
    def cycle_of(self) -> dict[int, int]:
        """Number of the first cycle, from 1 on, with each node."""
        return {
            node: number
            for number, cycle in reversed(list(enumerate(self.cycles, 1)))
            for node in cycle.nodes
        }

    def waiters(self, *nodes: int) -> set[int]:
        """Return the tasks behind any of the nodes, by derived and proven edges."""
        seen = self.graph.sure.reached(nodes, back=True)
        return set(np.flatnonzero(seen & self.graph.is_task).tolist()) - {*nodes}

    def first_tasks(self, root: int) -> list[int]:
        """Return the nearest tasks that wait for a node, those with most waiters first."""
        is_task = self.graph.is_task
        found = self.graph.waiters(root, lambda node: not is_task[node])
        return sorted(found, key=lambda node: (-int(self.behind.tasks[node]), node))

    @cached_property
    def late(self) -> list[int]:
        """Tasks that have been in state D for long without a known request, the longest first."""
        tasks, graph = self.waiting.tasks, self.graph
        found = [
            node
            for node in self.task_nodes
            if int(self.ages[node]) >= LATE * 1e9
            and tasks.is_blocked[self.task_rows[node]]
            and self.tasks.function(node) not in ON_TIMERS
            and not any(graph.kind[each].tells_device for each in self._served_by(node))
        ]
        return sorted(found, key=lambda node: (-int(self.ages[node]), node))

    def _served_by(self, task: int) -> list[int]:
        """Return the objects that a task waits for, and what serves or holds these."""
        graph = self.graph
        objects = [int(graph.target[edge]) for edge in graph.following[task]]
        return objects + [int(graph.target[e]) for each in objects for e in graph.following[each]]

    @cached_property
    def stacks_shown(self) -> list[int]:
        """Tasks in the table of stacks: of cycles, roots, the first behind objects, and late ones.

        Other analyses lead to the late ones, too.
        """
        of_cycles = [node for cycle in self.cycles for node in cycle.nodes]
        chosen = [node for node in (*of_cycles, *self.roots) if self.graph.is_task[node]]
        for root in self.roots[:_MAX_STACKS]:
            if not self.graph.is_task[root]:
                chosen += self.first_tasks(root)[:1]
        first = list(dict.fromkeys(chosen))[:_MAX_STACKS]
        return list(dict.fromkeys((*first, *self.late[:_MAX_LATE])))

    @cached_property
    def hung(self) -> dict[int, int]:
        """Seconds in the log's last report about each task that has not run since, by PID."""
        return present(self.kernel, self.log.last)

    @cached_property
    def awaited_by_hung(self) -> Mask:
        """Which nodes are, or keep, a task that the log reports as hung and has not run since."""
        hung = [node for node in self.task_nodes if self.tasks.pid(node) in self.hung]
        return self.graph.sure.reached(hung)

    @cached_property
    def reported(self) -> set[int]:
        """PIDs of the tasks that the log reports, but for those that others have by now."""
        return self.log.last.keys() - replaced(self.kernel, self.log.last)

    @cached_property
    def log(self) -> Log:
        """Messages of the kernel log about tasks."""
        return kernel_log(self.kernel)
