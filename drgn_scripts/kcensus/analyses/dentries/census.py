# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of dentries: one pass over their slabs, and a few bytes kept of each.

What can be added up is added up while a piece of memory is in the processor's cache. Kept are, in
columns over *slots* (allocated or not), a word of state, and pointers to other dentries as the
numbers of their slots: 14 bytes a slot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.dentries.name_patterns import Families, families, merged, trimmed
from kcensus.engine.gather import gather_arrays
from kcensus.engine.layout import Layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import View, visit
from kcensus.engine.slub.slabs import ScanReport
from kcensus.engine.slub.slots import Slots
from kcensus.engine.workers import Columns
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.objcg import OwnerVectors
from kcensus.kernel.vfs.dcache import Flags, dentry_layout

Counts = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]

PATTERNS, MEMCGS, CHAINS, SIBLINGS, SLABS = "patterns", "memcgs", "chains", "siblings", "slabs"
"""What a census may look at besides totals, super blocks and directories."""

# Bits of Census.state.
_BITS = [1 << bit for bit in range(12)]
DENTRY, NEGATIVE, BUSY, REFERENCED, ON_LRU, ON_SHRINK, LOOKUP, CURSOR, DEAD = _BITS[:9]
HASHED, ROOT, EXTERNAL = _BITS[9:]
STATES = 1 << 12

NO_SLOT, FOREIGN = -1, -2
"""What stands for a pointer that is NULL (or leads to the head of a list), and for one that leads
to something that is no dentry of this census."""

_MOST_PARTS = 1 << 20
"""Families to collect before they are merged."""
_LONGEST_NAME = 255
_FAR = 128
"""Stands for an external name where names are sorted by their number of words."""


@dataclass(frozen=True)
class Sums:
    """What is added up by super block, by memory cgroup, and by directory, as columns."""

    key: npt.NDArray[Any]
    """Ascending."""
    dentries: Counts
    negative: Counts
    negative_unused: Counts
    external_bytes: Counts
    """Of the names of negative dentries."""

    def __len__(self) -> int:
        return len(self.key)

    def columns(self) -> tuple[Counts, Counts, Counts, Counts]:
        """All but the key."""
        return self.dentries, self.negative, self.negative_unused, self.external_bytes

    @staticmethod
    def none() -> Sums:
        """Of nothing."""
        return Sums(*(np.empty(0, np.int64) for _ in range(5)))


@dataclass
class _Part:
    """What one piece of memory yielded."""

    by_state: Counts = field(default_factory=lambda: np.zeros(STATES, np.int64))
    unused_name_bytes: int = 0
    super_blocks: Sums = field(default_factory=Sums.none)
    owners: Sums = field(default_factory=Sums.none)
    directories: Sums = field(default_factory=Sums.none)
    families: dict[int, Families] = field(default_factory=dict)
    """By words of room."""
    names_unreadable: Counts = field(default_factory=lambda: np.zeros(3, np.int64))
    vectors_unreadable: int = 0
    faults: Faults = field(default_factory=Faults)


@dataclass
class Census:
    """What was found. Arrays over slots are indexed by :attr:`slots`."""

    slots: Slots
    state: npt.NDArray[np.uint16]
    """0 for a slot that is free, or on a page that is not in the dump."""
    parent: npt.NDArray[Any]
    """Slot of the parent, or :data:`FOREIGN`."""
    next: npt.NDArray[Any]
    """Slot of the next dentry in the hash chain, :data:`NO_SLOT` or :data:`FOREIGN`; empty unless
    asked for."""
    sibling: npt.NDArray[Any]
    """The same for the list of children that a dentry is on."""
    name_slot: npt.NDArray[np.uint16]
    """Bytes of the slot that holds an external name, divided by 8; 0 for a name inside."""
    dentries_in_slab: npt.NDArray[np.uint16]
    """By slab of :attr:`slots`; what is on an unreadable page is not counted. Empty, as the next
    two, unless asked for."""
    negative_unused_in_slab: npt.NDArray[np.uint16]
    slab_readable: Mask
    by_state: Counts
    """How many dentries there are of each combination of bits."""
    unused_name_bytes: int
    """Of the external names of negative dentries that are unused."""
    super_blocks: Sums
    """By ``struct super_block`` pointer."""
    owners: Sums
    """By ``struct obj_cgroup`` pointer or, before 5.9, that of the ``struct mem_cgroup``; 0 for
    those that nobody is charged for."""
    directories: Sums
    """By the parent's slot, or :data:`FOREIGN`; only what is on a list of children."""
    families: list[Families]
    """Names of negative dentries; sums are their number, how many are unused, external bytes."""
    names_unreadable: Counts
    """How many of these could not be read; sums as in :attr:`families`."""
    vectors_unreadable: int
    owner_is_memcg: bool
    hash_link: int
    """Bytes from the beginning of a dentry to ``d_hash``."""
    report: ScanReport
    faults: Faults

    def count(self, having: int, lacking: int = 0) -> int:
        """How many dentries have all bits of one kind and none of another."""
        states = np.arange(STATES)
        chosen = ((states & having) == having) & ((states & lacking) == 0)
        return int(self.by_state[chosen].sum())

    def external_bytes(self, chosen: slice | Rows) -> int:
        """Bytes of the slots that hold external names of some dentries."""
        return 8 * int(self.name_slot[chosen].sum(dtype=np.int64))


class DentryCensus:
    """Takes the census of one kernel.

    :raises UnsupportedAllocator: the kernel does not use SLUB
    :raises LookupError: its dentries cannot be found
    """

    def __init__(self, kernel: Kernel, flags: Flags, wanted: Collection[str]) -> None:
        """
        :param wanted: of :data:`PATTERNS`, :data:`MEMCGS`, :data:`CHAINS`, :data:`SIBLINGS` and
            :data:`SLABS`
        """
        self.memory = memory = kernel.memory
        self.flags = flags
        self.wanted = frozenset(wanted)
        self.slab_map = kernel.slab_map
        self.caches = find_caches(self.slab_map, "struct dentry")
        self.columns: Layout = dentry_layout(memory.prog)
        links = {CHAINS: "next", SIBLINGS: "sibling"}
        self.columns_kept = [links[name] for name in (CHAINS, SIBLINGS) if name in self.wanted]
        self.word = self.slab_map.word.fields["word"].dtype
        self.inline = np.uint64(self.columns.fields["inline"].offset)
        self.hash_link = np.uint64(self.columns.fields["next"].offset)
        self.child_link = np.uint64(self.columns.fields["sibling"].offset)
        self.vectors: OwnerVectors | None = None
        self.child_owner = np.zeros(0, np.uint64)
        if MEMCGS in self.wanted:
            try:
                self.vectors = OwnerVectors(self.slab_map)
            except LookupError:
                _, self.child_owner = self.slab_map.lineage

    def take(self) -> Census:
        """Look at every dentry."""
        report = ScanReport()
        slabs = self.slab_map.index(self.caches, report)
        self.slots = Slots(self.slab_map, slabs)
        slot, size = self.slots.dtype, len(self.slots)
        room = {name: np.dtype(np.uint16) for name in ("state", "name_slot")} | {"parent": slot}
        room |= dict.fromkeys(self.columns_kept, slot)
        self.out = out = Columns(room, size, shared=self.memory.jobs > 1)
        self.by_slab = Columns(
            {name: np.dtype(np.uint16) for name in ("dentries", "unused", "readable")},
            len(slabs) if SLABS in self.wanted else 0,
            shared=self.memory.jobs > 1,
        )
        parts: list[_Part] = []
        total = _Part()
        seen = visit(self.slab_map, slabs, self.columns, self._look, report)
        collected = 0
        for part in seen:
            parts.append(part)
            collected += sum(map(len, part.families.values()))
            collected += len(part.owners) + len(part.directories)
            if collected > _MOST_PARTS:
                total, parts, collected = _sum([total, *parts]), [], 0
        total = _sum([total, *parts])
        none = np.empty(0, slot)
        return Census(
            slots=self.slots,
            state=out["state"],
            parent=out["parent"],
            next=out["next"] if "next" in self.columns_kept else none,
            sibling=out["sibling"] if "sibling" in self.columns_kept else none,
            name_slot=out["name_slot"],
            dentries_in_slab=self.by_slab["dentries"],
            negative_unused_in_slab=self.by_slab["unused"],
            slab_readable=self.by_slab["readable"] != 0,
            by_state=total.by_state,
            unused_name_bytes=total.unused_name_bytes,
            super_blocks=total.super_blocks,
            owners=total.owners,
            directories=total.directories,
            families=[total.families[room] for room in sorted(total.families)],
            names_unreadable=total.names_unreadable,
            vectors_unreadable=total.vectors_unreadable,
            owner_is_memcg=self.vectors is None,
            hash_link=int(self.hash_link),
            report=report,
            faults=total.faults,
        )

    def _look(self, view: View, report: ScanReport) -> _Part:
        """Fill the columns of the slots in view, and add up the rest."""
        part = _Part()
        first, width = self.slots.first[:-1][view.rows], view.allocated.shape[1]
        at: Any = (
            slice(int(first[0]), int(first[-1]) + width)
            if isinstance(view.rows, slice)
            else (first[:, None] + np.arange(width)).ravel()
        )
        code, pointers = _factorized(view.column("parent"))
        above = self.slots.of(pointers)
        above[above < 0] = FOREIGN
        parent = above[code].reshape(view.allocated.shape)
        state = self._state(view, parent, first)
        name_bytes = self._external(view, state, part)
        if PATTERNS in self.wanted:
            self._names(view, state, parent, name_bytes, part)
        for name, column in (("parent", parent), ("state", state)):
            self.out[name][at] = column.ravel()
        self.out["name_slot"][at] = 0 if name_bytes is None else (name_bytes >> 3).ravel()
        for name, offset in (("next", self.hash_link), ("sibling", self.child_link)):
            if name in self.columns_kept:
                self.out[name][at] = self._link(view, name, offset).ravel()
        self._add_up(view, state, (code, above), name_bytes, part)
        return part

    def _add_up(
        self,
        view: View,
        state: npt.NDArray[np.uint16],
        parent: tuple[npt.NDArray[np.int64], npt.NDArray[Any]],
        name_bytes: Counts | None,
        part: _Part,
    ) -> None:
        negative = state & (NEGATIVE | BUSY)
        unused = negative == NEGATIVE
        negative = (negative & NEGATIVE) != 0
        dentry = (state & DENTRY) != 0
        part.by_state = np.bincount(state.ravel(), minlength=STATES)
        if name_bytes is not None:
            part.unused_name_bytes = int(name_bytes[unused].sum())
        if SLABS in self.wanted:
            for name, mask in (("dentries", dentry), ("unused", unused)):
                sums = np.add.reduce(mask.view(np.uint8), axis=1, dtype=np.uint16)
                self.by_slab[name][view.rows] = sums
            self.by_slab["readable"][view.rows] = view.readable
        listed = dentry & ((state & (ROOT | DEAD)) == 0)

        def by(code: Rows, keys: npt.NDArray[Any], counted: Mask) -> Sums:
            return _by_code(code, keys, counted, negative, unused, name_bytes)

        part.directories = by(*parent, listed)
        part.super_blocks = by(*_factorized(view.column("super_block")), dentry)
        if MEMCGS in self.wanted:
            part.owners = by(*_factorized(self._owners(view, part)), dentry)

    def _state(
        self, view: View, parent: npt.NDArray[Any], first: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint16]:
        flags, bits = np.ascontiguousarray(view.column("flags")), self.flags
        count = view.column("count").astype(np.int32)
        own = first.astype(parent.dtype)[:, None] + np.arange(flags.shape[1], dtype=parent.dtype)
        state = np.full(flags.shape, DENTRY, np.uint16)
        for bit, where in (
            (NEGATIVE, view.column("inode") == 0),
            (BUSY, count > 0),
            (HASHED, view.column("pprev") != 0),
            (ROOT, parent == own),
            (REFERENCED, (flags & np.uint32(bits.referenced)) != 0),
            (ON_LRU, (flags & np.uint32(bits.lru_list)) != 0),
        ):
            _mark(state, where, bit)
        rare = np.uint32(bits.shrink_list | bits.par_lookup | bits.cursor)
        if (flags & rare).any() or count.min(initial=0) < 0:
            for bit, where in (
                (ON_SHRINK, (flags & np.uint32(bits.shrink_list)) != 0),
                (LOOKUP, (flags & np.uint32(bits.par_lookup)) != 0),
                (CURSOR, (flags & np.uint32(bits.cursor)) != 0),
                (DEAD, count < 0),
            ):
                _mark(state, where, bit)
            # They have no inode, but they are no names that do not exist either.
            state[(state & (LOOKUP | CURSOR | DEAD)) != 0] &= ~np.uint16(NEGATIVE)
        state[~view.allocated] = 0
        return state

    def _external(self, view: View, state: npt.NDArray[np.uint16], part: _Part) -> Counts | None:
        """Bytes of the slots that hold names; None if all are inside their dentries."""
        pointers = view.column("name")
        # Where each name would be inside, less the address of its slab.
        slots = np.arange(pointers.shape[1], dtype=np.uint64) * np.uint64(view.cache.slot_size)
        slots += self.inline + np.uint64(view.cache.left_pad)
        outside = (pointers - view.slabs.address[:, None]) != slots
        outside &= view.allocated
        if not outside.any():
            return None
        _mark(state, outside, EXTERNAL)
        # Several share a page.
        shift = np.uint64(self.memory.page_shift)
        pages, at = np.unique(pointers[outside] >> shift, return_inverse=True)
        cache = self.slab_map.containing(pages << shift, part.faults)
        size = self.slab_map.column("slot_size").astype(np.int64)[cache]
        name_bytes = np.zeros(state.shape, np.int64)
        name_bytes[outside] = np.where(cache >= 0, size, 0)[at]
        return name_bytes

    def _link(self, view: View, name: str, offset: np.uint64) -> npt.NDArray[Any]:
        pointers = np.ascontiguousarray(view.column(name))
        slots = self.slots.of(pointers - offset)
        ends = slots < 0
        if ends.any():
            slots[ends & (pointers != 0)] = FOREIGN
        return slots

    def _names(
        self,
        view: View,
        state: npt.NDArray[np.uint16],
        parent: npt.NDArray[Any],
        name_bytes: Counts | None,
        part: _Part,
    ) -> None:
        """The families of negative dentries' names."""
        outside = (state & EXTERNAL) != 0
        length = np.ascontiguousarray(view.column("length"))
        negative = (state & NEGATIVE) != 0
        room = self.columns.fields["inline"].dtype.itemsize
        good = negative & (length > 0) & (length <= _LONGEST_NAME) & (outside | (length < room))
        found: dict[int, list[Families]] = {}

        def sums(at: Rows) -> list[npt.NDArray[Any]]:
            size = np.zeros(len(at), np.int64) if name_bytes is None else name_bytes.ravel()[at]
            return [(states[at] & BUSY) == 0, size]

        def add(at: Rows, columns: Iterable[npt.NDArray[Any]]) -> None:
            if not len(at):
                return
            long = lengths[at].astype(np.int64)
            words = trimmed(columns, long)
            found.setdefault(len(words), []).append(families(words, long, parents[at], sums(at)))

        def lose(at: Rows) -> None:
            if len(at):
                part.names_unreadable += [len(at), *(int(column.sum()) for column in sums(at))]

        lengths, states, parents = length.ravel(), state.ravel(), parent.ravel()
        pointers, inline = view.column("name"), view.words("inline")
        lose(np.flatnonzero(negative & ~good))
        # Names of a family are equally long, so those with equally many words make good company.
        words = np.where(good, (length + 7) >> 3, 0).astype(np.uint8)
        words[good & outside] |= _FAR
        for count in (np.flatnonzero(np.bincount(words.ravel())[1:]) + 1).tolist():
            chosen = words == count
            at = np.flatnonzero(chosen)
            if count < _FAR:
                add(at, (inline[:, :, word][chosen] for word in range(count)))
                continue
            # No more is read than the name has: what follows may lie on another page.
            names, ok = gather_arrays(
                self.memory, pointers[chosen], count - _FAR, self.word, part.faults
            )
            lose(at[~ok])
            add(at[ok], names[ok].T)
        part.families = {room: merged(some) for room, some in found.items()}

    def _owners(self, view: View, part: _Part) -> Words:
        """What each slot is charged to."""
        owner = np.zeros(view.allocated.shape, np.uint64)
        if self.vectors is None:
            owner[:] = self.child_owner[view.slabs.cache][:, None]
            return owner
        found, unreadable = self.vectors.read(
            view.slabs, self.vectors.find(view.slabs), part.faults
        )
        part.vectors_unreadable += unreadable
        owner[found.slab, found.slot] = found.objcg
        return owner


def _mark(state: npt.NDArray[np.uint16], where: Mask, bit: int) -> None:
    state |= where.astype(np.uint16) * np.uint16(bit)


def _factorized(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Codes of values, and the values that they stand for; values often come in long rows."""
    if (values == values.flat[0]).all():
        return np.zeros(values.size, np.int64), values.flat[:1]
    values = values.ravel()
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    if len(changes) * 4 > len(values):
        return pd.factorize(values)
    starts = np.concatenate([[0], changes])
    code, keys = pd.factorize(values[starts])
    if len(keys) == 1:
        return np.zeros(len(values), np.int64), keys
    return np.repeat(code, np.diff(starts, append=len(values))), keys


def _by_code(
    code: npt.NDArray[np.int64],
    keys: npt.NDArray[Any],
    counted: Mask,
    negative: Mask,
    unused: Mask,
    name_bytes: Counts | None,
) -> Sums:
    """Sums of the dentries in view; the order of the keys is that of the codes."""
    size = len(keys)
    masks = [mask.ravel() for mask in (counted, negative & counted, unused & counted)]
    if size == 1:
        counts = [np.array([np.count_nonzero(mask)]) for mask in masks]
    else:
        counts = [np.bincount(code[mask], minlength=size) for mask in masks]
    external = np.zeros(size, np.int64)
    if name_bytes is not None:
        at = np.flatnonzero(masks[1] & (name_bytes.ravel() != 0))
        # Sums of integers below 2^53 are exact in the doubles of bincount().
        external = np.bincount(code[at], name_bytes.ravel()[at], size).astype(np.int64)
    some = counts[0] > 0
    return Sums(keys[some], *(column[some] for column in (*counts, external)))


def _added(parts: list[Sums]) -> Sums:
    filled = [part for part in parts if len(part)]
    if not filled:
        return Sums.none()
    keys, code = np.unique(np.concatenate([part.key for part in filled]), return_inverse=True)
    columns = zip(*(part.columns() for part in filled), strict=True)
    sums = (np.bincount(code, np.concatenate(column), len(keys)) for column in columns)
    return Sums(keys, *(total.astype(np.int64) for total in sums))


def _sum(parts: list[_Part]) -> _Part:
    rooms = sorted({room for part in parts for room in part.families})
    faults = Faults()
    for part in parts:
        if part.faults:
            faults.update(part.faults)
    by_state = np.zeros(STATES, np.int64)
    for part in parts:
        by_state += part.by_state
    return _Part(
        by_state=by_state,
        unused_name_bytes=sum(part.unused_name_bytes for part in parts),
        super_blocks=_added([part.super_blocks for part in parts]),
        owners=_added([part.owners for part in parts]),
        directories=_added([part.directories for part in parts]),
        families={
            room: merged([part.families[room] for part in parts if room in part.families])
            for room in rooms
        },
        names_unreadable=np.sum([part.names_unreadable for part in parts], axis=0),
        vectors_unreadable=sum(part.vectors_unreadable for part in parts),
        faults=faults,
    )
