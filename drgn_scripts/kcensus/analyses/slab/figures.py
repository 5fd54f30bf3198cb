# SPDX-License-Identifier: LGPL-2.1-or-later
"""What follows from a census of slabs and the memory cgroups of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from drgn.helpers.linux.mm import totalram_pages

from kcensus.analyses.slab.census import Census, Counts, SlabCensus
from kcensus.engine.memory import Memory
from kcensus.kernel.memcg.memcgs import Memcgs
from kcensus.kernel.mm.slab_counters import reclaimable

NO_MEMCG = "(no memory cgroup)"
UNKNOWN_MEMCG = "(unknown memory cgroup)"


@dataclass(frozen=True)
class Totals:
    """Per cache, children counted with their root; indexed by cache id, roots only are non-zero."""

    slabs: Counts
    pages: Counts
    objects: Counts
    active: Counts
    fill: Counts
    """Shape (caches, len(FILL))."""


class Figures:
    """Figures by cache id, children counted with their root, and by memory cgroup."""

    def __init__(
        self,
        slab_census: SlabCensus,
        census: Census,
        groups: Memcgs,
        memory: Memory,
    ) -> None:
        self.slab_census = slab_census
        self.slab_map = slab_census.slab_map
        self.caches = self.slab_map.caches
        self.census = census
        self.groups = groups
        self.memory = memory
        self.totals = Totals(
            slabs=self.by_root(census.slabs.sum(axis=0)),
            pages=self.by_root(census.pages.sum(axis=0)),
            objects=self.by_root(census.objects.sum(axis=0)),
            active=self.by_root(census.active.sum(axis=0)),
            fill=np.stack([self.by_root(column) for column in census.fill.T], axis=1),
        )
        self.object_size = self.slab_map.column("object_size").astype(np.int64)
        self.slot_size = self.slab_map.column("slot_size").astype(np.int64)
        self.bytes = self.totals.pages << memory.page_shift
        self.active_bytes = self.totals.active * self.object_size
        self.reclaimable = reclaimable(self.slab_map)
        self.owners = self._owners()
        charged = np.bincount(self.owners["cache"], self.owners["objects"], len(self.caches))
        uncharged = self.totals.active - charged.astype(np.int64)
        self.uncharged = np.maximum(uncharged, 0)
        """Objects that no memory cgroup is charged for, by root cache."""
        self.overcharged = int(np.maximum(-uncharged, 0).sum())
        """More objects charged than allocated: what a kernel that goes on leaves, or damage."""
        self.packed_bytes = self._packed(np.arange(len(self.caches)), self.totals.active)
        """Of slabs as full as they can be."""
        self.old_controller_bytes = self._old_controller_bytes()
        """The same if memory cgroups share none, as up to 5.8."""

    def by_root(self, values: Counts) -> Counts:
        """Sums over each root and its children."""
        sums: Counts = np.bincount(self.slab_census.roots, values, len(self.caches))
        return sums.astype(np.int64)

    def _owners(self) -> pd.DataFrame:
        """Charged objects by root cache and memory cgroup: ``cache``, ``row``, ``objects``."""
        owners = self.census.owners
        frame = pd.DataFrame(
            {
                "cache": self.slab_census.roots[owners["cache"].to_numpy(np.int64)],
                "row": self.groups.rows(owners["memcg"].to_numpy(np.uint64)),
                "objects": owners["objects"].to_numpy(np.int64),
            }
        )
        return frame.groupby(["cache", "row"], as_index=False, sort=True).agg({"objects": "sum"})

    def _packed(self, cache: npt.NDArray[np.int64], objects: Counts) -> int:
        """Bytes of slabs that hold ``objects`` of ``cache`` without sharing between rows."""
        per_slab = self.slab_map.column("objects_per_slab").astype(np.int64)[cache]
        order = self.slab_map.column("order").astype(np.int64)[cache]
        slabs = -(-objects // per_slab)
        return int((slabs << (order + self.memory.page_shift)).sum())

    def _old_controller_bytes(self) -> int:
        charged = self._packed(
            self.owners["cache"].to_numpy(np.int64), self.owners["objects"].to_numpy(np.int64)
        )
        return charged + self._packed(np.arange(len(self.caches)), self.uncharged)

    @property
    def ram(self) -> int:
        """Bytes of it."""
        return int(totalram_pages(self.memory.prog)) << self.memory.page_shift

    @property
    def cache_count(self) -> int:
        """Caches that are no children."""
        return len(np.unique(self.slab_census.roots))

    @property
    def free_bytes(self) -> Counts:
        """In slots that hold no object."""
        return (self.totals.objects - self.totals.active) * self.slot_size

    @property
    def padding_bytes(self) -> Counts:
        """In slots beyond their objects."""
        return self.totals.active * (self.slot_size - self.object_size)

    @property
    def tail_bytes(self) -> Counts:
        """At the ends of slabs."""
        return self.bytes - self.totals.objects * self.slot_size


def ratio(part: int, whole: int) -> float:
    """A share; 0 if there is no whole."""
    return part / whole if whole else 0.0


def ratios(part: Counts, whole: Counts) -> npt.NDArray[np.float64]:
    """Shares; 0 where there is no whole."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole != 0)
