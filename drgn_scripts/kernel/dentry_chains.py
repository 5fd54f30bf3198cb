# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hash chains of dentries: how long they are, and what a limit for each bucket would leave.

The limit is that of the series "fix the negative dentres bloating system memory usage" (Khlebnikov
and Ananthakrishna, 2021): at most three unreferenced negative dentries in a row in each bucket.
Unreferenced is one that nobody holds and that no lookup has found since it was last passed over
(``DCACHE_REFERENCED``); any other dentry ends a row. New dentries stand first in their chain, so
of a longer row the first three stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from drgn_scripts.engine.memory import Faults, Mask, Memory
from drgn_scripts.kernel.dcache import HashTable
from drgn_scripts.kernel.dentry_census import (
    BUSY,
    FOREIGN,
    HASHED,
    NEGATIVE,
    REFERENCED,
    Census,
    Counts,
)

IN_A_ROW = 3
"""How many unreferenced negatives in a row the series leaves."""
FEWER = 16
"""How many times fewer buckets the smaller machine has of the review's question."""
_LANES = 1 << 18
"""Buckets to walk together: what that takes does not grow with the table."""
_LISTED = 20
"""Buckets with the longest chains to name."""
_LONGEST = 1 << 16
"""Lengths beyond are counted as this one: no chain of a sane kernel is that long."""


@dataclass
class Chains:
    """What stands in the buckets."""

    buckets: int
    lengths: Counts
    """Buckets by number of dentries in them."""
    negative: Counts
    """Negative dentries by length of their chain."""
    rows: Counts
    """Buckets by the longest row of unreferenced negatives in them."""
    longest_buckets: pd.DataFrame
    """``bucket``, ``length``, ``negative`` and ``row`` of the buckets with the longest chains."""
    chained: int
    """Dentries that were found in a chain."""
    trimmed: Mask
    """By slot: which dentries the limit would not leave."""
    trimmed_fewer: int
    """How many it would not leave with :data:`FEWER` times fewer buckets."""
    cut: int
    """Chains that lead to something that is no dentry, or to one that was there before."""
    buckets_unreadable: int
    faults: Faults

    @property
    def longest(self) -> int:
        """Dentries in the longest chain."""
        return len(self.lengths) - 1

    @property
    def longest_row(self) -> int:
        """Unreferenced negatives in the longest row."""
        return len(self.rows) - 1


def chains(memory: Memory, table: HashTable, census: Census) -> Chains:
    """Walk all chains at once, in columns: no memory but the table is read.

    A smaller table has the same chains, strung together: the bucket is the upper bits of the
    hash (or of its product) in all kernels. In which order new and old ones would then stand is
    not known; here each chain stands behind its neighbour.
    """
    walk = _Walk(census)
    faults = Faults()
    parts = []
    unreadable = 0
    for start in range(0, table.buckets, _LANES):
        count = min(_LANES, table.buckets - start)
        heads, lost = _heads(memory, table.address + 8 * start, count, census, walk.offset, faults)
        unreadable += lost
        part = walk.walk(heads)
        part.longest["bucket"] += start
        parts.append(part)
    return Chains(
        buckets=table.buckets,
        lengths=_add([part.lengths for part in parts]),
        negative=_add([part.negative for part in parts]),
        rows=_add([part.rows for part in parts]),
        longest_buckets=_longest(pd.concat([part.longest for part in parts])),
        chained=walk.chained,
        trimmed=walk.trimmed,
        trimmed_fewer=sum(part.trimmed_fewer for part in parts),
        cut=walk.cut,
        buckets_unreadable=unreadable,
        faults=faults,
    )


def _heads(
    memory: Memory, address: int, count: int, census: Census, offset: np.uint64, faults: Faults
) -> tuple[npt.NDArray[Any], int]:
    """The first dentry of some buckets, and how many buckets could not be read."""
    low = address & ~(memory.page_size - 1)
    pages = -((low - address - 8 * count) // memory.page_size)
    raw, readable = memory.span(low, pages, faults)
    skip = address - low
    first = raw[skip : skip + 8 * count].view(np.uint64) & ~np.uint64(1)  # the lock's bit
    slots = census.slots.of(first - offset)
    slots[(slots < 0) & (first != 0)] = FOREIGN
    lost = 0
    if readable is not None:
        lost = int((~readable[(skip + 8 * np.arange(count)) >> memory.page_shift]).sum())
    return slots, lost


@dataclass
class _Part:
    lengths: Counts
    negative: Counts
    rows: Counts
    longest: pd.DataFrame
    trimmed_fewer: int


def _longest(buckets: pd.DataFrame) -> pd.DataFrame:
    order = ["length", "row", "bucket"]
    ranked = buckets.sort_values(order, ascending=[False, False, True], ignore_index=True)
    return ranked.head(_LISTED)


_UNREFERENCED = NEGATIVE | HASHED
_MASK = _UNREFERENCED | BUSY | REFERENCED


class _Walk:
    def __init__(self, census: Census) -> None:
        self.census = census
        self.offset = np.uint64(census.hash_link)
        self.seen = np.zeros(len(census.slots), np.bool_)
        self.trimmed = np.zeros(len(census.slots), np.bool_)
        self.cut = self.chained = 0

    def walk(self, heads: npt.NDArray[Any]) -> _Part:
        """Walk the chains of some buckets; step k looks at the k-th dentry of each."""
        count = len(heads)
        length = np.zeros(count, np.int64)
        # Of each chain: its negatives, the longest row, the row at its beginning and at its end.
        done = np.zeros((4, count), np.int32)
        lanes = np.arange(count, dtype=np.int32)
        negative, longest, lead, row = (np.zeros(count, np.int32) for _ in range(4))
        nodes, steps, gone = heads, 0, 0

        def keep(going: Mask) -> None:
            nonlocal lanes, nodes, negative, longest, lead, row
            ended = lanes[~going]
            length[ended] = steps
            for at, column in enumerate((negative, longest, lead, row)):
                done[at, ended] = column[~going]
            lanes, nodes = lanes[going], nodes[going]
            negative, longest = negative[going], longest[going]
            lead, row = lead[going], row[going]

        while len(lanes):
            going = nodes >= 0
            if not going.all():
                self.cut += int(np.count_nonzero(nodes == FOREIGN))
                keep(going)
            state = self.census.state[nodes]
            fresh = ~self.seen[nodes] & (state != 0)
            self.seen[nodes] = True
            if not fresh.all():
                self.cut += int(np.count_nonzero(~fresh))
                state = state[fresh]
                keep(fresh)
            self.chained += len(nodes)
            unreferenced = (state & _MASK) == _UNREFERENCED
            negative += (state & NEGATIVE) != 0
            row += 1
            row *= unreferenced
            np.maximum(longest, row, out=longest)
            lead += unreferenced & (lead == steps)
            steps += 1
            beyond = row > IN_A_ROW
            if beyond.any():
                chosen = nodes[beyond]
                gone += len(chosen)
                self.trimmed[chosen] = True
            nodes = self.census.next[nodes]
        negative, longest, lead, row = done
        # All that may be among the longest, whatever their rank.
        least = np.partition(length, -_LISTED)[-_LISTED] if count > _LISTED else 1
        top = np.flatnonzero(length >= max(int(least), 1))
        capped = np.minimum(length, _LONGEST)
        return _Part(
            np.bincount(capped),
            np.bincount(capped, negative).astype(np.int64),
            np.bincount(np.minimum(longest, _LONGEST)),
            _longest(
                pd.DataFrame(
                    {
                        "bucket": top,
                        "length": length[top],
                        "negative": negative[top],
                        "row": longest[top],
                    }
                )
            ),
            gone + _joined(length, lead, row),
        )


def _joined(length: Counts, lead: npt.NDArray[Any], tail: npt.NDArray[Any]) -> int:
    """How many more would go if chains were strung together, :data:`FEWER` by as many.

    :param lead: unreferenced negatives that each chain begins with
    :param tail: those that it ends with
    """
    groups = -(-len(length) // FEWER)
    pad = groups * FEWER - len(length)
    length, lead, tail = (
        np.pad(column, (0, pad)).reshape(groups, FEWER) for column in (length, lead, tail)
    )
    open_row = np.zeros(groups, np.int64)
    more = 0
    for at in range(FEWER):
        first, whole = lead[:, at], lead[:, at] == length[:, at]
        joined = open_row + first
        more += int((_over(joined) - _over(open_row) - _over(first)).sum())
        open_row = np.where(whole, joined, tail[:, at])
    return more


def _over(row: Counts) -> Counts:
    return np.maximum(row - IN_A_ROW, 0)


def _add(parts: list[Counts]) -> Counts:
    total = np.zeros(max(map(len, parts), default=1), np.int64)
    for part in parts:
        total[: len(part)] += part
    return total
