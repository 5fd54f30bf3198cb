# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slab pages of dentries by what keeps them: memory comes back by the page, not by the dentry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcensus.analyses.dentries.census import Census, Counts
from kcensus.engine.slub.slabs import SlabMap


@dataclass(frozen=True)
class Pinning:
    """Slabs by how many dentries pin them: all but unused negative ones. Index is that number."""

    slabs: Counts
    pages: Counts
    dentries: Counts
    negative_unused: Counts
    free: Counts
    """Slots without a dentry. What could not be read is in no figure."""


def pinning(slab_map: SlabMap, census: Census) -> Pinning:
    """Count the dentries that keep each slab."""
    slabs = census.slots.slabs
    pages = slab_map.slab_pages(slabs)
    known = census.slab_readable
    dentries = census.dentries_in_slab.astype(np.int64)
    negative = census.negative_unused_in_slab.astype(np.int64)
    pinned = (dentries - negative)[known]
    size = int(slabs.objects.max(initial=0)) + 1

    def sums(weights: Counts) -> Counts:
        return np.bincount(pinned, weights[known], size).astype(np.int64)

    return Pinning(
        slabs=sums(np.ones(len(slabs), np.int64)),
        pages=sums(pages),
        dentries=sums(dentries),
        negative_unused=sums(negative),
        free=sums(slabs.objects - dentries),
    )
