# SPDX-License-Identifier: LGPL-2.1-or-later
"""Doubly linked lists, followed along ``next`` and checked against ``prev``."""

from __future__ import annotations

import numpy as np

from kcensus.engine.chase import Damage, Lanes, collect, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory, Numbers, Words


def in_order(lanes: Lanes, nodes: Words) -> tuple[Lanes, Words]:
    """Return nodes list by list, each node of a list once, in the order of the list."""
    order = np.lexsort((np.arange(len(nodes)), nodes, lanes))
    lane, node = lanes[order], nodes[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = (lane[1:] == lane[:-1]) & (node[1:] == node[:-1])
    kept = np.sort(order[~again])
    kept = kept[np.argsort(lanes[kept], kind="stable")]
    return lanes[kept], nodes[kept]


def before(lanes: Lanes, nodes: Words, heads: Words) -> Words:
    """Return the node before each node, or the head of its list.

    :param lanes: index of each node's list, ascending
    """
    is_first = np.ones(len(nodes), np.bool_)
    is_first[1:] = lanes[1:] != lanes[:-1]
    return np.where(is_first, heads[lanes], np.roll(nodes, 1))


def list_members(
    memory: Memory,
    heads: Words,
    faults: Faults,
    *,
    limit: int,
    total: int | None = None,
    verify: bool = True,
) -> tuple[Lanes, Words, Numbers]:
    """Return the nodes of many ``list_head``, list by list.

    A list is torn if it does not lead to its end, or if a ``prev`` does not lead back: a pointer
    bent to another list. The nodes of a torn list are those found in either direction.

    :param heads: addresses of the heads
    :param limit: longest list to follow
    :param total: nodes of all lists to follow; see :func:`collect`
    :param verify: whether to check ``prev``; a list that changes while it is read looks torn
    :return: index of each node's head, ascending; addresses of the nodes; indexes of torn lists
    """
    links = layout(memory.prog, "struct list_head", ["next", "prev"])
    ends = gather(memory, heads, links, faults)
    damage = Damage(unreadable=[np.flatnonzero(~ends.readable)])

    def follow(way: str, wanted: Lanes) -> tuple[Lanes, Words]:
        start, step = ends[way][wanted], pointer_step(memory, links, way, faults)
        own = damage if way == "next" else Damage()
        lanes, nodes = collect(
            start, step, limit=limit, damage=own, ends=heads[wanted], total=total
        )
        return wanted[lanes], nodes

    lanes, nodes = in_order(*follow("next", np.arange(len(heads))))
    torn = damage.lanes()
    if verify:
        back = gather(memory, nodes, links, faults)["prev"]
        last = heads.copy()
        last[lanes] = nodes  # of repeated lanes, the last assignment wins
        odd = lanes[back != before(lanes, nodes, heads)], np.flatnonzero(ends["prev"] != last)
        torn = np.unique(np.concatenate([torn, *odd]))
    if len(torn):
        more_lanes, more = follow("prev", torn)
        both = np.concatenate([lanes, more_lanes]), np.concatenate([nodes, more])
        lanes, nodes = in_order(*both)
    return lanes, nodes, np.unique(torn)
