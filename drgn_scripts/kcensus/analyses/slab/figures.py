# SPDX-License-Identifier: LGPL-2.1-or-later
"""What follows from a census of slabs and the memory cgroups of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.slab.census import Counts, SlabCensus
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.mm.slab_counters import node_counters, reclaimable

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

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.memory = memory = kernel.memory
        self.slab_map = kernel.slab_map
        self.slab_census = SlabCensus(kernel)
        self.caches = self.slab_map.caches
        self.census = census = self.slab_census.take()
        self.groups = memcgs(kernel)
        self.counter_faults = Faults()
        self.counters = node_counters(self.slab_map, self.counter_faults)
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
        self.vector_bytes = self.by_root(census.vector_bytes + census.vector_bytes_inside)
        """Of obj_cgroup vectors, by root cache."""
        self.roots = np.unique(self.slab_census.roots)
        """Ids of the caches that are not children of others."""
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
    def cache_count(self) -> int:
        """Number of caches, child caches not counted."""
        return len(self.roots)

    @property
    def free_bytes(self) -> Counts:
        """Bytes of slots that hold no object."""
        return (self.totals.objects - self.totals.active) * self.slot_size

    @property
    def padding_bytes(self) -> Counts:
        """Bytes of slots beyond the objects in them."""
        return self.totals.active * (self.slot_size - self.object_size)

    @property
    def tail_bytes(self) -> Counts:
        """Bytes at the ends of slabs, too few for a slot."""
        return self.bytes - self.totals.objects * self.slot_size
