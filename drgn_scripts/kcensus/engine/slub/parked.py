# SPDX-License-Identifier: LGPL-2.1-or-later
"""Free objects kept by CPUs and nodes, beside the free lists of the slabs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Damage, Lanes, collect, pointer_step
from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.slub.kmem_caches import SlabCache
from kcensus.engine.slub.pages import MAX_ORDER
from kcensus.engine.slub.percpu import cpu_offsets, node_ids
from kcensus.engine.slub.slabs import ScanReport, SlabMap, Slabs
from kcensus.engine.tags import untagged

Ids: TypeAlias = npt.NDArray[np.int32]
"""Indexes in :attr:`SlabMap.caches`."""

_MAX_SHEAF = 1 << 16
"""Largest number of objects in a sheaf or array, or of sheaves in a barn; more is damage."""
_NO_ALIEN = np.uint64(0x01020304)
"""In place of a pointer to arrays of other nodes: BAD_ALIEN_MAGIC of v4.4, without CONFIG_NUMA."""
_BLOCK = 1 << 18
"""Per-CPU structures to read at a time: with child caches there can be millions."""


@dataclass(frozen=True)
class Parked:
    """Free objects that their slab counts as in use.

    They are on the freelist of a CPU (up to 6.19), or in a sheaf of a CPU or of a node's barn
    (since 6.18); with SLAB, in an array of a CPU or of a node. Slabs on percpu partial lists are
    not affected: their own freelists are complete.
    """

    address: Words
    """Addresses, ascending, unique."""
    cache: Ids
    lost: int
    """Lists or sheaves that could not be followed to their end; 1 if objects are parked twice."""

    def slots(self, slab_map: SlabMap, slabs: Slabs) -> tuple[Numbers, Numbers]:
        """Return rows of ascending slabs, and numbers of slots in them, with parked objects."""
        if not len(slabs):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # Search parked objects in reach only: there are as many chunks as memory, and as many
        # parked objects as CPUs.
        reach = np.uint64(slab_map.memory.page_size << MAX_ORDER)
        low, high = np.searchsorted(
            self.address, np.array([slabs.address[0], slabs.address[-1] + reach])
        )
        row = np.searchsorted(slabs.address, self.address[low:high], side="right") - 1
        at = np.flatnonzero(self.cache[low:high] == slabs.cache[row])
        row, at = row[at], at + low
        pad = slab_map.pad(slabs, row)
        size = slab_map.column("slot_size")[self.cache[at]]
        distance = self.address[at] - slabs.address[row] - pad
        number = distance // size
        fits = (number * size == distance) & (number < slabs.objects[row])
        return row[fits], number[fits].astype(np.int64)


def parked(slab_map: SlabMap, caches: Sequence[SlabCache]) -> Parked:
    """Find the parked objects of some caches; each cache is searched once per slab map."""
    known = slab_map.parked_of
    offsets = cpu_offsets(slab_map.prog)
    block = max(_BLOCK // max(len(offsets), 1), 1)
    missing = [cache for cache in caches if cache.id not in known]
    for start in range(0, len(missing), block):
        search = _Search(slab_map, missing[start : start + block], offsets)
        search.cpu_freelists()
        search.sheaves()
        search.array_caches()
        known.update(search.by_cache())
    ids = np.array([cache.id for cache in caches], np.int32)
    stores = [known[id_][0] for id_ in ids.tolist()]
    counts = [len(store) for store in stores]
    addresses = np.concatenate([np.empty(0, np.uint64), *stores])
    cache = np.repeat(ids, counts)
    address, first, row = np.unique(addresses, return_index=True, return_inverse=True)
    # An object of one cache that is in a sheaf of another one is damage.
    strays = int(np.count_nonzero(cache != cache[first][row]))
    lost = sum(known[id_][1] for id_ in ids.tolist()) + strays
    if not lost and not slab_map.live:  # there, objects move between the readings
        lost = int(len(address) < len(addresses))
    return Parked(address, cache[first], lost)


class _Search:
    def __init__(self, slab_map: SlabMap, caches: Sequence[SlabCache], cpus: Words) -> None:
        self.slab_map = slab_map
        self.cpus = cpus
        self.memory = slab_map.memory
        self.prog = slab_map.prog
        self.caches = caches
        self.cache_type = self.prog.type("struct kmem_cache")
        self.faults = Faults()
        self.found: list[tuple[Words, Ids]] = [(np.empty(0, np.uint64), np.empty(0, np.int32))]
        self.lost: list[Ids] = [np.empty(0, np.int32)]
        """Caches with lists or sheaves that could not be followed to their end."""

    def by_cache(self) -> dict[int, tuple[Words, int]]:
        """Return the addresses found in each cache, and the number of lost lists."""
        address, id_ = (np.concatenate(columns) for columns in zip(*self.found, strict=True))
        order = np.argsort(id_, kind="stable")
        address, id_ = address[order], id_[order]
        lost = Counter(np.concatenate(self.lost).tolist())
        ids = np.array([cache.id for cache in self.caches], np.int32)
        low, high = (np.searchsorted(id_, ids, side).tolist() for side in ("left", "right"))
        return {
            each: (address[start:end], lost[each])
            for each, start, end in zip(ids.tolist(), low, high, strict=True)
        }

    def per_cpu(self, member: str) -> tuple[Words, Ids]:
        """Return the per-CPU structures of every cache on every possible CPU, and their caches."""
        # A CPU that went offline was flushed, but a dump may catch it half way.
        ids = np.array([cache.id for cache in self.caches], np.int32)
        pointer = layout(self.prog, self.cache_type, [member])
        read = gather(self.memory, self.slab_map.column("address")[ids], pointer, self.faults)
        self.lost.append(ids[~read.readable])
        allocated = read[member] != 0
        addresses = read[member][allocated][:, None] + self.cpus[None, :]
        return addresses.ravel(), np.repeat(ids[allocated], len(self.cpus))

    def cpu_freelists(self) -> None:
        # Until Linux kernel commit 32c894c7274b ("slab: remove struct kmem_cache_cpu") (in v7.0);
        # and never with CONFIG_SLUB_TINY.
        if not self.cache_type.has_member("cpu_slab"):
            return
        addresses, ids = self.per_cpu("cpu_slab")
        # Linux kernel commit bb192ed9aa71 ("mm/slub: Convert most struct page to struct slab by
        # spatch") (in v5.17) renamed the member.
        active = layout(
            self.prog, "struct kmem_cache_cpu", {"freelist": "freelist", "slab": ("slab", "page")}
        )
        cpu = gather(self.memory, addresses, active, self.faults)
        owner = gather(self.memory, cpu["slab"], self.slab_map.layout, self.faults)
        # A list without an active slab of this cache is a leftover.
        valid = owner.readable & (self.slab_map.cache_ids(owner["cache"]) == ids)
        heads = np.where(valid, cpu["freelist"], np.uint64(0))
        code = self.slab_map.freelist_code

        def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
            return self.slab_map.next_free(code, nodes, ids[lanes])

        lost = (cpu["freelist"] != 0) & ~owner.readable
        # An active slab of another cache is damage.
        lost |= owner.readable & ~valid
        self.lost.append(ids[(cpu["slab"] != 0) & lost])
        longest, damage = int(owner["objects"].max(initial=0)), Damage()
        lanes, nodes = collect(heads, step, limit=longest + 1, damage=damage)
        self.found.append((nodes, ids[lanes]))
        self.lost.append(ids[damage.lanes()])
        if len(rows := np.flatnonzero(~cpu.readable)):
            # What a CPU has of caches that it never used is zero. With child caches of memory
            # cgroups that fills pages, else only what CPU 0 has of caches without slabs.
            idle = self.cache_type.has_member("memcg_params")
            again = gather(self.memory, addresses[rows], active, self.faults, may_be_zero=idle)
            unread = ids[rows[~again.readable]]
            self.lost.append(unread[self.slab_map.counted(self.caches)[unread] != 0])
            if not self.slab_map.live:  # there, slabs change their CPU between the readings
                self.lost.append(self.unused(np.unique(ids[rows[again.readable]]), cpu["slab"]))

    def unused(self, ids: Ids, active: Words) -> Ids:
        """Return those of some caches with a slab that is active on a CPU, but not in ``active``.

        :param active: struct pages of the known active slabs
        """
        members = layout(self.prog, self.slab_map.layout.type_name, ["frozen"])
        chosen = {*ids.tolist()}
        wanted = [cache for cache in self.caches if cache.id in chosen]
        slabs = self.slab_map.index(wanted, ScanReport())
        # The objects of an active slab are on the CPU's list, not on its own.
        full = slabs[(slabs.freelist == 0) & (slabs.inuse == slabs.objects)]
        place = self.slab_map.pages.struct_page(self.slab_map.pages.pfn(full.address))
        is_active = gather(self.memory, place, members, self.faults)["frozen"] != 0
        return np.unique(full.cache[is_active & ~np.isin(place, active)])

    def sheaves(self) -> None:
        # Since Linux kernel commit 2d517aa09bbc ("slab: add opt-in caching layer of percpu
        # sheaves") (in v6.18).
        if not self.cache_type.has_member("cpu_sheaves"):
            return
        addresses, ids = self.per_cpu("cpu_sheaves")
        # A third sheaf collects objects for RCU; they are not free yet.
        slots = layout(self.prog, "struct slub_percpu_sheaves", ["main", "spare"])
        cpu = gather(self.memory, addresses, slots, self.faults)
        barn, barn_ids = self.full_sheaves()
        sheaf = np.concatenate([cpu["main"], cpu["spare"], barn])
        cache = np.concatenate([ids, ids, barn_ids])
        # A CPU that exchanges its sheaves has one of them twice for a moment.
        sheaf, first = np.unique(sheaf, return_index=True)
        sheaf, cache = sheaf[sheaf != 0], cache[first][sheaf != 0]
        header = layout(self.prog, "struct slab_sheaf", ["size"])
        sizes = gather(self.memory, sheaf, header, self.faults)
        wild = ~sizes.readable | (sizes["size"] > self.sheaf_capacity(cache))
        # A CPU always has a main sheaf: init_percpu_sheaves() fails without memory for one.
        self.lost += [ids[~cpu.readable | (cpu["main"] == 0)], cache[wild]]
        offset = np.uint64(drgn.offsetof(self.prog.type("struct slab_sheaf"), "objects"))
        self.entries(sheaf[~wild] + offset, sizes["size"][~wild], cache[~wild])

    def entries(self, arrays: Words, sizes: npt.NDArray[Any], ids: Ids, pad: str = "") -> None:
        """Take the objects in arrays of pointers.

        :param pad: what to add to a pointer, by :meth:`SlabMap.column`
        """
        word = self.slab_map.word.fields["word"].dtype
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            objects, ok = gather_arrays(self.memory, arrays[rows], size, word, self.faults)
            self.lost.append(ids[rows[~ok]])
            owner = np.repeat(ids[rows[ok]], size)
            # SLAB marked objects for emergencies by bit 0, up to v4.5 (commit not verified).
            address = untagged(objects[ok].ravel(), self.memory.tag) & ~np.uint64(1)
            if pad:
                address += self.slab_map.column(pad)[owner]
            self.found.append((address, owner))

    def array_caches(self) -> None:
        """Take the objects in the arrays of SLAB: of CPUs, of nodes, and on the way to others."""
        if not self.slab_map.is_slab:
            return
        own, own_ids = self.per_cpu("cpu_cache")
        nodes, node_caches, unknown = self.slab_map.per_node("node", self.caches, self.faults)
        members = layout(self.prog, "struct kmem_cache_node", ["shared", "alien"])
        node = gather(self.memory, nodes, members, self.faults)
        self.lost += [unknown, node_caches[~node.readable]]
        shared = node["shared"] != 0
        has_alien = (node["alien"] != 0) & (node["alien"] != _NO_ALIEN)
        alien, alien_ids = self.aliens(node["alien"][has_alien], node_caches[has_alien])
        array = np.concatenate([own, node["shared"][shared], alien])
        ids = np.concatenate([own_ids, node_caches[shared], alien_ids])
        type_ = self.prog.type("struct array_cache")
        read = gather(self.memory, array, layout(self.prog, type_, ["avail", "limit"]), self.faults)
        fits = read.readable & (read["avail"] <= np.minimum(read["limit"], _MAX_SHEAF))
        self.lost.append(ids[~fits])
        objects = array[fits] + np.uint64(drgn.offsetof(type_, "entry"))
        self.entries(objects, read["avail"][fits], ids[fits], "left_pad")

    def aliens(self, tables: Words, ids: Ids) -> tuple[Words, Ids]:
        """Return the arrays of objects that belong to other nodes, and their caches."""
        count = node_ids(self.prog)
        word = self.slab_map.word.fields["word"].dtype
        pointers, ok = gather_arrays(self.memory, tables, count, word, self.faults)
        self.lost.append(ids[~ok])
        offset = drgn.offsetof(self.prog.type("struct alien_cache"), "ac")
        row, column = np.nonzero(pointers)
        return pointers[row, column] + np.uint64(offset), ids[row]

    def sheaf_capacity(self, ids: Ids) -> Words:
        if not self.cache_type.has_member("sheaf_capacity"):
            return np.full(len(ids), _MAX_SHEAF, np.uint64)
        member = layout(self.prog, self.cache_type, ["sheaf_capacity"])
        read = gather(self.memory, self.slab_map.column("address")[ids], member, self.faults)
        capacity = read["sheaf_capacity"].astype(np.uint64)
        return np.minimum(capacity, np.uint64(_MAX_SHEAF))

    def full_sheaves(self) -> tuple[Words, Ids]:
        """Return the full sheaves in the barns of all nodes, and their caches."""
        barns, cache_ids, unknown = self.slab_map.per_node("barn", self.caches, self.faults)
        self.lost.append(unknown)
        full = drgn.offsetof(self.prog.type("struct node_barn"), "sheaves_full")
        ends = barns + np.uint64(full)
        link = self.slab_map.pointer
        heads = gather(self.memory, ends, link, self.faults)
        self.lost.append(cache_ids[~heads.readable])
        step = pointer_step(self.memory, link, "word", self.faults)
        damage = Damage()
        lanes, nodes = collect(heads["word"], step, limit=_MAX_SHEAF, damage=damage, ends=ends)
        self.lost.append(cache_ids[damage.lanes()])
        back = np.uint64(drgn.offsetof(self.prog.type("struct slab_sheaf"), "barn_list"))
        return nodes - back, cache_ids[lanes]
