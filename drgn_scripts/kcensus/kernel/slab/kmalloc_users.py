# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects of kmalloc() with known users.

A contributor yields names of users with addresses of objects, of any or no slab cache; unreadable
pages with pointers to objects go into its report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import drgn
import numpy as np

from kcensus.engine.gather import gather, gather_arrays, gather_pointers
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Words
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import View, allocated, visit
from kcensus.engine.slub.slabs import ScanReport
from kcensus.engine.xarray import XArrayWalk
from kcensus.engine.zeros import is_lost
from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.memcg.memcgs import PER_NODE, memcgs, per_node
from kcensus.kernel.names import integer
from kcensus.kernel.vfs.list_lru import list_lrus
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.sources.faults import ZEROED

Objects: TypeAlias = Iterator[tuple[str, Words]]
_MAX_IDS = 1 << 16
_WORTHWHILE = 1000
"""Read dentries for names only if these take a thousandth of the pages of dentries."""
_MAX_UNITS = 1 << 12
"""Most units of 64 shrinkers in a shrinker map."""


def _list_lrus(kernel: Kernel, report: ScanReport) -> Objects:
    memory, lrus, faults = kernel.memory, list_lrus(kernel), report.slabs
    faults.update(lrus.faults)
    faults.add("lists of list_lrus are torn", lrus.damaged)
    yield "list_lru_node arrays", lrus.node
    arrays = lrus.memcg_lrus[lrus.memcg_lrus != 0]
    yield "list_lru pointer arrays", arrays
    if len(arrays):
        type_ = kernel.prog.type("struct list_lru_memcg")
        first = np.uint64(drgn.offsetof(type_, "lru"))
        known = integer(kernel.prog, "memcg_nr_cache_ids", faults) or 0
        if not known and is_lost(kernel.prog["memcg_nr_cache_ids"]):
            faults.add(ZEROED, 1)
        ids = min(max(known, 0), _MAX_IDS)
        block = max(memory.chunk_bytes // (8 * max(ids, 1)), 1)
        for start in range(0, len(arrays), block):
            places = arrays[start : start + block] + first
            words, _ = gather_arrays(memory, places, ids, word_dtype(kernel.prog), faults)
            yield "list_lru lists", words[words != 0]
    if lrus.xa_head.any():
        for xarray in XArrayWalk(memory, faults).blocks(lrus.xa_head):
            yield "list_lru lists", xarray.entry


def _memcgs(kernel: Kernel, report: ScanReport) -> Objects:
    groups, prog, faults = memcgs(kernel), kernel.prog, report.slabs
    faults.update(groups.faults)
    type_ = prog.type("struct mem_cgroup")
    yield "mem_cgroup", groups.address
    yield from _pointers(kernel, groups.address, type_, faults, cgroup="css.cgroup")
    # Since Linux kernel commits bf4f059954dc ("mm: memcg/slab: obj_cgroup API") (in v5.9) and
    # 410f8e82689e ("memcg: extract memcg_vmstats from struct mem_cgroup") (in v6.1); before, there
    # are no obj_cgroups, and the statistics are part of the mem_cgroup.
    members = {"obj_cgroup": "objcg", "memcg_vmstats": "vmstats"}
    yield from _pointers(kernel, groups.address, type_, faults, **members)
    _, nodes, _ = per_node(kernel.memory, groups, np.arange(len(groups)), faults)
    yield "mem_cgroup_per_node", nodes
    pernode = prog.type(PER_NODE)
    yield from _pointers(kernel, nodes, pernode, faults, lruvec_stats="lruvec_stats")
    # Since Linux kernel commit e4262c4f51d6 ("mm: memcontrol: rename shrinker_map to
    # shrinker_info") (in v5.13), the map is part of a struct shrinker_info.
    for member in ("shrinker_info", "shrinker_map"):
        for _, maps in _pointers(kernel, nodes, pernode, faults, maps=member):
            yield "shrinker maps", maps
            yield from _shrinker_units(kernel, maps, faults)


def _pointers(
    kernel: Kernel, structs: Words, type_: drgn.Type, faults: Faults, **members: str
) -> Objects:
    """Yield the pointers in structs by user; nothing for members that are not pointers."""
    for user, path in members.items():
        try:
            pointer = layout(kernel.prog, type_, {user: path})
        except LookupError:
            continue
        if pointer.fields[user].dtype.kind == "u":
            places = structs[structs != 0]
            yield user, gather(kernel.memory, places, pointer, faults)[user]


def _shrinker_units(kernel: Kernel, maps: Words, faults: Faults) -> Objects:
    # Since Linux kernel commit 307bececcd12 ("mm: shrinker: add a secondary array for
    # shrinker_info::{map, nr_deferred}") (in v6.7), it has an array of pointers to units.
    try:
        info = kernel.prog.type("struct shrinker_info")
        first = np.uint64(drgn.offsetof(info, "unit"))
    except LookupError:
        return
    read = gather(kernel.memory, maps, layout(kernel.prog, info, ["map_nr_max"]), faults)
    units = -(-read["map_nr_max"].astype(np.int64) // 64)
    fits = (units > 0) & (units <= _MAX_UNITS)
    _, words, _ = gather_pointers(kernel.memory, maps[fits] + first, units[fits], faults)
    yield "shrinker maps", words[words != 0]


@once
def names_of_dentries(kernel: Kernel) -> Words | None:
    """Return the external names of all dentries if a scan found them in passing, else None."""
    return None


def _dentry_names(kernel: Kernel, report: ScanReport) -> Objects:
    slab_map = kernel.slab_map
    # d_name.name points into the dentry, or to the name in a struct external_name.
    first = np.uint64(drgn.offsetof(kernel.prog.type("struct external_name"), "name"))
    columns = layout(kernel.prog, "struct dentry", {"name": "d_name.name"})
    size = np.uint64(columns.size)

    def external(view: View, part: ScanReport) -> Words:
        names, addresses = view.column("name"), view.address()
        if nameless := int((view.allocated & (names == 0)).sum()):
            part.slabs["dentries without a name"] += nameless
        kept = (names - addresses >= size) & (names != 0) & view.allocated
        return np.asarray(names[kept] - first)

    slabs = slab_map.index(find_caches(slab_map, "struct dentry"), report, in_use=True)
    # Since "dcache: allocate external names from reclaimable kmalloc caches" (commit not verified)
    # (in v4.20), names are in these caches.
    caches = [cache for cache in slab_map.caches if cache.name.startswith("kmalloc-rcl-")]
    if caches:
        pages = slab_map.slab_pages(slab_map.index(caches, ScanReport())).sum()
        if _WORTHWHILE * pages < slab_map.slab_pages(slabs).sum():
            return
    if (known := names_of_dentries(kernel)) is not None:
        yield "external dentry names", known - first
        return
    for names in visit(slab_map, slabs, columns, external, report):
        yield "external dentry names", names


def _members(user: str, type_name: str, cache: str, path: str) -> Contributor:
    def objects(kernel: Kernel, report: ScanReport) -> Objects:
        caches = find_caches(kernel.slab_map, type_name, cache)
        member = layout(kernel.prog, type_name, {"pointer": path})
        _, columns = allocated(kernel.slab_map, caches, member, report)
        yield user, columns["pointer"]

    return objects


def _file_tables(kernel: Kernel, report: ScanReport) -> Objects:
    caches = find_caches(kernel.slab_map, "struct files_struct", "files_cache")
    member = layout(kernel.prog, "struct files_struct", ["fdt"])
    _, columns = allocated(kernel.slab_map, caches, member, report)
    yield "file descriptor tables", columns["fdt"]
    arrays = layout(kernel.prog, "struct fdtable", ["fd", "open_fds"])
    tables = gather(kernel.memory, columns["fdt"], arrays, report.slabs)
    for name in arrays.fields:
        yield "file descriptor tables", tables[name]


def _super_blocks(kernel: Kernel, report: ScanReport) -> Objects:
    blocks = super_blocks(kernel)
    report.slabs.update(blocks.faults)
    report.slabs.add("lists of super blocks are torn", blocks.damaged)
    yield "super_block", super_blocks(kernel).address


def _devices(kernel: Kernel, report: ScanReport) -> Objects:
    mapped = mapped_devices(kernel)
    devices, lost = mapped.devices, mapped.damaged
    if mapped.named is not None and not kernel.live:
        lost += abs(len(devices) - mapped.named)
    report.slabs.add("mapped devices are unreadable or inconsistent", lost)
    yield "device mapper", np.array([device.address for device in devices], np.uint64)
    targets = [target.private for device in devices for target in device.targets]
    yield "device mapper", np.array(targets, np.uint64)


ALWAYS_IN_SLABS = frozenset(("external dentry names", "list_lru lists", "obj_cgroup"))
"""Users of small objects only: larger ones have pages of their own."""
Contributor: TypeAlias = Callable[[Kernel, ScanReport], Objects]

CONTRIBUTORS: tuple[Contributor, ...] = (
    _list_lrus,
    _memcgs,
    _dentry_names,
    _super_blocks,
    _devices,
    _file_tables,
    _members("kernfs names", "struct kernfs_node", "kernfs_node_cache", "name"),
    _members("sk_buff data", "struct sk_buff", "skbuff_head_cache", "head"),
    _members("mount device names", "struct mount", "mnt_cache", "mnt_devname"),
)
"""Contributors; they raise LookupError without objects, FaultError or NotRecorded if unreadable."""
