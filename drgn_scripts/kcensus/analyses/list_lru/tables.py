# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of list_lrus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.model import Cost
from kcensus.analyses.list_lru.slots import EMPTY, UNUSED
from kcensus.charts import ChartSpec, RamUse
from kcensus.kernel.memcg.memcgs import newer_states
from kcensus.kernel.vfs.list_lru import DENTRY, INODE, KINDS
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
)

NO_MEMCG = "(no online memory cgroup)"
"""Row of slots with an unused id, and of items on list_lrus without per-memcg lists."""

_OWNER = Column(TEXT, "owner", ALWAYS, "File system type, or name of the variable or member.")
_KIND = Column(TEXT, "of", ALWAYS, "Kind of items: dentry, inode or other.")
_MOUNT = Column(TEXT, "mounted on", ALWAYS, "A mount point of the super block.")
_ITEMS = Column(COUNT, "items", ALWAYS, "Items on all lists, per memcg or not.")
_DENTRIES = Column(COUNT, "unused dentries", help="Dentries on the LRU.")
_INODES = Column(COUNT, "unused inodes", help="Inodes on the LRU.")
_SLOTS = Column(
    COUNT, "slots", help="Per-memcg lists; up to 5.17 one per id and node, 5.18+ one per memcg."
)
_BYTES = Column(BYTES, "bytes", ALWAYS, "All structures, as the allocator rounds them.")
_NODE_ARRAYS = "Array of list_lru_node of a list_lru."
_LISTS = "list_lru_one (up to 5.17) or list_lru_memcg."
_MAPS = "Bitmaps of shrinkers (shrinker_info)."
_WASTE = {
    "bytes": _BYTES,
    "dead_bytes": Column(
        BYTES, "unused ids", ALWAYS, "Lists of ids that no online memory cgroup uses."
    ),
    "empty_bytes": Column(BYTES, "empty", help="Empty lists of online memory cgroups."),
}
_STATES = {
    "slots": _SLOTS,
    "dead_slots": Column(
        COUNT, "unused ids", DATA, "Slots of ids that no online memory cgroup uses."
    ),
    "empty_slots": Column(COUNT, "empty slots", DATA, "Empty slots of online memory cgroups."),
}


def _lrus(figures: Figures) -> pd.DataFrame:
    lrus, slots, blocks = figures.lrus, figures.slots, figures.blocks
    rows = lrus.super_block.tolist()
    return pd.DataFrame(
        {
            "owner": lrus.owner,
            "kind": [KINDS[kind] for kind in lrus.kind],
            "id": [blocks.id[row] if row >= 0 else "" for row in rows],
            "mount": [blocks.mount[row] if row >= 0 else "" for row in rows],
            "memcg_aware": lrus.aware,
            "nodes": np.full(*lrus.items.shape),
            "items": figures.items,
            "root_items": lrus.root_items.sum(axis=1),
            "memcg_items": slots.items,
            "slots": slots.slots.sum(axis=1),
            "dead_slots": slots.slots[:, UNUSED],
            "empty_slots": slots.slots[:, EMPTY],
            "node_array_bytes": figures.node_bytes,
            "pointer_bytes": figures.pointer_bytes,
            "xa_nodes": slots.xa_nodes,
            "xa_node_bytes": slots.xa_node_bytes,
            "list_bytes": slots.bytes.sum(axis=1),
            "bytes": figures.bytes,
            "dead_bytes": slots.bytes[:, UNUSED],
            "empty_bytes": slots.bytes[:, EMPTY],
            "address": lrus.address,
        }
    )


LRUS = TableSpec(
    "lrus",
    "list_lrus",
    {
        "owner": _OWNER,
        "kind": _KIND,
        "id": Column(TEXT, "super block", help="super_block.s_id; empty for others."),
        "mount": _MOUNT,
        "memcg_aware": Column(NONE, "memcg-aware", DATA, "Whether there are per-memcg lists."),
        "nodes": Column(COUNT, "nodes", DATA, "Elements of the array of list_lru_node."),
        "items": _ITEMS,
        "root_items": Column(COUNT, "root items", DATA, "Items on the lists of list_lru_node."),
        "memcg_items": Column(COUNT, "memcg items", DATA, "Items on per-memcg lists."),
        **_STATES,
        "node_array_bytes": Column(BYTES, "node arrays", DATA, _NODE_ARRAYS),
        "pointer_bytes": Column(
            BYTES, "pointer arrays", DATA, "Arrays of pointers to lists (up to 5.17)."
        ),
        "xa_nodes": Column(COUNT, "xa_nodes", DATA, "Nodes of the XArray (5.18+)."),
        "xa_node_bytes": Column(BYTES, "xa_node bytes", DATA, "Slots of the xa_nodes."),
        "list_bytes": Column(BYTES, "lists", DATA, _LISTS),
        **_WASTE,
        "address": address("struct list_lru"),
    },
    "A list_lru.",
    ("bytes", "owner", "id", "kind", "mount", "address"),
    rows=_lrus,
)

OWNERS = TableSpec(
    "owners",
    "Owners of list_lrus",
    {
        "owner": _OWNER,
        "kind": _KIND,
        "lrus": Column(COUNT, "list_lrus", help="list_lrus of this owner and kind."),
        "items": _ITEMS,
        **_STATES,
        **_WASTE,
    },
    "All list_lrus of one owner and kind.",
    ("bytes", "owner", "kind"),
    key=("owner", "kind"),
    series=("bytes", "items"),
    rows=lambda figures: (
        _lrus(figures)
        .assign(lrus=1)
        .groupby(["owner", "kind"], as_index=False)
        .sum(numeric_only=True)
    ),
)


def _super_blocks(figures: Figures) -> pd.DataFrame:
    lrus, blocks = _lrus(figures), figures.blocks
    lrus["dentries"] = lrus["items"] * (lrus["kind"] == DENTRY)
    lrus["inodes"] = lrus["items"] * (lrus["kind"] == INODE)
    sums = lrus.groupby(figures.lrus.super_block)[["dentries", "inodes", *_STATES, *_WASTE]].sum()
    return sums.reindex(range(len(blocks)), fill_value=0).assign(
        type=blocks.type,
        id=blocks.id,
        mount=blocks.mount,
        state=[state.value for state in blocks.state],
        address=blocks.address,
    )


SUPER_BLOCKS = TableSpec(
    "super_blocks",
    "Super blocks",
    {
        "type": Column(TEXT, "type", ALWAYS, "File system type."),
        "id": Column(TEXT, "id", help="super_block.s_id, usually the device."),
        "mount": _MOUNT,
        "state": Column(TEXT, "state", DATA, "State of the mounts of the super block."),
        "dentries": _DENTRIES,
        "inodes": _INODES,
        **_STATES,
        **_WASTE,
        "address": address("struct super_block"),
    },
    "A super block, with its list_lrus of dentries, inodes and XFS together.",
    ("bytes", "type", "id", "mount", "address"),
    key=("type", "mount"),
    series=("bytes",),
    rows=_super_blocks,
)


def _memcgs(figures: Figures) -> dict[str, Any]:
    groups, slots = figures.groups, figures.slots
    dentries, inodes, other_items = figures.items_by_group
    lists, maps = figures.by_group(slots.bytes_by_id), np.append(figures.shrinker_maps.bytes, 0)
    return {
        "memcg": [*groups.path, NO_MEMCG],
        "state": [*np.where(groups.online, "online", "offline").tolist(), "none"],
        "id": np.append(np.where(groups.has_id, groups.kmemcg_id, -1), -1),
        "newer": np.append(newer_states(figures.kernel), 0),
        "dentries": dentries,
        "inodes": inodes,
        "other_items": other_items,
        "slots": figures.by_group(slots.slots_by_id),
        "list_bytes": lists,
        "shrinker_map_bytes": maps,
        "bytes": lists + maps,
        "address": np.append(groups.address, np.uint64(0)),
    }


MEMCGS = TableSpec(
    "memcgs",
    "Memory cgroups",
    {
        "memcg": Column(TEXT, "memory cgroup", ALWAYS, "Path of the memory cgroup."),
        "state": Column(
            TEXT, "state", ALWAYS, "online; offline (dying): removed but still pinned."
        ),
        "id": Column(NONE, "id", DATA, "kmemcg_id; -1 without one."),
        "newer": Column(
            COUNT,
            "created since",
            DATA,
            "Controller states (css) of all controllers and cgroups, created later.",
        ),
        "dentries": _DENTRIES,
        "inodes": _INODES,
        "other_items": Column(COUNT, "other items", help="Items of other list_lrus."),
        "slots": _SLOTS,
        "list_bytes": Column(BYTES, "lists", DATA, _LISTS),
        "shrinker_map_bytes": Column(BYTES, "shrinker maps", DATA, _MAPS),
        "bytes": Column(BYTES, "bytes", ALWAYS, "Lists and shrinker maps."),
        "address": address("struct mem_cgroup", help_="Address of mem_cgroup; 0 without one."),
    },
    f"A memory cgroup; {NO_MEMCG}: unused ids, and items on no per-memcg list.",
    ("bytes", "memcg", "state", "newer", "id"),
    key=("memcg",),
    series=("bytes",),
    rows=_memcgs,
)


def _structures(figures: Figures) -> pd.DataFrame:
    rows = figures.tally.frame(figures.footprint)
    active = np.append(figures.use.active, 0)[np.maximum(rows["number"], -1)]
    return rows.assign(active=active, share=rows["objects"] / np.where(active, active, np.nan))


STRUCTURES = TableSpec(
    "structures",
    "Structures",
    {
        "kind": Column(TEXT, "structure", ALWAYS, "Kind of structure."),
        "place": Column(
            TEXT, "allocated from", ALWAYS, "Slab cache, or pages, vmalloc or unknown."
        ),
        "objects": Column(COUNT, "allocations", ALWAYS, "Allocations of this kind."),
        "bytes": _BYTES,
        "active": Column(COUNT, "objects of cache", help="Allocated objects of the cache."),
        "share": Column(RATIO, "share of cache", help="Share of the cache's objects."),
    },
    "Structures of one kind, allocated from one slab cache or from pages.",
    ("bytes", "kind", "place"),
    key=("kind", "place"),
    series=("bytes", "objects"),
    rows=_structures,
)


class Projected(NamedTuple):
    """A row of the projection: cost, stage, source, and bytes saved over the first row."""

    cost: Cost
    stage: str
    source: str
    patch: str
    saved: int


def projected(costs: Iterable[Cost], measured: Cost | None = None) -> list[Projected]:
    """Return the measured cost, then the cost of each stage in order."""
    rows = [(each, each.stage.how, each.stage.source, each.stage.patch) for each in costs]
    if measured is not None:
        rows.insert(0, (measured, f"now: {measured.stage.how}", "measured", ""))
    return [Projected(*row, rows[0][0].total - row[0].total) for row in rows]


PROJECTION = TableSpec(
    "projection",
    "Projection",
    {
        "stage": Column(TEXT, "stage", ALWAYS, "Allocation of per-memcg lists."),
        "source": Column(
            TEXT, "source", ALWAYS, "measured, or the patch of the series (v3, 2021)."
        ),
        "patch": Column(TEXT, "patch", DATA, "Identifier in the patch catalogue."),
        "node_array_bytes": Column(BYTES, "node arrays", DATA, _NODE_ARRAYS, "cost.node_arrays"),
        "pointer_bytes": Column(
            BYTES, "pointers", help="Arrays of pointers, or nodes of XArrays.", get="cost.pointers"
        ),
        "list_bytes": Column(BYTES, "lists", help=_LISTS, get="cost.lists"),
        "shrinker_map_bytes": Column(BYTES, "shrinker maps", help=_MAPS, get="cost.maps"),
        "bytes": replace(_BYTES, get="cost.total"),
        "saved_bytes": Column(BYTES, "saved", ALWAYS, "First row minus this row.", "saved"),
    },
    "A stage of the patch series merged in 5.18, with the same mounts and memory cgroups.",
    rows=lambda figures: projected(figures.costs.values(), figures.measured),
)

CENSUS = (OWNERS, SUPER_BLOCKS, LRUS, MEMCGS, STRUCTURES, PROJECTION)
"""The tables of a kernel."""

LEFT_OUT_TABLE = TableSpec(
    "left_out",
    "Not in the model",
    {"what": Column(TEXT, "what", ALWAYS, "Memory of a real machine.", str)},
    "Memory outside of the model of --what-if.",
)

TABLES = (*CENSUS, LEFT_OUT_TABLE)

_OUTSIDE = ("pages", "vmalloc")
"""Places of large structures; any other place is a slab cache, or unknown."""

CHARTS = (
    ChartSpec(
        "projection",
        "projection",
        "Memory by stage of the list_lru series",
        ("node_array_bytes", "pointer_bytes", "list_bytes", "shrinker_map_bytes"),
        "stage",
        is_ordered=True,
    ),
    ChartSpec("owners", "owners", "Memory by owner of the list_lrus", ("bytes",), "owner"),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield the structures of list_lrus, in slabs and outside."""
    if "structures" in result.tables:
        rows = result.tables["structures"].frame
        outside = rows["place"].isin(_OUTSIDE)
        inside = ~outside & (rows["place"] != "unknown")
        yield RamUse("list_lrus", int(rows["bytes"][inside].sum()), in_slabs=True)
        yield RamUse("list_lrus", int(rows["bytes"][outside].sum()), in_slabs=False)
