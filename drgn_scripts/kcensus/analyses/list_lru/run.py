# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of the list_lrus, and say what it means."""

from __future__ import annotations

from dataclasses import replace

import drgn

from kcensus.analyses import AnalysisError
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
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm.list_lru import NoListLru
from kcensus.results import Answer, Figure, Unit
from kcensus.results.tables import Column, Show, Table

_PROJECTED = {
    Stage.ARRAYS: ("projected_arrays_bytes", "all with arrays per node (up to 5.17)"),
    Stage.PER_MEMCG: ("projected_patch7_bytes", "all with arrays per memcg (patch 7)"),
    Stage.ON_DEMAND: ("projected_ondemand_bytes", "all with lists on demand (patch 70)"),
    Stage.XARRAY: ("projected_xarray_bytes", "all with XArrays (patch 72; 5.18)"),
}
"""Names and labels in the summary."""


def run(kernel: Kernel, what_if: str | None = None, before: str | None = None) -> Answer:
    """Take the census and say what it means; with ``what_if`` only the model."""
    if what_if is not None:
        return _modelled(Answer(), what_if)
    try:
        earlier = parse_before(before)
    except ValueError as error:
        raise AnalysisError(f"--before: {error}") from None
    try:
        census = take(kernel)
    except NoListLru as error:
        raise AnalysisError(str(error)) from None
    result = Answer()
    report = _Report(result, census, kernel)
    report.write()
    result.checks += list_lru_checks(kernel.prog, census, earlier, kernel.live)
    result.gaps += list_lru_gaps(census)
    return result


def _modelled(result: Answer, text: str) -> Answer:
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
        "What the model leaves out",
        {"what": (list(LEFT_OUT), Column(Unit.TEXT, "what", Show.ALWAYS))},
    )
    return result


class _Report:
    """Turns a census into a result."""

    def __init__(self, result: Answer, census: ListLruCensus, kernel: Kernel) -> None:
        self.result = result
        self.census = census
        self.prog = kernel.prog
        self.ram = kernel.ram_bytes
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
