# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of slabs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.slab.census import FILL
from kcensus.analyses.slab.figures import NO_MEMCG, NOT_ATTRIBUTED, UNKNOWN_MEMCG, Figures
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec, ratios

_CACHE = Column(Unit.TEXT, "cache", Show.ALWAYS, "Name of the slab cache.")
_MEMCG = Column(Unit.TEXT, "memory cgroup", Show.ALWAYS, "Path of the memory cgroup.")
_NODE = Column(Unit.NONE, "node", Show.ALWAYS, "Number of the NUMA node.")
_SLABS = Column(Unit.COUNT, "slabs", help="Slabs.")
_SLOTS = Column(Unit.COUNT, "slots", help="Slots of all slabs, allocated or free.")
_ACTIVE = Column(
    Unit.COUNT,
    "active",
    Show.ALWAYS,
    "Allocated objects; free ones of CPUs and sheaves are not counted.",
)
_BYTES = Column(Unit.BYTES, "bytes", Show.ALWAYS, "Slab pages.")
_ACTIVE_BYTES = Column(Unit.BYTES, "in use", help="Allocated objects, at the size asked for.")
_UTILIZATION = Column(
    Unit.RATIO, "util", Show.ALWAYS, "Share of the slab pages that allocated objects fill."
)
_FREE = Column(Unit.BYTES, "free slots", Show.DATA, "Slots that hold no object.")
_PADDING = Column(Unit.BYTES, "padding", Show.DATA, "Slots beyond the objects in them.")
_TAILS = Column(Unit.BYTES, "tails", Show.DATA, "Ends of slabs, too small for a slot.")
_CHARGED = Column(Unit.COUNT, "objects", Show.ALWAYS, "Objects charged to the memory cgroup.")
_CHARGED_BYTES = Column(Unit.BYTES, "bytes", Show.ALWAYS, "Slots of these objects.")


CACHES = TableSpec(
    "caches",
    "Slab caches",
    {
        "cache": _CACHE,
        "aliases": Column(Unit.TEXT, "also", Show.DATA, "Names of caches merged into it."),
        "users": Column(
            Unit.COUNT,
            "users",
            Show.DATA,
            "The cache's own user, and those of caches merged into it (refcount).",
        ),
        "object_size": Column(Unit.BYTES, "object", help="Size that users of the cache asked for."),
        "slot_size": Column(Unit.BYTES, "slot", Show.DATA, "Distance of two objects."),
        "objects_per_slab": Column(
            Unit.COUNT, "per slab", Show.DATA, "Slots of a slab as normally allocated."
        ),
        "order": Column(
            Unit.NONE, "order", Show.DATA, "A slab as normally allocated has 2^order pages."
        ),
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
            Unit.BYTES, "empty slabs", Show.DATA, "Slabs that hold no allocated object."
        ),
        "vector_bytes": Column(
            Unit.BYTES,
            "vectors",
            Show.DATA,
            "obj_cgroup vectors that say which memory cgroup each object is charged to.",
        ),
        "reclaimable": Column(
            Unit.NONE, "reclaimable", Show.DATA, "Whether its pages count as SReclaimable."
        ),
    }
    | {
        f"fill_{number}": Column(
            Unit.COUNT,
            f"slabs {name}",
            Show.DATA,
            f"Slabs with {name} of their slots in use."
            if "%" in name
            else f"Slabs that are {name}.",
        )
        for number, name in enumerate(FILL)
    },
    "A slab cache; child caches of memory cgroups (up to 5.8) are counted with their root.",
    ("bytes", "cache"),
    key=("cache",),
    series=("bytes", "active_bytes", "active"),
)

WASTE = TableSpec(
    "waste",
    "Top waste",
    {
        "cache": _CACHE,
        "waste_bytes": Column(
            Unit.BYTES, "waste", Show.ALWAYS, "Slab pages that hold no allocated object."
        ),
        "share": Column(
            Unit.RATIO, "of all waste", Show.ALWAYS, "Share of the waste of all caches."
        ),
        "utilization": Column(Unit.RATIO, "util", help=_UTILIZATION.help),
        "free_bytes": Column(Unit.BYTES, "free slots", help=_FREE.help),
        "padding_bytes": Column(Unit.BYTES, "padding", help=_PADDING.help),
        "tail_bytes": Column(Unit.BYTES, "tails", help=_TAILS.help),
    },
    "A slab cache, by the bytes of it that hold no object.",
    ("waste_bytes", "cache"),
)

MEMCGS = TableSpec(
    "memcgs",
    "Slab objects by memory cgroup",
    {
        "memcg": _MEMCG,
        "state": Column(
            Unit.TEXT, "state", Show.ALWAYS, "online; offline (dying): removed but still charged."
        ),
        "objects": _CHARGED,
        "bytes": _CHARGED_BYTES,
    },
    f"A memory cgroup; {NO_MEMCG} has the objects that are charged to none.",
    ("bytes", "memcg"),
    key=("memcg",),
    series=("bytes", "objects"),
)

MEMCG_CACHES = TableSpec(
    "memcg_caches",
    "Slab objects by memory cgroup and cache",
    {"memcg": _MEMCG, "cache": _CACHE, "objects": _CHARGED, "bytes": _CHARGED_BYTES},
    "Objects of one cache that are charged to one memory cgroup.",
    ("bytes", "memcg"),
    detail=True,
)

NODES = TableSpec(
    "nodes",
    "NUMA nodes",
    {
        "node": _NODE,
        "slabs": _SLABS,
        "objects_total": _SLOTS,
        "objects_active": _ACTIVE,
        "bytes": _BYTES,
        "active_bytes": Column(Unit.BYTES, "in use", Show.ALWAYS, _ACTIVE_BYTES.help),
        "utilization": _UTILIZATION,
    },
    "A NUMA node.",
)

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
)

FILLS = TableSpec(
    "fill",
    "Fill of slabs",
    {
        "fill": Column(Unit.TEXT, "slots in use", Show.ALWAYS, "Share of a slab's slots in use."),
        "slabs": Column(Unit.COUNT, "slabs", Show.ALWAYS, "Slabs that are that full."),
        "share": Column(Unit.RATIO, "share", Show.ALWAYS, "Share of all slabs."),
    },
    "Slabs of all caches that are equally full.",
)

KMALLOC = TableSpec(
    "kmalloc",
    "What kmalloc() allocated",
    {
        "cache": _CACHE,
        "user": Column(
            Unit.TEXT, "user", Show.ALWAYS, f"What the objects are; {NOT_ATTRIBUTED}: unknown."
        ),
        "objects": Column(Unit.COUNT, "objects", Show.ALWAYS, "Objects of the user in the cache."),
        "bytes": Column(Unit.BYTES, "bytes", Show.ALWAYS, "Slots of these objects."),
        "share": Column(
            Unit.RATIO, "of cache", Show.ALWAYS, "Share of the objects allocated from the cache."
        ),
    },
    "Objects of one user in one slab cache of kmalloc(); no object is counted twice.",
    ("bytes", "cache", "user"),
    key=("cache", "user"),
    series=("bytes", "objects"),
)

TABLES = (CACHES, WASTE, FILLS, NODES, MEMCGS, KMALLOC, MEMCG_CACHES, CACHE_NODES)


def tables(figures: Figures) -> dict[str, Table]:
    """Return all tables by name."""
    caches = _caches(figures)
    rows = {
        "caches": caches,
        "waste": _waste(caches),
        "fill": _fills(figures),
        "nodes": _nodes(figures),
        "memcgs": _memcgs(figures),
        "kmalloc": _kmalloc(figures),
        "memcg_caches": _memcg_caches(figures),
        "cache_nodes": _cache_nodes(figures),
    }
    return {spec.name: spec.of(rows[spec.name]) for spec in TABLES}


def _caches(figures: Figures) -> pd.DataFrame:
    caches = [figures.caches[root] for root in figures.roots]
    by_cache = {
        "object_size": figures.object_size,
        "slot_size": figures.slot_size,
        "objects_per_slab": figures.slab_map.column("objects_per_slab").astype(np.int64),
        "order": figures.slab_map.column("order").astype(np.int64),
        "slabs": figures.slabs,
        "objects_total": figures.objects,
        "objects_active": figures.active,
        "bytes": figures.bytes,
        "active_bytes": figures.active_bytes,
        "utilization": ratios(figures.active_bytes, figures.bytes),
        "free_bytes": figures.free_bytes,
        "padding_bytes": figures.padding_bytes,
        "tail_bytes": figures.tail_bytes,
        "empty_bytes": figures.by_root(figures.empty_bytes),
        "vector_bytes": figures.vector_bytes,
        "reclaimable": figures.reclaimable,
        **{f"fill_{number}": slabs for number, slabs in enumerate(figures.fill.T)},
    }
    return pd.DataFrame(
        {
            "cache": [cache.name for cache in caches],
            "aliases": [", ".join(figures.sharers.get(cache.name, [])) for cache in caches],
            "users": [max(cache.refcount, 1) for cache in caches],
        }
        | {name: values[figures.roots] for name, values in by_cache.items()}
    )


def _waste(caches: pd.DataFrame) -> pd.DataFrame:
    waste = (caches["bytes"] - caches["active_bytes"]).to_numpy(np.int64)
    return caches.assign(waste_bytes=waste, share=ratios(waste, waste.sum()))


def _fills(figures: Figures) -> dict[str, Any]:
    slabs = figures.census.fill.sum(axis=0)
    return {"fill": list(FILL), "slabs": slabs, "share": ratios(slabs, slabs.sum())}


def _memcgs(figures: Figures) -> pd.DataFrame:
    row, objects = figures.owners["row"] + 1, figures.owners["objects"]
    count = len(figures.groups) + 1
    size = objects * figures.slot_size[figures.owners["cache"]]
    charged = pd.DataFrame(
        {
            "memcg": [UNKNOWN_MEMCG, *figures.groups.path],
            "state": ["unknown", *np.where(figures.groups.online, "online", "offline")],
            "objects": np.bincount(row, objects, count).astype(np.int64),
            "bytes": np.bincount(row, size, count).astype(np.int64),
        }
    )
    if not charged["objects"].iloc[0]:
        charged = charged.iloc[1:]
    free = figures.uncharged
    uncharged = {
        "memcg": [NO_MEMCG],
        "state": ["none"],
        "objects": [free.sum()],
        "bytes": [(free * figures.slot_size).sum()],
    }
    return pd.concat([charged, pd.DataFrame(uncharged)], ignore_index=True)


def _memcg_caches(figures: Figures) -> dict[str, Any]:
    names = [*figures.groups.path, UNKNOWN_MEMCG]
    cache = figures.owners["cache"].to_numpy(np.int64)
    objects = figures.owners["objects"].to_numpy(np.int64)
    return {
        "memcg": [names[row] for row in figures.owners["row"]],
        "cache": [figures.caches[id_].name for id_ in cache],
        "objects": objects,
        "bytes": objects * figures.slot_size[cache],
    }


def _kmalloc(figures: Figures) -> dict[str, Any]:
    counts = figures.kmalloc.objects
    attributed = [figures.by_root(column) for column in counts.T]
    rest = np.maximum(figures.active - sum(attributed), 0) * figures.is_kmalloc
    objects = np.stack([*attributed, rest], axis=1)
    cache, user = np.nonzero(objects)
    names = [*figures.kmalloc.users, NOT_ATTRIBUTED]
    count = objects[cache, user]
    return {
        "cache": [figures.caches[id_].name for id_ in cache],
        "user": [names[each] for each in user],
        "objects": count,
        "bytes": count * figures.slot_size[cache],
        "share": ratios(count, figures.active[cache]),
    }


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
    sums["cache"] = [figures.caches[root].name for root in sums["cache"]]
    return sums.sort_values(["cache", "node"], ignore_index=True)
