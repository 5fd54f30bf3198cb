# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chase: walk many linked lists at once, in lockstep.

Step *k* looks at the *k*-th node of every list that is that long, so the number of steps is the
length of the longest list, and each step is one bulk operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather, plausible
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Faults, Mask, Memory, Words

Lanes: TypeAlias = npt.NDArray[np.int64]
"""Which list a node belongs to: indexes into ``heads``."""

_MAX_NODES = 1 << 24
"""Of all lists together, which take 256 MiB."""

Step: TypeAlias = Callable[[Words, Lanes], tuple[Words, Mask]]
"""Given nodes and their lanes: the next nodes, and which of them could be read."""


@dataclass
class Damage:
    """Lists that did not end as a list should; each array holds lanes."""

    unreadable: list[Lanes] = field(default_factory=list)
    cyclic: list[Lanes] = field(default_factory=list)
    too_long: list[Lanes] = field(default_factory=list)

    def lanes(self) -> Lanes:
        """Return the lanes that were cut short, ascending."""
        parts = self.unreadable + self.cyclic + self.too_long
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    @property
    def lists(self) -> int:
        """How many lists were cut short."""
        return len(self.lanes())


def chase(
    heads: Words,
    step: Step,
    *,
    limit: int,
    damage: Damage,
    ends: Words | None = None,
) -> Iterator[tuple[Lanes, Words]]:
    """Walk all lists together.

    :param heads: address of the first node of each list, 0 for an empty one
    :param limit: longest list to follow; lists beyond are cut and noted in ``damage``
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
    """Return the lanes and nodes of all lists, in the order in which :func:`chase` yields them.

    Where damaged pointers lead many lists into one, their nodes add up: all lists that are left
    are cut, and noted in ``damage``, once there are ``total`` of them, by default ``_MAX_NODES`` or
    ``limit``.
    """
    parts: list[tuple[Lanes, Words]] = []
    room = max(limit, _MAX_NODES) if total is None else total
    for lanes, nodes in chase(heads, step, limit=limit, damage=damage, ends=ends):
        parts.append((lanes, nodes))
        room -= len(nodes)
        if room < 0:
            damage.too_long.append(lanes)
            break
    return (
        np.concatenate([lanes for lanes, _ in parts] or [np.empty(0, np.int64)]),
        np.concatenate([nodes for _, nodes in parts] or [np.empty(0, np.uint64)]),
    )


def circular(memory: Memory, head: int, faults: Faults, *, limit: int) -> tuple[Words, int]:
    """Return all nodes of one ``list_head``, in its order.

    The list is followed both ways, so that one unreadable node costs only itself.

    :param head: address of the head
    :param limit: longest list to follow
    :return: addresses of the nodes, and how many ways were cut short
    :raises drgn.FaultError: the head cannot be read
    """
    links = layout(memory.prog, "struct list_head", ["next", "prev"])
    found: list[Words] = []
    damage = Damage()
    for way in links.fields:
        first = np.array([memory.word(head + links.fields[way].offset)], np.uint64)
        step = pointer_step(memory, links, way, faults)
        ends = np.array([head], np.uint64)
        found.append(collect(first, step, limit=limit, damage=damage, ends=ends)[1])
        if not damage.lists:
            break
    nodes = np.concatenate(found)
    _, order = np.unique(nodes, return_index=True)
    return nodes[np.sort(order)], damage.lists


def pointer_step(memory: Memory, link: Layout, name: str, faults: Faults) -> Step:
    """Return a step that reads the next pointer as member ``name`` of a layout at each node."""

    offset = link.fields[name].offset

    def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
        if len(nodes) > _FEW:
            read = gather(memory, nodes, link, faults)
            return read[name], read.readable
        following = np.zeros(len(nodes), np.uint64)
        readable = plausible(nodes, offset + 8)
        for lane in np.flatnonzero(readable).tolist():
            try:
                following[lane] = memory.word(int(nodes[lane]) + offset)
            except drgn.FaultError as error:
                faults.note(error)
                readable[lane] = False
        return following, readable

    return step


_FEW = 8
"""With so few lists left, one read each is faster than a bulk read: long lists among short ones
would otherwise cost 60 µs a node."""
