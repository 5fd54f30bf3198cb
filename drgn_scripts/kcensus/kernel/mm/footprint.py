# SPDX-License-Identifier: LGPL-2.1-or-later
"""True sizes of allocations: slots of slab caches, pages, or vmalloc() areas."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from kcensus.engine.gather import PageIndex
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.slabs import ScanReport, SlabMap

KMALLOC = (8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
"""Slot sizes of the caches of kmalloc() where an object may begin at each 8th byte."""

PAGES, VMALLOC, UNKNOWN, PER_CPU = -1, -2, -3, -4
"""Places of allocations outside slabs; other places are ids of slab caches."""
_PLACES = {PAGES: "pages", VMALLOC: "vmalloc", UNKNOWN: "unknown", PER_CPU: "per-CPU"}
_KMALLOC = re.compile(r"kmalloc-(?:rnd-\d+-|part-\d+-)?\d+[kM]?")
"""Caches of normal kmalloc(). Since Linux kernel commit 3c6152940584 ("Randomized slab caches for
kmalloc()") (in v6.6), there can be several of a size; kmalloc-part-NN-* came with feb662d9168b
("slab: support for compiler-assisted type-based slab cache partitioning") (in v7.2)."""


@dataclass(frozen=True)
class Allocator:
    """Sizes of the allocations of a kernel."""

    slots: tuple[int, ...] = KMALLOC
    page_size: int = 4096

    def size(self, asked: int) -> int:
        """Return the bytes of an allocation: a slot, or 2^order pages beyond the largest slot."""
        for slot in self.slots:
            if asked <= slot:
                return slot
        pages = -(-asked // self.page_size)
        return self.page_size << (pages - 1).bit_length()


@dataclass
class Tally:
    """Allocations by kind of structure and place."""

    objects: Counter[tuple[str, int]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, int]] = field(default_factory=Counter)

    def add(self, kind: str, place: int, objects: int, size: int) -> None:
        self.objects[kind, place] += objects
        self.bytes[kind, place] += size

    def __iadd__(self, other: Tally) -> Tally:
        self.objects.update(other.objects)
        self.bytes.update(other.bytes)
        return self

    def places(self, slab_map: SlabMap, other: str, *kinds: str) -> Counter[str]:
        """Return the bytes of some kinds, or all, by place: ``slab:ROOTCACHE``, or ``other``."""
        (roots, _), places = slab_map.lineage, Counter[str]()
        for (kind, place), size in self.bytes.items():
            if not kinds or kind in kinds:
                name = f"slab:{slab_map.caches[roots[place]].name}" if place >= 0 else other
                places[name] += size
        return places

    def frame(self, footprint: Footprint) -> pd.DataFrame:
        """Return columns ``kind``, ``number`` and ``place`` (its name), ``objects``, ``bytes``."""
        frame = pd.DataFrame([*self.objects], columns=["kind", "number"])
        return frame.assign(
            place=[footprint.place(number) for number in frame["number"]],
            objects=np.array([*self.objects.values()], np.int64),
            bytes=np.array([self.bytes[key] for key in self.objects], np.int64),
        )


class Footprint:
    """Sizes of the allocations of a kernel."""

    def __init__(self, slab_map: SlabMap, faults: Faults) -> None:
        self.slab_map = slab_map
        self.faults = faults
        self.page_size = slab_map.memory.page_size
        self.slot_size = slab_map.column("slot_size").astype(np.int64)
        self.object_size = np.array([cache.object_size for cache in slab_map.caches], np.int64)
        self.is_kmalloc = np.array([cache.is_kmalloc for cache in slab_map.caches], np.bool_)
        self.kmalloc_sizes = np.unique(self.object_size[self.is_kmalloc])

    def sizes(
        self,
        address: Words,
        asked: int,
        kind: str,
        tally: Tally,
        index: PageIndex | None = None,
        faults: Faults | None = None,
    ) -> Numbers:
        """Return the bytes of each allocation, and add them to ``tally`` as ``kind``.

        :param asked: bytes asked for; the result for an address without a known slab page
        :param index: of the addresses, if there is one already
        :param faults: :attr:`faults` by default
        """
        faults = self.faults if faults is None else faults
        index = index or PageIndex.of(self.slab_map.memory, address)
        pages = self.slab_map.pages
        place = self.slab_map.containing(index.page, faults).astype(np.int64)
        size = np.full(len(place), asked)
        in_slab = place >= 0
        size[in_slab] = self.slot_size[place[in_slab]]
        loose = np.flatnonzero(~in_slab)
        if asked <= self.page_size:
            # Up to a page, every allocation comes from a slab: the page of this one is unreadable,
            # or the pointer is damaged.
            place[loose] = UNKNOWN
        else:
            # kmalloc() takes 2^order pages, vmalloc() whole pages.
            count = -(-asked // self.page_size)
            is_direct = pages.valid(pages.pfn(index.page[loose]))
            place[loose] = np.where(is_direct, PAGES, VMALLOC)
            size[loose] = np.where(is_direct, 1 << (count - 1).bit_length(), count) * self.page_size
        objects = np.bincount(index.code, minlength=len(place))
        self._note_strays(place, asked, objects, faults)
        for number in np.unique(place).tolist():
            rows = place == number
            tally.add(kind, number, int(objects[rows].sum()), int((objects * size)[rows].sum()))
        if (size == size[:1]).all():
            # Nearly always; there may be millions of addresses.
            return np.broadcast_to(size[:1] if len(size) else size, index.code.shape)
        return size[index.code]

    def _note_strays(self, place: Numbers, asked: int, objects: Numbers, faults: Faults) -> None:
        """Note allocations outside of slabs, and in slabs of another size than they need."""
        lost = place == UNKNOWN
        faults.add("structures outside of slabs", objects[lost].sum())
        in_slab = place >= 0
        size, sizes = self.object_size[place[in_slab]], objects[in_slab]
        known, row = np.unique(size, return_inverse=True)
        by_size = np.bincount(row, sizes, len(known)).astype(np.int64)
        is_wrong = np.arange(len(known)) != (by_size.argmax() if len(known) else 0)
        # kmalloc() takes the smallest slot that is large enough.
        fitting = self.kmalloc_sizes[np.searchsorted(self.kmalloc_sizes, asked) :][:1]
        is_wrong = is_wrong[row] | (self.is_kmalloc[place[in_slab]] & ~np.isin(size, fitting))
        faults.add("structures in slabs of another size than they need", sizes[is_wrong].sum())

    def place(self, number: int) -> str:
        """Return the name of a place: a cache's name, ``pages``, ``vmalloc`` or ``unknown``."""
        return _PLACES.get(number) or self.slab_map.caches[number].name

    def allocator(self) -> Allocator:
        """Return the rounding of sizes by this kernel's kmalloc()."""
        slots = {
            cache.slot_size for cache in self.slab_map.caches if _KMALLOC.fullmatch(cache.name)
        }
        return Allocator(tuple(sorted(slots)) or KMALLOC, self.page_size)


@dataclass(frozen=True)
class CacheUse:
    """Objects of some slab caches, shape (caches,); zeros for others."""

    active: Numbers
    slots: Numbers


def cache_use(slab_map: SlabMap, ids: Numbers, report: ScanReport) -> CacheUse:
    """Count the objects of the slab caches with these ids."""
    wanted, count = [slab_map.caches[id_] for id_ in ids.tolist()], len(slab_map.caches)
    slabs = slab_map.index(wanted, report)
    stores = parked(slab_map, wanted)
    report.lists_lost += stores.lost
    rows, _ = stores.slots(slab_map, slabs)
    used = slabs.inuse - np.bincount(rows, minlength=len(slabs))
    return CacheUse(
        np.bincount(slabs.cache, np.maximum(used, 0), count).astype(np.int64),
        np.bincount(slabs.cache, slabs.objects, count).astype(np.int64),
    )
