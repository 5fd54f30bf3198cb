# SPDX-License-Identifier: LGPL-2.1-or-later
"""list_lrus the slow, obvious way: one drgn object at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import drgn
from drgn import Object, Program
from drgn.helpers.linux.cgroup import cgroup_path
from drgn.helpers.linux.nodemask import nr_node_ids
from drgn.helpers.linux.slab import find_containing_slab_cache
from drgn.helpers.linux.xarray import xa_for_each

from tests.vm.oracles import all_memcgs, entries

CSS_ONLINE, CSS_DYING = 2, 16


@dataclass
class LruTruth:
    owner: str
    kind: str
    super_block: int = 0
    memcg_aware: bool = False
    root_items: int = 0
    memcg_items: int = 0
    slots: int = 0
    dead_slots: int = 0
    empty_slots: int = 0
    node_array_bytes: int = 0
    pointer_bytes: int = 0
    list_bytes: int = 0
    dead_bytes: int = 0
    empty_bytes: int = 0
    ids: list[int] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)
    """Paths of memory cgroups that have something on it."""
    xa_nodes: int = 0
    xa_node_bytes: int = 0

    @property
    def items(self) -> int:
        return self.root_items + self.memcg_items

    @property
    def bytes(self) -> int:
        return self.node_array_bytes + self.pointer_bytes + self.list_bytes + self.xa_node_bytes


@dataclass
class MemcgTruth:
    path: str
    state: str
    id: int
    serial: int
    has_id: bool
    shrinker_map_bytes: int = 0
    slots: int = 0
    list_bytes: int = 0
    items: Counter[str] = field(default_factory=Counter)


class Oracle:
    """Walks all list_lrus once."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self.nodes = nr_node_ids(prog)
        self._slot: dict[int, int] = {}
        self.memcgs = {memcg.value_(): self._memcg(memcg) for memcg in all_memcgs(prog)}
        self.by_id = {
            truth.id: truth for truth in self.memcgs.values() if truth.has_id and truth.id >= 0
        }
        self.root = self.memcgs[self.prog["root_mem_cgroup"].value_()]
        self.lrus: dict[int, LruTruth] = {}
        for address, lru, owner, kind, super_block in self._all_lrus():
            if address not in self.lrus and lru.node:
                self.lrus[address] = self._lru(lru, LruTruth(owner, kind, super_block))

    def total(self, member: str) -> int:
        return sum(int(getattr(truth, member)) for truth in self.lrus.values())

    def size(self, address: int) -> int:
        """Bytes of the slot that an address is in; all slots of a page are of one size."""
        page = address >> 12
        if page not in self._slot:
            cache = find_containing_slab_cache(self.prog, address)
            assert cache is not None
            self._slot[page] = int(cache.size)
        return self._slot[page]

    # Memory cgroups

    def _memcg(self, memcg: Object) -> MemcgTruth:
        flags = int(memcg.css.flags)
        has_id = bool(flags & CSS_ONLINE)
        state = "online" if has_id and not flags & CSS_DYING else "offline"
        path = cgroup_path(memcg.css.cgroup).decode(errors="backslashreplace")
        truth = MemcgTruth(path, state, int(memcg.kmemcg_id), int(memcg.css.serial_nr), has_id)
        for node in range(self.nodes):
            info = memcg.nodeinfo[node]
            map_ = info.shrinker_info if hasattr(info, "shrinker_info") else info.shrinker_map
            if not map_:
                continue
            truth.shrinker_map_bytes += self.size(int(map_))
            if hasattr(map_, "unit"):
                for at in range(-(-int(map_.map_nr_max) // 64)):
                    if map_.unit[at]:
                        truth.shrinker_map_bytes += self.size(int(map_.unit[at]))
        return truth

    # List_lrus

    def _all_lrus(self) -> Iterator[tuple[int, Object, str, str, int]]:
        prog = self.prog
        for block in entries(prog["super_blocks"], "struct super_block", "s_list"):
            name = block.s_type.name.string_().decode()
            for kind, lru in (("dentry", block.s_dentry_lru), ("inode", block.s_inode_lru)):
                yield lru.address_, lru, name, kind, block.value_()
            if name == "xfs":
                mount = drgn.cast("struct xfs_mount *", block.s_fs_info)
                for target in (mount.m_ddev_targp, mount.m_logdev_targp, mount.m_rtdev_targp):
                    if target:
                        lru = target.bt_lru
                        yield lru.address_, lru, "xfs_buftarg.bt_lru", "other", block.value_()
        head = prog["memcg_list_lrus" if "memcg_list_lrus" in prog else "list_lrus"]
        for lru in entries(head, "struct list_lru", "list"):
            try:
                symbol = prog.symbol(lru.value_()).name
            except LookupError:
                symbol = "?"
            yield lru.value_(), lru[0], symbol, "other", 0

    def _lru(self, lru: Object, truth: LruTruth) -> LruTruth:
        truth.memcg_aware = bool(lru.memcg_aware)
        truth.node_array_bytes = self.size(lru.node.value_())
        for node in range(self.nodes):
            per_node = lru.node[node]
            root = int(per_node.lru.nr_items)
            truth.root_items += root
            if truth.memcg_aware:
                self.root.items[truth.kind] += root
        if hasattr(lru, "xa"):
            self._xarray(lru, truth)
        elif truth.memcg_aware:
            self._arrays(lru, truth)
        return truth

    def _arrays(self, lru: Object, truth: LruTruth) -> None:
        count = int(self.prog["memcg_nr_cache_ids"])
        for node in range(self.nodes):
            array = lru.node[node].memcg_lrus
            truth.pointer_bytes += self.size(array.value_())
            for id_ in range(count):
                one = array.lru[id_]
                if one:
                    items = max(int(one.nr_items), 0)
                    self._slot_of(truth, id_, items, self.size(one.value_()))

    def _xarray(self, lru: Object, truth: LruTruth) -> None:
        for id_, entry in xa_for_each(lru.xa.address_of_()):
            lists = drgn.cast("struct list_lru_memcg *", entry)
            items = sum(max(int(lists.node[node].nr_items), 0) for node in range(self.nodes))
            self._slot_of(truth, id_, items, self.size(lists.value_()))
        self._xa_nodes(int(lru.xa.xa_head), truth)

    def _xa_nodes(self, entry: int, truth: LruTruth) -> None:
        if entry & 3 != 2 or entry <= 4096:
            return
        node = Object(self.prog, "struct xa_node", address=entry - 2)
        truth.xa_nodes += 1
        truth.xa_node_bytes += self.size(entry - 2)
        for slot in node.slots if node.shift else ():
            self._xa_nodes(int(slot), truth)

    def _slot_of(self, truth: LruTruth, id_: int, items: int, size: int) -> None:
        truth.slots += 1
        truth.ids.append(id_)
        truth.list_bytes += size
        truth.memcg_items += items
        memcg = self.by_id.get(id_)
        if memcg is None:
            truth.dead_slots += 1
            truth.dead_bytes += size
            return
        memcg.slots += 1
        memcg.list_bytes += size
        memcg.items[truth.kind] += items
        if items:
            truth.holders.add(memcg.path)
        else:
            truth.empty_slots += 1
            truth.empty_bytes += size
