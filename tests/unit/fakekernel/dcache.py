# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dentry cache, written into the memory of a *synthetic* kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import drgn
from drgn import Object

from tests.unit.fakekernel.files import FakeFiles
from tests.unit.fakekernel.slub import FakeKernel, Slab

SLOT, NAME_SLOT = 208, 96
BUCKETS = 64
_RARE = {"referenced": 6, "shrink": 10}
_BITS = {
    # Bits of LRU_LIST, PAR_LOOKUP and DENTRY_CURSOR, by the shift of the type of entry.
    19: {**_RARE, "lru": 18, "lookup": 24, "cursor": 25},
    20: {**_RARE, "lru": 19, "lookup": 28, "cursor": 29},
    24: {**_RARE, "lru": 19},
}
_ENUMERATORS = {"referenced": "REFERENCED", "shrink": "SHRINK_LIST", "lru": "LRU_LIST"}
_ENUMERATORS |= {"lookup": "PAR_LOOKUP", "cursor": "DENTRY_CURSOR"}


@dataclass(frozen=True)
class Made:
    object: Object
    slab: Slab
    slot: int
    name: bytes

    @property
    def address(self) -> int:
        return int(self.object.address_)


class FakeDcache:
    """Dentries in slabs, in a hash table and on lists of children."""

    def __init__(self, era: str = "7.3") -> None:
        self.machine = k = FakeKernel(era)
        self.era = k.era
        size = drgn.sizeof(k.prog.type("struct dentry"))
        self.cache = k.cache("dentry", size, SLOT, offset=96, reclaimable=True)
        self.name_cache = k.cache("kmalloc-96", NAME_SLOT)
        self.slabs: list[Slab] = []
        self._next: list[tuple[Slab, int]] = []
        self._names: list[int] = []
        self.files = FakeFiles(k, self._room(), self._name_room())
        self.bits = {name: 1 << bit for name, bit in _BITS[self.era.type_shift].items()}
        self.directory = (1 if self.era.type_shift == 24 else 2) << self.era.type_shift
        self.regular = 4 << self.era.type_shift
        if self.era.flags_enum:
            k.constant("DCACHE_ENTRY_TYPE", 7 << self.era.type_shift)
            for mark, name in _ENUMERATORS.items():
                k.constant(f"DCACHE_{name}", self.bits[mark])
        self.table = k.alloc("unsigned long", 8 * BUCKETS, alone=True)
        k.variable("dentry_hashtable", "unsigned long *", self.table.address_)
        bits = BUCKETS.bit_length() - 1
        k.variable("d_hash_shift", "unsigned int", bits if self.era.hash_mask else 32 - bits)
        if self.era.hash_mask:
            k.variable("d_hash_mask", "unsigned int", BUCKETS - 1)
        counters = ["nr_dentry", "nr_dentry_unused"]
        counters += ["nr_dentry_negative"] * self.era.negative_counter
        self.counters = {name: k.percpu(8) for name in counters}
        for name, place in self.counters.items():
            k.symbols[name] = Object(k.prog, "long", address=place)
        self.inode = k.alloc("struct inode")
        self.made: dict[int, Made] = {}

    def _room(self) -> Iterator[int]:
        while True:
            if not self._next:
                slab = self.machine.slab(self.cache)
                self.slabs.append(slab)
                self._next = [(slab, slot) for slot in reversed(range(slab.objects))]
            slab, slot = self._last = self._next.pop()
            yield slab.object(slot)

    def _name_room(self) -> Iterator[int]:
        while True:
            if not self._names:
                slab = self.machine.slab(self.name_cache)
                self._names = [slab.object(slot) for slot in reversed(range(slab.objects))]
            yield self._names.pop()

    def super_block(self, id_: str) -> Object:
        """Make a super block that is not mounted and whose root is a directory."""
        super_block = self.files.super_block("xfs", id_.encode())
        self._made(super_block.s_root[0], b"/", self.directory, 1)
        return super_block

    def _made(self, dentry: Object, name: bytes, flags: int, count: int) -> Made:
        k = self.machine
        k.set(dentry.d_flags, flags)
        k.set(dentry.d_lockref.count, count)
        if flags >> self.era.type_shift & 7:
            k.set(dentry.d_inode, self.inode)
        if not self.era.hlist:
            k.list_init(dentry.d_subdirs)
        slab, slot = self._last
        made = Made(dentry, slab, slot, name)
        self.made[made.address] = made
        return made

    def dentry(
        self,
        name: bytes,
        parent: Object,
        *marks: str,
        positive: bool = False,
        directory: bool = False,
        count: int = 0,
        bucket: int | None = None,
        listed: bool = True,
    ) -> Made:
        """Make a dentry, the first of its parent's children and of a hash bucket, if any.

        :param marks: of ``referenced``, ``lru``, ``shrink``, ``lookup`` and ``cursor``
        :param listed: whether it is among its parent's children
        """
        k = self.machine
        object_ = self.files.dentry(name, parent, parent.d_sb[0])
        kind = self.directory if directory else self.regular if positive else 0
        flags = kind | sum(self.bits[mark] for mark in marks)
        made = self._made(object_, name, flags, count)
        if not listed:
            pass
        elif self.era.hlist:
            k.set(object_.d_sib.next, k.word(parent.d_children.address_))
            k.set(parent.d_children.first, object_.d_sib)
        else:
            link = object_.d_u.d_child if self.era.child_in_union else object_.d_child
            first = k.word(parent.d_subdirs.address_)
            k.write_words(link.address_, first, parent.d_subdirs.address_)
            k.write_words(parent.d_subdirs.address_, link.address_)
            k.write_words(first + 8, link.address_)
        if bucket is not None:
            place = self.table.address_ + 8 * bucket
            k.fill(object_.d_hash, next=k.word(place) & ~1, pprev=place)
            # The lowest bit is the bucket's lock, here held in every other bucket.
            k.write_words(place, object_.d_hash.address_ | bucket & 1)
        return made

    def count(self, name: str, *values: int) -> None:
        for cpu, value in enumerate(values):
            self.machine.set(self.machine.per_cpu("long", self.counters[name], cpu), value)

    def finish(self) -> None:
        """Free the unused slots of the last slab, and settle the counters."""
        k = self.machine
        if self._next:
            slab = self._next[0][0]
            free = [slot for _, slot in self._next]
            slab.free.update(free)
            k.fill(slab.struct, inuse=slab.objects - len(free), freelist=k.chain(slab, free))
            self._next = []
        k.settle()
