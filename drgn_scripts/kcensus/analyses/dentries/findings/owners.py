# SPDX-License-Identifier: LGPL-2.1-or-later
"""Owners of unused negative dentries, and the memory that dropping them returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kcensus.analyses.dentries.figures import Figures
from kcensus.results import ratio

MOST = 0.5
"""Share of all unused negative dentries from which on a super block or memory cgroup is worth a
remedy of its own."""


class Share(NamedTuple):
    """The owner of most unused negative dentries."""

    row: int
    """Row of the super block or memory cgroup."""
    dentries: int
    unused: int
    """Unused negative dentries."""


def largest(rows: Any, sums: Any, size: int) -> Share | None:
    """Return the owner of most unused negative dentries, or None without a known owner."""
    known = rows >= 0
    dentries, unused = (
        np.bincount(rows[known], column[known], size).astype(np.int64)
        for column in (sums.values[0], sums.values[2])
    )
    if not unused.any():
        return None
    row = int(np.argmax(unused))
    return Share(row, int(dentries[row]), int(unused[row]))


def super_block(figures: Figures) -> Share | None:
    """Return the super block of most unused negative dentries, if it has :data:`MOST` of them."""
    sums, blocks = figures.census.sums("super_block"), figures.super_blocks
    own = largest(blocks.rows(sums.key.astype(np.uint64)), sums, len(blocks))
    return own if own and own.unused >= MOST * figures.negative_unused else None


def returned(figures: Figures) -> int:
    """Return the bytes of negative dentries that dropping all unused dentries frees."""
    freed = (figures.negative_unused - figures.kept) * figures.slot_size
    return freed + figures.census.tally.unused_name_bytes if freed else 0


def own_bytes(figures: Figures, own: Share) -> int:
    """Return the bytes of an owner's unused negative dentries, with its part of the names."""
    names = figures.census.tally.unused_name_bytes * ratio(own.unused, figures.negative_unused)
    return own.unused * figures.slot_size + int(names)
