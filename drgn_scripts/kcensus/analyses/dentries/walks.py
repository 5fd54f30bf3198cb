# SPDX-License-Identifier: LGPL-2.1-or-later
"""Walk hash chains of dentries side by side, and count their runs of unreferenced negatives.

The links of all slots are one column (:func:`links_of`): where a slot's chain goes on, and the
three bits that figures of chains depend on, so that a dentry costs one access to memory. A walk
inverts the link of each dentry that it enters.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kcensus.analyses.dentries.columns.bits import (
    FOREIGN,
    LINK_BITS,
    LINK_EXTERNAL,
    LINK_NEGATIVE,
    LINK_UNREFERENCED,
    NO_SLOT,
)
from kcensus.engine.memory import Mask, Numbers, Words

IN_A_ROW = 3
"""Unreferenced negatives in a row that the series leaves in a bucket."""
FEWER = 16
"""The review of the series asked about machines with fewer buckets: this many times fewer."""
ORDER_BASE = 0x9E37_79B9_7F4A_7C15
"""Odd, so that its powers modulo 2**64 differ."""
MAX_LENGTH = 1 << 16
"""Longer chains, and longer runs, are counted as this long."""
LISTED = 20
"""Buckets with the longest chains to list."""
_MAX_STEPS = 1024
"""Dentries of a chain to look at in bulk: a step takes 40 µs even if few chains are that long."""
_ALL_BITS = (1 << LINK_BITS) - 1
_PRESENT = 1 << LINK_BITS
"""Set in the row of a step for the chains that have a dentry there."""

Links: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""As of :func:`~kcensus.analyses.dentries.columns.bits.links_of`; inverted behind a walk."""


@dataclass
class Walk:
    """Figures of the hash chains of some neighboring buckets."""

    chains: int
    lengths: Numbers = field(init=False)
    """Buckets by the number of dentries in them."""
    negative: Numbers = field(init=False)
    """Negative dentries by the length of their chain."""
    runs: Numbers = field(init=False)
    """Buckets by their longest run of unreferenced negatives."""
    longest: Numbers = field(init=False)
    """The longest chains; shape (4, chains): bucket, dentries, negative ones, and longest run."""
    longest_run: int = 0
    chained: int = 0
    trimmed: int = 0
    """Negative dentries beyond the limit."""
    trimmed_name_bytes: int = 0
    trimmed_fewer: int = 0
    """Negative dentries beyond the limit with :data:`FEWER` times fewer buckets."""
    cut: int = 0
    """Chains that lead to a non-dentry, or into another chain."""
    meets: bool = False
    """Whether a chain led into one that was walked before."""


class _Chains:
    """What is known of chains so far, as columns, all 0 for an empty chain."""

    def __init__(self, count: int) -> None:
        self.length, self.negative, self.longest, self.lead, self.broken = (
            np.zeros(count, np.int32) for _ in range(5)
        )
        """Dentries; negative ones; the longest run of unreferenced negatives; the run at the head;
        and the dentries up to the last that is not in a run."""
        self.number = np.zeros(count, np.uint64)
        """Equal for chains of one length with equal dentries: see :func:`mix`."""

    def __getitem__(self, rows: Any) -> _Chains:
        part = _Chains(0)
        for name, column in vars(self).items():
            setattr(part, name, column[rows])
        return part

    def __setitem__(self, rows: Any, part: _Chains) -> None:
        for name, column in vars(self).items():
            column[rows] = getattr(part, name)

    def add(self, row: npt.NDArray[np.uint8], power: int) -> Mask:
        """Add the next dentry of each chain: its bits and :data:`_PRESENT`, or 0 for none.

        :param power: of :data:`ORDER_BASE`, by the place of the dentries in their chains
        :return: mask of the dentries beyond the limit
        """
        self.length += row >> LINK_BITS
        self.negative += (row & LINK_NEGATIVE) // LINK_NEGATIVE
        breaks = (row & (_PRESENT | LINK_UNREFERENCED)) == _PRESENT
        np.copyto(self.broken, self.length, where=breaks)
        run = self.length - self.broken
        np.maximum(self.longest, run, out=self.longest)
        is_there = row != 0
        self.lead += (self.broken == 0) & is_there
        self.number += (row & LINK_UNREFERENCED) * np.uint64(power)
        return np.asarray((run > IN_A_ROW) & is_there)

    def extend(self, chain: int, bits: Numbers, power: int) -> Mask:
        """Add several dentries to one chain; as :meth:`add` does."""
        places = int(self.length[chain]) + np.arange(1, len(bits) + 1)
        unreferenced = (bits & LINK_UNREFERENCED) != 0
        broken = np.where(unreferenced, self.broken[chain], places)
        np.maximum.accumulate(broken, out=broken)
        run = places - broken
        powers = np.full(len(bits), ORDER_BASE, np.uint64)
        powers[:1] = power
        np.multiply.accumulate(powers, out=powers)
        self.number[chain] += powers[unreferenced].sum(dtype=np.uint64)
        self.length[chain] += len(bits)
        self.negative[chain] += np.count_nonzero(bits & LINK_NEGATIVE)
        self.longest[chain] = max(self.longest[chain], run.max(initial=0))
        self.lead[chain] += np.count_nonzero(broken == 0)
        self.broken[chain] = broken[-1]
        return np.asarray(run > IN_A_ROW)


def walk(
    links: Links,
    name_slot: npt.NDArray[np.uint16],
    heads: npt.NDArray[Any],
    first: int,
    *,
    is_careful: bool,
) -> Walk:
    """Walk the chains of some buckets, which are inverted in ``links``.

    :param name_slot: as of :class:`~kcensus.analyses.dentries.census.DentryCensus`
    :param heads: first slots, :data:`NO_SLOT` or :data:`FOREIGN`
    :param first: number of the first bucket
    :param is_careful: whether to look for chains that meet after equally many steps. Otherwise
        what they share is counted in both, so that more dentries are counted than links inverted.
    """
    part = Walk(len(heads))
    # Empty chains change nothing.
    chains = _Chains(-(-len(heads) // FEWER) * FEWER)
    base: Any = slice(None)  # the chains that rows are of
    active, power, cut = chains, 1, np.zeros(len(heads), np.bool_)
    lanes: Numbers = np.arange(len(heads))  # in the columns of active
    node = heads.astype(np.intp)

    def keep(kept: Mask, *, are_cut: bool) -> None:
        nonlocal lanes, node
        if are_cut:
            gone = lanes[~kept]
            cut[gone if isinstance(base, slice) else base[gone]] = True
        lanes, node = lanes[kept], node[kept]

    def trim(nodes: npt.NDArray[Any], bits: npt.NDArray[Any], beyond: Mask, own: Any) -> None:
        """Count the dentries beyond the limit; bits of nodes are those of the rows ``own``."""
        part.trimmed += int(np.count_nonzero(beyond))
        long = beyond & ((bits & LINK_EXTERNAL) != 0)
        if long.any():
            names = name_slot[nodes[long[own]]]
            part.trimmed_name_bytes += 8 * int(names.sum(dtype=np.int64))

    keep(node != NO_SLOT, are_cut=False)
    for _ in range(_MAX_STEPS + 1):
        if len(node) and node.min() == FOREIGN:
            keep(node != FOREIGN, are_cut=True)
        link = links[node]
        if len(link) and link.min() < 0:
            part.meets |= bool((link[link < 0] != np.iinfo(links.dtype).min).any())
            keep(link >= 0, are_cut=True)
            link = link[link >= 0]
        if is_careful and len(node):
            is_first = np.zeros(len(node), np.bool_)
            is_first[np.unique(node, return_index=True)[1]] = True
            keep(is_first, are_cut=True)
            link = link[is_first]
        if not len(node):
            break
        links[node] = ~link
        row = np.zeros(len(active.length), np.uint8)
        row[lanes] = (link & _ALL_BITS).astype(np.uint8) | _PRESENT
        trim(node, row, active.add(row, power), lanes)
        power = power * ORDER_BASE % (1 << 64)
        node = (link >> LINK_BITS).astype(np.intp) + FOREIGN
        keep(node != NO_SLOT, are_cut=False)
        if 2 * len(lanes) < len(active.length):
            # So that a step costs no more than its dentries.
            if active is not chains:
                chains[base] = active
            base = lanes if isinstance(base, slice) else base[lanes]
            active, lanes = chains[base], np.arange(len(lanes))
    if active is not chains:
        chains[base] = active
    own: Numbers = lanes if isinstance(base, slice) else base[lanes]
    for lane, slot in zip(own.tolist(), node.tolist(), strict=True):
        nodes, found, end = _rest(links, slot)
        if len(nodes):
            rest = found & _ALL_BITS
            trim(nodes, rest, chains.extend(lane, rest, power), slice(None))
        cut[lane] |= end != NO_SLOT
        part.meets |= end >= 0
    part.cut = int(np.count_nonzero(cut))
    _tally(part, chains, first)
    return part


def _rest(links: Links, slot: int) -> tuple[Numbers, Numbers, int]:
    """Enter the rest of a chain from ``slot`` on: return its slots, links, and the slot at its end.

    One by one in Python, which takes a third of NumPy's time for one element.
    """
    view = links.data
    nodes, found = array("q"), array("q")
    while slot >= 0 and (link := view[slot]) >= 0:
        view[slot] = ~link
        nodes.append(slot)
        found.append(link)
        slot = (link >> LINK_BITS) + FOREIGN
    return np.frombuffer(nodes, np.int64), np.frombuffer(found, np.int64), slot


def _tally(part: Walk, chains: _Chains, first: int) -> None:
    length, negative, longest = (
        column[: part.chains] for column in (chains.length, chains.negative, chains.longest)
    )
    capped = np.minimum(length, MAX_LENGTH)
    part.lengths = np.bincount(capped)
    part.negative = np.bincount(capped, negative).astype(np.int64)
    part.runs = np.bincount(np.minimum(longest, MAX_LENGTH))
    part.longest_run = int(longest.max(initial=0))
    part.chained = int(length.sum(dtype=np.int64))
    # All candidates for the longest chains, whatever their rank.
    least = np.partition(length, -LISTED)[-LISTED] if len(length) > LISTED else 1
    top = np.flatnonzero(length >= max(int(least), 1))
    columns = (first + top, length[top], negative[top], longest[top])
    part.longest = longest_chains(np.stack(columns).astype(np.int64))
    part.trimmed_fewer = part.trimmed + _trimmed_at_joints(chains)


def longest_chains(rows: Numbers) -> Numbers:
    """Return the first :data:`LISTED` columns of :attr:`Walk.longest`, longest chains first."""
    bucket, length, negative, run = rows
    return rows[:, np.lexsort((bucket, -negative, -run, -length))[:LISTED]]


def mix(number: Words, length: Words, rank: Words) -> Words:
    """Return numbers that decide the order of chains in a table with fewer buckets.

    :param number: of each chain: the sum of powers of :data:`ORDER_BASE`, modulo 2**64, by the
        places of its unreferenced negatives
    :param rank: of chains of one length with equal dentries, so that they are not side by side
    """
    number = (number * np.uint64(ORDER_BASE) + length) * np.uint64(ORDER_BASE) + rank
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return number ^ (number >> np.uint64(27))


def _trimmed_at_joints(chains: _Chains) -> int:
    """Return how many more dentries are beyond the limit if :data:`FEWER` neighbors are one."""
    # Row n holds the chain n of each group.
    number: Words = np.ascontiguousarray(chains.number.reshape(-1, FEWER).T)
    length, lead, broken = (
        np.ascontiguousarray(column.reshape(-1, FEWER).T)
        for column in (chains.length, chains.lead, chains.broken)
    )
    rank = np.zeros(number.shape, np.uint64)
    for step in range(1, FEWER):
        rank[step:] += (number[step:] == number[:-step]) & (length[step:] == length[:-step])
    mixed = mix(number, length.astype(np.uint64), rank)
    order = np.argsort(mixed.T, axis=1).T
    length, lead, broken = (
        np.take_along_axis(column, order, axis=0) for column in (length, lead, broken)
    )
    more = 0
    carried = np.zeros(length.shape[1], np.int64)
    for size, head, last in zip(length, lead, broken, strict=True):
        parts = np.maximum(carried - IN_A_ROW, 0) + np.maximum(head - IN_A_ROW, 0)
        more += int((np.maximum(carried + head - IN_A_ROW, 0) - parts).sum())
        carried = np.where(head == size, carried + size, size - last)
    return more
