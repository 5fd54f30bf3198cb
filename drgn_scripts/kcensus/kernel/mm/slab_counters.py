# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the slab allocator counts itself, to hold a census against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import LayoutError, layout
from kcensus.engine.memory import Faults
from kcensus.engine.slub.slabs import SlabMap


@dataclass(frozen=True)
class NodeCounters:
    """``kmem_cache_node`` counters summed over nodes, one row per cache id."""

    nr_slabs: npt.NDArray[np.int64]
    total_objects: npt.NDArray[np.int64]
    readable: npt.NDArray[np.bool_]
    """Whether the cache's counters could be read on all nodes."""


def node_counters(slab_map: SlabMap, faults: Faults) -> NodeCounters | None:
    """The counters of all caches; None without CONFIG_SLUB_DEBUG, which keeps them."""
    prog = slab_map.prog
    try:
        counters = layout(
            prog,
            "struct kmem_cache_node",
            {"nr_slabs": "nr_slabs.counter", "total_objects": "total_objects.counter"},
        )
    except LayoutError:
        return None
    pointers, ids, unknown = slab_map.per_node("node", slab_map.caches, faults)
    read = gather(slab_map.memory, pointers, counters, faults)
    sums = {}
    for name in counters.fields:
        sums[name] = np.bincount(ids, read[name], len(slab_map.caches)).astype(np.int64)
    lost = np.bincount(ids, ~read.readable, len(slab_map.caches)) > 0
    lost[unknown] = True
    return NodeCounters(**sums, readable=~lost)


def reclaimable(slab_map: SlabMap) -> npt.NDArray[np.bool_]:
    """Which caches count as SReclaimable, by cache id (SLAB_RECLAIM_ACCOUNT)."""
    try:
        # 6.9 gave the flag bits an enum.
        flag = 1 << min(int(slab_map.prog.constant("_SLAB_RECLAIM_ACCOUNT")), 64)
    except LookupError:
        flag = 0x20000  # include/linux/slab.h, 2.6.22 to 6.8
    return np.array([bool(cache.flags & flag) for cache in slab_map.caches], np.bool_)
