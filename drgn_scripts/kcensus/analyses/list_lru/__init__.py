# SPDX-License-Identifier: LGPL-2.1-or-later
"""What do per-memcg list_lrus cost, and who needs them?

Symptom: kmalloc-32 (or -64, -96) grows by gigabytes on a machine with many mounts on which many
memory cgroups come and go, and nothing gives it back. Up to 5.17 every super block keeps lists for
as many memory cgroups as have ever existed at the same time, whether they use it or not.
"""

from __future__ import annotations

from dataclasses import replace

import drgn
from drgn.helpers.linux.mm import totalram_pages

from kcensus.analyses import Analysis, AnalysisError, Context, Param
from kcensus.analyses.list_lru.census import ListLruCensus, take
from kcensus.analyses.list_lru.checks import list_lru_checks, list_lru_gaps, parse_before
from kcensus.analyses.list_lru.findings import list_lru_findings
from kcensus.analyses.list_lru.model import (
    LEFT_OUT,
    Stage,
    cost,
    what_if,
)
from kcensus.analyses.list_lru.tables import (
    lru_table,
    memcg_table,
    owner_table,
    projection_table,
    structure_table,
    superblock_table,
)
from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.kernel.mm.list_lru import MODULES, NoListLru
from kcensus.results import Column, Figure, Result, Table, Unit

_PROJECTED = {
    Stage.ARRAYS: ("projected_arrays_bytes", "all with arrays per node (up to 5.17)"),
    Stage.PER_MEMCG: ("projected_patch7_bytes", "all with arrays per memcg (patch 7)"),
    Stage.ON_DEMAND: ("projected_ondemand_bytes", "all with lists on demand (patch 70)"),
    Stage.XARRAY: ("projected_xarray_bytes", "all with XArrays (patch 72; 5.18)"),
}
"""Names and labels in the summary."""


def run(context: Context, what_if: str | None = None, before: str | None = None) -> Result:
    """Take the census and say what it means; with ``what_if`` only the model."""
    if what_if is not None:
        return _modelled(context.result("list-lru"), what_if)
    try:
        earlier = parse_before(before)
    except ValueError as error:
        raise AnalysisError(f"--before: {error}") from None
    memory = Memory(context.prog, context.chunk_bytes)
    try:
        census = take(memory, context.jobs, context.progress)
    except (NoListLru, UnsupportedAllocator) as error:
        raise AnalysisError(str(error)) from None
    except LookupError as error:
        raise AnalysisError(
            f"this kernel's list_lrus cannot be found, its debug info lacks: {error}"
        ) from None
    result = context.result("list-lru")
    report = _Report(result, census, memory)
    report.write()
    result.checks += list_lru_checks(context.prog, census, earlier, context.live)
    result.gaps += list_lru_gaps(census)
    return result


def _modelled(result: Result, text: str) -> Result:
    try:
        model = what_if(text)
    except ValueError as error:
        raise AnalysisError(f"--what-if: {error}") from None
    result.measures = False
    of, size, count = model.population, Unit.BYTES, Unit.COUNT
    result.summary |= {
        "nodes": Figure(of.nodes, count, "NUMA nodes"),
        "memcgs": Figure(model.memcgs, count, "memory cgroups at the same time"),
        "superblocks": Figure(model.mounts, count, "mounts, each of a file system of its own"),
        "list_lrus": Figure(of.lrus, count, "list_lrus"),
        "nr_cache_ids": Figure(of.ids, count, "memcg_nr_cache_ids"),
        "formula_bytes": Figure(model.formula, size, "by the published formula"),
    }
    for found in model.costs:
        name, label = _PROJECTED[found.stage]
        result.summary[name] = Figure(found.total, size, label)
    result.tables["projection"] = projection_table({found.stage: found for found in model.costs})
    result.tables["left_out"] = Table.of(
        "What the model leaves out", {"what": (list(LEFT_OUT), Column(Unit.TEXT, "what", 0))}
    )
    return result


class _Report:
    """Turns a census into a result."""

    def __init__(self, result: Result, census: ListLruCensus, memory: Memory) -> None:
        self.result = result
        self.census = census
        self.prog = memory.prog
        self.ram = int(totalram_pages(self.prog)) << memory.page_shift
        self.slots = census.slots
        self.groups = census.groups
        self.now = census.projection.now
        self.costs = census.projection.costs
        self.maps = int(census.shrinker_maps.bytes.sum())
        self.dead = int(self.slots.dead_bytes.sum())
        self.empty = int(self.slots.empty_bytes.sum())
        self.serials = self._serials()

    def _serials(self) -> int | None:
        try:
            return int(self.prog["css_serial_nr_next"])
        except (LookupError, drgn.FaultError):
            return None

    def _shrunk(self) -> int | None:
        """Bytes of arrays and lists for as many ids as are needed; None since 5.18."""
        census = self.census
        if census.ids.cache_ids is None:
            return None
        population = replace(census.projection.population, ids=census.ids.highest + 1)
        found = cost(Stage.ARRAYS, population, census.footprint.allocator())
        return found.pointers + found.lists

    def write(self) -> None:
        """Fill the result."""
        census, tables = self.census, self.result.tables
        self._summary()
        tables["owners"] = owner_table(census)
        tables["superblocks"] = superblock_table(census)
        tables["lrus"] = lru_table(census)
        tables["memcgs"] = memcg_table(census, self.serials)
        tables["structures"] = structure_table(census)
        tables["projection"] = projection_table(
            self.costs, now=(self.now.stage, self.now), shrinker_bytes=self.maps
        )
        self.result.findings += list_lru_findings(census, self.ram)

    def _projected(self, stage: Stage) -> int:
        return self.costs[stage].total + self.maps

    def _summary(self) -> None:
        census, slots, groups, ids = self.census, self.slots, self.groups, self.census.ids
        size, count = Unit.BYTES, Unit.COUNT
        alive = int(groups.alive.sum())
        items = census.items
        figures = {
            "nr_cache_ids": Figure(ids.cache_ids, count, "memcg_nr_cache_ids"),
            "nr_cache_ids_if_arrays": Figure(
                census.ids_now, count, "the same, or what the highest id would make it"
            ),
            "nr_cache_ids_needed": Figure(
                None if ids.cache_ids is None else ids.highest + 1,
                count,
                "what it could shrink to: the highest id in use plus one",
            ),
            "bytes_if_shrunk": Figure(
                self._shrunk(), size, "arrays and lists if they did shrink to that"
            ),
            "ids_in_use": Figure(int(ids.live.sum()), count, "ids of online memory cgroups"),
            "highest_id": Figure(ids.highest, Unit.NONE, "highest of these ids"),
            "memcgs_online": Figure(alive, count, "memory cgroups online"),
            "memcgs_dying": Figure(len(groups) - alive, count, "memory cgroups dying"),
            "memcgs_offline": Figure(
                int((~groups.online).sum()), count, "of those, offline already"
            ),
            "memcgs_newer_than_dying": Figure(
                census.newer, count, "online ones created after the oldest dying one"
            ),
            "list_lrus": Figure(len(census.lrus), count, "list_lrus"),
            "memcg_aware": Figure(
                int(census.lrus.aware.sum()), count, "of those, with lists for memory cgroups"
            ),
            "superblocks": Figure(len(census.blocks), count, "super blocks"),
            "nodes": Figure(census.nodes, count, "possible NUMA nodes"),
            "items": Figure(int(items.sum()), count, "items on all lists"),
            "slots": Figure(int(slots.slots.sum()), count, "lists for memory cgroups"),
            "empty_slots": Figure(
                int(slots.empty.sum()), count, "of those, empty and of an online one"
            ),
            "dead_slots": Figure(int(slots.dead.sum()), count, "of those, of no online one"),
            "structural_bytes": Figure(census.structural_bytes, size, "all structures together"),
            "share_of_ram": Figure(
                census.structural_bytes / max(self.ram, 1), Unit.RATIO, "their share of RAM"
            ),
            "empty_bytes": Figure(self.empty, size, "empty lists of online memory cgroups"),
            "dead_slot_bytes": Figure(self.dead, size, "lists of no online memory cgroup"),
            "shrinker_map_bytes": Figure(self.maps, size, "shrinker maps"),
            "formula_bytes": Figure(
                census.projection.formula, size, "nodes x ids x 32 B x list_lrus, as published"
            ),
        }
        for stage, (name, label) in _PROJECTED.items():
            label += ", as measured" if stage is self.now.stage else ""
            figures[name] = Figure(self._projected(stage), size, label)
        self.result.summary |= figures


ANALYSIS = Analysis(
    name="list-lru",
    question="what do per-memcg list_lrus cost, and who needs them?",
    run=run,
    description="""\
Unused dentries and inodes stand on list_lrus, two per super block. Each has a list for each memory
cgroup and node. Up to 5.17 all of these are there from the start, for as many memory cgroups as
have ever existed at the same time (memcg_nr_cache_ids), on all mounts; since 5.18 a list comes with
the first object that a cgroup has on a file system.

Bytes are what the allocator uses: slots of slab caches, pages, vmalloc areas. Lists of no memory
cgroup are waste, and so are those of one that are empty.

The projection is what the same mounts and memory cgroups cost at each stage of the series that
went into 5.18. Up to 5.17 it takes the cgroups that have something on a list now as those that
would have one: a lower bound. Since 5.18 it takes the ids in use now for all there have ever been,
which makes what the arrays would have cost a lower bound.
""",
    examples=(
        ("kcensus list-lru vmcore -s vmlinux", "the list_lrus of a dump"),
        (
            "kcensus list-lru --what-if nodes=2,memcgs=10000,mounts=10000",
            "the model of a machine that one does not have",
        ),
        (
            "kcensus list-lru vmcore --before kmalloc-32=2816",
            "how much of that cache's growth since then the lists explain",
        ),
    ),
    params=(
        Param(
            "what_if",
            str,
            None,
            "Print the model for nodes=N,memcgs=N,mounts=N[,ids=N][,pairs=N] instead.",
        ),
        Param(
            "before",
            str,
            None,
            "Slots (num_objs) that slab caches had earlier, as CACHE=N,…, for a check.",
        ),
    ),
    modules=MODULES,
    without_target=("what_if",),
)
