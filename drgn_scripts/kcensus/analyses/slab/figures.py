# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures of the slab census together with the list of memory cgroups."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.slab.census import Controller, SlabCensus
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.engine.slub.slots import Slots
from kcensus.human import listed
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.slab_charges import charged_bytes
from kcensus.kernel.slab.counters import NodeCounters, node_counters, reclaimable
from kcensus.kernel.slab.kmalloc_users import ALWAYS_IN_SLABS, CONTRIBUTORS
from kcensus.results.tables import ratios
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.faults import reason
from kcensus.text import printable

NO_MEMCG = "(no memory cgroup)"
UNKNOWN_MEMCG = "(unknown memory cgroup)"
NOT_ATTRIBUTED = "(not attributed)"
VECTORS = "obj_cgroup vectors"
_BLOCK = 1 << 14


class Figures:
    """Figures by cache id, children counted with their root, and by memory cgroup.

    Sums by cache id are 0 for caches that are not roots.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.slab_map = kernel.slab_map
        self.counters_before: NodeCounters | None = None
        """Counters of slab caches before the census, on a running kernel."""
        self.charged_before: int | None = None
        """Charged bytes before the census, on a running kernel."""
        if kernel.live:
            self.charged_before = charged_bytes(kernel)
            self.counters_before = node_counters(self.slab_map, Faults())
        self.slab_census = SlabCensus(kernel)
        self.caches = self.slab_map.caches
        self.names = [cache.name for cache in self.caches]
        self.census = census = self.slab_census.take()
        self.groups = memcgs(kernel)
        self.counters = node_counters(self.slab_map, Faults())
        self.slabs = self.by_root(census.slabs.sum(axis=0))
        self.objects = self.by_root(census.objects.sum(axis=0))
        self.active = self.by_root(census.active.sum(axis=0))
        self.fill = np.stack([self.by_root(column) for column in census.fill.T], axis=1)
        """Number of slabs by fill, shape (caches, len(FILL))."""
        self.object_size, self.slot_size, self.objects_per_slab, self.order = (
            self.slab_map.column(name).astype(np.int64)
            for name in ("object_size", "slot_size", "objects_per_slab", "order")
        )
        shift = kernel.memory.page_shift
        self.bytes = self.by_root(census.pages.sum(axis=0)) << shift
        self.active_bytes = self.active * self.object_size
        self.reclaimable = reclaimable(self.slab_map)
        self.vector_bytes = self.by_root(census.vector_bytes + census.vector_bytes_inside)
        """Bytes of obj_cgroup vectors, by root cache."""
        self.roots = np.unique(self.slab_census.roots)
        """Ids of the root caches."""
        self.sharers: dict[str, list[str]] = {}
        """Names of the caches that were merged into a cache, by its name."""
        for alias, name in sorted(self.slab_map.aliases.items()):
            # ":0000192" is the kernel's own link to a merged cache.
            if not alias.startswith(":"):
                self.sharers.setdefault(name, []).append(alias)
        owners = census.owners["memcg"].to_numpy(np.uint64)
        # On a running kernel, memory cgroups come and go between the readings.
        self.memcgs_unlisted = 0 if kernel.live else self.groups.unlisted(owners)
        self.owners = self._owners()
        charged = np.bincount(self.owners["cache"], self.owners["objects"], len(self.caches))
        uncharged = self.active - charged.astype(np.int64)
        self.uncharged = np.maximum(uncharged, 0)
        """Objects charged to no memory cgroup, by root cache."""
        self.overcharged = int(np.maximum(-uncharged, 0).sum())
        """Charged beyond the allocated objects: a live kernel changed, or memory is damaged."""
        self.packed = self._packed(np.arange(len(self.caches)), self.active)
        """Bytes of the slab pages that all objects of each root cache need, packed full."""
        self.packed_bytes = int(self.packed.sum())
        self.old_controller_bytes = self._old_controller_bytes()
        """Bytes of the slab pages that all objects need, packed full, if memory cgroups do not
        share slabs, as up to 5.8."""
        is_child = self.slab_census.roots != np.arange(len(self.caches))
        self.children = int(is_child.sum())
        self.children_without_slabs = int((is_child & (census.slabs.sum(axis=0) == 0)).sum())
        self.child_bytes = self.by_root(census.pages.sum(axis=0) * is_child) << shift
        """Bytes of slab pages of child caches, by root cache."""
        self.child_active_bytes = self.by_root(census.active.sum(axis=0) * is_child) * (
            self.object_size
        )
        """Bytes of the objects of child caches, by root cache."""
        self.empty_bytes = census.empty_pages << shift
        """Bytes of empty slabs, by cache; child caches are not added to their root."""
        self.sparse_free_bytes = self.by_root(census.sparse_free_bytes)
        """Bytes outside of allocated slots in slabs less than half full, by root cache."""
        self.kmalloc = attribute(kernel, census.vector_address)
        self.is_kmalloc = kmalloc_caches(self.slab_map)

    def shared_with(self, cache: int) -> str:
        """Return the names of the caches merged into a cache, as text; empty without any."""
        names = self.sharers.get(self.caches[cache].name, [])
        more = self.caches[cache].refcount - 1 - len(names)
        unnamed = [f"{more} that sysfs does not name"] if more > 0 else []
        return listed([*map(printable, names), *unnamed])

    def _old_controller_bytes(self) -> int:
        if self.slab_census.controller is Controller.PER_CACHE:
            # A memory cgroup can have several children of one cache: since Linux kernel commit
            # fb2f2b0adb98 ("mm: memcg/slab: reparent memcg kmem_caches on cgroup removal") (in
            # v5.3, and RHEL 8.1), the parent takes over the child caches of a removed memory
            # cgroup.
            own = self.census.active.sum(axis=0)
            return int(self._packed(np.arange(len(self.caches)), own).sum())
        cache, objects = (self.owners[name].to_numpy(np.int64) for name in ("cache", "objects"))
        uncharged = self._packed(np.arange(len(self.caches)), self.uncharged)
        return int(uncharged.sum() + self._packed(cache, objects).sum())

    @property
    def waste_bytes(self) -> Numbers:
        """Bytes without an allocated object, by root cache."""
        return self.bytes - self.active_bytes

    def by_node(self, values: Numbers) -> Numbers:
        """Return the sums over caches, by NUMA node with memory."""
        sums: Numbers = values.sum(axis=1)
        return sums[self.slab_map.pages.nodes]

    @property
    def node_bytes(self) -> Numbers:
        """Slab pages, by NUMA node with memory."""
        return self.by_node(self.census.pages) << self.kernel.memory.page_shift

    @property
    def node_active_bytes(self) -> Numbers:
        """Allocated objects, by NUMA node with memory."""
        return self.by_node(self.census.active * self.object_size)

    @property
    def overattributed(self) -> int:
        """Attributed objects of kmalloc() beyond the allocated ones."""
        attributed = self.by_root(self.kmalloc.objects.sum(axis=1))
        return int(np.maximum(attributed - self.active, 0).sum())

    def by_root(self, values: Numbers) -> Numbers:
        """Return the sums over each root cache and its children."""
        sums: Numbers = np.bincount(self.slab_census.roots, values, len(self.caches))
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

    def _packed(self, cache: Numbers, objects: Numbers) -> Numbers:
        """Return the bytes of the slabs needed for ``objects`` of ``cache``, row by row."""
        slabs = -(-objects // self.objects_per_slab[cache])
        return slabs << (self.order[cache] + self.kernel.memory.page_shift)

    @property
    def utilization(self) -> npt.NDArray[np.float64]:
        """Share of allocated objects in the bytes of slab pages."""
        return ratios(self.active_bytes, self.bytes)

    @property
    def free_bytes(self) -> Numbers:
        """Bytes of free slots."""
        return (self.objects - self.active) * self.slot_size

    @property
    def padding_bytes(self) -> Numbers:
        """Bytes of slots beyond the objects in them."""
        return self.active * (self.slot_size - self.object_size)

    @property
    def tail_bytes(self) -> Numbers:
        """Bytes at the ends of slabs, too few for a slot."""
        return self.bytes - self.objects * self.slot_size


@dataclass
class Attribution:
    """Objects of the slab caches of kmalloc() by user."""

    users: list[str]
    objects: Numbers
    """Shape (caches, users)."""
    failed: list[str] = field(default_factory=list)
    """Reasons of contributors that could not yield their objects."""
    report: ScanReport = field(default_factory=ScanReport)
    """Report of the slabs with objects that point to objects of kmalloc()."""


def kmalloc_caches(slab_map: SlabMap) -> npt.NDArray[np.bool_]:
    """Return which caches are kmalloc()'s, child caches included, shape (caches,)."""
    names = [cache.name.startswith(("kmalloc-", "dma-kmalloc-")) for cache in slab_map.caches]
    roots, _ = slab_map.lineage
    return np.array(names, np.bool_)[roots]


def attribute(kernel: Kernel, vectors: Words) -> Attribution:
    """Find the users of the objects of kmalloc(), vectors included; each object has one at most."""
    slab_map = kernel.slab_map
    slabs = slab_map.survey.slabs
    is_wanted = np.append(kmalloc_caches(slab_map), False)
    slots = Slots(slab_map, slabs[is_wanted[slabs.cache]])
    numbers: dict[str, int] = {}
    user = np.zeros(len(slots), np.uint8)
    failed, report = [], ScanReport()

    def note(name: str, addresses: Words) -> None:
        slot = slots.of(addresses)
        if name in ALWAYS_IN_SLABS:
            lost = (slot < 0) & (addresses != 0) & slab_map.outside_kfence(addresses)
            report.slabs.add(f"{name} are no objects", lost.sum())
        slot = slot[slot >= 0]
        # The first user to name an object has it.
        user[slot[user[slot] == 0]] = numbers.setdefault(name, len(numbers) + 1)

    note(VECTORS, vectors)
    for contributor in CONTRIBUTORS:
        try:
            for name, addresses in contributor(kernel, report):
                note(name, addresses)
        except LookupError:
            continue  # this kernel has no such objects, or no debug info about them
        except drgn.FaultError as error:
            failed.append(reason(error))
        except NotRecorded:
            failed.append("not in the capsule")
    shape = len(slab_map.caches), len(numbers) + 1
    counts = np.zeros(shape, np.int64).ravel()
    for start in range(0, len(slots.slabs), _BLOCK):
        block = slots.slabs[start : start + _BLOCK]
        low, high = slots.first[start], slots.first[start + len(block)]
        cache = np.repeat(block.cache.astype(np.int64), block.objects)
        counts += np.bincount(cache * shape[1] + user[low:high], minlength=len(counts))
    return Attribution(list(numbers), counts.reshape(shape)[:, 1:], failed, report)
