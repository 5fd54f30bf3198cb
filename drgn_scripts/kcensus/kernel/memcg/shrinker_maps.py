# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bitmaps that say which shrinkers have objects of which memory cgroup.

Their size grows with memory cgroups times shrinkers, and each super block has a shrinker.
"""

from __future__ import annotations

from dataclasses import dataclass

import drgn
import numpy as np

from kcensus.engine.gather import gather, gather_arrays, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Memory, Words
from kcensus.engine.slub.percpu import node_ids
from kcensus.kernel.memcg.memcgs import Memcgs
from kcensus.kernel.mm.footprint import Counts, Footprint, Tally
from kcensus.kernel.names import integer

SHRINKER_MAPS = "shrinker maps"
"""Their kind in a :class:`Tally`."""
_UNIT_SHRINKERS = 64
_DEFERRED_BYTES = 8
_MAX_UNITS = 1 << 12


@dataclass(frozen=True)
class ShrinkerMaps:
    """What the maps occupy."""

    bytes: Counts
    """Shape (memcgs,)."""
    shrinkers: int | None
    """``shrinker_nr_max``: how many shrinkers a map has room for; None if unknown."""
    unreadable: int = 0


def shrinker_maps(
    memory: Memory, groups: Memcgs, footprint: Footprint, tally: Tally, rows: Counts | None = None
) -> ShrinkerMaps:
    """Return what the maps of memory cgroups occupy, and add the allocations to ``tally``.

    The maps came with Linux kernel commit 0a4465d34028 ("mm, memcg: assign memcg-aware shrinkers
    bitmap to memcg") (in v4.19); without them, all is zero.

    :param rows: the memory cgroups to count; all by default
    """
    prog, faults, word = memory.prog, footprint.faults, word_dtype(memory.prog)
    size = np.zeros(len(groups), np.int64)
    shrinkers = integer(prog, "shrinker_nr_max", faults)
    if shrinkers is not None and not 0 <= shrinkers <= _MAX_UNITS * _UNIT_SHRINKERS:
        shrinkers = None
    try:
        # Since Linux kernel commit e4262c4f51d6 ("mm: memcontrol: rename shrinker_map to
        # shrinker_info") (in v5.13), the map is part of a struct shrinker_info.
        members = {"map": ("shrinker_info", "shrinker_map")}
        pernode = layout(prog, "struct mem_cgroup_per_node", members)
        nodeinfo = np.uint64(drgn.offsetof(prog.type("struct mem_cgroup"), "nodeinfo"))
    except LookupError:
        return ShrinkerMaps(size, shrinkers)

    def add(owners: Counts, addresses: Words, asked: int) -> None:
        np.add.at(size, owners, footprint.sizes(addresses, asked, SHRINKER_MAPS, tally))

    rows = np.arange(len(groups)) if rows is None else rows
    nodes = node_ids(prog)
    steps = np.arange(nodes, dtype=np.uint64) * np.uint64(8) + nodeinfo
    places = (groups.address[rows][:, None] + steps).ravel()
    pointers, readable = gather_words(memory, places, word, faults)
    maps = gather(memory, pointers, pernode, faults)
    unreadable = int((~readable).sum() + (readable & (pointers != 0) & ~maps.readable).sum())
    has_map = maps["map"] != 0
    address, owners = maps["map"][has_map], np.repeat(rows, nodes)[has_map]
    units = -(-(shrinkers or 0) // _UNIT_SHRINKERS)
    if pernode.fields["map"].path == "shrinker_map":
        asked = drgn.sizeof(prog.type("struct memcg_shrinker_map")) + 8 * units
        add(owners, address, asked)
        return ShrinkerMaps(size, shrinkers, unreadable)
    info = prog.type("struct shrinker_info")
    if not info.has_member("unit"):
        asked = drgn.sizeof(info) + (_UNIT_SHRINKERS * _DEFERRED_BYTES + 8) * units
        add(owners, address, asked)
        return ShrinkerMaps(size, shrinkers, unreadable)
    # Since Linux kernel commit 307bececcd12 ("mm: shrinker: add a secondary array for
    # shrinker_info::{map, nr_deferred}") (in v6.7), it has an array of pointers to units.
    first = drgn.offsetof(info, "unit")
    add(owners, address, first + 8 * units)
    read = gather(memory, address, layout(prog, info, ["map_nr_max"]), faults)
    counts = -(-read["map_nr_max"].astype(np.int64) // _UNIT_SHRINKERS)
    # No map has room for more than the kernel has numbers for.
    most = _MAX_UNITS if shrinkers is None else units
    valid = read.readable & (counts >= 0) & (counts <= most)
    unreadable += int((~valid).sum())
    # All maps have the same size, except those that are being replaced.
    for count in np.unique(counts[valid]).tolist():
        alike = np.flatnonzero(valid & (counts == count))
        arrays, readable = gather_arrays(
            memory, address[alike] + np.uint64(first), count, word, faults
        )
        unreadable += int((~readable).sum())
        row, column = np.nonzero(arrays)
        unit = drgn.sizeof(prog.type("struct shrinker_info_unit"))
        add(owners[alike[row]], arrays[row, column], unit)
    return ShrinkerMaps(size, shrinkers, unreadable)
