# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cycles and roots of a graph of waits, and the number of tasks behind each node.

A node is *stuck* if it can never make progress: a task that waits for something stuck; a lock with
a stuck holder; a pipe with all other ends stuck. Only stuck nodes are searched for cycles: if one
of several processes with an open pipe still runs, there is no deadlock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kcensus.engine.memory import Mask, Numbers
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.graph import Graph

_MAX_STARTS = 256
"""Most nodes of a tangle to search from for its shortest cycle."""
_MAX_STEPS = 1 << 18
"""Most edges to follow in search of all shortest cycles: half a second."""
_MAX_STEPS_EACH = 1 << 15
"""Most edges to follow in search of one shortest cycle."""
_WEIGHTS = {int(Strength.PROVEN): 10, int(Strength.DERIVED): 11, int(Strength.POSSIBLE): 30}
"""Lengths of edges: a cycle with one possible edge goes before a shorter one with two."""
_FAR = 1 << 62
_Ways = dict[int, list[tuple[int, int]]]
"""Targets and lengths of the edges of each node."""


@dataclass(frozen=True)
class Cycle:
    """Nodes that wait for each other."""

    nodes: tuple[int, ...]
    """In the order of waiting; the last one waits for the first."""
    edges: tuple[int, ...]
    """The edge from each node to the next one."""
    strength: Strength
    """Strength of its weakest edge; possible if any of the nodes may make progress."""
    tangle: tuple[int, ...]
    """All nodes in a cycle with these nodes."""


def stuck(graph: Graph, *, least: Strength = Strength.POSSIBLE) -> Mask:
    """Return which nodes can never make progress.

    :param least: least strength of the edges to follow; possible ones also make nodes stuck that
        may go on: a task with a timer, and a pipe whose other end is also open in an idle process
    """
    is_possible = least == Strength.POSSIBLE
    # A weak way out of a pipe is still a way out.
    used = (graph.strength >= int(least)) | graph.is_any[graph.source]
    if is_possible:
        used &= ~_passed_over(graph)
    source = graph.source.tolist()
    is_any = graph.is_any.tolist()
    # Number of a node's targets that still block it: all must go on, or one is enough.
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
    """Return the edges from pipes to idle ends, if the pipe has another end."""
    is_idle = np.array([edge.is_idle for edge in graph.edge], np.bool_)
    has_other = np.zeros(len(graph), np.bool_)
    has_other[graph.source[~is_idle]] = True
    return is_idle & has_other[graph.source]


def cycles(graph: Graph) -> list[Cycle]:
    """Return the shortest cycles of nodes that wait for each other, without a common node.

    Cycles of stronger edges go first: of a tangle with a cycle of proven edges, that is returned.
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
        # Only possible cycles include nodes that may make progress.
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
        ends = list(zip(graph.source[edges].tolist(), graph.target[edges].tolist(), strict=True))
        weights = [_WEIGHTS[strength] for strength in graph.strength[edges].tolist()]
        drawn = networkx.DiGraph()
        drawn.add_weighted_edges_from(
            (*pair, weight) for pair, weight in zip(ends, weights, strict=True)
        )
        # A node is in one cycle only, the strongest.
        drawn.remove_nodes_from(taken)
        by_ends = dict(zip(ends, edges.tolist(), strict=True))
        tangles = [(part, part) for part in networkx.strongly_connected_components(drawn)]
        while tangles:
            part, whole = tangles.pop()
            if len(part) == 1 and not drawn.has_edge(*(2 * tuple(part))):
                continue
            ways = {
                node: [
                    (after, step["weight"]) for after, step in drawn[node].items() if after in part
                ]
                for node in sorted(part)
            }
            if steps.left > 0:
                nodes = _shortest(ways, steps)
                # The rest of the tangle, without this cycle, may have cycles of its own. To look
                # for these takes as long as to follow some edges of each node.
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
                around = zip(nodes, (*nodes[1:], nodes[0]), strict=True)
                rows = tuple(by_ends[pair] for pair in around)
                taken |= set(nodes)
                weakest = min(int(least), int(graph.strength[list(rows)].min()))
                found.append(Cycle(nodes, rows, Strength(weakest), tangle))
    return sorted(found, key=lambda each: (-each.strength, len(each.nodes), each.nodes))


def _itself(graph: Graph) -> Mask:
    """Return the edges of tasks that may wait for themselves, the least likely cycles of all."""
    ends = list(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    known = set(ends)
    back = np.array([(target, source) in known for source, target in ends], np.bool_)
    return np.asarray(back & (graph.strength == int(Strength.POSSIBLE)))


@dataclass
class _Steps:
    """Number of edges left to follow in search of the shortest cycles."""

    left: int = _MAX_STEPS


def _shortest(following: _Ways, steps: _Steps) -> tuple[int, ...]:
    """Return the shortest cycle of a strongly connected part, from its lowest node on.

    In a large tangle, only cycles through a few nodes are compared.
    """
    # Unless the part is a single cycle, each cycle passes a node with several ways on.
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
    """Return cycles of a part without a common node, of any length, following each edge once.

    The rest of the part has no cycle.
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
            # The start as the end of a cycle has the key -1.
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
    """Tasks that wait for each node, directly or through others."""

    tasks: Numbers
    """Number of tasks; a task in a cycle is behind itself, and does not count."""
    oldest: Numbers
    """Node of the task that has slept longest; -1 for none."""


def behind(graph: Graph, age: Numbers) -> Behind:
    """Return the number of tasks behind each node, and the longest sleeping one.

    :param age: time for which each node has slept; -1 for other nodes
    """
    import networkx

    drawn = networkx.DiGraph()
    drawn.add_nodes_from(range(len(graph)))
    drawn.add_edges_from(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    parts = list(networkx.strongly_connected_components(drawn))
    # Components come in the order of waiting, awaited ones first: go the other way.
    part_of = np.empty(len(graph), np.int64)
    for number, part in enumerate(parts):
        part_of[list(part)] = number
    # Bit k is the task with the k-th longest sleep, so the lowest bit is the oldest.
    tasks = np.flatnonzero(graph.is_task)
    order = tasks[np.argsort(-age[tasks], kind="stable")]
    bit = {node: place for place, node in enumerate(order.tolist())}
    sets: list[int] = [0] * len(parts)
    count, oldest = np.zeros(len(graph), np.int64), np.full(len(graph), -1)
    targets = graph.target.tolist()
    for number, part in reversed(list(enumerate(parts))):
        before = sets[number]
        sets[number] = 0
        everyone = before | sum(1 << bit[node] for node in part if node in bit)
        for node in part:
            own = everyone if len(part) > 1 else before
            if node in bit:
                own &= ~(1 << bit[node])
            count[node] = own.bit_count()
            if own:
                oldest[node] = order[(own & -own).bit_length() - 1]
        after = {int(part_of[targets[edge]]) for node in part for edge in graph.following[node]}
        for other in after - {number}:
            sets[other] |= everyone
    return Behind(count, oldest)


def roots(graph: Graph, cycles_: Sequence[Cycle]) -> list[int]:
    """Return the awaited nodes that wait for nothing known.

    :param cycles_: cycles, with their tangles, whose nodes are no roots
    """
    # Cycles of one large tangle share its tuple.
    tangles = {id(cycle.tangle): cycle.tangle for cycle in cycles_}
    inside = {node for tangle in tangles.values() for node in tangle}
    return [
        node
        for node in range(len(graph))
        if not graph.following[node] and graph.preceding[node] and node not in inside
    ]
