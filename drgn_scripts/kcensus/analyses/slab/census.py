# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of the slab allocator: every slab counted, every charged object attributed.

Slabs are looked at block by block, and what a block yields is added up right away: beside the slab
map itself, memory does not grow with the machine.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.memory import Faults, Words, add_counts
from kcensus.engine.slub.parked import Parked, parked
from kcensus.engine.slub.slabs import ScanReport, Slabs
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.objcg import OwnerVectors

FILL = ("empty", "1-24%", "25-49%", "50-74%", "75-99%", "full")
"""Bins of the histogram of slab fill."""

Counts = npt.NDArray[np.int64]


class Controller(enum.Enum):
    """How slab objects are charged to memory cgroups."""

    PER_OBJECT = "per object"
    """By a vector of obj_cgroups for each slab (since 5.9)."""
    PER_CACHE = "per cache"
    """By caches of each memory cgroup's own (up to 5.8)."""
    NONE = "none"


@dataclass(kw_only=True)
class Tally:
    """What is counted of a block of slabs, and of all of them."""

    parked_found: int = 0
    """Parked objects that were found in a slab."""
    vectors_unreadable: int = 0
    report: ScanReport = field(default_factory=ScanReport)
    vectors: Faults = field(default_factory=Faults)


@dataclass
class Part:
    """What one block yielded: only of the caches that it has slabs of.

    With child caches there can be a hundred thousand of them, too many for whole tables per block.
    """

    owners: pd.DataFrame
    vector_address: Words
    """Of vectors that are objects of slab caches."""
    sums: dict[str, tuple[Counts, Counts]] = field(default_factory=dict)
    """By array of a :class:`Census`: flat indexes, and what to add there."""
    tally: Tally = field(default_factory=Tally)


@dataclass
class Census(Tally):
    """What was counted. Arrays over caches are indexed by :attr:`SlabCache.id`."""

    slabs: Counts
    """Shape (nodes, caches)."""
    pages: Counts
    """Shape (nodes, caches)."""
    objects: Counts
    """All slots; shape (nodes, caches)."""
    active: Counts
    """Allocated objects; shape (nodes, caches)."""
    fill: Counts
    """Slabs by fill; shape (caches, len(FILL))."""
    empty_pages: Counts
    """Pages of slabs without an allocated object; shape (caches,)."""
    sparse_free_bytes: Counts
    """Bytes of slabs less than half full that are not in slots of objects; shape (caches,)."""
    vectors_of: Counts
    """obj_cgroup vectors, by the cache they serve."""
    vector_bytes: Counts
    """Bytes that obj_cgroup vectors occupy in kmalloc slots, by the cache they serve."""
    idle_vectors_of: Counts
    """Vectors in which no object is charged, by the cache they serve; those inside of slabs are
    left out."""
    idle_vector_bytes: Counts
    """Bytes that these occupy, by the cache that they are objects of; the last element is for
    pages of kmalloc() beyond the slab caches."""
    vector_bytes_inside: Counts
    """Bytes of vectors that lie in slack of the slabs they serve (7.0 and later)."""
    owners: pd.DataFrame
    """Charged objects: ``cache`` (id), ``objcg`` (pointer) or ``memcg`` (pointer), ``objects``."""
    vector_address: Words
    """Of vectors that are objects of slab caches."""
    large_kmalloc_pages: int | None = None
    """:attr:`Survey.large_kmalloc_pages`."""
    unknown_slabs: int = 0
    """Slabs whose cache is not on the kernel's list."""
    objcgs_unreadable: int = 0
    """``obj_cgroup`` whose memory cgroup could not be found out."""

    def add(self, part: Part) -> None:
        """Add what a block of slabs yielded, except its owners."""
        for name, (index, values) in part.sums.items():
            np.add.at(getattr(self, name).reshape(-1), index, values)
        add_counts(self, part.tally)


class SlabCensus:
    """Takes the census of one kernel.

    :raises UnsupportedAllocator: the kernel does not use SLUB
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
        """How this kernel charges slab objects to memory cgroups."""
        if self.vectors is not None:
            return Controller.PER_OBJECT
        return Controller.PER_CACHE if (self.cache_owner != 0).any() else Controller.NONE

    def take(self) -> Census:
        """Count everything."""
        survey = self.slab_map.survey
        known = survey.slabs.cache >= 0
        slabs = survey.slabs if known.all() else survey.slabs[known]
        caches = len(self.slab_map.caches)
        shape = (self.nodes, caches)
        census = Census(
            slabs=np.zeros(shape, np.int64),
            pages=np.zeros(shape, np.int64),
            objects=np.zeros(shape, np.int64),
            active=np.zeros(shape, np.int64),
            fill=np.zeros((caches, len(FILL)), np.int64),
            empty_pages=np.zeros(caches, np.int64),
            sparse_free_bytes=np.zeros(caches, np.int64),
            vectors_of=np.zeros(caches, np.int64),
            vector_bytes=np.zeros(caches, np.int64),
            idle_vectors_of=np.zeros(caches, np.int64),
            idle_vector_bytes=np.zeros(caches + 1, np.int64),
            vector_bytes_inside=np.zeros(caches, np.int64),
            owners=_no_owners(),
            vector_address=_NO_WORDS,
        )
        census.large_kmalloc_pages = survey.large_kmalloc_pages
        census.unknown_slabs = int((~known).sum())
        census.report.memmap.update(survey.memmap)
        census.report.slabs_invalid = int(survey.invalid.sum())
        census.report.lists_lost = self.parked.lost
        owners: list[pd.DataFrame] = []
        vectors: list[Words] = [_NO_WORDS]
        blocks = range(0, len(slabs), _BLOCK)
        for part in self.memory.each(
            "slabs",
            lambda task: self._block(slabs[blocks[task] : blocks[task] + _BLOCK]),
            len(blocks),
        ):
            census.add(part)
            owners.append(part.owners)
            vectors.append(part.vector_address)
            if sum(map(len, owners)) > _COMPACT_ROWS:
                owners = [_sum(owners)]
        census.owners = _sum(owners)
        census.vector_address = np.concatenate(vectors)
        if self.vectors is None:
            census.owners = self._child_caches(census)
        else:
            objcg, code = np.unique(census.owners["objcg"].to_numpy(), return_inverse=True)
            memcg = self.vectors.memcg(objcg, census.vectors)
            census.objcgs_unreadable = int((memcg == 0).sum())
            census.owners["memcg"] = memcg[code]
        return census

    def _block(self, slabs: Slabs) -> Part:
        """Count some slabs, in ascending order of address."""
        part = Part(_no_owners(), _NO_WORDS)
        slab_pages = self.slab_map.slab_pages(slabs)
        rows, _ = self.parked.slots(self.slab_map, slabs)
        part.tally.parked_found = len(rows)
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

    def _owners(self, reader: OwnerVectors, slabs: Slabs, slab_pages: Counts, part: Part) -> None:
        """Count the owners of charged objects, and the bytes of the vectors that tell them."""
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
        pad = self.slab_map.column("left_pad").astype(np.int64)[cache]
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

    def _child_caches(self, census: Census) -> pd.DataFrame:
        """Owners where each memory cgroup has caches of its own."""
        active = census.active.sum(axis=0)
        ids = np.flatnonzero((self.cache_owner != 0) & (active > 0))
        return pd.DataFrame({"cache": ids, "memcg": self.cache_owner[ids], "objects": active[ids]})


_BLOCK = 1 << 14
"""Slabs to look at together: their obj_cgroup vectors are a few megabytes."""
_COMPACT_ROWS = 1 << 20
_NO_WORDS = np.empty(0, np.uint64)


def _no_owners() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "cache": np.empty(0, np.int64),
            "objcg": np.empty(0, np.uint64),
            "objects": np.empty(0, np.int64),
        }
    )


def _sum(parts: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [part for part in parts if len(part)]
    if not filled:
        return _no_owners()
    together = pd.concat(filled, ignore_index=True)
    return together.groupby(["cache", "objcg"], as_index=False, sort=True).agg({"objects": "sum"})


def _fill_bin(used: Counts, objects: npt.NDArray[np.uint16]) -> Counts:
    """Index in :data:`FILL` of each slab."""
    quarter = used * 4 // np.maximum(objects, 1)
    return np.where(used == objects, 5, np.where(used == 0, 0, quarter + 1))
