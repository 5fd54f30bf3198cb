# SPDX-License-Identifier: LGPL-2.1-or-later
"""Red-black trees: the nodes of many of them at once, level by level."""

from __future__ import annotations

import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory, Words

_COLOUR = np.uint64(3)
"""Bits of ``__rb_parent_color`` that are not part of the address of the parent."""
_MAX_DEPTH = 128
"""A tree of 2^64 nodes has at most as many levels."""


def tree_nodes(
    memory: Memory, roots: Words, faults: Faults, *, limit: int
) -> tuple[Lanes, Words, Lanes]:
    """Return the nodes of many trees, level by level; not in the order of their keys.

    A child counts only if it names its parent: nothing can go round in circles.

    :param roots: ``rb_root.rb_node`` of each tree, 0 for an empty one
    :param limit: nodes of all trees to follow
    :return: index of each node's tree, addresses of the nodes, and trees with damaged nodes
    """
    links = layout(
        memory.prog,
        "struct rb_node",
        {"parent": "__rb_parent_color", "left": "rb_left", "right": "rb_right"},
    )
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
    damaged.append(lane)  # of what is left where a bound was reached
    return np.concatenate(lanes), np.concatenate(nodes), np.unique(np.concatenate(damaged))
