# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cycles, roots and who is behind each node, on *synthetic* graphs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.cycles import Cycle, behind, cycles, roots, stuck
from kcensus.kernel.waiting.graph import Builder, EdgeKind, Graph, NodeKind

_TASK, _LOCK, _PIPE = NodeKind.TASK, NodeKind.MUTEX, NodeKind.PIPE
Edge = tuple[str, str] | tuple[str, str, Strength]


def made(*edges: Edge) -> tuple[Graph, dict[str, int]]:
    """A graph of nodes by name: ``t…`` are tasks, ``m…`` locks, ``p…`` pipes."""
    names = sorted({name for edge in edges for name in edge[:2]})
    kinds = {"t": _TASK, "m": _LOCK, "p": _PIPE}
    address = {name: number + 1 for number, name in enumerate(names)}
    build = Builder()
    for source, target, *more in edges:
        build.edges(
            EdgeKind.WAITS if source[0] == "t" else EdgeKind.HELD,
            (kinds[source[0]], np.array([address[source]], np.uint64)),
            (kinds[target[0]], np.array([address[target]], np.uint64)),
            strength=more[0] if more else Strength.PROVEN,
            evidence="said",
        )
    graph = build.graph()
    return graph, {name: graph.index[kinds[name[0]], address[name]] for name in names}


def named(cycle: Cycle, nodes: dict[str, int]) -> set[str]:
    return {name for name, node in nodes.items() if node in cycle.nodes}


def test_two_tasks_that_wait_for_each_other() -> None:
    graph, nodes = made(("t1", "m1"), ("m1", "t2"), ("t2", "m2"), ("m2", "t1"), ("t3", "m1"))
    (cycle,) = cycles(graph)
    assert named(cycle, nodes) == {"t1", "m1", "t2", "m2"}
    assert cycle.strength is Strength.PROVEN
    for edge, source, target in zip(
        cycle.edges, cycle.nodes, (*cycle.nodes[1:], cycle.nodes[0]), strict=True
    ):
        assert (graph.source[edge], graph.target[edge]) == (source, target)
    found = behind(graph, np.where(graph.is_task, 10, -1))
    assert found.tasks[nodes["m1"]] == 3
    assert found.tasks[nodes["t1"]] == 2
    assert found.tasks[nodes["t3"]] == 0
    assert roots(graph, [cycle]) == []


def test_a_task_that_waits_for_itself() -> None:
    graph, nodes = made(("t1", "m1"), ("m1", "t1"))
    (cycle,) = cycles(graph)
    assert named(cycle, nodes) == {"t1", "m1"}


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


def test_a_pipe_that_another_process_can_still_read() -> None:
    ring = (("t1", "p1"), ("p1", "t2"), ("t2", "m1"), ("m1", "t1"))
    assert len(cycles(made(*ring)[0])) == 1
    graph, nodes = made(*ring, ("p1", "t3"))
    assert cycles(graph) == []
    assert not stuck(graph)[nodes["p1"]]
    # The other one is stuck as well.
    assert len(cycles(made(*ring, ("p1", "t3"), ("t3", "m1"))[0])) == 1


def test_a_lock_that_one_of_several_readers_keeps() -> None:
    graph, nodes = made(("t1", "m1"), ("m1", "t2"), ("m1", "t3"), ("t2", "m2"), ("m2", "t1"))
    (cycle,) = cycles(graph)
    assert named(cycle, nodes) == {"t1", "m1", "t2", "m2"}


def test_a_task_that_a_timer_wakes_up_is_in_a_possible_cycle_only() -> None:
    ring = ("t1", "m1"), ("m1", "t2"), ("t2", "m2"), ("m2", "t1")
    graph, nodes = made(*ring)
    graph = replace(graph, timed=graph.address[[nodes["t2"]]])
    (cycle,) = cycles(graph)
    assert cycle.strength is Strength.POSSIBLE
    assert stuck(graph).all()
    assert not stuck(graph, least=Strength.DERIVED).any()
    # Nor is another one that has to wait for it only so long.
    graph, nodes = made(*ring, ("m2", "t3"), ("t3", "m1"))
    (cycle,) = cycles(replace(graph, timed=graph.address[[nodes["t2"]]]))
    assert cycle.strength is Strength.POSSIBLE
    (cycle,) = cycles(replace(graph, timed=graph.address[[nodes["t3"]]]))
    assert (cycle.strength, named(cycle, nodes)) == (Strength.PROVEN, {"t1", "m1", "t2", "m2"})


def test_strong_edges_go_before_short_cycles() -> None:
    possible = Strength.POSSIBLE
    graph, nodes = made(
        ("t1", "m1"),
        ("m1", "t2"),
        ("t2", "m2"),
        ("m2", "t3"),
        ("t3", "m3"),
        ("m3", "t1"),
        ("m2", "t1", possible),
    )
    (cycle,) = cycles(graph)
    assert len(cycle.nodes) == 6
    assert cycle.strength is Strength.PROVEN
    assert len(named(cycle, nodes)) == 6


def test_a_cycle_is_as_strong_as_its_weakest_edge() -> None:
    edges = ("t1", "m1"), ("m1", "t2"), ("t2", "m2")
    (cycle,) = cycles(made(*edges, ("m2", "t1", Strength.DERIVED))[0])
    assert cycle.strength is Strength.DERIVED


def test_waiting_for_itself_is_the_last_resort() -> None:
    possible = Strength.POSSIBLE
    other = ("t1", "m1"), ("t2", "m2"), ("m2", "t1"), ("m1", "t2", possible)
    graph, nodes = made(*other, ("m1", "t1", possible))
    (cycle,) = cycles(graph)
    assert named(cycle, nodes) == {"t1", "m1", "t2", "m2"}


def test_cycles_without_a_node_in_common() -> None:
    rings = [(f"t{n}", f"m{n}", f"t{n}x", f"m{n}x") for n in range(3)]
    edges = [pair for ring in rings for pair in zip(ring, (*ring[1:], ring[0]), strict=True)]
    # One edge makes a tangle of two of them.
    graph, _ = made(*edges, ("m0", "t1"), ("m1", "t0"))
    assert len(cycles(graph)) == 3


def test_equal_edges_are_one_and_the_strongest_stays() -> None:
    graph, _ = made(("t1", "m1"), ("m1", "t2", Strength.POSSIBLE), ("m1", "t2", Strength.PROVEN))
    assert graph.strength.tolist() == [3, 3]


@pytest.mark.parametrize("is_ring", [False, True])
def test_a_long_chain(is_ring: bool) -> None:
    count = 5000
    number = np.arange(count, dtype=np.uint64)
    tasks, locks = number + np.uint64(1 << 20), number + np.uint64(1 << 30)
    held = number if is_ring else number[1:]
    build = Builder()
    build.edges(
        EdgeKind.WAITS, (_TASK, tasks), (_LOCK, locks), strength=Strength.PROVEN, evidence="x"
    )
    build.edges(
        EdgeKind.HELD,
        (_LOCK, locks[held - np.uint64(1)] if is_ring else locks[:-1]),
        (_TASK, tasks[held.astype(np.int64)]),
        strength=Strength.PROVEN,
        evidence="x",
    )
    graph = build.graph()
    found = cycles(graph)
    assert [len(cycle.nodes) for cycle in found] == ([2 * count] if is_ring else [])
    most = behind(graph, np.where(graph.is_task, 1, -1)).tasks.max()
    assert most == count


def _readers(count: int) -> Graph:
    """Tasks that each wait for an rwsem, which five others read."""
    number = np.arange(count, dtype=np.uint64)
    tasks, locks = number + np.uint64(1 << 20), number + np.uint64(1 << 30)
    random = np.random.default_rng(1)
    build = Builder()
    for some, other, edge, kinds in (
        (tasks, locks, EdgeKind.WAITS, (_TASK, _LOCK)),
        (
            np.repeat(locks, 5),
            tasks[random.integers(0, count, 5 * count)],
            EdgeKind.HELD,
            (_LOCK, _TASK),
        ),
    ):
        build.edges(
            edge, (kinds[0], some), (kinds[1], other), strength=Strength.PROVEN, evidence="x"
        )
    return build.graph()


@pytest.mark.parametrize("budget", [0, 1000, 1 << 18])
def test_a_tangle_of_readers(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without steps left, what is found are cycles, and nothing else has one."""
    monkeypatch.setattr("kcensus.kernel.waiting.cycles._MAX_STEPS", budget)
    graph = _readers(60)
    found = cycles(graph)
    together = [node for cycle in found for node in cycle.nodes]
    assert found
    assert len(together) == len(set(together))
    for cycle in found:
        ends = (*cycle.nodes[1:], cycle.nodes[0])
        for edge, source, target in zip(cycle.edges, cycle.nodes, ends, strict=True):
            assert (graph.source[edge], graph.target[edge]) == (source, target)
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


@settings(max_examples=300, deadline=None)
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
