# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bitmaps by which memory cgroups know which shrinkers have something to do for them.

They grow with memory cgroups times shrinkers, of which each mount has one.
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

_BITS = 64
_DEFERRED = 8
_MOST_UNITS = 1 << 12
"""Of 64 shrinkers each: more than any machine has mounts."""


@dataclass(frozen=True)
class ShrinkerMaps:
    """What the maps take."""

    bytes: Counts
    """By row of the memory cgroup."""
    shrinkers: int | None
    """``shrinker_nr_max``: how many shrinkers a map has room for."""
    unreadable: int = 0


def shrinker_maps(
    memory: Memory, groups: Memcgs, footprint: Footprint, tally: Tally
) -> ShrinkerMaps:
    """The maps of all memory cgroups, dying ones included; nothing before 4.19.

    :param tally: takes note of what the allocator has for them
    """
    prog = memory.prog
    size = np.zeros(len(groups), np.int64)
    try:
        shrinkers: int | None = int(prog["shrinker_nr_max"])
    except LookupError:
        shrinkers = None
    except drgn.FaultError as error:
        footprint.faults.note(error)
        shrinkers = None
    if shrinkers is not None and not 0 <= shrinkers <= _MOST_UNITS * _BITS:
        shrinkers = None
    try:
        pernode = layout(
            prog,
            "struct mem_cgroup_per_node",
            # 5.13 made the map (4.19) part of a shrinker_info.
            {"map": ("shrinker_info", "shrinker_map")},
        )
        nodeinfo = drgn.offsetof(prog.type("struct mem_cgroup"), "nodeinfo")
    except (LookupError, LayoutError):
        return ShrinkerMaps(size, shrinkers)
    nodes = nr_node_ids(prog)
    steps = np.arange(nodes, dtype=np.uint64) * np.uint64(8) + np.uint64(nodeinfo)
    places = (groups.address[:, None] + steps[None, :]).ravel()
    owners = np.repeat(np.arange(len(groups)), nodes)
    pointers, ok = gather_words(memory, places, word_dtype(prog), footprint.faults)
    maps = gather(memory, pointers, pernode, footprint.faults)
    unreadable = int((~ok).sum() + (ok & (pointers != 0) & ~maps.readable).sum())
    there = maps["map"] != 0
    address, owners = maps["map"][there], owners[there]
    bits = -(-(shrinkers or 0) // _BITS)
    info = "struct shrinker_info"
    if pernode.fields["map"].path == "shrinker_map":
        asked = drgn.sizeof(prog.type("struct memcg_shrinker_map")) + 8 * bits
    elif prog.type(info).has_member("unit"):
        # 6.7 parts them, so that they need not be copied to grow.
        asked = drgn.offsetof(prog.type(info), "unit") + 8 * bits
        unreadable += _units(memory, address, owners, size, footprint, tally)
    else:
        asked = drgn.sizeof(prog.type(info)) + _BITS * _DEFERRED * bits + 8 * bits
    np.add.at(size, owners, footprint.sizes(address, asked, tally))
    return ShrinkerMaps(size, shrinkers, unreadable)


def _units(
    memory: Memory,
    address: Words,
    owners: Counts,
    size: Counts,
    footprint: Footprint,
    tally: Tally,
) -> int:
    """Add to ``size`` what the parts of maps take; how many could not be read."""
    type_ = memory.prog.type("struct shrinker_info")
    read = gather(memory, address, layout(memory.prog, type_, ["map_nr_max"]), footprint.faults)
    counts = -(-read["map_nr_max"].astype(np.int64) // _BITS)
    sane = (counts >= 0) & (counts <= _MOST_UNITS)
    lost = int((~read.readable | ~sane).sum())
    word = word_dtype(memory.prog)
    asked = drgn.sizeof(memory.prog.type("struct shrinker_info_unit"))
    first = np.uint64(drgn.offsetof(type_, "unit"))
    # All maps are of the same size, but for those that are being replaced.
    for count in np.unique(counts[sane]).tolist():
        rows = np.flatnonzero(sane & (counts == count))
        units, ok = gather_arrays(memory, address[rows] + first, count, word, footprint.faults)
        lost += int((~ok).sum())
        there = units != 0
        owner = np.repeat(owners[rows], count)[there.ravel()]
        np.add.at(size, owner, footprint.sizes(units[there], asked, tally))
    return lost
