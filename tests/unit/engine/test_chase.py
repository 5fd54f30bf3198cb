# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many lists and trees in *synthetic* memory; lists are held against walking them one by one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from drgn import Object
from hypothesis import given
from hypothesis import strategies as st

from kcensus.engine import chase as chase_module
from kcensus.engine.chase import (
    Damage,
    Lanes,
    Step,
    chase,
    circular,
    collect,
    pointer_step,
    tree_nodes,
)
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel, Machine, add_types

BASE = DIRECT_MAP + 600 * PAGE


def words(values: Sequence[int]) -> Words:
    return np.array(values, np.uint64)


def node(number: int | None) -> int:
    return 0 if number is None else BASE + number * PAGE + 8 * (number % 7)


def graph_step(graph: Mapping[int, int | None]) -> Step:
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


@pytest.mark.parametrize("limit", [0, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
def test_limit(length: int, limit: int) -> None:
    graph = {node(at): node(at + 1) for at in range(length - 1)} | {node(length - 1): 0}
    found, damage = walk([node(0), 0], graph_step(graph), limit=limit)
    assert found == [[node(at) for at in range(min(length, limit))], []]
    assert lanes_of(damage.too_long) == ([0] if length > limit else [])
    assert damage.lists == (length > limit)


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
    damaged = [lane for lane, head in enumerate(heads) if prefix(graph, head)[1] != "end"]
    assert damage.lanes().tolist() == damaged


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
    # The same is counted however many lists are left, and nothing for a wild pointer.
    assert faults == {"filtered out of the dump": 1}


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


_NODE = """
struct rb_node 24
    0 unsigned long __rb_parent_color; 8 struct rb_node * rb_right; 16 struct rb_node * rb_left
"""


class Tree:
    """A complete tree of seven nodes, each on a page of its own, and one of a single node."""

    def __init__(self) -> None:
        self.k = FakeKernel("6.10")
        add_types(self.k.prog, _NODE, "rbtree")
        self.nodes = [self.k.alloc("struct rb_node", alone=True) for _ in range(7)]
        self.single = self.k.alloc("struct rb_node")
        for index, node in enumerate(self.nodes):
            if index:
                self.parent(node, self.nodes[(index - 1) // 2])
            if index < 3:
                self.k.set(node.rb_left, self.nodes[2 * index + 1])
                self.k.set(node.rb_right, self.nodes[2 * index + 2])

    def parent(self, node: Object, parent: Object) -> None:
        self.k.set(node.member_("__rb_parent_color"), int(parent.address_) | 1)

    def walk(self, limit: int = 100) -> tuple[list[set[int]], list[int]]:
        """Indexes of the nodes of the first tree, and of the second; and the damaged trees."""
        every = [*self.nodes, self.single]
        roots = np.array([int(every[0].address_), 0, int(every[7].address_)], np.uint64)
        lanes, nodes, damaged = tree_nodes(Memory(self.k.prog), roots, Faults(), limit=limit)
        index = {int(node.address_): at for at, node in enumerate(every)}
        assert len(np.unique(nodes)) == len(nodes)
        sets = [{index[int(node)] for node in nodes[lanes == lane]} for lane in (0, 1, 2)]
        return sets, damaged.tolist()


@pytest.fixture
def tree() -> Tree:
    return Tree()


def test_sound_trees(tree: Tree) -> None:
    assert tree.walk() == ([set(range(7)), set(), {7}], [])


def test_an_unreadable_node_costs_what_is_below(tree: Tree) -> None:
    tree.k.drop(int(tree.nodes[1].address_))
    assert tree.walk() == ([{0, 2, 5, 6}, set(), {7}], [0])


def test_a_child_of_another_parent(tree: Tree) -> None:
    tree.parent(tree.nodes[4], tree.nodes[2])
    assert tree.walk() == ([{0, 1, 2, 3, 5, 6}, set(), {7}], [0])


@pytest.mark.parametrize(
    ("node", "child", "found"),
    [(6, 0, set(range(7))), (6, 6, set(range(7))), (2, 6, {0, 1, 2, 3, 4, 6})],
    ids=["circle", "itself", "twins"],
)
def test_wrong_children(tree: Tree, node: int, child: int, found: set[int]) -> None:
    tree.k.set(tree.nodes[node].rb_left, tree.nodes[child])
    assert tree.walk() == ([found, set(), {7}], [0])


def test_a_limit_of_trees(tree: Tree) -> None:
    sets, damaged = tree.walk(limit=3)
    assert len(sets[0] | sets[2]) < 8
    assert 0 in damaged


def test_lists_that_lead_into_one_are_cut_before_their_nodes_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hundred lists of one node each, and a long one into which all but the first lead."""
    monkeypatch.setattr(chase_module, "_MANY_NODES", 64)
    lists, length = 200, 5000
    heads = np.arange(1, lists + 1, dtype=np.uint64) << np.uint64(20)
    trunk = np.uint64(1 << 40)

    def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
        following = np.where(nodes < trunk, trunk, nodes + np.uint64(1))
        following[(nodes == heads[0]) | (nodes == trunk + np.uint64(length))] = 0
        return following, np.ones(len(nodes), np.bool_)

    damage = Damage()
    lanes, nodes = collect(heads, step, limit=1 << 20, damage=damage)
    assert len(nodes) < length + 10 * lists
    assert len(np.unique(nodes)) == lists + length + 1
    assert damage.lanes().tolist() == list(range(2, lists))
    assert (lanes == 0).sum() == 1


@pytest.mark.parametrize(("lost", "left"), [(None, 5), (0, 0), (3, 5)])
def test_zeros_in_a_circle_are_damage(lost: int | None, left: int) -> None:
    machine = Machine()
    head, *nodes = (machine.alloc("struct list_head", alone=True) for _ in range(6))
    machine.list_init(head)
    for each in nodes:
        machine.list_add_tail(each, head)
    if lost is not None:
        machine.write_words([head, *nodes][lost].address_, 0, 0)
    faults = Faults()
    found, cut = circular(Memory(machine.prog), int(head.address_), faults, limit=100)
    # From both ends, all nodes are found but those behind a lost head.
    assert (len(found), cut > 0) == (left, lost is not None)
    assert not faults
