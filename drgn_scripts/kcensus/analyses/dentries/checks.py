# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of dentries, held against what the kernel counts itself, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import drgn

from kcensus.analyses.dentries.census import (
    DEAD,
    DENTRY,
    NEGATIVE,
    ON_LRU,
    ON_SHRINK,
    Census,
    DentryCensus,
)
from kcensus.analyses.dentries.tables import UNREADABLE_NAMES
from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.vfs.dcache import counter, lru_items
from kcensus.kernel.vfs.super_blocks import SuperBlocks
from kcensus.results import Check, Gap


def dentry_checks(
    memory: Memory, census: Census, super_blocks: SuperBlocks | None, live: bool
) -> list[Check]:
    """All dentries, those on LRU lists, and the negative ones among them."""
    prog = memory.prog
    note = "the kernel went on while it was read" if live else ""
    unused, source = counter(prog, "nr_dentry_unused"), "nr_dentry_unused"
    if "nr_dentry_unused" not in prog:
        # Up to 3.11, and in RHEL 7, it is one number instead of one for each CPU.
        source = "dentry_stat.nr_unused"
        with suppress(LookupError, AttributeError, drgn.FaultError):
            unused = int(prog["dentry_stat"].nr_unused)
    on_list = census.count(ON_LRU, ON_SHRINK)
    items, lost = (None, 0) if super_blocks is None else lru_items(memory, super_blocks.address)
    return [
        # What was killed is no longer counted, but its memory is free only after an RCU period.
        Check(
            "dentries",
            census.count(DENTRY, DEAD),
            counter(prog, "nr_dentry"),
            source="nr_dentry",
            note=note,
        ),
        Check("on LRU and shrink lists", census.count(ON_LRU), unused, source=source, note=note),
        # Since 5.0; what is on a shrink list is not counted.
        Check(
            "negative, on LRU lists",
            census.count(ON_LRU | NEGATIVE, ON_SHRINK),
            counter(prog, "nr_dentry_negative"),
            source="nr_dentry_negative",
            note=note,
        ),
        Check(
            "on LRU lists",
            on_list,
            items,
            source="list_lru_node.nr_items of s_dentry_lru",
            note=f"{lost} list heads could not be read" if lost else note,
        ),
    ]


def dentry_gaps(
    taker: DentryCensus, census: Census, super_blocks: SuperBlocks, faults: Faults
) -> Iterator[Gap]:
    """What the census, or what was read for its tables, lacks.

    :param faults: of reading paths, watches and owners
    """
    report, slab_map = census.report, taker.slab_map
    for reason, count in sorted(report.memmap.items()):
        yield Gap(
            "pages of the struct page array", reason, count, "dentries there are in no figure"
        )
    for reason, count in sorted(report.slabs.items()):
        yield Gap("slab pages", reason, count, "dentries on them are in no figure")
    for what, reason, count, effect in (
        (
            "lists of slab caches",
            "torn, unreadable or impossible",
            slab_map.caches_torn + slab_map.caches_damaged,
            "if that of dentries is among them, they are in no figure",
        ),
        ("slabs", "their counters are impossible", report.slabs_invalid, "in no figure"),
        (
            "slabs",
            "their free lists are torn",
            report.slabs_torn,
            f"{report.objects_uncertain} free slots are counted as dentries",
        ),
        (
            "free lists of CPUs or sheaves",
            "torn or unreadable",
            report.lists_lost,
            "free slots on them are counted as dentries",
        ),
        (
            "names",
            "unreadable or of an impossible length",
            int(census.names_unreadable[0]),
            f"in the row {UNREADABLE_NAMES}",
        ),
        (
            "lists or pages of super blocks and mounts",
            "torn or unreadable",
            super_blocks.damaged + super_blocks.faults.total(),
            "paths below them begin where that is known",
        ),
        (
            "slab caches",
            "merged with others",
            sum(cache.merged for cache in taker.caches),
            "objects that are no dentries are counted, too",
        ),
        (
            "pages",
            ", ".join(sorted({*faults, *census.faults})),
            (faults + census.faults).total(),
            "names, paths, watches or owners there are unknown",
        ),
    ):
        if count > 0:
            yield Gap(what, reason, count, effect)
