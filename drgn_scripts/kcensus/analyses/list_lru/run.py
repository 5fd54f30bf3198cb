# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of the list_lrus, or model their cost."""

from __future__ import annotations

from kcensus.analyses.list_lru import model
from kcensus.analyses.list_lru.checks import checks, gaps, parse_before
from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.findings import findings
from kcensus.analyses.list_lru.model import Population, Stage
from kcensus.analyses.list_lru.slots import EMPTY, UNUSED
from kcensus.analyses.list_lru.tables import CENSUS, MODEL
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm.footprint import Allocator
from kcensus.results import Answer, Bound, Figure, Unit, ratio
from kcensus.results.tables import make_tables

_STAGES = {
    Stage.ARRAYS: ("projected_arrays_bytes", "arrays per node"),
    Stage.PER_MEMCG: ("projected_patch7_bytes", "arrays per memcg"),
    Stage.ON_DEMAND: ("projected_ondemand_bytes", "lists on demand"),
    Stage.XARRAY: ("projected_xarray_bytes", "XArrays"),
}
"""Keys and labels in the summary."""
_OF_LISTS = frozenset(
    {
        *("nr_cache_ids", "nr_cache_ids_needed", "bytes_if_shrunk", "ids_in_use", "highest_id"),
        *("memcgs_without_id", "memcg_aware", "slots", "empty_slots", "dead_slots"),
    }
)
"""Keys of figures about lists for memory cgroups."""


def run(kernel: Kernel, what_if: str | None = None, before: str | None = None) -> Answer:
    """Take the census; with ``what_if``, only evaluate the model.

    :raises ParamError: an option is invalid
    """
    if what_if is not None:
        return _modelled(model.what_if(what_if))
    earlier = parse_before(before)
    figures = Figures(kernel)
    return Answer(
        summary=summary(figures),
        tables=make_tables(CENSUS, figures),
        checks=checks(figures, earlier),
        findings=findings(figures),
        gaps=gaps(figures),
    )


def _modelled(of: Population) -> Answer:
    formula = model.formula(of.nodes, of.ids, of.lrus)
    costs, size = [model.cost(stage, of, Allocator()) for stage in Stage], Unit.BYTES
    figures = {
        "nodes": Figure(of.nodes, label="NUMA nodes"),
        "memcgs": Figure(of.memcgs, label="memory cgroups"),
        "super_blocks": Figure(of.lrus // model.LRUS_PER_MOUNT, label="super blocks"),
        "list_lrus": Figure(of.lrus, label="list_lrus"),
        "nr_cache_ids": Figure(of.ids, label="memcg_nr_cache_ids"),
        "formula_bytes": Figure(formula, size, "published estimate"),
    }
    for each, (key, label) in zip(costs, _STAGES.values(), strict=True):
        figures[key] = Figure(each.total, size, label)
    rows = {"projection": model.projected(costs), "left_out": model.LEFT_OUT}
    return Answer(summary=figures, tables=make_tables(MODEL, rows), measures=False)


def summary(figures: Figures) -> dict[str, Figure]:
    slots, groups, ids, lrus = figures.slots, figures.groups, figures.ids, figures.lrus
    size, count = Unit.BYTES, Unit.COUNT
    online = int(groups.online.sum())
    needed_ids, needed_bytes = figures.needed
    empty, unused = (int(slots.slots[:, state].sum()) for state in (EMPTY, UNUSED))
    share = ratio(figures.structural_bytes, figures.kernel.ram_bytes)
    if_arrays = {}
    if ids.cache_ids is None:  # before v5.18, it would repeat the kernel's value
        label = "memcg_nr_cache_ids (5.18+: estimated)"
        if_arrays["nr_cache_ids_if_arrays"] = Figure(figures.nr_cache_ids, count, label)
    totals = {
        "nr_cache_ids": Figure(ids.cache_ids, count, "memcg_nr_cache_ids"),
        **if_arrays,
        "nr_cache_ids_needed": Figure(needed_ids, count, "highest id plus one"),
        "bytes_if_shrunk": Figure(needed_bytes, size, "arrays and lists, if shrunk"),
        "ids_in_use": Figure(int(ids.in_use.sum()), count, "ids in use"),
        "highest_id": Figure(ids.highest, Unit.NONE, "highest id in use"),
        "memcgs_online": Figure(online, count, "online memory cgroups"),
        "memcgs_offline": Figure(len(groups) - online, count, "offline (dying) memory cgroups"),
        "memcgs_without_id": Figure(int((~groups.has_id).sum()), count, "memcgs without an id"),
        "memcgs_newer_than_offline": Figure(
            figures.groups.newer, count, "online, newer than oldest offline"
        ),
        "list_lrus": Figure(len(lrus), count, "list_lrus"),
        "memcg_aware": Figure(int(lrus.aware.sum()), count, "memcg-aware list_lrus"),
        "super_blocks": Figure(len(figures.blocks), count, "super blocks"),
        "nodes": Figure(figures.nodes, count, "possible NUMA nodes"),
        "items": Figure(int(figures.items.sum()), count, "items on all lists"),
        "slots": Figure(int(slots.slots.sum()), count, "per-memcg lists"),
        "empty_slots": Figure(empty, count, "empty lists of online memcgs"),
        "dead_slots": Figure(unused, count, "lists of unused ids"),
        "structural_bytes": Figure(figures.structural_bytes, size, "all structures"),
        "share_of_ram": Figure(share, Unit.RATIO, "share of RAM"),
        "empty_bytes": Figure(figures.empty_bytes, size, "waste: empty lists"),
        "dead_slot_bytes": Figure(figures.unused_bytes, size, "waste: lists of unused ids"),
        "shrinker_map_bytes": Figure(figures.map_bytes, size, "shrinker maps"),
        "formula_bytes": Figure(figures.formula, size, "published estimate"),
    }
    if not lrus.is_per_memcg:
        lists = Figure("not in this kernel", Unit.TEXT, "lists per memory cgroup")
        others = {key: figure for key, figure in totals.items() if key not in _OF_LISTS}
        totals = {"per_memcg_lists": lists, **others}
    for stage, (key, label) in _STAGES.items():
        how = "measured" if stage is figures.measured.stage else "modelled"
        bound = Bound.AT_LEAST if stage in figures.lower_bounds else Bound.EXACT
        totals[key] = Figure(figures.costs[stage].total, size, f"{label}, {how}", bound)
    return totals
