# SPDX-License-Identifier: LGPL-2.1-or-later
"""Red-black trees of a *synthetic* kernel, torn ones among them."""

from __future__ import annotations

import numpy as np
from drgn import Object

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.rbtree import tree_nodes
from tests.unit.fakekernel import FakeKernel, add_types

_NODE = {
    "struct rb_node": (
        24,
        "0 unsigned long __rb_parent_color\n8 struct rb_node * rb_right\n"
        "16 struct rb_node * rb_left",
    ),
}


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


def test_sound_trees() -> None:
    assert Tree().walk() == ([set(range(7)), set(), {7}], [])


def test_an_unreadable_node_costs_what_is_below() -> None:
    tree = Tree()
    tree.k.drop(int(tree.nodes[1].address_))
    assert tree.walk() == ([{0, 2, 5, 6}, set(), {7}], [0])


def test_a_child_of_another_parent() -> None:
    tree = Tree()
    tree.parent(tree.nodes[4], tree.nodes[2])
    assert tree.walk() == ([{0, 1, 2, 3, 5, 6}, set(), {7}], [0])


def test_nothing_goes_round_in_circles() -> None:
    tree = Tree()
    tree.k.set(tree.nodes[6].rb_left, tree.nodes[0])
    assert tree.walk() == ([set(range(7)), set(), {7}], [0])
    tree.k.set(tree.nodes[6].rb_left, tree.nodes[6])
    assert tree.walk() == ([set(range(7)), set(), {7}], [0])


def test_both_children_are_the_same() -> None:
    tree = Tree()
    tree.k.set(tree.nodes[2].rb_left, tree.nodes[6])
    sets, damaged = tree.walk()
    assert (sets[0], damaged) == ({0, 1, 2, 3, 4, 6}, [0])


def test_a_limit() -> None:
    sets, damaged = Tree().walk(limit=3)
    assert len(sets[0] | sets[2]) < 8
    assert 0 in damaged
