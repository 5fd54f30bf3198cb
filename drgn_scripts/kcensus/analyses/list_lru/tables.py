# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of list_lrus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.slots import EMPTY, UNUSED
from kcensus.charts import ChartSpec, RamUse
from kcensus.kernel.memcg.memcgs import newer_states
from kcensus.kernel.vfs.list_lru import DENTRY, INODE, KINDS, OTHER
from kcensus.kernel.vfs.super_blocks import SuperBlocks
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
)

NO_MEMCG = "(no online memory cgroup)"
"""Row of slots with an unused id, and of items on list_lrus without per-memcg lists."""

_OWNER = Column(TEXT, "owner", ALWAYS, "File system type, or name of the variable or member.",
    "lrus.owner")  # fmt: skip
_KIND = Column(TEXT, "of", ALWAYS, "Kind of items: dentry, inode or other.",
    lambda f: [KINDS[kind] for kind in f.lrus.kind])  # fmt: skip
_MOUNT = Column(TEXT, "mounted on", ALWAYS, "A mount point of the super block.")
_ITEMS = Column(COUNT, "items", ALWAYS, "Items on all lists, per memcg or not.")
_DENTRIES = Column(COUNT, "unused dentries", WIDE, "Dentries on the LRU.")
_INODES = Column(COUNT, "unused inodes", WIDE, "Inodes on the LRU.")
_SLOTS = Column(COUNT, "slots", WIDE,
    "Per-memcg lists; up to 5.17 one per id and node, 5.18+ one per memcg.",
    lambda f: f.slots.slots.sum(axis=1))  # fmt: skip
_BYTES = Column(BYTES, "bytes", ALWAYS, "All structures, as the allocator rounds them.")
_NODE_ARRAYS = "Array of list_lru_node of a list_lru."
_LISTS = "list_lru_one (up to 5.17) or list_lru_memcg."
_MAPS = "Bitmaps of shrinkers (shrinker_info)."
_WASTE = {
    "bytes": _BYTES,
    "dead_bytes": Column(BYTES, "unused ids", ALWAYS,
        "Lists of ids that no online memory cgroup uses.", lambda f: f.slots.bytes[:, UNUSED]),
    "empty_bytes": Column(BYTES, "empty", WIDE, "Empty lists of online memory cgroups.",
        lambda f: f.slots.bytes[:, EMPTY]),
}  # fmt: skip
_STATES = {
    "slots": _SLOTS,
    "dead_slots": Column(COUNT, "unused ids", DATA,
        "Slots of ids that no online memory cgroup uses.", lambda f: f.slots.slots[:, UNUSED]),
    "empty_slots": Column(COUNT, "", DATA, "Empty slots of online memory cgroups.",
        lambda f: f.slots.slots[:, EMPTY]),
}  # fmt: skip


def _of_blocks(figures: Figures, texts: Sequence[str]) -> list[str]:
    """Return a text of the super block of each list_lru; empty without one."""
    return [texts[row] if row >= 0 else "" for row in figures.lrus.super_block.tolist()]


LRUS = TableSpec("lrus", "list_lrus", {
    "owner": _OWNER,
    "kind": _KIND,
    "id": Column(TEXT, "super block", help="super_block.s_id; empty for others.",
        get=lambda f: _of_blocks(f, f.blocks.id)),
    "mount": replace(_MOUNT, get=lambda f: _of_blocks(f, f.blocks.mount)),
    "memcg_aware": Column(NONE, "memcg-aware", DATA, "Whether there are per-memcg lists.",
        "lrus.aware"),
    "nodes": Column(COUNT, "", DATA, "Elements of the array of list_lru_node.",
        lambda f: np.full(*f.lrus.items.shape)),
    "items": _ITEMS,
    "root_items": Column(COUNT, "", DATA, "Items on the lists of list_lru_node.",
        lambda f: f.lrus.root_items.sum(axis=1)),
    "memcg_items": Column(COUNT, "", DATA, "Items on per-memcg lists.", "slots.items"),
    **_STATES,
    "node_array_bytes": Column(BYTES, "node arrays", DATA, _NODE_ARRAYS, "node_bytes"),
    "pointer_bytes": Column(BYTES, "pointer arrays", DATA,
        "Arrays of pointers to lists (up to 5.17)."),
    "xa_nodes": Column(COUNT, "xa_nodes", DATA, "Nodes of the XArray (5.18+).", "slots.xa_nodes"),
    "xa_node_bytes": Column(BYTES, "xa_node bytes", DATA, "Slots of the xa_nodes.",
        "slots.xa_node_bytes"),
    "list_bytes": Column(BYTES, "lists", DATA, _LISTS, lambda f: f.slots.bytes.sum(axis=1)),
    **_WASTE,
    "address": address("struct list_lru", get="lrus.address"),
}, "A list_lru.", ("bytes", "owner", "id", "kind", "mount", "address"))  # fmt: skip

OWNERS = TableSpec("owners", "Owners of list_lrus", {
    "owner": _OWNER,
    "kind": _KIND,
    "lrus": Column(COUNT, "list_lrus", help="list_lrus of this owner and kind.",
        get=lambda lrus: lrus.size()),
    "items": _ITEMS,
    **_STATES,
    **_WASTE,
}, "All list_lrus of one owner and kind.", ("bytes", "owner", "kind"), key=("owner", "kind"),
    series=("bytes", "items"),
    rows=lambda figures: LRUS.frame(figures).groupby(["owner", "kind"]))  # fmt: skip


@dataclass(frozen=True)
class _SuperBlocks:
    blocks: SuperBlocks
    sums: pd.DataFrame
    """Columns of :data:`LRUS`, added up by super block."""


def _super_blocks(figures: Figures) -> _SuperBlocks:
    lrus = LRUS.frame(figures)
    items, kind, row = lrus["items"], lrus["kind"], figures.lrus.super_block
    lrus = lrus.assign(dentries=items * (kind == DENTRY), inodes=items * (kind == INODE))
    sums = lrus.groupby(row).sum(numeric_only=True)
    return _SuperBlocks(figures.blocks, sums.reindex(range(len(figures.blocks)), fill_value=0))


SUPER_BLOCKS = TableSpec("super_blocks", "Super blocks", {
    "type": Column(TEXT, "", ALWAYS, "File system type.", "blocks.type"),
    "id": Column(TEXT, help="super_block.s_id, usually the device.", get="blocks.id"),
    "mount": replace(_MOUNT, get="blocks.mount"),
    "state": Column(TEXT, "", DATA, "State of the mounts of the super block.",
        lambda of: [state.value for state in of.blocks.state]),
    "dentries": replace(_DENTRIES, get="sums.dentries"),
    "inodes": replace(_INODES, get="sums.inodes"),
    **{name: replace(each, get=f"sums.{name}") for name, each in (_STATES | _WASTE).items()},
    "address": address("struct super_block", get="blocks.address"),
}, "A super block, with its list_lrus of dentries, inodes and XFS together.",
    ("bytes", "type", "id", "mount", "address"), key=("type", "mount"), series=("bytes",),
    rows=_super_blocks)  # fmt: skip

MEMCGS = TableSpec("memcgs", "Memory cgroups", {
    "memcg": Column(TEXT, "memory cgroup", ALWAYS, "Path of the memory cgroup.",
        lambda f: [*f.groups.path, NO_MEMCG]),
    "state": Column(TEXT, "", ALWAYS, "online; offline (dying): removed but still pinned.",
        lambda f: [*f.groups.states, "none"]),
    "id": Column(NONE, "", DATA, "kmemcg_id; -1 without one.",
        lambda f: np.append(np.where(f.groups.has_id, f.groups.kmemcg_id, -1), -1)),
    "newer": Column(COUNT, "created since", DATA,
        "Controller states (css) of all controllers and cgroups, created later.",
        lambda f: np.append(newer_states(f.kernel), 0)),
    "dentries": replace(_DENTRIES, get=lambda f: f.items_by_group[KINDS.index(DENTRY)]),
    "inodes": replace(_INODES, get=lambda f: f.items_by_group[KINDS.index(INODE)]),
    "other_items": Column(COUNT, help="Items of other list_lrus.",
        get=lambda f: f.items_by_group[KINDS.index(OTHER)]),
    "slots": replace(_SLOTS, get=lambda f: f.by_group(f.slots.slots_by_id)),
    "list_bytes": Column(BYTES, "lists", DATA, _LISTS, "list_bytes_by_group"),
    "shrinker_map_bytes": Column(BYTES, "shrinker maps", DATA, _MAPS, "map_bytes_by_group"),
    "bytes": Column(BYTES, "", ALWAYS, "Lists and shrinker maps.",
        lambda f: f.list_bytes_by_group + f.map_bytes_by_group),
    "address": address("struct mem_cgroup",
        help_="Address of mem_cgroup; 0 without one.",
        get=lambda f: np.append(f.groups.address, np.uint64(0))),
}, f"A memory cgroup; {NO_MEMCG}: unused ids, and items on no per-memcg list.",
    ("bytes", "memcg", "state", "newer", "id"), key=("memcg",), series=("bytes",),
    keep=lambda f: np.full(len(f.groups) + 1, f.lrus.is_per_memcg))  # fmt: skip


def _structures(figures: Figures) -> pd.DataFrame:
    rows = figures.tally.frame(figures.footprint)
    return rows.assign(active=np.append(figures.use.active, 0)[np.maximum(rows["number"], -1)])


STRUCTURES = TableSpec("structures", "Structures", {
    "kind": Column(TEXT, "structure", ALWAYS, "Kind of structure."),
    "place": Column(TEXT, "allocated from", ALWAYS, "Slab cache, or pages, vmalloc or unknown."),
    "objects": Column(COUNT, "allocations", ALWAYS, "Allocations of this kind."),
    "bytes": _BYTES,
    "active": Column(COUNT, "objects of cache", help="Allocated objects of the cache."),
    "share": Column(RATIO, "share of cache", help="Share of the cache's objects.",
        get=lambda rows: rows["objects"] / rows["active"].replace(0, np.nan)),
}, "Structures of one kind, allocated from one slab cache or from pages.",
    ("bytes", "kind", "place"), key=("kind", "place"), series=("bytes", "objects"),
    rows=_structures)  # fmt: skip

PROJECTION = TableSpec("projection", "Projection", {
    "stage": Column(TEXT, "", ALWAYS, "Allocation of per-memcg lists."),
    "source": Column(TEXT, "", ALWAYS, "measured, or the patch of the series (v3, 2021)."),
    "patch": Column(TEXT, "", DATA, "Identifier in the patch catalogue."),
    "node_array_bytes": Column(BYTES, "node arrays", DATA, _NODE_ARRAYS, "cost.node_arrays"),
    "pointer_bytes": Column(BYTES, "pointers", help="Arrays of pointers, or nodes of XArrays.",
        get="cost.pointers"),
    "list_bytes": Column(BYTES, "lists", help=_LISTS, get="cost.lists"),
    "bytes": replace(_BYTES, get="cost.total",
        help="Node arrays, pointers and lists, as the allocator rounds them."),
    "saved_bytes": Column(BYTES, "saved", ALWAYS, "First row minus this row.", "saved"),
    "shrinker_map_bytes": Column(BYTES, "shrinker maps",
        help=f"{_MAPS[:-1]}, not in bytes and saved: 5.13 made them larger for another reason.",
        get=lambda row: row.cost.maps or None),
}, "A stage of the patch series merged in 5.18, with the same mounts and memory cgroups.",
    rows="projection")  # fmt: skip

CENSUS = (OWNERS, SUPER_BLOCKS, LRUS, MEMCGS, STRUCTURES, PROJECTION)
"""The tables of a kernel."""

LEFT_OUT = TableSpec("left_out", "Not in the model", {
    "what": Column(TEXT, "", ALWAYS, "Memory of a real machine.", str),
}, "Memory outside of the model of --what-if.", rows="left_out")  # fmt: skip

MODEL = (PROJECTION, LEFT_OUT)
"""The tables of --what-if."""

TABLES = (*CENSUS, LEFT_OUT)

_OUTSIDE = ("pages", "vmalloc")
"""Places of large structures; any other place is a slab cache, or unknown."""

CHARTS = (
    ChartSpec(
        "projection",
        "projection",
        "Memory by stage of the list_lru series",
        ("node_array_bytes", "pointer_bytes", "list_bytes"),
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
