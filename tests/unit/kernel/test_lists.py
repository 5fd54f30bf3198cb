# SPDX-License-Identifier: LGPL-2.1-or-later
"""Doubly linked lists of *synthetic* kernels, sound and damaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.lists import list_members
from tests.unit.fakekernel import FakeKernel


@dataclass
class Lists:
    """Heads of three lists, of four, no and two nodes, and the nodes."""

    k: FakeKernel
    heads: list[int]
    nodes: list[list[int]]

    def members(self, *, verify: bool = True) -> tuple[list[list[int]], list[int]]:
        heads = np.array(self.heads, np.uint64)
        lanes, nodes, torn = list_members(
            Memory(self.k.prog), heads, Faults(), limit=100, verify=verify
        )
        return [nodes[lanes == lane].tolist() for lane in range(len(heads))], torn.tolist()


@pytest.fixture
def lists() -> Lists:
    k = FakeKernel("6.10")
    heads = [k.alloc("struct list_head", alone=True) for _ in range(3)]
    nodes = [[k.alloc("struct list_head", alone=True) for _ in range(size)] for size in (4, 0, 2)]
    for head, members in zip(heads, nodes, strict=True):
        k.list_init(head)
        for node in members:
            k.list_add_tail(node, head)
    addresses = [[int(node.address_) for node in members] for members in nodes]
    return Lists(k, [int(head.address_) for head in heads], addresses)


def test_sound_lists(lists: Lists) -> None:
    assert lists.members() == (lists.nodes, [])


def test_a_pointer_bent_to_another_list(lists: Lists) -> None:
    lists.k.write_words(lists.nodes[0][1], lists.nodes[2][1])
    # It leads to the other head, so that only prev shows where it should have led.
    found, torn = lists.members()
    assert torn == [0]
    assert set(lists.nodes[0]) <= set(found[0])
    assert found[1:] == lists.nodes[1:]


@pytest.mark.parametrize(("node", "to"), [(0, 3), (3, 1), (1, None)])
def test_pointers_that_skip_nodes_or_go_in_circles_and_lost_nodes(
    lists: Lists, node: int, to: int | None
) -> None:
    every = lists.nodes[0]
    if to is None:
        lists.k.drop(every[node])
    else:
        lists.k.write_words(every[node], every[to])
    found, torn = lists.members()
    assert (sorted(found[0]), torn) == (sorted(every), [0])
    if to == 3:
        # While it changes, that is how a list may look.
        found, torn = lists.members(verify=False)
        assert (found[0], torn) == ([every[0], every[3]], [])


@pytest.mark.parametrize("what", ["dropped", "zeroed"])
def test_a_lost_head(lists: Lists, what: str) -> None:
    if what == "dropped":
        lists.k.drop(lists.heads[2])
    else:
        lists.k.write_words(lists.heads[2], 0, 0)
    assert lists.members() == ([lists.nodes[0], [], []], [2])
