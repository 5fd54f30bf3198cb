# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's own count of slab objects charged to memory cgroups."""

from __future__ import annotations

import contextlib

import drgn
import numpy as np

from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.names import MISSING

_MAX_READS = 1 << 18
"""Most per-CPU statistics of memory cgroups to read; more take longer than a census."""
_ITEMS = ("NR_SLAB_RECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE_B")


def charged_bytes(kernel: Kernel) -> int | None:
    """Return the bytes of slab objects that the kernel has charged to memory cgroups.

    They include a pointer to the ``obj_cgroup`` for each object, and are the statistics of the root
    plus the counts that have not reached it yet.

    :return: None where the kernel has no such counters, they are unreadable, or too many
    """
    faults = Faults()
    try:
        total = _Statistics(kernel, faults).total()
    except MISSING:
        return None
    return None if faults else total


def charged_source(prog: drgn.Program) -> str:
    """Return the kernel's own name of the counters of :func:`charged_bytes`."""
    with contextlib.suppress(*MISSING):
        if prog.type("struct mem_cgroup").member("vmstats").type.kind == drgn.TypeKind.ARRAY:
            return "mem_cgroup.vmstats[NR_SLAB_*_B]"
    return "memcg_vmstats.state[NR_SLAB_*_B]"


class _Statistics:
    def __init__(self, kernel: Kernel, faults: Faults) -> None:
        self.memory, self.prog, self.faults = kernel.memory, kernel.prog, faults
        self.type = self.prog.type("struct mem_cgroup")
        self.groups = memcgs(kernel).address
        self.is_hierarchical = memcgs(kernel).is_hierarchical
        self.cpus = cpu_offsets(self.prog)

    def total(self) -> int | None:
        # The root need not have the statistics of the others.
        if not self.is_hierarchical:
            return None
        if not 0 < len(self.groups) * len(self.cpus) <= _MAX_READS:
            return None
        return sum(map(self._item, _ITEMS)) + self._stocks()

    def _item(self, name: str) -> int:
        index = self._index(int(self.prog.constant(name)))
        percpu = self._gather(self.groups, self.type, pointer="vmstats_percpu")["pointer"]
        own = (percpu[percpu != 0][:, None] + self.cpus[None, :]).ravel()
        stats = self.type.member("vmstats").type
        if stats.kind == drgn.TypeKind.ARRAY:
            root = self._sum(self.groups[:1], self.type, f"vmstats[{index}].counter")
            return root + self._sum(own, "struct memcg_vmstats_percpu", f"stat[{index}]")
        # Since Linux kernel commit 2d146aa3aa84 ("mm: memcontrol: switch to rstat") (in v5.13), a
        # CPU has its count and the part passed on, and the parent has pending counts.
        places = self.groups + np.uint64(drgn.offsetof(self.type, "vmstats"))
        if stats.kind == drgn.TypeKind.POINTER:
            places = self._gather(self.groups, self.type, pointer="vmstats")["pointer"]
        total = self._sum(places[:1], "struct memcg_vmstats", f"state[{index}]")
        total += self._sum(places, "struct memcg_vmstats", f"state_pending[{index}]")
        total += self._sum(own, "struct memcg_vmstats_percpu", f"state[{index}]")
        return total - self._sum(own, "struct memcg_vmstats_percpu", f"state_prev[{index}]")

    def _index(self, item: int) -> int:
        try:
            indexes = self.prog["mem_cgroup_stats_index"]
        except LookupError:
            return item
        # Since Linux kernel commit ff48c71c26aa ("memcg: reduce memory for the lruvec and memcg
        # stats") (in v6.10), they have only some of the items. While the array has signed elements
        # (until v6.11, commit not verified), the index is one too high.
        return int(indexes[item]) - int(indexes.type_.type.unaliased().is_signed)

    def _stocks(self) -> int:
        """Return the bytes that CPUs have counted but not yet added to any statistics."""
        total = 0
        # Since Linux kernel commit 68ac5b3c8db2 ("mm/memcg: cache vmstat data in percpu
        # memcg_stock_pcp") (in v5.14); in memcg_stock.task_obj and irq_obj until commit
        # fead2b869764 ("mm/memcg: revert ("mm/memcg: optimize user context object stock access")")
        # (in v5.18), in obj_stock since v6.17 (commit not verified).
        for variable in ("memcg_stock", "obj_stock"):
            try:
                stock = self.prog[variable]
            except LookupError:
                continue
            places = np.uint64(stock.address_) + self.cpus
            for path in ("", "task_obj.", "irq_obj."):
                if path and not stock.type_.has_member(path[:-1]):
                    continue
                for name in ("nr_slab_reclaimable_b", "nr_slab_unreclaimable_b"):
                    with contextlib.suppress(LookupError):
                        total += self._sum(places, stock.type_, path + name)
        return total

    def _gather(self, places: Words, type_: drgn.Type | str, **members: str) -> Gathered:
        return gather(self.memory, places, layout(self.prog, type_, members), self.faults)

    def _sum(self, places: Words, type_: drgn.Type | str, path: str) -> int:
        member = layout(self.prog, type_, {"value": path})
        values = gather(self.memory, places, member, self.faults, may_be_zero=True)["value"]
        return int(values.astype(np.int64).sum())
