# SPDX-License-Identifier: LGPL-2.1-or-later
"""What stands on the per-memcg lists of list_lrus, and what these lists take.

A *slot* is the place that a list_lru keeps for a memory cgroup: up to 5.17 a ``list_lru_one`` for
each node, allocated for all ids there have ever been; since 5.18 a ``list_lru_memcg`` for all
nodes, which comes with the cgroup's first object. There are as many as list_lrus times cgroups, so
they are read by the chunk, and no loop here is over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.nodemask import nr_node_ids

from kcensus.analyses.list_lru.model import HEADER
from kcensus.engine.gather import PageIndex, gather_arrays, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.xarray import XArrayWalk
from kcensus.kernel.mm.footprint import Counts, Footprint, Tally
from kcensus.kernel.mm.list_lru import KINDS, ListLrus

NODE_ARRAYS = "list_lru_node arrays"
POINTERS = "pointer arrays"
LISTS = "lists"
XA_NODES = "xa_node"
SHRINKER_MAPS = "shrinker maps"
_SLOT_BYTES = 32
"""What a slot takes at least: so many slots are read together that they fill a chunk."""
_LRUS = 64
"""XArrays to walk in one task."""
_TOMBSTONE = np.iinfo(np.int64).min
"""LONG_MIN: fb56fdf8b9a2 (6.13) marks the lists of a cgroup that goes offline by this count."""


@dataclass
class Slots:
    """Slots and what is in them; arrays over list_lrus, and over kinds and ids."""

    slots: Counts
    """Slots with a list."""
    dead: Counts
    """Those of ids that no online memory cgroup has."""
    empty: Counts
    """Those of online ones that hold nothing."""
    bytes: Counts
    dead_bytes: Counts
    empty_bytes: Counts
    memcg_items: Counts
    """What is on all of them."""
    xa_nodes: Counts
    xa_node_bytes: Counts
    items_by_id: Counts
    """Shape (kinds, ids)."""
    slots_by_id: Counts
    """Shape (kinds, ids)."""
    bytes_by_id: Counts
    """Over ids."""
    pairs: list[tuple[Counts, Counts]] = field(default_factory=list)
    """Up to 5.17: list_lrus and ids of slots that hold something."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    """What the allocator has for them, by kind of structure."""
    strays: int = 0
    """Items in slots of ids that no online memory cgroup has."""
    tombstones: int = 0
    """Lists that a cgroup gave up while it went offline."""
    unreadable: int = 0
    """Slots whose count could not be read."""
    arrays_unreadable: int = 0
    """Arrays of pointers that could not be read."""
    torn: int = 0
    """Nodes of XArrays that were unreadable, or not where their parent says."""
    faults: Faults = field(default_factory=Faults)

    @staticmethod
    def none(lrus: int, ids: int) -> Slots:
        """Nothing yet."""

        def zeros(*shape: int) -> Counts:
            return np.zeros(shape, np.int64)

        return Slots(
            slots=zeros(lrus),
            dead=zeros(lrus),
            empty=zeros(lrus),
            bytes=zeros(lrus),
            dead_bytes=zeros(lrus),
            empty_bytes=zeros(lrus),
            memcg_items=zeros(lrus),
            xa_nodes=zeros(lrus),
            xa_node_bytes=zeros(lrus),
            items_by_id=zeros(len(KINDS), ids),
            slots_by_id=zeros(len(KINDS), ids),
            bytes_by_id=zeros(ids),
        )

    def add(self, part: Part) -> None:
        """Add what some list_lrus have."""
        for name, values in part.per_lru.items():
            np.add.at(getattr(self, name), part.lru, values)
        self.items_by_id += part.items_by_id
        self.slots_by_id += part.slots_by_id
        self.bytes_by_id += part.bytes_by_id
        self.pairs += part.pairs
        for kind, tally in part.tallies.items():
            self.tallies.setdefault(kind, Tally()).add(tally)
        self.strays += part.strays
        self.tombstones += part.tombstones
        self.unreadable += part.unreadable
        self.arrays_unreadable += part.arrays_unreadable
        self.torn += part.torn
        self.faults.update(part.faults)

    @property
    def holding(self) -> int:
        """Up to 5.17: how many slots hold something."""
        return sum(len(lru) for lru, _ in self.pairs)

    def pair_columns(self) -> tuple[Counts, Counts]:
        """List_lrus and ids of :attr:`pairs`, each pair once and in order."""
        none = np.empty(0, np.int64)
        lru = np.concatenate([none, *(pair[0] for pair in self.pairs)])
        id_ = np.concatenate([none, *(pair[1] for pair in self.pairs)])
        key = np.unique(lru << 32 | id_)
        return key >> 32, key & 0xFFFFFFFF


@dataclass
class Part:
    """What some list_lrus have."""

    lru: Counts
    items_by_id: Counts
    slots_by_id: Counts
    bytes_by_id: Counts
    per_lru: dict[str, Counts] = field(default_factory=dict)
    """By name of a column of :class:`Slots`, for each of :attr:`lru`."""
    pairs: list[tuple[Counts, Counts]] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    strays: int = 0
    tombstones: int = 0
    unreadable: int = 0
    arrays_unreadable: int = 0
    torn: int = 0
    faults: Faults = field(default_factory=Faults)


class SlotReader:
    """Reads the slots of one kernel.

    :param live: by id, whether an online memory cgroup has it; as long as ids go
    """

    def __init__(self, footprint: Footprint, lrus: ListLrus, live: Mask) -> None:
        self.footprint = footprint
        self.memory: Memory = footprint.slab_map.memory
        self.lrus = lrus
        self.live = live
        prog = self.memory.prog
        self._shift = np.uint64(self.memory.page_shift)
        self.word = word_dtype(prog)
        self.nodes = nr_node_ids(prog)
        one = prog.type("struct list_lru_one")
        self.one_size = drgn.sizeof(one)
        self.count = layout(prog, one, ["nr_items"]).fields["nr_items"]
        try:
            storage = prog.type("struct list_lru_memcg")
        except LookupError:  # without CONFIG_MEMCG_KMEM, CONFIG_MEMCG since 6.11
            storage = None
        self.arrays = not lrus.has_xarray
        lists = "lru" if self.arrays else "node"
        self.header = HEADER
        if storage is not None and storage.has_member(lists):
            # The rcu_head before it came in 4.16 or 4.17.
            self.header = drgn.offsetof(storage, lists)

    def read(self) -> Slots:
        """Read all slots."""
        found = Slots.none(len(self.lrus), len(self.live))
        tasks = list(self._array_tasks() if self.arrays else self._xarray_tasks())
        work = self._arrays if self.arrays else self._xarrays
        for part in self.memory.each("per-memcg lists", lambda task: work(tasks[task]), len(tasks)):
            found.add(part)
        return found

    def _part(self, lru: Counts) -> Part:
        ids = len(self.live)
        shape = (len(KINDS), ids)
        return Part(
            lru, np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(ids, np.int64)
        )

    # Up to 5.17: for each node an array of pointers

    def _array_tasks(self) -> Iterator[Counts]:
        """Arrays to read together: positions in :attr:`ListLrus.memcg_lrus`."""
        places = np.flatnonzero(self.lrus.memcg_lrus)
        count = max(self.memory.chunk_bytes // (_SLOT_BYTES * max(len(self.live), 1)), 1)
        for start in range(0, len(places), count):
            yield places[start : start + count]

    def _arrays(self, places: Counts) -> Part:
        lru = places // self.lrus.memcg_lrus.shape[1]
        part, ids = self._part(lru), len(self.live)
        start = self.lrus.memcg_lrus.ravel()[places] + np.uint64(self.header)
        pointers, readable = gather_arrays(self.memory, start, ids, self.word, part.faults)
        part.arrays_unreadable = int((~readable).sum())
        there = pointers != 0
        address = pointers[there]
        index = PageIndex.of(self.memory, address)
        items, ok = self._items(address, part, index)
        part.unreadable = int((~ok).sum())
        held = np.zeros(there.shape, np.int64)
        held[there] = items
        live, dead = there & self.live, there & ~self.live
        empty = live & (held == 0)
        if not ok.all():
            # What could not be read is not called empty.
            lost = np.zeros(there.shape, np.bool_)
            lost[there] = ~ok
            empty &= ~lost
        size = self.footprint.small(index, self.one_size, self._tally(part, LISTS))
        sizes = size
        if not isinstance(size, int):
            sizes = np.zeros(there.shape, np.int64)
            sizes[there] = size

        def weigh(slots: Mask, axis: int) -> Counts:
            # Nearly always all take the same, and there are millions.
            if isinstance(sizes, int):
                counted: Counts = slots.sum(axis=axis) * sizes
                return counted
            weighed: Counts = (slots * sizes).sum(axis=axis)
            return weighed

        part.per_lru = {
            "slots": there.sum(axis=1),
            "dead": dead.sum(axis=1),
            "empty": empty.sum(axis=1),
            "bytes": weigh(there, 1),
            "dead_bytes": weigh(dead, 1),
            "empty_bytes": weigh(empty, 1),
            "memcg_items": held.sum(axis=1),
        }
        part.bytes_by_id = weigh(there, 0)
        kinds = self.lrus.kind[lru]
        for kind in np.unique(kinds).tolist():
            part.items_by_id[kind] = held[kinds == kind].sum(axis=0)
            part.slots_by_id[kind] = there[kinds == kind].sum(axis=0)
        part.strays = int(held[dead].sum())
        row, id_ = np.nonzero(held)
        known = self.live[id_]
        part.pairs.append((lru[row[known]], id_[known]))
        return part

    # Since 5.18: an XArray of the lists of all nodes

    def _xarray_tasks(self) -> Iterator[Counts]:
        places = np.flatnonzero(self.lrus.xa_head)
        for start in range(0, len(places), _LRUS):
            yield places[start : start + _LRUS]

    def _xarrays(self, places: Counts) -> Part:
        part = self._part(places)
        names = ("slots", "dead", "empty", "bytes", "dead_bytes", "empty_bytes", "memcg_items")
        part.per_lru = {
            name: np.zeros(len(places), np.int64) for name in (*names, "xa_nodes", "xa_node_bytes")
        }
        walk = XArrayWalk(self.memory, part.faults)
        for block in walk.blocks(self.lrus.xa_head[places]):
            if len(block.node):
                size = self.footprint.sizes(block.node, walk.node.size, self._tally(part, XA_NODES))
                self._sum(part, "xa_nodes", block.node_lane, np.ones(len(size), np.int64))
                self._sum(part, "xa_node_bytes", block.node_lane, size)
            known = block.index < len(self.live)
            self._entries(
                part,
                places,
                block.lane[known],
                block.index[known].astype(np.int64),
                block.entry[known],
            )
            part.torn += int((~known).sum())
        part.torn += walk.damage.unreadable + walk.damage.torn
        return part

    def _entries(self, part: Part, places: Counts, lane: Counts, id_: Counts, at: Words) -> None:
        if not len(at):
            return
        items = np.zeros((len(at), self.nodes), np.int64)
        ok = np.ones(len(at), np.bool_)
        for node in range(self.nodes):
            offset = np.uint64(self.header + node * self.one_size)
            items[:, node], found = self._items(at + offset, part)
            ok &= found
        held = items.sum(axis=1)
        asked = self.header + self.nodes * self.one_size
        index = PageIndex.of(self.memory, at)
        size = self.footprint.small(index, asked, self._tally(part, LISTS))
        sizes = np.broadcast_to(np.asarray(size, np.int64), (len(at),))
        live = self.live[id_]
        empty = live & ok & (held == 0)
        part.unreadable += int((~ok).sum())
        part.strays += int(held[~live].sum())
        for name, values in (
            ("slots", np.ones(len(at), np.int64)),
            ("dead", ~live),
            ("empty", empty),
            ("bytes", sizes),
            ("dead_bytes", sizes * ~live),
            ("empty_bytes", sizes * empty),
            ("memcg_items", held),
        ):
            self._sum(part, name, lane, values)
        kinds = self.lrus.kind[places[lane]].astype(np.int64)
        ids = len(self.live)
        for table, values in ((part.items_by_id, held), (part.slots_by_id, None)):
            # Sums of integers below 2^53 are exact in the doubles of bincount().
            sums = np.bincount(kinds * ids + id_, values, len(KINDS) * ids)
            table += sums.astype(np.int64).reshape(table.shape)
        part.bytes_by_id += np.bincount(id_, sizes, ids).astype(np.int64)

    # Both

    def _items(
        self, address: Words, part: Part, index: PageIndex | None = None
    ) -> tuple[Counts, Mask]:
        """``nr_items`` of each ``list_lru_one``, and which could be read."""
        place = address + np.uint64(self.count.offset)
        shared = index
        if index is not None and (place >> self._shift != address >> self._shift).any():
            shared = None  # slots of three quarters of a power of two reach over pages
        raw, ok = gather_words(self.memory, place, self.count.dtype, part.faults, shared)
        part.tombstones += int((raw == _TOMBSTONE).sum())
        # While items go to the parent's list, a count may be below zero.
        items: Counts = np.maximum(raw, 0)
        return items, ok

    @staticmethod
    def _tally(part: Part, kind: str) -> Tally:
        return part.tallies.setdefault(kind, Tally())

    @staticmethod
    def _sum(part: Part, name: str, lane: Counts, values: npt.NDArray[np.generic]) -> None:
        sums = np.bincount(lane, values, len(part.lru))
        part.per_lru[name] += sums.astype(np.int64)
