# SPDX-License-Identifier: LGPL-2.1-or-later
"""The census of memory cgroups, held against the kernel's own counters; what it could not read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.memcgs.figures import Figures
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.charges import lru_pages
from kcensus.kernel.memcg.memcgs import dying, online_children
from kcensus.kernel.names import DAMAGED
from kcensus.results import Check, Gap, Gauge, nonzero_gaps
from kcensus.sources.capsule import NotRecorded


def checks(figures: Figures) -> list[Check]:
    """Hold the tree, the charged pages and the references against the kernel's counters."""
    return [*_checks(figures)]


def _checks(figures: Figures) -> Iterator[Check]:
    live = figures.kernel.live
    groups, pins, charges = figures.groups, figures.pins, figures.charges
    # Of all but the root, which is on no list of children.
    ours = int(groups.has_id[1:].sum())
    counter = int(groups.online_children.sum())
    source = "cgroup_subsys_state.online_cnt"
    check = Check("online memory cgroups", ours, counter, source=source)
    yield check.over(counter, online_children(figures.kernel, groups)) if live else check
    ours, source = int((~groups.has_id).sum()), "cgroup.nr_dying_subsys"
    yield Check("offline memory cgroups", ours, dying(figures.kernel.prog), source=source)
    counter_ = None
    with contextlib.suppress(NotRecorded):
        counter_ = lru_pages(figures.kernel, Faults())
    on_lru = int(charges.on_lru.sum()) if charges.is_complete else None
    source = "lru_zone_size, lrugen.nr_pages"
    check = Check("pages on their LRU lists", on_lru, counter_, source=source)
    yield check.over(figures.lru_pages_before, counter_)
    known = figures.offline & (pins.refs >= 0)
    ours, source = int(pins.explained[known].sum()), "cgroup_subsys_state.refcnt"
    yield Check("references to them", ours, int(pins.refs[known].sum()), source=source)


_GAUGES = {"nr_descendants": "cgroups", "nr_dying_descendants": "dying cgroups"}


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the counters behind ``cgroup.stat`` of the root: of cgroups with any controller."""
    for name, label in _GAUGES.items():
        with contextlib.suppress(*DAMAGED):
            root = kernel.prog["root_mem_cgroup"].css.cgroup
            yield Gauge(name, int(root.member_(name)), label=label, source=f"cgroup.{name}")
    count = dying(kernel.prog)
    if count is not None:
        label, source = "dying memory cgroups", "cgroup.nr_dying_subsys"
        yield Gauge("nr_dying_subsys_memory", count, label=label, source=source)


def gaps(figures: Figures) -> list[Gap]:
    """Return what the census could not read or make sense of."""
    groups, structures, pins = figures.groups, figures.structures, figures.pins
    faults = figures.footprint.faults
    unknown = int((pins.refs[figures.offline] < 0).sum())
    return [
        *(
            Gap("structures or references", each, 1, "they are not counted")
            for each in figures.not_recorded
        ),
        *nonzero_gaps(
            Gap(
                "lists of memory cgroups",
                "torn, bent, or different by direction",
                groups.damaged,
                "memory cgroups behind them are not counted",
            ),
            Gap(
                "pages of memory cgroups",
                reasons(groups.faults),
                groups.faults.total(),
                "memory cgroups there are not counted, or have no name",
            ),
            Gap(
                "structures of memory cgroups",
                reasons(faults),
                structures.unreadable,
                "what they point to is not counted",
            ),
            Gap(
                "owners of pages",
                "the debug info or the capsule lacks members of struct page",
                int(not figures.charges.is_complete),
                "pages charged to offline memory cgroups are not counted",
            ),
            Gap(
                "reference counts",
                "unreadable",
                unknown,
                "whether something unknown pins these memory cgroups is not known",
            ),
            Gap(
                "lists of sockets, backing devices or writeback",
                "torn or unreadable",
                pins.lost + pins.faults.total(),
                "what is behind them is missing among what pins memory cgroups",
            ),
        ),
        *scan_gaps(figures.kernel.slab_map, pins.report, "sockets"),
    ]
