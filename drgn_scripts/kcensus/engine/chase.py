# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chase: walk many linked lists or trees in lockstep; each step is one bulk operation."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import drgn
import numpy as np

from kcensus.engine.gather import gather, plausible, plausible_range
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words

Lanes: TypeAlias = Numbers
"""Lists of nodes: indexes into ``heads``."""

_MAX_NODES = 1 << 24
"""Most nodes of all lists together, which take 256 MiB."""
_MANY_NODES = 1 << 16
"""Nodes of all lists together from which on they are compared with each other."""
_COLOUR = np.uint64(3)
"""Bits of ``__rb_parent_color`` outside of the parent's address."""
_MAX_DEPTH = 128
"""Most levels of a tree, more than 2^64 nodes need."""
_FEW = 8
"""Number of remaining lists up to which single reads are faster than a bulk read of 60 µs."""

Step: TypeAlias = Callable[[Words, Lanes], tuple[Words, Mask]]
"""Function of nodes and lanes that returns the next nodes, and a mask of the readable ones."""


@dataclass
class Damage:
    """Lists that did not end properly; each array holds lanes."""

    unreadable: list[Lanes] = field(default_factory=list)
    cyclic: list[Lanes] = field(default_factory=list)
    too_long: list[Lanes] = field(default_factory=list)
    joined: list[Lanes] = field(default_factory=list)
    """Lists that lead into another one."""

    def lanes(self) -> Lanes:
        """Return the lanes that were cut short, ascending."""
        parts = self.unreadable + self.cyclic + self.too_long + self.joined
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    @property
    def lists(self) -> int:
        """Number of lists that were cut short."""
        return len(self.lanes())


def chase(
    heads: Words, step: Step, *, limit: int, damage: Damage, ends: Words | None = None
) -> Iterator[tuple[Lanes, Words]]:
    """Walk all lists together.

    :param heads: address of the first node of each list, 0 for an empty one
    :param limit: longest list to follow; longer ones are cut
    :param damage: takes note of lists with unreadable nodes, cycles, or too many nodes
    :param ends: per list, the address that ends it besides 0 (a ``list_head`` ends at itself)
    :return: an iterator of (lanes, nodes), one pair per step; lanes are ascending. The nodes of a
        cycle come up to three times before it is noticed
    """
    lanes: Lanes = np.flatnonzero(heads if ends is None else (heads != 0) & (heads != ends))
    nodes = heads[lanes]
    # Brent's cycle detection: each node is compared with the one of its lane at the last power of
    # two of steps. All lanes have taken equally many steps, so they share one counter.
    marks, lap, steps = nodes, 1, 0
    for _ in range(limit):
        if not len(lanes):
            return
        yield lanes, nodes
        following, readable = step(nodes, lanes)
        if not readable.all():
            damage.unreadable.append(lanes[~readable])
        alive = readable & (following != 0)
        if ends is not None:
            alive &= following != ends[lanes]
        lanes, nodes, marks = lanes[alive], following[alive], marks[alive]
        back = nodes == marks
        if back.any():
            damage.cyclic.append(lanes[back])
            lanes, nodes, marks = lanes[~back], nodes[~back], marks[~back]
        steps += 1
        if steps == lap:
            marks, lap, steps = nodes, lap * 2, 0
    if len(lanes):
        damage.too_long.append(lanes)


def collect(
    heads: Words,
    step: Step,
    *,
    limit: int,
    damage: Damage,
    ends: Words | None = None,
    total: int | None = None,
) -> tuple[Lanes, Words]:
    """Return the lanes and nodes of all lists, in the order of :func:`chase`.

    A node is on one list. Damaged pointers lead many lists into one, whose nodes would come once
    for each: as often as the number of nodes doubles, lists that lead into another one are cut.
    Beyond ``total`` nodes all remaining lists are cut. Both are noted in ``damage``.
    """
    parts: list[tuple[Lanes, Words]] = []
    room = max(limit, _MAX_NODES) if total is None else total
    count, compared = 0, _MANY_NODES
    is_cut = np.zeros(len(heads), np.bool_)

    def uncut(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
        if not is_cut.any():
            return step(nodes, lanes)
        following, readable = step(nodes, lanes)
        return np.where(is_cut[lanes], np.uint64(0), following), readable | is_cut[lanes]

    for lanes, nodes in chase(heads, uncut, limit=limit, damage=damage, ends=ends):
        parts.append((lanes, nodes))
        count += len(nodes)
        if count > room:
            damage.too_long.append(lanes)
            break
        if count > compared:
            joined = np.intersect1d(_joined(*_together(parts)), lanes[~is_cut[lanes]])
            is_cut[joined] = True
            damage.joined.append(joined)
            compared = 2 * count
    return _together(parts)


def _together(parts: Sequence[tuple[Lanes, Words]]) -> tuple[Lanes, Words]:
    return (
        np.concatenate([lanes for lanes, _ in parts] or [np.empty(0, np.int64)]),
        np.concatenate([nodes for _, nodes in parts] or [np.empty(0, np.uint64)]),
    )


def _joined(lanes: Lanes, nodes: Words) -> Lanes:
    """Return the lanes with a node that an earlier row has on another lane."""
    ordered = np.sort(nodes)  # a fifth of the memory of what follows
    if not (ordered[1:] == ordered[:-1]).any():
        return lanes[:0]
    _, first, node = np.unique(nodes, return_index=True, return_inverse=True)
    return np.unique(lanes[lanes != lanes[first[node]]])


def circular(memory: Memory, head: int, faults: Faults, *, limit: int) -> tuple[Words, int]:
    """Return all nodes of one ``list_head``, in its order.

    The list is followed both ways, so that one unreadable node costs only itself.

    :return: addresses of the nodes, and the number of ways that were cut short
    :raises drgn.FaultError: the head cannot be read
    """
    links = layout(memory.prog, "struct list_head", ["next", "prev"])
    found: list[Words] = [np.empty(0, np.uint64)]
    damage = Damage()
    for member in links.fields.values():
        found.append(_along(memory, head, member.offset, faults, limit, damage))
        if not damage.lists:
            break
    nodes = np.concatenate(found)
    _, order = np.unique(nodes, return_index=True)
    return nodes[np.sort(order)], damage.lists


def _along(
    memory: Memory, head: int, offset: int, faults: Faults, limit: int, damage: Damage
) -> Words:
    """Return the nodes of one ring along the pointers at ``offset``, by a read of each.

    A step of :func:`chase` takes 25 µs, which many lists share, and a read 2 µs.
    """
    nodes, places = array("Q"), plausible_range(memory, offset + 8)
    node = mark = memory.word(head + offset)
    lap, steps, lane = 1, 0, np.zeros(1, np.int64)
    while node != head:
        if len(nodes) == limit:
            damage.too_long.append(lane)
            break
        if node:
            nodes.append(node)
        if node not in places:  # no member of a ring leads to NULL
            damage.unreadable.append(lane)
            break
        try:
            node = memory.word(node + offset)
        except drgn.FaultError as error:
            faults.note(error)
            damage.unreadable.append(lane)
            break
        if node == mark:
            damage.cyclic.append(lane)
            break
        steps += 1
        if steps == lap:
            mark, lap, steps = node, lap * 2, 0
    return np.array(nodes, np.uint64)


def pointer_step(memory: Memory, link: Layout, name: str, faults: Faults) -> Step:
    """Return a step that reads the next pointer as member ``name`` of a layout at each node."""
    offset = link.fields[name].offset

    def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
        if len(nodes) > _FEW:
            read = gather(memory, nodes, link, faults)
            return read[name], read.readable
        following = np.zeros(len(nodes), np.uint64)
        readable = plausible(memory, nodes, offset + 8)
        for lane in np.flatnonzero(readable).tolist():
            try:
                following[lane] = memory.word(int(nodes[lane]) + offset)
            except drgn.FaultError as error:
                faults.note(error)
                readable[lane] = False
        return following, readable

    return step


def tree_nodes(
    memory: Memory, roots: Words, faults: Faults, *, limit: int
) -> tuple[Lanes, Words, Lanes]:
    """Return the nodes of many trees, level by level; not in the order of their keys.

    A child counts only if it names its parent: nothing can go round in circles.

    :param roots: ``rb_root.rb_node`` of each tree, 0 for an empty one
    :return: index of each node's tree, addresses of the nodes, and trees with damaged nodes
    """
    members = {"parent": "__rb_parent_color", "left": "rb_left", "right": "rb_right"}
    links = layout(memory.prog, "struct rb_node", members)
    lane: Lanes = np.flatnonzero(roots)
    node, parent = roots[lane], np.zeros(len(lane), np.uint64)
    lanes, nodes, damaged = [lane[:0]], [node[:0]], [lane[:0]]
    count = 0
    for _ in range(_MAX_DEPTH):
        if not len(node):
            break
        read = gather(memory, node, links, faults)
        fits = read.readable & ((read["parent"] & ~_COLOUR) == parent)
        damaged.append(lane[~fits])
        lane, node = lane[fits], node[fits]
        lanes.append(lane)
        nodes.append(node)
        count += len(node)
        if count > limit:
            break
        left, right = read["left"][fits], read["right"][fits]
        twin = (left == right) & (left != 0)
        damaged.append(lane[twin])
        child = np.concatenate([left, np.where(twin, 0, right)])
        lane, parent = np.concatenate([lane, lane]), np.concatenate([node, node])
        lane, parent, node = lane[child != 0], parent[child != 0], child[child != 0]
    damaged.append(lane)  # trees with nodes left when a bound was reached
    return np.concatenate(lanes), np.concatenate(nodes), np.unique(np.concatenate(damaged))
