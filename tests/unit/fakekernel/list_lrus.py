# SPDX-License-Identifier: LGPL-2.1-or-later
"""List_lrus, written into the memory of a *synthetic* kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import drgn
from drgn import Object

from tests.unit.fakekernel.eras import Era
from tests.unit.fakekernel.files import FakeFiles
from tests.unit.fakekernel.slub import NODES, FakeKernel, Memcg

_IDS = 10
SLOTS = (32, 64, 96, 128, 192, 256, 512, 1024)


@dataclass(eq=False)
class FakeLru:
    object: Object
    aware: bool
    entries: dict[int, int] = field(default_factory=dict)
    """Address of the slot of each id, for arrays on the first node."""


class FakeListLrus:
    """List_lrus in a kernel with two NUMA nodes and ten ``memcg_nr_cache_ids`` (until 5.17)."""

    def __init__(self, era: str | Era) -> None:
        self.kernel = k = FakeKernel(era)
        self.era = k.era
        self.files = FakeFiles(k)
        self.caches = {size: k.cache(f"kmalloc-{size}", size) for size in SLOTS}
        self.caches[584] = k.cache("radix_tree_node", 584)
        self._free: dict[int, list[int]] = {}
        self.used: Counter[int] = Counter()
        """Allocations by size of the slot."""
        self.lrus: list[FakeLru] = []
        self.set_id(k.root, -1)
        name = "memcg_list_lrus" if self.era.xarray else "list_lrus"
        self.head = k.variable(name, "struct list_head")
        k.list_init(self.head)
        if self.era.xarray:
            self.registry = k.variable("mem_cgroup_idr", "struct idr").idr_rt
            self.registered: dict[int, int] = {1: k.root.object.address_}
        else:
            k.variable("memcg_nr_cache_ids", "int", _IDS)

    def slot(self, asked: int) -> int:
        size = 584 if asked == 576 else next(size for size in SLOTS if size >= asked)
        if not self._free.get(size):
            slab = self.kernel.slab(self.caches[size])
            self._free[size] = [slab.object(at) for at in range(slab.objects)]
        self.used[size] += 1
        return self._free[size].pop(0)

    def memcg(
        self, name: str, id_: int, parent: Memcg | None = None, *, online: bool = True
    ) -> Memcg:
        group = self.kernel.memcg(name, parent or self.kernel.root, flags=2 if online else 0)
        self.set_id(group, id_)
        if self.era.xarray and online:
            self.registered[id_] = group.object.address_
        return group

    def set_id(self, group: Memcg, id_: int) -> None:
        k = self.kernel
        k.set(group.object.kmemcg_id, id_)
        k.set(group.object.css.serial_nr, len(k.memcgs))

    def mount(self, type_: str, id_: str) -> tuple[FakeLru, FakeLru]:
        """Make a super block and return its list_lrus of dentries and inodes."""
        block = self.files.super_block(type_, id_.encode())
        return self.lru(block.s_dentry_lru), self.lru(block.s_inode_lru)

    def variable(self, name: str, *, aware: bool = True) -> FakeLru:
        return self.lru(self.kernel.variable(name, "struct list_lru"), aware=aware)

    def lru(self, object_: Object, *, aware: bool = True) -> FakeLru:
        k, era = self.kernel, self.era
        made = FakeLru(object_, aware)
        if era.aware_flag:
            k.set(object_.memcg_aware, aware)
        if aware or not era.aware_only:
            k.list_add_tail(object_.list, self.head)
        if era.ext:
            k.set(object_.ext, self.slot(64))
        k.set(self._inner(made).node, self.slot(64 * NODES))
        if aware and not era.xarray:
            self._arrays(made)
        self.lrus.append(made)
        return made

    def _inner(self, lru: FakeLru) -> Object:
        inner: Object = lru.object.ext[0] if self.era.ext else lru.object
        return inner

    def node(self, lru: FakeLru, node: int) -> Object:
        found: Object = self._inner(lru).node[node]
        return found

    def _arrays(self, lru: FakeLru) -> None:
        for node in range(NODES):
            array = self.slot(self.era.header + 8 * _IDS)
            self.kernel.set(self.node(lru, node).memcg_lrus, array)
            for id_ in range(_IDS):
                one = self.slot(24)
                self.kernel.write_words(array + self.era.header + 8 * id_, one)
                lru.entries.setdefault(id_, one)

    def one(self, lru: FakeLru, id_: int, node: int) -> Object:
        type_ = "struct list_lru_one"
        if self.era.xarray:
            if id_ not in lru.entries:
                size = drgn.sizeof(self.kernel.prog.type(type_))
                lru.entries[id_] = self.slot(self.era.header + NODES * size)
            storage = Object(self.kernel.prog, "struct list_lru_memcg", address=lru.entries[id_])
            return storage.node[node]
        found: Object = self.node(lru, node).memcg_lrus.lru[id_][0]
        return found

    def put(self, lru: FakeLru, items: Mapping[tuple[int | None, int], int]) -> None:
        """Put items on lists, by id (None: the root) and node."""
        for (id_, node), count in items.items():
            per_node = self.node(lru, node)
            target = per_node.lru if id_ is None else self.one(lru, id_, node)
            self.kernel.set(target.nr_items, count)
            counter = per_node.nr_items
            if self.era.locks:
                counter = counter.counter
            self.kernel.set(counter, int(counter) + max(count, 0))

    def settle(self) -> None:
        if self.era.xarray:
            for lru in self.lrus:
                self.xarray(self._inner(lru).xa, lru.entries)
            self.xarray(self.registry, self.registered)
        self.kernel.settle()

    def xarray(self, array: Object, entries: Mapping[int, int]) -> None:
        shift = 0
        while entries and max(entries) >> shift + 6:
            shift += 6
        head = entries.get(0, 0)
        if entries and max(entries):
            head = self._xa_node(entries, shift, 0, 0) | 2
        self.kernel.set(array.xa_head, head)

    def _xa_node(self, entries: Mapping[int, int], shift: int, parent: int, offset: int) -> int:
        k, place = self.kernel, self.slot(576)
        node = Object(k.prog, "struct xa_node", address=place)
        k.fill(node, shift=shift, offset=offset, parent=parent)
        for slot in {index >> shift for index in entries}:
            low = slot << shift
            below = {at - low: entry for at, entry in entries.items() if at >> shift == slot}
            word = self._xa_node(below, shift - 6, place, slot) | 2 if shift else below[0]
            k.set(node.slots[slot], word)
        return place
