# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures that the slab census and the list of memory cgroups give together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.slab.attribution import attribute, kmalloc_caches
from kcensus.analyses.slab.census import Controller, Counts, SlabCensus
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.slab_charges import charged_bytes
from kcensus.kernel.mm.slab_counters import NodeCounters, node_counters, reclaimable
from kcensus.text import printable

NO_MEMCG = "(no memory cgroup)"
UNKNOWN_MEMCG = "(unknown memory cgroup)"
NOT_ATTRIBUTED = "(not attributed)"


class Figures:
    """Figures by cache id, children counted with their root, and by memory cgroup.

    Sums by cache id are 0 for caches that are not roots.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.slab_map = kernel.slab_map
        self.counter_faults = Faults()
        self.counters_before: NodeCounters | None = None
        """Of a running kernel: what the counters of slab caches were before the census."""
        self.charged_before: int | None = None
        """What was charged then."""
        if kernel.live:
            self.charged_before = charged_bytes(kernel)
            self.counters_before = node_counters(self.slab_map, self.counter_faults)
        self.slab_census = SlabCensus(kernel)
        self.caches = self.slab_map.caches
        self.census = census = self.slab_census.take()
        self.groups = memcgs(kernel)
        self.counters = node_counters(self.slab_map, self.counter_faults)
        self.slabs = self.by_root(census.slabs.sum(axis=0))
        self.objects = self.by_root(census.objects.sum(axis=0))
        self.active = self.by_root(census.active.sum(axis=0))
        self.fill = np.stack([self.by_root(column) for column in census.fill.T], axis=1)
        """Shape (caches, len(FILL))."""
        self.object_size = self.slab_map.column("object_size").astype(np.int64)
        self.slot_size = self.slab_map.column("slot_size").astype(np.int64)
        shift = kernel.memory.page_shift
        self.bytes = self.by_root(census.pages.sum(axis=0)) << shift
        self.active_bytes = self.active * self.object_size
        self.reclaimable = reclaimable(self.slab_map)
        self.vector_bytes = self.by_root(census.vector_bytes + census.vector_bytes_inside)
        """Of obj_cgroup vectors, by root cache."""
        self.roots = np.unique(self.slab_census.roots)
        """Ids of the caches that are not children of others."""
        self.sharers = self._sharers()
        """Names of the caches that were merged into each, by name."""
        self.owners = self._owners()
        charged = np.bincount(self.owners["cache"], self.owners["objects"], len(self.caches))
        uncharged = self.active - charged.astype(np.int64)
        self.uncharged = np.maximum(uncharged, 0)
        """Objects that no memory cgroup is charged for, by root cache."""
        self.overcharged = int(np.maximum(-uncharged, 0).sum())
        """Objects charged beyond those allocated: a live kernel changed, or memory is damaged."""
        self.packed = self._packed(np.arange(len(self.caches)), self.active)
        """Bytes of the slab pages that all objects of each root cache need, packed full."""
        self.packed_bytes = int(self.packed.sum())
        self.old_controller_bytes = self._old_controller_bytes()
        """Bytes of the slab pages that all objects need, packed full, if memory cgroups share none,
        as up to 5.8."""
        is_child = self.slab_census.roots != np.arange(len(self.caches))
        self.children = int(is_child.sum())
        self.child_bytes = self.by_root(census.pages.sum(axis=0) * is_child) << shift
        """Slab pages of child caches, by root cache."""
        self.child_active_bytes = self.by_root(census.active.sum(axis=0) * is_child) * (
            self.object_size
        )
        """Objects of child caches, by root cache."""
        self.empty_bytes = census.empty_pages << shift
        """Empty slabs, by cache, child caches by themselves."""
        self.sparse_free_bytes = self.by_root(census.sparse_free_bytes)
        """Bytes of slabs less than half full that are not in slots of objects, by root cache."""
        self.kmalloc = attribute(kernel, census.vector_address)
        """What is in the slab caches of kmalloc()."""
        self.is_kmalloc = kmalloc_caches(self.slab_map)

    def _sharers(self) -> dict[str, list[str]]:
        sharers: dict[str, list[str]] = {}
        for alias, name in sorted(self.slab_map.aliases.items()):
            # ":0000192" is the kernel's own link to a merged cache.
            if not alias.startswith(":"):
                sharers.setdefault(name, []).append(alias)
        return sharers

    def shared_with(self, cache: int) -> str:
        """Return which other users a cache has, as text; empty if it has none."""
        names = self.sharers.get(self.caches[cache].name, [])
        more = self.caches[cache].refcount - 1 - len(names)
        unnamed = [f"{more} that sysfs does not name"] if more > 0 else []
        return ", ".join([*map(printable, names), *unnamed])

    def _old_controller_bytes(self) -> int:
        if self.slab_census.controller is Controller.PER_CACHE:
            # A memory cgroup can have several children of one cache: since Linux kernel commit
            # fb2f2b0adb98 ("mm: memcg/slab: reparent memcg kmem_caches on cgroup removal") (in
            # v5.3, and RHEL 8.1), those of a removed one are handed to its parent.
            own = self.census.active.sum(axis=0)
            return int(self._packed(np.arange(len(self.caches)), own).sum())
        cache, objects = (self.owners[name].to_numpy(np.int64) for name in ("cache", "objects"))
        uncharged = self._packed(np.arange(len(self.caches)), self.uncharged)
        return int(uncharged.sum() + self._packed(cache, objects).sum())

    @property
    def overattributed(self) -> int:
        """Objects of kmalloc() with a user beyond those allocated."""
        attributed = self.by_root(self.kmalloc.objects.sum(axis=1))
        return int(np.maximum(attributed - self.active, 0).sum())

    def by_root(self, values: Counts) -> Counts:
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

    def _packed(self, cache: npt.NDArray[np.int64], objects: Counts) -> Counts:
        """Return the bytes of slabs that hold ``objects`` of ``cache``, for each row by itself."""
        per_slab = self.slab_map.column("objects_per_slab").astype(np.int64)[cache]
        order = self.slab_map.column("order").astype(np.int64)[cache]
        slabs = -(-objects // per_slab)
        size: Counts = slabs << (order + self.kernel.memory.page_shift)
        return size

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
