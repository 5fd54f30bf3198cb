# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of slabs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.slab.census import FILL
from kcensus.analyses.slab.figures import NO_MEMCG, NOT_ATTRIBUTED, UNKNOWN_MEMCG, Figures
from kcensus.charts import ChartSpec, RamUse
from kcensus.engine.memory import Numbers
from kcensus.results import Result
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    NONE,
    RATIO,
    TEXT,
    WIDE,
    Column,
    TableSpec,
    address,
    ratios,
)

_CACHE = Column(TEXT, "cache", ALWAYS, "Name of the slab cache.", "names")
_MEMCG = Column(TEXT, "memory cgroup", ALWAYS, "Path of the memory cgroup.")
_NODE = Column(NONE, "node", ALWAYS, "Number of the NUMA node.")
_SLABS = Column(COUNT, "slabs", WIDE, "Slabs.")
_SLOTS = Column(COUNT, "slots", WIDE, "Slots of all slabs, allocated or free.", "objects")
_ACTIVE = Column(COUNT, "active", ALWAYS,
    "Allocated objects; free ones of CPUs and sheaves are not counted.", "active")  # fmt: skip
_BYTES = Column(BYTES, "bytes", ALWAYS, "Slab pages.")
_ACTIVE_BYTES = Column(BYTES, "in use", WIDE, "Allocated objects, at requested size.")
_UTILIZATION = Column(RATIO, "util", ALWAYS, "Share of allocated objects in slab pages.")
_FREE = Column(BYTES, "free slots", DATA, "Slots that hold no object.")
_PADDING = Column(BYTES, "padding", DATA, "Slot sizes minus object sizes.")
_TAILS = Column(BYTES, "tails", DATA, "Ends of slabs, too small for a slot.")
_CHARGED = Column(COUNT, "objects", ALWAYS, "Objects charged to the memory cgroup.")
_CHARGED_BYTES = Column(BYTES, "bytes", ALWAYS, "Slots of the objects.")
_MEMCG_ADDRESS = address("struct mem_cgroup",
    help_="Address of mem_cgroup; 0 without one.")  # fmt: skip
_ADDRESS = address("struct kmem_cache", get=lambda f: [cache.address for cache in f.caches])


def _fill(number: int, name: str) -> Column:
    what = f"with {name} of their slots in use" if "%" in name else f"that are {name}"
    return Column(COUNT, f"slabs {name}", DATA, f"Slabs {what}.", lambda f: f.fill[:, number])


CACHES = TableSpec("caches", "Slab caches", {
    "cache": _CACHE,
    "aliases": Column(TEXT, "also", DATA, "Names of caches merged into this cache.",
        lambda f: [", ".join(f.sharers.get(name, [])) for name in f.names]),
    "users": Column(COUNT, "", DATA, "Users, with those of merged caches (kmem_cache.refcount).",
        lambda f: [max(cache.refcount, 1) for cache in f.caches]),
    "object_size": Column(BYTES, "object", help="Requested size of an object."),
    "slot_size": Column(BYTES, "slot", DATA, "Size of a slot."),
    "objects_per_slab": Column(COUNT, "per slab", DATA, "Slots of a slab as normally allocated."),
    "order": Column(NONE, "", DATA, "A slab as normally allocated has 2^order pages."),
    "slabs": _SLABS,
    "objects_total": _SLOTS,
    "objects_active": _ACTIVE,
    "bytes": _BYTES,
    "active_bytes": _ACTIVE_BYTES,
    "utilization": _UTILIZATION,
    "free_bytes": _FREE,
    "padding_bytes": _PADDING,
    "tail_bytes": _TAILS,
    "empty_bytes": Column(BYTES, "empty slabs", DATA, "Slabs that hold no allocated object.",
        lambda f: f.by_root(f.empty_bytes)),
    "vector_bytes": Column(BYTES, "vectors", DATA,
        "obj_cgroup vectors, which map objects to memory cgroups."),
    "reclaimable": Column(NONE, "", DATA, "Whether the pages count as SReclaimable."),
    **{f"fill_{number}": _fill(number, name) for number, name in enumerate(FILL)},
    "address": _ADDRESS,
}, "A slab cache; child caches of memory cgroups (up to 5.8) are counted with their root.",
    ("bytes", "cache"), key=("cache",), series=("bytes", "active_bytes", "active"),
    keep="roots")  # fmt: skip

WASTE = TableSpec("waste", "Top waste", {
    "cache": _CACHE,
    "waste_bytes": Column(BYTES, "waste", ALWAYS, "Bytes without an allocated object."),
    "share": Column(RATIO, "of all waste", ALWAYS, "Share of the waste of all caches.",
        lambda f: ratios(f.waste_bytes, f.waste_bytes.sum())),
    "utilization": Column(RATIO, "util", help=_UTILIZATION.help),
    "free_bytes": Column(BYTES, "free slots", help=_FREE.help),
    "padding_bytes": Column(BYTES, "padding", help=_PADDING.help),
    "tail_bytes": Column(BYTES, "tails", help=_TAILS.help),
    "address": _ADDRESS,
}, "A slab cache, by its bytes without an object.", ("waste_bytes", "cache"),
    keep="roots")  # fmt: skip


def _by_memcg(figures: Figures, size: Numbers) -> Numbers:
    """Add up charged objects: of unknown memory cgroups, of each known one, and of none.

    :param size: of an object, by cache
    """
    owners, count = figures.owners, len(figures.groups) + 1
    sums = np.bincount(owners["row"] + 1, owners["objects"] * size[owners["cache"]], count)
    return np.append(sums, (figures.uncharged * size).sum()).astype(np.int64)


def _counted(figures: Figures) -> Numbers:
    return _by_memcg(figures, np.ones_like(figures.slot_size))


MEMCGS = TableSpec("memcgs", "Slab objects by memory cgroup", {
    "memcg": replace(_MEMCG, get=lambda f: [UNKNOWN_MEMCG, *f.groups.path, NO_MEMCG]),
    "state": Column(TEXT, "", ALWAYS, "online; offline (dying): removed but still charged.",
        lambda f: ["unknown", *f.groups.states, "none"]),
    "objects": replace(_CHARGED, get=_counted),
    "bytes": replace(_CHARGED_BYTES, get=lambda f: _by_memcg(f, f.slot_size)),
    "address": replace(_MEMCG_ADDRESS, get=lambda f: np.pad(f.groups.address, 1)),
}, f"A memory cgroup; {NO_MEMCG}: objects charged to none.", ("bytes", "memcg"), key=("memcg",),
    series=("bytes", "objects"),
    keep=lambda f: np.arange(int(not _counted(f)[0]), len(f.groups) + 2))  # fmt: skip


def _named(names: Sequence[str], rows: Iterable[int]) -> list[str]:
    return [names[row] for row in rows]


MEMCG_CACHES = TableSpec("memcg_caches", "Slab objects by memory cgroup and cache", {
    "memcg": replace(_MEMCG,
        get=lambda f: _named([*f.groups.path, UNKNOWN_MEMCG], f.owners["row"])),
    "cache": replace(_CACHE, get=lambda f: _named(f.names, f.owners["cache"])),
    "objects": replace(_CHARGED, get="owners.objects"),
    "bytes": replace(_CHARGED_BYTES,
        get=lambda f: f.owners["objects"] * f.slot_size[f.owners["cache"]]),
    "memcg_address": replace(_MEMCG_ADDRESS,
        get=lambda f: np.append(f.groups.address, np.uint64(0))[f.owners["row"]]),
}, "Objects of one cache that are charged to one memory cgroup.", ("bytes", "memcg"),
    detail=True)  # fmt: skip

NODES = TableSpec("nodes", "NUMA nodes", {
    "node": replace(_NODE, get="slab_map.pages.nodes"),
    "slabs": replace(_SLABS, get=lambda f: f.by_node(f.census.slabs)),
    "objects_total": replace(_SLOTS, get=lambda f: f.by_node(f.census.objects)),
    "objects_active": replace(_ACTIVE, get=lambda f: f.by_node(f.census.active)),
    "bytes": replace(_BYTES, get="node_bytes"),
    "active_bytes": Column(BYTES, "in use", ALWAYS, _ACTIVE_BYTES.help, "node_active_bytes"),
    "utilization": replace(_UTILIZATION, get=lambda f: ratios(f.node_active_bytes, f.node_bytes)),
}, "A NUMA node.")  # fmt: skip


def _cache_nodes(figures: Figures) -> Any:
    census, roots = figures.census, figures.slab_census.roots
    node, cache = np.nonzero(census.slabs)
    counts = {
        "names": _named(figures.names, roots[cache]),
        "node": node,
        "root": roots[cache],
        "slabs": census.slabs[node, cache],
        "objects": census.objects[node, cache],
        "active": census.active[node, cache],
        "bytes": census.pages[node, cache] << figures.kernel.memory.page_shift,
    }
    return pd.DataFrame(counts).groupby(["names", "node", "root"])


CACHE_NODES = TableSpec("cache_nodes", "Slab caches by NUMA node", {
    "cache": _CACHE,
    "node": _NODE,
    "slabs": _SLABS,
    "objects_total": _SLOTS,
    "objects_active": _ACTIVE,
    "bytes": _BYTES,
}, "The slabs of one cache on one NUMA node.", detail=True, rows=_cache_nodes)  # fmt: skip

FILLS = TableSpec("fill", "Fill of slabs", {
    "fill": Column(TEXT, "slots in use", ALWAYS, "Share of a slab's slots in use.", lambda f: FILL),
    "slabs": Column(COUNT, "", ALWAYS, "Slabs with this fill.", np.asarray),
    "share": Column(RATIO, "", ALWAYS, "Share of all slabs.",
        lambda slabs: ratios(slabs, slabs.sum())),
}, "Slabs of all caches with the same fill.",
    rows=lambda figures: figures.census.fill.sum(axis=0))  # fmt: skip


@dataclass(frozen=True)
class _Kmalloc:
    """Objects of kmalloc() by cache and user."""

    figures: Figures
    cache: Numbers
    user: Numbers
    objects: Numbers


def _kmalloc(figures: Figures) -> _Kmalloc:
    attributed = [figures.by_root(column) for column in figures.kmalloc.objects.T]
    rest = np.maximum(figures.active - sum(attributed), 0) * figures.is_kmalloc
    objects = np.stack([*attributed, rest], axis=1)
    cache, user = np.nonzero(objects)
    return _Kmalloc(figures, cache, user, objects[cache, user])


KMALLOC = TableSpec("kmalloc", "Objects of kmalloc()", {
    "cache": replace(_CACHE, get=lambda rows: _named(rows.figures.names, rows.cache)),
    "user": Column(TEXT, "", ALWAYS, f"Kind of objects; {NOT_ATTRIBUTED}: unknown.",
        lambda rows: _named([*rows.figures.kmalloc.users, NOT_ATTRIBUTED], rows.user)),
    "objects": Column(COUNT, "", ALWAYS, "Objects of the user in the cache."),
    "bytes": Column(BYTES, "", ALWAYS, "Slots of the objects.",
        lambda rows: rows.objects * rows.figures.slot_size[rows.cache]),
    "share": Column(RATIO, "of cache", ALWAYS, "Share of the objects allocated from the cache.",
        lambda rows: ratios(rows.objects, rows.figures.active[rows.cache])),
}, "Objects of one user in one slab cache of kmalloc(); no object is counted twice.",
    ("bytes", "cache", "user"), key=("cache", "user"), series=("bytes", "objects"),
    rows=_kmalloc)  # fmt: skip

TABLES = (CACHES, WASTE, FILLS, NODES, MEMCGS, KMALLOC, MEMCG_CACHES, CACHE_NODES)

CHARTS = (
    ChartSpec(
        "caches",
        "caches",
        "Largest slab caches",
        ("active_bytes", "free_bytes", "padding_bytes", "tail_bytes"),
        "cache",
        sharers="users",
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
