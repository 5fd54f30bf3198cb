# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cross-check the slab census against the kernel's own counters; list what was unreadable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.slab.census import Controller
from kcensus.analyses.slab.figures import NO_MEMCG, NOT_ATTRIBUTED, UNKNOWN_MEMCG, Figures
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.slab_charges import charged_bytes
from kcensus.kernel.mm.slab_counters import reclaimable
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.results import Check, Gap, Gauge, Unit, nonzero_gaps

_MAX_NAMED = 10
"""Caches to name of those that differ from the kernel's counters; the others are counted."""


def checks(figures: Figures) -> list[Check]:
    """Hold slabs, slots and pages against the kernel's own counters."""
    return [*_cache_checks(figures), *_page_checks(figures), *_charge_checks(figures)]


def _cache_checks(figures: Figures) -> list[Check]:
    """Check slabs and slots of all caches together, and of those that differ."""
    census, counters = figures.census, figures.counters
    slab_map, before = figures.slab_map, figures.counters_before
    checks = []
    slabs, objects = census.slabs.sum(axis=0), census.objects.sum(axis=0)
    for ours, name in ((slabs, "nr_slabs"), (objects, "total_objects")):
        source = f"kmem_cache_node.{name}"
        if counters is None:
            checks.append(Check(f"{name}, all caches", int(ours.sum()), None, source=source))
            continue
        known, theirs = counters.readable, getattr(counters, name)
        all_of_them = "all caches" if known.all() else f"{known.sum()} of {len(known)} caches"
        earlier = (
            theirs if before is None else np.where(before.readable, getattr(before, name), theirs)
        )
        differences = np.maximum(
            np.minimum(earlier, theirs) - ours, ours - np.maximum(earlier, theirs)
        )
        differences = np.where(known, np.maximum(differences, 0), 0)
        largest = np.argsort(-differences, kind="stable")
        largest = largest[differences[largest] > 0]
        rows: list[tuple[str, npt.NDArray[Any]]] = [(all_of_them, known)]
        rows += [(slab_map.caches[at].name, at) for at in largest[:_MAX_NAMED]]
        if len(largest) > _MAX_NAMED:
            more = largest[_MAX_NAMED:]
            rows.append((f"{len(more)} more caches that differ", more))
        checks += [
            Check(
                f"{name}, {which}",
                int(ours[at].sum()),
                int(theirs[at].sum()),
                source=source,
            ).over(None if before is None else int(earlier[at].sum()), int(theirs[at].sum()))
            for which, at in rows
        ]
    return checks


def _page_checks(figures: Figures) -> list[Check]:
    """Check pages of all caches against the counters behind /proc/meminfo and /proc/vmstat."""
    slab_map, census = figures.slab_map, figures.census
    pages = census.pages.sum(axis=0)
    is_reclaimable = reclaimable(slab_map)[slab_map.lineage[0]]
    large = census.large_kmalloc_pages
    is_marked = slab_map.pages.large_kmalloc_type is not None
    note = "the counter includes kmalloc() beyond the slab caches, "
    if is_marked:
        note += f"{large} pages"
    elif large is None:
        note += "whose pages this kernel does not mark"
    else:
        note += f"at most {large} pages: compound, but neither slab, nor on an LRU list, nor mapped"
    checks = []
    for meminfo, item, own in (
        ("SReclaimable", "NR_SLAB_RECLAIMABLE", is_reclaimable),
        ("SUnreclaim", "NR_SLAB_UNRECLAIMABLE", ~is_reclaimable),
    ):
        ours = int(pages[own].sum())
        # Since Linux kernel commit d42f3245c7e2 ("mm: memcg: convert vmstat slab counters to
        # bytes") (in v5.9), the items are called …_B.
        counter = node_page_state(slab_map.prog, f"{item}_B", item)
        # Slab caches of kmalloc() are unreclaimable, and so is what is beyond them.
        has_large = meminfo == "SUnreclaim" and counter is not None and counter > ours
        check = Check(
            f"{meminfo} (meminfo, vmstat)",
            ours,
            counter,
            Unit.PAGES,
            f"vm_node_stat[{item}]",
            note if has_large else "",
            explained=large if has_large and is_marked else None,
            at_most=large if has_large and not is_marked else None,
        )
        checks.append(check)
    return checks


def _charge_checks(figures: Figures) -> list[Check]:
    """Check the charged objects against what the kernel has charged to memory cgroups."""
    if figures.slab_census.controller is not Controller.PER_OBJECT:
        return []
    cache, objects = (figures.owners[name].to_numpy(np.int64) for name in ("cache", "objects"))
    # obj_full_size(): the slot and a pointer.
    charged = int((objects * (figures.slot_size[cache] + 8)).sum())
    kernel = figures.kernel
    # Since the census, there are other memory cgroups.
    counter = charged_bytes(kernel.renewed() if kernel.live else kernel)
    return [
        Check(
            "charged slab objects",
            charged,
            counter,
            Unit.BYTES,
            "memcg_vmstats.state[NR_SLAB_*_B]",
        ).over(figures.charged_before, counter)
    ]


_GAUGES = {
    "SReclaimable": ("NR_SLAB_RECLAIMABLE", "reclaimable slab pages"),
    "SUnreclaim": ("NR_SLAB_UNRECLAIMABLE", "unreclaimable slab pages"),
}


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the counters behind /proc/meminfo."""
    for name, (item, label) in _GAUGES.items():
        # Since Linux kernel commit d42f3245c7e2 ("mm: memcg: convert vmstat slab counters to
        # bytes") (in v5.9), the items are called …_B.
        pages = node_page_state(kernel.prog, f"{item}_B", item)
        if pages is not None:
            size = pages << kernel.memory.page_shift
            yield Gauge(name.lower(), size, Unit.BYTES, label, f"vm_node_stat[{item}]")


def gaps(figures: Figures) -> list[Gap]:
    """Return what the census could not read or make sense of."""
    groups, census, counters = figures.groups, figures.census, figures.counters
    return nonzero_gaps(
        Gap(
            "counters of slab caches",
            "unreadable",
            0 if counters is None else int((~counters.readable).sum()),
            "no figure changes, but these caches are not checked",
        ),
        *scan_gaps(figures.slab_map, census.report),
        Gap(
            "slabs",
            "their kmem_cache is not on slab_caches",
            census.unknown_slabs,
            "they are not counted",
        ),
        Gap(
            "free objects of CPUs or sheaves",
            "their slabs are not among those found",
            len(figures.slab_census.parked.address) - census.parked_found,
            "these slabs are not counted",
        ),
        Gap(
            "obj_cgroup vectors",
            reasons(census.vectors),
            census.vectors_unreadable,
            f"objects of these slabs are in the row {NO_MEMCG}",
        ),
        Gap(
            "objects",
            "charged to a memory cgroup, but counted as free",
            figures.overcharged,
            f"the row {NO_MEMCG} does not account for them",
        ),
        Gap(
            "obj_cgroups",
            reasons(census.vectors),
            census.objcgs_unreadable,
            f"objects charged to them are in the row {UNKNOWN_MEMCG}",
        ),
        Gap(
            "users of kmalloc()",
            reasons(dict.fromkeys(figures.kmalloc.failed, 1)),
            len(figures.kmalloc.failed),
            f"their objects are in rows {NOT_ATTRIBUTED} of the table kmalloc",
        ),
        Gap(
            "slots of objects that point to those of kmalloc()",
            reasons(figures.kmalloc.report.slabs),
            figures.kmalloc.report.objects_unreadable,
            f"what they point to is in rows {NOT_ATTRIBUTED}",
        ),
        Gap(
            "objects of kmalloc()",
            "attributed to a user, but counted as free",
            figures.overattributed,
            f"rows {NOT_ATTRIBUTED} do not account for them",
        ),
        Gap(
            "lists or pages of memory cgroups",
            "torn or unreadable",
            groups.damaged + groups.faults.total(),
            f"objects of cgroups behind them are in the row {UNKNOWN_MEMCG}",
        ),
    )
