# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cross-check the dentry census against the kernel's own counters; list what was unreadable."""

from __future__ import annotations

from contextlib import suppress

import drgn

from kcensus.analyses.dentries.census import DEAD, DENTRY, HASHED, NEGATIVE, ON_LRU, ON_SHRINK
from kcensus.analyses.dentries.directories import ORPHANS
from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.tables import NO_MEMCG, UNKNOWN_MEMCG, UNREADABLE_NAMES
from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.kernel.vfs.dcache import counter, lru_items
from kcensus.results import Check, Gap, nonzero_gaps


def checks(figures: Figures) -> list[Check]:
    """Hold all dentries, those on LRU lists, and the negative ones among them, against counters."""
    prog, count = figures.kernel.prog, figures.census.count
    note = "the kernel changed while it was read" if figures.kernel.live else ""
    unused, source = counter(prog, "nr_dentry_unused"), "nr_dentry_unused"
    if source not in prog:
        # Since Linux kernel commit 62d36c770352 ("dcache: convert dentry_stat.nr_unused to per-cpu
        # counters") (in v3.12, and RHEL 7 kernels since 3.10.0-1027), it is per CPU.
        source = "dentry_stat.nr_unused"
        with suppress(LookupError, AttributeError, drgn.FaultError):
            unused = int(prog["dentry_stat"].nr_unused)
    items, lost = lru_items(figures.kernel.memory, figures.super_blocks.address)
    lru_source = "list_lru_node.nr_items of s_dentry_lru"
    lru_note = f"{lost} list heads are unreadable" if lost else note
    # nr_dentry drops when a dentry is killed; its memory is freed an RCU grace period later.
    total = count(DENTRY, DEAD), counter(prog, "nr_dentry")
    # Since Linux kernel commit af0c9af1b3f6 ("fs/dcache: Track & report number of negative
    # dentries") (in v5.0), dentries on shrink lists are not counted.
    negative = count(ON_LRU | NEGATIVE, ON_SHRINK), counter(prog, "nr_dentry_negative")
    return [
        Check("dentries", *total, source="nr_dentry", note=note),
        Check("on LRU and shrink lists", count(ON_LRU), unused, source=source, note=note),
        Check("negative, on LRU lists", *negative, source="nr_dentry_negative", note=note),
        Check("on LRU lists", count(ON_LRU, ON_SHRINK), items, source=lru_source, note=lru_note),
    ]


def gaps(figures: Figures) -> list[Gap]:
    """Return what the census could not read or make sense of."""
    census, tally, blocks = figures.census, figures.census.tally, figures.super_blocks
    return [
        *scan_gaps(census.slab_map, census.report, "dentries"),
        *_directory_gaps(figures),
        *_memcg_gaps(figures),
        *_chain_gaps(figures),
        *nonzero_gaps(
            Gap(
                "names",
                "unreadable or of an impossible length",
                int(tally.names_unreadable[0]),
                f"these negative dentries are in the row {UNREADABLE_NAMES}",
            ),
            Gap(
                "lists or pages of super blocks and mounts",
                "torn or unreadable",
                blocks.damaged + blocks.faults.total(),
                "paths below them start where the rest is known",
            ),
            Gap(
                "slab caches",
                "merged with others",
                sum(cache.merged for cache in census.caches),
                "objects that are not dentries are counted too",
            ),
            Gap(
                "pages",
                reasons(figures.faults, tally.faults),
                (figures.faults + tally.faults).total(),
                "names, paths, watches or owners on them are unknown",
            ),
        ),
    ]


def _directory_gaps(figures: Figures) -> list[Gap]:
    gaps = []
    if figures.walk_cost is not None:
        gaps.append(
            Gap(
                "lists of children",
                "they have no end, several ends, or lead elsewhere",
                int(figures.directories.order[1].sum()),
                "numbers of children are right, their order is unknown",
            )
        )
    if {"directories", "walk_cost"} & set(figures.wanted):
        gaps.append(
            Gap(
                "dentries",
                "their parents are not in the dump",
                int(figures.directories.orphans.dentries.sum()),
                f"negative ones are in the row {ORPHANS}",
            )
        )
    return nonzero_gaps(*gaps)


def _memcg_gaps(figures: Figures) -> list[Gap]:
    groups = figures.groups
    if groups is None:
        return []
    return nonzero_gaps(
        Gap(
            "obj_cgroup vectors",
            "unreadable",
            figures.census.tally.vectors_unreadable,
            f"dentries of these slabs are in the row {NO_MEMCG}",
        ),
        Gap(
            "lists or pages of memory cgroups",
            "torn or unreadable",
            groups.damaged + groups.faults.total(),
            f"dentries of cgroups behind them are in the row {UNKNOWN_MEMCG}",
        ),
    )


def _chain_gaps(figures: Figures) -> list[Gap]:
    chains = figures.chains
    if chains is None:
        reason = f"not found: {figures.no_chains}"
        count = int("chains" in figures.wanted)
        return nonzero_gaps(Gap("hash table", reason, count, "hash chains are unknown"))
    return nonzero_gaps(
        Gap(
            "hash chains",
            "they lead to what is not a dentry, or into a chain that is counted already",
            chains.cut,
            "they are counted up to there",
        ),
        Gap(
            "dentries",
            "hashed, but not in any chain that could be followed",
            figures.census.count(HASHED) - chains.chained,
            "no chain counts them, and the run limit leaves them",
        ),
        Gap(
            "hash buckets",
            reasons(chains.faults),
            chains.buckets_unreadable,
            "their chains are counted as empty",
        ),
    )
