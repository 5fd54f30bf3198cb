# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of the per-memcg lists of list_lrus: what is on them, and what they occupy.

A *slot* is what a list_lru has for one memory cgroup: up to v5.17 a ``list_lru_one`` for each node,
allocated for every id; since v5.18 a ``list_lru_memcg`` for all nodes, allocated with the first
object. There are up to list_lrus times memory cgroups of them, so they are read in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import drgn
import numpy as np
from drgn.helpers.linux.nodemask import nr_node_ids

from kcensus.engine.gather import PageIndex, gather_arrays, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.xarray import XArrayWalk
from kcensus.kernel.mm.footprint import Counts, Footprint, Tally
from kcensus.kernel.mm.list_lru import KINDS, ListLrus

NODE_ARRAYS = "list_lru_node arrays"
POINTERS = "pointer arrays"
LISTS = "lists"
XA_NODES = "xa_node"
"""Kinds of structures in a :class:`Tally`."""
IN_USE, EMPTY, UNUSED = range(3)
"""Slots with items (or an unreadable count); empty ones of online memory cgroups; ones of ids that
no online memory cgroup uses."""
_SLOT_BYTES = 64
"""What a slot needs while it is counted: as many are read together as fill a chunk."""
_LRUS = 64
"""XArrays to walk in one task."""


@dataclass
class Slots:
    """What was counted of some slots, or of all."""

    slots: Counts
    """Shape (list_lrus, 3), by :data:`IN_USE`, :data:`EMPTY`, :data:`UNUSED`; so are the bytes."""
    bytes: Counts
    items: Counts
    """Items on all slots, shape (list_lrus,)."""
    xa_nodes: Counts
    """Shape (list_lrus,)."""
    xa_node_bytes: Counts
    items_by_id: Counts
    """Shape (kinds, ids)."""
    slots_by_id: Counts
    """Shape (ids,)."""
    bytes_by_id: Counts
    pairs: list[Counts] = field(default_factory=list)
    """Up to v5.17: list_lrus and ids of slots with items, as ``list_lru << 32 | id``."""
    tally: Tally = field(default_factory=Tally)
    stray_items: int = 0
    """Items on slots of ids that no online memory cgroup uses."""
    unreadable: int = 0
    """Slots whose count could not be read."""
    arrays_unreadable: int = 0
    """Arrays of pointers that could not be read."""
    torn: int = 0
    """Nodes of XArrays that were unreadable or inconsistent with their parent."""
    faults: Faults = field(default_factory=Faults)

    @staticmethod
    def zeros(lrus: int, ids: int) -> Slots:
        """Return counts of nothing."""

        def zeros(*shape: int) -> Counts:
            return np.zeros(shape, np.int64)

        return Slots(
            slots=zeros(lrus, 3),
            bytes=zeros(lrus, 3),
            items=zeros(lrus),
            xa_nodes=zeros(lrus),
            xa_node_bytes=zeros(lrus),
            items_by_id=zeros(len(KINDS), ids),
            slots_by_id=zeros(ids),
            bytes_by_id=zeros(ids),
        )

    def add(self, part: Slots) -> None:
        """Add what was counted of other slots."""
        for name, counted in vars(part).items():
            total = getattr(self, name)
            total += counted
            setattr(self, name, total)

    @property
    def with_items(self) -> int:
        """Up to v5.17: how many slots have items."""
        return sum(map(len, self.pairs))


class SlotReader:
    """Reader of the slots of one kernel.

    :param ids_in_use: whether an online memory cgroup has each id, shape (ids,)
    """

    def __init__(self, footprint: Footprint, lrus: ListLrus, ids_in_use: Mask) -> None:
        self.footprint = footprint
        self.memory = footprint.slab_map.memory
        self.lrus = lrus
        self.ids_in_use = ids_in_use
        prog = self.memory.prog
        self.word = word_dtype(prog)
        self.nodes = nr_node_ids(prog)
        one = prog.type("struct list_lru_one")
        self.one_size = drgn.sizeof(one)
        self.count = layout(prog, one, ["nr_items"]).fields["nr_items"]
        # Offset of the array in a list_lru_memcg: 16 since Linux kernel commit 0c7c1bed7e13 ("mm:
        # make counting of list_lru_one::nr_items lockless") (in v4.17) put an rcu_head before it.
        self.header = 0
        if lrus.memcg_lrus.any() or lrus.xa_head.any():
            member = "node" if lrus.has_xarray else "lru"
            self.header = drgn.offsetof(prog.type("struct list_lru_memcg"), member)

    def read(self) -> Slots:
        """Count all slots."""
        slots = self._zeros()
        tasks = list(self._tasks())
        count = self._xarrays if self.lrus.has_xarray else self._arrays
        for part in self.memory.each(
            "per-memcg lists", lambda task: count(tasks[task]), len(tasks)
        ):
            slots.add(part)
        return slots

    def _tasks(self) -> Iterator[Counts]:
        """Return rows of list_lrus, or positions in their pointers to arrays, to read together."""
        if self.lrus.has_xarray:
            rows, size = np.flatnonzero(self.lrus.xa_head), _LRUS
        else:
            rows = np.flatnonzero(self.lrus.memcg_lrus)
            size = self.memory.chunk_bytes // (_SLOT_BYTES * max(len(self.ids_in_use), 1))
        for start in range(0, len(rows), max(size, 1)):
            yield rows[start : start + max(size, 1)]

    def _zeros(self) -> Slots:
        return Slots.zeros(len(self.lrus), len(self.ids_in_use))

    def _arrays(self, positions: Counts) -> Slots:
        """Count the slots of arrays of pointers (up to v5.17)."""
        part, ids = self._zeros(), len(self.ids_in_use)
        start = self.lrus.memcg_lrus.ravel()[positions] + np.uint64(self.header)
        pointers, readable = gather_arrays(self.memory, start, ids, self.word, part.faults)
        part.arrays_unreadable = int((~readable).sum())
        # Twice as fast as nonzero() of the pointers.
        is_slot = pointers != 0
        row, id_ = np.nonzero(is_slot)
        address, lru = pointers[is_slot], (positions // self.lrus.memcg_lrus.shape[1])[row]
        index = PageIndex.of(self.memory, address)
        items, readable = self._items(address, part, index)
        sizes = self.footprint.sizes(address, self.one_size, LISTS, part.tally, index)
        self._count(part, lru, id_, items, readable, sizes)
        used = np.flatnonzero(items)
        used = used[self.ids_in_use[id_[used]]]
        part.pairs.append(lru[used] << 32 | id_[used])
        return part

    def _xarrays(self, rows: Counts) -> Slots:
        """Count the slots of XArrays (v5.18 and later)."""
        part, ids = self._zeros(), len(self.ids_in_use)
        walk = XArrayWalk(self.memory, part.faults)
        for block in walk.blocks(self.lrus.xa_head[rows]):
            sizes = self.footprint.sizes(block.node, walk.node.size, XA_NODES, part.tally)
            np.add.at(part.xa_nodes, rows[block.node_lane], 1)
            np.add.at(part.xa_node_bytes, rows[block.node_lane], sizes)
            valid = block.index < ids
            part.torn += int((~valid).sum())
            lru, address = rows[block.lane[valid]], block.entry[valid]
            items, readable = np.zeros(len(lru), np.int64), np.ones(len(lru), np.bool_)
            for node in range(self.nodes):
                offset = np.uint64(self.header + node * self.one_size)
                on_node, node_readable = self._items(address + offset, part)
                items += on_node
                readable &= node_readable
            asked = self.header + self.nodes * self.one_size
            sizes = self.footprint.sizes(address, asked, LISTS, part.tally)
            self._count(part, lru, block.index[valid].astype(np.int64), items, readable, sizes)
        part.torn += walk.damage.unreadable + walk.damage.torn
        return part

    def _items(
        self, address: Words, part: Slots, index: PageIndex | None = None
    ) -> tuple[Counts, Mask]:
        """Return ``nr_items`` of each ``list_lru_one``, and which could be read.

        :param index: of the addresses, if there is one already
        """
        place = address + np.uint64(self.count.offset)
        shift = np.uint64(self.memory.page_shift)
        if index is not None and (place >> shift != address >> shift).any():
            index = None  # slots of 96 or 192 bytes can cross a page
        raw, readable = gather_words(self.memory, place, self.count.dtype, part.faults, index)
        # A count is negative for a moment while items are moved to the parent's list, and LONG_MIN
        # when the memory cgroup is offline: Linux kernel commit fb56fdf8b9a2 ("mm/list_lru: split
        # the lock to per-cgroup scope") (in v6.13).
        items: Counts = np.maximum(raw, 0)
        return items, readable

    def _count(
        self, part: Slots, lru: Counts, id_: Counts, items: Counts, readable: Mask, sizes: Counts
    ) -> None:
        """Add slots, given the row of the list_lru and the id of each."""
        ids, used = len(self.ids_in_use), np.flatnonzero(items)
        # Nearly always all slots have the same size, and few have items.
        size = sizes[0] if len(sizes) else 0
        weights, scale = (None, size) if (sizes == size).all() else (sizes, 1)

        def sums(key: Counts, bins: int) -> Counts:
            # Sums of integers below 2^53 are exact in the doubles of a weighted bincount().
            return np.bincount(key, weights, bins).astype(np.int64) * scale

        key = lru * 3 + np.where(self.ids_in_use, EMPTY, UNUSED)[id_]
        busy = np.union1d(used, np.flatnonzero(~readable))
        key[busy[self.ids_in_use[id_[busy]]]] -= EMPTY - IN_USE
        part.slots += np.bincount(key, minlength=part.slots.size).reshape(-1, 3)
        part.bytes += sums(key, part.slots.size).reshape(-1, 3)
        part.slots_by_id += np.bincount(id_, minlength=ids)
        part.bytes_by_id += sums(id_, ids)
        part.unreadable += int((~readable).sum())
        lru, id_, items = lru[used], id_[used], items[used]
        np.add.at(part.items, lru, items)
        np.add.at(part.items_by_id, (self.lrus.kind[lru], id_), items)
        part.stray_items += int(items[~self.ids_in_use[id_]].sum())
