# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare the census of list_lrus with the kernel's own counters; list what was unreadable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from kcensus.analyses import ParamError
from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.list_lru.figures import Figures
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm.vmstat import percpu_sum
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.vfs.list_lru import DENTRY, INODE, KINDS, UNKNOWN
from kcensus.results import Check, Gap, Gauge, nonzero_gaps


def checks(figures: Figures, before: Mapping[str, int]) -> list[Check]:
    """Compare items, list_lrus, ids, slots, and growth since ``before``, with kernel counters."""
    return [*_checks(figures), *_growth_checks(figures, before)]


def _checks(figures: Figures) -> Iterator[Check]:
    items, lrus, ids, prog = figures.items, figures.lrus, figures.ids, figures.kernel.prog
    for kind, name, file in (
        (DENTRY, "nr_dentry_unused", "dcache.c"),
        (INODE, "nr_unused", "inode.c"),
    ):
        ours = int(items[lrus.kind == KINDS.index(kind)].sum())
        yield Check(f"{kind} lists", ours, percpu_sum(prog, name, file), source=name)
    counter = int(lrus.items.sum()) if lrus.counts_all else None
    source = "list_lru_node.nr_items"
    check = Check("items on all lists", int(items.sum()), counter, source=source)
    yield check.over(counter, figures.items_after)
    note = "without debug info of xfs, its list_lrus of buffers and quotas have no owner"
    yield Check(
        "list_lrus with an owner",
        lrus.owned,
        lrus.total_listed,
        source=lrus.list_name,
        note=note if lrus.max_undescribed else "",
        at_most=lrus.max_undescribed,
    )
    if not lrus.is_per_memcg:
        return
    note = "the counter includes offline memory cgroups: swapped pages keep their ids"
    yield Check(
        "ids of memory cgroups",
        ids.ours,
        ids.registered,
        source=ids.registry,
        note=note if ids.offline else "",
        explained=ids.offline,
    )
    if ids.cache_ids is not None:
        counter = int((lrus.memcg_lrus != 0).sum()) * ids.cache_ids
        source = "memcg_nr_cache_ids, for each list_lru and node"
        yield Check("slots", int(figures.slots.slots.sum()), counter, source=source)


def _growth_checks(figures: Figures, before: Mapping[str, int]) -> Iterator[Check]:
    for cache in figures.footprint.slab_map.caches:
        if cache.name not in before:
            continue
        objects = figures.tally.objects
        ours = sum(count for (_, place), count in objects.items() if place == cache.id)
        slots = int(figures.use.slots[cache.id])
        free = slots - int(figures.use.active[cache.id])
        growth = slots - before[cache.name]
        is_explained = 0 <= growth - ours <= free
        yield Check(
            f"growth of {cache.name}",
            ours,
            growth,
            source="slots now minus slots before",
            note=f"{free} of its slots are free" if is_explained else "",
            explained=growth - ours if is_explained else None,
        )


_GAUGES = (("nr_dentry_unused", "dcache.c", "dentries"), ("nr_unused", "inode.c", "inodes"))


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the items of file systems, and the size of per-memcg arrays (up to v5.17)."""
    for name, file, what in _GAUGES:
        items = percpu_sum(kernel.prog, name, file)
        if items is not None:
            yield Gauge(name, items, label=f"{what} on LRU lists", source=name)
    name = "memcg_nr_cache_ids"
    with contextlib.suppress(*DAMAGED):
        yield Gauge(name, int(kernel.prog[name]), label="slots of each array", source=name)


def gaps(figures: Figures) -> list[Gap]:
    """Return the unreadable or inconsistent parts of the census."""
    return nonzero_gaps(*_gaps(figures))


def _gaps(figures: Figures) -> Iterator[Gap]:
    slots, ids, faults = figures.slots, figures.ids, figures.footprint.faults
    sources, torn = (figures.blocks, figures.lrus, figures.groups), "torn or unreadable"
    count = figures.lrus.owner.count(UNKNOWN)
    yield Gap("list_lrus", "no symbol at the address", count, "owners of these lists are unknown")
    effect = (
        "objects beyond the damage have no name or are not counted; their per-memcg lists count "
        "as lists of unused ids"
    )
    what = "lists of super blocks, mounts, list_lrus or memory cgroups"
    yield Gap(what, torn, sum(source.damaged for source in sources), effect)
    what = "pages of super blocks, list_lrus or memory cgroups"
    unreadable = sum((source.faults for source in sources), Faults())
    yield Gap(what, reasons(unreadable), unreadable.total(), effect)
    effect = "slots of missing ids count as slots of unused ids"
    yield Gap("registry of ids", torn, ids.damaged + ids.faults.total(), effect)
    reason, effect = reasons(slots.faults), "their slots are not counted"
    yield Gap("arrays of pointers", reason, slots.arrays_unreadable, effect)
    effect = "items of these lists are not counted; the lists do not count as empty"
    yield Gap("lists of memory cgroups", reason, slots.unreadable, effect)
    reason, effect = "unreadable, or inconsistent with their parent", "their slots are not counted"
    yield Gap("nodes of XArrays", reason, slots.torn, effect)
    reason = "on lists of ids that no online memory cgroup uses"
    yield Gap("items", reason, slots.stray_items, "they are not attributed to a memory cgroup")
    count = figures.shrinker_maps.unreadable
    yield Gap("shrinker maps", "unreadable", count, "their bytes are not counted")
    faults = Faults(faults + slots.place_faults)
    effect = "these structures count with their requested size, or that of the other slab"
    yield Gap("slabs of structures", reasons(faults), faults.total(), effect)
    yield from scan_gaps(figures.footprint.slab_map, figures.report, "objects of the cache")


def parse_before(text: str | None) -> dict[str, int]:
    """Return the slots of ``kmalloc-32=2816,kmalloc-64=1088`` by cache, or raise ParamError."""
    slots = {}
    for part in text.split(",") if text else []:
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not number.isdecimal():
            raise ParamError(f"--before: {part.strip()!r} is not of the form CACHE=SLOTS")
        slots[name] = int(number)
    return slots
