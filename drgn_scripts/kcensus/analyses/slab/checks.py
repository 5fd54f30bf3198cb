# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of slabs, held against what the kernel counts itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.analyses.slab.census import Census
from kcensus.analyses.slab.figures import NO_MEMCG, UNKNOWN_MEMCG, Figures
from kcensus.engine.slub.slabs import SlabMap
from kcensus.kernel.mm.slab_counters import NodeCounters, reclaimable
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.results import Check, Gap, Unit

_LISTED = 10
"""Caches that differ from the kernel's counters, by name."""


def cache_checks(
    slab_map: SlabMap, census: Census, counters: NodeCounters | None, live: bool
) -> list[Check]:
    """Slabs and slots of all caches, and of those that differ.

    :param counters: None where the kernel keeps none
    """
    checks = []
    slabs, objects = census.slabs.sum(axis=0), census.objects.sum(axis=0)
    for ours, name in ((slabs, "nr_slabs"), (objects, "total_objects")):
        source = f"kmem_cache_node.{name}"
        if counters is None:
            checks.append(Check(f"{name}, all caches", int(ours.sum()), None, source=source))
            continue
        known, theirs = counters.readable, getattr(counters, name)
        all_of_them = "all caches" if known.all() else f"{known.sum()} of {len(known)} caches"
        differences = np.where(known, np.abs(ours - theirs), 0)
        largest = np.argsort(-differences, kind="stable")
        largest = largest[differences[largest] > 0]
        rows: list[tuple[str, npt.NDArray[Any]]] = [(all_of_them, known)]
        rows += [(slab_map.caches[at].name, at) for at in largest[:_LISTED]]
        if len(largest) > _LISTED:
            more = largest[_LISTED:]
            rows.append((f"{len(more)} more caches that differ", more))
        checks += [
            Check(
                f"{name}, {which}",
                int(ours[at].sum()),
                int(theirs[at].sum()),
                source=source,
                note="the kernel went on while it was read" if live else "",
            )
            for which, at in rows
        ]
    return checks


def page_checks(slab_map: SlabMap, census: Census) -> list[Check]:
    """Pages of all caches against the counters behind /proc/meminfo and /proc/vmstat."""
    pages = census.pages.sum(axis=0)
    is_reclaimable = reclaimable(slab_map)[slab_map.lineage[0]]
    if slab_map.pages.marks_large_kmalloc:
        large = census.large_kmalloc_pages
        note = f"the counter includes {large} pages of kmalloc() beyond the slab caches"
    else:
        large = 0
        note = (
            "the counter includes kmalloc() beyond the slab caches, "
            "whose pages this kernel does not mark"
        )
    return [
        _page_check(slab_map, "SReclaimable", "NR_SLAB_RECLAIMABLE", pages[is_reclaimable], "", 0),
        _page_check(
            slab_map, "SUnreclaim", "NR_SLAB_UNRECLAIMABLE", pages[~is_reclaimable], note, large
        ),
    ]


def _page_check(
    slab_map: SlabMap,
    meminfo: str,
    item: str,
    pages: npt.NDArray[np.int64],
    note: str,
    explained: int,
) -> Check:
    ours = int(pages.sum())
    # d42f3245c7e2 (5.9) renamed the items to …_B.
    counter = node_page_state(slab_map.prog, f"{item}_B", item)
    return Check(
        f"{meminfo} (meminfo, vmstat)",
        ours,
        counter,
        Unit.PAGES,
        f"vm_node_stat[{item}]",
        note if counter is not None and counter > ours else "",
        explained,
    )


def slab_gaps(figures: Figures, counters: NodeCounters | None) -> list[Gap]:
    """What the census could not read or make sense of.

    :param counters: None where the kernel keeps none
    """
    groups, census = figures.groups, figures.census
    found = [
        (
            "counters of slab caches",
            "unreadable",
            0 if counters is None else int((~counters.readable).sum()),
            "none; these caches are not checked",
        ),
        (
            "objects",
            "charged to a memory cgroup, but counted as free",
            figures.overcharged,
            f"their number is in no row {NO_MEMCG}",
        ),
        (
            "obj_cgroups",
            ", ".join(sorted(census.vectors)) or "unreadable",
            census.objcgs_unreadable,
            f"objects charged to them are in the row {UNKNOWN_MEMCG}",
        ),
        (
            "lists or pages of memory cgroups",
            "torn or unreadable",
            groups.damaged + groups.faults.total(),
            f"objects of cgroups behind them are in the row {UNKNOWN_MEMCG}",
        ),
    ]
    own = [Gap(*gap) for gap in found if gap[2]]
    return [*own[:1], *figures.slab_census.gaps(census, NO_MEMCG), *own[1:]]
