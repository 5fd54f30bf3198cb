# SPDX-License-Identifier: LGPL-2.1-or-later
"""A lost page, or a bent pointer, that changes a figure shows as a gap or a check."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import drgn
import numpy as np
import pytest
from drgn import Object
from drgn.helpers.linux.mm import virt_to_page

from kcensus.analyses.iosched.kernel.run import of_kernel
from kcensus.analyses.kcopyd.census import take
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.hardware import hardware_queues
from kcensus.kernel.code.functions import Functions
from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.charges import charges
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.objcg import OwnerVectors
from kcensus.kernel.symbols import symbols_of
from kcensus.kernel.vfs.list_lru import list_lrus
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.workqueues import workqueues
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


@pytest.mark.parametrize("sample", ["sample", "sample-after"])
def test_a_memory_cgroup_without_a_node(sample: str) -> None:
    damaged, kernel = _damaged(sample, "memcgs"), _kernel(sample)
    first = drgn.offsetof(kernel.prog.type("struct mem_cgroup"), "nodeinfo")
    _is_shown(damaged, *damaged.bent(int(memcgs(kernel).address[1]) + first, 0))


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


def test_a_job_without_pages() -> None:
    damaged, kernel = _damaged("sample", "kcopyd"), _kernel("sample")
    job = kernel.prog.type("struct kcopyd_job")
    columns = layout(kernel.prog, job, {"client": "kc", "pages": "pages"})
    caches = find_caches(kernel.slab_map, "struct kcopyd_job", "kcopyd_job")
    address, found = allocated(kernel.slab_map, caches, columns, ScanReport())
    clients = take(kernel).clients.address
    row = np.flatnonzero(np.isin(found["client"], clients) & (found["pages"] != 0))[0]
    _is_shown(damaged, *damaged.bent(int(address[row]) + columns.fields["pages"].offset, 0))


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


def test_tags_of_a_driver() -> None:
    damaged, kernel = _damaged("sample-io", "iosched"), _kernel("sample-io")
    sets, hardware = hardware_queues(kernel).tag_sets, hardware_queues(kernel)
    driver = np.isin(sets.address, hardware.tags[hardware.sched_tags != 0]) & (sets.used > 0)
    tags = Object(kernel.prog, "struct blk_mq_tags *", value=int(sets.address[driver][0]))
    _is_shown(damaged, damaged.frames(int(tags.bitmap_tags.sb.map))[-1], bytes(4096))


def test_an_external_name_that_is_no_object() -> None:
    damaged, kernel = _damaged("sample", "slab"), _kernel("sample")
    columns = layout(kernel.prog, "struct dentry", {"name": "d_name.name"})
    caches = find_caches(kernel.slab_map, "struct dentry")
    address, found = allocated(kernel.slab_map, caches, columns, ScanReport())
    row = np.flatnonzero(found["name"] - address >= np.uint64(columns.size))[0]
    place = int(address[row]) + columns.fields["name"].offset
    _is_shown(damaged, *damaged.bent(place, int(found["name"][row]) + 8))


def _variable(name: str, analysis: str = "kcopyd") -> tuple[str, str, int]:
    return "sample", analysis, int(_kernel("sample").prog[name].address_)


def _device() -> tuple[str, str, int]:
    """Bios of copies are those of the device, too."""
    devices = mapped_devices(_kernel("sample")).devices
    copied = {each.cow for each in take(_kernel("sample")).snapshots.all}
    return "sample", "kcopyd", next(each.address for each in devices if each.number in copied)


def _pool() -> tuple[str, str, int]:
    kernel = _kernel("sample")
    pools = [Object(kernel.prog, "struct worker_pool *", each.address)
             for each in workqueues(kernel).pools if each.nice]  # fmt: skip
    return "sample", "kcopyd", int(pools[0].attrs)


def _descriptors() -> tuple[str, str, int]:
    ring = _kernel("sample").prog["prb"].desc_ring
    middle = (int(ring.tail_id.counter) + int(ring.head_id.counter)) // 2
    return "sample", "kcopyd", int(ring.descs[middle % (1 << int(ring.count_bits))].address_)


def test_a_record_of_the_log_that_leads_to_another_text() -> None:
    damaged, ring = _damaged("sample", "kcopyd"), _kernel("sample").prog["prb"].desc_ring
    middle = (int(ring.tail_id.counter) + int(ring.head_id.counter)) // 2
    record = ring.descs[middle % (1 << int(ring.count_bits))]
    _is_shown(damaged, *damaged.bent(int(record.text_blk_lpos.begin.address_), 0))


def _symbols() -> tuple[str, str, int]:
    """Of a module without debug info: they name functions on stacks."""
    kernel = _kernel("sample-waits")
    of_kernel(kernel)
    (address,) = symbols_of(kernel)._tables
    module = Object(kernel.prog, "struct module *", address)
    return "sample-waits", "iosched", int(module.kallsyms.strtab)


@pytest.mark.parametrize(
    "place",
    [
        lambda: _variable("jiffies_64"),
        lambda: _variable("_minor_idr", "waits"),
        *(_device, _pool, _descriptors, _symbols),
    ],
    ids=["jiffies", "minor numbers", "device", "pool", "descriptors", "symbols"],
)
def test_what_a_pointer_or_a_name_leads_to(place: Callable[[], tuple[str, str, int]]) -> None:
    """Read one by one, not by gather()."""
    sample, analysis, address = place()
    damaged = _damaged(sample, analysis)
    _is_shown(damaged, damaged.frames(address)[-1], bytes(4096))


def test_an_end_of_a_bio_that_is_no_function() -> None:
    damaged, kernel = _damaged("sample-io", "iosched"), _kernel("sample-io")
    bio = Object(kernel.prog, "struct bio *", int(bios(kernel).address[0]))
    _is_shown(damaged, *damaged.bent(int(bio.bi_end_io.address_), int(bio)))


def test_the_text_of_the_log_elsewhere() -> None:
    damaged, ring = _damaged("sample-waits", "waits"), _kernel("sample-waits").prog["prb"]
    texts = ring.text_data_ring.data
    _is_shown(damaged, *damaged.bent(int(texts.address_), int(texts) + 0x10))


def test_an_inode_of_no_file_system() -> None:
    damaged, kernel = _damaged("sample", "memcgs"), _kernel("sample")
    charged = charges(kernel).mappings.sort_values("pages", ascending=False)
    space = Object(kernel.prog, "struct address_space *", int(charged["mapping"].iloc[0]))
    place = int(space.host.i_sb.address_)
    _is_shown(damaged, *damaged.bent(place, int(space.host)))


def test_an_object_charged_to_no_memory_cgroup() -> None:
    damaged, kernel = _damaged("sample", "slab"), _kernel("sample")
    slabs = kernel.slab_map.index(find_caches(kernel.slab_map, "struct dentry"), ScanReport())
    reader = OwnerVectors(kernel.slab_map)
    owners, _ = reader.read(slabs, reader.find(slabs), Faults())
    charged = Object(kernel.prog, "struct obj_cgroup *", int(owners.objcg[0]))
    _is_shown(damaged, *damaged.bent(int(charged.memcg.address_), int(charged.memcg) + 64))


def test_the_base_of_the_symbols_elsewhere() -> None:
    damaged, functions = _damaged("sample-waits", "waits"), Functions(_kernel("sample-waits").prog)
    (base,) = functions.places("kallsyms_relative_base")
    _is_shown(damaged, *damaged.bent(base, functions.starts[0] + 4096))
