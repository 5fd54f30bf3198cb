# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of slabs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.slab.census import FILL, Counts
from kcensus.analyses.slab.figures import NO_MEMCG, NOT_ATTRIBUTED, UNKNOWN_MEMCG, Figures
from kcensus.charts import ChartSpec, RamUse
from kcensus.results import Result
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    NONE,
    RATIO,
    TEXT,
    Column,
    TableSpec,
    address,
    ratios,
)

_CACHE = Column(TEXT, "cache", ALWAYS, "Name of the slab cache.", "names")
_MEMCG = Column(TEXT, "memory cgroup", ALWAYS, "Path of the memory cgroup.")
_NODE = Column(NONE, "node", ALWAYS, "Number of the NUMA node.")
_SLABS = Column(COUNT, "slabs", help="Slabs.")
_SLOTS = Column(COUNT, "slots", help="Slots of all slabs, allocated or free.", get="objects")
_ACTIVE = Column(
    COUNT,
    "active",
    ALWAYS,
    "Allocated objects; free ones of CPUs and sheaves are not counted.",
    "active",
)
_BYTES = Column(BYTES, "bytes", ALWAYS, "Slab pages.")
_ACTIVE_BYTES = Column(BYTES, "in use", help="Allocated objects, at requested size.")
_UTILIZATION = Column(RATIO, "util", ALWAYS, "Share of allocated objects in slab pages.")
_FREE = Column(BYTES, "free slots", DATA, "Slots that hold no object.")
_PADDING = Column(BYTES, "padding", DATA, "Slot sizes minus object sizes.")
_TAILS = Column(BYTES, "tails", DATA, "Ends of slabs, too small for a slot.")
_CHARGED = Column(COUNT, "objects", ALWAYS, "Objects charged to the memory cgroup.")
_CHARGED_BYTES = Column(BYTES, "bytes", ALWAYS, "Slots of the objects.")
_MEMCG_ADDRESS = address("struct mem_cgroup", help_="Address of mem_cgroup; 0 without one.")
_ADDRESS = address(
    "struct kmem_cache", get=lambda figures: [cache.address for cache in figures.caches]
)


def _fill(number: int, figures: Figures) -> Counts:
    return figures.fill[:, number]


def _caches(figures: Figures) -> pd.DataFrame:
    return CACHES.frame(figures).iloc[figures.roots]


CACHES = TableSpec(
    "caches",
    "Slab caches",
    {
        "cache": _CACHE,
        "aliases": Column(
            TEXT,
            "also",
            DATA,
            "Names of caches merged into this cache.",
            lambda figures: [", ".join(figures.sharers.get(name, [])) for name in figures.names],
        ),
        "users": Column(
            COUNT,
            "users",
            DATA,
            "Users, with those of merged caches (kmem_cache.refcount).",
            lambda figures: [max(cache.refcount, 1) for cache in figures.caches],
        ),
        "object_size": Column(BYTES, "object", help="Requested size of an object."),
        "slot_size": Column(BYTES, "slot", DATA, "Size of a slot."),
        "objects_per_slab": Column(
            COUNT, "per slab", DATA, "Slots of a slab as normally allocated."
        ),
        "order": Column(NONE, "order", DATA, "A slab as normally allocated has 2^order pages."),
        "slabs": _SLABS,
        "objects_total": _SLOTS,
        "objects_active": _ACTIVE,
        "bytes": _BYTES,
        "active_bytes": _ACTIVE_BYTES,
        "utilization": _UTILIZATION,
        "free_bytes": _FREE,
        "padding_bytes": _PADDING,
        "tail_bytes": _TAILS,
        "empty_bytes": Column(
            BYTES,
            "empty slabs",
            DATA,
            "Slabs that hold no allocated object.",
            lambda figures: figures.by_root(figures.empty_bytes),
        ),
        "vector_bytes": Column(
            BYTES,
            "vectors",
            DATA,
            "obj_cgroup vectors, which map objects to memory cgroups.",
        ),
        "reclaimable": Column(
            NONE, "reclaimable", DATA, "Whether the pages count as SReclaimable."
        ),
    }
    | {
        f"fill_{number}": Column(
            COUNT,
            f"slabs {name}",
            DATA,
            f"Slabs with {name} of the slots in use." if "%" in name else f"Slabs that are {name}.",
            partial(_fill, number),
        )
        for number, name in enumerate(FILL)
    }
    | {"address": _ADDRESS},
    "A slab cache; child caches of memory cgroups (up to 5.8) are counted with their root.",
    ("bytes", "cache"),
    key=("cache",),
    series=("bytes", "active_bytes", "active"),
    rows=_caches,
)


def _waste(figures: Figures) -> pd.DataFrame:
    caches = _caches(figures)
    waste = (caches["bytes"] - caches["active_bytes"]).to_numpy(np.int64)
    return caches.assign(waste_bytes=waste, share=ratios(waste, waste.sum()))


WASTE = TableSpec(
    "waste",
    "Top waste",
    {
        "cache": _CACHE,
        "waste_bytes": Column(BYTES, "waste", ALWAYS, "Bytes without an allocated object."),
        "share": Column(RATIO, "of all waste", ALWAYS, "Share of the waste of all caches."),
        "utilization": Column(RATIO, "util", help=_UTILIZATION.help),
        "free_bytes": Column(BYTES, "free slots", help=_FREE.help),
        "padding_bytes": Column(BYTES, "padding", help=_PADDING.help),
        "tail_bytes": Column(BYTES, "tails", help=_TAILS.help),
        "address": _ADDRESS,
    },
    "A slab cache, by its bytes without an object.",
    ("waste_bytes", "cache"),
    rows=_waste,
)


def _memcgs(figures: Figures) -> pd.DataFrame:
    groups, owners, free = figures.groups, figures.owners, figures.uncharged
    row, count = owners["row"] + 1, len(groups) + 1
    objects = np.bincount(row, owners["objects"], count)
    size = np.bincount(row, owners["objects"] * figures.slot_size[owners["cache"]], count)
    frame = pd.DataFrame(
        {
            "memcg": [UNKNOWN_MEMCG, *groups.path, NO_MEMCG],
            "state": ["unknown", *np.where(groups.online, "online", "offline"), "none"],
            "objects": np.append(objects, free.sum()).astype(np.int64),
            "bytes": np.append(size, (free * figures.slot_size).sum()).astype(np.int64),
            "address": np.pad(groups.address, 1),
        }
    )
    return frame if frame["objects"].iloc[0] else frame.iloc[1:]


MEMCGS = TableSpec(
    "memcgs",
    "Slab objects by memory cgroup",
    {
        "memcg": _MEMCG,
        "state": Column(
            TEXT, "state", ALWAYS, "online; offline (dying): removed but still charged."
        ),
        "objects": _CHARGED,
        "bytes": _CHARGED_BYTES,
        "address": _MEMCG_ADDRESS,
    },
    f"A memory cgroup; {NO_MEMCG}: objects charged to none.",
    ("bytes", "memcg"),
    key=("memcg",),
    series=("bytes", "objects"),
    rows=_memcgs,
)


def _memcg_caches(figures: Figures) -> dict[str, Any]:
    names = [*figures.groups.path, UNKNOWN_MEMCG]
    addresses = np.append(figures.groups.address, np.uint64(0))
    columns = ("row", "cache", "objects")
    row, cache, objects = (figures.owners[name].to_numpy(np.int64) for name in columns)
    return {
        "memcg": [names[each] for each in row],
        "memcg_address": addresses[row],
        "cache": [figures.names[each] for each in cache],
        "objects": objects,
        "bytes": objects * figures.slot_size[cache],
    }


MEMCG_CACHES = TableSpec(
    "memcg_caches",
    "Slab objects by memory cgroup and cache",
    {
        "memcg": _MEMCG,
        "cache": _CACHE,
        "objects": _CHARGED,
        "bytes": _CHARGED_BYTES,
        "memcg_address": _MEMCG_ADDRESS,
    },
    "Objects of one cache that are charged to one memory cgroup.",
    ("bytes", "memcg"),
    detail=True,
    rows=_memcg_caches,
)


def _nodes(figures: Figures) -> dict[str, Any]:
    nodes, census = figures.slab_map.pages.nodes, figures.census
    active = (census.active * figures.object_size[None, :]).sum(axis=1)[nodes]
    size = (census.pages.sum(axis=1) << figures.kernel.memory.page_shift)[nodes]
    return {
        "node": nodes,
        "slabs": census.slabs.sum(axis=1)[nodes],
        "objects_total": census.objects.sum(axis=1)[nodes],
        "objects_active": census.active.sum(axis=1)[nodes],
        "bytes": size,
        "active_bytes": active,
        "utilization": ratios(active, size),
    }


NODES = TableSpec(
    "nodes",
    "NUMA nodes",
    {
        "node": _NODE,
        "slabs": _SLABS,
        "objects_total": _SLOTS,
        "objects_active": _ACTIVE,
        "bytes": _BYTES,
        "active_bytes": Column(BYTES, "in use", ALWAYS, _ACTIVE_BYTES.help),
        "utilization": _UTILIZATION,
    },
    "A NUMA node.",
    rows=_nodes,
)


def _cache_nodes(figures: Figures) -> pd.DataFrame:
    census = figures.census
    node, cache = np.nonzero(census.slabs)
    counts = pd.DataFrame(
        {
            "cache": figures.slab_census.roots[cache],
            "node": node,
            "slabs": census.slabs[node, cache],
            "objects_total": census.objects[node, cache],
            "objects_active": census.active[node, cache],
            "bytes": census.pages[node, cache] << figures.kernel.memory.page_shift,
        }
    )
    sums = counts.groupby(["cache", "node"], as_index=False).sum()
    sums["cache"] = [figures.names[root] for root in sums["cache"]]
    return sums.sort_values(["cache", "node"], ignore_index=True)


CACHE_NODES = TableSpec(
    "cache_nodes",
    "Slab caches by NUMA node",
    {
        "cache": _CACHE,
        "node": _NODE,
        "slabs": _SLABS,
        "objects_total": _SLOTS,
        "objects_active": _ACTIVE,
        "bytes": _BYTES,
    },
    "The slabs of one cache on one NUMA node.",
    detail=True,
    rows=_cache_nodes,
)

FILLS = TableSpec(
    "fill",
    "Fill of slabs",
    {
        "fill": Column(
            TEXT, "slots in use", ALWAYS, "Share of a slab's slots in use.", lambda slabs: FILL
        ),
        "slabs": Column(COUNT, "slabs", ALWAYS, "Slabs with this fill.", np.asarray),
        "share": Column(
            RATIO, "share", ALWAYS, "Share of all slabs.", lambda slabs: ratios(slabs, slabs.sum())
        ),
    },
    "Slabs of all caches with the same fill.",
    rows=lambda figures: figures.census.fill.sum(axis=0),
)


def _kmalloc(figures: Figures) -> dict[str, Any]:
    counts = figures.kmalloc.objects
    attributed = [figures.by_root(column) for column in counts.T]
    rest = np.maximum(figures.active - sum(attributed), 0) * figures.is_kmalloc
    objects = np.stack([*attributed, rest], axis=1)
    cache, user = np.nonzero(objects)
    names = [*figures.kmalloc.users, NOT_ATTRIBUTED]
    count = objects[cache, user]
    return {
        "cache": [figures.names[id_] for id_ in cache],
        "user": [names[each] for each in user],
        "objects": count,
        "bytes": count * figures.slot_size[cache],
        "share": ratios(count, figures.active[cache]),
    }


KMALLOC = TableSpec(
    "kmalloc",
    "Objects of kmalloc()",
    {
        "cache": _CACHE,
        "user": Column(TEXT, "user", ALWAYS, f"Kind of objects; {NOT_ATTRIBUTED}: unknown."),
        "objects": Column(COUNT, "objects", ALWAYS, "Objects of the user in the cache."),
        "bytes": Column(BYTES, "bytes", ALWAYS, "Slots of the objects."),
        "share": Column(
            RATIO, "of cache", ALWAYS, "Share of the objects allocated from the cache."
        ),
    },
    "Objects of one user in one slab cache of kmalloc(); no object is counted twice.",
    ("bytes", "cache", "user"),
    key=("cache", "user"),
    series=("bytes", "objects"),
    rows=_kmalloc,
)

TABLES = (CACHES, WASTE, FILLS, NODES, MEMCGS, KMALLOC, MEMCG_CACHES, CACHE_NODES)

CHARTS = (
    ChartSpec(
        "caches",
        "caches",
        "Largest slab caches",
        ("active_bytes", "free_bytes", "padding_bytes", "tail_bytes"),
        "cache",
    ),
    ChartSpec(
        "waste",
        "waste",
        "Waste by cache",
        ("free_bytes", "padding_bytes", "tail_bytes"),
        "cache",
        first_color=1,
    ),
    ChartSpec(
        "fill", "fill", "Slabs by share of slots in use", ("slabs",), "fill", is_ordered=True
    ),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield all slab pages; the caller subtracts the amounts of other analyses."""
    yield RamUse("slabs", result.amount("slab_bytes"), in_slabs=True, is_total=True)
