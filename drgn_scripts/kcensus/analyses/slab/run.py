# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of the slab allocator, and report it."""

from __future__ import annotations

from kcensus.analyses.slab.census import Controller
from kcensus.analyses.slab.checks import checks, gaps
from kcensus.analyses.slab.figures import Figures
from kcensus.analyses.slab.findings import findings
from kcensus.analyses.slab.tables import TABLES
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Figure, Unit, ratio
from kcensus.results.tables import make_tables


def run(kernel: Kernel) -> Answer:
    """Take the census, and report it."""
    figures = Figures(kernel)
    return Answer(
        summary=summary(figures),
        tables=make_tables(TABLES, figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )


def summary(figures: Figures) -> dict[str, Figure]:
    total = int(figures.bytes.sum())
    active = int(figures.active_bytes.sum())
    old, packed = figures.old_controller_bytes, figures.packed_bytes
    is_reclaimable = figures.reclaimable
    online = int(figures.groups.online.sum())
    vectors = int(figures.census.vector_bytes.sum() + figures.census.vector_bytes_inside.sum())
    kmalloc = int((figures.active * figures.slot_size)[figures.is_kmalloc].sum())
    attributed = int((figures.kmalloc.objects.sum(axis=1) * figures.slot_size).sum())
    share = Unit.RATIO
    caches = "caches, without child caches" if figures.children else "caches"

    def size(value: int, label: str) -> Figure:
        return Figure(int(value), Unit.BYTES, label)

    def count(value: int, label: str) -> Figure:
        return Figure(int(value), Unit.COUNT, label)

    return {
        "slab_bytes": size(total, "slab pages"),
        "active_bytes": size(active, "allocated objects"),
        "utilization": Figure(ratio(active, total), share, "utilization"),
        "share_of_ram": Figure(ratio(total, figures.kernel.ram_bytes), share, "share of RAM"),
        "reclaimable_bytes": size(figures.bytes[is_reclaimable].sum(), "reclaimable"),
        "unreclaimable_bytes": size(figures.bytes[~is_reclaimable].sum(), "unreclaimable"),
        "free_slot_bytes": size(figures.free_bytes.sum(), "waste: free slots"),
        "padding_bytes": size(figures.padding_bytes.sum(), "waste: slot padding"),
        "tail_bytes": size(figures.tail_bytes.sum(), "waste: slab tails"),
        "empty_slab_bytes": size(figures.empty_bytes.sum(), "empty slabs"),
        "objects_active": count(figures.active.sum(), "objects allocated"),
        "objects_total": count(figures.objects.sum(), "slots"),
        "slabs": count(figures.slabs.sum(), "slabs"),
        "caches": count(len(figures.roots), caches),
        "memcgs_online": count(online, "online memory cgroups"),
        "memcgs_offline": count(len(figures.groups) - online, "offline (dying) memory cgroups"),
        "controller": Figure(figures.slab_census.controller.value, Unit.TEXT, "slab controller"),
        "objects_charged": count(int(figures.owners["objects"].sum()), "objects charged to memcgs"),
        "obj_cgroup_vector_bytes": size(vectors, "obj_cgroup vectors"),
        "idle_vector_bytes": size(
            figures.census.idle_vector_bytes.sum(), "vectors without charged object"
        ),
        "kmalloc_bytes": size(kmalloc, "objects of kmalloc()"),
        "kmalloc_attributed_bytes": size(attributed, "objects of kmalloc(), attributed"),
        **_children(figures),
        "child_cache_bytes": size(figures.child_bytes.sum(), "slab pages of child caches"),
        "child_cache_unused_bytes": size(
            (figures.child_bytes - figures.child_active_bytes).sum(), "unused in child caches"
        ),
        "old_controller_bytes": size(old, "packed full, one memcg per slab"),
        "old_controller_utilization": Figure(
            ratio(active, old), share, "utilization, one memcg per slab"
        ),
        "old_controller_extra_bytes": size(old - packed, "saved by sharing slabs"),
        "packed_bytes": size(packed, "packed full, slabs shared"),
        "packed_utilization": Figure(ratio(active, packed), share, "utilization, slabs shared"),
    }


def _children(figures: Figures) -> dict[str, Figure]:
    """Return the number of child caches, a sign of leaked memory cgroups; empty without any."""
    if figures.slab_census.controller is not Controller.PER_CACHE:
        return {}
    return {
        "child_caches": Figure(figures.children, Unit.COUNT, "child caches of memcgs"),
        "child_caches_without_slabs": Figure(
            figures.children_without_slabs, Unit.COUNT, "child caches without slabs"
        ),
    }
