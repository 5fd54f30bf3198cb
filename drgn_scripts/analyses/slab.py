# SPDX-License-Identifier: LGPL-2.1-or-later
"""How full are the slab caches, and whose objects are in them?

Symptom: ``Slab`` in meminfo is large, or grows with the number of cgroups, and nobody knows
whether the memory is in use. ``/proc/slabinfo`` calls objects active that are free in per-CPU
stores, and says nothing of cgroups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from drgn.helpers.linux.mm import totalram_pages

from drgn_scripts.analyses import Analysis, AnalysisError, Context
from drgn_scripts.engine.memory import Faults, Memory
from drgn_scripts.engine.slabs import SlabCache, UnsupportedAllocator
from drgn_scripts.human import human_bytes, human_ratio
from drgn_scripts.kernel.memcg import Memcgs, memcgs
from drgn_scripts.kernel.slab_census import FILL, Census, Controller, Counts, SlabCensus
from drgn_scripts.kernel.slab_checks import cache_checks, page_checks
from drgn_scripts.kernel.slab_counters import node_counters, reclaimable
from drgn_scripts.results import Column, Figure, Finding, Gap, Result, Severity, Table, Unit

NO_MEMCG = "(no memory cgroup)"
UNKNOWN_MEMCG = "(unknown memory cgroup)"


@dataclass(frozen=True)
class _Totals:
    """Per cache, children counted with their root; indexed by cache id, roots only are non-zero."""

    slabs: Counts
    pages: Counts
    objects: Counts
    active: Counts
    fill: Counts
    """Shape (caches, len(FILL))."""


def run(context: Context) -> Result:
    """Take the census and say what it means."""
    result = context.result("slab")
    memory = Memory(context.prog, context.chunk_bytes)
    try:
        slab_census = SlabCensus(memory)
    except UnsupportedAllocator as error:
        raise AnalysisError(str(error)) from None
    except LookupError as error:
        raise AnalysisError(
            f"this kernel's slabs cannot be found, its debug info or memory model lacks: {error}"
        ) from None
    census = slab_census.take(context.jobs, context.progress)
    groups = memcgs(memory)
    _Report(result, slab_census, census, groups, memory).write()
    return result


class _Report:
    """Turns a census into a result."""

    def __init__(
        self,
        result: Result,
        slab_census: SlabCensus,
        census: Census,
        groups: Memcgs,
        memory: Memory,
    ) -> None:
        self.result = result
        self.slab_census = slab_census
        self.slab_map = slab_census.slab_map
        self.caches = self.slab_map.caches
        self.census = census
        self.groups = groups
        self.memory = memory
        self.prog = memory.prog
        self.totals = _Totals(
            slabs=self._by_root(census.slabs.sum(axis=0)),
            pages=self._by_root(census.pages.sum(axis=0)),
            objects=self._by_root(census.objects.sum(axis=0)),
            active=self._by_root(census.active.sum(axis=0)),
            fill=np.stack([self._by_root(column) for column in census.fill.T], axis=1),
        )
        self.object_size = self.slab_map.column("object_size").astype(np.int64)
        self.slot_size = self.slab_map.column("slot_size").astype(np.int64)
        self.bytes = self.totals.pages << memory.page_shift
        self.active_bytes = self.totals.active * self.object_size
        self.reclaimable = reclaimable(self.slab_map)
        self.owners = self._owners()
        charged = np.bincount(self.owners["cache"], self.owners["objects"], len(self.caches))
        uncharged = self.totals.active - charged.astype(np.int64)
        self.uncharged = np.maximum(uncharged, 0)
        """Objects that no memory cgroup is charged for, by root cache."""
        self.overcharged = int(np.maximum(-uncharged, 0).sum())
        """More objects charged than allocated: what a kernel that goes on leaves, or damage."""
        self.packed = self._packed(np.arange(len(self.caches)), self.totals.active)
        self.old = self._old_controller_bytes()

    def _by_root(self, values: Counts) -> Counts:
        sums: Counts = np.bincount(self.slab_census.roots, values, len(self.caches))
        return sums.astype(np.int64)

    def _owners(self) -> pd.DataFrame:
        """Charged objects by root cache and memory cgroup: ``cache``, ``row``, ``objects``."""
        owners = self.census.owners
        frame = pd.DataFrame(
            {
                "cache": self.slab_census.roots[owners["cache"].to_numpy(np.int64)],
                "row": self.groups.rows(owners["memcg"].to_numpy(np.uint64)),
                "objects": owners["objects"].to_numpy(np.int64),
            }
        )
        return frame.groupby(["cache", "row"], as_index=False, sort=True).agg({"objects": "sum"})

    def write(self) -> None:
        """Fill the result."""
        self._summary()
        caches = self._caches()
        self.result.tables |= {
            "caches": caches,
            "waste": _waste(caches.frame),
            "fill": self._fill(),
            "nodes": self._nodes(),
            "memcgs": self._memcgs(),
            "memcg_caches": self._memcg_caches(),
            "cache_nodes": self._cache_nodes(),
        }
        self._checks()
        self._gaps()
        self._findings()

    # Old controller against new

    def _packed(self, cache: npt.NDArray[np.int64], objects: Counts) -> int:
        """Bytes of slabs that hold ``objects`` of ``cache`` without sharing between rows."""
        per_slab = self.slab_map.column("objects_per_slab").astype(np.int64)[cache]
        order = self.slab_map.column("order").astype(np.int64)[cache]
        slabs = -(-objects // per_slab)
        return int((slabs << (order + self.memory.page_shift)).sum())

    def _old_controller_bytes(self) -> int:
        charged = self._packed(
            self.owners["cache"].to_numpy(np.int64), self.owners["objects"].to_numpy(np.int64)
        )
        return charged + self._packed(np.arange(len(self.caches)), self.uncharged)

    # Summary

    def _summary(self) -> None:
        total = int(self.bytes.sum())
        active = int(self.active_bytes.sum())
        old, packed = self.old, self.packed
        is_reclaimable = self.reclaimable
        alive = int(self.groups.alive.sum())
        vectors = int(self.census.vector_bytes.sum() + self.census.vector_bytes_inside.sum())
        size, count, ratio = Unit.BYTES, Unit.COUNT, Unit.RATIO
        self.result.summary |= {
            "slab_bytes": Figure(total, size, "slab pages"),
            "active_bytes": Figure(active, size, "in allocated objects"),
            "utilization": Figure(_ratio(active, total), ratio, "utilization"),
            "share_of_ram": Figure(_ratio(total, self._ram()), ratio, "share of RAM"),
            "reclaimable_bytes": Figure(int(self.bytes[is_reclaimable].sum()), size, "reclaimable"),
            "unreclaimable_bytes": Figure(
                int(self.bytes[~is_reclaimable].sum()), size, "unreclaimable"
            ),
            "free_slot_bytes": Figure(int(self._free_bytes().sum()), size, "waste: free slots"),
            "padding_bytes": Figure(int(self._padding_bytes().sum()), size, "waste: slot padding"),
            "tail_bytes": Figure(int(self._tail_bytes().sum()), size, "waste: slab tails"),
            "objects_active": Figure(int(self.totals.active.sum()), count, "objects allocated"),
            "objects_total": Figure(int(self.totals.objects.sum()), count, "slots"),
            "slabs": Figure(int(self.totals.slabs.sum()), count, "slabs"),
            "caches": Figure(self._cache_count(), count, "caches"),
            "memcgs_alive": Figure(alive, count, "memory cgroups alive"),
            "memcgs_dying": Figure(len(self.groups) - alive, count, "memory cgroups dying"),
            "controller": Figure(
                self.slab_census.controller.value, Unit.TEXT, "charging of slab objects"
            ),
            "objects_charged": Figure(
                int(self.owners["objects"].sum()), count, "objects charged to a memory cgroup"
            ),
            "obj_cgroup_vector_bytes": Figure(vectors, size, "obj_cgroup vectors"),
            "old_controller_bytes": Figure(
                old, size, "slab pages if memory cgroups shared none, packed full"
            ),
            "old_controller_utilization": Figure(
                _ratio(active, old), ratio, "utilization if they shared none"
            ),
            "old_controller_extra_bytes": Figure(
                old - packed, size, "difference that sharing makes"
            ),
            "packed_bytes": Figure(packed, size, "slab pages if they share, packed full"),
            "packed_utilization": Figure(
                _ratio(active, packed), ratio, "utilization if they share"
            ),
        }

    def _ram(self) -> int:
        return int(totalram_pages(self.prog)) << self.memory.page_shift

    def _cache_count(self) -> int:
        return len(np.unique(self.slab_census.roots))

    def _free_bytes(self) -> Counts:
        return (self.totals.objects - self.totals.active) * self.slot_size

    def _padding_bytes(self) -> Counts:
        return self.totals.active * (self.slot_size - self.object_size)

    def _tail_bytes(self) -> Counts:
        return self.bytes - self.totals.objects * self.slot_size

    # Tables

    def _caches(self) -> Table:
        roots = np.unique(self.slab_census.roots)
        chosen: list[SlabCache] = [self.caches[root] for root in roots]
        totals, active, bytes_ = self.totals, self.active_bytes[roots], self.bytes[roots]
        vectors = self.census.vector_bytes + self.census.vector_bytes_inside
        aliases = self._aliases()
        also = [", ".join(sorted(aliases.get(cache.name, []))) for cache in chosen]
        fill = {
            f"fill_{number}": (
                totals.fill[roots, number],
                Column(Unit.COUNT, f"slabs {name}", 2),
            )
            for number, name in enumerate(FILL)
        }
        return Table.of(
            "Slab caches",
            {
                "cache": ([cache.name for cache in chosen], Column(Unit.TEXT, "cache", 0)),
                "aliases": (also, Column(Unit.TEXT, "also", 2)),
                "object_size": (self.object_size[roots], Column(Unit.BYTES, "object")),
                "slot_size": (self.slot_size[roots], Column(Unit.BYTES, "slot", 2)),
                "objects_per_slab": (
                    [cache.objects_per_slab for cache in chosen],
                    Column(Unit.COUNT, "per slab", 2),
                ),
                "order": ([cache.order for cache in chosen], Column(Unit.NONE, "order", 2)),
                "slabs": (totals.slabs[roots], Column(Unit.COUNT, "slabs")),
                "objects_total": (totals.objects[roots], Column(Unit.COUNT, "slots")),
                "objects_active": (totals.active[roots], Column(Unit.COUNT, "active", 0)),
                "bytes": (bytes_, Column(Unit.BYTES, "bytes", 0)),
                "active_bytes": (active, Column(Unit.BYTES, "in use")),
                "utilization": (_ratios(active, bytes_), Column(Unit.RATIO, "util", 0)),
                "free_bytes": (self._free_bytes()[roots], Column(Unit.BYTES, "free slots", 2)),
                "padding_bytes": (self._padding_bytes()[roots], Column(Unit.BYTES, "padding", 2)),
                "tail_bytes": (self._tail_bytes()[roots], Column(Unit.BYTES, "tails", 2)),
                "vector_bytes": (
                    self._by_root(vectors)[roots],
                    Column(Unit.BYTES, "vectors", 2),
                ),
                "reclaimable": (
                    self.reclaimable[roots],
                    Column(Unit.NONE, "reclaimable", 2),
                ),
            }
            | fill,
        ).largest_first("bytes", "cache")

    def _aliases(self) -> dict[str, list[str]]:
        """Other names of merged caches, by the name that survived."""
        names: dict[str, list[str]] = {}
        for alias, name in self.slab_map.aliases.items():
            # The kernel's own link for a merged cache (":0000192") is no name that anyone gave.
            if not alias.startswith(":"):
                names.setdefault(name, []).append(alias)
        return names

    def _memcgs(self) -> Table:
        paths = self.groups.path
        objects = np.bincount(self.owners["row"] + 1, self.owners["objects"], len(paths) + 1)
        charged_bytes = self.owners["objects"] * self.slot_size[self.owners["cache"]]
        bytes_ = np.bincount(self.owners["row"] + 1, charged_bytes, len(paths) + 1)
        uncharged = self.uncharged
        names, states = [*paths], [_state(alive) for alive in self.groups.alive]
        counts, sizes = [*objects[1:]], [*bytes_[1:]]
        if objects[0]:
            names.append(UNKNOWN_MEMCG)
            states.append("unknown")
            counts.append(objects[0])
            sizes.append(bytes_[0])
        names.append(NO_MEMCG)
        states.append("none")
        counts.append(uncharged.sum())
        sizes.append((uncharged * self.slot_size).sum())
        return Table.of(
            "Slab objects by memory cgroup",
            {
                "memcg": (names, Column(Unit.TEXT, "memory cgroup", 0)),
                "state": (states, Column(Unit.TEXT, "state", 0)),
                "objects": (np.array(counts, np.int64), Column(Unit.COUNT, "objects", 0)),
                "bytes": (np.array(sizes, np.int64), Column(Unit.BYTES, "bytes", 0)),
            },
        ).largest_first("bytes", "memcg")

    def _memcg_caches(self) -> Table:
        names = [*self.groups.path, UNKNOWN_MEMCG]
        cache = self.owners["cache"].to_numpy(np.int64)
        objects = self.owners["objects"].to_numpy(np.int64)
        return Table.of(
            "Slab objects by memory cgroup and cache",
            {
                "memcg": (
                    [names[at] for at in self.owners["row"]],
                    Column(Unit.TEXT, "memory cgroup", 0),
                ),
                "cache": ([self.caches[at].name for at in cache], Column(Unit.TEXT, "cache", 0)),
                "objects": (objects, Column(Unit.COUNT, "objects", 0)),
                "bytes": (objects * self.slot_size[cache], Column(Unit.BYTES, "bytes", 0)),
            },
            detail=True,
        ).largest_first("bytes", "memcg")

    def _nodes(self) -> Table:
        nodes, census = self.slab_map.pages.nodes, self.census
        active = (census.active * self.object_size[None, :]).sum(axis=1)[nodes]
        bytes_ = (census.pages.sum(axis=1) << self.memory.page_shift)[nodes]
        return Table.of(
            "NUMA nodes",
            {
                "node": (nodes, Column(Unit.NONE, "node", 0)),
                "slabs": (census.slabs.sum(axis=1)[nodes], Column(Unit.COUNT, "slabs")),
                "objects_total": (census.objects.sum(axis=1)[nodes], Column(Unit.COUNT, "slots")),
                "objects_active": (
                    census.active.sum(axis=1)[nodes],
                    Column(Unit.COUNT, "active", 0),
                ),
                "bytes": (bytes_, Column(Unit.BYTES, "bytes", 0)),
                "active_bytes": (active, Column(Unit.BYTES, "in use", 0)),
                "utilization": (_ratios(active, bytes_), Column(Unit.RATIO, "util", 0)),
            },
        )

    def _cache_nodes(self) -> Table:
        census, roots = self.census, self.slab_census.roots
        node, cache = np.nonzero(census.slabs)
        counts = pd.DataFrame(
            {
                "cache": roots[cache],
                "node": node,
                "slabs": census.slabs[node, cache],
                "objects_total": census.objects[node, cache],
                "objects_active": census.active[node, cache],
                "bytes": census.pages[node, cache] << self.memory.page_shift,
            }
        )
        columns = {
            "cache": Column(Unit.TEXT, "cache", 0),
            "node": Column(Unit.NONE, "node", 0),
            "slabs": Column(Unit.COUNT, "slabs"),
            "objects_total": Column(Unit.COUNT, "slots"),
            "objects_active": Column(Unit.COUNT, "active", 0),
            "bytes": Column(Unit.BYTES, "bytes", 0),
        }
        frame = counts.groupby(["cache", "node"], as_index=False).sum()
        frame["cache"] = [self.caches[root].name for root in frame["cache"]]
        frame = frame.sort_values(["cache", "node"], ignore_index=True)
        return Table(frame, columns, "Slab caches by NUMA node", detail=True)

    def _fill(self) -> Table:
        slabs = self.census.fill.sum(axis=0)
        share = _ratios(slabs, np.full(len(FILL), slabs.sum()))
        return Table.of(
            "How full slabs are",
            {
                "fill": (list(FILL), Column(Unit.TEXT, "slots in use", 0)),
                "slabs": (slabs, Column(Unit.COUNT, "slabs", 0)),
                "share": (share, Column(Unit.RATIO, "share", 0)),
            },
        )

    # Checks, gaps, findings

    def _checks(self) -> None:
        counters = node_counters(self.slab_map, Faults())
        self.result.checks += [
            *cache_checks(self.slab_map, self.census, counters, self.result.live),
            *page_checks(self.slab_map, self.census),
        ]
        self._gap(
            0 if counters is None else int((~counters.readable).sum()),
            "counters of slab caches",
            "unreadable",
            "none; these caches are not checked",
        )

    def _gap(self, count: int, what: str, reason: str, effect: str) -> None:
        if count:
            self.result.gaps.append(Gap(what, reason, count, effect))

    def _gaps(self) -> None:
        self.result.gaps += self.slab_census.gaps(self.census, NO_MEMCG)
        self._gap(
            self.overcharged,
            "objects",
            "charged to a memory cgroup, but counted as free",
            f"their number is in no row {NO_MEMCG}",
        )
        self._gap(
            self.census.objcgs_unreadable,
            "obj_cgroups",
            ", ".join(sorted(self.census.vectors)) or "unreadable",
            f"objects charged to them are in the row {UNKNOWN_MEMCG}",
        )
        self._gap(
            self.groups.damaged + self.groups.faults.total(),
            "lists or pages of memory cgroups",
            "torn or unreadable",
            f"objects of cgroups behind them are in the row {UNKNOWN_MEMCG}",
        )

    def _findings(self) -> None:
        self._size_finding()
        self._waste_findings()
        self._controller_finding()
        self._dying_finding()

    def _size_finding(self) -> None:
        total = int(self.bytes.sum())
        share = _ratio(total, self._ram())
        if share < _LARGE_SHARE:
            return
        largest = np.argsort(self.bytes)[::-1][:3]
        self.result.findings.append(
            Finding(
                Severity.WARNING,
                f"slab caches hold {human_bytes(total)}, {human_ratio(share)} of RAM",
                "largest: "
                + ", ".join(
                    f"{self.caches[at].name} {human_bytes(self.bytes[at])}" for at in largest
                ),
                "the table of memory cgroups tells whose objects they are",
                cost_bytes=total,
            )
        )

    def _waste_findings(self) -> None:
        waste = self.bytes - self.active_bytes
        least = max(_NOTABLE_SHARE * int(self.bytes.sum()), _NOTABLE_BYTES)
        for at in np.argsort(waste)[::-1][:_FINDINGS]:
            utilization = _ratio(int(self.active_bytes[at]), int(self.bytes[at]))
            if waste[at] < least or utilization > _GOOD_UTILIZATION:
                continue
            fill = self.totals.fill[at]
            sparse, slabs = int(fill[:3].sum()), int(fill.sum())
            self.result.findings.append(
                Finding(
                    Severity.NOTICE,
                    f"{self.caches[at].name} is {human_ratio(utilization)} utilized: "
                    f"{human_bytes(int(waste[at]))} of {human_bytes(int(self.bytes[at]))} "
                    "hold no object",
                    f"{sparse} of its {slabs} slabs are less than half full, "
                    f"{int(fill[0])} are empty",
                    "a slab goes back only with its last object; writing 1 to "
                    f"/sys/kernel/slab/{self.caches[at].name}/shrink returns the empty ones",
                    cost_bytes=int(waste[at]),
                )
            )

    def _controller_finding(self) -> None:
        extra = self.old - self.packed
        if extra < max(_NOTABLE_BYTES, _NOTABLE_SHARE * self.packed):
            return
        figures = (
            f"the objects of this dump need {human_bytes(self.packed)} packed together, and "
            f"{human_bytes(self.old)} packed by memory cgroup"
        )
        if self.slab_census.controller is Controller.PER_CACHE:
            self.result.findings.append(
                Finding(
                    Severity.WARNING,
                    "each memory cgroup has slab pages of its own: that costs "
                    f"{human_bytes(extra)}, even if all slabs were packed full",
                    f"{len(self.caches) - self._cache_count()} child caches; {figures}",
                    "kernels from 5.9 on share slab pages between memory cgroups",
                    cost_bytes=extra,
                )
            )
        elif self.slab_census.controller is Controller.PER_OBJECT:
            vectors = human_bytes(int(self.census.vector_bytes.sum()))
            self.result.findings.append(
                Finding(
                    Severity.INFO,
                    "sharing slab pages between memory cgroups, as this kernel does, saves "
                    f"{human_bytes(extra)}, if all slabs were packed full",
                    f"{figures}; the vectors that this takes are {vectors}",
                )
            )

    def _dying_finding(self) -> None:
        alive = int(self.groups.alive.sum())
        dying = len(self.groups) - alive
        if dying < max(_NOTABLE_DYING, alive // 2):
            return
        per_cache = self.slab_census.controller is Controller.PER_CACHE
        self.result.findings.append(
            Finding(
                Severity.NOTICE,
                f"{dying} of {len(self.groups)} memory cgroups are dying: "
                "removed, but kept by what is charged to them",
                "each keeps its mem_cgroup structure and per-CPU counters",
                "what keeps them is most often page cache"
                + (", or their slab caches" if per_cache else "")
                + ", which reclaim releases",
            )
        )


_LARGE_SHARE = 0.25
"""Of RAM: more than that in slab caches is worth a warning on any machine."""
_NOTABLE_SHARE = 0.05
"""Of all slab bytes: a smaller waste is not worth a sentence."""
_NOTABLE_BYTES = 1 << 20
_GOOD_UTILIZATION = 0.85
"""The best that was measured with memory cgroups before they shared slab pages."""
_FINDINGS = 5
_NOTABLE_DYING = 10


def _waste(caches: pd.DataFrame) -> Table:
    """Where the bytes are that hold no object, largest first."""
    waste = (caches["bytes"] - caches["active_bytes"]).to_numpy(np.int64)
    share = _ratios(waste, np.full(len(waste), waste.sum()))
    return Table.of(
        "Top waste",
        {
            "cache": (caches["cache"], Column(Unit.TEXT, "cache", 0)),
            "waste_bytes": (waste, Column(Unit.BYTES, "waste", 0)),
            "share": (share, Column(Unit.RATIO, "of all waste", 0)),
            "utilization": (caches["utilization"], Column(Unit.RATIO, "util")),
            "free_bytes": (caches["free_bytes"], Column(Unit.BYTES, "free slots")),
            "padding_bytes": (caches["padding_bytes"], Column(Unit.BYTES, "padding")),
            "tail_bytes": (caches["tail_bytes"], Column(Unit.BYTES, "tails")),
        },
    ).largest_first("waste_bytes", "cache")


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _ratios(part: Counts, whole: Counts) -> npt.NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole != 0)


def _state(alive: bool) -> str:
    return "alive" if alive else "dying"


ANALYSIS = Analysis(
    name="slab",
    question="how full are the slab caches, and whose objects are in them?",
    run=run,
    description="""\
Every slab is counted, and every object in it: allocated, or free on the slab's own list, on a
CPU's, or in a sheaf. So `active` is what the kernel's users hold, less than /proc/slabinfo says.

The bytes of a cache are its objects, free slots, padding (slots are larger than objects) and tails
(what is left at the end of a slab). Utilization is the share of the objects.

Objects are attributed to the memory cgroups that they are charged to. From that follows what the
controller before 5.9 would make of these objects, which gave each memory cgroup slab pages of its
own. Both figures assume slabs as full as they can be, so their difference is due to sharing alone;
real slabs are less full, with either controller.
""",
    examples=(
        ("kcensus slab vmcore -s vmlinux", "the census of a dump"),
        ("kcensus slab vmcore --json | jq .summary", "its totals for a script"),
        ("sudo kcensus slab --top 40", "the running kernel, forty rows per table"),
    ),
)
