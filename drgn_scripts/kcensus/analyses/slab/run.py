# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of the slab allocator, and say what it means."""

from __future__ import annotations

from kcensus.analyses.slab.checks import checks, gaps
from kcensus.analyses.slab.figures import Figures
from kcensus.analyses.slab.findings import findings
from kcensus.analyses.slab.tables import tables
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Figure, Unit, ratio


def run(kernel: Kernel) -> Answer:
    """Take the census and say what it means.

    :raises UnsupportedAllocator: the kernel does not use SLUB
    :raises LookupError: the debug info or the memory model lacks what is needed
    """
    figures = Figures(kernel)
    return Answer(
        summary=summary(figures),
        tables=tables(figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )


def summary(figures: Figures) -> dict[str, Figure]:
    """Return the summary: figures by key."""
    total = int(figures.bytes.sum())
    active = int(figures.active_bytes.sum())
    old, packed = figures.old_controller_bytes, figures.packed_bytes
    is_reclaimable = figures.reclaimable
    online = int(figures.groups.online.sum())
    vectors = int(figures.census.vector_bytes.sum() + figures.census.vector_bytes_inside.sum())
    kmalloc = int((figures.active * figures.slot_size)[figures.is_kmalloc].sum())
    attributed = int((figures.kmalloc.objects.sum(axis=1) * figures.slot_size).sum())
    size, count, share = Unit.BYTES, Unit.COUNT, Unit.RATIO
    return {
        "slab_bytes": Figure(total, size, "slab pages"),
        "active_bytes": Figure(active, size, "allocated objects"),
        "utilization": Figure(ratio(active, total), share, "utilization"),
        "share_of_ram": Figure(ratio(total, figures.kernel.ram_bytes), share, "share of RAM"),
        "reclaimable_bytes": Figure(int(figures.bytes[is_reclaimable].sum()), size, "reclaimable"),
        "unreclaimable_bytes": Figure(
            int(figures.bytes[~is_reclaimable].sum()), size, "unreclaimable"
        ),
        "free_slot_bytes": Figure(int(figures.free_bytes.sum()), size, "waste: free slots"),
        "padding_bytes": Figure(int(figures.padding_bytes.sum()), size, "waste: slot padding"),
        "tail_bytes": Figure(int(figures.tail_bytes.sum()), size, "waste: slab tails"),
        "empty_slab_bytes": Figure(int(figures.empty_bytes.sum()), size, "empty slabs"),
        "objects_active": Figure(int(figures.active.sum()), count, "objects allocated"),
        "objects_total": Figure(int(figures.objects.sum()), count, "slots"),
        "slabs": Figure(int(figures.slabs.sum()), count, "slabs"),
        "caches": Figure(len(figures.roots), count, "caches"),
        "memcgs_online": Figure(online, count, "online memory cgroups"),
        "memcgs_offline": Figure(
            len(figures.groups) - online, count, "offline (dying) memory cgroups"
        ),
        "controller": Figure(figures.slab_census.controller.value, Unit.TEXT, "slab controller"),
        "objects_charged": Figure(
            int(figures.owners["objects"].sum()), count, "objects charged to memcgs"
        ),
        "obj_cgroup_vector_bytes": Figure(vectors, size, "obj_cgroup vectors"),
        "idle_vector_bytes": Figure(
            int(figures.census.idle_vector_bytes.sum()), size, "vectors without charged object"
        ),
        "kmalloc_bytes": Figure(kmalloc, size, "objects of kmalloc()"),
        "kmalloc_attributed_bytes": Figure(attributed, size, "of these attributed"),
        "child_cache_bytes": Figure(
            int(figures.child_bytes.sum()), size, "slab pages of child caches"
        ),
        "child_cache_unused_bytes": Figure(
            int((figures.child_bytes - figures.child_active_bytes).sum()),
            size,
            "unused in child caches",
        ),
        "old_controller_bytes": Figure(old, size, "packed full, one memcg per slab"),
        "old_controller_utilization": Figure(
            ratio(active, old), share, "utilization, one memcg per slab"
        ),
        "old_controller_extra_bytes": Figure(old - packed, size, "saved by sharing slabs"),
        "packed_bytes": Figure(packed, size, "packed full, slabs shared"),
        "packed_utilization": Figure(ratio(active, packed), share, "utilization, slabs shared"),
    }
