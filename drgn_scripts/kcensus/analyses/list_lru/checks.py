# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of list_lrus, held against what the kernel counts itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import drgn

from kcensus.analyses.list_lru.census import ListLruCensus
from kcensus.kernel.mm.list_lru import DENTRY, INODE, KINDS, UNKNOWN
from kcensus.kernel.mm.vmstat import percpu_sum
from kcensus.results import Check, Gap


def list_lru_checks(
    prog: drgn.Program, census: ListLruCensus, before: Mapping[str, int], live: bool
) -> list[Check]:
    """All checks.

    :param before: slots that slab caches had earlier, by name
    """
    note = "the kernel went on while it was read" if live else ""
    return [
        *_items(prog, census, note),
        *_registries(census, note),
        *_growth(census, before),
    ]


def _items(prog: drgn.Program, census: ListLruCensus, note: str) -> Iterator[Check]:
    items, kind = census.items, census.lrus.kind
    for name, variable, file in (
        (DENTRY, "nr_dentry_unused", "dcache.c"),
        (INODE, "nr_unused", "inode.c"),
    ):
        ours = int(items[kind == KINDS.index(name)].sum())
        yield Check(
            f"{name} lists",
            ours,
            percpu_sum(prog, variable, file),
            source=variable,
            note=note,
        )
    counter = int(census.lrus.items.sum()) if census.lrus.counts_all else None
    source = "list_lru_node.nr_items"
    yield Check("items on all lists", int(items.sum()), counter, source=source, note=note)


def _registries(census: ListLruCensus, note: str) -> Iterator[Check]:
    lrus, ids = census.lrus, census.ids
    yield Check(
        "list_lrus with an owner", lrus.owned, lrus.total_listed, source=lrus.list_name, note=note
    )
    if ids.offline:
        note = "the counter includes memory cgroups that are offline; what they swapped keeps it"
    yield Check(
        "ids of memory cgroups",
        ids.ours,
        ids.registered,
        source=ids.registry,
        note=note,
        explained=ids.offline,
    )
    if ids.cache_ids is not None:
        arrays = int((lrus.memcg_lrus != 0).sum())
        yield Check(
            "slots",
            int(census.slots.slots.sum()),
            arrays * ids.cache_ids,
            source="memcg_nr_cache_ids, for each list_lru and node",
        )


def _growth(census: ListLruCensus, before: Mapping[str, int]) -> Iterator[Check]:
    """How much of the growth of slab caches the structures explain.

    What /proc/slabinfo said earlier are slots, used or free, so free slots are the rounding.
    """
    for cache in census.footprint.slab_map.caches:
        if cache.name not in before:
            continue
        ours = sum(tally.objects[cache.id] for tally in census.tallies.values())
        slots, active = census.use.slots[cache.id], census.use.active[cache.id]
        grown, free = int(slots) - before[cache.name], int(slots - active)
        rest = grown - ours
        within = 0 <= rest <= free
        yield Check(
            f"growth of {cache.name}",
            ours,
            grown,
            source="slots of the cache, less those it had",
            note=f"{free} of its slots are free" if within else "",
            explained=rest if within else None,
        )


def list_lru_gaps(census: ListLruCensus) -> list[Gap]:
    """What the census could not read or make sense of."""
    slots, lrus, report = census.slots, census.lrus, census.report
    unknown = lrus.owner.count(UNKNOWN)
    torn = report.slabs_torn + report.slabs_invalid + report.lists_lost
    found = [
        (
            "list_lrus",
            "no symbol at their address",
            unknown,
            "their owner is unknown",
        ),
        (
            "lists of super blocks, mounts, list_lrus or memory cgroups",
            "torn or unreadable",
            census.blocks.damaged + lrus.damaged + census.groups.damaged,
            "what is behind the tear is in no figure or has no name, and lists of cgroups there "
            "count as those of no memory cgroup",
        ),
        (
            "pages of super blocks, list_lrus or memory cgroups",
            _reasons(census.blocks.faults, lrus.faults, census.groups.faults),
            census.blocks.faults.total() + lrus.faults.total() + census.groups.faults.total(),
            "what they describe is in no figure or has no name, and lists of cgroups there count "
            "as those of no memory cgroup",
        ),
        (
            "registry of ids",
            "torn or unreadable",
            census.ids.damaged + census.ids.faults.total(),
            "slots of ids that are missing count as those of no memory cgroup",
        ),
        (
            "arrays of pointers",
            _reasons(slots.faults),
            slots.arrays_unreadable,
            "the slots behind them are in no figure",
        ),
        (
            "lists of memory cgroups",
            _reasons(slots.faults),
            slots.unreadable,
            "their items are missing, and they are not called empty",
        ),
        (
            "nodes of XArrays",
            "unreadable, or not where their parent says",
            slots.torn,
            "the slots behind them are in no figure",
        ),
        (
            "items",
            "on lists of ids that no online memory cgroup has",
            slots.strays,
            "they are in no row of a memory cgroup that exists",
        ),
        (
            "shrinker maps",
            "unreadable",
            census.shrinker_maps.unreadable,
            "their bytes are missing",
        ),
        (
            "pages of struct pages",
            _reasons(census.footprint.faults, report.memmap),
            census.footprint.faults.total() + report.memmap.total(),
            "allocations on pages they describe count as large as was asked for",
        ),
        (
            "slabs or their free lists",
            "torn, or their counters are impossible",
            torn,
            "shares of slab caches are too low",
        ),
    ]
    return [Gap(*gap) for gap in found if gap[2]]


def _reasons(*faults: Mapping[str, int]) -> str:
    return ", ".join(sorted({reason for each in faults for reason in each})) or "unreadable"


def parse_before(text: str | None) -> dict[str, int]:
    """``kmalloc-32=2816,kmalloc-64=1088`` as a dictionary.

    :raises ValueError: it is no such list; the message says why
    """
    found = {}
    for part in (text or "").split(",") if text else []:
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not number.isdecimal():
            raise ValueError(f"{part.strip()!r} is not of the form CACHE=SLOTS")
        found[name] = int(number)
    return found
