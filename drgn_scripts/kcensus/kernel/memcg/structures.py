# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sizes of the kernel's own structures of each memory cgroup: slots of slabs, per-CPU areas."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.engine.slub.percpu import cpu_offsets, node_ids
from kcensus.engine.strings import c_strings
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import PER_NODE, Memcgs, memcgs, per_node
from kcensus.kernel.memcg.shrinker_maps import shrinker_maps
from kcensus.kernel.mm.footprint import Footprint, Tally

MEMCG, CGROUP = "struct mem_cgroup", "struct cgroup"
PSI, KERNFS, OBJCG = "struct psi_group", "struct kernfs_node", "struct obj_cgroup"

_ALLOCATIONS = {
    # Since Linux kernel commit 410f8e82689e ("memcg: extract memcg_vmstats from struct
    # mem_cgroup") (in v6.1); before, the statistics are part of the mem_cgroup.
    MEMCG: ("vmstats", "css.refcnt.data"),
    # Since Linux kernel commit 70a64b7919cb ("memcg: dynamically allocate lruvec_stats") (in
    # v6.10).
    PER_NODE: ("lruvec_stats",),
    CGROUP: ("self.refcnt.data", "bpf.refcnt.data"),
    KERNFS: ("iattr",),
    OBJCG: ("refcnt.data",),
}
"""Members that point to allocations, by the type with them; absent ones are left out."""
_PER_CPU = {
    MEMCG: (
        "vmstats_percpu",
        "vmstats_local",
        "stat_cpu",
        "stat",  # up to 4.15, and in RHEL 7
        "events_percpu",
        "css.rstat_cpu",
        "cgwb_domain.completions.events.counters",
    ),
    PER_NODE: ("lruvec_stats_percpu", "lruvec_stat_local", "lruvec_stat_cpu"),
    CGROUP: ("self.rstat_cpu", "rstat_cpu", "rstat_base_cpu", "cpu_stat"),
    PSI: ("pcpu",),
}
_REFCOUNTS = {MEMCG: ("css.refcnt",), CGROUP: ("self.refcnt", "bpf.refcnt"), OBJCG: ("refcnt",)}
"""Members of type ``percpu_ref``: an ``unsigned long`` per CPU, until it is atomic for good."""
_PERCPU_UNIT = 4
"""PCPU_MIN_ALLOC_SIZE: the per-CPU allocator rounds sizes up to it."""
_MAX_LEVEL = 1 << 10
"""Most levels of the cgroup hierarchy."""
_REF_FLAGS = 3
"""``__PERCPU_REF_ATOMIC_DEAD``: the bits of ``percpu_count_ptr`` outside of the pointer."""


@dataclass(frozen=True)
class Structures:
    """Bytes of the structures of each memory cgroup, shape (memcgs,)."""

    slab: Numbers
    """Allocations, rounded by the allocator: everything but the per-CPU areas and the maps."""
    per_cpu: Numbers
    shrinker_maps: Numbers
    tally: Tally = field(default_factory=Tally)
    """All allocations of offline memory cgroups by kind and place; no per-CPU areas."""
    online_tally: Tally = field(default_factory=Tally)
    areas: int = 0
    """Number of per-CPU areas of offline memcgs, each for all CPUs."""
    unreadable: int = 0
    """Structures with unreadable pointers."""

    @property
    def bytes(self) -> Numbers:
        """Bytes of all structures."""
        return self.slab + self.per_cpu + self.shrinker_maps


def no_structures(groups: Memcgs) -> Structures:
    """Return zeros, for a capsule that was recorded for other analyses."""
    zeros = np.zeros(len(groups), np.int64)
    return Structures(zeros, zeros, zeros)


def structures(kernel: Kernel, footprint: Footprint) -> Structures:
    """Return the sizes of memory cgroups' structures, including their cgroups'.

    The root's structures are variables of the kernel, and not counted.
    """
    groups = memcgs(kernel)
    offline, others = (_Reader(kernel, groups, footprint) for _ in range(2))
    offline.read(~groups.online)
    others.read(groups.online & (groups.parent >= 0))
    return Structures(
        offline.slab + others.slab,
        offline.per_cpu + others.per_cpu,
        offline.maps + others.maps,
        offline.tally,
        others.tally,
        offline.areas,
        offline.unreadable + others.unreadable,
    )


class _Reader:
    def __init__(self, kernel: Kernel, groups: Memcgs, footprint: Footprint) -> None:
        self.kernel = kernel
        self.memory = kernel.memory
        self.prog = kernel.prog
        self.groups = groups
        self.footprint = footprint
        self.tally = Tally()
        self.slab, self.per_cpu, self.maps = (np.zeros(len(groups), np.int64) for _ in range(3))
        self.cpus = len(cpu_offsets(self.prog))
        self.areas = self.unreadable = 0

    def read(self, wanted: Mask) -> None:
        groups, rows = self.groups, np.flatnonzero(wanted)
        self._visit(MEMCG, rows, groups.address[rows], extra=8 * node_ids(self.prog))
        owners, nodes, _ = per_node(self.memory, groups, rows, self.footprint.faults)
        self._visit(PER_NODE, owners, nodes)
        # Of a removed one of RHEL 7, the cgroup may be freed.
        counted = rows[_first_of_cgroup(groups)[rows] & (groups.cgroup[rows] != 0)]
        cgroups = counted, groups.cgroup[counted]
        self._visit(CGROUP, *cgroups, embedded=True)
        self._cgroups(*cgroups)
        self._visit(PSI, *self._followed(CGROUP, *cgroups, "psi"))
        kernfs = self._followed(CGROUP, *cgroups, "kn")
        self._visit(KERNFS, *kernfs)
        self._names(*kernfs)
        # A memory cgroup keeps its first obj_cgroup (in a node each since v7.1) until it is
        # released; commits not verified.
        self._visit(OBJCG, *self._followed(MEMCG, rows, groups.address[rows], "orig_objcg"))
        self._visit(OBJCG, *self._followed(PER_NODE, owners, nodes, "orig_objcg"))
        maps = shrinker_maps(self.memory, groups, self.footprint, self.tally, rows)
        self.maps += maps.bytes
        self.unreadable += maps.unreadable

    def _cgroups(self, owners: Numbers, addresses: Words) -> None:
        """Count cgroups, each with an array of itself and its ancestors behind it."""
        # Since Linux kernel commit b11cfb5807e3 ("cgroup: record ancestor IDs and reimplement
        # cgroup_is_descendant() using it") (in v4.5); pointers since Linux kernel commit
        # 7f203bc89eb6 ("cgroup: Replace cgroup->ancestor_ids[] with ->ancestors[]") (in v6.1).
        type_ = self.prog.type(CGROUP)
        size, each = drgn.sizeof(type_), 0
        if type_.members and type_.members[-1].type.kind == drgn.TypeKind.ARRAY:
            last = type_.members[-1].type
            each = 0 if last.length else drgn.sizeof(last.type)
        members = layout(self.prog, CGROUP, {}, {"level": "level"})
        read = gather(self.memory, addresses, members, self.footprint.faults)
        level = read["level"] if "level" in members else np.zeros(len(addresses))
        asked = size + each * (np.clip(level.astype(np.int64), 0, _MAX_LEVEL) + 1)
        for bytes_ in np.unique(asked).tolist():
            chosen = asked == bytes_
            self._allocated(CGROUP, owners[chosen], addresses[chosen], bytes_)

    def _visit(
        self,
        name: str,
        owners: Numbers,
        addresses: Words,
        extra: int = 0,
        *,
        embedded: bool = False,
    ) -> None:
        """Count structures, ``extra`` bytes after each, and the targets of their members.

        :param embedded: whether they are parts of others, or counted elsewhere
        """
        try:
            type_ = self.prog.type(name)
        except LookupError:
            return
        embedded |= name == PSI and self._psi_is_embedded
        if not embedded:
            self._allocated(name, owners, addresses, drgn.sizeof(type_) + extra)
        for path in _ALLOCATIONS.get(name, ()):
            if (pointee := _pointee(type_, path)) is not None:
                self._allocated(
                    pointee[0], *self._followed(name, owners, addresses, path), pointee[1]
                )
        for path in _PER_CPU.get(name, ()):
            if (pointee := _pointee(type_, path)) is not None:
                self._on_cpus(self._followed(name, owners, addresses, path)[0], pointee[1])
        for path in _REFCOUNTS.get(name, ()):
            path += ".percpu_count_ptr"
            self._on_cpus(self._followed(name, owners, addresses, path, _REF_FLAGS)[0], 8)

    @property
    def _psi_is_embedded(self) -> bool:
        # Until Linux kernel commit 5f69a6577bc3 ("psi: dont alloc memory for psi by default") (in
        # v6.0), a cgroup has it as a member.
        type_ = self.prog.type(CGROUP)
        if not type_.has_member("psi"):
            return False
        return bool(type_.member("psi").type.kind == drgn.TypeKind.STRUCT)

    def _followed(
        self, name: str, owners: Numbers, addresses: Words, path: str, flags: int = 0
    ) -> tuple[Numbers, Words]:
        """Return owners and values of a pointer, without ``flags``, where it is not NULL."""
        type_ = self.prog.type(name)
        if path == "psi" and self._psi_is_embedded:
            return owners, addresses + np.uint64(drgn.offsetof(type_, "psi"))
        members = layout(self.prog, type_, {}, {"pointer": path})
        if "pointer" not in members:
            return owners[:0], addresses[:0]
        read = gather(self.memory, addresses, members, self.footprint.faults)
        self.unreadable += int((~read.readable).sum())
        pointers = read["pointer"] & ~np.uint64(flags)
        return owners[pointers != 0], pointers[pointers != 0]

    def _names(self, owners: Numbers, nodes: Words) -> None:
        owners, names = self._followed(KERNFS, owners, nodes, "name")
        texts = c_strings(self.memory, names, self.footprint.faults)
        sizes = np.array([len(text or b"") + 1 for text in texts], np.int64)
        for size in np.unique(sizes).tolist():
            self._allocated("names", owners[sizes == size], names[sizes == size], size)

    def _allocated(self, kind: str, owners: Numbers, addresses: Words, size: int) -> None:
        np.add.at(self.slab, owners, self.footprint.sizes(addresses, size, kind, self.tally))

    def _on_cpus(self, owners: Numbers, size: int) -> None:
        rounded = -(-size // _PERCPU_UNIT) * _PERCPU_UNIT
        np.add.at(self.per_cpu, owners, rounded * self.cpus)
        self.areas += len(owners)


def _first_of_cgroup(groups: Memcgs) -> Mask:
    """Return the memory cgroup that counts each cgroup: the online one of several."""
    order = np.argsort(~groups.online, kind="stable")
    _, first = np.unique(groups.cgroup[order], return_index=True)
    mask = np.zeros(len(groups), np.bool_)
    mask[order[first]] = True
    return mask


def _pointee(type_: drgn.Type, path: str) -> tuple[str, int] | None:
    for name in path.split("."):
        while type_.kind == drgn.TypeKind.TYPEDEF:
            type_ = type_.type
        if not type_.is_complete() or not type_.has_member(name):
            return None
        type_ = type_.member(name).type
    if type_.kind != drgn.TypeKind.POINTER:
        return None
    return type_.type.type_name(), drgn.sizeof(type_.type)
