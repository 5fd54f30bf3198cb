# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests, holders and disks of the tasks in state D, as the graph of waits has them."""

from __future__ import annotations

import numpy as np

from kcensus.engine.memory import Numbers
from kcensus.engine.rows import spread
from kcensus.kernel.block.disks import Disk
from kcensus.kernel.block.requests import Requests
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.io.requests import REQUEST
from kcensus.kernel.waiting.graph import HELD, TASK, WAITS, Graph
from kcensus.kernel.waiting.joined import Joins
from kcensus.kernel.waiting.reader import Waiting


def requests_of(waiting: Waiting, requests: Requests) -> Joins:
    """Return the pairs of a task in state D and a request that it waits for.

    The request serves the object of the wait, or is itself the object.
    """
    graph = waiting.graph
    node, first = _objects(waiting)
    is_request = np.array([kind is REQUEST for kind in graph.kind], np.bool_)
    to_request = np.flatnonzero(is_request[graph.target])
    to_request = to_request[np.argsort(graph.source[to_request], kind="stable")]
    source = graph.source[to_request]
    ends = np.searchsorted(source, node, "left"), np.searchsorted(source, node, "right")
    lane, index = spread(ends[1] - ends[0])
    edge = to_request[ends[0][lane] + index]
    lane = first[lane]
    row = requests.rows(graph.address[graph.target[edge]])
    order = np.lexsort((row, lane))
    lane, row, edge = lane[order], row[order], edge[order]
    evidence = [graph.evidence[each] for each in edge.tolist()]
    is_proven = graph.strength[edge] > int(Strength.POSSIBLE)
    return Joins(lane, row, np.asarray(is_proven), evidence)


def behind_tasks(waiting: Waiting, rows: Numbers) -> Numbers:
    """Return which of some tasks in state D surely wait for a task that waits for a request."""
    graph, tasks = waiting.graph.sure, waiting.blocked.task
    requests = [node for node, kind in enumerate(graph.kind) if kind is REQUEST]
    waiters = np.flatnonzero(graph.reached(requests, back=True) & graph.is_task)
    before = {
        int(graph.source[edge]) for node in waiters.tolist() for edge in graph.preceding[node]
    }
    is_behind = graph.reached(before, back=True)
    nodes = [graph.index[TASK, task] for task in tasks[rows].tolist()]
    return rows[is_behind[nodes]]


def holders(waiting: Waiting) -> Numbers:
    """Return the PID of the holder of the object of each task in state D; 0 if unknown."""
    graph, found = waiting.graph, np.zeros(len(waiting.blocked), np.int64)
    pids = np.append(waiting.tasks.pid, 0)
    for node, lane in zip(*(part.tolist() for part in _objects(waiting)), strict=True):
        held = [edge for edge in graph.following[node] if graph.edge[edge] is HELD]
        if held:
            best = max(held, key=lambda edge: int(graph.strength[edge]))
            task = graph.address[graph.target[[best]]]
            found[lane] = pids[waiting.tasks.rows(task)][0]
    return found


def disk_names(waiting: Waiting, disks: tuple[Disk, ...]) -> list[str]:
    """Return the name of the disk of each task's object; empty if unknown; not safe to print."""
    names = {disk.address: disk.name for disk in disks}
    return [names.get(disk, "") for disk in waiting.blocked.disk.tolist()]


def _objects(waiting: Waiting) -> tuple[Numbers, Numbers]:
    """Return the nodes that tasks in state D wait for, and the row of the task of each.

    The task is one of these nodes: without an object, it waits for requests itself.
    """
    graph, tasks = waiting.graph, waiting.blocked.task.tolist()
    nodes = [graph.index[TASK, task] for task in tasks]
    pairs = [
        (node, lane) for lane, task in enumerate(nodes) for node in (task, *_awaited(graph, task))
    ]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _awaited(graph: Graph, task: int) -> list[int]:
    edges = graph.following[task]
    targets = [int(graph.target[edge]) for edge in edges if graph.edge[edge] is WAITS]
    return [node for node in targets if graph.kind[node] is not REQUEST]
