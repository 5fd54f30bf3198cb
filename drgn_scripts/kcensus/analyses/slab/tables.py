# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of a census of slabs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kcensus.analyses.slab.census import FILL
from kcensus.analyses.slab.figures import NO_MEMCG, UNKNOWN_MEMCG, Figures, ratios
from kcensus.engine.slub.slabs import SlabCache
from kcensus.results import Column, Table, Unit


def cache_table(figures: Figures) -> Table:
    """Every cache, largest first."""
    roots = np.unique(figures.slab_census.roots)
    chosen: list[SlabCache] = [figures.caches[root] for root in roots]
    totals, active, bytes_ = figures.totals, figures.active_bytes[roots], figures.bytes[roots]
    vectors = figures.census.vector_bytes + figures.census.vector_bytes_inside
    aliases = _aliases(figures)
    also = [", ".join(sorted(aliases.get(cache.name, []))) for cache in chosen]
    fill = {
        f"fill_{number}": (
            totals.fill[roots, number],
            Column(Unit.COUNT, f"slabs {name}", 2),
        )
        for number, name in enumerate(FILL)
    }
    return Table.of(
        "Slab caches",
        {
            "cache": ([cache.name for cache in chosen], Column(Unit.TEXT, "cache", 0)),
            "aliases": (also, Column(Unit.TEXT, "also", 2)),
            "object_size": (figures.object_size[roots], Column(Unit.BYTES, "object")),
            "slot_size": (figures.slot_size[roots], Column(Unit.BYTES, "slot", 2)),
            "objects_per_slab": (
                [cache.objects_per_slab for cache in chosen],
                Column(Unit.COUNT, "per slab", 2),
            ),
            "order": ([cache.order for cache in chosen], Column(Unit.NONE, "order", 2)),
            "slabs": (totals.slabs[roots], Column(Unit.COUNT, "slabs")),
            "objects_total": (totals.objects[roots], Column(Unit.COUNT, "slots")),
            "objects_active": (totals.active[roots], Column(Unit.COUNT, "active", 0)),
            "bytes": (bytes_, Column(Unit.BYTES, "bytes", 0)),
            "active_bytes": (active, Column(Unit.BYTES, "in use")),
            "utilization": (ratios(active, bytes_), Column(Unit.RATIO, "util", 0)),
            "free_bytes": (figures.free_bytes[roots], Column(Unit.BYTES, "free slots", 2)),
            "padding_bytes": (figures.padding_bytes[roots], Column(Unit.BYTES, "padding", 2)),
            "tail_bytes": (figures.tail_bytes[roots], Column(Unit.BYTES, "tails", 2)),
            "vector_bytes": (
                figures.by_root(vectors)[roots],
                Column(Unit.BYTES, "vectors", 2),
            ),
            "reclaimable": (
                figures.reclaimable[roots],
                Column(Unit.NONE, "reclaimable", 2),
            ),
        }
        | fill,
    ).largest_first("bytes", "cache")


def _aliases(figures: Figures) -> dict[str, list[str]]:
    """Other names of merged caches, by the name that survived."""
    names: dict[str, list[str]] = {}
    for alias, name in figures.slab_map.aliases.items():
        # The kernel's own link for a merged cache (":0000192") is no name that anyone gave.
        if not alias.startswith(":"):
            names.setdefault(name, []).append(alias)
    return names


def waste_table(caches: pd.DataFrame) -> Table:
    """Where the bytes are that hold no object, largest first.

    :param caches: frame of :func:`cache_table`
    """
    waste = (caches["bytes"] - caches["active_bytes"]).to_numpy(np.int64)
    share = ratios(waste, np.full(len(waste), waste.sum()))
    return Table.of(
        "Top waste",
        {
            "cache": (caches["cache"], Column(Unit.TEXT, "cache", 0)),
            "waste_bytes": (waste, Column(Unit.BYTES, "waste", 0)),
            "share": (share, Column(Unit.RATIO, "of all waste", 0)),
            "utilization": (caches["utilization"], Column(Unit.RATIO, "util")),
            "free_bytes": (caches["free_bytes"], Column(Unit.BYTES, "free slots")),
            "padding_bytes": (caches["padding_bytes"], Column(Unit.BYTES, "padding")),
            "tail_bytes": (caches["tail_bytes"], Column(Unit.BYTES, "tails")),
        },
    ).largest_first("waste_bytes", "cache")


def memcg_table(figures: Figures) -> Table:
    """What each memory cgroup holds; what is charged to none has a row of its own."""
    paths = figures.groups.path
    objects = np.bincount(figures.owners["row"] + 1, figures.owners["objects"], len(paths) + 1)
    charged_bytes = figures.owners["objects"] * figures.slot_size[figures.owners["cache"]]
    bytes_ = np.bincount(figures.owners["row"] + 1, charged_bytes, len(paths) + 1)
    uncharged = figures.uncharged
    names, states = [*paths], [_state(alive) for alive in figures.groups.alive]
    counts, sizes = [*objects[1:]], [*bytes_[1:]]
    if objects[0]:
        names.append(UNKNOWN_MEMCG)
        states.append("unknown")
        counts.append(objects[0])
        sizes.append(bytes_[0])
    names.append(NO_MEMCG)
    states.append("none")
    counts.append(uncharged.sum())
    sizes.append((uncharged * figures.slot_size).sum())
    return Table.of(
        "Slab objects by memory cgroup",
        {
            "memcg": (names, Column(Unit.TEXT, "memory cgroup", 0)),
            "state": (states, Column(Unit.TEXT, "state", 0)),
            "objects": (np.array(counts, np.int64), Column(Unit.COUNT, "objects", 0)),
            "bytes": (np.array(sizes, np.int64), Column(Unit.BYTES, "bytes", 0)),
        },
    ).largest_first("bytes", "memcg")


def memcg_cache_table(figures: Figures) -> Table:
    """The same by cache."""
    names = [*figures.groups.path, UNKNOWN_MEMCG]
    cache = figures.owners["cache"].to_numpy(np.int64)
    objects = figures.owners["objects"].to_numpy(np.int64)
    return Table.of(
        "Slab objects by memory cgroup and cache",
        {
            "memcg": (
                [names[at] for at in figures.owners["row"]],
                Column(Unit.TEXT, "memory cgroup", 0),
            ),
            "cache": ([figures.caches[at].name for at in cache], Column(Unit.TEXT, "cache", 0)),
            "objects": (objects, Column(Unit.COUNT, "objects", 0)),
            "bytes": (objects * figures.slot_size[cache], Column(Unit.BYTES, "bytes", 0)),
        },
        detail=True,
    ).largest_first("bytes", "memcg")


def node_table(figures: Figures) -> Table:
    """What is on each NUMA node."""
    nodes, census = figures.slab_map.pages.nodes, figures.census
    active = (census.active * figures.object_size[None, :]).sum(axis=1)[nodes]
    bytes_ = (census.pages.sum(axis=1) << figures.memory.page_shift)[nodes]
    return Table.of(
        "NUMA nodes",
        {
            "node": (nodes, Column(Unit.NONE, "node", 0)),
            "slabs": (census.slabs.sum(axis=1)[nodes], Column(Unit.COUNT, "slabs")),
            "objects_total": (census.objects.sum(axis=1)[nodes], Column(Unit.COUNT, "slots")),
            "objects_active": (
                census.active.sum(axis=1)[nodes],
                Column(Unit.COUNT, "active", 0),
            ),
            "bytes": (bytes_, Column(Unit.BYTES, "bytes", 0)),
            "active_bytes": (active, Column(Unit.BYTES, "in use", 0)),
            "utilization": (ratios(active, bytes_), Column(Unit.RATIO, "util", 0)),
        },
    )


def cache_node_table(figures: Figures) -> Table:
    """The same by cache."""
    census, roots = figures.census, figures.slab_census.roots
    node, cache = np.nonzero(census.slabs)
    counts = pd.DataFrame(
        {
            "cache": roots[cache],
            "node": node,
            "slabs": census.slabs[node, cache],
            "objects_total": census.objects[node, cache],
            "objects_active": census.active[node, cache],
            "bytes": census.pages[node, cache] << figures.memory.page_shift,
        }
    )
    columns = {
        "cache": Column(Unit.TEXT, "cache", 0),
        "node": Column(Unit.NONE, "node", 0),
        "slabs": Column(Unit.COUNT, "slabs"),
        "objects_total": Column(Unit.COUNT, "slots"),
        "objects_active": Column(Unit.COUNT, "active", 0),
        "bytes": Column(Unit.BYTES, "bytes", 0),
    }
    frame = counts.groupby(["cache", "node"], as_index=False).sum()
    frame["cache"] = [figures.caches[root].name for root in frame["cache"]]
    frame = frame.sort_values(["cache", "node"], ignore_index=True)
    return Table(frame, columns, "Slab caches by NUMA node", detail=True)


def fill_table(figures: Figures) -> Table:
    """How many slabs are how full."""
    slabs = figures.census.fill.sum(axis=0)
    share = ratios(slabs, np.full(len(FILL), slabs.sum()))
    return Table.of(
        "How full slabs are",
        {
            "fill": (list(FILL), Column(Unit.TEXT, "slots in use", 0)),
            "slabs": (slabs, Column(Unit.COUNT, "slabs", 0)),
            "share": (share, Column(Unit.RATIO, "share", 0)),
        },
    )


def _state(alive: bool) -> str:
    return "alive" if alive else "dying"
