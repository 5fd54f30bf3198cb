# SPDX-License-Identifier: LGPL-2.1-or-later
"""XArrays: the entries of many of them at once; drgn's ``xa_for_each()`` takes 7 µs an entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import drgn
import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.tags import untagged

_INTERNAL = np.uint64(2)
_KIND = np.uint64(3)
_SMALLEST_NODE = np.uint64(4096)
"""Internal entries up to this value are marks (retry, zero, sibling), not nodes."""


@dataclass(frozen=True)
class XBlock:
    """Some nodes, and their entries."""

    node_lane: Lanes
    node: Words
    """Addresses of the ``struct xa_node``; none for an entry at index 0 alone."""
    lane: Lanes
    """Array of each entry: indexes into ``heads``."""
    index: Words
    entry: Words
    """Entries as stored: pointers, or values with bit 0 set; without the XArray's own marks."""


@dataclass
class XDamage:
    """Unreadable nodes, and nodes that contradict their parent."""

    unreadable: int = 0
    torn: int = 0


class XArrayWalk:
    """Walker of ``struct xarray``.

    IDRs, IDAs and radix trees are made of it since Linux kernel commit f8d5d0cc145c ("xarray: Add
    definition of struct xarray") (in v4.20).

    :raises LookupError: the kernel has no XArray
    """

    def __init__(self, memory: Memory, faults: Faults) -> None:
        self.memory = memory
        self.faults = faults
        self.damage = XDamage()
        type_ = memory.prog.type("struct xa_node")
        self.node = layout(memory.prog, type_, ["shift", "offset", "parent"])
        self.slots = np.uint64(drgn.offsetof(type_, "slots"))
        self.length = type_.member("slots").type.length or 64
        self.bits = self.length.bit_length() - 1
        """Bits of an index per level: 6, or 4 with CONFIG_BASE_SMALL."""
        self.word = word_dtype(memory.prog)
        self.batch = max(memory.chunk_bytes // (self.length * 8), 1)

    def blocks(self, heads: Words) -> Iterator[XBlock]:
        """Yield all nodes and entries of each ``xa_head``, a bounded number at a time."""
        lanes = np.flatnonzero(heads)
        entries, none = heads[lanes], np.zeros(len(lanes), np.uint64)
        # An entry at index 0 needs no node.
        alone = (entries & _KIND) != _INTERNAL
        yield XBlock(lanes[:0], none[:0], lanes[alone], none[alone], entries[alone])
        nodes = _is_node(entries)
        todo = self._batches(lanes[nodes], entries[nodes] - _INTERNAL, none[nodes], none[nodes], -1)
        while todo:
            lane, node, parent, base, shift = todo.pop()
            read = gather(self.memory, node, self.node, self.faults)
            self.damage.unreadable += int((~read.readable).sum())
            own = read["shift"].astype(np.int64)
            # A child is one level down and knows its parent and its slot there: there can be no
            # cycle, and no node reached twice, which would multiply at each level.
            fits = (own == shift) if shift >= 0 else (own < 64) & (own % self.bits == 0)
            fits &= read["parent"] == parent
            if shift >= 0:
                fits &= read["offset"] == (base >> np.uint64(shift + self.bits)) % self.length
            self.damage.torn += int((read.readable & ~fits).sum())
            ok = read.readable & fits
            lane, node, base, own = lane[ok], node[ok], base[ok], own[ok]
            for level in np.unique(own).tolist():
                rows = own == level
                block, deeper = self._level(lane[rows], node[rows], base[rows], level)
                yield block
                todo += self._batches(*deeper, level - self.bits)

    def _level(
        self, lane: Lanes, node: Words, base: Words, shift: int
    ) -> tuple[XBlock, tuple[Lanes, Words, Words, Words]]:
        slots, readable = gather_arrays(
            self.memory, node + self.slots, self.length, self.word, self.faults
        )
        self.damage.unreadable += int((~readable).sum())
        row, slot = np.nonzero(slots)
        entry = untagged(slots[row, slot], self.memory.tag)
        index = base[row] + (slot.astype(np.uint64) << np.uint64(shift))
        below = _is_node(entry) if shift else np.zeros(len(entry), np.bool_)
        plain = ~below & ((entry & _KIND) != _INTERNAL)
        block = XBlock(lane, node, lane[row[plain]], index[plain], entry[plain])
        return block, (lane[row[below]], entry[below] - _INTERNAL, node[row[below]], index[below])

    def _batches(
        self, lane: Lanes, node: Words, parent: Words, base: Words, shift: int
    ) -> list[tuple[Lanes, Words, Words, Words, int]]:
        cuts = (slice(start, start + self.batch) for start in range(0, len(node), self.batch))
        return [(lane[rows], node[rows], parent[rows], base[rows], shift) for rows in cuts]


def _is_node(entry: Words) -> Mask:
    return np.asarray(((entry & _KIND) == _INTERNAL) & (entry > _SMALLEST_NODE))
