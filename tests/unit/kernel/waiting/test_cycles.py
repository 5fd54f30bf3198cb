# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cycles, roots and who is behind each node, on *synthetic* graphs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcensus.engine.memory import Numbers
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.cycles import Cycle, behind, cycles, roots, stuck
from kcensus.kernel.waiting.finders.events.pipes import PIPE
from kcensus.kernel.waiting.finders.locks.locks import MUTEX
from kcensus.kernel.waiting.graph import HELD, TASK, WAITS, Builder, Graph

_TASK, _LOCK, _PIPE = TASK, MUTEX, PIPE
Edge = tuple[str, str] | tuple[str, str, Strength]


def made(*edges: Edge) -> tuple[Graph, dict[str, int]]:
    """A graph of nodes by name: ``t…`` are tasks, ``m…`` locks, ``p…`` pipes."""
    names = sorted({name for edge in edges for name in edge[:2]})
    kinds = {"t": _TASK, "m": _LOCK, "p": _PIPE}
    address = {name: number + 1 for number, name in enumerate(names)}
    build = Builder()
    for source, target, *more in edges:
        build.edges(
            WAITS if source[0] == "t" else HELD,
            (kinds[source[0]], np.array([address[source]], np.uint64)),
            (kinds[target[0]], np.array([address[target]], np.uint64)),
            strength=more[0] if more else Strength.PROVEN,
            evidence="said",
        )
    graph = build.graph()
    return graph, {name: graph.index[kinds[name[0]], address[name]] for name in names}


_RING: tuple[Edge, ...] = ("t1", "m1"), ("m1", "t2"), ("t2", "m2"), ("m2", "t1")


def follow_each_other(graph: Graph, cycle: Cycle) -> bool:
    ends = zip(cycle.nodes, (*cycle.nodes[1:], cycle.nodes[0]), strict=True)
    return [(graph.source[edge], graph.target[edge]) for edge in cycle.edges] == list(ends)


def named(cycle: Cycle, nodes: dict[str, int]) -> set[str]:
    return {name for name, node in nodes.items() if node in cycle.nodes}


def test_two_tasks_that_wait_for_each_other() -> None:
    graph, nodes = made(*_RING, ("t3", "m1"))
    (cycle,) = cycles(graph)
    assert named(cycle, nodes) == {"t1", "m1", "t2", "m2"}
    assert cycle.strength is Strength.PROVEN
    assert follow_each_other(graph, cycle)
    found = behind(graph, np.where(graph.is_task, 10, -1))
    assert found.tasks[nodes["m1"]] == 3
    assert found.tasks[nodes["t1"]] == 2
    assert found.tasks[nodes["t3"]] == 0
    assert roots(graph, [cycle]) == []


def test_a_convoy_is_no_cycle() -> None:
    graph, nodes = made(*((f"t{number}", "m1") for number in range(2, 202)), ("m1", "t1"))
    assert cycles(graph) == []
    assert roots(graph, []) == [nodes["t1"]]
    ages = np.where(graph.is_task, 5, -1)
    ages[nodes["t77"]] = 9
    found = behind(graph, ages)
    assert found.tasks[nodes["t1"]] == 200
    assert found.oldest[nodes["t1"]] == nodes["t77"]
    assert found.oldest[nodes["t2"]] == -1


def test_a_task_that_a_timer_wakes_up_is_in_a_possible_cycle_only() -> None:
    graph, nodes = made(*_RING)
    graph = replace(graph, timed=graph.address[[nodes["t2"]]])
    (cycle,) = cycles(graph)
    assert cycle.strength is Strength.POSSIBLE
    assert stuck(graph).all()
    assert not stuck(graph, least=Strength.DERIVED).any()
    # Nor is another one that has to wait for it only so long.
    graph, nodes = made(*_RING, ("m2", "t3"), ("t3", "m1"))
    (cycle,) = cycles(replace(graph, timed=graph.address[[nodes["t2"]]]))
    assert cycle.strength is Strength.POSSIBLE
    (cycle,) = cycles(replace(graph, timed=graph.address[[nodes["t3"]]]))
    assert (cycle.strength, named(cycle, nodes)) == (Strength.PROVEN, {"t1", "m1", "t2", "m2"})


_POSSIBLE = Strength.POSSIBLE
_LONGER: tuple[Edge, ...] = *_RING[:3], ("m2", "t3"), ("t3", "m3"), ("m3", "t1")


@pytest.mark.parametrize(
    ("edges", "strength", "names"),
    [
        # Strong edges go before short cycles, and the weakest edge is that of the cycle.
        ([*_LONGER, ("m2", "t1", _POSSIBLE)], Strength.PROVEN, "t1 m1 t2 m2 t3 m3"),
        ([*_RING[:3], ("m2", "t1", Strength.DERIVED)], Strength.DERIVED, "t1 m1 t2 m2"),
        # That a task waits for itself is the last resort.
        (
            [*_RING[:1], *_RING[2:], ("m1", "t2", _POSSIBLE), ("m1", "t1", _POSSIBLE)],
            *(_POSSIBLE, "t1 m1 t2 m2"),
        ),
    ],
)
def test_the_strongest_cycle(edges: list[Edge], strength: Strength, names: str) -> None:
    graph, nodes = made(*edges)
    (cycle,) = cycles(graph)
    assert (cycle.strength, named(cycle, nodes)) == (strength, set(names.split()))
    # Equal edges are one, and the strongest stays.
    graph, _ = made(("t1", "m1"), ("m1", "t2", Strength.POSSIBLE), ("m1", "t2", Strength.PROVEN))
    assert graph.strength.tolist() == [3, 3]


def _held(locks: Numbers, holders: Numbers, count: int) -> Graph:
    """Tasks that each wait for a lock of their number, and the holders of locks, by number."""
    number = np.arange(count, dtype=np.uint64)
    build = Builder()
    build.edges(WAITS, (_TASK, number), (_LOCK, number), "x")
    build.edges(HELD, (_LOCK, number[locks]), (_TASK, number[holders]), "x")
    return build.graph()


@pytest.mark.slow
@pytest.mark.parametrize("is_ring", [False, True])
def test_a_long_chain(is_ring: bool) -> None:
    count = 5000
    holders = np.arange(0 if is_ring else 1, count)
    graph = _held(holders - 1, holders, count)
    found = cycles(graph)
    assert [len(cycle.nodes) for cycle in found] == ([2 * count] if is_ring else [])
    assert behind(graph, np.where(graph.is_task, 1, -1)).tasks.max() == count


@pytest.mark.parametrize("budget", [0, 1000, 1 << 18])
def test_a_tangle_of_readers(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without steps left, what is found are cycles, and nothing else has one."""
    monkeypatch.setattr("kcensus.kernel.waiting.cycles._MAX_STEPS", budget)
    # Five others read each of the rwsems.
    holders = np.random.default_rng(1).integers(0, 60, 300)
    graph = _held(np.repeat(np.arange(60), 5), holders, 60)
    found = cycles(graph)
    together = [node for cycle in found for node in cycle.nodes]
    assert found
    assert len(together) == len(set(together))
    assert all(follow_each_other(graph, cycle) for cycle in found)
    drawn = networkx.DiGraph(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    drawn.remove_nodes_from(together)
    assert networkx.is_directed_acyclic_graph(drawn)


@st.composite
def tangles(draw: st.DrawFn) -> list[Edge]:
    tasks, locks = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    edges: list[Edge] = []
    for task in range(tasks):
        if draw(st.booleans()):
            edges.append(
                (f"t{task}", f"{draw(st.sampled_from('mp'))}{draw(st.integers(0, locks))}")
            )
    for kind, lock in itertools.product("mp", range(locks + 1)):
        holders = draw(st.sets(st.integers(0, tasks - 1), max_size=3))
        edges += [
            (f"{kind}{lock}", f"t{task}", draw(st.sampled_from(Strength))) for task in holders
        ]
    return edges


@pytest.mark.slow
@given(tangles())
def test_against_a_search_by_hand(edges: list[Edge]) -> None:
    """Free nodes one by one until nothing changes, and list all cycles of those that are left."""
    if not edges:
        return
    graph, nodes = made(*edges)
    free: set[int] = set()
    changed = True
    while changed:
        changed = False
        for node in set(nodes.values()) - free:
            ways = [int(graph.target[edge]) for edge in graph.following[node]]
            goes_on = any if graph.kind[node] is _PIPE else all
            if not ways or goes_on(way in free for way in ways):
                free.add(node)
                changed = True
    assert set(np.flatnonzero(~stuck(graph)).tolist()) == free
    drawn = networkx.DiGraph()
    drawn.add_edges_from(
        (source, target)
        for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True)
        if source not in free and target not in free
    )
    every = [set(cycle) for cycle in networkx.simple_cycles(drawn)]
    found = cycles(graph)
    assert bool(found) == bool(every)
    for cycle in found:
        assert set(cycle.nodes) in every
    together = [node for cycle in found for node in cycle.nodes]
    assert len(together) == len(set(together))
    # What is left has no cycle.
    drawn.remove_nodes_from(together)
    assert networkx.is_directed_acyclic_graph(drawn)
    reached = behind(graph, np.zeros(len(graph), np.int64)).tasks
    for node in nodes.values():
        tasks = graph.reached([node], back=True) & graph.is_task
        assert reached[node] == int(tasks.sum()) - int(graph.is_task[node])
