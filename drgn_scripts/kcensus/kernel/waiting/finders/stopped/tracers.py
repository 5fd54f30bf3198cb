# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debuggers whose stopped tasks others wait for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kcensus.kernel.tasks.tasks import TRACED
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import TASK, EdgeKind, Graph

TRACES = EdgeKind("stopped by its tracer", "traces")


class Tracers(Finder):
    """Finds the debuggers of stopped tasks, and the objects that all stopped tasks keep."""

    about = "tracers of stopped tasks"

    def find(self) -> None:
        """Add edges from tasks that a debugger has stopped to their debuggers."""
        is_traced = (self.known.state & np.uint64(TRACED)) != 0
        tasks = self.known.address[is_traced & ~self.known.has_exited]
        if not len(tasks):
            return
        # The parent of a traced task is its tracer.
        read = self._read("struct task_struct", tasks, ["ptrace", "parent"])
        kept = read.readable & (read["ptrace"] != 0) & (self.known.rows(read["parent"]) >= 0)
        self.build.edges(
            TRACES,
            (TASK, tasks[kept]),
            (TASK, read["parent"][kept]),
            "task.parent, task.ptrace",
            place=tasks[kept] + self._offset("struct task_struct", "parent"),
        )

    def of_interest(self, graph: Graph) -> Iterable[int]:
        """Return the objects of waits in state S that a stopped task keeps.

        An interactive program waits for its user, which is normal; a stopped one serves nobody.
        """
        shown = [node for node, kind in enumerate(graph.kind) if kind.shows_stopped]
        if not shown:
            return
        stops = self.known.is_stopped | self.known.is_frozen | self.known.is_trapped
        stopped = self.known.address[np.broadcast_to(stops, len(self.known))]
        nodes = np.flatnonzero(graph.is_task & np.isin(graph.address, stopped)).tolist()
        behind = graph.reached(nodes, back=True)
        yield from (node for node in shown if behind[node])


FINDER = Tracers
