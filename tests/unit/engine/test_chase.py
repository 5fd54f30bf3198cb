# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many lists at once in *synthetic* memory, held against walking them one by one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcensus.engine import chase as chase_module
from kcensus.engine.chase import Damage, Lanes, Step, chase, collect, pointer_step
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from tests.unit.fakekernel import DIRECT_MAP, PAGE, Machine

BASE = DIRECT_MAP + 600 * PAGE


def words(values: Sequence[int]) -> Words:
    return np.array(values, np.uint64)


def node(number: int | None) -> int:
    """Address of a node: each on a page of its own."""
    return 0 if number is None else BASE + number * PAGE + 8 * (number % 7)


def graph_step(graph: Mapping[int, int | None]) -> Step:
    """A step over nodes in a dict; what is not in it cannot be read."""

    def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
        following = [graph.get(at) for at in nodes.tolist()]
        return (
            words([at or 0 for at in following]),
            np.array([at in graph for at in nodes.tolist()], np.bool_),
        )

    return step


def walk(
    heads: Sequence[int], step: Step, *, limit: int = 1000, ends: Sequence[int] | None = None
) -> tuple[list[list[int]], Damage]:
    """What chase() found of each list."""
    damage = Damage()
    found: list[list[int]] = [[] for _ in heads]
    ends_ = None if ends is None else words(ends)
    for lanes, nodes in chase(words(heads), step, limit=limit, damage=damage, ends=ends_):
        assert np.all(lanes[1:] > lanes[:-1])
        assert len(lanes) == len(nodes)
        for lane, at in zip(lanes.tolist(), nodes.tolist(), strict=True):
            found[lane].append(at)
    return found, damage


def lanes_of(parts: list[Lanes]) -> list[int]:
    return sorted(itertools.chain.from_iterable(part.tolist() for part in parts))


def test_lists_of_different_lengths() -> None:
    chains = [[], [1], [2, 3, 4, 5, 6], [], [7, 8], *([9 + at] for at in range(30))]
    graph: dict[int, int | None] = {}
    for chain in chains:
        graph |= {node(here): node(there) for here, there in itertools.pairwise([*chain, None])}
    heads = [node(chain[0]) if chain else 0 for chain in chains]
    found, damage = walk(heads, graph_step(graph))
    assert found == [[node(at) for at in chain] for chain in chains]
    assert not damage.lists
    assert damage.lanes().tolist() == []
    assert damage.lanes().dtype == np.int64


def test_no_lists() -> None:
    assert walk([], graph_step({})) == ([], Damage())
    assert walk([0, 0], graph_step({})) == ([[], []], Damage())


def test_circular_lists_end_where_they_began() -> None:
    # Heads that are never visited: an empty list points at its own head.
    graph = {node(1): node(2), node(2): node(100), node(3): node(101)}
    ends = [node(100), node(101), node(102), node(103)]
    found, damage = walk([node(1), node(3), node(102), 0], graph_step(graph), ends=ends)
    assert found == [[node(1), node(2)], [node(3)], [], []]
    assert not damage.lists


def test_another_lists_end_is_no_end() -> None:
    graph = {node(1): node(101), node(101): node(100)}
    found, damage = walk([node(1)], graph_step(graph), ends=[node(100)])
    assert found == [[node(1), node(101)]]
    assert not damage.lists


def test_an_unreadable_node_ends_its_list_alone() -> None:
    graph = {node(1): node(2), node(2): node(3), node(4): node(5), node(5): 0}
    found, damage = walk([node(1), node(4), node(9)], graph_step(graph))
    # The node itself is reported: a pointer to it is in memory.
    assert found == [[node(1), node(2), node(3)], [node(4), node(5)], [node(9)]]
    assert lanes_of(damage.unreadable) == [0, 2]
    assert damage.lanes().tolist() == [0, 2]
    assert damage.lists == 2


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
def test_limit(length: int) -> None:
    graph = {node(at): node(at + 1) for at in range(length - 1)} | {node(length - 1): 0}
    found, damage = walk([node(0)], graph_step(graph), limit=4)
    assert found == [[node(at) for at in range(min(length, 4))]]
    assert lanes_of(damage.too_long) == ([0] if length > 4 else [])
    assert damage.lists == (length > 4)


def test_a_limit_of_nothing() -> None:
    found, damage = walk([node(1), 0], graph_step({node(1): 0}), limit=0)
    assert found == [[], []]
    assert lanes_of(damage.too_long) == [0]


def test_a_self_loop() -> None:
    found, damage = walk([node(1)], graph_step({node(1): node(1)}))
    assert found == [[node(1)]]
    assert lanes_of(damage.cyclic) == [0]


def prefix(graph: Mapping[int, int | None], head: int) -> tuple[list[int], str]:
    """The nodes of one list up to its end or damage, none twice, and how it ends."""
    seen: list[int] = []
    at = head
    while at:
        if at in seen:
            return seen, "cyclic"
        seen.append(at)
        if at not in graph:
            return seen, "unreadable"
        at = graph[at] or 0
    return seen, "end"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_graph_at_all(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 24))
    target = st.none() | st.integers(0, size + 1)
    graph = {node(at): node(data.draw(target)) for at in range(size)}
    heads = [node(at) for at in data.draw(st.lists(target, max_size=8))]
    found, damage = walk(heads, graph_step(graph), limit=10_000)
    kinds = {"unreadable": damage.unreadable, "cyclic": damage.cyclic}
    for lane, head in enumerate(heads):
        nodes, kind = prefix(graph, head)
        # A cycle may be gone round before it is noticed, yet not for long.
        assert found[lane][: len(nodes)] == nodes
        assert set(found[lane]) == set(nodes)
        assert len(found[lane]) <= (len(nodes) if kind != "cyclic" else 3 * len(nodes) + 1)
        assert [name for name, parts in kinds.items() if lane in lanes_of(parts)] == (
            [] if kind == "end" else [kind]
        )
    assert not damage.too_long
    assert damage.lists == len(damage.lanes())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_graph_with_ends(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    target = st.integers(0, size - 1)
    graph = {node(at): node(data.draw(target)) for at in range(size)}
    heads = [node(data.draw(target)) for _ in range(4)]
    ends = [node(data.draw(target)) for _ in range(4)]
    found, damage = walk(heads, graph_step(graph), limit=10_000, ends=ends)
    cyclic = lanes_of(damage.cyclic)
    for lane, (head, end) in enumerate(zip(heads, ends, strict=True)):
        cut: dict[int, int | None] = {at: None if to == end else to for at, to in graph.items()}
        nodes, kind = prefix(cut, 0 if head == end else head)
        assert set(found[lane]) == set(nodes)
        assert (lane in cyclic) == (kind == "cyclic")


# Pointers in memory


def memory_walk(
    machine: Machine, heads: Sequence[int], ends: Sequence[int] | None = None
) -> tuple[list[list[int]], Damage, Faults]:
    memory, faults = Memory(machine.prog), Faults()
    link = layout(machine.prog, "struct list_head", ["next"])
    found, damage = walk(heads, pointer_step(memory, link, "next", faults), ends=ends)
    return found, damage, faults


@pytest.fixture
def machine() -> Machine:
    machine = Machine({})
    for at in range(100):
        machine.write_words(node(at), node(at + 1))
    machine.write_words(node(99), 0)
    return machine


@pytest.mark.parametrize("few", [0, 8, 1000], ids=["bulk", "mixed", "one by one"])
def test_pointers(machine: Machine, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chase_module, "_FEW", few)
    machine.write_words(node(40), 0)
    machine.write_words(node(60), node(55))
    machine.write_words(node(70), 0x10)
    machine.drop(node(80))
    starts = [*range(30, 41), 50, 65, 75, 0, 81]
    heads = [*map(node, starts[:14]), 0, node(81)]
    found, damage, faults = memory_walk(machine, heads)
    for lane, start in enumerate(starts[:11]):
        assert found[lane] == [node(at) for at in range(start, 41)]
    assert set(found[11]) == {node(at) for at in range(50, 61)}
    assert found[12] == [*(node(at) for at in range(65, 71)), 0x10]
    assert found[13] == [node(at) for at in range(75, 81)]
    assert found[14] == []
    assert found[15] == [node(at) for at in range(81, 100)]
    assert lanes_of(damage.cyclic) == [11]
    assert lanes_of(damage.unreadable) == [12, 13]
    # The same is counted however many lists are left.
    assert faults["filtered out of the dump"] == 1


def test_a_wild_pointer_counts_the_same_however_many_lists_there_are(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write_words(node(3), 0x10)
    counts = []
    for few in (0, 1000):
        monkeypatch.setattr(chase_module, "_FEW", few)
        _, damage, faults = memory_walk(machine, [node(1)])
        assert lanes_of(damage.unreadable) == [0]
        counts.append(faults.total())
    assert counts[0] == counts[1]


def test_the_link_need_not_be_the_first_member(machine: Machine) -> None:
    memory = Memory(machine.prog)
    link = layout(machine.prog, "struct list_head", ["prev"])
    machine.write_words(node(1) + 8, node(2))
    machine.write_words(node(2) + 8, 0)
    for heads in ([node(1)], [node(1)] * 20):
        found, damage = walk(heads, pointer_step(memory, link, "prev", Faults()))
        assert found == [[node(1), node(2)]] * len(heads)
        assert not damage.lists


def test_list_heads(machine: Machine) -> None:
    heads = [machine.alloc("struct list_head") for _ in range(20)]
    nodes = []
    for length, head in enumerate(heads):
        machine.list_init(head)
        nodes.append([machine.alloc("struct list_head") for _ in range(length)])
        for each in nodes[-1]:
            machine.list_add_tail(each, head)
    ends = [head.address_ for head in heads]
    first = [machine.word(head.address_) for head in heads]
    found, damage, _ = memory_walk(machine, first, ends)
    assert found == [[each.address_ for each in row] for row in nodes]
    assert not damage.lists


def test_lists_that_meet_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chase_module, "_MAX_NODES", 1000)

    def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
        return nodes + np.uint64(8), np.ones(len(nodes), np.bool_)

    damage = Damage()
    lanes, nodes = collect(np.full(100, BASE, np.uint64), step, limit=500, damage=damage)
    assert len(lanes) == len(nodes) == 1100
    assert damage.lists == 100
