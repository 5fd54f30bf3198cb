# SPDX-License-Identifier: LGPL-2.1-or-later
"""How full are the slab caches, and whose objects are in them?

Symptom: ``Slab`` in meminfo is large, or grows with the number of cgroups, and nobody knows
whether the memory is in use. ``/proc/slabinfo`` calls objects active that are free in per-CPU
stores, and says nothing of cgroups.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, AnalysisError, Context
from kcensus.analyses.slab.census import SlabCensus
from kcensus.analyses.slab.checks import cache_checks, page_checks, slab_gaps
from kcensus.analyses.slab.figures import Figures, ratio
from kcensus.analyses.slab.findings import slab_findings
from kcensus.analyses.slab.tables import (
    cache_node_table,
    cache_table,
    fill_table,
    memcg_cache_table,
    memcg_table,
    node_table,
    waste_table,
)
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.mm.slab_counters import node_counters
from kcensus.results import Figure, Result, Unit


def run(context: Context) -> Result:
    """Take the census and say what it means."""
    result = context.result("slab")
    memory = Memory(context.prog, context.chunk_bytes)
    try:
        slab_census = SlabCensus(memory)
    except UnsupportedAllocator as error:
        raise AnalysisError(str(error)) from None
    except LookupError as error:
        raise AnalysisError(
            f"this kernel's slabs cannot be found, its debug info or memory model lacks: {error}"
        ) from None
    census = slab_census.take(context.jobs, context.progress)
    groups = memcgs(memory)
    figures = Figures(slab_census, census, groups, memory)
    result.summary |= _summary(figures)
    caches = cache_table(figures)
    result.tables |= {
        "caches": caches,
        "waste": waste_table(caches.frame),
        "fill": fill_table(figures),
        "nodes": node_table(figures),
        "memcgs": memcg_table(figures),
        "memcg_caches": memcg_cache_table(figures),
        "cache_nodes": cache_node_table(figures),
    }
    slab_map = slab_census.slab_map
    counters = node_counters(slab_map, Faults())
    result.checks += cache_checks(slab_map, census, counters, context.live)
    result.checks += page_checks(slab_map, census)
    result.gaps += slab_gaps(figures, counters)
    result.findings += slab_findings(figures)
    return result


def _summary(figures: Figures) -> dict[str, Figure]:
    total = int(figures.bytes.sum())
    active = int(figures.active_bytes.sum())
    old, packed = figures.old_controller_bytes, figures.packed_bytes
    is_reclaimable = figures.reclaimable
    alive = int(figures.groups.alive.sum())
    vectors = int(figures.census.vector_bytes.sum() + figures.census.vector_bytes_inside.sum())
    size, count, share = Unit.BYTES, Unit.COUNT, Unit.RATIO
    return {
        "slab_bytes": Figure(total, size, "slab pages"),
        "active_bytes": Figure(active, size, "in allocated objects"),
        "utilization": Figure(ratio(active, total), share, "utilization"),
        "share_of_ram": Figure(ratio(total, figures.ram), share, "share of RAM"),
        "reclaimable_bytes": Figure(int(figures.bytes[is_reclaimable].sum()), size, "reclaimable"),
        "unreclaimable_bytes": Figure(
            int(figures.bytes[~is_reclaimable].sum()), size, "unreclaimable"
        ),
        "free_slot_bytes": Figure(int(figures.free_bytes.sum()), size, "waste: free slots"),
        "padding_bytes": Figure(int(figures.padding_bytes.sum()), size, "waste: slot padding"),
        "tail_bytes": Figure(int(figures.tail_bytes.sum()), size, "waste: slab tails"),
        "objects_active": Figure(int(figures.totals.active.sum()), count, "objects allocated"),
        "objects_total": Figure(int(figures.totals.objects.sum()), count, "slots"),
        "slabs": Figure(int(figures.totals.slabs.sum()), count, "slabs"),
        "caches": Figure(figures.cache_count, count, "caches"),
        "memcgs_alive": Figure(alive, count, "memory cgroups alive"),
        "memcgs_dying": Figure(len(figures.groups) - alive, count, "memory cgroups dying"),
        "controller": Figure(
            figures.slab_census.controller.value, Unit.TEXT, "charging of slab objects"
        ),
        "objects_charged": Figure(
            int(figures.owners["objects"].sum()), count, "objects charged to a memory cgroup"
        ),
        "obj_cgroup_vector_bytes": Figure(vectors, size, "obj_cgroup vectors"),
        "old_controller_bytes": Figure(
            old, size, "slab pages if memory cgroups shared none, packed full"
        ),
        "old_controller_utilization": Figure(
            ratio(active, old), share, "utilization if they shared none"
        ),
        "old_controller_extra_bytes": Figure(old - packed, size, "difference that sharing makes"),
        "packed_bytes": Figure(packed, size, "slab pages if they share, packed full"),
        "packed_utilization": Figure(ratio(active, packed), share, "utilization if they share"),
    }


ANALYSIS = Analysis(
    name="slab",
    question="how full are the slab caches, and whose objects are in them?",
    run=run,
    description="""\
Every slab is counted, and every object in it: allocated, or free on the slab's own list, on a
CPU's, or in a sheaf. So `active` is what the kernel's users hold, less than /proc/slabinfo says.

The bytes of a cache are its objects, free slots, padding (slots are larger than objects) and tails
(what is left at the end of a slab). Utilization is the share of the objects.

Objects are attributed to the memory cgroups that they are charged to. From that follows what the
controller before 5.9 would make of these objects, which gave each memory cgroup slab pages of its
own. Both figures assume slabs as full as they can be, so their difference is due to sharing alone;
real slabs are less full, with either controller.
""",
    examples=(
        ("kcensus slab vmcore -s vmlinux", "the census of a dump"),
        ("kcensus slab vmcore --json | jq .summary", "its totals for a script"),
        ("sudo kcensus slab --top 40", "the running kernel, forty rows per table"),
    ),
)
