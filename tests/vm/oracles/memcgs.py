# SPDX-License-Identifier: LGPL-2.1-or-later
"""Offline memory cgroups the slow, obvious way: one drgn object at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import drgn
from drgn import Object, Program
from drgn.helpers.linux.cgroup import cgroup_path
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.mm import compound_nr, for_each_page
from drgn.helpers.linux.nodemask import nr_node_ids
from drgn.helpers.linux.slab import find_containing_slab_cache

from tests.vm.oracles import all_memcgs

CSS_ONLINE = 2


@dataclass
class MemcgTruth:
    path: str
    references: int
    slab: Counter[str] = field(default_factory=Counter)
    """Bytes by slab cache."""
    per_cpu: int = 0
    pages: Counter[str] = field(default_factory=Counter)

    @property
    def slab_bytes(self) -> int:
        return sum(self.slab.values())


class Oracle:
    """Walks all memory cgroups, and all pages, once."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self.cpus = len(list(for_each_possible_cpu(prog)))
        self.memcgs = {
            int(memcg): self._memcg(memcg)
            for memcg in all_memcgs(prog)
            if not memcg.css.flags & CSS_ONLINE
        }
        self._pages()

    def _memcg(self, memcg: Object) -> MemcgTruth:
        cgroup, psi = memcg.css.cgroup, memcg.css.cgroup.psi
        refs = int(memcg.css.refcnt.data.count.counter)
        truth = MemcgTruth(cgroup_path(cgroup).decode(), refs)
        if psi.type_.kind == drgn.TypeKind.POINTER:
            self._slab(truth, psi)
            psi = psi[0]
        for pointer in (memcg, cgroup, cgroup.kn, cgroup.kn.name, cgroup.kn.iattr):
            self._slab(truth, pointer)
        for owner in (memcg.css, cgroup.self, cgroup.bpf):
            self._refcount(truth, owner.refcnt)
        self._slabs(truth, memcg, "vmstats")
        self._objcg(truth, memcg)
        self._areas(truth, memcg, "vmstats_percpu", "vmstats_local", "events_percpu")
        self._areas(truth, memcg.css, "rstat_cpu")
        self._areas(truth, memcg.cgwb_domain.completions.events, "counters")
        self._areas(truth, cgroup.self, "rstat_cpu")
        self._areas(truth, cgroup, "rstat_cpu", "rstat_base_cpu")
        self._areas(truth, psi, "pcpu")
        for index in range(nr_node_ids(self.prog)):
            self._node(truth, memcg.nodeinfo[index])
        return truth

    def _node(self, truth: MemcgTruth, node: Object) -> None:
        self._slab(truth, node)
        self._slabs(truth, node, "lruvec_stats", "shrinker_map", "shrinker_info")
        info = getattr(node, "shrinker_info", None)
        if info is not None and hasattr(info, "unit"):
            for index in range(-(-int(info.map_nr_max) // 64)):
                self._slab(truth, info.unit[index])
        self._objcg(truth, node)
        self._areas(truth, node, "lruvec_stats_percpu", "lruvec_stat_local", "lruvec_stat_cpu")

    def _objcg(self, truth: MemcgTruth, owner: Object) -> None:
        objcg = getattr(owner, "orig_objcg", None)
        if objcg:
            self._slab(truth, objcg)
            self._refcount(truth, objcg.refcnt)

    def _refcount(self, truth: MemcgTruth, refcount: Object) -> None:
        self._slab(truth, refcount.data)
        if int(refcount.percpu_count_ptr) & ~3:
            truth.per_cpu += 8 * self.cpus

    def _slabs(self, truth: MemcgTruth, owner: Object, *names: str) -> None:
        for name in names:
            value = getattr(owner, name, None)
            if value is not None and value.type_.kind == drgn.TypeKind.POINTER:
                self._slab(truth, value)

    def _areas(self, truth: MemcgTruth, owner: Object, *names: str) -> None:
        for name in names:
            if value := getattr(owner, name, None):
                size = drgn.sizeof(value.type_.type)
                truth.per_cpu += -(-size // 4) * 4 * self.cpus

    def _slab(self, truth: MemcgTruth, pointer: Object) -> None:
        if pointer:
            cache = find_containing_slab_cache(self.prog, pointer)
            assert cache
            truth.slab[cache.name.string_().decode()] += int(cache.size)

    def _pages(self) -> None:
        """Find the pages of offline memory cgroups by their owner."""
        swap_backed = 1 << int(self.prog.constant("PG_swapbacked"))
        is_slab = 0
        if "PAGE_SLAB_MAPCOUNT_VALUE" not in self.prog["VMCOREINFO"].string_().decode():
            is_slab = 1 << int(self.prog.constant("PG_slab"))
        for page in for_each_page(self.prog):
            try:
                owner = int(page.memcg_data if hasattr(page, "memcg_data") else page.mem_cgroup)
                truth = self.memcgs.get(owner & ~3)
                if truth is None or owner & 1:
                    continue
                word = int(page.flags.f if hasattr(page.flags, "f") else page.flags)
                if word & is_slab:
                    continue
                mapping = int(page.mapping)
            except drgn.FaultError:
                continue
            # Of a compound page, the head alone has an owner.
            pages = int(compound_nr(page))
            if owner & 2 or (not mapping and not word & swap_backed):
                truth.pages["kernel"] += pages
            elif mapping & 1:
                truth.pages["anon"] += pages
            else:
                truth.pages["shmem" if word & swap_backed else "file"] += pages
