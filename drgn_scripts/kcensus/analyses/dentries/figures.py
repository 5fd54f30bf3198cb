# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures of a census of dentries: sums, and tables of directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.dentries.census import DentryCensus
from kcensus.analyses.dentries.chains import Chains
from kcensus.analyses.dentries.columns.bits import BUSY, NEGATIVE
from kcensus.analyses.dentries.directories import Directories
from kcensus.analyses.dentries.name_patterns import patterns
from kcensus.engine.memory import Numbers
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.kernel.vfs.dcache import flags, hash_table, limits, lru_items
from kcensus.kernel.vfs.files import open_paths
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.results import ratio
from kcensus.sources.capsule import NotRecorded

UNREADABLE = (LookupError, ValueError, TypeError, drgn.FaultError, NotRecorded)
"""Raised where a part of the figures is not in the dump, or damaged."""


class Figures:
    """The ``wanted`` parts of the census of dentries, with tables of ``limit`` rows."""

    def __init__(self, kernel: Kernel, wanted: Collection[str], limit: int) -> None:
        self.kernel = kernel
        self.wanted = wanted
        self.super_blocks = super_blocks(kernel)
        self.lru_items_before: int | None = None
        """Items on LRU lists of a running kernel before the census."""
        if kernel.live:
            self.lru_items_before = lru_items(kernel.memory, self.super_blocks.address).all
        bits = flags(kernel.memory, self.super_blocks.root)
        self.census = census = DentryCensus(kernel, bits, wanted)
        self.slot_size = census.slot_size
        self.slab_pages = census.slab_map.slab_pages(census.slots.slabs)
        self.slab_bytes = int(self.slab_pages.sum()) << kernel.memory.page_shift
        self.name_bytes = census.tally.all_name_bytes
        self.share_of_ram = ratio(self.slab_bytes + self.name_bytes, kernel.ram_bytes)
        self.negative = census.count(NEGATIVE)
        self.negative_unused = census.count(NEGATIVE, BUSY)
        name_bytes = int(census.sums("super_block").values[3].sum())
        self.negative_bytes = self.negative * self.slot_size + name_bytes
        """Bytes of the slots and external names of negative dentries."""
        self.limits, self.limits_impossible = limits(kernel.prog)
        self.directories = Directories(census, self.super_blocks, limit)
        most_negative, walk_cost = self.directories.most_negative, self.directories.walk_cost
        self.most_negative = most_negative() if "directories" in wanted else None
        self.processes: pd.DataFrame | None = None
        self.paths_damaged = 0
        """Lists and tables of processes that could not be followed."""
        self.no_processes = ""
        """Why processes could not be read."""
        if self.most_negative is not None and "processes" in wanted:
            self._read_processes(self.most_negative)
        self.walk_cost = walk_cost() if "walk_cost" in wanted else None
        self.faults = self.directories.faults
        families = [*census.tally.families.values()]
        self.patterns = patterns(families, limit) if "patterns" in wanted else None
        self.groups = memcgs(kernel) if "memcgs" in wanted else None
        if self.groups is not None:
            owner = census.sums("owner").key.astype(np.uint64)
            owner = census.slot_owners.memcg(owner, self.faults)
            # On a running kernel, memory cgroups come and go between the readings.
            unlisted = 0 if kernel.live else self.groups.unlisted(owner)
            self.faults.add("no list has the memory cgroup", unlisted)
            self.owner_rows = self.groups.rows(owner)
            """Row of the memory cgroup of each owner, -1 for unknown ones."""
            on_lru = census.sums("owner_on_lru")
            row = self.owner_rows[np.searchsorted(census.sums("owner").key, on_lru.key)]
            row[row >= 0] = self.groups.list_owner[row[row >= 0]]
            self.charged_on_lrus = int(on_lru.values[0, (on_lru.key != 0) & (row != 0)].sum())
            """Dentries on LRU lists of memory cgroups other than the root."""
        slabs = self._slabs_by_pins()
        self.fragmentation = slabs if "fragmentation" in wanted else None
        """Slabs by the number of dentries that pin them: all but unused negative ones."""
        self.pages_freeable = int(slabs["pages"][slabs["pinned_by"] == 0].sum())
        """Slab pages that hold only unused negative dentries."""
        in_use = census.by_slab["readable"] & (census.by_slab["in_use"] > 0)
        self.kept = int(census.by_slab["negative_unused"][in_use].sum(dtype=np.int64))
        """Unused negative dentries that share their slab with dentries in use."""
        self.chains: Chains | None = None
        self.no_chains = ""
        """Why hash chains could not be read."""
        self.trimmed_bytes = 0
        """Slots and external names of negative dentries beyond the run limit of hash buckets."""
        if "chains" in wanted:
            try:
                self.chains = Chains(census).read(kernel.memory, *hash_table(kernel.memory))
            except UNREADABLE as error:
                self.no_chains = str(error)
            else:
                trimmed = self.chains.trimmed * self.slot_size
                self.trimmed_bytes = trimmed + self.chains.trimmed_name_bytes

    def _read_processes(self, directories: pd.DataFrame) -> None:
        try:
            paths = open_paths(self.kernel)
        except UNREADABLE as error:
            self.no_processes = str(error)
        else:
            self.processes = self.directories.processes(directories, paths)
            self.paths_damaged = paths.damaged + paths.faults.total()

    def _slabs_by_pins(self) -> pd.DataFrame:
        """Return sums over the readable slabs, one column after the other to save memory."""
        by_slab, readable = self.census.by_slab, self.census.by_slab["readable"]
        dentries, unused = (by_slab[name][readable] for name in ("dentries", "negative_unused"))
        pinned_by = (dentries - unused).astype(np.int64)
        slabs = np.bincount(pinned_by)
        rows = np.flatnonzero(slabs)

        def total(column: npt.NDArray[Any]) -> Numbers:
            # Sums of integers below 2^53 are exact in the doubles of bincount().
            return np.bincount(pinned_by, column)[rows].astype(np.int64)

        pages, of_dentries = total(self.slab_pages[readable]), total(dentries)
        return pd.DataFrame(
            {
                "pinned_by": rows,
                "slabs": slabs[rows],
                "pages": pages,
                "bytes": pages << self.kernel.memory.page_shift,
                "dentries": of_dentries,
                "negative_unused": total(unused),
                "free_slots": total(self.census.slots.slabs.objects[readable]) - of_dentries,
            }
        )

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of negative dentries and of their external names, by root cache."""
        slab_map = self.census.slab_map
        size = Counter({self.census.caches[0].id: self.negative * self.slot_size})
        size.update(self.census.tally.name_bytes)
        places: Counter[str] = Counter()
        for cache, count in size.items():
            places[f"slab:{slab_map.caches[slab_map.lineage[0][cache]].name}"] += count
        return dict(+places)

    @property
    def share_of_reclaimable(self) -> float | None:
        """Dentries' share of the reclaimable slab pages; None if the latter are unknown."""
        pages = node_page_state(self.kernel.prog, "NR_SLAB_RECLAIMABLE_B", "NR_SLAB_RECLAIMABLE")
        return int(self.slab_pages.sum()) / pages if pages else None
