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

from kcensus.engine.memory import Faults
from kcensus.engine.slub.parked import Parked, parked
from kcensus.engine.slub.slabs import ScanReport, Slabs
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.objcg import OwnerVectors, Vectors

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

    def add_tally(self, other: Tally) -> None:
        """Add what another block has."""
        self.parked_found += other.parked_found
        self.vectors_unreadable += other.vectors_unreadable
        self.report.add(other.report)
        self.vectors.update(other.vectors)


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
    vector_bytes: Counts
    """Bytes that obj_cgroup vectors occupy in kmalloc slots, by the cache they serve."""
    vector_bytes_inside: Counts
    """Bytes of vectors that lie in slack of the slabs they serve (7.0 and later)."""
    owners: pd.DataFrame
    """Charged objects: ``cache`` (id), ``objcg`` (pointer) or ``memcg`` (pointer), ``objects``."""
    large_kmalloc_pages: int = 0
    """Pages of kmalloc() beyond the slab caches; 0 where the kernel does not mark them."""
    unknown_slabs: int = 0
    """Slabs whose cache is not on the kernel's list."""
    objcgs_unreadable: int = 0
    """``obj_cgroup`` whose memory cgroup could not be found out."""

    def add(self, part: Part) -> None:
        """Add what a block of slabs yielded."""
        for name, sums in part.sums.items():
            getattr(self, name).reshape(-1)[part.key] += sums
        self.fill.reshape(-1)[part.fill_key] += part.fill
        for name, caches, sizes in part.vector_sizes:
            np.add.at(getattr(self, name), caches, sizes)
        self.add_tally(part)


def _nothing() -> Counts:
    return np.empty(0, np.int64)


@dataclass
class Part(Tally):
    """What one block yielded: only of the caches that it has slabs of.

    With child caches there can be a hundred thousand of them, too many for whole tables per block.
    """

    owners: pd.DataFrame
    key: Counts = field(default_factory=_nothing)
    """Nodes and caches of :attr:`sums`: positions in the tables of a :class:`Census`."""
    sums: dict[str, Counts] = field(default_factory=dict)
    fill_key: Counts = field(default_factory=_nothing)
    fill: Counts = field(default_factory=_nothing)
    vector_sizes: list[tuple[str, Counts, Counts]] = field(default_factory=list)
    """Names of tables of a :class:`Census`, caches, and bytes to add there."""


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
        census = self._empty()
        census.large_kmalloc_pages = survey.large_kmalloc_pages
        census.unknown_slabs = int((~known).sum())
        census.report.memmap.update(survey.memmap)
        census.report.slabs_invalid = int(survey.invalid.sum())
        census.report.lists_lost = self.parked.lost
        owners: list[pd.DataFrame] = []
        blocks = range(0, len(slabs), _BLOCK)
        for part in self.memory.each(
            "slabs",
            lambda task: self._block(slabs[blocks[task] : blocks[task] + _BLOCK]),
            len(blocks),
        ):
            census.add(part)
            owners.append(part.owners)
            if sum(map(len, owners)) > _COMPACT_ROWS:
                owners = [_sum(owners)]
        census.owners = _sum(owners)
        if self.vectors is None:
            census.owners = self._child_caches(census)
        else:
            objcg, code = np.unique(census.owners["objcg"].to_numpy(), return_inverse=True)
            memcg = self.vectors.memcg(objcg, census.vectors)
            census.objcgs_unreadable = int((memcg == 0).sum())
            census.owners["memcg"] = memcg[code]
        return census

    def _empty(self) -> Census:
        caches = len(self.slab_map.caches)
        shape = (self.nodes, caches)
        return Census(
            slabs=np.zeros(shape, np.int64),
            pages=np.zeros(shape, np.int64),
            objects=np.zeros(shape, np.int64),
            active=np.zeros(shape, np.int64),
            fill=np.zeros((caches, len(FILL)), np.int64),
            vector_bytes=np.zeros(caches, np.int64),
            vector_bytes_inside=np.zeros(caches, np.int64),
            owners=_no_owners(),
        )

    def _block(self, slabs: Slabs) -> Part:
        """Count some slabs, in ascending order of address."""
        part = Part(_no_owners())
        slab_pages = self.slab_map.slab_pages(slabs)
        rows, _ = self.parked.slots(self.slab_map, slabs)
        part.parked_found = len(rows)
        used = slabs.inuse - np.bincount(rows, minlength=len(slabs))
        part.report.slabs_torn = int((used < 0).sum())
        used = np.maximum(used, 0)
        key = slabs.node.astype(np.int64) * len(self.slab_map.caches) + slabs.cache
        part.key, at = np.unique(key, return_inverse=True)
        for name, weights in (
            ("slabs", None),
            ("pages", slab_pages),
            ("objects", slabs.objects),
            ("active", used),
        ):
            # Sums of integers below 2^53 are exact in the doubles of bincount().
            part.sums[name] = np.bincount(at, weights).astype(np.int64)
        bins = slabs.cache * np.int64(len(FILL)) + _fill_bin(used, slabs.objects)
        part.fill_key, part.fill = np.unique(bins, return_counts=True)
        if self.vectors is not None:
            self._owners(self.vectors, slabs, slab_pages, part)
        return part

    def _owners(self, reader: OwnerVectors, slabs: Slabs, slab_pages: Counts, part: Part) -> None:
        vectors = reader.find(slabs)
        owners, part.vectors_unreadable = reader.read(slabs, vectors, part.vectors)
        code, objcg = pd.factorize(owners.objcg)
        caches = len(self.slab_map.caches)
        # Not bincount(): torn vectors can hold a million different pointers.
        keys, counts = np.unique(code * caches + slabs.cache[owners.slab], return_counts=True)
        part.owners = pd.DataFrame(
            {"cache": keys % caches, "objcg": objcg[keys // caches], "objects": counts}
        )
        self._vector_bytes(reader, slabs, slab_pages, vectors, part)

    def _vector_bytes(
        self,
        reader: OwnerVectors,
        slabs: Slabs,
        slab_pages: Counts,
        vectors: Vectors,
        part: Part,
    ) -> None:
        start = slabs.address[vectors.slab]
        size = slab_pages[vectors.slab].astype(np.uint64)
        end = start + (size << np.uint64(self.slab_map.memory.page_shift))
        inside = (vectors.address >= start) & (vectors.address < end)
        cache = slabs.cache[vectors.slab].astype(np.int64)
        # Elements may lie as far apart as the objects.
        own = slabs.objects[vectors.slab[inside]].astype(np.int64) * reader.element
        part.vector_sizes.append(("vector_bytes_inside", cache[inside], own))
        held_by = self.slab_map.containing(vectors.address[~inside], part.vectors)
        slot = self.slab_map.column("slot_size").astype(np.int64)[held_by]
        asked = slabs.objects[vectors.slab[~inside]].astype(np.int64) * vectors.stride[~inside]
        bytes_ = np.where(held_by >= 0, slot, asked)
        part.vector_sizes.append(("vector_bytes", cache[~inside], bytes_))

    def _child_caches(self, census: Census) -> pd.DataFrame:
        """Owners where each memory cgroup has caches of its own."""
        active = census.active.sum(axis=0)
        ids = np.flatnonzero((self.cache_owner != 0) & (active > 0))
        return pd.DataFrame({"cache": ids, "memcg": self.cache_owner[ids], "objects": active[ids]})


_BLOCK = 1 << 14
"""Slabs to look at together: their obj_cgroup vectors are a few megabytes."""
_COMPACT_ROWS = 1 << 20


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
