# SPDX-License-Identifier: LGPL-2.1-or-later
"""What per-memcg lists cost at each stage of the series that went into 5.18: arithmetic alone.

The published case (four nodes, 24,574 ids, 952 super blocks) and the published test of the series
(10,000 memory cgroups and as many mounts on two nodes) come out of it; tests hold it to both.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.memory import Words
from kcensus.kernel.memcg.ids import MAX_IDS
from kcensus.kernel.mm.allocator import Allocator

_FEWEST_IDS = 4
LIST_LRU_ONE = 24
"""Bytes of a ``list_lru_one`` up to 6.12: a list_head and a counter. 6.13 added a lock."""
LIST_LRU_NODE = 64
"""Bytes of a ``list_lru_node``: a cache line of x86."""
HEADER = 16
"""Bytes of the ``rcu_head`` before the arrays (since 4.16 or 4.17) and in a ``list_lru_memcg``."""
XA_NODE = 584
"""Bytes of a slot of ``radix_tree_node``."""
LRUS_PER_MOUNT = 2
"""A super block has one list_lru for dentries and one for inodes."""


def nr_cache_ids(memcgs: int) -> int:
    """``memcg_nr_cache_ids`` after that many memory cgroups have existed at the same time.

    An id that does not fit makes it twice the id plus two (up to 5.17); it never shrinks.
    """
    ids = 0
    while ids < min(memcgs, MAX_IDS):
        ids = min(max(2 * (ids + 1), _FEWEST_IDS), MAX_IDS)
    return ids


def memcgs_at_once(ids: int) -> int:
    """How many memory cgroups must have existed at the same time for ``memcg_nr_cache_ids`` to be
    ``ids``, at least: the inverse of :func:`nr_cache_ids`.

    The lowest free id is taken, so the id that made it grow was the highest of as many.
    """
    if ids == _FEWEST_IDS:
        return 1
    # At the limit it does not double: what is next below the limit did not suffice.
    return nr_cache_ids(MAX_IDS // 2 + 1) + 1 if ids == MAX_IDS else ids // 2


def formula(nodes: int, ids: int, lrus: int, slot: int = 32) -> int:
    """Bytes by the published formula: a kmalloc-32 object for each node, id and list_lru."""
    return nodes * ids * slot * lrus


def xa_nodes(lane: Lanes, index: Words, bits: int = 6) -> int:
    """How many ``xa_node`` some XArrays have.

    :param lane: which XArray each index belongs to
    :param index: the indexes in use; of one array, 0 alone needs no node
    :param bits: of an index per level
    """
    if not len(lane):
        return 0
    lanes, at = np.unique(lane, return_inverse=True)
    top = np.zeros(len(lanes), np.uint64)
    np.maximum.at(top, at, index)
    count, level = 0, 0
    while True:
        # A level exists if the highest index does not fit into those below it.
        tall = top >> np.uint64(level * bits) > 0
        if not tall.any():
            return count
        rows = tall[at]
        slot = index[rows] >> np.uint64((level + 1) * bits)
        count += len(np.unique((at[rows].astype(np.uint64) << np.uint64(32)) | slot))
        level += 1


class Stage(enum.Enum):
    """How the lists of memory cgroups are kept."""

    ARRAYS = "arrays per node"
    """4.0 to 5.17: for each node an array of pointers, and a list behind each."""
    PER_MEMCG = "arrays per memcg"
    """Patch 7 of the series: one array for all nodes; behind each pointer the lists of all."""
    ON_DEMAND = "on demand"
    """Patch 70: the lists come with the first object that a cgroup puts on them."""
    XARRAY = "xarray"
    """Patch 72, and so 5.18: an XArray in place of the array."""


PATCH = {
    Stage.PER_MEMCG: "list-lru-per-memcg-arrays",
    Stage.ON_DEMAND: "list-lru-on-demand",
    Stage.XARRAY: "list-lru-xarray",
}
"""Identifiers in the patch catalogue."""
ADDS = {
    Stage.ARRAYS: "as it was up to 5.17",
    Stage.PER_MEMCG: "patch 7",
    Stage.ON_DEMAND: "patch 70",
    Stage.XARRAY: "patch 72; 5.18",
}


@dataclass(frozen=True)
class Population:
    """All that the cost depends on."""

    nodes: int
    """NUMA nodes that can be."""
    ids: int
    """``memcg_nr_cache_ids``"""
    lrus: int
    """list_lrus that know memory cgroups."""
    pairs: int = 0
    """A list_lru and a memory cgroup that has ever put something on it."""
    xa_nodes: int = 0
    """For those pairs."""
    others: int = 0
    """list_lrus that know no memory cgroups."""


@dataclass(frozen=True)
class Cost:
    """Bytes of one stage."""

    stage: Stage
    node_arrays: int
    """``list_lru.node``, which is the same at all stages."""
    pointers: int
    """Arrays of pointers, or the nodes of XArrays."""
    lists: int

    @property
    def total(self) -> int:
        """Bytes altogether."""
        return self.node_arrays + self.pointers + self.lists


def cost(
    stage: Stage,
    of: Population,
    allocator: Allocator,
    *,
    node_bytes: int = LIST_LRU_NODE,
    xa_node_bytes: int = XA_NODE,
) -> Cost:
    """What a stage costs.

    :param node_bytes: size of a ``list_lru_node``
    :param xa_node_bytes: what an ``xa_node`` takes
    """
    array = allocator.size(HEADER + 8 * of.ids)
    every_node = LIST_LRU_ONE * of.nodes
    if stage is Stage.ARRAYS:
        pointers = of.lrus * of.nodes * array
        lists = of.lrus * of.nodes * of.ids * allocator.size(LIST_LRU_ONE)
    elif stage is Stage.PER_MEMCG:
        pointers = of.lrus * array
        lists = of.lrus * of.ids * allocator.size(every_node)
    elif stage is Stage.ON_DEMAND:
        pointers = of.lrus * array
        lists = of.pairs * allocator.size(every_node)
    else:
        pointers = of.xa_nodes * xa_node_bytes
        lists = of.pairs * allocator.size(HEADER + every_node)
    nodes = (of.lrus + of.others) * allocator.size(node_bytes * of.nodes)
    return Cost(stage, nodes, pointers, lists)


LEFT_OUT = (
    "the super blocks, memory cgroups and whatever else a mount or a cgroup takes",
    "list_lrus other than those of super blocks, and shrinker maps",
    "free slots and tails of slabs, and what CPUs keep for themselves",
    "that kvmalloc() may resort to vmalloc(), which takes whole pages and no power of two of them",
    "lists of cgroups that used a mount, once they come on demand (pairs=N adds N of them)",
)
"""What :func:`what_if` leaves out of its figures."""


@dataclass(frozen=True)
class WhatIf:
    """The model of a machine that one does not have."""

    population: Population
    memcgs: int
    mounts: int
    costs: tuple[Cost, ...]
    """In the order of :class:`Stage`."""
    formula: int
    """Bytes by the published formula."""


def what_if(text: str, allocator: Allocator | None = None) -> WhatIf:
    """Cost of a machine described as ``nodes=2,memcgs=10000,mounts=10000``.

    Further keys: ``ids`` (memcg_nr_cache_ids, by default what ``memcgs`` make it) and ``pairs``
    (mounts that a memory cgroup uses, summed over all cgroups; by default 0).

    :raises ValueError: the description is none; the message says why
    """
    given = _numbers(text, ("nodes", "memcgs", "mounts", "ids", "pairs"))
    missing = [key for key in ("nodes", "mounts") if key not in given]
    if "memcgs" not in given and "ids" not in given:
        missing.append("memcgs")
    if missing:
        raise ValueError(f"{missing[0]}=NUMBER is missing in {text!r}")
    memcgs = given["memcgs"] if "memcgs" in given else memcgs_at_once(given["ids"])
    ids = given["ids"] if "ids" in given else nr_cache_ids(memcgs)
    lrus, pairs = given["mounts"] * LRUS_PER_MOUNT, given.get("pairs", 0) * LRUS_PER_MOUNT
    if pairs > lrus * memcgs:
        raise ValueError(f"pairs={given['pairs']}: no more than memcgs times mounts can be in use")
    population = Population(given["nodes"], ids, lrus, pairs, _spread(pairs, lrus, memcgs))
    allocator = allocator or Allocator()
    costs = tuple(cost(stage, population, allocator) for stage in Stage)
    slot = allocator.size(LIST_LRU_ONE)
    total = formula(given["nodes"], ids, lrus, slot)
    return WhatIf(population, memcgs, given["mounts"], costs, total)


def _spread(pairs: int, lrus: int, memcgs: int) -> int:
    """Nodes of XArrays if ``pairs`` spread evenly over them, and each's over all ids."""
    if not pairs:
        return 0
    used = min(pairs, lrus)
    index = np.unique(np.linspace(1, max(memcgs, 1), -(-pairs // used)).astype(np.uint64))
    return used * xa_nodes(np.zeros(len(index), np.int64), index)


def _numbers(text: str, keys: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        key, equals, number = (piece.strip() for piece in part.partition("="))
        if key not in keys or not equals:
            raise ValueError(
                f"{part.strip()!r} is none of {', '.join(f'{each}=N' for each in keys)}"
            )
        if not number.isdecimal() or not int(number) or int(number) > _MOST:
            raise ValueError(f"{part.strip()!r}: N is a number from 1 to {_MOST:,}")
        found[key] = int(number)
    if found.get("ids", 0) > MAX_IDS or found.get("memcgs", 0) > MAX_IDS:
        raise ValueError(f"there are no more than {MAX_IDS:,} ids of memory cgroups")
    return found


_MOST = 10**9
