# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bitmaps that say which shrinkers have objects of which memory cgroup.

Their size grows with memory cgroups times shrinkers, and each super block has a shrinker.
"""

from __future__ import annotations

from dataclasses import dataclass

import drgn
import numpy as np
from drgn.helpers.linux.nodemask import nr_node_ids

from kcensus.engine.gather import gather, gather_arrays, gather_words
from kcensus.engine.layout import LayoutError, layout, word_dtype
from kcensus.engine.memory import Memory, Words
from kcensus.kernel.memcg.memcgs import Memcgs
from kcensus.kernel.mm.footprint import Counts, Footprint, Tally

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
    memory: Memory, groups: Memcgs, footprint: Footprint, tally: Tally
) -> ShrinkerMaps:
    """Return what the maps of all memory cgroups occupy, offline ones included.

    The maps came with Linux kernel commit 0a4465d34028 ("mm, memcg: assign memcg-aware shrinkers
    bitmap to memcg") (in v4.19); without them, all is zero.

    :param tally: the allocations are added to it
    """
    prog = memory.prog
    size = np.zeros(len(groups), np.int64)
    shrinkers = _shrinkers(footprint, prog)
    try:
        pernode = layout(
            prog,
            "struct mem_cgroup_per_node",
            # Since Linux kernel commit e4262c4f51d6 ("mm: memcontrol: rename shrinker_map to
            # shrinker_info") (in v5.13), the map is part of a struct shrinker_info.
            {"map": ("shrinker_info", "shrinker_map")},
        )
        nodeinfo = drgn.offsetof(prog.type("struct mem_cgroup"), "nodeinfo")
    except (LookupError, LayoutError):
        return ShrinkerMaps(size, shrinkers)
    nodes = nr_node_ids(prog)
    steps = np.arange(nodes, dtype=np.uint64) * np.uint64(8) + np.uint64(nodeinfo)
    places = (groups.address[:, None] + steps[None, :]).ravel()
    owners = np.repeat(np.arange(len(groups)), nodes)
    pointers, readable = gather_words(memory, places, word_dtype(prog), footprint.faults)
    maps = gather(memory, pointers, pernode, footprint.faults)
    unreadable = int((~readable).sum() + (readable & (pointers != 0) & ~maps.readable).sum())
    has_map = maps["map"] != 0
    address, owners = maps["map"][has_map], owners[has_map]
    units = -(-(shrinkers or 0) // _UNIT_SHRINKERS)
    if pernode.fields["map"].path == "shrinker_map":
        asked = drgn.sizeof(prog.type("struct memcg_shrinker_map")) + 8 * units
    else:
        info = prog.type("struct shrinker_info")
        # Since Linux kernel commit 307bececcd12 ("mm: shrinker: add a secondary array for
        # shrinker_info::{map, nr_deferred}") (in v6.7), it has an array of pointers to units.
        if info.has_member("unit"):
            asked = drgn.offsetof(info, "unit") + 8 * units
            unreadable += _add_units(memory, address, owners, size, footprint, tally)
        else:
            asked = drgn.sizeof(info) + (_UNIT_SHRINKERS * _DEFERRED_BYTES + 8) * units
    np.add.at(size, owners, footprint.sizes(address, asked, SHRINKER_MAPS, tally))
    return ShrinkerMaps(size, shrinkers, unreadable)


def _shrinkers(footprint: Footprint, prog: drgn.Program) -> int | None:
    try:
        shrinkers = int(prog["shrinker_nr_max"])
    except LookupError:
        return None
    except drgn.FaultError as error:
        footprint.faults.note(error)
        return None
    return shrinkers if 0 <= shrinkers <= _MAX_UNITS * _UNIT_SHRINKERS else None


def _add_units(
    memory: Memory,
    address: Words,
    owners: Counts,
    size: Counts,
    footprint: Footprint,
    tally: Tally,
) -> int:
    """Add what the units occupy to ``size``; return how many maps could not be read."""
    info = memory.prog.type("struct shrinker_info")
    read = gather(memory, address, layout(memory.prog, info, ["map_nr_max"]), footprint.faults)
    counts = -(-read["map_nr_max"].astype(np.int64) // _UNIT_SHRINKERS)
    valid = (counts >= 0) & (counts <= _MAX_UNITS)
    unreadable = int((~read.readable | ~valid).sum())
    word = word_dtype(memory.prog)
    asked = drgn.sizeof(memory.prog.type("struct shrinker_info_unit"))
    first = np.uint64(drgn.offsetof(info, "unit"))
    # All maps have the same size, except those that are being replaced.
    for count in np.unique(counts[valid]).tolist():
        rows = np.flatnonzero(valid & (counts == count))
        units, readable = gather_arrays(
            memory, address[rows] + first, count, word, footprint.faults
        )
        unreadable += int((~readable).sum())
        row, column = np.nonzero(units)
        sizes = footprint.sizes(units[row, column], asked, SHRINKER_MAPS, tally)
        np.add.at(size, owners[rows][row], sizes)
    return unreadable
