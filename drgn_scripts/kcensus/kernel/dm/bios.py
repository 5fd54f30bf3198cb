# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bios in use, by their ``struct bio_set``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import drgn
import numpy as np
from drgn import Object

from kcensus.engine.gather import gather
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Words
from kcensus.engine.rows import rows_of
from kcensus.engine.slub.kmem_caches import SlabCache
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.dm.kcopyd import pool_elements

_INLINE_VECS = 4
"""BIO_INLINE_VECS: a bio with more vectors has them in an object of a cache ``biovec-…``."""
_VEC_CACHES = {16: "biovec-16", 64: "biovec-64", 128: "biovec-128"}


@dataclass(frozen=True)
class BioUse:
    """Bios in use of one bio set."""

    cache: SlabCache
    bios: int
    vec_bytes: dict[str, int]
    """Bytes of the vectors outside of the bios, by slab cache."""
    devices: Counter[int]
    """Bios by ``struct block_device *``, or ``struct gendisk *`` from v4.14 to v5.11."""

    @property
    def bytes(self) -> int:
        """Bytes of the slots of the bios."""
        return self.bios * self.cache.slot_size


def set_at(owner: Object, *path: str) -> Object:
    """Return the bio set at a member of a struct, embedded or pointed to.

    :raises LookupError: it has no such member
    :raises drgn.FaultError: the pointer is unreadable
    """
    for name in path:
        owner = owner.member_(name)
    return owner[0] if owner.type_.kind == drgn.TypeKind.POINTER else owner


def bios_in_use(slab_map: SlabMap, sets: Words, report: ScanReport) -> dict[int, BioUse]:
    """Return the bios in use of each bio set, by its address, without spare ones in mempools.

    :param sets: addresses of ``struct bio_set``, ascending
    :return: only sets with bios in use
    :raises LookupError: the debug info lacks bios
    """
    memory, prog = slab_map.memory, slab_map.prog
    type_ = prog.type("struct bio_set")
    # Since Linux kernel commit 6f1c819c219f ("dm: convert to bioset_init()/mempool_init()") (in
    # v4.18), and its like for other users, the mempool is embedded.
    is_embedded = type_.member("bio_pool").type.kind != drgn.TypeKind.POINTER
    read = gather(memory, sets, layout(prog, type_, ["bio_slab", "front_pad"]), report.slabs)
    pools = sets + np.uint64(drgn.offsetof(type_, "bio_pool"))
    if not is_embedded:
        pools = gather(memory, sets, layout(prog, type_, ["bio_pool"]), report.slabs)["bio_pool"]
    pool = gather(memory, pools, layout(prog, "mempool_t", ["curr_nr", "elements"]), report.slabs)
    spare, _, _ = pool_elements(memory, pool["elements"], pool["curr_nr"], pool.readable)
    caches = {cache.address: cache for cache in slab_map.caches}
    # bi_disk between Linux kernel commits 74d46992e0d9 ("block: replace bi_bdev with a gendisk
    # pointer and partitions index") (in v4.14) and 309dca309fc3 ("block: store a block_device
    # pointer in struct bio") (in v5.12).
    members = {"set": "bi_pool", "vecs": "bi_max_vecs", "device": ("bi_bdev", "bi_disk")}
    columns = layout(prog, "struct bio", members)
    vec_size = drgn.sizeof(prog.type("struct bio_vec"))
    uses: dict[int, BioUse] = {}
    homes = {*zip(read["bio_slab"].tolist(), read["front_pad"].tolist(), strict=True)}
    for slab, pad in sorted(homes):
        cache = caches.get(slab)
        shifted = _shifted(columns, pad)
        if cache is None or shifted.size > cache.slot_size:
            continue
        address, bio = allocated(slab_map, [cache], shifted, report)
        row = np.where(np.isin(address, spare), -1, rows_of(sets, bio["set"]))
        is_used = np.bincount(row[row >= 0], minlength=len(sets)) > 0
        is_used &= (read["bio_slab"] == slab) & (read["front_pad"] == pad)
        for index in np.flatnonzero(is_used):
            own = row == index
            vecs, devices = bio["vecs"][own], Counter(bio["device"][own].tolist())
            outside = Counter[str]()
            for size, count in Counter(vecs[vecs > _INLINE_VECS].tolist()).items():
                outside[_VEC_CACHES.get(size, "biovec-max")] += size * vec_size * count
            uses[int(sets[index])] = BioUse(cache, len(vecs), outside, devices)
    return uses


def _shifted(columns: Layout, pad: int) -> Layout:
    fields = {
        name: replace(each, offset=each.offset + pad) for name, each in columns.fields.items()
    }
    end = max(each.offset + each.dtype.itemsize for each in fields.values())
    return Layout(columns.type_name, end, fields)
