# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare the slab census with the kernel's own counters; list what was unreadable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from drgn import Program

from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.slab.census import Controller
from kcensus.analyses.slab.figures import NO_MEMCG, NOT_ATTRIBUTED, UNKNOWN_MEMCG, Figures
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.slab_charges import charged_bytes, charged_source
from kcensus.kernel.mm.vmstat import page_state, page_state_source
from kcensus.kernel.slab.counters import names_of_counters, reclaimable
from kcensus.results import Check, Gap, Gauge, Unit, nonzero_gaps

_MAX_NAMED = 10
"""Most caches to name with a difference from the kernel's counters; further ones are counted."""


def checks(figures: Figures) -> list[Check]:
    """Compare slabs, slots and pages with the kernel's own counters."""
    return [*_cache_checks(figures), *_page_checks(figures), *_charge_checks(figures)]


def _cache_checks(figures: Figures) -> Iterator[Check]:
    census, counters = figures.census, figures.counters
    slab_map, before = figures.slab_map, figures.counters_before
    slabs, objects = census.slabs.sum(axis=0), census.objects.sum(axis=0)
    free = objects - census.active.sum(axis=0) - census.parked
    counts = {"nr_slabs": slabs, "total_slabs": slabs}
    counts |= {"total_objects": objects, "free_objects": free}
    for name in names_of_counters(slab_map):
        ours, source = counts[name], f"kmem_cache_node.{name}"
        if counters is None or name not in counters.sums:
            yield Check(f"{name}, all caches", int(ours.sum()), None, source=source)
            continue
        known, theirs = counters.readable, counters.sums[name]
        all_of_them = "all caches" if known.all() else f"{known.sum()} of {len(known)} caches"
        earlier = theirs if before is None else np.where(before.readable, before.sums[name], theirs)
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
        for which, at in rows:
            counter = int(theirs[at].sum())
            check = Check(f"{name}, {which}", int(ours[at].sum()), counter, source=source)
            yield check.over(None if before is None else int(earlier[at].sum()), counter)


def _page_checks(figures: Figures) -> Iterator[Check]:
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
    for meminfo, item, own in (
        ("SReclaimable", "NR_SLAB_RECLAIMABLE", is_reclaimable),
        ("SUnreclaim", "NR_SLAB_UNRECLAIMABLE", ~is_reclaimable),
    ):
        ours, counter = int(pages[own].sum()), _slab_pages(slab_map.prog, item)
        # Slab caches of kmalloc() are unreclaimable, and so are its pages beyond them.
        has_large = meminfo == "SUnreclaim" and counter is not None and counter > ours
        yield Check(
            f"{meminfo} (meminfo, vmstat)",
            ours,
            counter,
            Unit.PAGES,
            page_state_source(slab_map.prog, *_names(item)),
            note if has_large else "",
            explained=large if has_large and is_marked else None,
            at_most=large if has_large and not is_marked else None,
        )


def _slab_pages(prog: Program, item: str) -> int | None:
    return page_state(prog, *_names(item))


def _names(item: str) -> tuple[str, str]:
    # Since Linux kernel commit d42f3245c7e2 ("mm: memcg: convert vmstat slab counters to bytes")
    # (in v5.9), the items are called …_B.
    return f"{item}_B", item


def _charge_checks(figures: Figures) -> Iterator[Check]:
    if figures.slab_census.controller is not Controller.PER_OBJECT:
        return
    cache, objects = (figures.owners[name].to_numpy(np.int64) for name in ("cache", "objects"))
    # obj_full_size(): the slot and a pointer.
    charged = int((objects * (figures.slot_size[cache] + 8)).sum())
    kernel, source = figures.kernel, charged_source(figures.kernel.prog)
    # Memory cgroups have come or gone since the census.
    counter = charged_bytes(kernel.renewed() if kernel.live else kernel)
    check = Check("charged slab objects", charged, counter, Unit.BYTES, source)
    yield check.over(figures.charged_before, counter)


_GAUGES = {
    "SReclaimable": ("NR_SLAB_RECLAIMABLE", "reclaimable slab pages"),
    "SUnreclaim": ("NR_SLAB_UNRECLAIMABLE", "unreclaimable slab pages"),
}


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the counters behind /proc/meminfo."""
    for name, (item, label) in _GAUGES.items():
        if (pages := _slab_pages(kernel.prog, item)) is not None:
            size = pages << kernel.memory.page_shift
            source = page_state_source(kernel.prog, *_names(item))
            yield Gauge(name.lower(), size, Unit.BYTES, label, source)


def gaps(figures: Figures) -> list[Gap]:
    """Return the unreadable or inconsistent parts of the census."""
    return nonzero_gaps(*_gaps(figures))


def _gaps(figures: Figures) -> Iterator[Gap]:
    groups, census, counters = figures.groups, figures.census, figures.counters
    count = 0 if counters is None else int((~counters.readable).sum())
    effect = "no figure changes, but these caches are not checked"
    yield Gap("counters of slab caches", "unreadable", count, effect)
    yield from scan_gaps(figures.slab_map, census.report)
    reason = "the kmem_cache is not on slab_caches"
    yield Gap("slabs", reason, census.unknown_slabs, "these slabs are not counted")
    count = len(figures.slab_census.parked.address) - int(census.parked.sum())
    reason = "their slabs are not in the struct page array"
    yield Gap("free objects of CPUs or sheaves", reason, count, "these slabs are not counted")
    reason, effect = reasons(census.vectors), f"objects of these slabs are in the row {NO_MEMCG}"
    yield Gap("obj_cgroup vectors", reason, census.vectors_unreadable, effect)
    effect = f"the row {NO_MEMCG} does not account for these objects"
    charged = "charged to a memory cgroup, but counted as free"
    yield Gap("objects", charged, figures.overcharged, effect)
    effect = f"objects charged through them are in the row {UNKNOWN_MEMCG}"
    yield Gap("obj_cgroups", reason, census.objcgs_unreadable, effect)
    effect = f"objects charged to them are in the row {UNKNOWN_MEMCG}"
    yield Gap("memory cgroups", "no list has them", figures.memcgs_unlisted, effect)
    failed, report = figures.kmalloc.failed, figures.kmalloc.report
    effect = f"their objects are in rows {NOT_ATTRIBUTED} of the table kmalloc"
    yield Gap("users of kmalloc()", reasons(dict.fromkeys(failed, 1)), len(failed), effect)
    effect = f"these kmalloc() objects are in rows {NOT_ATTRIBUTED}"
    what, count = "slots of objects with pointers to kmalloc() objects", report.objects_unreadable
    if not count:
        what, count = "pages with pointers to kmalloc() objects", report.slabs.total()
    yield Gap(what, reasons(report.slabs), count, effect)
    reason = "attributed to a user, but counted as free"
    effect = f"rows {NOT_ATTRIBUTED} do not account for them"
    yield Gap("objects of kmalloc()", reason, figures.overattributed, effect)
    count = groups.damaged + groups.faults.total()
    effect = f"objects of cgroups behind the damage are in the row {UNKNOWN_MEMCG}"
    yield Gap("lists or pages of memory cgroups", groups.unread, count, effect)
