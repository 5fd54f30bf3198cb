# SPDX-License-Identifier: LGPL-2.1-or-later
"""The list_lrus of one kernel: their items, their memory, and its projection."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import drgn
import numpy as np
from drgn.helpers.linux.bitops import for_each_set_bit

from kcensus.analyses.list_lru import model
from kcensus.analyses.list_lru.model import Cost, Population, Projected, Stage, projected
from kcensus.analyses.list_lru.slots import EMPTY, NODE_ARRAYS, POINTERS, UNUSED, SlotReader
from kcensus.engine.memory import Faults, Numbers
from kcensus.engine.slub.percpu import node_ids
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.ids import memcg_ids
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.shrinker_maps import shrinker_maps
from kcensus.kernel.mm.footprint import Footprint, cache_use
from kcensus.kernel.vfs.list_lru import counted_items, list_lrus
from kcensus.kernel.vfs.super_blocks import super_blocks


class Figures:
    """Figures of list_lrus, shape (list_lrus,), and of their memory cgroups."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.blocks = super_blocks(kernel)
        self.lrus = lrus = list_lrus(kernel)
        self.groups = memcgs(kernel)
        self.ids = memcg_ids(kernel.memory, self.groups, lrus.has_xarray)
        possible = kernel.prog["node_states"][kernel.prog["N_POSSIBLE"]].bits
        self.nodes = len(list(for_each_set_bit(possible, node_ids(kernel.prog))))
        """Possible NUMA nodes."""
        self.footprint = Footprint(kernel.slab_map, Faults())
        reader = SlotReader(self.footprint, lrus, self.ids.in_use)
        self.slots = reader.read()
        self.items_after = counted_items(kernel.memory, lrus) if kernel.live else None
        """Counters of items after the lists were read, on a running kernel."""
        self.tally = self.slots.tally
        """All structures by kind, and the caches or pages with them."""
        self.node_size = drgn.sizeof(kernel.prog.type("struct list_lru_node"))
        has_node, asked = lrus.node != 0, self.node_size * node_ids(kernel.prog)
        self.node_bytes: Numbers = np.zeros(len(lrus), np.int64)
        self.node_bytes[has_node] = self.footprint.sizes(
            lrus.node[has_node], asked, NODE_ARRAYS, self.tally
        )
        array, node = np.nonzero(lrus.memcg_lrus)
        asked = reader.header + 8 * len(self.ids.row)
        sizes = self.footprint.sizes(lrus.memcg_lrus[array, node], asked, POINTERS, self.tally)
        self.pointer_bytes: Numbers = np.bincount(array, sizes, len(lrus)).astype(np.int64)
        """Bytes of the arrays of pointers; zeros since v5.18."""
        self.shrinker_maps = shrinker_maps(kernel.memory, self.groups, self.footprint, self.tally)
        self.report = ScanReport()
        caches = np.unique([place for _, place in self.tally.objects])
        self.use = cache_use(kernel.slab_map, caches[caches >= 0].astype(np.int64), self.report)
        """Use of the slab caches with these structures."""
        self.bytes = self.node_bytes + self.pointer_bytes + self.slots.xa_node_bytes
        self.bytes += self.slots.bytes.sum(axis=1)
        self.items: Numbers = lrus.root_items.sum(axis=1) + self.slots.items
        self.map_bytes = int(self.shrinker_maps.bytes.sum())
        self.structural_bytes = int(self.bytes.sum()) + self.map_bytes
        """Bytes of all structures, shrinker maps included."""
        self.empty_bytes = int(self.slots.bytes[:, EMPTY].sum())
        self.unused_bytes = int(self.slots.bytes[:, UNUSED].sum())
        # The root has the lowest id; before v5.18 it had none, and the others started at 0.
        estimate = model.nr_cache_ids(max(self.ids.highest - 1, 0))
        self.nr_cache_ids = estimate if self.ids.cache_ids is None else self.ids.cache_ids

    def by_group(self, by_id: Numbers) -> Numbers:
        """Return the sums of numbers by id, shape (memcgs + 1,): the last one for other ids."""
        count = len(self.groups)
        # A weighted bincount() sums in doubles, which damaged values overflow.
        sums = np.zeros(count + 1, np.int64)
        np.add.at(sums, np.where(self.ids.row >= 0, self.ids.row, count), by_id)
        return sums

    @cached_property
    def items_by_group(self) -> Numbers:
        """Items by kind and memory cgroup, shape (kinds, memory cgroups + 1)."""
        items = np.stack([self.by_group(values) for values in self.slots.items_by_id])
        # A list_lru with per-memcg lists has the root's items on its own lists.
        row = np.where(self.lrus.aware, 0, len(self.groups))
        np.add.at(items, (self.lrus.kind, row), self.lrus.root_items.sum(axis=1))
        return items

    @property
    def list_bytes_by_group(self) -> Numbers:
        """Bytes of lists by memory cgroup, as :meth:`by_group`."""
        return self.by_group(self.slots.bytes_by_id)

    @property
    def map_bytes_by_group(self) -> Numbers:
        """Bytes of shrinker maps by memory cgroup, as :meth:`by_group`."""
        return np.append(self.shrinker_maps.bytes, 0)

    # The model

    @cached_property
    def measured(self) -> Cost:
        """Measured cost, at the stage of this kernel."""
        return Cost(
            Stage.XARRAY if self.lrus.has_xarray else Stage.ARRAYS,
            node_arrays=int(self.node_bytes.sum()),
            pointers=int(self.pointer_bytes.sum() + self.slots.xa_node_bytes.sum()),
            lists=int(self.slots.bytes.sum()),
            maps=self.map_bytes,
        )

    @cached_property
    def population(self) -> Population:
        """The size of this kernel's list_lrus, as input of the model."""
        aware = int(self.lrus.aware.sum())
        pairs = int(self.slots.slots.sum()), int(self.slots.xa_nodes.sum())
        if not self.lrus.has_xarray:
            pairs = self._pairs()
        return Population(
            self.nodes,
            self.nr_cache_ids,
            aware,
            *pairs,
            others=len(self.lrus) - aware,
            memcgs=len(self.groups),
            shrinkers=self.shrinker_maps.shrinkers or 0,
        )

    def _pairs(self) -> tuple[int, int]:
        """Return the number of slots allocated on demand, and of nodes of their XArrays.

        An allocation includes the slots of the parents of a memory cgroup. Slots that are empty now
        are unknown, although they may have been used.
        """
        pairs = np.unique(np.concatenate([np.empty(0, np.int64), *self.slots.pairs]))
        groups, count = self.groups, max(len(self.groups), 1)
        seen = key = (pairs >> 32) * count + self.ids.row[pairs & 0xFFFFFFFF]
        while len(key):
            above = groups.parent[key % count]
            key = np.setdiff1d((key - key % count + above)[above > 0], seen)
            seen = np.union1d(seen, key)
        ids = groups.kmemcg_id[seen % count] if len(seen) else seen
        return len(seen), model.xa_nodes(seen // count, ids.astype(np.uint64))

    @cached_property
    def models(self) -> dict[Stage, Cost]:
        """Modelled cost of each stage."""
        slots = {cache.name: cache.slot_size for cache in self.footprint.slab_map.caches}
        xa_node, allocator = slots.get("radix_tree_node", model.XA_NODE), self.footprint.allocator()
        sizes = {"node_bytes": self.node_size, "xa_node_bytes": xa_node}
        return {each: model.cost(each, self.population, allocator, **sizes) for each in Stage}

    @property
    def projection(self) -> list[Projected]:
        """The measured cost, then that of each stage."""
        return projected(self.costs.values(), self.measured)

    @cached_property
    def costs(self) -> dict[Stage, Cost]:
        """Cost of each stage: modelled, except this kernel's stage and the arrays of nodes."""
        measured = self.measured
        arrays = measured.node_arrays
        costs = {stage: replace(each, node_arrays=arrays) for stage, each in self.models.items()}
        return costs | {measured.stage: measured}

    @property
    def lower_bounds(self) -> tuple[Stage, ...]:
        """Stages that the model may underrate: empty lists that were in use, or ids that were."""
        if self.measured.stage is Stage.XARRAY:
            return Stage.ARRAYS, Stage.PER_MEMCG, Stage.ON_DEMAND
        return Stage.ON_DEMAND, Stage.XARRAY

    @property
    def formula(self) -> int:
        """The published estimate, bytes."""
        of, slot = self.population, self.footprint.allocator().size(model.LIST_LRU_ONE)
        return model.formula(of.nodes, of.ids, of.lrus, slot)

    @property
    def needed(self) -> tuple[int, int] | tuple[None, None]:
        """Least ``memcg_nr_cache_ids``, and bytes of arrays and lists with it; None since v5.18."""
        if self.ids.cache_ids is None:
            return None, None
        population = replace(self.population, ids=self.ids.highest + 1)
        cost = model.cost(Stage.ARRAYS, population, self.footprint.allocator())
        return population.ids, cost.pointers + cost.lists
