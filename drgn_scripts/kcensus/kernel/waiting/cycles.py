# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cycles of a graph of waits, what all wait for, and how many are behind each node.

A node is *stuck* if it can never make progress: a task that waits for something stuck; a lock of
which any holder is stuck; a pipe of which all other ends are. Cycles are looked for among stuck
nodes only: where one process of several that have a pipe open still runs, there is no deadlock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Mask
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.graph import EdgeKind, Graph

Numbers = npt.NDArray[np.int64]

_MAX_STARTS = 256
"""Nodes of a tangle from which to look for its shortest cycle."""
_MAX_STEPS = 1 << 18
"""Edges to follow in search of shortest cycles, for all of them together: half a second."""
_MAX_STEPS_EACH = 1 << 15
"""And for each of them."""
_WEIGHTS = {int(Strength.PROVEN): 10, int(Strength.DERIVED): 11, int(Strength.POSSIBLE): 30}
"""Lengths of edges: a cycle with one possible edge goes before a shorter one with two."""
_FAR = 1 << 62
_Ways = dict[int, list[tuple[int, int]]]
"""By node, where its edges lead, and how long they are."""


@dataclass(frozen=True)
class Cycle:
    """Nodes that wait for each other."""

    nodes: tuple[int, ...]
    """In the order of waiting; the last one waits for the first."""
    edges: tuple[int, ...]
    """The edge from each node to the next one."""
    strength: Strength
    """Of its weakest edge; possible if any of the nodes may make progress."""
    tangle: tuple[int, ...]
    """All nodes that are in any cycle with these."""


def stuck(graph: Graph, *, least: Strength = Strength.POSSIBLE) -> Mask:
    """Return which nodes can never make progress.

    :param least: weakest edges that keep a node; with those that are only possible, also nodes
        that may make progress: a task that a timer wakes up, and a pipe whose other end is open
        somewhere else, too, in a process that does not use it
    """
    is_possible = least == Strength.POSSIBLE
    # A weak way out of a pipe is a way out all the same.
    used = (graph.strength >= int(least)) | graph.is_any[graph.source]
    if is_possible:
        used &= ~_passed_over(graph)
    source = graph.source.tolist()
    is_any = graph.is_any.tolist()
    # How many of the nodes behind each one still keep it: all must go on, or one is enough.
    left = np.bincount(graph.source[used], minlength=len(graph)).tolist()
    blocked = np.ones(len(graph), np.bool_)
    is_free = np.array(left) == 0
    if not is_possible:
        is_free |= graph.is_timed
    queue = deque(np.flatnonzero(is_free).tolist())
    blocked[list(queue)] = False
    while queue:
        node = queue.popleft()
        for edge in graph.preceding[node]:
            before = source[edge]
            if not used[edge] or not blocked[before]:
                continue
            left[before] -= 1
            if is_any[before] or not left[before]:
                blocked[before] = False
                queue.append(before)
    return blocked


def _passed_over(graph: Graph) -> Mask:
    """Return the edges from pipes to idle ends, of those that have another end."""
    is_idle = np.array([edge is EdgeKind.IDLE_END for edge in graph.edge], np.bool_)
    has_other = np.zeros(len(graph), np.bool_)
    has_other[graph.source[~is_idle]] = True
    return is_idle & has_other[graph.source]


def cycles(graph: Graph) -> list[Cycle]:
    """Return the shortest cycles, without a node in common, of nodes that wait for each other.

    Cycles of stronger edges go first: a tangle that has one of proven edges only is shown by that.
    """
    import networkx

    found: list[Cycle] = []
    taken: set[int] = set()
    itself = _itself(graph)
    steps = _Steps()
    for least, with_itself in (
        (Strength.PROVEN, False),
        (Strength.DERIVED, False),
        (Strength.POSSIBLE, False),
        (Strength.POSSIBLE, True),
    ):
        # What may make progress, only possible cycles have.
        adds = least == Strength.POSSIBLE and (graph.is_timed.any() or _passed_over(graph).any())
        if least < Strength.PROVEN and not adds and not (graph.strength == int(least)).any():
            continue
        blocked = stuck(graph, least=least)
        edges = np.flatnonzero(
            (graph.strength >= int(least))
            & (with_itself | ~itself)
            & blocked[graph.source]
            & blocked[graph.target]
        )
        drawn = networkx.DiGraph()
        drawn.add_weighted_edges_from(
            (source, target, _WEIGHTS[strength])
            for source, target, strength in zip(
                graph.source[edges].tolist(),
                graph.target[edges].tolist(),
                graph.strength[edges].tolist(),
                strict=True,
            )
        )
        # A node is in one cycle only, the strongest.
        drawn.remove_nodes_from(taken)
        by_ends = {
            (source, target): edge
            for edge, source, target in zip(
                edges.tolist(),
                graph.source[edges].tolist(),
                graph.target[edges].tolist(),
                strict=True,
            )
        }
        tangles = [(part, part) for part in networkx.strongly_connected_components(drawn)]
        while tangles:
            part, whole = tangles.pop()
            if len(part) == 1 and not drawn.has_edge(*(2 * tuple(part))):
                continue
            ways = _ways(drawn, part)
            if steps.left > 0:
                nodes = _shortest(ways, steps)
                # Without it, the rest of the tangle may have cycles of its own. To look for these
                # takes as long as to follow some edges of each node.
                steps.left -= 8 * len(part)
                rest = drawn.subgraph(part - set(nodes))
                parts = networkx.strongly_connected_components(rest)
                tangles += [(each, whole) for each in parts]
                several = [nodes]
            else:
                several = _disjoint(ways)
            tangle = tuple(sorted(whole))
            for nodes in several:
                if not graph.is_task[list(nodes)].any():
                    continue  # such as a work item behind its own next run
                ends = zip(nodes, (*nodes[1:], nodes[0]), strict=True)
                rows = tuple(by_ends[pair] for pair in ends)
                taken |= set(nodes)
                weakest = min(int(least), int(graph.strength[list(rows)].min()))
                found.append(Cycle(nodes, rows, Strength(weakest), tangle))
    return sorted(found, key=lambda each: (-each.strength, len(each.nodes), each.nodes))


def _itself(graph: Graph) -> Mask:
    """Return which edges say that a task may wait for itself, which is the least likely of all."""
    ends = set(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    back = [
        (target, source) in ends
        for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True)
    ]
    is_possible: Mask = np.array(back, np.bool_)
    is_possible &= graph.strength == int(Strength.POSSIBLE)
    return is_possible


class _Steps:
    """How many edges may still be followed in search of the shortest cycles."""

    def __init__(self) -> None:
        self.left = _MAX_STEPS


def _ways(drawn: Any, part: set[int]) -> _Ways:
    """Return where the edges between the nodes of a strongly connected part lead."""
    return {
        node: [(after, step["weight"]) for after, step in drawn[node].items() if after in part]
        for node in sorted(part)
    }


def _shortest(following: _Ways, steps: _Steps) -> tuple[int, ...]:
    """Return the shortest cycle of a strongly connected part, from its lowest node on.

    In a large tangle, it is the shortest one of those through a few nodes.
    """
    # Every cycle but a single one passes a node with several ways on.
    starts = [node for node, after in following.items() if len(after) > 1][:_MAX_STARTS]
    best: tuple[int, ...] = ()
    least, end = _FAR, max(steps.left - _MAX_STEPS_EACH, 0)
    for start in starts or [min(following)]:
        cycle, length = _from(start, following, least, steps)
        if cycle:
            best, least = cycle, length
        if steps.left <= end:
            break
    return _from_lowest(best)


def _from_lowest(cycle: tuple[int, ...]) -> tuple[int, ...]:
    lowest = cycle.index(min(cycle))
    return cycle[lowest:] + cycle[:lowest]


def _disjoint(following: _Ways) -> list[tuple[int, ...]]:
    """Return cycles of a part without a node in common, of any length, each edge followed once.

    What is left of the part has no cycle.
    """
    found: list[tuple[int, ...]] = []
    ways = {node: iter(after) for node, after in following.items()}
    path: list[int] = []
    place: dict[int, int] = {}
    done: set[int] = set()
    for start in following:
        if start not in done:
            place[start] = 0
            path.append(start)
        while path:
            after = next((end for end, _ in ways[path[-1]] if end not in done), None)
            if after is None:
                node = path.pop()
                done.add(node)
                del place[node]
            elif after in place:
                cycle = path[place[after] :]
                del path[place[after] :]
                for node in cycle:
                    done.add(node)
                    del place[node]
                found.append(_from_lowest(tuple(cycle)))
            else:
                place[after] = len(path)
                path.append(after)
    return found


def _from(start: int, following: _Ways, limit: int, steps: _Steps) -> tuple[tuple[int, ...], int]:
    """Return the shortest cycle through a node, and its length; nothing from ``limit`` on."""
    parent: dict[int, int] = {}
    known: dict[int, int] = {start: 0}
    queue, done = [(0, start)], set[int]()
    while queue:
        length, node = heapq.heappop(queue)
        if length >= limit or (node == start and length):
            break
        if node in done:
            continue
        done.add(node)
        steps.left -= len(following[node])
        for after, weight in following[node]:
            reached = length + weight
            # The way back to the start is not the start itself.
            if reached < (known.get(after, _FAR) if after != start else known.get(-1, _FAR)):
                known[-1 if after == start else after] = reached
                parent[-1 if after == start else after] = node
                heapq.heappush(queue, (reached, after))
    if known.get(-1, _FAR) >= limit:
        return (), limit
    path = [parent[-1]]
    while path[-1] != start:
        path.append(parent[path[-1]])
    return tuple(reversed(path)), known[-1]


@dataclass(frozen=True)
class Behind:
    """Per node: the tasks that wait for it, also through others."""

    tasks: Numbers
    """How many; a task in a cycle is behind itself, and does not count."""
    oldest: Numbers
    """The node of the one that has slept longest; -1 for none."""


def behind(graph: Graph, age: Numbers) -> Behind:
    """Return how many tasks are behind each node.

    :param age: per node, how long it has slept; -1 for those that do not sleep
    """
    import networkx

    drawn = networkx.DiGraph()
    drawn.add_nodes_from(range(len(graph)))
    drawn.add_edges_from(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    parts = list(networkx.strongly_connected_components(drawn))
    # Components come with those that they wait for first: go the other way.
    part_of = np.empty(len(graph), np.int64)
    for number, part in enumerate(parts):
        part_of[list(part)] = number
    # Bit k is the task that has slept k-th longest, so that the lowest bit is the oldest.
    tasks = np.flatnonzero(graph.is_task)
    order = tasks[np.argsort(-age[tasks], kind="stable")]
    bit = {node: place for place, node in enumerate(order.tolist())}
    sets: list[int] = [0] * len(parts)
    count, oldest = np.zeros(len(graph), np.int64), np.full(len(graph), -1)
    targets = graph.target.tolist()
    for number in range(len(parts) - 1, -1, -1):
        part = parts[number]
        inside = 0
        for node in part:
            if node in bit:
                inside |= 1 << bit[node]
        before = sets[number]
        everyone = before | inside
        for node in part:
            own = everyone if len(part) > 1 else before
            if node in bit:
                own &= ~(1 << bit[node])
            count[node] = own.bit_count()
            if own:
                oldest[node] = order[(own & -own).bit_length() - 1]
        outside = {
            int(part_of[targets[edge]]) for node in part for edge in graph.following[node]
        } - {number}
        for other in outside:
            sets[other] |= everyone
        sets[number] = 0
    return Behind(count, oldest)


def roots(graph: Graph, cycles_: Sequence[Cycle]) -> list[int]:
    """Return the nodes that others wait for, and that wait for nothing that is known.

    :param cycles_: whose nodes are no roots
    """
    # Cycles of one large tangle share it.
    tangles = {id(cycle.tangle): cycle.tangle for cycle in cycles_}
    inside = {node for tangle in tangles.values() for node in tangle}
    return [
        node
        for node in range(len(graph))
        if not graph.following[node] and graph.preceding[node] and node not in inside
    ]
