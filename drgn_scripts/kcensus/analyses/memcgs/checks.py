# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare the census of memory cgroups with the kernel's own counters; list what was unreadable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import drgn

from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.memcgs.figures import Figures
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.charges import lru_pages
from kcensus.kernel.memcg.memcgs import online_children
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.results import Check, Gap, Gauge, nonzero_gaps
from kcensus.sources.capsule import NotRecorded


def checks(figures: Figures) -> Iterator[Check]:
    """Compare the tree, the charged pages and the references with the kernel's counters."""
    live = figures.kernel.live
    groups, pins, charges = figures.groups, figures.pins, figures.charges
    # Before the states had counts of their own, the hierarchy had one.
    if (counter := _number_of_cgroups(figures.kernel.prog)) is not None:
        ours, source = int(groups.has_id.sum()), "cgroupfs_root.number_of_cgroups"
        yield Check("online memory cgroups", ours, counter, source=source)
    else:
        # All but the root, which is on no list of children.
        ours, counter = int(groups.has_id[1:].sum()), int(groups.online_children.sum())
        source = "cgroup_subsys_state.online_cnt"
        check = Check("online memory cgroups", ours, counter, source=source)
        yield check.over(counter, online_children(figures.kernel, groups)) if live else check
    ours, source = int((~groups.has_id).sum()), "cgroup.nr_dying_subsys"
    yield Check("offline memory cgroups", ours, _dying(figures.kernel.prog), source=source)
    counter_ = None
    with contextlib.suppress(NotRecorded):
        counter_ = lru_pages(figures.kernel, Faults())
    on_lru = int(charges.on_lru.sum()) if charges.is_complete else None
    source = "lru_zone_size, lrugen.nr_pages"
    check = Check("charged pages on LRU lists", on_lru, counter_, source=source)
    yield check.over(figures.lru_pages_before, counter_)
    known = figures.offline & (pins.refs >= 0)
    ours, source = int(pins.explained[known].sum()), "cgroup_subsys_state.refcnt"
    yield Check("references to offline memcgs", ours, int(pins.refs[known].sum()), source=source)


def _dying(prog: drgn.Program) -> int | None:
    """Return the kernel's count of offline memory cgroups; None without one.

    The older ``nr_dying_descendants`` counts cgroups of any controller.
    """
    with contextlib.suppress(*DAMAGED):
        # Since Linux kernel commit ab0312526867 ("cgroup: Show # of subsystem CSSes in
        # cgroup.stat") (in v6.12).
        counts = prog["root_mem_cgroup"].css.cgroup.nr_dying_subsys
        return int(counts[int(prog["memory_cgrp_subsys"].id)])
    return None


def _number_of_cgroups(prog: drgn.Program) -> int | None:
    """Return the kernel's count of cgroups of the hierarchy, the root included; None without one.

    ``cgroup_root.nr_cgrps`` counts released ones until they are freed (commit not verified).
    """
    with contextlib.suppress(*DAMAGED):
        root = prog["root_mem_cgroup"].css.member_("cgroup").root
        return int(root.member_("number_of_cgroups"))
    return None


_GAUGES = {"nr_descendants": "cgroups", "nr_dying_descendants": "dying cgroups"}


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the counters behind ``cgroup.stat`` of the root, for cgroups of any controller."""
    for name, label in _GAUGES.items():
        with contextlib.suppress(*DAMAGED):
            root = kernel.prog["root_mem_cgroup"].css.cgroup
            yield Gauge(name, int(root.member_(name)), label=label, source=f"cgroup.{name}")
    count = _dying(kernel.prog)
    if count is not None:
        label, source = "dying memory cgroups", "cgroup.nr_dying_subsys"
        yield Gauge("nr_dying_subsys_memory", count, label=label, source=source)


def gaps(figures: Figures) -> list[Gap]:
    """Return the unreadable or inconsistent parts of the census."""
    return nonzero_gaps(*_gaps(figures))


def _gaps(figures: Figures) -> Iterator[Gap]:
    groups, structures, pins = figures.groups, figures.structures, figures.pins
    for each in figures.not_recorded:
        yield Gap("structures or references", each, 1, "they are not counted")
    reason = "torn or inconsistent"
    effect = "memory cgroups behind the damage are not counted"
    yield Gap("lists of memory cgroups", reason, groups.damaged, effect)
    effect = "removed memory cgroups without slab caches may not be counted"
    yield Gap("registry of memory cgroups", groups.unread, groups.ids_lost, effect)
    reason, count = reasons(groups.faults), groups.faults.total()
    effect = "memory cgroups on these pages are not counted, or have no name"
    yield Gap("pages of memory cgroups", reason, count, effect)
    faults = figures.footprint.faults
    reason, count = reasons(faults), max(structures.unreadable, faults.total())
    effect = "structures behind the damage are not counted, or with another size"
    yield Gap("structures of memory cgroups", reason, count, effect)
    # Before 3.16, as the count of cgroups.
    is_old = _number_of_cgroups(figures.kernel.prog) is not None
    reason = "the debug info or the capsule lacks members of struct page"
    if is_old:
        reason = "they are in struct page_cgroup, which kcensus does not read"
    effect = "pages charged to offline memory cgroups are not counted"
    yield Gap("owners of pages", reason, int(not figures.charges.is_complete), effect)
    count = int((pins.refs[figures.offline] < 0).sum())
    effect = "unknown holders of these memory cgroups may be missing"
    reason = "css.refcnt is not a percpu_ref" if is_old else "unreadable"
    yield Gap("reference counts", reason, count, effect)
    what, count = "lists of sockets, backing devices or writeback", pins.lost + pins.faults.total()
    effect = "holders beyond the damage are missing"
    yield Gap(what, "torn or unreadable", count, effect)
    if figures.offline.any():
        blocks = super_blocks(figures.kernel)
        count, effect = blocks.damaged + blocks.faults.total(), "mounts and files may be missing"
        yield Gap("lists or pages of super blocks and mounts", "torn or unreadable", count, effect)
    yield from scan_gaps(figures.kernel.slab_map, pins.report, "sockets")
