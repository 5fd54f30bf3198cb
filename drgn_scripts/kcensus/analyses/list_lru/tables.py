# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of a census of list_lrus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.list_lru.census import ListLruCensus
from kcensus.analyses.list_lru.model import ADDS, PATCH, Cost, Stage
from kcensus.kernel.mm.footprint import Counts
from kcensus.kernel.mm.list_lru import DENTRY, INODE, KINDS
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table

NO_MEMCG = "(no online memory cgroup)"
"""Slots of ids that nobody has, and items on lists that know no memory cgroups."""
_TEXT, _BYTES, _COUNT = Unit.TEXT, Unit.BYTES, Unit.COUNT


def lru_table(census: ListLruCensus) -> Table:
    """Every list_lru with its owner, largest first."""
    lrus, slots, blocks = census.lrus, census.slots, census.blocks
    block = lrus.superblock.tolist()

    def of_block(texts: Sequence[str]) -> list[str]:
        return [texts[row] if row >= 0 else "" for row in block]

    root = lrus.root_items.sum(axis=1)
    table = Table.of(
        "List_lrus",
        {
            "owner": (lrus.owner, Column(_TEXT, "owner", Show.ALWAYS)),
            "kind": ([KINDS[kind] for kind in lrus.kind], Column(_TEXT, "of", Show.ALWAYS)),
            "id": (of_block(blocks.id), Column(_TEXT, "super block")),
            "mount": (of_block(blocks.mount), Column(_TEXT, "mounted on", Show.ALWAYS)),
            "memcg_aware": (lrus.aware, Column(Unit.NONE, "per memcg", Show.DATA)),
            "nodes": (np.full(len(lrus), lrus.items.shape[1]), Column(_COUNT, "nodes", Show.DATA)),
            "items": (census.items, Column(_COUNT, "items", Show.ALWAYS)),
            "root_items": (root, Column(_COUNT, "of the root", Show.DATA)),
            "memcg_items": (slots.memcg_items, Column(_COUNT, "of memory cgroups", Show.DATA)),
            **_slots(slots.slots, slots.dead, slots.empty),
            "node_array_bytes": (census.node_bytes, Column(_BYTES, "node array", Show.DATA)),
            "pointer_bytes": (census.pointer_bytes, Column(_BYTES, "pointer arrays", Show.DATA)),
            "xa_nodes": (slots.xa_nodes, Column(_COUNT, "xa_nodes", Show.DATA)),
            "xa_node_bytes": (slots.xa_node_bytes, Column(_BYTES, "in xa_nodes", Show.DATA)),
            "list_bytes": (slots.bytes, Column(_BYTES, "lists", Show.DATA)),
            **_waste(census.bytes, slots.dead_bytes, slots.empty_bytes),
            "address": (lrus.address, Column(Unit.ADDRESS, "list_lru", Show.DATA)),
        },
    )
    return table.largest_first("bytes", "owner", "id", "kind", "mount", "address")


def _slots(slots: Any, dead: Any, empty: Any) -> dict[str, tuple[Any, Column]]:
    return {
        "slots": (slots, Column(_COUNT, "slots")),
        "dead_slots": (dead, Column(_COUNT, "of no memcg", Show.DATA)),
        "empty_slots": (empty, Column(_COUNT, "empty", Show.DATA)),
    }


def _waste(total: Any, dead: Any, empty: Any) -> dict[str, tuple[Any, Column]]:
    return {
        "bytes": (total, Column(_BYTES, "bytes", Show.ALWAYS)),
        "dead_bytes": (dead, Column(_BYTES, "for no memcg", Show.ALWAYS)),
        "empty_bytes": (empty, Column(_BYTES, "empty")),
    }


def superblock_table(census: ListLruCensus) -> Table:
    """What the list_lrus of each super block take together."""
    lrus, slots, blocks = census.lrus, census.slots, census.blocks
    rows, count = lrus.superblock, len(blocks)
    known = rows >= 0

    def total(values: Counts, mask: Any = None) -> Counts:
        chosen = known if mask is None else known & mask
        return np.bincount(rows[chosen], values[chosen], count).astype(np.int64)

    items = census.items
    table = Table.of(
        "Super blocks",
        {
            "type": (blocks.type, Column(_TEXT, "type", Show.ALWAYS)),
            "id": (blocks.id, Column(_TEXT, "id")),
            "mount": (blocks.mount, Column(_TEXT, "mounted on", Show.ALWAYS)),
            "state": ([state.value for state in blocks.state], Column(_TEXT, "state", Show.DATA)),
            "dentries": (
                total(items, lrus.kind == KINDS.index(DENTRY)),
                Column(_COUNT, "unused dentries"),
            ),
            "inodes": (
                total(items, lrus.kind == KINDS.index(INODE)),
                Column(_COUNT, "unused inodes"),
            ),
            **_slots(total(slots.slots), total(slots.dead), total(slots.empty)),
            **_waste(total(census.bytes), total(slots.dead_bytes), total(slots.empty_bytes)),
            "address": (blocks.address, Column(Unit.ADDRESS, "super_block", Show.DATA)),
        },
    )
    return table.largest_first("bytes", "type", "id", "mount", "address")


def owner_table(census: ListLruCensus) -> Table:
    """The same by file system type or other owner."""
    lrus, slots = census.lrus, census.slots
    frame = pd.DataFrame(
        {
            "owner": pd.Series(lrus.owner, dtype=object),
            "kind": pd.Series([KINDS[kind] for kind in lrus.kind], dtype=object),
            "lrus": np.ones(len(lrus), np.int64),
            "items": census.items,
            "slots": slots.slots,
            "dead_slots": slots.dead,
            "empty_slots": slots.empty,
            "bytes": census.bytes,
            "dead_bytes": slots.dead_bytes,
            "empty_bytes": slots.empty_bytes,
        }
    )
    sums = frame.groupby(["owner", "kind"], as_index=False, sort=True).sum()
    table = Table.of(
        "Owners of list_lrus",
        {
            "owner": (sums["owner"], Column(_TEXT, "owner", Show.ALWAYS)),
            "kind": (sums["kind"], Column(_TEXT, "of", Show.ALWAYS)),
            "lrus": (sums["lrus"], Column(_COUNT, "list_lrus")),
            "items": (sums["items"], Column(_COUNT, "items", Show.ALWAYS)),
            **_slots(sums["slots"], sums["dead_slots"], sums["empty_slots"]),
            **_waste(sums["bytes"], sums["dead_bytes"], sums["empty_bytes"]),
        },
    )
    return table.largest_first("bytes", "owner", "kind")


def memcg_table(census: ListLruCensus, serials: int | None) -> Table:
    """What each memory cgroup has on the lists, and what they keep for it.

    :param serials: the number that the next cgroup's state will get; None if unknown
    """
    groups, ids, slots, lrus = census.groups, census.ids, census.slots, census.lrus
    count = len(groups)
    at = np.where(ids.row >= 0, ids.row, count)

    def by_group(values: Counts) -> Counts:
        return np.bincount(at, values, count + 1).astype(np.int64)

    items = np.stack([by_group(values) for values in slots.items_by_id])
    root = lrus.root_items.sum(axis=1)
    # What knows memory cgroups has the root's items there, if there is a root.
    for row, mask in ((0, lrus.aware), (count, ~lrus.aware)):
        for kind in range(len(KINDS)):
            items[kind, row] += root[mask & (lrus.kind == kind)].sum()
    since = np.zeros(count, np.int64)
    if serials is not None and groups.serial.any():
        since = serials - 1 - groups.serial.astype(np.int64)
    states = [
        "online" if alive else "being removed" if online else "offline"
        for alive, online in zip(groups.alive.tolist(), groups.online.tolist(), strict=True)
    ]
    table = Table.of(
        "Memory cgroups",
        {
            "memcg": ([*groups.path, NO_MEMCG], Column(_TEXT, "memory cgroup", Show.ALWAYS)),
            "state": ([*states, "none"], Column(_TEXT, "state", Show.ALWAYS)),
            "id": (
                [*np.where(groups.online, groups.kmemcg_id, -1).tolist(), -1],
                Column(Unit.NONE, "id", Show.DATA),
            ),
            "newer": (
                [*since.tolist(), 0],
                Column(_COUNT, "controller states of cgroups created since", Show.DATA),
            ),
            "dentries": (items[0], Column(_COUNT, "unused dentries")),
            "inodes": (items[1], Column(_COUNT, "unused inodes")),
            "other_items": (items[2], Column(_COUNT, "other items")),
            "slots": (by_group(slots.slots_by_id.sum(axis=0)), Column(_COUNT, "slots")),
            "list_bytes": (by_group(slots.bytes_by_id), Column(_BYTES, "lists", Show.DATA)),
            "shrinker_map_bytes": (
                [*census.shrinker_maps.bytes.tolist(), 0],
                Column(_BYTES, "shrinker maps", Show.DATA),
            ),
        },
    )
    frame = table.frame
    frame["bytes"] = frame["list_bytes"] + frame["shrinker_map_bytes"]
    table.columns = {**table.columns, "bytes": Column(_BYTES, "bytes", Show.ALWAYS)}
    return table.largest_first("bytes", "memcg", "state", "newer", "id")


def structure_table(census: ListLruCensus) -> Table:
    """What the allocator has for each kind of structure, and how much of its caches that is."""
    rows = []
    for kind, tally in census.tallies.items():
        for place in sorted(tally.objects):
            active = int(census.use.active[place]) if place >= 0 else 0
            rows.append(
                (
                    kind,
                    census.footprint.place(place),
                    tally.objects[place],
                    tally.bytes[place],
                    active,
                    tally.objects[place] / active if active else float("nan"),
                )
            )
    columns = [[row[at] for row in rows] for at in range(6)]
    table = Table.of(
        "Structures",
        {
            "kind": (columns[0], Column(_TEXT, "structures", Show.ALWAYS)),
            "place": (columns[1], Column(_TEXT, "allocated from", Show.ALWAYS)),
            "objects": (np.array(columns[2], np.int64), Column(_COUNT, "allocations", Show.ALWAYS)),
            "bytes": (np.array(columns[3], np.int64), Column(_BYTES, "bytes", Show.ALWAYS)),
            "active": (np.array(columns[4], np.int64), Column(_COUNT, "objects of the cache")),
            "share": (columns[5], Column(Unit.RATIO, "of these objects")),
        },
    )
    return table.largest_first("bytes", "kind", "place")


def projection_table(
    costs: Mapping[Stage, Cost],
    *,
    now: tuple[Stage, Cost] | None = None,
    shrinker_bytes: int = 0,
) -> Table:
    """The stages of the series, in order, with what the lists cost at each.

    :param now: the stage that a kernel is at and its measured cost, which comes first
    :param shrinker_bytes: shrinker maps, which are the same at all stages
    """
    rows = [(f"now: {now[0].value}", "measured", "", now[1])] if now else []
    rows += [
        (stage.value, ADDS[stage], PATCH.get(stage, ""), found) for stage, found in costs.items()
    ]
    total = [row[3].total + shrinker_bytes for row in rows]
    # From the stage before; the first row of the model has none.
    start = len(rows) - len(costs)
    saved = [0] * len(rows)
    for at in range(start + 1, len(rows)):
        saved[at] = total[at - 1] - total[at]
    return Table.of(
        "Projection",
        {
            "stage": ([row[0] for row in rows], Column(_TEXT, "stage", Show.ALWAYS)),
            "source": ([row[1] for row in rows], Column(_TEXT, "source", Show.ALWAYS)),
            "patch": ([row[2] for row in rows], Column(_TEXT, "patch", Show.DATA)),
            "node_array_bytes": (
                [row[3].node_arrays for row in rows],
                Column(_BYTES, "node arrays", Show.DATA),
            ),
            "pointer_bytes": ([row[3].pointers for row in rows], Column(_BYTES, "pointers")),
            "list_bytes": ([row[3].lists for row in rows], Column(_BYTES, "lists")),
            "shrinker_map_bytes": (
                [shrinker_bytes] * len(rows),
                Column(_BYTES, "shrinker maps"),
            ),
            "bytes": (total, Column(_BYTES, "bytes", Show.ALWAYS)),
            "saved_bytes": (saved, Column(_BYTES, "less than above", Show.ALWAYS)),
        },
    )
