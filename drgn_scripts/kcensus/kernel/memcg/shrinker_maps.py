# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sizes of memory cgroups' bitmaps of shrinkers.

They grow with memory cgroups times shrinkers, and each super block has a shrinker.
"""

from __future__ import annotations

from dataclasses import dataclass

import drgn
import numpy as np

from kcensus.engine.gather import gather, gather_pointers
from kcensus.engine.layout import layout
from kcensus.engine.memory import Memory, Numbers, Words
from kcensus.kernel.memcg.memcgs import PER_NODE, Memcgs, per_node
from kcensus.kernel.mm.footprint import Footprint, Tally
from kcensus.kernel.names import integer

SHRINKER_MAPS = "shrinker maps"
"""Kind of the maps in a :class:`Tally`."""
_UNIT_SHRINKERS = 64
_DEFERRED_BYTES = 8
_MAX_UNITS = 1 << 12


@dataclass(frozen=True)
class ShrinkerMaps:
    """Bytes of shrinker maps."""

    bytes: Numbers
    shrinkers: int | None
    """``shrinker_nr_max``, the capacity of a map; None if unknown."""
    unreadable: int = 0


def shrinker_maps(
    memory: Memory, groups: Memcgs, footprint: Footprint, tally: Tally, rows: Numbers | None = None
) -> ShrinkerMaps:
    """Return the bytes of the maps of memory cgroups, and add the allocations to ``tally``.

    The maps came with Linux kernel commit 0a4465d34028 ("mm, memcg: assign memcg-aware shrinkers
    bitmap to memcg") (in v4.19); without them, all is zero.

    :param rows: the memory cgroups to count; all by default
    """
    prog, faults = memory.prog, footprint.faults
    size = np.zeros(len(groups), np.int64)
    shrinkers = integer(prog, "shrinker_nr_max", faults)
    if shrinkers is not None and not 0 <= shrinkers <= _MAX_UNITS * _UNIT_SHRINKERS:
        shrinkers = None
    try:
        # Since Linux kernel commit e4262c4f51d6 ("mm: memcontrol: rename shrinker_map to
        # shrinker_info") (in v5.13), the map is part of a struct shrinker_info.
        members = {"map": ("shrinker_info", "shrinker_map")}
        pernode = layout(prog, PER_NODE, members)
    except LookupError:
        return ShrinkerMaps(size, shrinkers)

    def add(owners: Numbers, addresses: Words, asked: int) -> None:
        np.add.at(size, owners, footprint.sizes(addresses, asked, SHRINKER_MAPS, tally))

    rows = np.arange(len(groups)) if rows is None else rows
    owners, nodes, unreadable = per_node(memory, groups, rows, faults)
    maps = gather(memory, nodes, pernode, faults)
    unreadable += int((~maps.readable).sum())
    has_map = maps["map"] != 0
    address, owners = maps["map"][has_map], owners[has_map]
    if len(address) and not shrinkers:
        shrinkers, unreadable = None, unreadable + 1  # a map has room for one shrinker at least
    units = -(-(shrinkers or 0) // _UNIT_SHRINKERS)
    is_info = pernode.fields["map"].path == "shrinker_info"
    info = prog.type("struct shrinker_info" if is_info else "struct memcg_shrinker_map")
    if not info.has_member("unit"):
        unit = _UNIT_SHRINKERS * _DEFERRED_BYTES + 8 if is_info else 8
        add(owners, address, drgn.sizeof(info) + unit * units)
        return ShrinkerMaps(size, shrinkers, unreadable)
    # Since Linux kernel commit 307bececcd12 ("mm: shrinker: add a secondary array for
    # shrinker_info::{map, nr_deferred}") (in v6.7), it has an array of pointers to units.
    first = drgn.offsetof(info, "unit")
    add(owners, address, first + 8 * units)
    read = gather(memory, address, layout(prog, info, ["map_nr_max"]), faults)
    counts = -(-read["map_nr_max"].astype(np.int64) // _UNIT_SHRINKERS)
    # A map has room for the kernel's numbers of shrinkers at most.
    most = _MAX_UNITS if shrinkers is None else units
    valid = read.readable & (counts >= 0) & (counts <= most)
    unreadable += int((~valid).sum())
    places = address[valid] + np.uint64(first)
    rows, pointers, readable = gather_pointers(memory, places, counts[valid], faults)
    unreadable += len(np.unique(rows[~readable]))
    unit = drgn.sizeof(prog.type("struct shrinker_info_unit"))
    add(owners[valid][rows[pointers != 0]], pointers[pointers != 0], unit)
    return ShrinkerMaps(size, shrinkers, unreadable)
