# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hash chains of dentries: their lengths, and the effect of a run limit per bucket.

The limit is that of the series "fix the negative dentres bloating system memory usage" (Khlebnikov
and Ananthakrishna, 2021): a bucket keeps at most three unreferenced negative dentries in a row:
with refcount 0, and not found by a lookup since reclaim last passed (``DCACHE_REFERENCED``). New
dentries are added at the head of their chain, so the first three of a longer run stay.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.dentries.census import (
    BUSY,
    HASHED,
    NEGATIVE,
    NO_SLOT,
    REFERENCED,
    DentryCensus,
)
from kcensus.engine.chase import Damage, Lanes, chase
from kcensus.engine.layout import word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import spread
from kcensus.sources.capsule.uses import Use

IN_A_ROW = 3
"""Unreferenced negatives in a row that the series leaves in a bucket."""
FEWER = 16
"""The review of the series asked about machines with fewer buckets: this many times fewer."""
ORDER_BASE = 0x9E37_79B9_7F4A_7C15
"""Odd, so that its powers modulo 2**64 differ."""
_MAX_LANES = 1 << 18
_DENTRIES = 1 << 18
"""About as many dentries are looked at together, so that memory does not grow with their number."""
_MAX_STEPS = 1024
"""Dentries of a chain to look at in bulk: a step takes 40 µs even if few chains are that long."""
_MAX_LENGTH = 1 << 16
"""Longer chains, and longer runs, are counted as this long."""
_LISTED = 20
"""Buckets with the longest chains to list."""

_UNREFERENCED = NEGATIVE | HASHED
KINDS = _UNREFERENCED | BUSY | REFERENCED
"""State bits that figures of chains depend on, besides the sizes of external names."""


_Dentries: TypeAlias = tuple[Any, Lanes, npt.NDArray[Any]]
"""Place of dentries in their chains, the lanes of the chains, and the slots of the dentries."""


class Chains:
    """Figures of hash chains, added up over buckets. No dentry is counted in two chains.

    A table with fewer buckets has the same chains, strung together: in all kernels the bucket is
    the upper bits of the hash (or of its product). The order in which old and new dentries would
    then be is not known; here the chains of neighbors are in an order that only their
    unreferenced negatives decide, see :func:`order_of`.
    """

    def __init__(self, census: DentryCensus) -> None:
        self.census = census
        self.buckets = 0
        self.lengths = np.zeros(_MAX_LENGTH + 1, np.int64)
        """Buckets by the number of dentries in them."""
        self.negative = np.zeros(_MAX_LENGTH + 1, np.int64)
        """Negative dentries by the length of their chain."""
        self.runs = np.zeros(_MAX_LENGTH + 1, np.int64)
        """Buckets by their longest run of unreferenced negatives."""
        self.longest = pd.DataFrame(columns=["bucket", "length", "negative", "run"], dtype=np.int64)
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
        # By slot, whether no chain may enter it: it is free, or in a chain. The last two are
        # NO_SLOT and FOREIGN as indexes.
        self._taken = np.append(census.state == 0, [True, True])

    @property
    def longest_chain(self) -> int:
        """Dentries in the longest chain."""
        return int(self.longest["length"].max()) if len(self.longest) else 0

    def read(self, memory: Memory, address: int, buckets: int) -> Chains:
        """Add all buckets of the hash table at ``address``; only the table itself is read."""
        # A power of two, so that a block holds all buckets that are one bucket of a smaller table.
        block = max(buckets * _DENTRIES // max(len(self.census.slots), 1), FEWER)
        block = min(1 << (block.bit_length() - 1), _MAX_LANES)
        for start in range(0, buckets, block):
            count = min(block, buckets - start)
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
            heads = data.view(word_dtype(memory.prog))[span] & ~np.uint64(1)
            self.add(self.census.slots_of(heads, self.census.hash_link))
        return self

    def add(self, heads: npt.NDArray[Any]) -> None:
        """Walk the chains of some buckets, given their first slots (or NO_SLOT, FOREIGN)."""
        taken = np.count_nonzero(self._taken)
        cut: list[Lanes] = []
        steps = list(self._walk(heads, cut))
        if np.count_nonzero(self._taken) - taken != sum(len(slots) for _, _, slots in steps):
            steps = _without_repeats(steps, cut)
        self.cut += len(np.unique(np.concatenate(cut)))
        length = np.zeros(len(heads), heads.dtype)
        for place, lanes, _ in steps:
            length[lanes] = place + 1
        first = np.cumsum(length, dtype=heads.dtype) - length
        # All dentries, chain by chain.
        slots = np.empty(int(length.sum()), heads.dtype)
        for place, lanes, following in steps:
            slots[first[lanes] + place] = following
        state = self.census.state[slots]
        index = np.arange(len(slots), dtype=heads.dtype)
        unreferenced = (state & KINDS) == _UNREFERENCED
        run = _runs(np.where(unreferenced, heads.dtype.type(-1), index), first)
        trimmed = slots[run > IN_A_ROW]
        self.trimmed += len(trimmed)
        self.trimmed_name_bytes += self.census.external_bytes(trimmed)
        self.trimmed_fewer += _trimmed_fewer(unreferenced, length, first)
        negative, longest = np.zeros_like(length), np.zeros_like(length)
        filled = np.flatnonzero(length)
        if len(filled):
            starts = first[filled]
            is_negative = (state & NEGATIVE) // NEGATIVE
            negative[filled] = np.add.reduceat(is_negative, starts, dtype=heads.dtype)
            longest[filled] = np.maximum.reduceat(run, starts)
        self._tally(length, negative, longest)

    def _tally(self, length: Lanes, negative: Lanes, run: Lanes) -> None:
        size = _MAX_LENGTH + 1
        capped = np.minimum(length, _MAX_LENGTH)
        self.lengths += np.bincount(capped, minlength=size)
        self.negative += np.bincount(capped, negative, size).astype(np.int64)
        self.runs += np.bincount(np.minimum(run, _MAX_LENGTH), minlength=size)
        self.longest_run = max(self.longest_run, int(run.max()))
        self.chained += int(length.sum())
        # All candidates for the longest chains, whatever their rank.
        least = np.partition(length, -_LISTED)[-_LISTED] if len(length) > _LISTED else 1
        top = np.flatnonzero(length >= max(int(least), 1))
        columns = {"length": length[top], "negative": negative[top], "run": run[top]}
        longest = pd.concat([self.longest, pd.DataFrame({"bucket": self.buckets + top} | columns)])
        self.longest = longest.sort_values(
            ["length", "run", "negative", "bucket"],
            ascending=[False, False, False, True],
            ignore_index=True,
        ).head(_LISTED)
        self.buckets += len(length)

    def _walk(self, heads: npt.NDArray[Any], cut: list[Lanes]) -> Iterator[_Dentries]:
        """Walk chains up to the first dentry that was in a chain before this step.

        :param cut: takes the lanes of chains that end there, or at a non-dentry
        """
        damage = Damage()
        lanes, nodes = np.arange(len(heads)), heads[:0]
        first = np.where(self._enter(heads), heads + 1, 0)
        cut.append(np.flatnonzero((first == 0) & (heads != NO_SLOT)))
        # chase() ends at 0, which is a slot: nodes are slots plus 1.
        walk = chase(first, self._step, limit=_MAX_STEPS, damage=damage)
        for step, (lanes, nodes) in enumerate(walk):
            yield step, lanes, nodes - 1
        cut += damage.unreadable
        for longer in damage.too_long:
            last = nodes[np.searchsorted(lanes, longer)] - 1
            for lane, slot in zip(longer.tolist(), last.tolist(), strict=True):
                rest, end = self._rest(slot)
                yield _MAX_STEPS + np.arange(len(rest)), np.full(len(rest), lane), rest
                if end != NO_SLOT:
                    cut.append(np.array([lane]))

    def _enter(self, slots: npt.NDArray[Any]) -> Mask:
        """Mark slots as chained; return a mask of the slots that were in no chain before."""
        free: Mask = ~self._taken[slots]
        self._taken[slots] = True
        return free

    def _step(self, nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
        following = self.census.next[nodes - 1]
        return following + 1, self._enter(following) | (following == NO_SLOT)

    def _rest(self, slot: int) -> tuple[Numbers, int]:
        """Return the entered slots of a chain after ``slot``, and the slot at its end.

        One by one in Python, which takes a third of NumPy's time for one element.
        """
        taken, following = self._taken.data, self.census.next.data
        slot = following[slot]
        rest = array("q", [slot])
        while not taken[slot := following[slot]]:
            taken[slot] = True
            rest.append(slot)
        return np.frombuffer(rest, np.int64), slot


def _without_repeats(steps: list[_Dentries], cut: list[Lanes]) -> list[_Dentries]:
    """Cut chains at a dentry that a chain with a lower bucket reaches in the same step."""
    slots = np.concatenate([slots for _, _, slots in steps])
    lanes = np.concatenate([lanes for _, lanes, _ in steps])
    first = np.zeros(len(slots), np.bool_)
    first[np.unique(slots, return_index=True)[1]] = True
    cut.append(lanes[~first])
    parts = np.split(first, np.cumsum([len(lanes) for _, lanes, _ in steps])[:-1])
    return [
        (np.broadcast_to(place, kept.shape)[kept], lanes[kept], slots[kept])
        for (place, lanes, slots), kept in zip(steps, parts, strict=True)
    ]


def order_of(unreferenced: Mask, length: Numbers) -> npt.NDArray[np.uint64]:
    """Return a number for each chain, equal for chains of one length with equal dentries.

    :param unreferenced: for all dentries, chain by chain
    :return: the sum of powers of :data:`ORDER_BASE`, modulo 2**64
    """
    chain, place = spread(length)
    powers = np.full(int(length.max(initial=0)), ORDER_BASE, np.uint64)
    powers[:1] = 1
    np.multiply.accumulate(powers, out=powers)
    sums = np.zeros(len(length), np.uint64)
    np.add.at(sums, chain[unreferenced], powers[place[unreferenced]])
    return sums


def mix(number: Words, length: Words, rank: Words) -> Words:
    """Return numbers in an order that has nothing to do with that of :func:`order_of`."""
    number = (number * np.uint64(ORDER_BASE) + length) * np.uint64(ORDER_BASE) + rank
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return number ^ (number >> np.uint64(27))


def _trimmed_fewer(unreferenced: Mask, length: Lanes, first: Lanes) -> int:
    """Return the dentries beyond the limit if :data:`FEWER` neighboring chains are one."""
    sizes = length.astype(np.int64)
    groups = np.arange(len(sizes)) // FEWER
    number = order_of(unreferenced, sizes)
    order = np.lexsort((sizes, number, groups))
    # Equal chains are told apart by their count, or they would always be side by side.
    is_new = np.diff(groups[order], prepend=-1) != 0
    for column in (number[order], sizes[order].astype(np.uint64)):
        is_new[1:] |= column[1:] != column[:-1]
    index = np.arange(len(order))
    rank = index - np.maximum.accumulate(np.where(is_new, index, 0))
    mixed = mix(number[order], sizes[order].astype(np.uint64), rank.astype(np.uint64))
    order = order[np.lexsort((mixed, groups[order]))]
    sizes = sizes[order]
    chain, place = spread(sizes)
    joined = unreferenced[first[order][chain] + place]
    index = np.arange(len(joined))
    starts = (np.cumsum(sizes) - sizes)[::FEWER]
    return int(np.count_nonzero(_runs(np.where(joined, -1, index), starts) > IN_A_ROW))


def _runs(breaks: npt.NDArray[Any], starts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return, for each dentry, how many unreferenced negatives in a row end with it.

    :param breaks: for all dentries, chain by chain: -1 for unreferenced negatives, else the index
    :param starts: where chains start
    """
    last = breaks.copy()
    starts = starts[starts < len(breaks)]
    last[starts] = np.maximum(last[starts], starts - 1)
    np.maximum.accumulate(last, out=last)
    return np.asarray(np.arange(len(last), dtype=last.dtype) - last)
