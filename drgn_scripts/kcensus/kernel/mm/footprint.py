# SPDX-License-Identifier: LGPL-2.1-or-later
"""What allocations really take: their slots, pages or vmalloc() areas."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import PageIndex
from kcensus.engine.memory import Faults, Words
from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.mm.allocator import KMALLOC, Allocator

Counts = npt.NDArray[np.int64]

PAGES, VMALLOC, UNKNOWN = -1, -2, -3
"""Places of allocations that are in no slab; others are ids of slab caches."""
_PLACES = {PAGES: "pages", VMALLOC: "vmalloc", UNKNOWN: "unknown"}
_KMALLOC = re.compile(r"kmalloc-(?:rnd-\d+-|part-\d+-)?\d+[kM]?")
"""Normal ones, of which there have been several of a size (6.6)."""


@dataclass
class Tally:
    """Allocations of one kind by place."""

    objects: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Add what another has."""
        self.objects.update(other.objects)
        self.bytes.update(other.bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes at all places."""
        return sum(self.bytes.values())


class Footprint:
    """Finds out what allocations of a kernel take."""

    def __init__(self, slab_map: SlabMap, faults: Faults) -> None:
        self.slab_map = slab_map
        self.faults = faults
        self.page_size = slab_map.memory.page_size
        self.slot_size = slab_map.column("slot_size").astype(np.int64)

    def sizes(self, address: Words, asked: int | Counts, tally: Tally) -> Counts:
        """Bytes that each allocation takes.

        kmalloc() beyond the slab caches takes a power of two of pages, vmalloc() whole pages.

        :param asked: what was asked for; counts where the address is in no slab
        :param tally: takes note of them
        """
        want = np.broadcast_to(np.asarray(asked, np.int64), (len(address),))
        place = self.slab_map.containing(address, self.faults).astype(np.int64)
        loose = place < 0
        direct = self.slab_map.pages.valid(self.slab_map.pages.pfn(address))
        pages = -(-np.maximum(want, 1) // self.page_size)
        power = np.left_shift(1, np.ceil(np.log2(pages)).astype(np.int64))
        place[loose] = np.where(direct[loose], PAGES, VMALLOC)
        # Small ones come from slabs: this one's page could not be read.
        place[loose & direct & (want <= self.page_size)] = UNKNOWN
        size = np.where(place == PAGES, power, pages) * self.page_size
        size[place == UNKNOWN] = want[place == UNKNOWN]
        size[~loose] = self.slot_size[place[~loose]]
        self._note(place, size, tally)
        return size

    def small(self, index: PageIndex, asked: int, tally: Tally) -> int | Counts:
        """The same for many small allocations of one size, of which many lie on one page.

        :param index: of their addresses
        :return: bytes of each; a number if all take the same
        """
        code, pages = index.code, index.page
        place = self.slab_map.containing(pages, self.faults).astype(np.int64)
        size = np.where(place >= 0, self.slot_size[place], asked)
        place[place < 0] = UNKNOWN
        count = np.bincount(code, minlength=len(pages))
        self._note(place, size, tally, count)
        if len(pages) and (size == size[0]).all():
            return int(size[0])
        each: Counts = size[code]
        return each

    @staticmethod
    def _note(place: Counts, size: Counts, tally: Tally, count: Counts | None = None) -> None:
        count = np.ones(len(place), np.int64) if count is None else count
        places, at = np.unique(place, return_inverse=True)
        objects = np.bincount(at, count, len(places)).astype(np.int64)
        total = np.bincount(at, count * size, len(places)).astype(np.int64)
        for row, number in enumerate(places.tolist()):
            tally.objects[number] += int(objects[row])
            tally.bytes[number] += int(total[row])

    def place(self, number: int) -> str:
        """A place in words: the cache's name, ``pages``, or ``vmalloc``."""
        return _PLACES.get(number) or self.slab_map.caches[number].name

    def allocator(self) -> Allocator:
        """How this kernel's kmalloc() rounds."""
        found = {
            cache.slot_size for cache in self.slab_map.caches if _KMALLOC.fullmatch(cache.name)
        }
        return Allocator(tuple(sorted(found)) or KMALLOC, self.page_size)


@dataclass(frozen=True)
class CacheUse:
    """How much of some slab caches is in use, by cache id; zeros for others."""

    active: Counts
    """Allocated objects."""
    slots: Counts


def cache_use(slab_map: SlabMap, ids: Counts, report: ScanReport) -> CacheUse:
    """Count the objects of some slab caches.

    :param ids: of the caches
    :param report: takes note of what could not be read
    """
    wanted = [slab_map.caches[id_] for id_ in ids.tolist()]
    count = len(slab_map.caches)
    if not wanted:
        return CacheUse(np.zeros(count, np.int64), np.zeros(count, np.int64))
    slabs = slab_map.index(wanted, report)
    stores = parked(slab_map, wanted)
    report.lists_lost += stores.lost
    kept, _ = stores.slots(slab_map, slabs)
    used = slabs.inuse - np.bincount(kept, minlength=len(slabs))
    return CacheUse(
        np.bincount(slabs.cache, np.maximum(used, 0), count).astype(np.int64),
        np.bincount(slabs.cache, slabs.objects, count).astype(np.int64),
    )
