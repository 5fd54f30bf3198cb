# SPDX-License-Identifier: LGPL-2.1-or-later
"""A model of the cost of per-memcg lists at each stage of the series merged in v5.18.

It is tested against the published case (four nodes, 24,574 ids, 952 super blocks) and the published
test of the series (10,000 memory cgroups and as many mounts on two nodes).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kcensus.analyses import ParamError
from kcensus.engine.chase import Lanes
from kcensus.engine.memory import Words
from kcensus.kernel.memcg.ids import MAX_IDS
from kcensus.kernel.mm.footprint import Allocator

_MIN_IDS = 4
"""MEMCG_CACHES_MIN_SIZE."""
_MAX_NUMBER = 10**9
LIST_LRU_ONE = 24
"""Bytes of a ``list_lru_one``: a list_head and a counter. (Linux kernel commit fb56fdf8b9a2
("mm/list_lru: split the lock to per-cgroup scope") (in v6.13) added a lock.)"""
LIST_LRU_NODE = 64
"""Bytes of a ``list_lru_node``: a cache line."""
HEADER = 16
"""Bytes of the ``rcu_head`` in a ``list_lru_memcg``, since Linux kernel commit 0c7c1bed7e13 ("mm:
make counting of list_lru_one::nr_items lockless") (in v4.17)."""
XA_NODE = 584
"""Bytes of a slot of the cache ``radix_tree_node``."""
_UNIT_SHRINKERS = 64
"""Shrinkers in one step of a map's growth."""
LRUS_PER_MOUNT = 2
"""A super block has one list_lru for dentries and one for inodes."""


def nr_cache_ids(memcgs: int) -> int:
    """Return ``memcg_nr_cache_ids`` after ``memcgs`` memory cgroups have existed at the same time.

    An id that does not fit raises it to 2 x (id + 1); it never shrinks. (mm/memcontrol.c,
    memcg_alloc_cache_id(), up to v5.17)
    """
    ids = 0
    while ids < min(memcgs, MAX_IDS):
        ids = min(max(2 * (ids + 1), _MIN_IDS), MAX_IDS)
    return ids


def memcgs_at_once(ids: int) -> int:
    """Return the least number of memory cgroups that have existed at the same time.

    It is the inverse of :func:`nr_cache_ids`: the last id that raised the value was the highest.
    """
    if ids == _MIN_IDS:
        return 1
    # At the limit it does not double: the next smaller value did not suffice.
    return nr_cache_ids(MAX_IDS // 2 + 1) + 1 if ids == MAX_IDS else ids // 2


def formula(nodes: int, ids: int, lrus: int, slot: int = 32) -> int:
    """Return the published estimate: a kmalloc-32 object for each node, id and list_lru."""
    return nodes * ids * slot * lrus


def xa_nodes(lane: Lanes, index: Words, bits: int = 6) -> int:
    """Return the number of ``xa_node`` in XArrays with these indexes; index 0 alone needs none.

    :param lane: number of each index's XArray, shape (indexes,)
    """
    if not len(lane):
        return 0
    lanes, array = np.unique(lane, return_inverse=True)
    highest = np.zeros(len(lanes), np.uint64)
    np.maximum.at(highest, array, index)
    count, level = 0, 0
    # An array has another level if its highest index does not fit into the lower ones.
    while (rows := (highest >> np.uint64(level * bits) > 0)[array]).any():
        slot = index[rows] >> np.uint64((level + 1) * bits)
        count += len(np.unique((array[rows].astype(np.uint64) << np.uint64(32)) | slot))
        level += 1
    return count


class Stage(enum.Enum):
    """Allocation of per-memcg lists; patches are numbered as in version 3 of the series."""

    ARRAYS = "arrays per node", "up to 5.17", ""
    """An array of ``list_lru_one`` pointers per node, with a list for every id. Since Linux kernel
    commit 60d3fd32a7a9 ("list_lru: introduce per-memcg lists") (in v4.0)."""
    PER_MEMCG = "arrays per memcg", "patch 7 of 76", "list-lru-per-memcg-arrays"
    """One array; each pointer leads to the lists of all nodes. Since Linux kernel commit
    6a6b7b77cc0f ("mm: list_lru: transpose the array of per-node per-memcg lru lists") (in
    v5.18)."""
    ON_DEMAND = "on demand", "patch 70 of 76", "list-lru-on-demand"
    """The lists are allocated with the first object of a memory cgroup. Since Linux kernel commit
    5abc1e37afa0 ("mm: list_lru: allocate list_lru_one only when needed") (in v5.18)."""
    XARRAY = "xarray", "patch 72 of 76 (5.18)", "list-lru-xarray"
    """An XArray instead of the array. Since Linux kernel commit bbca91cca9a9 ("mm: list_lru:
    replace linear array with xarray") (in v5.18)."""

    def __init__(self, how: str, source: str, patch: str) -> None:
        self.how = how
        self.source = source
        """Version or patch of the series with this stage."""
        self.patch = patch
        """Identifier in the patch catalogue."""


@dataclass(frozen=True)
class Population:
    """The numbers of objects that determine the cost."""

    nodes: int
    """Possible NUMA nodes."""
    ids: int
    """``memcg_nr_cache_ids``"""
    lrus: int
    """list_lrus with per-memcg lists."""
    pairs: int = 0
    """Pairs of a list_lru and a memory cgroup that has ever had an object on it."""
    xa_nodes: int = 0
    """Nodes of the XArrays that hold these pairs."""
    others: int = 0
    """list_lrus without per-memcg lists."""
    memcgs: int = 0
    """Memory cgroups, offline ones included: each has a shrinker map; lists depend on ids alone."""
    shrinkers: int = 0
    """``shrinker_nr_max``; 0 leaves out shrinker maps."""


@dataclass(frozen=True)
class Cost:
    """Cost of one stage, bytes."""

    stage: Stage
    node_arrays: int
    """``list_lru.node``: the same at all stages."""
    pointers: int
    """Arrays of pointers, or the nodes of XArrays."""
    lists: int
    """``list_lru_one``, or ``list_lru_memcg`` with the lists of all nodes."""
    maps: int = 0
    """Shrinker maps, which the series does not touch: in no other figure."""

    @property
    def total(self) -> int:
        """Sum of all parts without shrinker maps."""
        return self.node_arrays + self.pointers + self.lists


def cost(
    stage: Stage,
    of: Population,
    allocator: Allocator,
    *,
    node_bytes: int = LIST_LRU_NODE,
    xa_node_bytes: int = XA_NODE,
) -> Cost:
    """Return the cost of a stage, given the sizes of ``list_lru_node`` and ``xa_node``."""
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
    return Cost(stage, nodes, pointers, lists, _maps(stage, of, allocator))


def _maps(stage: Stage, of: Population, allocator: Allocator) -> int:
    """Return the bytes of shrinker maps.

    They are bitmaps until Linux kernel commit 3c6f17e6c5d0 ("mm: vmscan: add per memcg shrinker
    nr_deferred") (in v5.13). Since then, so in every kernel with the series, they count deferred
    objects of each shrinker as well. Since commit 307bececcd12 ("mm: shrinker: add a secondary
    array for shrinker_info::{map, nr_deferred}") (in v6.7), they are several allocations of the
    same total size or more.
    """
    units = -(-of.shrinkers // _UNIT_SHRINKERS)
    unit = 8 if stage is Stage.ARRAYS else 8 + 8 * _UNIT_SHRINKERS
    header = HEADER if stage is Stage.ARRAYS else 2 * HEADER
    return of.memcgs * of.nodes * allocator.size(header + units * unit) if units else 0


LEFT_OUT = (
    "super blocks, memory cgroups, and other memory of a mount or a cgroup",
    "list_lrus of other owners than super blocks, and shrinker maps",
    "free slots and tails of slabs, and free objects on per-CPU lists",
    "kvmalloc() that falls back to vmalloc(): whole pages, not 2^order pages",
    "lists on demand of cgroups that use a mount, without pairs=N",
)
"""Memory missing from :func:`what_if`."""


def what_if(text: str) -> Population:
    """Return the population of a machine described as ``nodes=2,memcgs=10000,mounts=10000``.

    Further keys: ``ids`` (memcg_nr_cache_ids, by default that of ``memcgs``) and ``pairs`` (mounts
    in use by a memory cgroup, summed over all memory cgroups; by default 0).

    :raises ParamError: the description is invalid
    """
    given = _numbers(text, "nodes", "memcgs", "mounts", "ids", "pairs")
    missing = [key for key in ("nodes", "mounts") if key not in given]
    if "memcgs" not in given and "ids" not in given:
        missing.append("memcgs")
    if missing:
        raise ParamError(f"--what-if: {missing[0]}=N is missing in {text!r}")
    memcgs = given["memcgs"] if "memcgs" in given else memcgs_at_once(given["ids"])
    ids = given["ids"] if "ids" in given else nr_cache_ids(memcgs)
    lrus, pairs = given["mounts"] * LRUS_PER_MOUNT, given.get("pairs", 0) * LRUS_PER_MOUNT
    if pairs > lrus * memcgs:
        raise ParamError(f"--what-if: pairs={given['pairs']} is more than memcgs times mounts")
    # Pairs are spread evenly over the XArrays, and over all ids in them.
    used = min(pairs, lrus)
    steps = np.linspace(1, max(memcgs, 1), -(-pairs // max(used, 1)))
    index = np.unique(steps.astype(np.uint64))
    nodes = used * xa_nodes(np.zeros(len(index), np.int64), index)
    return Population(given["nodes"], ids, lrus, pairs, nodes, memcgs=memcgs)


def _numbers(text: str, *keys: str) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for part in text.split(","):
        key, equals, number = (piece.strip() for piece in part.partition("="))
        if key not in keys or not equals:
            choices = ", ".join(f"{each}=N" for each in keys)
            raise ParamError(f"--what-if: unknown part {part.strip()!r} (choose from {choices})")
        bound = MAX_IDS if key in ("ids", "memcgs") else _MAX_NUMBER
        if not number.isdecimal() or not 1 <= int(number) <= bound:
            raise ParamError(
                f"--what-if: {part.strip()!r}: {number!r} is not an integer from 1 to {bound:,}"
            )
        numbers[key] = int(number)
    return numbers


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
