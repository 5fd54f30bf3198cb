# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of dentries: one pass over their slabs, keeping at most 14 bytes per slot.

Sums are taken while a piece of memory is in the processor's cache. Only columns over *slots*
(allocated or not) are kept, and only those that are wanted: pointers to dentries as slot numbers,
with the bits that decide about a dentry, and the sizes of external names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.analyses.dentries.columns.bits import (
    BUSY,
    CURSOR,
    DEAD,
    DENTRY,
    EXTERNAL,
    FOREIGN,
    HASHED,
    KIN_BITS,
    LINK_BITS,
    LOOKUP,
    NEGATIVE,
    ON_LRU,
    ON_SHRINK,
    REFERENCED,
    ROOT,
    STATES,
    kin_of,
    links_of,
    packed_dtype,
)
from kcensus.analyses.dentries.columns.tally import Sums, Tally
from kcensus.analyses.dentries.name_patterns import WORD, Families, families, merged, trimmed
from kcensus.engine.gather import gather_arrays
from kcensus.engine.layout import layout
from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.engine.rows import coded
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import View, visit
from kcensus.engine.slub.slabs import ScanReport
from kcensus.engine.slub.slots import Slots
from kcensus.engine.workers import Columns
from kcensus.kernel.kernel import Kernel, remember
from kcensus.kernel.memcg.objcg import SlotOwners
from kcensus.kernel.slab.kmalloc_users import names_of_dentries
from kcensus.kernel.vfs.dcache import DENTRY_MEMBERS, Flags
from kcensus.sources.capsule.uses import Use

MANY = 1 << 21
"""Slots from which on worker processes pay for looking at columns."""
_MAX_ROWS = 1 << 20
"""Numbers of sums and families to collect before they are merged."""
_ALWAYS = ("flags", "pprev", "parent", "inode", "name", "length", "count", "super_block")
"""Members that are read whatever is wanted; those of :attr:`DentryCensus.offsets` may be added."""
_SECOND, _THIRD = 1 << 16, 1 << 32
"""Units of the second and the third of several counts below 2^16 in one number."""
_MAX_NAMES = 1 << 23
"""External names to keep for other analyses, 64 MiB."""
_MAX_NAME = 255
_HEADER, _LARGER, _SLACK = 24, 4, 256
"""Bytes before an external name, and most bytes of its slot: of its length, and of debugging."""
_FAR = 128
"""Added to the number of words of an external name."""


class DentryCensus:
    """All dentries of one kernel.

    :param flags: bits of ``d_flags``
    :param wanted: parts of the analysis; members that only other parts need are not read
    :raises UnsupportedAllocator: the kernel uses SLOB, or SLAB as it was before 3.18
    :raises LookupError: its dentries cannot be found
    """

    def __init__(self, kernel: Kernel, flags: Flags, wanted: Collection[str]) -> None:
        self.memory = memory = kernel.memory
        self.flags = flags
        self.wanted = frozenset(wanted)
        self.slab_map = kernel.slab_map
        self.caches = find_caches(self.slab_map, "struct dentry")
        self.slot_size = max(cache.slot_size for cache in self.caches)
        is_kmalloc = [cache.is_kmalloc for cache in self.slab_map.caches]
        self.is_kmalloc = np.array(is_kmalloc, np.bool_)
        """Mask of the slab caches of kmalloc(), which have the external names."""
        self.columns = layout(memory.prog, "struct dentry", DENTRY_MEMBERS)
        offset = {name: np.uint64(each.offset) for name, each in self.columns.fields.items()}
        self.inline = offset["inline"]
        self.hash_link = offset["next"]
        """Bytes from the start of a dentry to ``d_hash``."""
        self.offsets = {
            name: offset[name]
            for name, part in (("next", "chains"), ("sibling", "walk_cost"))
            if part in self.wanted
        }
        self.slot_owners = SlotOwners(self.slab_map)
        self.report = ScanReport()
        slabs = self.slab_map.index(self.caches, self.report)
        self.slots = Slots(self.slab_map, slabs)
        word, slot = np.dtype(np.uint16), self.slots.dtype
        shared = self.memory.fills_elsewhere
        by_slot: dict[str, np.dtype[Any]] = {}
        if "next" in self.offsets:
            by_slot |= {"next": packed_dtype(len(self.slots), LINK_BITS), "name_slot": word}
        if "sibling" in self.offsets:
            by_slot |= {"sibling": slot, "kin": packed_dtype(len(self.slots), KIN_BITS)}
        self.out = Columns(by_slot, len(self.slots), shared=shared)
        self.links, self.name_slot, self.sibling, self.kin = (
            self.out[name] if name in by_slot else np.empty(0, slot)
            for name in ("next", "name_slot", "sibling", "kin")
        )
        """What :func:`links_of` returns for hash chains; bytes of the slot that holds an external
        name, divided by 8, or 0 for an inline name; the slot of the next dentry in the parent's
        list of children, :data:`NO_SLOT` or :data:`FOREIGN`; and what :func:`kin_of` returns.
        Empty unless wanted."""
        counts = ("dentries", "negative_unused", "in_use")
        self.by_slab = Columns(
            {"readable": np.dtype(np.bool_)} | dict.fromkeys(counts, word),
            len(slabs),
            shared=shared,
        )
        """Per slab: whether all of its pages were readable, and its numbers of dentries, of unused
        negative dentries, and of dentries that reclaim cannot free."""
        parts: list[Tally] = []
        names: list[Words] | None = [np.empty(0, np.uint64)]
        rows = kept = 0
        looks = visit(
            self.slab_map, slabs, self.columns, self._look, self.report, merge=Tally.merged
        )
        for part in looks:
            parts.append(part)
            rows += part.rows
            if names is not None and part.outside is not None:
                names.append(part.outside)
                kept += len(part.outside)
                names = names if kept <= _MAX_NAMES else None
            part.outside = None
            if rows > _MAX_ROWS:
                parts, rows = [Tally.merged(parts)], 0
        self.tally = Tally.merged(parts)
        if names is not None and self.report == ScanReport() and not self.tally.nameless:
            # So that the users of kmalloc() are found without reading all dentries again.
            outside: Words | None = np.concatenate(names)
            remember(names_of_dentries, kernel, outside)

    def count(self, having: int, lacking: int = 0) -> int:
        """Return how many dentries have all bits of one kind and none of another."""
        chosen = ((STATES & having) == having) & ((STATES & lacking) == 0)
        return int(self.tally.by_state[chosen].sum())

    def sums(self, key: str) -> Sums:
        """Return the sums by one of the keys of :attr:`Tally.sums`."""
        none = Sums(np.empty(0, np.int64), np.empty((4, 0), np.int64))
        return self.tally.sums.get(key, none)

    def slots_of(self, pointers: Words, offset: np.uint64) -> npt.NDArray[Any]:
        """Return the slots of dentries, :data:`NO_SLOT` for NULL, or :data:`FOREIGN`.

        :param pointers: to the member at ``offset`` of each dentry
        """
        slots = self.slots.of(pointers - offset)
        ends = slots < 0
        if ends.any():
            slots[ends & (pointers != 0)] = FOREIGN
        return slots

    def _look(self, view: View, report: ScanReport) -> Tally:
        """Fill the columns of the slots in view, and add up the rest."""
        part = Tally()
        first, width = self.slots.first[:-1][view.rows], view.allocated.shape[1]
        place: Any = (
            slice(int(first[0]), int(first[-1]) + width)
            if isinstance(view.rows, slice)
            else (first[:, None] + np.arange(width)).ravel()
        )
        has_names = "patterns" in self.wanted
        members = view.members((*_ALWAYS, *self.offsets), words="inline" if has_names else "")
        code, pointers = coded(members["parent"])
        above = self.slots.of(pointers)
        above[above < 0] = FOREIGN
        parent = above[code].reshape(view.allocated.shape)
        state = self._state(view, members, parent, first)
        name_bytes = self._external(view, members, state, part)
        if has_names:
            self._names(members, state, parent, name_bytes, part)
        columns = {
            name: self.slots_of(members[name], offset) for name, offset in self.offsets.items()
        }
        if "next" in columns:
            columns["next"] = links_of(columns["next"], state, self.links.dtype)
            if name_bytes is not None:
                columns["name_slot"] = name_bytes >> 3
        if "sibling" in columns:
            columns["kin"] = kin_of(parent, state, self.kin.dtype)
        for name, column in columns.items():
            self.out[name][place] = column.ravel()
        negative = state & (NEGATIVE | BUSY)
        unused = negative == NEGATIVE
        negative = (negative & NEGATIVE) != 0
        dentry = (state & DENTRY) != 0
        typed = members["flags"] & np.uint32(self.flags.types)
        # Up to v4.1 or so (commit not verified), and on RHEL 7, killed ones keep the flags.
        alive = (state & (DENTRY | DEAD)) == DENTRY
        part.without_inode = int(np.count_nonzero(alive & (members["inode"] == 0) & (typed != 0)))
        part.by_state = np.bincount(state.ravel(), minlength=len(STATES))
        if name_bytes is not None:
            part.unused_name_bytes = int(name_bytes[unused].sum())
            part.all_name_bytes = int(name_bytes.sum())
        in_use = (state & (BUSY | DEAD | LOOKUP | CURSOR)) != 0
        # SLUB has less than 2^15 slots in a slab. einsum() takes a third of the time of sum().
        counts = np.einsum("ij->i", dentry + (unused * _SECOND) + (in_use * _THIRD))
        for name, unit in (("dentries", 1), ("negative_unused", _SECOND), ("in_use", _THIRD)):
            self.by_slab[name][view.rows] = counts // unit % _SECOND
        self.by_slab["readable"][view.rows] = view.readable
        keys = {
            "directory": ((code, above), dentry & ((state & (ROOT | DEAD)) == 0)),
            "super_block": (coded(members["super_block"]), dentry),
        }
        if "memcgs" in self.wanted:
            owner, part.vectors_unreadable = self.slot_owners.read(view.slabs, part.faults)
            keys["owner"] = owners = coded(owner), dentry
            on_lru = (state & (ON_LRU | ON_SHRINK)) == ON_LRU
            keys["owner_on_lru"] = owners[0], on_lru
        for name, (codes, counted) in keys.items():
            part.sums[name] = _by_code(*codes, (counted, negative, unused), name_bytes)
        return part

    def _state(
        self,
        view: View,
        members: Mapping[str, npt.NDArray[Any]],
        parent: npt.NDArray[Any],
        first: Numbers,
    ) -> npt.NDArray[np.uint16]:
        flags, bits = members["flags"], self.flags
        count = members["count"].astype(np.int32, copy=False)
        own = first.astype(parent.dtype)[:, None] + np.arange(flags.shape[1], dtype=parent.dtype)
        state = np.full(flags.shape, DENTRY, np.uint16)

        def has(flag: int) -> Mask:
            return np.asarray((flags & np.uint32(flag)) != 0)

        _mark(state, members["inode"] == 0, NEGATIVE)
        _mark(state, count > 0, BUSY)
        _mark(state, members["pprev"] != 0, HASHED)
        _mark(state, parent == own, ROOT)
        _mark(state, has(bits.referenced), REFERENCED)
        _mark(state, has(bits.lru_list), ON_LRU)
        if has(bits.shrink_list | bits.par_lookup | bits.cursor).any() or count.min(initial=0) < 0:
            _mark(state, has(bits.shrink_list), ON_SHRINK)
            _mark(state, has(bits.par_lookup), LOOKUP)
            _mark(state, has(bits.cursor), CURSOR)
            _mark(state, count < 0, DEAD)
            # These have no inode, but are not negative: they do not record that a name is missing.
            state[(state & (LOOKUP | CURSOR | DEAD)) != 0] &= ~np.uint16(NEGATIVE)
        if view.kept is not None:
            state[~view.kept] = 0
        return state

    def _external(
        self,
        view: View,
        members: Mapping[str, npt.NDArray[Any]],
        state: npt.NDArray[np.uint16],
        part: Tally,
    ) -> Numbers | None:
        """Return the bytes of the slots that hold names; None if all names are inline."""
        pointers = members["name"]
        # Where each name would be if inline, less the address of its slab.
        slots = np.arange(pointers.shape[1], dtype=np.uint64) * np.uint64(view.cache.slot_size)
        slots += self.inline + np.uint64(view.pad)
        outside = (pointers - view.slabs.address[:, None]) != slots
        if view.kept is not None:
            outside &= view.kept
        if not outside.any():
            return None
        _mark(state, outside, EXTERNAL)
        names = pointers[outside]
        part.nameless = int(np.count_nonzero(names == 0))
        beyond = (names - view.address()[outside]) >= np.uint64(self.columns.size)
        part.outside = names[beyond & (names != 0)]
        # Several share a page.
        shift = np.uint64(self.memory.page_shift)
        pages, row = np.unique(names >> shift, return_inverse=True)
        cache = self.slab_map.containing(pages << shift, part.faults)
        size = np.where(cache >= 0, self.slab_map.column("slot_size")[cache].astype(np.int64), 0)
        name_bytes = np.zeros(state.shape, np.int64)
        name_bytes[outside] = size[row]
        length = members["length"][outside].astype(np.int64)
        strange = (size[row] < length) | (size[row] > _LARGER * (length + _HEADER) + _SLACK)
        strange |= ~self.is_kmalloc[cache[row]]
        others = np.count_nonzero(strange & (cache[row] >= 0))
        part.faults.add("names in objects that cannot hold them", others)
        of_negatives = row[(state[outside] & NEGATIVE) != 0]
        caches, count = np.unique(cache[of_negatives], return_counts=True)
        for each, number in zip(caches[caches >= 0].tolist(), count[caches >= 0], strict=True):
            part.name_bytes[each] += int(number) * self.slab_map.caches[each].slot_size
        return name_bytes

    def _names(
        self,
        members: Mapping[str, npt.NDArray[Any]],
        state: npt.NDArray[np.uint16],
        parent: npt.NDArray[Any],
        name_bytes: Numbers | None,
        part: Tally,
    ) -> None:
        inline = members["inline"].reshape(len(members["inline"]), -1)
        lengths, pointers, states, parents = (
            column.ravel() for column in (members["length"], members["name"], state, parent)
        )
        outside, negative = (states & EXTERNAL) != 0, (states & NEGATIVE) != 0
        room = self.columns.fields["inline"].dtype.itemsize
        # A name has no NUL: one of zeros is lost.
        good = negative & (lengths > 0) & (lengths <= _MAX_NAME)
        good &= outside | ((lengths < room) & (inline[0] != 0))
        by_words: dict[int, list[Families]] = {}

        def sums(rows: Any) -> list[npt.NDArray[Any]]:
            unused = (states[rows] & BUSY) == 0
            return [unused, _zeros(unused) if name_bytes is None else name_bytes.ravel()[rows]]

        def lose(rows: Numbers) -> None:
            if len(rows):
                part.names_unreadable += [len(rows), *(int(column.sum()) for column in sums(rows))]

        if np.count_nonzero(good) != np.count_nonzero(negative):
            lose(np.flatnonzero(negative & ~good))
        # Names of a family are equally long, so names of equally many words are looked at together.
        words = ((lengths + np.uint32(7)) >> np.uint32(3)).astype(np.uint8) * good
        words |= (good & outside) * np.uint8(_FAR)
        counts = np.bincount(words)
        for count in (np.flatnonzero(counts[1:]) + 1).tolist():
            rows: Any = slice(None)
            if counts[count] != len(words):
                rows = np.flatnonzero(words == count)
            columns = inline[:count, rows]
            if count >= _FAR:
                # Read no further than the name: the next page may be missing.
                names, readable = gather_arrays(
                    self.memory, pointers[rows], count - _FAR, WORD, part.faults, Use.TEXT
                )
                readable &= names[:, 0] != 0
                columns = names.T
                if not readable.all():
                    rows = np.arange(len(words))[rows]
                    lose(rows[~readable])
                    rows, columns = rows[readable], columns[:, readable]
            long = lengths[rows].astype(np.int64)
            if len(long):
                family = families(trimmed(columns, long), long, parents[rows], sums(rows))
                by_words.setdefault(len(family.sample), []).append(family)
        part.families = {count: merged(some) for count, some in by_words.items()}


def _zeros(like: npt.NDArray[Any]) -> Numbers:
    """Return as many zeros, in memory of one."""
    return np.broadcast_to(np.int64(0), like.shape)


def _mark(state: npt.NDArray[np.uint16], where: Mask, bit: int) -> None:
    state |= where.astype(np.uint16) * np.uint16(bit)


def _by_code(
    code: Numbers,
    keys: npt.NDArray[Any],
    masks: tuple[Mask, Mask, Mask],
    name_bytes: Numbers | None,
) -> Sums:
    """Add up the dentries in view; keys are in the order of their codes.

    :param masks: slots to count, the negative ones, and the unused negative ones
    """
    counted, *others = (mask.ravel() for mask in masks)
    chosen = [counted, *(mask & counted for mask in others)]
    values = np.zeros((4, len(keys)), np.int64)
    for row, mask in enumerate(chosen):
        if len(keys) == 1:
            values[row] = np.count_nonzero(mask)
        else:
            values[row] = np.bincount(code[mask], minlength=len(keys))
    if name_bytes is not None:
        long = np.flatnonzero(chosen[1] & (name_bytes.ravel() != 0))
        # Sums of integers below 2^53 are exact in the doubles of bincount().
        values[3] = np.bincount(code[long], name_bytes.ravel()[long], len(keys))
    return Sums(keys, values)[values[0] > 0]
