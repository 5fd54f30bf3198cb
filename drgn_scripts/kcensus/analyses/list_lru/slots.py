# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of the per-memcg lists of list_lrus: their items and their memory.

A *slot* is the part of a list_lru for one memory cgroup: up to v5.17 a ``list_lru_one`` per node,
allocated for every id; since v5.18 a ``list_lru_memcg`` for all nodes, allocated with the first
object. There are up to list_lrus times memory cgroups of them, so they are read in chunks.
"""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.gather import PageIndex, gather_arrays, gather_words, possible_counts
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.slub.percpu import node_ids
from kcensus.engine.xarray import XArrayWalk
from kcensus.kernel.mm.footprint import Footprint, Tally
from kcensus.kernel.vfs.list_lru import KINDS, ListLrus

NODE_ARRAYS = "list_lru_node arrays"
POINTERS = "pointer arrays"
LISTS = "lists"
XA_NODES = "xa_node"
"""Kinds of structures in a :class:`Tally`."""
IN_USE, EMPTY, UNUSED = range(3)
"""Slots with items (or an unreadable count); empty slots of online memory cgroups; slots of ids
without an online memory cgroup."""
_SLOT_BYTES = 64
"""Bytes per slot while counting; they determine the slots per chunk."""
_LRUS = 64
"""XArrays to walk in one task."""
_SLACK = 1024
"""Most items added to a list between two reads."""


class Slots:
    """Totals over some or all slots."""

    def __init__(self, lrus: int, ids: int) -> None:
        self.slots = _zeros(lrus, 3)
        """Number of slots, shape (list_lrus, 3), by :data:`IN_USE`, :data:`EMPTY`, :data:`UNUSED`;
        :attr:`bytes` has the same shape."""
        self.bytes = _zeros(lrus, 3)
        self.items = _zeros(lrus)
        """Items on all slots, shape (list_lrus,)."""
        self.xa_nodes = _zeros(lrus)
        self.xa_node_bytes = _zeros(lrus)
        self.items_by_id = _zeros(len(KINDS), ids)
        """Shape (kinds, ids)."""
        self.slots_by_id = _zeros(ids)
        self.bytes_by_id = _zeros(ids)
        self.pairs: list[Numbers] = []
        """Up to v5.17: list_lrus and ids of slots with items, as ``list_lru << 32 | id``."""
        self.tally = Tally()
        self.stray_items = 0
        """Items on slots of ids without an online memory cgroup."""
        self.unreadable = 0
        """Slots with an unreadable count."""
        self.arrays_unreadable = 0
        """Unreadable arrays of pointers."""
        self.torn = 0
        """Nodes of XArrays that were unreadable or inconsistent with their parent."""
        self.faults = Faults()
        self.place_faults = Faults()
        """Structures, or their pages, whose slab is unknown or of another size."""

    def add(self, part: Slots) -> None:
        """Add the totals over other slots."""
        for name, counted in vars(part).items():
            total = getattr(self, name)
            total += counted
            setattr(self, name, total)


def _zeros(*shape: int) -> Numbers:
    return np.zeros(shape, np.int64)


class SlotReader:
    """Reader of the slots; ``ids_in_use`` marks the ids of online memory cgroups."""

    def __init__(self, footprint: Footprint, lrus: ListLrus, ids_in_use: Mask) -> None:
        self.footprint = footprint
        self.memory = footprint.slab_map.memory
        self.lrus = lrus
        self.ids_in_use = ids_in_use
        prog = self.memory.prog
        self.word = word_dtype(prog)
        self.nodes = node_ids(prog)
        total = lrus.items.sum(axis=1)
        unknown = np.full_like(total, np.iinfo(np.int64).max)
        self.most = total + total // 4 + _SLACK if lrus.counts_all else unknown
        # Offset of the array in a list_lru_memcg: 16 since Linux kernel commit 0c7c1bed7e13 ("mm:
        # make counting of list_lru_one::nr_items lockless") (in v4.17) put an rcu_head before it.
        self.header = 0
        if lrus.memcg_lrus.any() or lrus.xa_head.any():
            one = prog.type("struct list_lru_one")
            self.one_size = drgn.sizeof(one)
            self.count = layout(prog, one, ["nr_items"]).fields["nr_items"]
            member = "node" if lrus.has_xarray else "lru"
            self.header = drgn.offsetof(prog.type("struct list_lru_memcg"), member)

    def read(self) -> Slots:
        """Count all slots."""
        slots = Slots(len(self.lrus), len(self.ids_in_use))
        has_xarray = self.lrus.has_xarray
        heads = np.flatnonzero(self.lrus.xa_head if has_xarray else self.lrus.memcg_lrus)
        size = self.memory.chunk_bytes // (_SLOT_BYTES * max(len(self.ids_in_use), 1))
        size = min(_LRUS, -(-len(heads) // (8 * self.memory.jobs))) if has_xarray else size
        size = max(size, 1)

        def count(task: int) -> Slots:
            together = heads[task * size :][:size]
            return self._xarrays(together) if has_xarray else self._arrays(together)

        for part in self.memory.each("per-memcg lists", count, -(-len(heads) // size)):
            slots.add(part)
        return slots

    def _arrays(self, positions: Numbers) -> Slots:
        ids = len(self.ids_in_use)
        part = Slots(len(self.lrus), ids)
        start = self.lrus.memcg_lrus.ravel()[positions] + np.uint64(self.header)
        pointers, readable = gather_arrays(self.memory, start, ids, self.word, part.faults)
        part.arrays_unreadable = int((~readable).sum())
        # Twice as fast as nonzero() of the pointers.
        is_slot = pointers != 0
        row, id_ = np.nonzero(is_slot)
        address, lru = pointers[is_slot], (positions // self.lrus.memcg_lrus.shape[1])[row]
        index = PageIndex.of(self.memory, address)
        items, readable = self._items(address, part, index)
        sizes = self.footprint.sizes(
            address, self.one_size, LISTS, part.tally, index, part.place_faults
        )
        self._count(part, lru, id_, items, readable, sizes)
        used = np.flatnonzero(items)
        used = used[self.ids_in_use[id_[used]]]
        part.pairs.append(lru[used] << 32 | id_[used])
        return part

    def _xarrays(self, rows: Numbers) -> Slots:
        ids = len(self.ids_in_use)
        part = Slots(len(self.lrus), ids)
        walk = XArrayWalk(self.memory, part.faults)
        for block in walk.blocks(self.lrus.xa_head[rows]):
            sizes = self.footprint.sizes(
                block.node, walk.node.size, XA_NODES, part.tally, faults=part.place_faults
            )
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
            sizes = self.footprint.sizes(
                address, asked, LISTS, part.tally, faults=part.place_faults
            )
            self._count(part, lru, block.index[valid].astype(np.int64), items, readable, sizes)
        part.torn += walk.damage.unreadable + walk.damage.torn
        return part

    def _items(
        self, address: Words, part: Slots, index: PageIndex | None = None
    ) -> tuple[Numbers, Mask]:
        """Return ``nr_items`` of each ``list_lru_one``, and a mask of the readable ones."""
        place = address + np.uint64(self.count.offset)
        shift = np.uint64(self.memory.page_shift)
        if index is not None and (place >> shift != address >> shift).any():
            index = None  # slots of 96 or 192 bytes can cross a page
        raw, readable = gather_words(self.memory, place, self.count.dtype, part.faults, index)
        # A count is negative for a moment while items are moved to the parent's list, and LONG_MIN
        # when the memory cgroup is offline: Linux kernel commit fb56fdf8b9a2 ("mm/list_lru: split
        # the lock to per-cgroup scope") (in v6.13).
        items: Numbers = np.maximum(raw, 0)
        fits = possible_counts(self.memory, items, part.faults, self.count.least_bytes)
        return np.where(fits, items, 0), readable & fits

    def _count(
        self,
        part: Slots,
        lru: Numbers,
        id_: Numbers,
        items: Numbers,
        readable: Mask,
        sizes: Numbers,
    ) -> None:
        """Add slots, given the row of the list_lru and the id of each."""
        # A list that a running kernel freed meanwhile can have any count; few items came to a list
        # since the counter of its list_lru was read.
        over = items > self.most[lru]
        part.faults.add("more items than their list_lru", over.sum())
        if over.any():
            items, readable = np.where(over, 0, items), readable & ~over
        ids, used = len(self.ids_in_use), np.flatnonzero(items)
        # Nearly always all slots have the same size, and few have items.
        size = sizes[0] if len(sizes) else 0
        weights, scale = (None, size) if (sizes == size).all() else (sizes, 1)

        def sums(key: Numbers, bins: int) -> Numbers:
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
