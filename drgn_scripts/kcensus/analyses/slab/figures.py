# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures that the slab census and the list of memory cgroups give together."""

from __future__ import annotations

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


class Figures:
    """Figures by cache id, children counted with their root, and by memory cgroup.

    Sums by cache id are 0 for caches that are not roots.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.slab_map = kernel.slab_map
        self.slab_census = SlabCensus(kernel)
        self.caches = self.slab_map.caches
        self.census = census = self.slab_census.take()
        self.groups = memcgs(kernel)
        self.counter_faults = Faults()
        self.counters = node_counters(self.slab_map, self.counter_faults)
        self.slabs = self._by_root(census.slabs.sum(axis=0))
        self.objects = self._by_root(census.objects.sum(axis=0))
        self.active = self._by_root(census.active.sum(axis=0))
        self.fill = np.stack([self._by_root(column) for column in census.fill.T], axis=1)
        """Shape (caches, len(FILL))."""
        self.object_size = self.slab_map.column("object_size").astype(np.int64)
        self.slot_size = self.slab_map.column("slot_size").astype(np.int64)
        self.bytes = self._by_root(census.pages.sum(axis=0)) << kernel.memory.page_shift
        self.active_bytes = self.active * self.object_size
        self.reclaimable = reclaimable(self.slab_map)
        self.vector_bytes = self._by_root(census.vector_bytes + census.vector_bytes_inside)
        """Of obj_cgroup vectors, by root cache."""
        self.roots = np.unique(self.slab_census.roots)
        """Ids of the caches that are not children of others."""
        self.owners = self._owners()
        charged = np.bincount(self.owners["cache"], self.owners["objects"], len(self.caches))
        uncharged = self.active - charged.astype(np.int64)
        self.uncharged = np.maximum(uncharged, 0)
        """Objects that no memory cgroup is charged for, by root cache."""
        self.overcharged = int(np.maximum(-uncharged, 0).sum())
        """Objects charged beyond those allocated: a live kernel changed, or memory is damaged."""
        self.packed_bytes = self._packed(np.arange(len(self.caches)), self.active)
        """Bytes of the slab pages that all objects need if every slab is as full as it can be."""
        self.old_controller_bytes = self._packed(
            np.arange(len(self.caches)), self.uncharged
        ) + self._packed(
            self.owners["cache"].to_numpy(np.int64), self.owners["objects"].to_numpy(np.int64)
        )
        """The same if memory cgroups share no slab pages, as up to 5.8."""

    def _by_root(self, values: Counts) -> Counts:
        """Return the sums over each root cache and its children."""
        sums: Counts = np.bincount(self.slab_census.roots, values, len(self.caches))
        return sums.astype(np.int64)

    def _owners(self) -> pd.DataFrame:
        """Return charged objects: ``cache`` (a root), ``row`` (of a memory cgroup), ``objects``."""
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
        return int((slabs << (order + self.kernel.memory.page_shift)).sum())

    @property
    def free_bytes(self) -> Counts:
        """Bytes of slots that hold no object."""
        return (self.objects - self.active) * self.slot_size

    @property
    def padding_bytes(self) -> Counts:
        """Bytes of slots beyond the objects in them."""
        return self.active * (self.slot_size - self.object_size)

    @property
    def tail_bytes(self) -> Counts:
        """Bytes at the ends of slabs, too few for a slot."""
        return self.bytes - self.objects * self.slot_size
