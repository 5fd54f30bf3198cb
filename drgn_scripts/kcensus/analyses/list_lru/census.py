# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of list_lrus: what they hold, and what they take."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from drgn.helpers.linux.nodemask import for_each_node, nr_node_ids

from kcensus.analyses.list_lru.model import (
    LIST_LRU_ONE,
    XA_NODE,
    Cost,
    Population,
    Stage,
    cost,
    formula,
    nr_cache_ids,
    xa_nodes,
)
from kcensus.analyses.list_lru.slots import (
    NODE_ARRAYS,
    POINTERS,
    SHRINKER_MAPS,
    SlotReader,
    Slots,
)
from kcensus.engine.memory import Faults, Words
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.ids import MemcgIds, memcg_ids
from kcensus.kernel.memcg.memcgs import Memcgs, memcgs
from kcensus.kernel.memcg.shrinker_maps import ShrinkerMaps, shrinker_maps
from kcensus.kernel.mm.footprint import CacheUse, Counts, Footprint, Tally, cache_use
from kcensus.kernel.mm.list_lru import ListLrus, ListLruTypes, list_lrus
from kcensus.kernel.vfs.super_blocks import SuperBlocks, super_blocks


@dataclass(frozen=True)
class Projection:
    """What the lists of this dump cost at each stage of the series."""

    population: Population
    now: Cost
    """As measured, at the stage that this kernel is at."""
    model: Cost
    """What the model makes of that."""
    costs: dict[Stage, Cost]
    """All stages: this one as measured, others by the model with node arrays as measured."""
    formula: int
    """Bytes by the published formula."""


@dataclass(frozen=True)
class ListLruCensus:
    """Everything about the list_lrus of one kernel; arrays are over list_lrus."""

    blocks: SuperBlocks
    lrus: ListLrus
    groups: Memcgs
    ids: MemcgIds
    slots: Slots
    node_bytes: Counts
    pointer_bytes: Counts
    """Arrays of pointers; zeros since 5.18."""
    shrinker_maps: ShrinkerMaps
    tallies: dict[str, Tally]
    """What the allocator has for each kind of structure."""
    use: CacheUse
    """Of the slab caches that they are in."""
    projection: Projection
    footprint: Footprint
    report: ScanReport
    nodes: int
    """NUMA nodes that can be."""
    ids_now: int
    """``memcg_nr_cache_ids``; since 5.18 what it would be."""

    @property
    def bytes(self) -> Counts:
        """Structural bytes of each list_lru: all but the shrinker maps."""
        slots = self.slots
        return self.node_bytes + self.pointer_bytes + slots.bytes + slots.xa_node_bytes

    @property
    def items(self) -> Counts:
        """Items on all lists of each list_lru."""
        items: Counts = self.lrus.root_items.sum(axis=1) + self.slots.memcg_items
        return items

    @property
    def newer(self) -> int | None:
        """How many memory cgroups online were created after the oldest that is dying."""
        serial, alive = self.groups.serial, self.groups.alive
        if not serial.any() or alive.all():
            return None
        return int((serial[alive] > serial[~alive].min()).sum())

    @property
    def structural_bytes(self) -> int:
        """All of them, shrinker maps included."""
        return int(self.bytes.sum() + self.shrinker_maps.bytes.sum())


def take(kernel: Kernel) -> ListLruCensus:
    """Take the census.

    :raises NoListLru: the kernel has no list_lrus for dentries and inodes
    :raises UnsupportedAllocator: the slab allocator is not SLUB
    """
    prog, memory = kernel.prog, kernel.memory
    blocks = super_blocks(kernel)
    lrus = list_lrus(kernel)
    groups = memcgs(kernel)
    ids = memcg_ids(memory, groups, lrus.has_xarray)
    footprint = Footprint(kernel.slab_map, Faults())
    reader = SlotReader(footprint, lrus, ids.live)
    slots = reader.read()
    tallies = {NODE_ARRAYS: Tally(), POINTERS: Tally(), SHRINKER_MAPS: Tally(), **slots.tallies}
    node_size = ListLruTypes(prog).node_size
    node_bytes = footprint.sizes(lrus.node, node_size * nr_node_ids(prog), tallies[NODE_ARRAYS])
    pointer_bytes = np.zeros(len(lrus), np.int64)
    arrays = lrus.memcg_lrus != 0
    if arrays.any():
        asked = reader.header + 8 * len(ids.row)
        sizes = footprint.sizes(lrus.memcg_lrus[arrays], asked, tallies[POINTERS])
        np.add.at(pointer_bytes, np.nonzero(arrays)[0], sizes)
    maps = shrinker_maps(memory, groups, footprint, tallies[SHRINKER_MAPS])
    tallies = {kind: tally for kind, tally in sorted(tallies.items()) if tally.objects}
    places = {place for tally in tallies.values() for place in tally.objects if place >= 0}
    report = ScanReport()
    use = cache_use(footprint.slab_map, np.array(sorted(places), np.int64), report)
    nodes = len(list(for_each_node(prog)))
    ids_now = ids.cache_ids
    if ids_now is None:
        # The root has the first of these ids and had none then: what is left counts from 0.
        ids_now = nr_cache_ids(max(ids.highest - 1, 0))
    now = Cost(
        Stage.XARRAY if lrus.has_xarray else Stage.ARRAYS,
        node_arrays=int(node_bytes.sum()),
        pointers=int(pointer_bytes.sum() + slots.xa_node_bytes.sum()),
        lists=int(slots.bytes.sum()),
    )
    if lrus.has_xarray:
        # There may be millions, and they have been counted.
        pairs, pair_nodes = int(slots.slots.sum()), int(slots.xa_nodes.sum())
    else:
        lru, index = _pairs(groups, ids, slots)
        pairs, pair_nodes = len(lru), xa_nodes(lru, index)
    aware = int(lrus.aware.sum())
    population = Population(nodes, ids_now, aware, pairs, pair_nodes, len(lrus) - aware)
    return ListLruCensus(
        blocks=blocks,
        lrus=lrus,
        groups=groups,
        ids=ids,
        slots=slots,
        node_bytes=node_bytes,
        pointer_bytes=pointer_bytes,
        shrinker_maps=maps,
        tallies=tallies,
        use=use,
        projection=_projection(population, now, footprint, node_size),
        footprint=footprint,
        report=report,
        nodes=nodes,
        ids_now=ids_now,
    )


def _projection(
    population: Population, now: Cost, footprint: Footprint, node_size: int
) -> Projection:
    allocator = footprint.allocator()
    stride = XA_NODE
    for cache in footprint.slab_map.caches:
        if cache.name == "radix_tree_node":
            stride = cache.slot_size
    models = {
        stage: cost(stage, population, allocator, node_bytes=node_size, xa_node_bytes=stride)
        for stage in Stage
    }
    # The arrays of nodes are the same at all stages, and these are measured.
    costs = {stage: replace(found, node_arrays=now.node_arrays) for stage, found in models.items()}
    costs[now.stage] = now
    slot = allocator.size(LIST_LRU_ONE)
    return Projection(
        population=population,
        now=now,
        model=models[now.stage],
        costs=costs,
        formula=formula(population.nodes, population.ids, population.lrus, slot),
    )


def _pairs(groups: Memcgs, ids: MemcgIds, slots: Slots) -> tuple[Counts, Words]:
    """List_lrus and ids that would have a slot if slots came with the first item.

    They are those that hold something, and those of the cgroups above: allocation provides for the
    whole line. What has been used and is empty now is not known.
    """
    lru, id_ = slots.pair_columns()
    if not len(lru):
        return lru, id_.astype(np.uint64)
    count = len(groups)
    found = key = np.unique(lru * count + ids.row[id_])
    while len(key):
        above = groups.parent[key % count]
        key = (key - key % count + above)[above > 0]
        key = np.setdiff1d(key, found)
        found = np.union1d(found, key)
    return found // count, groups.kmemcg_id[found % count].astype(np.uint64)
