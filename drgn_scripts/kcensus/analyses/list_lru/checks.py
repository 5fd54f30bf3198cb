# SPDX-License-Identifier: LGPL-2.1-or-later
"""The census of list_lrus, held against the kernel's own counters; what it could not read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from kcensus.analyses import ParamError
from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.list_lru.figures import Figures
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm.list_lru import DENTRY, INODE, KINDS, UNKNOWN
from kcensus.kernel.mm.vmstat import percpu_sum
from kcensus.kernel.names import DAMAGED
from kcensus.results import Check, Gap, Gauge, nonzero_gaps


def checks(figures: Figures, before: Mapping[str, int]) -> list[Check]:
    """Hold items, list_lrus, ids and slots against the kernel's own counters.

    :param before: earlier slots (num_objs) of slab caches, by name
    """
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
    name, source = "list_lrus with an owner", lrus.list_name
    note = ""
    if lrus.max_undescribed:
        note = "xfs has no debug info here, and its list_lrus of buffers and quotas no owner"
    yield Check(
        name,
        lrus.owned,
        lrus.total_listed,
        source=source,
        note=note,
        at_most=lrus.max_undescribed,
    )
    note = ""
    if ids.offline:
        note = "the counter includes offline memory cgroups: swapped pages keep their ids"
    yield Check(
        "ids of memory cgroups",
        ids.ours,
        ids.registered,
        source=ids.registry,
        note=note,
        explained=ids.offline,
    )
    if ids.cache_ids is not None:
        counter = int((lrus.memcg_lrus != 0).sum()) * ids.cache_ids
        source = "memcg_nr_cache_ids, for each list_lru and node"
        yield Check("slots", int(figures.slots.slots.sum()), counter, source=source)


def _growth_checks(figures: Figures, before: Mapping[str, int]) -> Iterator[Check]:
    """Check how much of the growth of slab caches the structures explain.

    /proc/slabinfo counted slots, allocated or free, so free slots are the tolerance.
    """
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
            source="slots now less slots before",
            note=f"{free} of its slots are free" if is_explained else "",
            explained=growth - ours if is_explained else None,
        )


_BEHIND = (
    "what is behind it is not counted or has no name; lists of memory cgroups there count as "
    "those of unused ids"
)
_EFFECTS = {
    "list_lrus": "their owner is unknown",
    "lists of super blocks, mounts, list_lrus or memory cgroups": _BEHIND,
    "pages of super blocks, list_lrus or memory cgroups": _BEHIND,
    "registry of ids": "slots of ids that are missing count as those of unused ids",
    "arrays of pointers": "their slots are not counted",
    "lists of memory cgroups": "their items are not counted, and they do not count as empty",
    "nodes of XArrays": "their slots are not counted",
    "items": "they are not attributed to a memory cgroup",
    "shrinker maps": "their bytes are not counted",
    "struct page array: pages of allocations": "these allocations count with the size asked for",
}


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
    """Return what the census could not read or make sense of."""
    slots, ids, faults = figures.slots, figures.ids, figures.footprint.faults
    sources, torn = (figures.blocks, figures.lrus, figures.groups), "torn or unreadable"
    damaged = sum(source.damaged for source in sources)
    unreadable = sum((source.faults for source in sources), Faults())
    known = (
        ("list_lrus", "no symbol at their address", figures.lrus.owner.count(UNKNOWN)),
        ("lists of super blocks, mounts, list_lrus or memory cgroups", torn, damaged),
        (
            "pages of super blocks, list_lrus or memory cgroups",
            reasons(unreadable),
            unreadable.total(),
        ),
        ("registry of ids", torn, ids.damaged + ids.faults.total()),
        ("arrays of pointers", reasons(slots.faults), slots.arrays_unreadable),
        ("lists of memory cgroups", reasons(slots.faults), slots.unreadable),
        ("nodes of XArrays", "unreadable, or inconsistent with their parent", slots.torn),
        ("items", "on lists of ids that no online memory cgroup uses", slots.stray_items),
        ("shrinker maps", "unreadable", figures.shrinker_maps.unreadable),
        ("struct page array: pages of allocations", reasons(faults), faults.total()),
    )
    return [
        *nonzero_gaps(*(Gap(what, why, count, _EFFECTS[what]) for what, why, count in known)),
        *scan_gaps(figures.footprint.slab_map, figures.report, "objects of the cache"),
    ]


def parse_before(text: str | None) -> dict[str, int]:
    """Return the slots of ``kmalloc-32=2816,kmalloc-64=1088`` by cache.

    :raises ParamError: the text is not such a list
    """
    slots = {}
    for part in text.split(",") if text else []:
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not number.isdecimal():
            raise ParamError(f"--before: {part.strip()!r} is not of the form CACHE=SLOTS")
        slots[name] = int(number)
    return slots
