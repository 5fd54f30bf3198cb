# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories by their children: how many there are, of what kind, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.analyses.dentries.census import (
    CURSOR,
    DEAD,
    DENTRY,
    FOREIGN,
    NEGATIVE,
    NO_SLOT,
    ROOT,
    Census,
    Counts,
    Sums,
)

_BLOCK = 1 << 20
"""Slots to look at together."""


@dataclass(frozen=True)
class Children:
    """Directories that have children in the dentry cache, as columns, by ascending slot."""

    slot: npt.NDArray[np.int64]
    children: Counts
    """All on its list: names, cursors of readers, and what is being looked up."""
    negative: Counts
    negative_unused: Counts
    external_bytes: Counts
    """Of the names of negative children."""
    orphans: Sums
    """Dentries whose parent is no dentry of the census, in one row or none."""
    sweeps: Counts = field(default_factory=lambda: np.empty(0, np.int64))
    """How often on its list a positive dentry follows a negative one: 0 means that all negatives
    stand at the tail."""
    damaged: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """Its list has no end, several, or leads away."""

    def __len__(self) -> int:
        return len(self.slot)

    def most(self, key: Counts, limit: int) -> npt.NDArray[np.int64]:
        """Rows with the largest values of ``key`` above 0, largest first, then by slot."""
        rows = np.flatnonzero(key > 0)
        return rows[np.argsort(-key[rows], kind="stable")[:limit]]


def children(census: Census) -> Children:
    """Directories with their children; with the census's siblings also the order of these."""
    sums = census.directories
    known = sums.key >= 0
    found = Children(
        slot=sums.key[known].astype(np.int64),
        children=sums.dentries[known],
        negative=sums.negative[known],
        negative_unused=sums.negative_unused[known],
        external_bytes=sums.external_bytes[known],
        orphans=Sums(*(column[~known] for column in (sums.key, *sums.columns()))),
    )
    return _ordered(census, found) if len(census.sibling) else found


def _blocks(census: Census) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, len(census.slots), _BLOCK)]


def _tally(counts: npt.NDArray[np.uint32], parents: npt.NDArray[Any]) -> None:
    """Count one for each parent."""
    if len(parents):
        slots, number = np.unique(parents, return_counts=True)
        counts[slots] += number.astype(np.uint32)


def _ordered(census: Census, found: Children) -> Children:
    """The same with the order of the children, by what follows each on the list.

    A list is sound if each child but one has a successor of the same parent, and no two the same.
    """
    size = len(census.slots)
    sweeps, ends, bad = (np.zeros(size, np.uint32) for _ in range(3))
    reached = np.zeros(size, np.bool_)
    for block in _blocks(census):
        state, parent = census.state[block], census.parent[block]
        following = census.sibling[block]
        listed = ((state & DENTRY) != 0) & ((state & (ROOT | DEAD)) == 0) & (parent >= 0)
        # An old list ends in its head, which lies in the parent, and not where a dentry begins.
        last = listed & ((following == NO_SLOT) | (following == FOREIGN))
        _tally(ends, parent[last])
        at = np.flatnonzero(listed & ~last)
        next_, above = following[at], parent[at]
        beyond = census.state[next_]
        astray = (census.parent[next_] != above) | ((beyond & DENTRY) == 0)
        astray |= (beyond & (ROOT | DEAD)) != 0
        again = reached[next_]
        before = np.count_nonzero(reached)
        reached[next_] = True
        if np.count_nonzero(reached) - before != len(next_) - np.count_nonzero(again):
            # Twice within this block is as bad as twice in two blocks.
            ordered = np.sort(next_)
            again |= np.isin(next_, ordered[1:][ordered[1:] == ordered[:-1]])
        _tally(bad, above[astray | again])
        name = ((beyond & NEGATIVE) == 0) & ((beyond & CURSOR) == 0)
        _tally(sweeps, above[((state[at] & NEGATIVE) != 0) & name & ~astray])
    return Children(
        found.slot,
        found.children,
        found.negative,
        found.negative_unused,
        found.external_bytes,
        found.orphans,
        sweeps[found.slot].astype(np.int64),
        (ends[found.slot] != 1) | (bad[found.slot] > 0),
    )
