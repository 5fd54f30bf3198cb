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

from kcensus.analyses.dentries.census import (
    BUSY,
    FOREIGN,
    HASHED,
    NEGATIVE,
    NO_SLOT,
    REFERENCED,
    Census,
    Counts,
)
from kcensus.engine.memory import Faults, Mask, Memory
from kcensus.kernel.vfs.dcache import HashTable

IN_A_ROW = 3
"""How many unreferenced negatives in a row the series leaves."""
FEWER = 16
"""How many times fewer buckets the smaller machine has of the review's question."""
_LANES = 1 << 18
"""Buckets to walk together: what that takes does not grow with the table."""
_FEW = 8
"""With so few chains left each is walked alone: a step of all takes 40 µs, however few they are,
and a chain can be as long as somebody cares to make it."""
_PIECE = 1 << 16
"""Dentries of such a chain to look at together."""
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
    longest: int
    """Dentries in the longest chain."""
    longest_row: int
    """Unreferenced negatives in the longest row."""
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
        longest=max(part.longest_chain for part in parts),
        longest_row=max(part.longest_row for part in parts),
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
    longest_chain: int
    longest_row: int
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
        self.seen = np.full(len(census.slots), -1, np.int32)
        """By slot: the lane that came by, -1 for none."""
        self.trimmed = np.zeros(len(census.slots), np.bool_)
        self.cut = self.chained = 0

    def walk(self, heads: npt.NDArray[Any]) -> _Part:
        """Walk the chains of some buckets; step k looks at the k-th dentry of each."""
        count = len(heads)
        # Of each chain: its dentries, its negatives, the longest row, the row at its beginning
        # and at its end.
        done = np.zeros((5, count), np.int64)
        lanes = np.arange(count, dtype=np.int32)
        negative, longest, lead, row = (np.zeros(count, np.int32) for _ in range(4))
        nodes, steps, gone = heads, 0, 0

        def keep(going: Mask) -> None:
            nonlocal lanes, nodes, negative, longest, lead, row
            ended = lanes[~going]
            for at, column in enumerate((negative, longest, lead, row)):
                done[at + 1, ended] = column[~going]
            done[0, ended] = steps
            lanes, nodes = lanes[going], nodes[going]
            negative, longest = negative[going], longest[going]
            lead, row = lead[going], row[going]

        while len(lanes) > _FEW:
            going = nodes >= 0
            if not going.all():
                self.cut += int(np.count_nonzero(nodes == FOREIGN))
                keep(going)
            state = self.census.state[nodes]
            fresh = (self.seen[nodes] < 0) & (state != 0)
            self.seen[nodes] = lanes
            # Of chains that meet in this step one goes on.
            fresh &= self.seen[nodes] == lanes
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
        rest = list(zip(lanes.tolist(), nodes.tolist(), strict=True))
        keep(np.zeros(len(lanes), np.bool_))
        gone += sum(self._alone(node, done[:, lane]) for lane, node in rest)
        length, negatives, rows, leads, tails = done
        # All that may be among the longest, whatever their rank.
        least = np.partition(length, -_LISTED)[-_LISTED] if count > _LISTED else 1
        top = np.flatnonzero(length >= max(int(least), 1))
        capped = np.minimum(length, _LONGEST)
        return _Part(
            np.bincount(capped),
            np.bincount(capped, negatives).astype(np.int64),
            np.bincount(np.minimum(rows, _LONGEST)),
            int(length.max()),
            int(rows.max()),
            _longest(
                pd.DataFrame(
                    {
                        "bucket": top,
                        "length": length[top],
                        "negative": negatives[top],
                        "row": rows[top],
                    }
                )
            ),
            gone + _joined(length, leads, tails),
        )

    def _alone(self, node: int, tally: Counts) -> int:
        """Go on in one chain, some thousand dentries at a time.

        :param node: the next dentry, if it is one
        :param tally: of the chain so far, a column of ``done``; is brought up to date
        :return: how many dentries the limit would not leave
        """
        gone = 0
        while True:
            nodes, node = self._ahead(node)
            if not len(nodes):
                return gone
            state = self.census.state[nodes]
            unreferenced = (state & _MASK) == _UNREFERENCED
            length, negative, longest, lead, row = tally.tolist()
            at = np.arange(len(nodes))
            last = np.maximum.accumulate(np.where(unreferenced, -1, at))
            rows = np.where(last < 0, row + at + 1, at - last)
            chosen = nodes[rows > IN_A_ROW]
            gone += len(chosen)
            self.trimmed[chosen] = True
            self.chained += len(nodes)
            if lead == length:
                lead += int(np.count_nonzero(last < 0))
            tally[:] = (
                length + len(nodes),
                negative + int(np.count_nonzero(state & NEGATIVE)),
                max(longest, int(rows.max())),
                lead,
                int(rows[-1]),
            )

    def _ahead(self, node: int) -> tuple[npt.NDArray[np.int64], int]:
        """Up to :data:`_PIECE` dentries of a chain, and where it goes on."""
        # What NumPy does with one element takes three times as long.
        seen, state = self.seen.data, self.census.state.data
        following = self.census.next.data
        found: list[int] = []
        while node >= 0 and len(found) < _PIECE:
            if seen[node] >= 0 or not state[node]:
                node = FOREIGN
                break
            seen[node] = 0
            found.append(node)
            node = following[node]
        if node == FOREIGN:
            self.cut += 1
            node = NO_SLOT
        return np.array(found, np.int64), node


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
