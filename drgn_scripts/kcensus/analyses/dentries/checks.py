# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cross-check the dentry census against the kernel's own counters; list what was unreadable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import drgn
import numpy as np

from kcensus.analyses.dentries.columns.bits import DEAD, DENTRY, HASHED, NEGATIVE, ON_LRU, ON_SHRINK
from kcensus.analyses.dentries.directories import ORPHANS
from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.tables import (
    NO_MEMCG,
    UNKNOWN_MEMCG,
    UNKNOWN_SUPER_BLOCK,
    UNREADABLE_NAMES,
)
from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm.vmstat import percpu_sum
from kcensus.kernel.vfs.dcache import lru_items
from kcensus.results import Check, Gap, Gauge, nonzero_gaps


def checks(figures: Figures) -> list[Check]:
    """Compare all dentries, dentries on LRU lists, and negative dentries there, with counters."""
    prog, count = figures.kernel.prog, figures.census.count
    unused, unused_source = percpu_sum(prog, "nr_dentry_unused"), "nr_dentry_unused"
    if unused_source not in prog:
        # Since Linux kernel commit 62d36c770352 ("dcache: convert dentry_stat.nr_unused to per-cpu
        # counters") (in v3.12, and RHEL 7 kernels since 3.10.0-1027), it is per CPU.
        unused_source = "dentry_stat.nr_unused"
        with suppress(LookupError, AttributeError, drgn.FaultError):
            unused = int(prog["dentry_stat"].nr_unused)
    items = lru_items(figures.kernel.memory, figures.super_blocks.address)
    lru_source = "list_lru_node.nr_items of s_dentry_lru"
    lru_note = f"{items.lost} list heads are unreadable" if items.lost else ""
    # nr_dentry drops when a dentry is killed; its memory is freed an RCU grace period later.
    total = count(DENTRY, DEAD), percpu_sum(prog, "nr_dentry")
    # Since Linux kernel commit af0c9af1b3f6 ("fs/dcache: Track & report number of negative
    # dentries") (in v5.0), dentries on shrink lists are not counted.
    negative = count(ON_LRU | NEGATIVE, ON_SHRINK), percpu_sum(prog, "nr_dentry_negative")
    source, in_namespace = "mnt_namespace.nr_mounts of init", figures.super_blocks.mounts_at_home
    ours = count(ON_LRU, ON_SHRINK)
    on_lrus = Check("on LRU lists", ours, items.all, source=lru_source, note=lru_note)
    made = [
        Check("dentries", *total, source="nr_dentry"),
        Check("on LRU and shrink lists", count(ON_LRU), unused, source=unused_source),
        Check("negative, on LRU lists", *negative, source="nr_dentry_negative"),
        on_lrus.over(figures.lru_items_before, items.all),
        Check("mounts in init's namespace", *in_namespace, source=source),
    ]
    if figures.groups and not figures.kernel.live:
        name, source = "on LRU lists of memory cgroups", f"{lru_source}, without the root's"
        ours, charged = figures.charged_on_lrus, items.charged
        made.append(Check(name, ours, charged, source=source, note=lru_note))
    return made


_GAUGES = {
    "nr_dentry": "dentries",
    "nr_dentry_unused": "unused, on LRU lists",
    "nr_dentry_negative": "negative, on LRU lists",
}


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the counters behind /proc/sys/fs/dentry-state."""
    for name, label in _GAUGES.items():
        value = percpu_sum(kernel.prog, name)
        if value is not None:
            yield Gauge(name, value, label=label, source=name)


def gaps(figures: Figures) -> list[Gap]:
    """Return the unreadable or inconsistent parts of the census."""
    census = figures.census
    scanned = scan_gaps(census.slab_map, census.report, "dentries")
    return [*scanned, *nonzero_gaps(*_gaps(figures))]


def _gaps(figures: Figures) -> Iterator[Gap]:
    census, tally, blocks = figures.census, figures.census.tally, figures.super_blocks
    if "walk_cost" in figures.wanted:
        reason = "endless, with two ends, or leading to another list"
        effect = "the children are counted; their order is unknown"
        yield Gap("lists of children", reason, int(figures.directories.order[1].sum()), effect)
    if {"directories", "walk_cost"} & set(figures.wanted):
        count = int(figures.directories.orphans.values[0].sum())
        effect = f"negative dentries are in the row {ORPHANS}"
        yield Gap("dentries", "the parent is not in the dump", count, effect)
    if "super_blocks" in figures.wanted:
        sums = census.sums("super_block")
        unknown = blocks.rows(sums.key.astype(np.uint64)) < 0
        count, effect = int(sums.values[0, unknown].sum()), f"in the row {UNKNOWN_SUPER_BLOCK}"
        yield Gap("dentries", "the super block is on no list", count, effect)
    effect = "dentries that may have an inode are counted as negative"
    yield Gap("dentries", "flags of an inode, but no inode", tally.without_inode, effect)
    groups = figures.groups
    if groups is not None:
        effect = f"dentries of these slabs are in the row {NO_MEMCG}"
        yield Gap("obj_cgroup vectors", "unreadable", tally.vectors_unreadable, effect)
        what, count = "lists or pages of memory cgroups", groups.damaged + groups.faults.total()
        effect = f"dentries of cgroups behind the damage are in the row {UNKNOWN_MEMCG}"
        yield Gap(what, groups.unread, count, effect)
    chains = figures.chains
    if chains is not None:
        reason = "a pointer leads to a non-dentry, or into another chain"
        yield Gap("hash chains", reason, chains.cut, "counted up to the damage")
        reason = "hashed, but in no readable chain"
        effect = "chain lengths lack these dentries, and the run limit keeps them"
        yield Gap("dentries", reason, census.count(HASHED) - chains.chained, effect)
        count, effect = chains.buckets_unreadable, "their chains are counted as empty"
        yield Gap("hash buckets", reasons(chains.faults), count, effect)
    elif "chains" in figures.wanted:
        reason = f"not found: {figures.no_chains}"
        yield Gap("hash table", reason, 1, "hash chains are unknown")
    for setting in figures.limits_impossible:
        yield Gap(
            "sysctls", f"impossible: {setting}", 1, "the setting is missing from the table limits"
        )
    if figures.no_processes:
        reason = f"unreadable: {figures.no_processes}"
        yield Gap("processes", reason, 1, "processes that use the directories are unknown")
    effect = "processes may be missing from the table processes"
    yield Gap("lists of tasks or open files", "torn or unreadable", figures.paths_damaged, effect)
    reason, count = "unreadable, or impossible length", int(tally.names_unreadable[0])
    effect = f"these negative dentries are in the row {UNREADABLE_NAMES}"
    yield Gap("names", reason, count, effect)
    what, count = (
        "lists or pages of super blocks and mounts",
        blocks.damaged + blocks.faults.total(),
    )
    effect = "paths start at the first known directory below the damage"
    yield Gap(what, "torn or unreadable", count, effect)
    count = sum(cache.merged for cache in census.caches)
    effect = "objects of other types are counted as dentries"
    yield Gap("slab caches", "merged with others", count, effect)
    faults = figures.faults + tally.faults
    effect = "names, paths, watches or owners on these pages are unknown"
    yield Gap("pages", reasons(faults), faults.total(), effect)
