# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of the slab allocator: count every slab, attribute every charged object.

Slabs are read in blocks, and the result of a block is added up right away: beside the slab map
itself, memory does not grow with the machine.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.memory import Faults, Numbers, Words, add_counts
from kcensus.engine.slub.parked import Parked, parked
from kcensus.engine.slub.slabs import ScanReport, Slabs
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.objcg import OwnerVectors

FILL = ("empty", "1-24%", "25-49%", "50-74%", "75-99%", "full")
"""Bins of the histogram of slab fill."""


class Controller(enum.Enum):
    """Charging of slab objects to memory cgroups."""

    PER_OBJECT = "per object"
    """A vector of obj_cgroups for each slab (since 5.9)."""
    PER_CACHE = "per cache"
    """Child caches for each memory cgroup (up to 5.8)."""
    NONE = "none"


@dataclass(kw_only=True)
class Tally:
    """Numbers over a block of slabs, or over all of them."""

    vectors_unreadable: int = 0
    report: ScanReport = field(default_factory=ScanReport)
    vectors: Faults = field(default_factory=Faults)


@dataclass
class Part:
    """Numbers over one block, only of the caches of its slabs.

    With child caches there can be a hundred thousand caches, too many for whole tables per block.
    """

    owners: pd.DataFrame = field(default_factory=lambda: _sum([]))
    vector_address: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    """Addresses of the vectors that are objects of slab caches."""
    sums: dict[str, tuple[Numbers, Numbers]] = field(default_factory=dict)
    """Flat indexes and the amounts to add there, by array of a :class:`Census`."""
    tally: Tally = field(default_factory=Tally)


class Census(Tally):
    """Numbers over all slabs. Arrays over caches are indexed by :attr:`SlabCache.id`."""

    owners: pd.DataFrame
    """Charged objects: ``cache`` (id), ``objcg`` (pointer) or ``memcg`` (pointer), ``objects``."""
    vector_address: Words
    """Addresses of the vectors that are objects of slab caches."""

    def __init__(self, nodes: int, caches: int) -> None:
        super().__init__()
        self.slabs, self.pages, self.objects, self.active = np.zeros((4, nodes, caches), np.int64)
        """Slabs, their pages, slots and allocated objects; shape (nodes, caches)."""
        self.fill = np.zeros((caches, len(FILL)), np.int64)
        """Slabs by fill; shape (caches, len(FILL))."""
        self.parked = np.zeros(caches, np.int64)
        """Parked objects found in a slab; shape (caches,)."""
        self.empty_pages, self.sparse_free_bytes = np.zeros((2, caches), np.int64)
        """Pages of slabs without an allocated object, and bytes outside of allocated slots in slabs
        that are less than half full; shape (caches,)."""
        self.vectors_of, self.vector_bytes, self.idle_vectors_of = np.zeros((3, caches), np.int64)
        """By cache of the described slab: obj_cgroup vectors, their bytes outside of the slab, and
        the number of vectors without a charged object."""
        self.idle_vector_bytes = np.zeros(caches + 1, np.int64)
        """Bytes of vectors without a charged object, by the cache with them as objects; the last
        element is for pages of kmalloc() beyond the slab caches."""
        self.vector_bytes_inside = np.zeros(caches, np.int64)
        """Bytes of vectors in the slack of the slabs that they describe (7.0 and later)."""
        self.large_kmalloc_pages: int | None = None
        """:attr:`Survey.large_kmalloc_pages`."""
        self.unknown_slabs = 0
        """Slabs with a cache that is not on the kernel's list."""
        self.objcgs_unreadable = 0
        """``obj_cgroup`` with an unknown memory cgroup."""

    def add(self, part: Part) -> None:
        """Add the counts over a block of slabs, except its owners."""
        for name, (index, values) in part.sums.items():
            np.add.at(getattr(self, name).reshape(-1), index, values)
        add_counts(self, part.tally)


class SlabCensus:
    """Taker of the census of one kernel.

    :raises UnsupportedAllocator: the kernel uses SLOB, or SLAB as it was before 3.18
    :raises LookupError: its slabs cannot be found
    """

    def __init__(self, kernel: Kernel) -> None:
        self.slab_map = kernel.slab_map
        self.memory = kernel.memory
        self.nodes = max(self.slab_map.pages.nodes, default=0) + 1
        try:
            self.vectors: OwnerVectors | None = OwnerVectors(self.slab_map)
        except LookupError:
            self.vectors = None
        self.roots, self.cache_owner = self.slab_map.lineage
        self.parked: Parked = parked(self.slab_map, self.slab_map.caches)

    @property
    def controller(self) -> Controller:
        """The way in which this kernel charges slab objects to memory cgroups."""
        if self.vectors is not None:
            return Controller.PER_OBJECT
        return Controller.PER_CACHE if (self.cache_owner != 0).any() else Controller.NONE

    def take(self) -> Census:
        survey = self.slab_map.survey
        known = survey.slabs.cache >= 0
        slabs = survey.slabs if known.all() else survey.slabs[known]
        census = Census(self.nodes, len(self.slab_map.caches))
        census.large_kmalloc_pages = survey.large_kmalloc_pages
        census.unknown_slabs = int((~known).sum())
        census.report.memmap.update(survey.memmap)
        census.report.slabs_invalid = int(survey.invalid.sum())
        census.report.lists_lost = self.parked.lost
        parts: list[pd.DataFrame] = []
        vectors = [np.empty(0, np.uint64)]
        blocks = range(0, len(slabs), _BLOCK)
        for part in self.memory.each(
            "slabs",
            lambda task: self._block(slabs[blocks[task] : blocks[task] + _BLOCK]),
            len(blocks),
        ):
            census.add(part)
            parts.append(part.owners)
            vectors.append(part.vector_address)
            if sum(map(len, parts)) > _COMPACT_ROWS:
                parts = [_sum(parts)]
        census.owners = _sum(parts)
        census.vector_address = np.concatenate(vectors)
        if self.vectors is None:
            active = census.active.sum(axis=0)
            ids = np.flatnonzero((self.cache_owner != 0) & (active > 0))
            owners = {"cache": ids, "memcg": self.cache_owner[ids], "objects": active[ids]}
            census.owners = pd.DataFrame(owners)
        else:
            objcg, code = np.unique(census.owners["objcg"].to_numpy(), return_inverse=True)
            memcg = self.vectors.memcg(objcg, census.vectors)
            census.objcgs_unreadable = int((memcg == 0).sum())
            census.owners["memcg"] = memcg[code]
        return census

    def _block(self, slabs: Slabs) -> Part:
        part = Part()
        slab_pages = self.slab_map.slab_pages(slabs)
        rows, _ = self.parked.slots(self.slab_map, slabs)
        part.sums["parked"] = np.unique(slabs.cache[rows], return_counts=True)
        used = slabs.inuse - np.bincount(rows, minlength=len(slabs))
        part.tally.report.slabs_torn = int((used < 0).sum())
        used = np.maximum(used, 0)
        key = slabs.node.astype(np.int64) * len(self.slab_map.caches) + slabs.cache
        index, code = np.unique(key, return_inverse=True)
        for name, weights in (
            ("slabs", None),
            ("pages", slab_pages),
            ("objects", slabs.objects),
            ("active", used),
        ):
            # Sums of integers below 2^53 are exact in the doubles of bincount().
            part.sums[name] = index, np.bincount(code, weights).astype(np.int64)
        bins = slabs.cache * np.int64(len(FILL)) + _fill_bin(used, slabs.objects)
        part.sums["fill"] = np.unique(bins, return_counts=True)
        empty = used == 0
        part.sums["empty_pages"] = slabs.cache[empty], slab_pages[empty]
        sparse = 2 * used < slabs.objects
        slot = self.slab_map.column("slot_size").astype(np.int64)[slabs.cache]
        free = (slab_pages << self.memory.page_shift) - used * slot
        part.sums["sparse_free_bytes"] = slabs.cache[sparse], free[sparse]
        if self.vectors is not None:
            self._owners(self.vectors, slabs, slab_pages, part)
        return part

    def _owners(self, reader: OwnerVectors, slabs: Slabs, slab_pages: Numbers, part: Part) -> None:
        tally, page_shift = part.tally, np.uint64(self.memory.page_shift)
        vectors = reader.find(slabs)
        owners, tally.vectors_unreadable = reader.read(slabs, vectors, tally.vectors)
        code, objcg = pd.factorize(owners.objcg)
        caches = len(self.slab_map.caches)
        # Not bincount(): torn vectors can hold a million different pointers.
        keys, counts = np.unique(code * caches + slabs.cache[owners.slab], return_counts=True)
        part.owners = pd.DataFrame(
            {"cache": keys % caches, "objcg": objcg[keys // caches], "objects": counts}
        )
        start = slabs.address[vectors.slab]
        end = start + (slab_pages[vectors.slab].astype(np.uint64) << page_shift)
        cache = slabs.cache[vectors.slab].astype(np.int64)
        objects = slabs.objects[vectors.slab].astype(np.int64)
        slot = self.slab_map.column("slot_size").astype(np.int64)[cache]
        pad = self.slab_map.pad(slabs, vectors.slab).astype(np.int64)
        slots_end = start + (pad + objects * slot).astype(np.uint64)
        inside = (vectors.address >= start) & (vectors.address < end)
        # A slab of kmalloc() can also hold its own vector as an object.
        inside &= (vectors.address >= slots_end) | (vectors.stride == slot)
        # Elements may lie as far apart as the objects.
        part.sums["vector_bytes_inside"] = cache[inside], objects[inside] * reader.element
        part.sums["vectors_of"] = cache, np.ones(len(cache), np.int64)
        outside = ~inside
        held_by = self.slab_map.containing(vectors.address[outside], tally.vectors)
        slot = self.slab_map.column("slot_size").astype(np.int64)[held_by]
        size = np.where(held_by >= 0, slot, (objects * vectors.stride)[outside])
        part.sums["vector_bytes"] = cache[outside], size
        part.vector_address = vectors.address[outside][held_by >= 0]
        charged = np.bincount(owners.slab, minlength=len(slabs))
        idle = charged[vectors.slab][outside] == 0
        part.sums["idle_vectors_of"] = cache[outside][idle], np.ones(int(idle.sum()), np.int64)
        part.sums["idle_vector_bytes"] = held_by[idle], size[idle]


_BLOCK = 1 << 14
"""Slabs to look at together: their obj_cgroup vectors are a few megabytes."""
_COMPACT_ROWS = 1 << 20
_OWNERS = {"cache": np.int64, "objcg": np.uint64, "objects": np.int64}


def _sum(parts: list[pd.DataFrame]) -> pd.DataFrame:
    together = pd.concat([pd.DataFrame(columns=[*_OWNERS]).astype(_OWNERS), *parts])
    return together.groupby(["cache", "objcg"], as_index=False, sort=True).agg({"objects": "sum"})


def _fill_bin(used: Numbers, objects: npt.NDArray[np.uint16]) -> Numbers:
    quarter = used * 4 // np.maximum(objects, 1)
    return np.where(used == objects, 5, np.where(used == 0, 0, quarter + 1))
