# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of the dentries, and say what it means."""

from __future__ import annotations

from collections.abc import Collection

import drgn
import numpy as np

from kcensus.analyses import ParamError
from kcensus.analyses.dentries import PARTS
from kcensus.analyses.dentries import census as dc
from kcensus.analyses.dentries.census import Census, DentryCensus
from kcensus.analyses.dentries.chains import FEWER, Chains, chains
from kcensus.analyses.dentries.checks import dentry_checks, dentry_gaps
from kcensus.analyses.dentries.children import Children, children
from kcensus.analyses.dentries.findings import Cost, dentry_findings
from kcensus.analyses.dentries.name_patterns import patterns
from kcensus.analyses.dentries.slabs import pinning
from kcensus.analyses.dentries.tables import (
    NO_MEMCG,
    ORPHANS,
    UNKNOWN_MEMCG,
    Directories,
    chain_tables,
    fragmentation_table,
    limit_table,
    memcg_table,
    pattern_table,
    super_block_table,
)
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.kernel.vfs.dcache import flags, hash_table, limits
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.results import Answer, Figure, Gap, Unit

_NEEDS = {
    "patterns": dc.PATTERNS,
    "memcgs": dc.MEMCGS,
    "chains": dc.CHAINS,
    "walk_cost": dc.SIBLINGS,
    "fragmentation": dc.SLABS,
}

_CHAIN_FIGURES = {
    "patched_negative": ("negatives left by a limit of three in a row", Unit.COUNT),
    "patched_bytes": ("bytes left by a limit of three in a row", Unit.BYTES),
    "patched_negative_fewer_buckets": (f"negatives left with 1/{FEWER} of the buckets", Unit.COUNT),
    "buckets": ("hash buckets", Unit.COUNT),
    "longest_chain": ("dentries in the longest hash chain", Unit.COUNT),
    "longest_negative_run": ("longest row of unreferenced negatives", Unit.COUNT),
}
"""What hash chains tell: label and unit."""


def run(kernel: Kernel, only: str | None = None, limit: int = 1000) -> Answer:
    """Take the census and say what it means.

    :param only: names of :data:`PARTS` (and ``totals``), separated by commas; all by default
    :param limit: rows of the tables of directories and patterns; what is beyond is added up
    :raises ParamError: a part is unknown, or the limit impossible
    """
    wanted = _parts(only)
    if limit < 1:
        raise ParamError(f"--limit must be at least 1, not {limit}")
    result = Answer()
    bits = flags(kernel.memory, super_blocks(kernel).root)
    asked = [_NEEDS[part] for part in PARTS if part in wanted and part in _NEEDS]
    taker = DentryCensus(kernel, bits, asked)
    census = taker.take()
    _Report(result, kernel, taker, census, wanted, limit).write()
    return result


def _parts(only: str | None) -> frozenset[str]:
    if only is None:
        return frozenset(PARTS)
    named = {name.strip().replace("-", "_") for name in only.split(",")}
    unknown = named - {*PARTS, "totals"}
    if unknown:
        raise ParamError(
            f"--only knows totals, {', '.join(PARTS)}, and not {', '.join(sorted(unknown))}"
        )
    return frozenset(named)


class _Report:
    """Turns a census into a result."""

    def __init__(
        self,
        result: Answer,
        kernel: Kernel,
        taker: DentryCensus,
        census: Census,
        wanted: Collection[str],
        limit: int,
    ) -> None:
        self.result = result
        self.kernel = kernel
        self.memory = kernel.memory
        self.taker = taker
        self.census = census
        self.super_blocks = super_blocks(kernel)
        self.wanted = wanted
        self.limit = limit
        self.faults = Faults()
        self.slot_size = max(cache.slot_size for cache in taker.caches)
        negative, unused = census.count(dc.NEGATIVE), census.count(dc.NEGATIVE, dc.BUSY)
        names = int(census.super_blocks.external_bytes.sum())
        self.cost = Cost(
            negative=negative,
            negative_unused=unused,
            negative_bytes=negative * self.slot_size + names,
            unused_bytes=unused * self.slot_size + census.unused_name_bytes,
            ram=kernel.ram_bytes,
            limits=list(limits(kernel.prog)),
        )

    def write(self) -> None:
        """Fill the result."""
        self._totals()
        tables = self.result.tables
        if "superblocks" in self.wanted:
            tables["superblocks"] = super_block_table(
                self.census, self.super_blocks, self.slot_size
            )
        if {"directories", "walk_cost"} & set(self.wanted):
            self._directories(children(self.census))
        if "patterns" in self.wanted:
            tables["patterns"] = pattern_table(
                patterns(self.census.families),
                self.census.names_unreadable,
                self.limit,
                self.slot_size,
            )
        if "memcgs" in self.wanted:
            self._memcgs()
        if "fragmentation" in self.wanted:
            self._fragmentation()
        if "chains" in self.wanted:
            self._chains()
        self._states()
        tables["limits"] = limit_table(self.cost.limits)
        self.result.checks += dentry_checks(
            self.memory, self.census, self.super_blocks, self.kernel.live
        )
        self.result.gaps += dentry_gaps(self.taker, self.census, self.super_blocks, self.faults)
        self.result.findings += dentry_findings(self.memory.prog, self.result, self.cost)

    def _figure(self, name: str, value: float | int | None, label: str, unit: Unit) -> None:
        self.result.summary[name] = Figure(value, unit, label)

    def _totals(self) -> None:
        census, cost = self.census, self.cost
        slabs = census.slots.slabs
        pages = int(self.taker.slab_map.slab_pages(slabs).sum()) if len(slabs) else 0
        page_shift = self.memory.page_shift
        names = census.external_bytes(slice(None))
        reclaimable = node_page_state(
            self.memory.prog, "NR_SLAB_RECLAIMABLE_B", "NR_SLAB_RECLAIMABLE"
        )
        size, ratio = Unit.BYTES, Unit.RATIO
        for name, value, label, unit in (
            ("dentries", census.count(dc.DENTRY), "dentries", Unit.COUNT),
            ("negative", cost.negative, "negative: for names that do not exist", Unit.COUNT),
            ("negative_unused", cost.negative_unused, "negative and unused", Unit.COUNT),
            ("negative_bytes", cost.negative_bytes, "negative, with their long names", size),
            ("slab_bytes", pages << page_shift, "slab pages of all dentries", size),
            ("external_name_bytes", names, "names of all that are too long for a dentry", size),
        ):
            self._figure(name, value, label, unit)
        total = (pages << page_shift) + names
        self._figure(
            "share_of_ram",
            total / max(cost.ram, 1),
            "share of RAM: slab pages and long names",
            ratio,
        )
        share = pages / reclaimable if reclaimable else None
        self._figure(
            "share_of_reclaimable", share, "slab pages as a share of the reclaimable ones", ratio
        )

    def _states(self) -> None:
        """What else is true of dentries, of interest to few."""
        for name, bits, lacking, label in (
            ("unused", dc.DENTRY, dc.BUSY | dc.DEAD, "unused: nobody holds them"),
            ("referenced", dc.REFERENCED, 0, "used again since reclaim last passed"),
            ("on_lru", dc.ON_LRU, dc.ON_SHRINK, "on LRU lists"),
            ("on_shrink_lists", dc.ON_SHRINK, 0, "on shrink lists: about to go"),
            ("in_lookup", dc.LOOKUP, 0, "being looked up"),
            ("cursors", dc.CURSOR, 0, "cursors of readers of directories"),
            ("dead", dc.DEAD, 0, "killed, memory not yet free"),
        ):
            self._figure(name, self.census.count(bits, lacking), label, Unit.COUNT)

    def _directories(self, found: Children) -> None:
        tables = Directories(
            self.memory, self.census, found, self.super_blocks, self.limit, self.slot_size
        )
        if "directories" in self.wanted:
            self.result.tables["directories"] = tables.most_negative()
        if "walk_cost" in self.wanted:
            self.result.tables["walk_cost"] = tables.walk_cost()
            self._gap(
                "lists of children",
                "they have no end, several, or lead away",
                int(found.damaged.sum()),
                "counts of children stand, their order does not",
            )
        self._gap(
            "dentries",
            "their parents are not in the dump",
            int(found.orphans.dentries.sum()),
            f"negative ones are in the row {ORPHANS}",
        )
        self.faults.update(tables.faults)

    def _memcgs(self) -> None:
        groups = memcgs(self.kernel)
        key = self.census.owners.key.astype(np.uint64)
        vectors = self.taker.vectors
        memcg = key if vectors is None else vectors.memcg(key, self.faults)
        self.result.tables["memcgs"] = memcg_table(self.census, memcg, groups, self.slot_size)
        self._gap(
            "obj_cgroup vectors",
            "unreadable",
            self.census.vectors_unreadable,
            f"objects of these slabs are in the row {NO_MEMCG}",
        )
        self._gap(
            "lists or pages of memory cgroups",
            "torn or unreadable",
            groups.damaged + groups.faults.total(),
            f"dentries of cgroups behind them are in the row {UNKNOWN_MEMCG}",
        )

    def _fragmentation(self) -> None:
        found = pinning(self.taker.slab_map, self.census)
        pages = int(found.pages[0]) if len(found.pages) else 0
        self._figure(
            "pages_freeable", pages, "slab pages with nothing but unused negatives", Unit.PAGES
        )
        self._figure(
            "freeable_bytes",
            pages << self.memory.page_shift,
            "bytes back if all unused negatives went",
            Unit.BYTES,
        )
        self.result.tables["fragmentation"] = fragmentation_table(found, self.memory.page_size)

    def _chains(self) -> None:
        try:
            table = hash_table(self.memory)
        except (LookupError, ValueError, drgn.FaultError) as error:
            self._gap("hash table", f"not found: {error}", 1, "nothing is known of hash chains")
            for name, (label, unit) in _CHAIN_FIGURES.items():
                self._figure(name, None, label, unit)
            return
        found = chains(self.memory, table, self.census)
        self._patched(found)
        self.result.tables |= chain_tables(found)
        hashed = self.census.count(dc.HASHED)
        for what, reason, count, effect in (
            (
                "hash chains",
                "they lead to something that is no dentry, or to one that was there before",
                found.cut,
                "they are counted up to there",
            ),
            (
                "dentries",
                "hashed, but in no chain that could be followed",
                hashed - found.chained,
                "they are in no chain, and the limit leaves them",
            ),
            (
                "hash buckets",
                ", ".join(sorted(found.faults)) or "unreadable",
                found.buckets_unreadable,
                "their chains are taken for empty",
            ),
        ):
            self._gap(what, reason, count, effect)

    def _patched(self, found: Chains) -> None:
        trimmed = np.flatnonzero(found.trimmed)
        gone = len(trimmed) * self.slot_size + self.census.external_bytes(trimmed)
        values = (
            self.cost.negative - len(trimmed),
            self.cost.negative_bytes - gone,
            self.cost.negative - found.trimmed_fewer,
            found.buckets,
            found.longest,
            found.longest_row,
        )
        for value, (name, (label, unit)) in zip(values, _CHAIN_FIGURES.items(), strict=True):
            self._figure(name, value, label, unit)

    def _gap(self, what: str, reason: str, count: int, effect: str) -> None:
        if count > 0:
            self.result.gaps.append(Gap(what, reason, count, effect))
