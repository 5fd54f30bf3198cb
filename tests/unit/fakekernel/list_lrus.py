# SPDX-License-Identifier: LGPL-2.1-or-later
"""List_lrus that write themselves into a *synthetic* kernel, as each era has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import drgn
from drgn import Object

from tests.unit.fakekernel.files import FakeFiles
from tests.unit.fakekernel.slub import NODES, FakeKernel, Memcg
from tests.unit.fakekernel.types import Table, add_types

SLOTS = (32, 64, 96, 128, 192, 256, 512, 1024)


@dataclass(frozen=True)
class LruEra:
    """What kernels of an era have."""

    name: str
    kernel: str
    """Of :data:`ERAS`, for the rest."""
    xarray: bool = False
    ext: bool = False
    """UEK7: the new members are behind a pointer."""
    flag: bool = True
    """``list_lru.memcg_aware`` (5.2)."""
    header: int = 16
    """The rcu_head of ``list_lru_memcg`` (after 4.15)."""
    locks: bool = False
    """Each list has a lock of its own (6.13)."""
    aware_only: bool = True
    """The kernel's list has only those that know memory cgroups (5.16)."""


LRU_ERAS = {
    era.name: era
    for era in (
        LruEra("4.15", "4.18", flag=False, header=0, aware_only=False),
        LruEra("4.19", "4.19", flag=False, aware_only=False),
        LruEra("5.10", "5.9", aware_only=False),
        LruEra("UEK7", "5.9", xarray=True, ext=True),
        LruEra("5.18", "5.17", xarray=True),
        LruEra("6.13", "6.10", xarray=True, locks=True),
    )
}


def types_of(era: LruEra) -> Table:
    """The types of an era, for :func:`add_types`."""
    lru = "8 struct list_head list\n24 int shrinker_id"
    lru += "\n28 bool memcg_aware" * era.flag
    where = "\n40 struct list_lru_node * node" + "\n48 struct xarray xa" * era.xarray
    node = "\n48 atomic_long_t nr_items" if era.locks else "\n48 long nr_items"
    node += "" if era.xarray else "\n56 struct list_lru_memcg * memcg_lrus"
    lists = "struct list_lru_one [0] node" if era.xarray else "struct list_lru_one * [0] lru"
    types = {
        "typedef bool": (0, "unsigned char"),
        "struct xarray": (16, "0 int xa_lock\n8 void * xa_head"),
        "struct idr": (24, "0 struct xarray idr_rt"),
        "struct ida": (16, "0 struct xarray xa"),
        "struct xa_node": (
            576,
            "0 unsigned char shift\n1 unsigned char offset\n"
            "16 struct xa_node * parent\n48 void * [64] slots",
        ),
        "struct list_lru": (64, lru + ("\n32 struct list_lru_ext * ext" if era.ext else where)),
        "struct list_lru_node": (64, f"8 struct list_lru_one lru{node}"),
        "struct list_lru_one": (
            32 if era.locks else 24,
            "0 struct list_head list\n16 long nr_items" + "\n24 int lock" * era.locks,
        ),
        "struct list_lru_memcg": (era.header, f"{era.header} {lists}"),
        "struct super_block": (
            256,
            """8 struct list_head s_list
            24 unsigned int s_dev
            32 struct file_system_type * s_type
            40 struct dentry * s_root
            48 struct mount * s_mounts
            64 char [32] s_id
            96 const char * s_subtype
            104 void * s_fs_info
            112 struct list_lru s_dentry_lru
            176 struct list_lru s_inode_lru""",
        ),
        "struct mem_cgroup": (
            512,
            """16 int kmemcg_id
            128 struct cgroup_subsys_state css
            400 struct mem_cgroup_per_node * [0] nodeinfo""",
        ),
        "struct cgroup_subsys_state": (
            128,
            """0 struct cgroup * cgroup
            24 struct list_head sibling
            40 struct list_head children
            60 unsigned int flags
            64 unsigned long serial_nr""",
        ),
    }
    if era.ext:
        types["struct list_lru_ext"] = (64, where)
    return types


@dataclass(eq=False)
class FakeLru:
    """One list_lru, and what is true of it."""

    object: Object
    aware: bool
    entries: dict[int, int] = field(default_factory=dict)
    """Address of the slot of each id; of arrays that of the first node."""


class FakeListLrus:
    """List_lrus in a kernel with two NUMA nodes.

    :param ids: ``memcg_nr_cache_ids``, where there is such a thing
    """

    def __init__(self, era: str | LruEra, ids: int = 10) -> None:
        self.era = LRU_ERAS[era] if isinstance(era, str) else era
        self.kernel = k = FakeKernel(self.era.kernel)
        self.files = FakeFiles(k)
        add_types(k.prog, types_of(self.era), "list_lrus")
        self.ids = ids
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
            k.variable("memcg_nr_cache_ids", "int", ids)

    def slot(self, asked: int) -> int:
        """Allocate from a slab cache; the address."""
        size = 584 if asked == 576 else next(size for size in SLOTS if size >= asked)
        if not self._free.get(size):
            slab = self.kernel.slab(self.caches[size])
            self._free[size] = [slab.object(at) for at in range(slab.objects)]
        self.used[size] += 1
        return self._free[size].pop(0)

    # Memory cgroups

    def memcg(
        self, name: str, id_: int, parent: Memcg | None = None, *, online: bool = True
    ) -> Memcg:
        """A memory cgroup with an id."""
        group = self.kernel.memcg(name, parent or self.kernel.root, flags=2 if online else 0)
        self.set_id(group, id_)
        if self.era.xarray and online:
            self.registered[id_] = group.object.address_
        return group

    def set_id(self, group: Memcg, id_: int) -> None:
        """Overwrite its ``kmemcg_id``, and give it a serial number."""
        k = self.kernel
        memcg = Object(k.prog, "struct mem_cgroup", address=group.object.address_)
        k.set(memcg.kmemcg_id, id_)
        k.set(memcg.css.serial_nr, len(k.memcgs))

    # List_lrus

    def mount(self, type_: str, id_: str) -> tuple[FakeLru, FakeLru]:
        """A super block; its list_lrus of dentries and inodes."""
        block = self.files.super_block(type_, id_.encode())
        block = Object(self.kernel.prog, "struct super_block", address=block.address_)
        return self.lru(block.s_dentry_lru), self.lru(block.s_inode_lru)

    def variable(self, name: str, *, aware: bool = True) -> FakeLru:
        """One that is a variable of the kernel."""
        return self.lru(self.kernel.variable(name, "struct list_lru"), aware=aware)

    def lru(self, object_: Object, *, aware: bool = True) -> FakeLru:
        """Initialize a list_lru."""
        k, era = self.kernel, self.era
        made = FakeLru(object_, aware)
        if era.flag:
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
        """``struct list_lru_node``"""
        found: Object = self._inner(lru).node[node]
        return found

    def _arrays(self, lru: FakeLru) -> None:
        """Before 5.18: lists for all ids and nodes."""
        for node in range(NODES):
            array = self.slot(self.era.header + 8 * self.ids)
            self.kernel.set(self.node(lru, node).memcg_lrus, array)
            for id_ in range(self.ids):
                one = self.slot(24)
                self.kernel.write_words(array + self.era.header + 8 * id_, one)
                lru.entries.setdefault(id_, one)

    def one(self, lru: FakeLru, id_: int, node: int) -> Object:
        """``struct list_lru_one`` of an id."""
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

    # XArrays

    def settle(self) -> None:
        """Write XArrays and counters for all that was made so far."""
        if self.era.xarray:
            for lru in self.lrus:
                self.xarray(self._inner(lru).xa, lru.entries)
            self.xarray(self.registry, self.registered)
        self.kernel.settle()

    def xarray(self, array: Object, entries: Mapping[int, int]) -> None:
        """Make ``array`` hold pointers by index."""
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
        k.set(node.shift, shift)
        k.set(node.offset, offset)
        k.set(node.parent, parent)
        for slot in {index >> shift for index in entries}:
            low = slot << shift
            below = {at - low: entry for at, entry in entries.items() if at >> shift == slot}
            word = self._xa_node(below, shift - 6, place, slot) | 2 if shift else below[0]
            k.set(node.slots[slot], word)
        return place
