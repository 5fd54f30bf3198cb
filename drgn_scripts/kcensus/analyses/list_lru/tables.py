# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of list_lrus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import drgn
import numpy as np
import pandas as pd

from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.model import Cost
from kcensus.analyses.list_lru.slots import EMPTY, UNUSED
from kcensus.kernel.mm.footprint import Counts
from kcensus.kernel.mm.list_lru import DENTRY, INODE, KINDS
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec

NO_MEMCG = "(no online memory cgroup)"
"""Row of slots whose id is not in use, and of items on list_lrus without per-memcg lists."""

_OWNER = Column(
    Unit.TEXT, "owner", Show.ALWAYS, "File system type, or variable or member that is the list_lru."
)
_KIND = Column(Unit.TEXT, "of", Show.ALWAYS, "What is on the lists: dentry, inode or other.")
_MOUNT = Column(Unit.TEXT, "mounted on", Show.ALWAYS, "A mount point of the super block.")
_ITEMS = Column(Unit.COUNT, "items", Show.ALWAYS, "Items on all lists, per memcg or not.")
_DENTRIES = Column(Unit.COUNT, "unused dentries", help="Dentries on the LRU.")
_INODES = Column(Unit.COUNT, "unused inodes", help="Inodes on the LRU.")
_SLOTS = Column(
    Unit.COUNT,
    "slots",
    help="Per-memcg lists; up to 5.17 one per id and node, 5.18+ one per memcg.",
)
_BYTES = Column(Unit.BYTES, "bytes", Show.ALWAYS, "All structures, as the allocator rounds them.")
_NODE_ARRAYS = Column(Unit.BYTES, "node arrays", Show.DATA, "Array of list_lru_node of a list_lru.")
_LISTS = Column(Unit.BYTES, "lists", Show.DATA, "list_lru_one (up to 5.17) or list_lru_memcg.")
_MAPS = Column(Unit.BYTES, "shrinker maps", Show.DATA, "Bitmaps of shrinkers (shrinker_info).")
_WASTE = {
    "bytes": _BYTES,
    "dead_bytes": Column(
        Unit.BYTES, "unused ids", Show.ALWAYS, "Lists of ids that no online memory cgroup uses."
    ),
    "empty_bytes": Column(Unit.BYTES, "empty", help="Empty lists of online memory cgroups."),
}
_STATES = {
    "slots": _SLOTS,
    "dead_slots": Column(
        Unit.COUNT, "unused ids", Show.DATA, "Slots of ids that no online memory cgroup uses."
    ),
    "empty_slots": Column(
        Unit.COUNT, "empty slots", Show.DATA, "Empty slots of online memory cgroups."
    ),
}

OWNERS = TableSpec(
    "owners",
    "Owners of list_lrus",
    {
        "owner": _OWNER,
        "kind": _KIND,
        "lrus": Column(Unit.COUNT, "list_lrus", help="list_lrus of this owner and kind."),
        "items": _ITEMS,
        **_STATES,
        **_WASTE,
    },
    "All list_lrus of one owner and kind.",
    ("bytes", "owner", "kind"),
    key=("owner", "kind"),
    series=("bytes", "items"),
)

SUPER_BLOCKS = TableSpec(
    "super_blocks",
    "Super blocks",
    {
        "type": Column(Unit.TEXT, "type", Show.ALWAYS, "File system type."),
        "id": Column(Unit.TEXT, "id", help="super_block.s_id: the device, as a rule."),
        "mount": _MOUNT,
        "state": Column(Unit.TEXT, "state", Show.DATA, "Whether and how it is mounted."),
        "dentries": _DENTRIES,
        "inodes": _INODES,
        **_STATES,
        **_WASTE,
        "address": Column(Unit.ADDRESS, "super_block", Show.DATA, "struct super_block pointer."),
    },
    "A super block; its list_lrus of dentries and inodes, and those of XFS, together.",
    ("bytes", "type", "id", "mount", "address"),
    key=("type", "mount"),
    series=("bytes",),
)

LRUS = TableSpec(
    "lrus",
    "list_lrus",
    {
        "owner": _OWNER,
        "kind": _KIND,
        "id": Column(Unit.TEXT, "super block", help="super_block.s_id; empty for others."),
        "mount": _MOUNT,
        "memcg_aware": Column(
            Unit.NONE, "memcg-aware", Show.DATA, "Whether it has per-memcg lists."
        ),
        "nodes": Column(Unit.COUNT, "nodes", Show.DATA, "Elements of the array of list_lru_node."),
        "items": _ITEMS,
        "root_items": Column(
            Unit.COUNT, "root items", Show.DATA, "Items on the list_lru_node's own lists."
        ),
        "memcg_items": Column(Unit.COUNT, "memcg items", Show.DATA, "Items on per-memcg lists."),
        **_STATES,
        "node_array_bytes": _NODE_ARRAYS,
        "pointer_bytes": Column(
            Unit.BYTES, "pointer arrays", Show.DATA, "Arrays of pointers to lists (up to 5.17)."
        ),
        "xa_nodes": Column(Unit.COUNT, "xa_nodes", Show.DATA, "Nodes of the XArray (5.18+)."),
        "xa_node_bytes": Column(Unit.BYTES, "xa_node bytes", Show.DATA, "Slots of these nodes."),
        "list_bytes": _LISTS,
        **_WASTE,
        "address": Column(Unit.ADDRESS, "list_lru", Show.DATA, "struct list_lru pointer."),
    },
    "A list_lru.",
    ("bytes", "owner", "id", "kind", "mount", "address"),
)

MEMCGS = TableSpec(
    "memcgs",
    "Memory cgroups",
    {
        "memcg": Column(Unit.TEXT, "memory cgroup", Show.ALWAYS, "Path of the memory cgroup."),
        "state": Column(
            Unit.TEXT, "state", Show.ALWAYS, "online; offline (dying): removed but still pinned."
        ),
        "id": Column(Unit.NONE, "id", Show.DATA, "kmemcg_id; -1 without one."),
        "newer": Column(
            Unit.COUNT,
            "created since",
            Show.DATA,
            "Controller states (css) created after this one, of any controller and cgroup.",
        ),
        "dentries": _DENTRIES,
        "inodes": _INODES,
        "other_items": Column(Unit.COUNT, "other items", help="Items of other list_lrus."),
        "slots": _SLOTS,
        "list_bytes": _LISTS,
        "shrinker_map_bytes": _MAPS,
        "bytes": Column(Unit.BYTES, "bytes", Show.ALWAYS, "Lists and shrinker maps."),
    },
    f"A memory cgroup; {NO_MEMCG} has unused ids, and items that are not on per-memcg lists.",
    ("bytes", "memcg", "state", "newer", "id"),
    key=("memcg",),
    series=("bytes",),
)

STRUCTURES = TableSpec(
    "structures",
    "Structures",
    {
        "kind": Column(Unit.TEXT, "structure", Show.ALWAYS, "Kind of structure."),
        "place": Column(
            Unit.TEXT, "allocated from", Show.ALWAYS, "Slab cache, or pages, vmalloc or unknown."
        ),
        "objects": Column(Unit.COUNT, "allocations", Show.ALWAYS, "Allocations of this kind."),
        "bytes": _BYTES,
        "active": Column(Unit.COUNT, "objects of cache", help="Allocated objects of the cache."),
        "share": Column(Unit.RATIO, "share of cache", help="Share of these objects."),
    },
    "Structures of one kind that were allocated from one slab cache or from pages.",
    ("bytes", "kind", "place"),
    key=("kind", "place"),
    series=("bytes", "objects"),
)

PROJECTION = TableSpec(
    "projection",
    "Projection",
    {
        "stage": Column(Unit.TEXT, "stage", Show.ALWAYS, "How per-memcg lists are allocated."),
        "source": Column(
            Unit.TEXT, "source", Show.ALWAYS, "measured, or the patch that leads to this stage."
        ),
        "patch": Column(Unit.TEXT, "patch", Show.DATA, "Identifier in the patch catalogue."),
        "node_array_bytes": _NODE_ARRAYS,
        "pointer_bytes": Column(
            Unit.BYTES, "pointers", help="Arrays of pointers, or nodes of XArrays."
        ),
        "list_bytes": Column(Unit.BYTES, "lists", help=_LISTS.help),
        "shrinker_map_bytes": Column(Unit.BYTES, "shrinker maps", help=_MAPS.help),
        "bytes": _BYTES,
        "saved_bytes": Column(
            Unit.BYTES, "saved", Show.ALWAYS, "Less than in the first row; negative: more."
        ),
    },
    "A stage of the patch series that was merged in 5.18, with the same mounts and memory cgroups.",
)

LEFT_OUT_TABLE = TableSpec(
    "left_out",
    "Not in the model",
    {"what": Column(Unit.TEXT, "what", Show.ALWAYS, "What a real machine has as well.")},
    "Memory that the model of --what-if does not include.",
)

TABLES = (OWNERS, SUPER_BLOCKS, LRUS, MEMCGS, STRUCTURES, PROJECTION, LEFT_OUT_TABLE)


def tables(figures: Figures) -> dict[str, Table]:
    """Return all tables of a census by name."""
    lrus = _lrus(figures)
    return {
        "owners": OWNERS.of(lrus.groupby(["owner", "kind"], as_index=False).sum(numeric_only=True)),
        "super_blocks": SUPER_BLOCKS.of(_super_blocks(figures, lrus)),
        "lrus": LRUS.of(lrus),
        "memcgs": MEMCGS.of(_memcgs(figures)),
        "structures": STRUCTURES.of(_structures(figures)),
        "projection": projection(figures.costs.values(), measured=figures.measured),
    }


def projection(costs: Iterable[Cost], *, measured: Cost | None = None) -> Table:
    """Return the measured cost, then that of each stage in order."""
    rows = [(cost.stage.how, cost.stage.source, cost.stage.patch, cost) for cost in costs]
    if measured is not None:
        rows.insert(0, (f"now: {measured.stage.how}", "measured", "", measured))
    stage, source, patch, columns = zip(*rows, strict=True)
    total = np.array([cost.total for cost in columns], np.int64)
    return PROJECTION.of(
        {
            "stage": stage,
            "source": source,
            "patch": patch,
            "node_array_bytes": [cost.node_arrays for cost in columns],
            "pointer_bytes": [cost.pointers for cost in columns],
            "list_bytes": [cost.lists for cost in columns],
            "shrinker_map_bytes": [cost.maps for cost in columns],
            "bytes": total,
            "saved_bytes": total[0] - total,
        }
    )


def _lrus(figures: Figures) -> pd.DataFrame:
    lrus, slots, blocks = figures.lrus, figures.slots, figures.blocks

    def of_block(texts: list[str]) -> list[str]:
        return [texts[row] if row >= 0 else "" for row in lrus.super_block.tolist()]

    return pd.DataFrame(
        {
            "owner": pd.Series(lrus.owner, dtype=object),
            "kind": pd.Series([KINDS[kind] for kind in lrus.kind], dtype=object),
            "id": pd.Series(of_block(blocks.id), dtype=object),
            "mount": pd.Series(of_block(blocks.mount), dtype=object),
            "super_block": lrus.super_block,
            "lrus": np.ones(len(lrus), np.int64),
            "memcg_aware": lrus.aware,
            "nodes": np.full(len(lrus), lrus.items.shape[1]),
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


def _super_blocks(figures: Figures, lrus: pd.DataFrame) -> pd.DataFrame:
    blocks = figures.blocks
    lrus = lrus.assign(
        dentries=lrus["items"] * (lrus["kind"] == DENTRY),
        inodes=lrus["items"] * (lrus["kind"] == INODE),
    )
    sums = lrus.groupby("super_block")[["dentries", "inodes", *_STATES, *_WASTE]].sum()
    return sums.reindex(range(len(blocks)), fill_value=0).assign(
        type=blocks.type,
        id=blocks.id,
        mount=blocks.mount,
        state=[state.value for state in blocks.state],
        address=blocks.address,
    )


def _memcgs(figures: Figures) -> dict[str, Any]:
    groups, slots, lrus = figures.groups, figures.slots, figures.lrus
    count = len(groups)
    row_of_id = np.where(figures.ids.row >= 0, figures.ids.row, count)

    def by_group(values: Counts) -> Counts:
        # A weighted bincount() sums in doubles, which damaged values overflow.
        sums = np.zeros(count + 1, np.int64)
        np.add.at(sums, row_of_id, values)
        return sums

    items = np.stack([by_group(values) for values in slots.items_by_id])
    # A list_lru with per-memcg lists has the root's items on its own lists.
    row = np.where(lrus.aware, 0, count)
    np.add.at(items, (lrus.kind, row), lrus.root_items.sum(axis=1))
    newer = np.zeros(count + 1, np.int64)
    with contextlib.suppress(LookupError, drgn.FaultError):
        next_serial = int(figures.kernel.prog["css_serial_nr_next"])
        if groups.serial.any():
            newer[:-1] = next_serial - 1 - groups.serial.astype(np.int64)
    lists, maps = by_group(slots.bytes_by_id), np.append(figures.shrinker_maps.bytes, 0)
    return {
        "memcg": [*groups.path, NO_MEMCG],
        "state": [*np.where(groups.online, "online", "offline").tolist(), "none"],
        "id": np.append(np.where(groups.has_id, groups.kmemcg_id, -1), -1),
        "newer": newer,
        "dentries": items[0],
        "inodes": items[1],
        "other_items": items[2],
        "slots": by_group(slots.slots_by_id),
        "list_bytes": lists,
        "shrinker_map_bytes": maps,
        "bytes": lists + maps,
    }


def _structures(figures: Figures) -> pd.DataFrame:
    tally = figures.tally
    rows = pd.DataFrame([*tally.objects], columns=["kind", "number"])
    objects = np.array([*tally.objects.values()], np.int64)
    in_cache = rows["number"] >= 0
    active = np.zeros(len(rows), np.int64)
    active[in_cache] = figures.use.active[rows["number"][in_cache]]
    return rows.assign(
        place=[figures.footprint.place(number) for number in rows["number"]],
        objects=objects,
        bytes=[tally.bytes[key] for key in tally.objects],
        active=active,
        share=objects / np.where(active, active, np.nan),
    )
