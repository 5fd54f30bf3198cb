# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slabs and memory cgroups, written into the memory of a *synthetic* kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import drgn
from drgn import Object

from tests.unit.fakekernel.eras import Era, era_of, table
from tests.unit.fakekernel.machine import DIRECT_MAP, PAGE, VMEMMAP, Machine
from tests.unit.fakekernel.types import Table, add_types

CPUS = NODES = 2
_PG_SLAB, _PG_HEAD = 9, 6
_PG_OTHERS = {"PG_lru": 5, "PG_reserved": 12}
_PAGE_TYPE_SLAB, _PAGE_TYPE_LARGE = 0xF5, 0xF8
_NODE_SHIFT = 61
_MASK = (1 << 64) - 1


@dataclass(eq=False)
class Slab:
    cache: Cache
    pfn: int
    order: int
    objects: int
    node: int
    struct: Object
    """``struct slab``, or ``struct page`` before 5.17."""
    free: set[int]
    parked: set[int] = field(default_factory=set)
    """Free slots that a CPU or a sheaf keeps; they count as in use."""

    @property
    def address(self) -> int:
        return DIRECT_MAP + self.pfn * PAGE

    def object(self, slot: int) -> int:
        return self.address + self.cache.left_pad + slot * self.cache.slot_size

    def allocated(self) -> list[int]:
        return [at for at in range(self.objects) if at not in self.free and at not in self.parked]


@dataclass(eq=False)
class Cache:
    object: Object
    name: str
    object_size: int
    slot_size: int
    order: int
    offset: int
    left_pad: int
    secret: int
    reclaimable: bool
    slabs: list[Slab] = field(default_factory=list)

    @property
    def address(self) -> int:
        return int(self.object.address_)

    def allocated(self) -> list[int]:
        return sorted(slab.object(at) for slab in self.slabs for at in slab.allocated())


@dataclass(eq=False)
class Memcg:
    """A memory cgroup, and the one obj_cgroup that charges to it."""

    object: Object
    objcg: Object
    path: str


class FakeKernel(Machine):
    """A synthetic kernel with two CPUs and two NUMA nodes.

    :param era: a release, or any :class:`Era`
    :param types: more types, for what a test makes
    :param base: types that replace those of the era from the beginning
    """

    def __init__(
        self, era: str | Era = "6.10", types: Table | str = "", *, base: Table | str = ""
    ) -> None:
        self.era = era_of(era) if isinstance(era, str) else era
        mapcount = (_PAGE_TYPE_SLAB << 24) - (1 << 32)
        text = f"NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)={mapcount}\n" if self.era.page_type else ""
        super().__init__(table(self.era), base, vmcoreinfo=text)
        self.caches: list[Cache] = []
        self._next_pfn = 512
        self._percpu_used = 64
        self.constant("PG_slab", _PG_SLAB)
        self.constant("PG_head", _PG_HEAD)
        for name, bit in _PG_OTHERS.items():
            self.constant(name, bit)
        if self.era.page_type:
            self.constant("_SLAB_RECLAIM_ACCOUNT", 5)
            self.constant("PGTY_large_kmalloc", _PAGE_TYPE_LARGE)
        if self.era.obj_exts:
            self.constant("__NR_OBJEXTS_FLAGS", 8)
        if self.era.needs_objcg and self.era.codetag:
            key = self.variable("slab_obj_ext_has_codetag_key", "struct static_key_false")
            self.set(key.key.enabled.counter, 1)
        self._make_cpus_and_nodes()
        self._make_memcgs()
        self.list_init(self.variable("slab_caches", "struct list_head"))
        add_types(self.prog, types, "more")

    def _make_cpus_and_nodes(self) -> None:
        self._percpu = [self.alloc("char", 2 * PAGE, alone=True).address_ for _ in range(CPUS)]
        for each in self._percpu:
            # Other variables, so that no page is all zero.
            self.write_words(each, 1)
            self.write_words(each + 2 * PAGE - 8, 1)
        offsets = self.variable("__per_cpu_offset", f"unsigned long [{CPUS}]")
        self.write_words(offsets.address_, *self._percpu)
        self.constant("nr_cpu_ids", CPUS)
        for name in ("__cpu_possible_mask", "__cpu_online_mask"):
            self.set(self.variable(name, "struct cpumask").bits[0], (1 << CPUS) - 1)
        self.constant("nr_node_ids", NODES)
        self.enum("node_states", ["N_POSSIBLE", "N_ONLINE"])
        for state in self.variable("node_states", "nodemask_t [2]"):
            self.set(state.bits[0], (1 << NODES) - 1)
        # 4.13 to 5.8 have no _B; the words mean pages all the same.
        suffix = "" if self.era.children else "_B"
        names = ["NR_OTHER", f"NR_SLAB_RECLAIMABLE{suffix}", f"NR_SLAB_UNRECLAIMABLE{suffix}"]
        self.enum("node_stat_item", names)
        data = self.variable("node_data", "struct pglist_data * [8]")
        for node in range(NODES):
            pgdat = self.alloc("struct pglist_data")
            self.set(pgdat.node_id, node)
            self.set(pgdat.per_cpu_nodestats, self.percpu_of("struct per_cpu_nodestat"))
            self.set(data[node], pgdat)
        self.variable("_totalram_pages", "atomic_long_t")
        self.set_ram(3072)

    def set_ram(self, pages: int) -> None:
        """Set the RAM of the machine, in equal parts on the nodes; layouts may lack their zones."""
        self.set(self.symbols["_totalram_pages"].counter, pages)
        for node in self.symbols["node_data"][:NODES]:
            if node.type_.type.has_member("node_zones"):
                self.set(node.node_present_pages, pages // NODES)
                self.set(node.node_zones[0].managed_pages.counter, pages // NODES)

    def percpu(self, size: int) -> int:
        """Allocate per-CPU memory and return a pointer for per_cpu_ptr()."""
        place, self._percpu_used = self._percpu_used, self._percpu_used + -(-size // 8) * 8
        assert self._percpu_used <= 2 * PAGE - 8, "the synthetic per-CPU area is full"
        return place

    def percpu_of(self, type_: str) -> int:
        return self.percpu(drgn.sizeof(self.prog.type(type_)))

    def per_cpu(self, type_: str, pointer: int, cpu: int) -> Object:
        return Object(self.prog, type_, address=self._percpu[cpu] + pointer)

    def _make_memcgs(self) -> None:
        self.enum("css_flags", ["CSS_ONLINE"], 2)
        self.constant("CSS_DYING", 16)
        self.memcgs: list[Memcg] = []
        self.root = self.memcg("", None)
        self.variable("root_mem_cgroup", "struct mem_cgroup *", self.root.object.address_)

    def memcg(self, name: str, parent: Memcg | None, *, flags: int = 2) -> Memcg:
        """Make a memory cgroup below another; ``flags`` are CSS_ONLINE (2) and CSS_DYING (16)."""
        object_ = self.alloc("struct mem_cgroup", alone=True)
        kn = self.alloc("struct kernfs_node", name=name.encode(), flags=1)  # KERNFS_DIR
        objcg = self.alloc("struct obj_cgroup", memcg=object_)
        self.fill(object_.css, cgroup=self.alloc("struct cgroup", kn=kn), flags=flags)
        self.list_init(object_.css.children)
        path, online = "/", int(flags & 2 != 0)
        self.set(object_.css.online_cnt.counter, online)
        if parent is not None:
            self.set(object_.css.parent, parent.object.css.address_)
            count = parent.object.css.online_cnt.counter
            self.set(count, int(count) + online)
            self.list_add_tail(object_.css.sibling, parent.object.css.children)
            path = f"{parent.path.rstrip('/')}/{name}"
        self.memcgs.append(Memcg(object_, objcg, path))
        return self.memcgs[-1]

    def cache(
        self,
        name: str,
        object_size: int,
        slot_size: int = 0,
        order: int = 0,
        *,
        offset: int = 0,
        left_pad: int = 0,
        reclaimable: bool = False,
        refcount: int = 1,
        root: Cache | None = None,
        memcg: Memcg | None = None,
    ) -> Cache:
        """Make a slab cache, a child of ``root`` for ``memcg``; ``offset`` is of a free list
        pointer.
        """
        era, slot_size = self.era, slot_size or object_size
        object_ = self.alloc("struct kmem_cache", alone=True)
        secret = 0x9E37_79B9_7F4A_7C15 * (len(self.caches) + 1) & _MASK if era.hardened else 0
        cache = Cache(
            object_, name, object_size, slot_size, order, offset, left_pad, secret, reclaimable
        )
        flag = 1 << 5 if era.page_type else 0x20000
        self.fill(
            object_, flags=flag if reclaimable else 0, size=slot_size, object_size=object_size
        )
        self.fill(
            object_, offset=offset, red_left_pad=left_pad, refcount=refcount, name=name.encode()
        )
        for place in (object_.oo,) if era.page_type else (object_.oo, object_.max):
            self.set(place.x, order << 16 | (PAGE << order) // slot_size)
        self.list_add_tail(object_.list, self.symbols["slab_caches"])
        if era.hardened:
            self.set(object_.random, secret)
        if era.cpu_slab:
            self.set(object_.cpu_slab, self.percpu_of("struct kmem_cache_cpu"))
        if era.sheaves:
            self.set(object_.cpu_sheaves, self.percpu_of("struct slub_percpu_sheaves"))
            self.set(object_.sheaf_capacity, 60)
            for cpu in range(len(self._percpu)):
                self.cpu_sheaf(cache, cpu, "main", self.sheaf([]))
        for node in range(NODES):
            pointer = object_.per_node[node].node if era.per_node else object_.node[node]
            self.set(pointer, self.alloc("struct kmem_cache_node"))
            self.list_init(pointer.partial)
            if era.sheaves:
                barn = self.alloc("struct node_barn", alone=True)
                self.set(object_.per_node[node].barn if era.per_node else pointer.barn, barn)
                self.list_init(barn.sheaves_full)
        if root is not None:
            self.set(object_.memcg_params.root_cache, root.object)
        if memcg is not None:
            self.set(object_.memcg_params.memcg, memcg.object)
        self.caches.append(cache)
        return cache

    def alias(self, cache: Cache, name: str) -> None:
        """Link ``name`` to a cache in sysfs, as for a cache that was merged into it."""
        if "slab_kset" not in self.symbols:
            kset = self.variable("slab_kset", "struct kset *", self.alloc("struct kset").address_)
            self.constant("KERNFS_LINK", 4)
            self.set(kset.kobj.sd, self.alloc("struct kernfs_node"))
            self._last_name = kset.kobj.sd.dir.children.rb_node
        target = self.alloc("struct kernfs_node", priv=cache.object.kobj)
        link = self.alloc("struct kernfs_node", name=name.encode(), flags=4)
        self.set(link.symlink.target_kn, target)
        # A tree with only right branches.
        self.set(self._last_name, link.rb)
        self._last_name = link.rb.rb_right

    def page(self, pfn: int) -> Object:
        return Object(self.prog, "struct page", address=VMEMMAP + 64 * pfn)

    def pages(self, order: int, node: int = 0) -> int:
        """Allocate a compound page and return its first page frame."""
        pfn = -(-self._next_pfn >> order) << order
        if 1024 <= pfn < 2048:
            pfn = 2048
        self._next_pfn = pfn + (1 << order)
        for at in range(pfn, self._next_pfn):
            page = self.page(at)
            flags = page.flags.f if self.era.memdesc_flags else page.flags
            self.set(flags, node << _NODE_SHIFT | (at == pfn and order > 0) << _PG_HEAD)
            self.set(page._mapcount.counter, -1)
            if at > pfn:
                mask = -(64 << order) & _MASK
                head = mask if self.era.compound_info else VMEMMAP + 64 * pfn
                self.set(page.member_(self.era.compound), head | 1)
        return pfn

    def large_kmalloc(self, order: int) -> int:
        """Allocate pages as kmalloc() does beyond the slab caches; return the first page frame."""
        pfn = self.pages(order)
        if not self.era.page_type:
            return pfn
        self.set(self.page(pfn)._mapcount.counter, _PAGE_TYPE_LARGE << 24)
        tail = self.page(pfn + 1)
        flags = tail.flags.f if self.era.memdesc_flags else tail.flags
        self.set(flags, int(flags) & ~0xFF | order)
        return pfn

    def mark_slab(self, pfn: int) -> Object:
        """Mark a page as the head of a slab and return its ``struct slab``, still empty."""
        page = self.page(pfn)
        if self.era.page_type:
            self.set(page._mapcount.counter, _PAGE_TYPE_SLAB << 24)
        else:
            self.set(page.flags, int(page.flags) | 1 << _PG_SLAB)
        return drgn.cast("struct slab *", page.address_of_())[0] if self.era.struct_slab else page

    def slab(
        self, cache: Cache, free: Iterable[int] = (), *, order: int | None = None, node: int = 0
    ) -> Slab:
        """Make a slab whose slots ``free`` are on its free list, in that order."""
        order = cache.order if order is None else order
        pfn = self.pages(order, node)
        struct = self.mark_slab(pfn)
        objects = (PAGE << order) // cache.slot_size
        free = list(free)
        slab = Slab(cache, pfn, order, objects, node, struct, set(free))
        self.fill(struct, slab_cache=cache.object, objects=objects, inuse=objects - len(free))
        self.set(struct.freelist, self.chain(slab, free))
        cache.slabs.append(slab)
        return slab

    def chain(self, slab: Slab, slots: Sequence[int]) -> int:
        addresses = [*map(slab.object, slots), 0]
        for here, following in pairwise(addresses):
            self.link(slab.cache, here, following)
        return addresses[0]

    def link(self, cache: Cache, here: int, following: int) -> None:
        place = here + cache.offset
        if self.era.hardened:
            swapped = int.from_bytes(place.to_bytes(8, "big"), "little")
            following ^= cache.secret ^ (swapped if self.era.swab else place)
        self.write_words(place, following)

    def cpu_slab(self, slab: Slab, cpu: int, free: Sequence[int] = ()) -> Object:
        """Make a slab the active one of a CPU, whose own free list has the slots ``free``."""
        active = self.per_cpu("struct kmem_cache_cpu", int(slab.cache.object.cpu_slab), cpu)
        self.set(active.slab if self.era.struct_slab else active.page, slab.struct)
        self.set(active.freelist, self.chain(slab, free))
        slab.parked.update(free)
        return active

    def sheaf(self, objects: Sequence[tuple[Slab, int]]) -> Object:
        """Make a sheaf of free objects, given by slab and slot."""
        sheaf = self.alloc("struct slab_sheaf", 8 * len(objects), size=len(objects))
        self.write_words(sheaf.address_ + 32, *(slab.object(slot) for slab, slot in objects))
        for slab, slot in objects:
            slab.parked.add(slot)
        return sheaf

    def cpu_sheaf(self, cache: Cache, cpu: int, which: str, sheaf: Object) -> None:
        """Give a CPU a sheaf as its ``main``, ``spare`` or ``rcu_free``."""
        pointer = int(cache.object.cpu_sheaves)
        sheaves = self.per_cpu("struct slub_percpu_sheaves", pointer, cpu)
        self.set(sheaves.member_(which), sheaf)

    def barn(self, cache: Cache, node: int) -> Object:
        holder = cache.object.per_node[node] if self.era.per_node else self.node(cache, node)
        return holder.barn[0]

    def charge(
        self,
        slab: Slab,
        owners: Mapping[int, Memcg],
        *,
        at: int | None = None,
        in_object: int | None = None,
    ) -> int:
        """Charge slots of a slab to memory cgroups by a vector, and return its address.

        :param at: address of the vector; by default in the heap, outside of any slab
        :param in_object: offset of the vector's elements in the slab's own slots (7.0)
        """
        element = 16 if self.era.codetag else 8
        stride = element if in_object is None else slab.cache.slot_size
        if in_object is not None:
            at = slab.object(0) + in_object
        elif at is None:
            at = self.alloc("char", slab.objects * element, alone=True).address_
        for slot in range(slab.objects):
            objcg = owners[slot].objcg.address_ if slot in owners else 0
            self.write_words(at + slot * stride, objcg)
        self.set(slab.struct.member_(self.era.vector), at | 1)
        if self.era.stride:
            self.set(slab.struct.stride, stride)
        if self.era.needs_objcg:
            self.fill(slab.struct, obj_exts_in_object=in_object is not None, obj_exts_needs_objcg=1)
        return at

    def settle(self) -> None:
        """Make the kernel's counters agree with the slabs made so far."""
        pages = [[0, 0] for _ in range(NODES)]
        for cache in self.caches:
            for node in range(NODES):
                slabs = [slab for slab in cache.slabs if slab.node == node]
                self._count(self.node(cache, node), slabs)
                pages[node][not cache.reclaimable] += sum(1 << slab.order for slab in slabs)
        for node in range(NODES):
            pgdat = self.symbols["node_data"][node]
            for item in (0, 1):
                # The CPUs have not folded a part of it yet.
                self.set(pgdat.vm_stat[1 + item].counter, pages[node][item] - 3)
                for cpu, unfolded in enumerate((-2, 5)):
                    stats = int(pgdat.per_cpu_nodestats)
                    diff = self.per_cpu("struct per_cpu_nodestat", stats, cpu)
                    self.set(diff.vm_node_stat_diff[1 + item], unfolded)

    def _count(self, node: Object, slabs: Sequence[Slab]) -> None:
        self.set(node.nr_slabs.counter, len(slabs))
        self.set(node.total_objects.counter, sum(slab.objects for slab in slabs))

    def node(self, cache: Cache, node: int) -> Object:
        if self.era.per_node:
            return cache.object.per_node[node].node[0]
        return cache.object.node[node][0]
