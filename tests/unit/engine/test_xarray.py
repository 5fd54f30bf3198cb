# SPDX-License-Identifier: LGPL-2.1-or-later
"""XArrays of a *synthetic* kernel, torn ones among them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from drgn import Object

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.xarray import XArrayWalk, XDamage
from tests.unit.fakekernel import PAGE
from tests.unit.fakekernel.list_lrus import FakeListLrus

Truth = dict[int, dict[int, int]]


def made(arrays: Truth) -> tuple[FakeListLrus, list[Object]]:
    fake = FakeListLrus("5.18")
    objects = []
    for entries in arrays.values():
        array = fake.kernel.alloc("struct xarray")
        fake.xarray(array, entries)
        objects.append(array)
    return fake, objects


def walk(
    fake: FakeListLrus, arrays: list[Object], chunk_bytes: int = PAGE
) -> tuple[Truth, dict[int, int], XDamage]:
    """Entries by array and index, nodes by array, and what was in the way."""
    walker = XArrayWalk(Memory(fake.kernel.prog, chunk_bytes), Faults())
    found: Truth = {at: {} for at in range(len(arrays))}
    nodes = dict.fromkeys(found, 0)
    heads = np.array([array.xa_head.value_() for array in arrays], np.uint64)
    for block in walker.blocks(heads):
        for lane in block.node_lane.tolist():
            nodes[lane] += 1
        columns = (block.lane.tolist(), block.index.tolist(), block.entry.tolist())
        for lane, index, entry in zip(*columns, strict=True):
            assert index not in found[lane]
            found[lane][index] = entry
    return found, nodes, walker.damage


def some(chance: random.Random, count: int, highest: int) -> dict[int, int]:
    indexes = {highest, *(chance.randint(0, highest) for _ in range(count))}
    return {index: chance.randrange(1 << 40, 1 << 62) * 4 for index in indexes}


@pytest.mark.parametrize("chunk_bytes", [PAGE, 1 << 20])
def test_all_sorts(chunk_bytes: int) -> None:
    chance = random.Random(5)
    highest = (0, 1, 63, 64, 4095, 4096, 65_535, (1 << 64) - 1)
    truth = {at: some(chance, 1 + 3 * at, high) for at, high in enumerate(highest)}
    truth[len(truth)] = {}
    truth[len(truth)] = {0: 1 << 40, 70: 3}  # and a value
    fake, arrays = made(truth)
    found, nodes, damage = walk(fake, arrays, chunk_bytes)
    assert found == truth
    assert (damage.unreadable, damage.torn) == (0, 0)
    assert nodes[0] == 0
    assert nodes[1] == 1
    assert nodes[len(truth) - 2] == 0
    assert nodes[len(truth) - 1] == 3


def test_marks_of_the_xarrays_own_are_no_entries() -> None:
    fake, arrays = made({0: {1: 1 << 40, 70: 1 << 41}})
    k = fake.kernel
    root = Object(k.prog, "struct xa_node", address=int(arrays[0].xa_head) - 2)
    low = Object(k.prog, "struct xa_node", address=int(root.slots[0]) - 2)
    # A sibling, a retry and a zero entry.
    for slot, mark in ((2, 1 << 2 | 2), (3, 256 << 2 | 2), (4, 257 << 2 | 2)):
        k.set(low.slots[slot], mark)
    assert walk(fake, arrays)[0] == {0: {1: 1 << 40, 70: 1 << 41}}
    k.set(arrays[0].xa_head, 256 << 2 | 2)
    assert walk(fake, arrays)[0] == {0: {}}


@pytest.mark.parametrize(
    ("how", "expected"),
    [("itself", (0, 1)), ("another's", (0, 1)), ("level", (0, 1)), ("nowhere", (1, 0))],
)
def test_a_torn_node_costs_what_is_below_it(how: str, expected: tuple[int, int]) -> None:
    truth = {0: {index * 64: (index + 1) << 40 for index in range(5)}, 1: {9: 8 << 40}}
    fake, arrays = made(truth)
    k = fake.kernel
    root = Object(k.prog, "struct xa_node", address=int(arrays[0].xa_head) - 2)
    second = Object(k.prog, "struct xa_node", address=int(root.slots[1]) - 2)
    if how == "itself":
        k.set(root.slots[1], int(arrays[0].xa_head))
    elif how == "another's":
        k.set(root.slots[1], int(arrays[1].xa_head))
    elif how == "level":
        k.set(second.shift, 12)
    else:
        k.set(root.slots[1], 0xFFFF_C900_0000_0002)
    found, _, damage = walk(fake, arrays)
    del truth[0][64]
    assert found == truth
    assert (damage.unreadable, damage.torn) == expected


def test_a_node_that_is_reached_twice_counts_once() -> None:
    """With many slots that lead to the same child, work would multiply at each level."""
    fake, arrays = made({0: {index * 64: (index + 1) << 40 for index in range(5)}})
    root = Object(fake.kernel.prog, "struct xa_node", address=int(arrays[0].xa_head) - 2)
    for slot in (3, 7, 63):
        fake.kernel.set(root.slots[slot], int(root.slots[1]))
    found, nodes, damage = walk(fake, arrays)
    assert found == {0: {index * 64: (index + 1) << 40 for index in (0, 1, 2, 4)}}
    assert nodes == {0: 1 + 4}
    assert (damage.unreadable, damage.torn) == (0, 3)


def test_a_head_that_is_no_node() -> None:
    fake, arrays = made({0: {9: 8 << 40}})
    k = fake.kernel
    node = Object(k.prog, "struct xa_node", address=int(arrays[0].xa_head) - 2)
    k.set(node.shift, 7)
    found, _, damage = walk(fake, arrays)
    assert found == {0: {}}
    assert damage.torn == 1
