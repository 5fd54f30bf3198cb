# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures of a census of dentries: sums, tables of directories, and what follows from them."""

from __future__ import annotations

from collections.abc import Collection

import drgn
import numpy as np
import pandas as pd

from kcensus.analyses.dentries.census import BUSY, NEGATIVE, DentryCensus
from kcensus.analyses.dentries.chains import Chains
from kcensus.analyses.dentries.directories import Directories
from kcensus.analyses.dentries.limits import limits
from kcensus.analyses.dentries.name_patterns import Patterns, patterns
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import Memcgs, memcgs
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.kernel.vfs.dcache import flags, hash_table
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.results import ratio


class Figures:
    """The census of dentries and what follows from it.

    :param wanted: parts of the analysis to take
    :param limit: rows of the tables of directories and patterns
    """

    def __init__(self, kernel: Kernel, wanted: Collection[str], limit: int) -> None:
        self.kernel = kernel
        self.wanted = wanted
        self.super_blocks = super_blocks(kernel)
        bits = flags(kernel.memory, self.super_blocks.root)
        self.census = census = DentryCensus(kernel, bits, wanted)
        self.slot_size = census.slot_size
        self.slab_pages = census.slab_map.slab_pages(census.slots.slabs)
        """Pages of each slab."""
        self.slab_bytes = int(self.slab_pages.sum()) << kernel.memory.page_shift
        self.name_bytes = census.external_bytes()
        self.share_of_ram = ratio(self.slab_bytes + self.name_bytes, kernel.ram_bytes)
        self.negative = census.count(NEGATIVE)
        self.negative_unused = census.count(NEGATIVE, BUSY)
        name_bytes = int(census.sums("super_block").values[3].sum())
        self.negative_bytes = self.negative * self.slot_size + name_bytes
        """Slots of negative dentries, and of their external names."""
        self.unused_bytes = self.negative_unused * self.slot_size + census.tally.unused_name_bytes
        """The same of unused ones."""
        self.limits = limits(kernel.prog)
        self.directories = Directories(census, self.super_blocks, limit)
        self.most_negative: pd.DataFrame | None = None
        if "directories" in wanted:
            self.most_negative = self.directories.most_negative()
        self.walk_cost: pd.DataFrame | None = None
        if "walk_cost" in wanted:
            self.walk_cost = self.directories.walk_cost()
        self.faults = self.directories.faults
        self.patterns: Patterns | None = None
        if "patterns" in wanted:
            self.patterns = patterns(list(census.tally.families.values()), limit)
        self.groups: Memcgs | None = None
        if "memcgs" in wanted:
            self.groups = memcgs(kernel)
            owner = census.sums("owner").key.astype(np.uint64)
            owner = census.slot_owners.memcg(owner, self.faults)
            self.owner_rows = self.groups.rows(owner)
            """Row of the memory cgroup of each owner, -1 for unknown ones."""
        self.fragmentation = self._fragmentation() if "fragmentation" in wanted else None
        """Slabs by the number of dentries that pin them: all but unused negative ones."""
        self.pages_freeable: int | None = None
        """Slab pages that hold only unused negative dentries; None unless wanted."""
        if self.fragmentation is not None:
            pinned_by, pages = self.fragmentation["pinned_by"], self.fragmentation["pages"]
            self.pages_freeable = int(pages[pinned_by == 0].sum())
        self.chains: Chains | None = None
        self.no_chains = ""
        """Why hash chains could not be read."""
        self.trimmed_bytes = 0
        """Slots and external names of negative dentries beyond the run limit of hash buckets."""
        if "chains" in wanted:
            try:
                self.chains = Chains(census).read(kernel.memory, *hash_table(kernel.memory))
            except (LookupError, ValueError, drgn.FaultError) as error:
                self.no_chains = str(error)
            else:
                trimmed = self.chains.trimmed * self.slot_size
                self.trimmed_bytes = trimmed + self.chains.trimmed_name_bytes

    def _fragmentation(self) -> pd.DataFrame:
        census = self.census
        first = census.slots.first[:-1]
        dentries = np.add.reduceat(census.state != 0, first, dtype=np.int64)
        is_unused = (census.state & (NEGATIVE | BUSY)) == NEGATIVE
        unused = np.add.reduceat(is_unused, first, dtype=np.int64)
        slabs = pd.DataFrame(
            {
                "pinned_by": dentries - unused,
                "slabs": 1,
                "pages": self.slab_pages,
                "bytes": self.slab_pages << self.kernel.memory.page_shift,
                "dentries": dentries,
                "negative_unused": unused,
                "free_slots": census.slots.slabs.objects.astype(np.int64) - dentries,
            }
        )
        readable: pd.DataFrame = slabs[census.readable]
        return readable.groupby("pinned_by", as_index=False).sum()

    @property
    def share_of_reclaimable(self) -> float | None:
        """Slab pages as a share of the kernel's reclaimable ones; None if these are not known."""
        pages = node_page_state(self.kernel.prog, "NR_SLAB_RECLAIMABLE_B", "NR_SLAB_RECLAIMABLE")
        return int(self.slab_pages.sum()) / pages if pages else None
