# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of the nodes of the graph."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from kcensus.analyses.waits.figures.tasks import State, TaskNodes
from kcensus.engine.gather import within
from kcensus.engine.memory import Faults
from kcensus.human import listed
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.processes import path_of, states_of
from kcensus.kernel.names import ABSENT
from kcensus.kernel.symbols import image_range, symbols_of
from kcensus.kernel.waiting.cycles import Behind, Cycle
from kcensus.kernel.waiting.graph import PROCESS, TASK, NodeKind
from kcensus.kernel.waiting.identities import worker_names
from kcensus.kernel.waiting.reader import Waiting
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable, task_name

_MAX_NAMED = 1 << 10
"""Most objects to look up symbols for, by number of tasks behind them."""
_MAX_LISTED = 3
"""Most programs or memory cgroups in a sentence."""
_MAX_CGROUPS = 16
"""Most memory cgroups to name, by number of tasks."""
_MAX_IDENTIFIED = 64
"""Most objects to identify outside of cycles, by number of tasks behind them."""


class Names:
    """Names of nodes: of tasks, of variables, and of the owners of locks."""

    def __init__(
        self,
        kernel: Kernel,
        waiting: Waiting,
        tasks: TaskNodes,
        behind: Behind,
        cycles: Sequence[Cycle],
    ) -> None:
        self._kernel, self._waiting, self._graph = kernel, waiting, waiting.graph
        self._tasks, self._behind, self._cycles = tasks, behind, cycles

    @cached_property
    def _symbols(self) -> dict[int, str]:
        inside = within(self._graph.address, image_range(self._kernel.prog))
        static = np.flatnonzero(inside & ~self._graph.is_task)
        order = static[np.argsort(-self._behind.tasks[static], kind="stable")][:_MAX_NAMED]
        names = {}
        for node in order.tolist():
            name = symbols_of(self._kernel).variable(int(self._graph.address[node]))
            if name:
                names[node] = printable(name)
        return names

    @cached_property
    def _identities(self) -> dict[int, str]:
        """Names of the objects in cycles, and of the objects with most tasks behind them."""
        graph, count = self._graph, _MAX_IDENTIFIED
        inside = [node for cycle in self._cycles for node in cycle.nodes]
        objects = np.flatnonzero(~graph.is_task & (self._behind.tasks > 0))
        most = objects[np.argsort(-self._behind.tasks[objects], kind="stable")][:count].tolist()
        nodes = [node for node in dict.fromkeys((*inside, *most)) if not graph.is_task[node]]
        addresses = {node: int(graph.address[node]) for node in nodes[: 2 * count]}
        by_kind: dict[NodeKind, list[int]] = {}
        for node in addresses:
            by_kind.setdefault(graph.kind[node], []).append(node)
        found: dict[int, str] = {}
        for finder in self._waiting.finders:
            for kind in finder.kinds:
                own = by_kind.get(kind, [])
                names = finder.identify(kind, [addresses[node] for node in own]) if own else {}
                found |= {node: names[addresses[node]] for node in own if addresses[node] in names}
        return found

    @cached_property
    def _workers(self) -> dict[int, str]:
        return worker_names(self._kernel)

    def object(self, node: int) -> str:
        """Return the name of a process, or the variable or address of another object."""
        if self._graph.kind[node] is PROCESS:
            threads = [
                int(self._graph.target[edge])
                for edge in self._graph.following[node]
                if self._graph.kind[int(self._graph.target[edge])] is TASK
            ]
            if threads:
                first = min(threads, key=self._tasks.pid)
                return task_name(self._tasks.comm(first), self._tasks.pid(first))
        key = self._graph.kind[node], int(self._graph.address[node])
        if known := self._waiting.names.get(key):
            state = self._waiting.states.get(key)
            return printable(f"{known}, {state}" if state else known)
        if node in self._identities:
            return printable(self._identities[node])
        return self._symbols.get(node) or f"0x{int(self._graph.address[node]):x}"

    def place(self, node: int) -> str:
        """Return where a node is, such as ``stacked on vda, vdb``; empty if no edge says."""
        graph, names = self._graph, dict[str, list[str]]()
        for edge in graph.following[node]:
            if not graph.edge[edge].is_wait:
                name = self.object(int(graph.target[edge]))
                names.setdefault(graph.edge[edge].value, []).append(name)
        return ", ".join(f"{where} {listed(each)}" for where, each in sorted(names.items()))

    def programs(self, nodes: Iterable[int]) -> Iterator[str]:
        """Yield the names of most tasks, and their memory cgroups but for the root."""
        tasks = [node for node in nodes if self._tasks.pid(node)]
        names = Counter(self._tasks.comm(node) for node in tasks)
        if len(tasks) > 1:
            yield f"programs: {_most(names)}"
        address = self._graph.address[np.array(tasks, np.int64)]
        with contextlib.suppress(*ABSENT, NotRecorded):
            states = Counter(states_of(self._kernel, address, Faults()).tolist())
            named = {
                path_of(self._kernel, state): count
                for state, count in states.most_common(_MAX_CGROUPS)
                if state
            }
            if paths := Counter({path: n for path, n in named.items() if path != "/"}):
                yield f"memory cgroups: {_most(paths)}"

    def of(self, node: int) -> str:
        """Return the name of a node in a sentence."""
        if self._graph.kind[node] is TASK:
            pid = self._tasks.pid(node)
            if not pid:
                address = int(self._graph.address[node])
                is_known = self._tasks.state(node) is State.EXITED
                # Its memory may belong to another task by now, with another name in it.
                return f"{'an exited task' if is_known else 'a task on no list'} (0x{address:x})"
            # A worker has the name of its workqueue appended, as in ps.
            comm = self._tasks.comm(node)
            queue = self._workers.get(pid) if comm.startswith("kworker/") else None
            return task_name(f"{comm}+{queue}" if queue else comm, pid)
        return f"{self._graph.kind[node].value} {self.object(node)}"


def _most(counts: Counter[str]) -> str:
    """Return the most frequent names, with their numbers, as text."""
    return listed(
        [f"{printable(name)} ({count:,})" for name, count in counts.most_common()], _MAX_LISTED
    )
