# SPDX-License-Identifier: LGPL-2.1-or-later
"""The slow, obvious way: one drgn object at a time.

It walks pages, slabs, free lists and vectors one by one, as a person at a drgn prompt would, and
takes seconds where the engine takes milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import drgn
from drgn import FaultError, Object, Program, cast
from drgn.helpers.linux.cgroup import cgroup_path
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.mm import PageSlab, PageTail, compound_nr, for_each_page, page_to_virt
from drgn.helpers.linux.mmzone import for_each_online_pgdat
from drgn.helpers.linux.nodemask import nr_node_ids
from drgn.helpers.linux.percpu import per_cpu_ptr
from drgn.helpers.linux.slab import find_containing_slab_cache, for_each_slab_cache

from tests.vm.oracles import all_memcgs, entries


@dataclass
class CacheTruth:
    slabs: int = 0
    pages: int = 0
    total: int = 0
    active: set[int] = field(default_factory=set)
    """Addresses of allocated objects."""
    kept: int = 0
    """Free objects that /proc/slabinfo calls active: in sheaves, on CPUs, in slabs of CPUs."""
    slabs_by_used: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Slabs by how many slots are in use, and how many there are."""
    nodes: Counter[int] = field(default_factory=Counter)
    """Pages by NUMA node."""
    charged: Counter[int] = field(default_factory=Counter)
    """Charged objects by address of the ``struct mem_cgroup``."""


class Oracle:
    """Walks a kernel's slab allocator once."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self.caches = {cache.value_(): cache for cache in for_each_slab_cache(prog)}
        self.names = {
            address: cache.name.string_().decode() for address, cache in self.caches.items()
        }
        self.truth: dict[str, CacheTruth] = {name: CacheTruth() for name in self.names.values()}
        # Slots of the vectors of obj_cgroups, or a word per object.
        self.vector_bytes = 0
        self._walk()

    # Free objects

    def next_free(self, cache: Object, free: int) -> int:
        """The object after ``free`` on its list."""
        place = free + int(cache.offset)
        word = int(self.prog.read_word(place))
        if not hasattr(cache, "random"):
            return word
        return word ^ int(cache.random) ^ int.from_bytes(place.to_bytes(8, "little"), "big")

    def free_list(self, cache: Object, first: int) -> set[int]:
        """All objects of a list; a cycle or a fault is an error."""
        found: set[int] = set()
        while first:
            assert first not in found, "cycle"
            found.add(first)
            first = self.next_free(cache, first)
        return found

    def parked(self, cache: Object) -> set[int]:
        """Free objects on CPU free lists and in sheaves, which slabs count as in use."""
        found: set[int] = set()
        type_ = self.prog.type("struct kmem_cache")
        if type_.has_member("cpu_slab"):
            for cpu in for_each_possible_cpu(self.prog):
                cpu_slab = per_cpu_ptr(cache.cpu_slab, cpu)
                slab = cpu_slab.slab if hasattr(cpu_slab, "slab") else cpu_slab.page
                if slab and slab.slab_cache == cache:
                    found |= self.free_list(cache, int(cpu_slab.freelist))
        if type_.has_member("cpu_sheaves") and cache.cpu_sheaves:
            sheaves = []
            for cpu in for_each_possible_cpu(self.prog):
                per_cpu = per_cpu_ptr(cache.cpu_sheaves, cpu)
                sheaves += [per_cpu.main, per_cpu.spare]
            for node in range(nr_node_ids(self.prog)):
                barn = self._barn(cache, node)
                if barn:
                    sheaves += entries(barn.sheaves_full, "struct slab_sheaf", "barn_list")
            for sheaf in sheaves:
                if sheaf:
                    found |= {int(sheaf.objects[i]) for i in range(int(sheaf.size))}
        return found

    def _barn(self, cache: Object, node: int) -> Object | None:
        if hasattr(cache, "per_node"):
            return cache.per_node[node].barn
        return cache.node[node].barn if cache.node[node] else None

    def cpu_slabs(self) -> set[int]:
        """Addresses of slabs that a CPU owns: the one it allocates from, and its partial ones."""
        found: set[int] = set()
        if not self.prog.type("struct kmem_cache").has_member("cpu_slab"):
            return found
        for cache in self.caches.values():
            for cpu in for_each_possible_cpu(self.prog):
                cpu_slab = per_cpu_ptr(cache.cpu_slab, cpu)
                found.add(int(cpu_slab.slab if hasattr(cpu_slab, "slab") else cpu_slab.page))
                slab = cpu_slab.partial
                while slab:
                    found.add(int(slab))
                    slab = slab.next
        return found

    # The walk

    def _walk(self) -> None:
        parked = {address: self.parked(cache) for address, cache in self.caches.items()}
        on_cpus = self.cpu_slabs()
        node_of = _node_finder(self.prog)
        try:
            slab_type = self.prog.type("struct slab *")
        except LookupError:
            slab_type = self.prog.type("struct page *")
        for page in for_each_page(self.prog):
            try:
                if not PageSlab(page) or PageTail(page):
                    continue
            except FaultError:
                continue
            slab = cast(slab_type, page)
            address = slab.slab_cache.value_()
            cache = self.caches[address]
            truth = self.truth[self.names[address]]
            total, inuse = int(slab.objects), int(slab.inuse)
            first = int(page_to_virt(page)) + _left_pad(cache)
            free = self.free_list(cache, int(slab.freelist))
            assert len(free) == total - inuse
            slots = [first + i * int(cache.size) for i in range(total)]
            assert free <= set(slots)
            used = [slot for slot in slots if slot not in free and slot not in parked[address]]
            pages = int(compound_nr(page))
            truth.slabs += 1
            truth.pages += pages
            truth.total += total
            truth.active.update(used)
            truth.kept += inuse - len(used)
            if int(slab) in on_cpus:
                truth.kept += total - inuse
            truth.slabs_by_used[len(used), total] += 1
            truth.nodes[node_of(page)] += pages
            owners = (objcg_of(self.prog, cache, slab, index) for index in range(total))
            truth.charged.update(int(objcg.memcg) for objcg in owners if objcg)
            self.vector_bytes += self._vector_size(cache, slab, pages, int(page_to_virt(page)))

    def _vector_size(self, cache: Object, slab: Object, pages: int, start: int) -> int:
        vector = _vector(self.prog, slab)
        if not vector:
            return 0
        slots_end = start + _left_pad(cache) + int(slab.objects) * int(cache.size)
        is_behind = slots_end <= vector < start + pages * int(self.prog["PAGE_SIZE"])
        if is_behind or getattr(slab, "obj_exts_in_object", False):
            return 8 * int(slab.objects)
        return int(find_containing_slab_cache(self.prog, vector).size)

    # Memory cgroups

    def memcg_paths(self) -> dict[int, str]:
        return {
            int(memcg): cgroup_path(memcg.css.cgroup).decode(errors="backslashreplace")
            for memcg in all_memcgs(self.prog)
        }


def objcg_of(prog: Program, cache: Object, slab: Object, index: int) -> Object | None:
    """The ``obj_cgroup`` that an object of a slab is charged to."""
    vector = _vector(prog, slab)
    if not vector:
        return None
    if not hasattr(slab, "obj_exts"):
        return Object(prog, "struct obj_cgroup *", address=vector + 8 * index).read_()
    size = drgn.sizeof(prog.type("struct slabobj_ext"))
    if getattr(slab, "obj_exts_in_object", False):
        size = int(cache.size)
    element = Object(prog, "struct slabobj_ext", address=vector + index * size)
    objcg: Object = element.member_("_objcg" if hasattr(element, "_objcg") else "objcg").read_()
    return objcg


def _vector(prog: Program, slab: Object) -> int:
    """The address of a slab's vector of ``obj_cgroup``, or 0."""
    if not hasattr(slab, "obj_exts"):
        word = int(slab.memcg_data if hasattr(slab, "memcg_data") else slab.obj_cgroups)
        return word & ~3 if word & 1 else 0
    mask = int(prog.constant("__NR_OBJEXTS_FLAGS")) - 1
    return int(slab.obj_exts) & ~mask if getattr(slab, "obj_exts_needs_objcg", True) else 0


def _left_pad(cache: Object) -> int:
    return int(getattr(cache, "red_left_pad", 0))


def _node_finder(prog: Program) -> Callable[[Object], int]:
    """A function from a page to its NUMA node, by the spans of the nodes."""
    spans = [
        (start := int(node.node_start_pfn), start + int(node.node_spanned_pages), int(node.node_id))
        for node in for_each_online_pgdat(prog)
    ]
    base = int(prog["vmemmap"])
    size = drgn.sizeof(prog.type("struct page"))

    def node_of(page: Object) -> int:
        pfn = (int(page) - base) // size
        return next(node for start, end, node in spans if start <= pfn < end)

    return node_of
