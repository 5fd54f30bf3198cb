# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slabs of SLAB rather than SLUB, written into the memory of a *synthetic* kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from drgn import Object

from tests.unit.fakekernel.eras import era_of
from tests.unit.fakekernel.machine import PAGE
from tests.unit.fakekernel.slub import NODES, Cache, FakeKernel, Memcg, Slab

_TYPES = """
typedef freelist_idx_t unsigned char
struct kmem_cache 256
    0 struct array_cache * cpu_cache; 8 unsigned long flags; 16 unsigned int size
    20 unsigned int num; 24 unsigned int gfporder; 28 int object_size; 32 const char * name
    48 int refcount; 52 int obj_offset; 64 struct list_head list
    128 struct kmem_cache_node * [8] node
struct kmem_cache_node 64
    8 unsigned long total_slabs; 16 unsigned long free_objects
    24 struct array_cache * shared; 32 struct alien_cache * * alien
struct array_cache 16
    0 unsigned int avail; 4 unsigned int limit; 16 void * [0] entry
struct alien_cache 24 : 0 int lock; 8 struct array_cache ac
struct slab_words 64
    24 struct kmem_cache * slab_cache; 32 void * freelist; 40 void * s_mem; 48 unsigned int active
    52 unsigned int inuse:16; 54 unsigned int objects:15
    56 unsigned long {vector}
"""
_LIMIT = 16
"""Most objects of an array."""


@dataclass(eq=False)
class ColouredSlab(Slab):
    colour: int = 0

    def object(self, slot: int) -> int:
        return super().object(slot) + self.colour


class SlabKernel(FakeKernel):
    """A synthetic kernel with SLAB, of 6.1, or of 5.9 and with slabs in ``struct page``."""

    def __init__(self, era: str = "5.17") -> None:
        vector = {"5.17": "memcg_data", "5.9": "obj_cgroups"}[era]
        # The real types of a capsule are those of SLUB.
        super().__init__(replace(era_of(era), sample=""), base=_TYPES.format(vector=vector))

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
        spare: int = 0,
    ) -> Cache:
        """Make a cache; ``left_pad`` is of each object, ``spare`` slots are not used."""
        slot_size = slot_size or object_size
        object_ = self.alloc("struct kmem_cache", alone=True)
        cache = Cache(object_, name, object_size, slot_size, order, 0, left_pad, 0, reclaimable)
        self.fill(
            object_, flags=0x20000 if reclaimable else 0, size=slot_size, object_size=object_size
        )
        self.fill(object_, gfporder=order, num=(PAGE << order) // slot_size - spare)
        self.fill(object_, obj_offset=left_pad, refcount=refcount, name=name.encode())
        self.list_add_tail(object_.list, self.symbols["slab_caches"])
        size = 16 + 8 * _LIMIT
        self.set(object_.cpu_cache, self.percpu(size))
        for cpu in range(len(self._percpu)):
            self.set(self.per_cpu("struct array_cache", int(object_.cpu_cache), cpu).limit, _LIMIT)
        for node in range(NODES):
            self.set(object_.node[node], self.alloc("struct kmem_cache_node"))
        self.caches.append(cache)
        return cache

    def slab(
        self,
        cache: Cache,
        free: Iterable[int] = (),
        *,
        order: int | None = None,
        node: int = 0,
        colour: int = 0,
        where: str = "behind",
    ) -> ColouredSlab:
        """Make a slab with free slots.

        :param where: the numbers of free slots are ``behind`` the slots, ``outside`` of the slab,
            or in a free slot (``inside``)
        """
        pfn, free, objects = self.pages(cache.order, node), list(free), int(cache.object.num)
        struct = self.mark_slab(pfn)
        slab = ColouredSlab(cache, pfn, cache.order, objects, node, struct, {*free}, colour=colour)
        active = objects - len(free)
        self.fill(struct, slab_cache=cache.object, active=active)
        self.set(struct.s_mem, slab.object(0) - cache.left_pad)
        if where == "behind":
            place = slab.address + (PAGE << cache.order) - objects
            assert slab.object(objects - 1) + cache.slot_size <= place
        elif where == "outside":
            place = self.alloc("char", objects, alone=True).address_
        else:
            place = slab.object(free[-1]) if free else 0
        self.set(struct.freelist, place)
        if place:
            # Elements of slots in use are out of date.
            self.write(place, bytes([0] * (active if where != "inside" else 0)))
            self.write(place + active, bytes(free))
        cache.slabs.append(slab)
        return slab

    def array(self, array: Object, objects: Sequence[tuple[Slab, int]]) -> None:
        """Put free objects, given by slab and slot, into an array."""
        self.fill(array, avail=len(objects), limit=_LIMIT)
        entries = [slab.object(slot) - slab.cache.left_pad for slab, slot in objects]
        self.write_words(array.entry.address_of_().value_(), *entries)
        for slab, slot in objects:
            slab.parked.add(slot)

    def cpu_array(self, cache: Cache, cpu: int) -> Object:
        return self.per_cpu("struct array_cache", int(cache.object.cpu_cache), cpu)

    def shared_array(self, cache: Cache, node: int) -> Object:
        array = self.alloc("struct array_cache", 8 * _LIMIT)
        self.set(self.node(cache, node).shared, array)
        return array

    def alien_array(self, cache: Cache, node: int, other: int) -> Object:
        """Give a node an array of objects of another one."""
        table = self.alloc(f"struct alien_cache * [{NODES}]")
        alien = self.alloc("struct alien_cache", 8 * _LIMIT)
        self.set(table[other], alien)
        self.set(self.node(cache, node).alien, table)
        return alien.ac

    def _count(self, node: Object, slabs: Sequence[Slab]) -> None:
        free = sum(len(slab.free) for slab in slabs)
        self.fill(node, total_slabs=len(slabs), free_objects=free)
