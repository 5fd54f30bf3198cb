# SPDX-License-Identifier: LGPL-2.1-or-later
"""The counters of the slab allocator itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import LayoutError, layout
from kcensus.engine.memory import Faults, Mask, Numbers
from kcensus.engine.slub.slabs import NR_SLABS, SlabMap

_SLUB = {"nr_slabs": "nr_slabs.counter", "total_objects": "total_objects.counter"}
"""Only with CONFIG_SLUB_DEBUG."""
_SLAB, _SLAB_OPTIONAL = {"free_objects": "free_objects"}, {"total_slabs": NR_SLABS}


@dataclass(frozen=True)
class NodeCounters:
    """``kmem_cache_node`` counters summed over nodes, shape (caches,)."""

    sums: Mapping[str, Numbers]
    """By name: ``nr_slabs`` and ``total_objects`` of SLUB, ``free_objects`` and, since v4.10,
    ``total_slabs`` of SLAB."""
    readable: Mask
    """Whether the counters of all nodes could be read."""


def names_of_counters(slab_map: SlabMap) -> tuple[str, ...]:
    """Return the names of the counters that the allocator can have."""
    return (*_SLAB_OPTIONAL, *_SLAB) if slab_map.is_slab else tuple(_SLUB)


def node_counters(slab_map: SlabMap, faults: Faults) -> NodeCounters | None:
    """Return the counters of all caches; None if the kernel does not have them."""
    needed, optional = (_SLAB, _SLAB_OPTIONAL) if slab_map.is_slab else (_SLUB, {})
    try:
        counters = layout(slab_map.prog, "struct kmem_cache_node", needed, optional)
    except LayoutError:
        return None
    pointers, ids, unknown = slab_map.per_node("node", slab_map.caches, faults)
    read = gather(slab_map.memory, pointers, counters, faults)
    caches = len(slab_map.caches)
    sums = {name: np.zeros(caches, np.int64) for name in counters.fields}
    fits = read.possible
    for name, column in sums.items():
        np.add.at(column, ids[fits], read[name][fits].astype(np.int64))
    unreadable = np.bincount(ids, ~(read.readable & fits), caches) > 0
    unreadable[unknown] = True
    return NodeCounters(sums, readable=~unreadable)


def reclaimable(slab_map: SlabMap) -> Mask:
    """Return which caches count as SReclaimable (SLAB_RECLAIM_ACCOUNT), shape (caches,)."""
    try:
        # Since Linux kernel commit cc61eb851c9a ("mm, slab: use an enum to define SLAB_ cache
        # creation flags") (in v6.9), the flags have an enum.
        flag = 1 << min(int(slab_map.prog.constant("_SLAB_RECLAIM_ACCOUNT")), 64)
    except LookupError:
        flag = 0x20000  # include/linux/slab.h, up to v6.8
    return np.array([bool(cache.flags & flag) for cache in slab_map.caches], np.bool_)
