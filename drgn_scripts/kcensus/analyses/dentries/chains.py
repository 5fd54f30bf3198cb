# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hash chains of dentries: their lengths, and the effect of a run limit per bucket.

The limit is that of the series "fix the negative dentres bloating system memory usage" (Khlebnikov
and Ananthakrishna, 2021): a bucket keeps at most three unreferenced negative dentries in a row:
with refcount 0, and not found by a lookup since reclaim last passed (``DCACHE_REFERENCED``). New
dentries are added at the head of their chain, so the first three of a longer run stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.dentries.census import MANY, DentryCensus
from kcensus.analyses.dentries.walks import FEWER, MAX_LENGTH, Links, Walk, longest_chains, walk
from kcensus.engine.layout import word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers
from kcensus.engine.workers import each
from kcensus.sources.capsule.uses import Use

_MAX_LANES = 1 << 18
_DENTRIES = 1 << 20
"""About as many dentries are looked at together, so that memory does not grow with their number."""


class Chains:
    """Figures of hash chains, added up over buckets. No dentry is counted in two chains.

    A table with fewer buckets has the same chains, strung together: in all kernels the bucket is
    the upper bits of the hash (or of its product). The order in which old and new dentries would
    then be is not known; here the chains of neighbors are in an order that only their
    unreferenced negatives decide, see :func:`~kcensus.analyses.dentries.walks.mix`.
    """

    def __init__(self, census: DentryCensus) -> None:
        self.census = census
        self.buckets = 0
        self.lengths, self.negative, self.runs = np.zeros((3, MAX_LENGTH + 1), np.int64)
        """Buckets by the number of dentries in them, negative dentries by the length of their
        chain, and buckets by their longest run of unreferenced negatives."""
        self._longest: Numbers = np.empty((4, 0), np.int64)
        self.longest_run = 0
        self.chained = 0
        self.trimmed = 0
        """Negative dentries beyond the limit."""
        self.trimmed_name_bytes = 0
        self.trimmed_fewer = 0
        """Negative dentries beyond the limit with :data:`FEWER` times fewer buckets."""
        self.cut = 0
        """Chains that lead to a non-dentry, or into another chain."""
        self.buckets_unreadable = 0
        self.faults = Faults()

    @property
    def longest(self) -> pd.DataFrame:
        """The longest chains."""
        columns = ["bucket", "length", "negative", "run"]
        return pd.DataFrame(self._longest.T, columns=columns)

    @property
    def longest_chain(self) -> int:
        """Dentries in the longest chain."""
        return int(self._longest[1].max(initial=0))

    def read(self, memory: Memory, address: int, buckets: int) -> Chains:
        """Add all buckets of the hash table at ``address``; only the table itself is read."""
        heads = np.empty(buckets, self.census.slots.dtype)
        for start in range(0, buckets, _MAX_LANES):
            count = min(_MAX_LANES, buckets - start)
            # The table need not be page-aligned: an unreadable page costs only its own buckets.
            place = address + 8 * start
            skip = place % memory.page_size
            pages = -(-(skip + 8 * count) // memory.page_size)
            data, readable = memory.span(place - skip, pages, self.faults, Use.NUMBER)
            span = slice(skip // 8, skip // 8 + count)
            if readable is not None:
                lost = np.repeat(~readable, memory.page_size // 8)[span]
                self.buckets_unreadable += int(np.count_nonzero(lost))
            # Bit 0 of a head is its lock.
            pointers = data.view(word_dtype(memory.prog))[span] & ~np.uint64(1)
            heads[start : start + count] = self.census.slots_of(pointers, self.census.hash_link)
        self.add(heads, memory.jobs)
        return self

    def add(self, heads: npt.NDArray[Any], jobs: int = 1) -> None:
        """Walk the chains of some buckets, given their first slots (or NO_SLOT, FOREIGN)."""
        links = self.census.links
        # A power of two, so that a block holds all buckets that are one bucket of a smaller table.
        block = max(len(heads) * _DENTRIES // max(len(links), 1), FEWER)
        block = min(1 << (block.bit_length() - 1), _MAX_LANES)
        jobs = jobs if len(links) >= MANY else 1

        def walks(*, is_careful: bool, jobs: int) -> list[Walk]:
            def work(task: int) -> Walk:
                start = task * block
                some = heads[start : start + block]
                first = self.buckets + start
                return walk(links, self.census.name_slot, some, first, is_careful=is_careful)

            return list(each(work, -(-len(heads) // block), jobs))

        parts = walks(is_careful=False, jobs=jobs)
        # A part does not see what another one walks at the same time; the links tell afterwards.
        chained = sum(part.chained for part in parts)
        blocks = [links[start : start + _MAX_LANES] for start in range(0, len(links), _MAX_LANES)]
        inverted = sum(int(np.count_nonzero(_inverted(some))) for some in blocks)
        if any(part.meets for part in parts) or inverted != chained:
            # Damage: what several chains share counts in the first of them.
            for some in blocks:
                np.invert(some, out=some, where=_inverted(some))
            parts = walks(is_careful=True, jobs=1)
        for part in parts:
            self._count(part)

    def _count(self, part: Walk) -> None:
        for name in ("lengths", "negative", "runs"):
            counts = getattr(part, name)
            getattr(self, name)[: len(counts)] += counts
        self._longest = longest_chains(np.concatenate([self._longest, part.longest], axis=1))
        self.longest_run = max(self.longest_run, part.longest_run)
        for name in ("chained", "trimmed", "trimmed_name_bytes", "trimmed_fewer", "cut"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
        self.buckets += part.chains


def _inverted(links: Links) -> Mask:
    return np.asarray((links < 0) & (links > np.iinfo(links.dtype).min))
