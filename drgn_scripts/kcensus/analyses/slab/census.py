# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of the slab allocator: every slab counted, every charged object attributed.

One pass over the ``struct page`` array in chunks; what a chunk yields is added up right away, so
memory does not grow with the machine.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.parked import Parked, parked
from kcensus.engine.slub.slabs import ScanReport, SlabMap, Slabs
from kcensus.engine.workers import each
from kcensus.kernel.memcg.objcg import VECTOR_MEMBERS, OwnerVectors, Vectors
from kcensus.progress import Progress
from kcensus.results import Gap

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
    """What is counted of a stretch of the page array, and of all of it."""

    large_kmalloc_pages: int = 0
    unknown_slabs: int = 0
    """Slabs whose cache is not on the kernel's list."""
    parked_found: int = 0
    """Parked objects that were found in a slab."""
    vectors_unreadable: int = 0
    report: ScanReport = field(default_factory=ScanReport)
    vectors: Faults = field(default_factory=Faults)

    def add_tally(self, other: Tally) -> None:
        """Add what another stretch has."""
        self.large_kmalloc_pages += other.large_kmalloc_pages
        self.unknown_slabs += other.unknown_slabs
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
    objcgs_unreadable: int = 0
    """``obj_cgroup`` whose memory cgroup could not be found out."""

    def add(self, part: Part) -> None:
        """Add what a stretch of the page array yielded."""
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
    """What one stretch of the page array yielded: only of the caches that it has slabs of.

    With child caches there can be a hundred thousand of them, in whole tables for each stretch.
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
    """

    def __init__(self, memory: Memory) -> None:
        self.slab_map = SlabMap(memory, VECTOR_MEMBERS)
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

    def take(self, jobs: int, progress: Progress) -> Census:
        """Count everything."""
        spans = self.slab_map.pages.chunk_spans()
        census = self._empty()
        census.report.lists_lost += self.parked.lost
        owners: list[pd.DataFrame] = []
        with progress.step("struct page array", len(spans)) as step:
            for part in each(lambda task: self._chunk(spans[task]), len(spans), jobs):
                census.add(part)
                owners.append(part.owners)
                if sum(map(len, owners)) > _COMPACT_ROWS:
                    owners = [_sum(owners)]
                step.advance()
        census.owners = _sum(owners)
        if self.vectors is None:
            census.owners = self._child_caches(census)
        else:
            objcg, code = np.unique(census.owners["objcg"].to_numpy(), return_inverse=True)
            memcg = self.vectors.memcg(objcg, census.vectors)
            census.objcgs_unreadable = int((memcg == 0).sum())
            census.owners["memcg"] = memcg[code]
        return census

    def gaps(self, census: Census, uncharged: str) -> list[Gap]:
        """What the census could not read or make sense of.

        :param uncharged: name of the row with the objects that no memory cgroup is charged for
        """
        report = census.report
        found = [
            ("pages of the struct page array", reason, count, "slabs they describe are missing")
            for reason, count in sorted(report.memmap.items())
        ]
        missing = len(self.parked.address) - census.parked_found
        found += [
            (
                "lists of slab caches",
                "torn or unreadable",
                self.slab_map.caches_torn,
                "slabs of the caches behind the tear are in no figure",
            ),
            (
                "slab caches",
                "unreadable, or of an impossible geometry",
                self.slab_map.caches_damaged,
                "their slabs are in no figure",
            ),
            (
                "free lists of CPUs or sheaves",
                "torn or unreadable",
                report.lists_lost,
                "objects on them are counted as allocated",
            ),
            (
                "slabs",
                "their counters are impossible",
                report.slabs_invalid,
                "they are in no figure",
            ),
            (
                "slabs",
                "their counters contradict the free lists of CPUs or sheaves",
                report.slabs_torn,
                "they are taken for empty",
            ),
            (
                "slabs",
                "their kmem_cache is not on slab_caches",
                census.unknown_slabs,
                "they are in no figure",
            ),
            (
                "free objects of CPUs or sheaves",
                "their slabs are not among those found",
                missing,
                "these slabs are in no figure",
            ),
            (
                "obj_cgroup vectors",
                ", ".join(sorted(census.vectors)) or "unreadable",
                census.vectors_unreadable,
                f"objects of these slabs are in the row {uncharged}",
            ),
        ]
        return [Gap(*gap) for gap in found if gap[2]]

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

    def _chunk(self, span: tuple[int, int]) -> Part:
        part = Part(_no_owners())
        pages = self.slab_map.pages
        chunk = pages.read(*span, part.report.memmap)
        part.large_kmalloc_pages = pages.large_kmalloc_pages(
            chunk.records(pages.layout, pages.struct_size)
        )
        slabs = self.slab_map.slabs(chunk, part.report)
        part.unknown_slabs = int((slabs.cache < 0).sum())
        slabs = slabs[slabs.cache >= 0]
        if not len(slabs):
            return part
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
