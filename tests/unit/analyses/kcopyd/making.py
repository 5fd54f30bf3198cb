# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcopyd clients, jobs and snapshots of *synthetic* kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from drgn import Object

from kcensus.analyses.kcopyd.census import Census, SlabUse
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.dm.devices import MappedDevice
from kcensus.kernel.dm.kcopyd import Clients, Jobs, Kcopyd, job_caches
from kcensus.kernel.dm.snapshots import Limit, Snapshot, Snapshots
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel, add_types

TYPES = """
struct kcopyd_job 96
    0 struct dm_kcopyd_client * kc; 8 struct list_head list; 24 unsigned long flags
    32 struct dm_io_region source; 56 void * pages; 64 atomic_t sub_jobs
    72 unsigned long progress; 80 struct kcopyd_job * master_job
struct page_list 16 : 0 struct page_list * next; 8 struct page * page
struct dm_io_region 24 : 0 void * bdev; 8 unsigned long sector; 16 unsigned long count
struct dm_kcopyd_throttle 16 : 4 unsigned int throttle
typedef mempool_t struct mempool_s
struct mempool_s 40 : 8 int curr_nr; 16 void * * elements; 24 void * pool_data
struct work_struct 32 : 0 atomic_long_t data; 8 struct list_head entry; 24 void * func
struct workqueue_struct 8
struct dm_kcopyd_client 192
    0 struct page_list * pages; 8 unsigned int nr_reserved_pages; 12 unsigned int nr_free_pages
    24 struct workqueue_struct * kcopyd_wq; 32 struct work_struct kcopyd_work
    64 struct dm_kcopyd_throttle * throttle; 72 atomic_t nr_jobs
    80 struct list_head complete_jobs; 96 struct list_head io_jobs; 112 struct list_head pages_jobs
"""
# The last members of the client.
OLD_CLIENT = "    128 mempool_t * job_pool"
NEW_CLIENT = """\
    128 mempool_t job_pool; 168 struct list_head callback_jobs; 184 unsigned int sub_job_size"""
SLOT = 9 * 96


@dataclass
class World:
    k: FakeKernel
    new: bool
    jobs: list[int] = field(default_factory=list)
    clients: dict[str, int] = field(default_factory=dict)

    def client(self, name: str) -> Object:
        return Object(self.k.prog, "struct dm_kcopyd_client", address=self.clients[name])

    def job(self, slot: int, part: int = 0) -> Object:
        return Object(self.k.prog, "struct kcopyd_job", address=self.jobs[slot] + 96 * part)


def world(era: str) -> World:
    """Two clients, busy and idle, and jobs: 0-9 of the first, 10-12 in reserve."""
    new = era != "4.18"
    k = FakeKernel(era)
    add_types(k.prog, TYPES + (NEW_CLIENT if new else OLD_CLIENT), "kcopyd")
    w = World(k, new)
    cache = k.cache("kcopyd_job", SLOT, order=1)
    kmalloc = k.cache("kmalloc-192", 192)
    k.cache("kmalloc-256", 256)
    k.variable("_job_cache", "struct kmem_cache *", cache.object.address_)
    slabs = [k.slab(cache), k.slab(cache, free=[4, 5, 6, 7, 8])]
    w.jobs = [slab.object(at) for slab in slabs for at in slab.allocated()]
    assert len(w.jobs) == 13
    homes = k.slab(kmalloc, free=range(2, 21))
    w.clients = {"busy": homes.object(0), "idle": homes.object(1), "dead": homes.object(7)}
    reserve = {"busy": w.jobs[10:12], "idle": w.jobs[12:13], "dead": []}
    for name in w.clients:
        kc = w.client(name)
        for each in ("complete", "io", "pages", *(["callback"] if new else [])):
            k.list_init(kc.member_(f"{each}_jobs"))
        pool = kc.job_pool if new else k.alloc("mempool_t")
        if new:
            k.set(kc.sub_job_size, 1024)
        else:
            k.set(kc.job_pool, pool)
        elements = k.alloc(f"void * [{len(reserve[name]) + 1}]")
        k.write_words(elements.address_, *reserve[name])
        k.set(pool.elements, elements)
        k.set(pool.curr_nr, len(reserve[name]))
        k.set(pool.pool_data, cache.object)
    throttle = k.alloc("struct dm_kcopyd_throttle")
    k.set(throttle.throttle, 40)
    k.set(w.client("idle").throttle, throttle)
    for slot in range(10):
        job = w.job(slot)
        k.set(job.kc, w.clients["busy"])
        k.set(job.master_job, job)
        k.set(job.source.count, 8)
        k.write_words(job.list.address_, 0xDEAD_0000_0000_0100, 0xDEAD_0000_0000_0122)
        # Nobody sets this in a job that is not split.
        k.set(job.sub_jobs.counter, 5)
    # In reserve, with what it was when it was last used: the client is no more.
    k.set(w.job(10).kc, w.clients["dead"])
    return w


def split(w: World, slot: int, running: int) -> None:
    w.k.set(w.job(slot).source.count, 4096)
    w.k.set(w.job(slot).sub_jobs.counter, running)


def count(w: World, report: ScanReport | None = None) -> tuple[Kcopyd, Clients, Jobs]:
    slab_map = SlabMap(Memory(w.k.prog))
    kcopyd = Kcopyd(slab_map, job_caches(slab_map))
    clients = kcopyd.clients(kcopyd.candidates(ScanReport()))
    address, columns = kcopyd.scan(report or ScanReport())
    return kcopyd, clients, kcopyd.count(clients, address, columns)


eras = pytest.mark.parametrize("era", ["4.18", "5.9", "6.10", "7.3"])
MIB = 1 << 20


def figures_of(
    limit: Limit | None, threshold: int | None, *, callback_list: bool = True, ram: int = 1 << 30
) -> Figures:
    """Figures of a kernel with one snapshot and 100 MiB of jobs, without debug info of dm_mod."""
    snapshot = Snapshot(
        address=1,
        device=MappedDevice(1, "253:0", "snap", ()),
        target="snapshot",
        origin="8:0",
        origin_disk="sda",
        cow="8:16",
        store="N",
        chunk_sectors=8,
        valid=True,
        overflowed=False,
        in_flight=30000,
        available=None,
        pending=0,
        exceptions=0,
        pending_in_table=0,
        used_sectors=0,
        client=0,
        waiters=(),
    )
    slab = SlabUse("kcopyd_job", "jobs", 3312, 30000, 30000, 100 * MIB, False)
    census = Census(
        job_slab=slab,
        slabs=[slab],
        jobs=Jobs(active=30000),
        limit=limit,
        threshold=threshold,
        callback_list=callback_list,
        snapshots=Snapshots([snapshot]),
        has_snapshots=True,
    )
    kernel = Kernel(FakeKernel("6.10").prog)
    kernel.ram_bytes = ram
    figures = Figures(kernel, census, LogEvents())
    figures.unreclaimable_bytes = 200 * MIB
    return figures


def replace_snapshot(figures: Figures, **values: Any) -> None:
    figures.census.snapshots.all = [replace(figures.snapshots[0], **values)]


def read_clients(figures: Figures, w: World) -> None:
    _, figures.census.clients, figures.census.jobs = count(w)
    figures.census.has_clients = True
