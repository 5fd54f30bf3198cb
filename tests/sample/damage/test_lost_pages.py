# SPDX-License-Identifier: LGPL-2.1-or-later
"""A lost page, or a bent pointer, that changes a figure shows as a gap or a check."""

from __future__ import annotations

from functools import cache

import drgn
import numpy as np
import pytest
from drgn import Object
from drgn.helpers.linux.mm import virt_to_page

from kcensus.analyses.kcopyd.census import take
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.objcg import OwnerVectors
from kcensus.kernel.vfs.list_lru import list_lrus
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.samples import DIRECTORY
from kcensus.sources import open_target
from tests.unit.lost_pages import Damaged

pytestmark = pytest.mark.slow


@cache
def _kernel(sample: str) -> Kernel:
    return Kernel(open_target(sample).prog)


@cache
def _damaged(sample: str, *analyses: str) -> Damaged:
    return Damaged(str(DIRECTORY / f"{sample}.capsule"), analyses)


def _is_shown(damaged: Damaged, frame: int, page: bytes, *others: int) -> None:
    assert damaged.shows(frame, page, *others)
    assert damaged.case(frame, page, *others) == []


def test_the_page_table_of_a_module() -> None:
    """Without it, no mapped device is known."""
    damaged = _damaged("sample", "slab")
    variable = int(_kernel("sample").prog["_minor_idr"].address_)
    table = damaged.frames(variable)[-2]
    _is_shown(damaged, table, bytes(4096))


def test_names_of_file_systems() -> None:
    damaged, blocks = _damaged("sample", "list-lru"), super_blocks(_kernel("sample"))
    address = int(blocks.address[blocks.type.index("tracefs")])
    block = Object(_kernel("sample").prog, "struct super_block *", value=address)
    frame = damaged.frames(int(block.s_type.name))[-1]
    _is_shown(damaged, frame, bytes(4096))


def test_owners_of_dentries() -> None:
    damaged, slab_map = _damaged("sample-after", "dentries"), _kernel("sample-after").slab_map
    slabs = slab_map.index(find_caches(slab_map, "struct dentry"), ScanReport())
    reader = OwnerVectors(slab_map)
    vectors = reader.find(slabs)
    owners, _ = reader.read(slabs, vectors, Faults())
    most = np.bincount(owners.slab).argmax()
    frame = damaged.frames(int(vectors.address[vectors.slab == most][0]))[-1]
    _is_shown(damaged, frame, bytes(4096))


@pytest.mark.parametrize("sample", ["sample", "sample-after"])
def test_page_structs_of_structures(sample: str) -> None:
    damaged, groups = _damaged(sample, "memcgs"), memcgs(_kernel(sample))
    group = int(groups.cgroup[~groups.online][0])
    node = Object(_kernel(sample).prog, "struct cgroup *", value=group).kn
    frame = damaged.frames(int(virt_to_page(node)))[-1]
    _is_shown(damaged, frame, bytes(4096))


def test_bios_of_copies() -> None:
    """Among them the clones of devices, which no job counts."""
    damaged, kernel = _damaged("sample", "kcopyd"), _kernel("sample")
    bios = layout(kernel.prog, "struct bio", ["bi_pool"])
    caches = {use.cache.id: use.cache for uses in take(kernel).bios.values() for use in uses}
    for each in caches.values():
        address, _ = allocated(kernel.slab_map, [each], bios, ScanReport())
        pages = np.unique(address >> np.uint64(12))[::10] << np.uint64(12)
        frames = [damaged.frames(page)[-1] for page in pages.tolist()]
        _is_shown(damaged, frames[0], bytes(4096), *frames[1:])


def test_a_pointer_to_an_object_of_another_size() -> None:
    damaged, kernel = _damaged("sample", "list-lru"), _kernel("sample")
    arrays = list_lrus(kernel).memcg_lrus
    first = drgn.offsetof(kernel.prog.type("struct list_lru_memcg"), "lru")
    items = drgn.offsetof(kernel.prog.type("struct list_lru_one"), "nr_items")
    place, group = int(arrays[arrays != 0][0]) + first, int(memcgs(kernel).address[1])
    inside = next(at for at in range(group, group + 2048, 8) if not kernel.memory.word(at + items))
    assert kernel.memory.word(place)
    _is_shown(damaged, *damaged.bent(place, inside))


def test_a_name_in_another_dentry() -> None:
    damaged, kernel = _damaged("sample", "dentries"), _kernel("sample")
    columns = layout(kernel.prog, "struct dentry", {"name": "d_name.name", "inode": "d_inode"})
    caches = find_caches(kernel.slab_map, "struct dentry")
    address, found = allocated(kernel.slab_map, caches, columns, ScanReport())
    inline = found["name"] - address < np.uint64(columns.size)
    row = np.flatnonzero(inline & (found["inode"] == 0))[0]
    place = int(address[row]) + columns.fields["name"].offset
    _is_shown(damaged, *damaged.bent(place, int(found["name"][row]) + 0x110))
