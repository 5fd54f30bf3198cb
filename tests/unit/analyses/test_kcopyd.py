# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcopyd clients, jobs and snapshots of *synthetic* kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from drgn import Object

from kcensus.analyses.kcopyd.census import Census, SlabUse, _roles
from kcensus.analyses.kcopyd.checks import checks, gaps
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.findings import findings
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.analyses.kcopyd.run import summary
from kcensus.analyses.kcopyd.tables import tables
from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.dm import snapshots as dm_snapshots
from kcensus.kernel.dm.devices import DmTarget, MappedDevice
from kcensus.kernel.dm.kcopyd import Clients, Jobs, Kcopyd, job_caches, list_heads
from kcensus.kernel.dm.snapshots import UNLIMITED, Limit, Snapshot, Snapshots, Waiter
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.workqueues import Pool, Workqueues
from kcensus.results import Bound, CheckStatus, Finding, Severity
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel, add_types

_JOB = """
    0 struct dm_kcopyd_client * kc
    8 struct list_head list
    24 unsigned long flags
    32 struct dm_io_region source
    56 void * pages
    64 atomic_t sub_jobs
    72 unsigned long progress
    80 struct kcopyd_job * master_job"""
_CLIENT = """
    0 struct page_list * pages
    8 unsigned int nr_reserved_pages
    12 unsigned int nr_free_pages
    24 struct workqueue_struct * kcopyd_wq
    32 struct work_struct kcopyd_work
    64 struct dm_kcopyd_throttle * throttle
    72 atomic_t nr_jobs
    80 struct list_head complete_jobs
    96 struct list_head io_jobs
    112 struct list_head pages_jobs"""
TYPES = {
    "struct kcopyd_job": (96, _JOB),
    "struct page_list": (16, "0 struct page_list * next\n8 struct page * page"),
    "struct dm_io_region": (24, "0 void * bdev\n8 unsigned long sector\n16 unsigned long count"),
    "struct dm_kcopyd_throttle": (16, "4 unsigned int throttle"),
    "typedef mempool_t": (0, "struct mempool_s"),
    "struct mempool_s": (40, "8 int curr_nr\n16 void * * elements\n24 void * pool_data"),
    "struct work_struct": (32, "0 atomic_long_t data\n8 struct list_head entry\n24 void * func"),
    "struct workqueue_struct": (8, ""),
}
OLD_CLIENT = _CLIENT + "\n128 mempool_t * job_pool"
NEW_CLIENT = (
    _CLIENT
    + "\n128 mempool_t job_pool\n168 struct list_head callback_jobs\n184 unsigned int sub_job_size"
)
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
    client = NEW_CLIENT if new else OLD_CLIENT
    add_types(k.prog, {**TYPES, "struct dm_kcopyd_client": (192, client)}, "kcopyd")
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


@eras
def test_clients_and_their_reserve(era: str) -> None:
    w = world(era)
    kcopyd, clients, jobs = count(w)
    # The dead one lies in a free object.
    assert clients.address.tolist() == [w.clients["busy"], w.clients["idle"]]
    assert clients.reserves.tolist() == [2, 1]
    assert clients.throttle.tolist() == [100, 40]
    assert kcopyd.has_callback_list == w.new
    assert jobs.jobs.tolist() == [10, 0]
    assert (jobs.reserve, jobs.active, jobs.unknown, jobs.torn) == (3, 13, 0, 0)
    assert jobs.in_flight.tolist() == [10, 0]


@eras
def test_states_and_split_jobs(era: str) -> None:
    w = world(era)
    k, kc = w.k, w.client("busy")
    for slot in (0, 1, 2):
        k.list_add_tail(w.job(slot).list, kc.complete_jobs)
    k.list_add_tail(w.job(3).list, kc.io_jobs)
    k.list_add_tail(w.job(4).list, kc.pages_jobs)
    # Eight parts are on their way, one of them waits for pages.
    split(w, 5, 8)
    k.list_add_tail(w.job(5, part=3).list, kc.pages_jobs)
    # All parts are done: the master waits for its callback.
    split(w, 6, 0)
    k.list_add_tail(w.job(6).list, kc.complete_jobs)
    if w.new:
        k.list_add_tail(w.job(7).list, kc.callback_jobs)
    jobs = count(w)[2]
    assert jobs.jobs.tolist() == [10, 0]
    assert jobs.split.tolist() == [2, 0]
    assert jobs.sub_jobs.tolist() == [8, 0]
    assert jobs.listed.tolist() == [[int(w.new), 4, 1, 2], [0, 0, 0, 0]]
    # 8 and 9, seven parts, and 7 where there is no list for callbacks.
    assert jobs.in_flight.tolist() == [9 + (not w.new), 0]


def test_sub_jobs_of_old_kernels_are_64_kib() -> None:
    w = world("4.18")
    w.k.set(w.job(0).source.count, 129)
    w.k.set(w.job(1).source.count, 128)
    assert count(w)[2].split.tolist() == [1, 0]


@pytest.mark.parametrize("length", [0, 4])
def test_a_torn_list_is_counted(length: int) -> None:
    w = world("6.10")
    kc = w.client("busy")
    for slot in range(length):
        w.k.list_add_tail(w.job(slot).list, kc.io_jobs)
    assert count(w)[2].torn == 0
    bent = (w.job(1).list, w.job(3).list) if length else (kc.io_jobs, 0xFFFF_8880_0000_1000)
    w.k.set(bent[0].next, bent[1])
    jobs = count(w)[2]
    # The jobs before the bend are no longer known to be on the list.
    assert (jobs.torn, jobs.listed[0].tolist()) == (1, [0, 0, length // 2, 0])
    assert jobs.in_flight.tolist() == [10 - length // 2, 0]


def pages_of(w: World, number: int) -> Object:
    nodes = [w.k.alloc("struct page_list") for _ in range(number)]
    for node, following in pairwise(nodes):
        w.k.set(node.next, following)
    return nodes[0]


def test_copy_pages_are_counted_twice() -> None:
    w = world("6.10")
    # Four pages; eight running parts, one of two pages and one that waits for pages.
    w.k.set(w.job(0).source.count, 4 * PAGE // 512)
    w.k.set(w.job(0).pages, pages_of(w, 4))
    split(w, 1, running=8)
    w.k.set(w.job(1, part=1).source.count, 2 * PAGE // 512)
    w.k.set(w.job(1, part=1).pages, pages_of(w, 2))
    w.k.set(w.job(1, part=2).pages, w.jobs[0])  # given back before it waited again
    w.k.list_add_tail(w.job(1, part=2).list, w.client("busy").pages_jobs)
    w.k.set(w.client("idle").pages, pages_of(w, 3))
    jobs = count(w)[2]
    assert (jobs.pages.tolist(), jobs.pages_expected, jobs.pages_followed) == ([6, 0], 6, 6)
    assert jobs.free_pages_followed == 3
    # With fewer parts running, which ones still have pages is unknown.
    w.k.set(w.job(1).sub_jobs.counter, 3)
    jobs = count(w)[2]
    assert (jobs.pages.tolist(), jobs.pages_expected) == ([4 + 3 * 128, 0], 4)


def test_filtered_pages_are_counted_and_the_rest_is_right() -> None:
    w = world("6.10")
    w.k.drop(w.jobs[0])
    report = ScanReport()
    kcopyd, _, jobs = count(w, report)
    # Five objects lie on the first page of that slab, the last of them in part.
    assert kcopyd.scan(ScanReport())[0].tolist() == w.jobs[5:]
    assert report.objects_unreadable == 5
    assert jobs.jobs.tolist() == [5, 0]


def test_job_of_a_client_that_is_none() -> None:
    w = world("6.10")
    w.k.set(w.job(9).kc, 0x1234)
    jobs = count(w)[2]
    assert (jobs.jobs.tolist(), jobs.unknown) == ([9, 0], 1)


def test_cache_is_found_by_name_without_the_variable() -> None:
    w = world("6.10")
    del w.k.symbols["_job_cache"]
    found = job_caches(SlabMap(Memory(w.k.prog)))
    assert [cache.name for cache in found] == ["kcopyd_job"]
    assert job_caches(SlabMap(Memory(FakeKernel("6.10").prog))) == []


@pytest.mark.parametrize("seed", range(20))
def test_membership_of_lists_equals_a_walk(seed: int) -> None:
    random = np.random.default_rng(seed)
    number, lists = int(random.integers(1, 400)), 6
    address = random.permutation(10_000)[: number + lists].astype(np.uint64) * np.uint64(64)
    nodes, heads = address[:number], address[number:]
    on = random.integers(-1, lists, number)
    following = np.full(number, 7, np.uint64)
    before = np.full(number, 9, np.uint64)
    for each in range(lists):
        members = random.permutation(np.flatnonzero(on == each))
        ring = [heads[each], *nodes[members], heads[each]]
        for at, member in enumerate(members):
            before[member], following[member] = ring[at], ring[at + 2]
    # Stale links into a list lead nowhere.
    for stray in np.flatnonzero(on == -1)[:5]:
        following[stray] = nodes[random.integers(number)]
    assert list_heads(heads, nodes, following, before).tolist() == on.tolist()


def test_circles_end() -> None:
    nodes = np.array([64, 128, 192], np.uint64)
    heads = np.array([640], np.uint64)
    ends = list_heads(heads, nodes, np.roll(nodes, -1), np.roll(nodes, 1))
    assert ends.tolist() == [-1, -1, -1]


_SNAPSHOT = """
    0 struct dm_dev * origin
    8 struct dm_dev * cow
    16 int valid
    24 int active
    28 atomic_t pending_exceptions_count
    32 struct dm_exception_table pending
    48 struct dm_exception_table complete
    64 struct dm_exception_store * store
    72 struct dm_kcopyd_client * kcopyd_client
    104 struct list_head list"""
SNAPSHOT_TYPES = {
    "struct dm_kcopyd_client": (8, ""),
    "struct dm_dev": (24, "8 char [16] name"),
    "struct dm_exception_table": (16, "0 unsigned int hash_mask\n8 struct list_head * table"),
    "struct dm_exception": (32, "0 struct list_head hash_list"),
    "struct dm_exception_store": (
        32,
        "0 struct dm_exception_store_type * type\n8 unsigned int chunk_size\n"
        "12 unsigned int chunk_mask\n16 unsigned int chunk_shift\n24 void * context",
    ),
    "struct origin": (40, "8 struct list_head hash_list\n24 struct list_head snapshots"),
    "struct dm_exception_store_type": (8, "0 char * name"),
    "struct transient_c": (8, "0 unsigned long next_free"),
    "struct semaphore": (24, "0 unsigned int count\n8 struct list_head wait_list"),
    "struct semaphore_waiter": (24, "0 struct list_head list\n16 struct task_struct * task"),
    "struct task_struct": (64, "16 struct list_head tasks\n32 int pid\n40 char [16] comm"),
}


def snapshot_kernel(member: str) -> tuple[FakeKernel, Object]:
    """A kernel with one snapshot, whose limit is in ``member``."""
    k = FakeKernel("4.18")
    types = {**SNAPSHOT_TYPES, "struct dm_snapshot": (128, f"{_SNAPSHOT}\n{member}")}
    add_types(k.prog, types, "snapshot")
    snapshot = k.alloc("struct dm_snapshot")
    for name, number in (("origin", b"8:0"), ("cow", b"8:16")):
        device = k.alloc("struct dm_dev")
        k.write(device.name.address_, number)
        k.set(snapshot.member_(name), device)
    store, kind = k.alloc("struct dm_exception_store"), k.alloc("struct dm_exception_store_type")
    state = k.alloc("struct transient_c")
    k.set(kind.name, k.string(b"N"))
    k.set(state.next_free, 40)
    k.set(store.type, kind)
    for name, value in (("size", 8), ("mask", 7), ("shift", 3)):
        k.set(store.member_(f"chunk_{name}"), value)
    k.set(store.context, state)
    k.set(snapshot.store, store)
    k.set(snapshot.valid, 1)
    for name, sizes in (("pending", [1, 0]), ("complete", [0, 3, 2, 0])):
        table = k.alloc(f"struct list_head [{len(sizes)}]")
        k.set(snapshot.member_(name).hash_mask, len(sizes) - 1)
        k.set(snapshot.member_(name).table, table)
        for bucket, size in zip(table, sizes, strict=True):
            k.list_init(bucket)
            for _ in range(size):
                k.list_add_tail(k.alloc("struct dm_exception").hash_list, bucket)
    k.set(snapshot.pending_exceptions_count.counter, 1)
    return k, snapshot


def read(k: FakeKernel, snapshot: Object) -> tuple[Snapshots, Snapshot]:
    target = DmTarget("snapshot", 0, 8, int(snapshot.address_))
    device = MappedDevice(1, "253:0", "snap", (target, DmTarget("linear", 0, 8, 0)))
    found = dm_snapshots.snapshots(Memory(k.prog), [device])
    (one,) = found.all
    return found, one


def test_snapshot_limited_by_a_semaphore() -> None:
    k, snapshot = snapshot_kernel("80 struct semaphore cow_count")
    k.variable("cow_threshold", "int", 2048)
    k.set(snapshot.cow_count.count, 2)
    k.list_init(snapshot.cow_count.wait_list)
    for pid in (71, 72):
        waiter, task = k.alloc("struct semaphore_waiter"), k.alloc("struct task_struct")
        k.set(task.pid, pid)
        k.write(task.comm.address_, b"writer")
        k.set(waiter.task, task)
        k.list_add_tail(waiter.list, snapshot.cow_count.wait_list)
    assert dm_snapshots.limit_mechanism(k.prog) is Limit.SEMAPHORE
    found, one = read(k, snapshot)
    assert found.damaged == 0
    assert (one.in_flight, one.available) == (None, 2)
    assert [(w.pid, w.comm) for w in one.waiters] == [(71, "writer"), (72, "writer")]
    assert (one.exceptions, one.pending_in_table, one.pending) == (5, 1, 1)
    assert (one.origin, one.cow, one.store, one.used_sectors) == ("8:0", "8:16", "N", 40)


def test_snapshot_without_a_limit() -> None:
    k, snapshot = snapshot_kernel("")
    assert dm_snapshots.limit_mechanism(k.prog) is Limit.NONE
    assert dm_snapshots.cow_threshold(k.prog) is None
    found, one = read(k, snapshot)
    assert found.damaged == 0
    assert (one.in_flight, one.available, one.waiters) == (None, None, ())


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


def replace_snapshot(figures: Figures, **values: object) -> None:
    figures.census.snapshots.all = [replace(figures.snapshots[0], **values)]  # type: ignore[arg-type]


def read_clients(figures: Figures, w: World) -> None:
    _, figures.census.clients, figures.census.jobs = count(w)
    figures.census.has_clients = True


def found(figures: Figures) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.patch) for finding in findings(figures)]


@pytest.mark.parametrize(
    ("limit", "threshold", "unlimited", "bound"),
    [
        (Limit.NONE, None, True, 2049),
        (Limit.SEMAPHORE, 0, True, 2048),
        (Limit.SEMAPHORE, -1, True, 2048),
        (Limit.SEMAPHORE, 512, False, 512),
        (Limit.IN_PROGRESS, 0, False, 1),
        (Limit.IN_PROGRESS, 2048, False, 2049),
        (Limit.IN_PROGRESS, UNLIMITED, True, 2049),
        (Limit.IN_PROGRESS, 4294967295, True, 2049),
    ],
)
def test_the_limit_of_new_snapshots(
    limit: Limit, threshold: int | None, unlimited: bool, bound: int
) -> None:
    figures = figures_of(limit, threshold)
    figures.census.snapshots.all = []
    assert (figures.limited is False, figures.largest_bound) == (unlimited, bound)


def test_findings_by_era() -> None:
    # As before 5.0: neither copies nor callbacks are limited.
    old = counted(Limit.NONE, None)
    assert found(old) == [
        (Severity.WARNING, "dm-snapshot-cow-in-progress"),
        (Severity.NOTICE, "dm-kcopyd-callback-list"),
    ]
    # With few jobs, that callbacks are not limited is no danger.
    old.census.jobs.jobs = np.array([10, 0])
    assert [finding.id for finding in findings(old)] == ["kcopyd-jobs"]
    # A semaphore is dangerous when tasks wait for it.
    semaphore = counted(Limit.SEMAPHORE, 2048, available=0)
    semaphore.census.callback_list = True
    assert findings(semaphore) == []
    replace_snapshot(semaphore, waiters=(Waiter(7, "dd"),))
    assert (Severity.WARNING, "dm-snapshot-cow-in-progress") in found(semaphore)
    assert found(figures_of(Limit.IN_PROGRESS, 4294967295)) == [(Severity.WARNING, "")]
    # What the limit allows is as it should be, up to a quarter of RAM.
    assert found(figures_of(Limit.IN_PROGRESS, 30000)) == []
    assert found(figures_of(Limit.IN_PROGRESS, 30000, ram=300 * MIB)) == [(Severity.WARNING, "")]
    huge = figures_of(Limit.IN_PROGRESS, 4294967295, ram=300 * MIB)
    assert found(huge) == [(Severity.CRITICAL, "")]
    # Without a limit, but also without memory to speak of.
    assert found(figures_of(Limit.IN_PROGRESS, 4294967295, ram=1 << 40)) == []


def counted(
    limit: Limit, threshold: int | None, ram: int = 1 << 30, available: int | None = None
) -> Figures:
    """A snapshot without a count of its own, whose client has 30,000 jobs."""
    w = world("4.18")
    figures = figures_of(limit, threshold, callback_list=False, ram=ram)
    read_clients(figures, w)
    figures.census.jobs.jobs = np.array([30000, 0])
    replace_snapshot(figures, client=w.clients["busy"], in_flight=None, available=available)
    return figures


def test_jobs_of_a_snapshot_that_does_not_count_are_its_copies() -> None:
    figures = counted(Limit.NONE, None, ram=300 * MIB)
    # The case that brought the OOM killer: before 5.0 the snapshot has no count.
    assert found(figures)[0] == (Severity.CRITICAL, "dm-snapshot-cow-in-progress")
    assert tables(figures)["snapshots"].frame["in_flight"].tolist() == [30000]


@pytest.mark.parametrize(
    ("available", "threshold", "limit", "limited"),
    [
        (2048, 4294967295, 32048, True),  # created with another limit than today's
        (0, 0, 30000, True),  # reached
        (UNLIMITED - 30000, 2048, None, False),
        (UNLIMITED - 30001, 2048, None, False),  # a callback is running
    ],
)
def test_a_semaphore_keeps_the_limit_that_its_snapshot_was_created_with(
    available: int, threshold: int, limit: int | None, limited: bool
) -> None:
    figures = counted(Limit.SEMAPHORE, threshold, available=available)
    frame = tables(figures)["snapshots"].frame
    assert frame["in_flight"].tolist() == [30000]
    assert frame["limit"].tolist() == [pd.NA if limit is None else limit]
    assert figures.limited is limited
    check = next(check for check in checks(figures) if check.name == "jobs of snapshots")
    assert check.status is CheckStatus.ABSENT
    kinds = {finding.kind for finding in findings(figures)}
    assert ("kcopyd-unthrottled" in kinds) is not limited
    # Whatever the parameter is set to now, the memory of this snapshot does not return.
    assert all(finding.returns is None for finding in findings(figures))


def test_unknown_limit_is_not_unlimited() -> None:
    figures = figures_of(Limit.IN_PROGRESS, None)
    assert figures.limited is None
    assert [finding.id for finding in findings(figures)] == ["kcopyd-jobs"]
    known = figures_of(Limit.NONE, None), figures_of(Limit.IN_PROGRESS, 9)
    assert [figures.limited for figures in known] == [False, True]


def test_waiters_of_a_snapshot_whose_copies_are_unknown() -> None:
    figures = figures_of(Limit.SEMAPHORE, None)
    replace_snapshot(figures, in_flight=None, waiters=(Waiter(7, "dd"),))
    (finding,) = (each for each in findings(figures) if each.kind == "dm-snapshot-waiters")
    assert finding.figures["tasks"].value == 1
    assert summary(figures)["in_flight_cow"].value is None


def test_a_limit_is_restored_or_raised_only_where_there_is_one() -> None:
    figures = counted(Limit.SEMAPHORE, None, available=0)
    replace_snapshot(figures, waiters=(Waiter(7, "dd"),))
    remedies = [each for finding in findings(figures) for each in finding.remedies]
    assert any("snapshot_cow_threshold" in each.command for each in remedies)
    assert not any("None" in each.undo for each in remedies)
    figures = figures_of(Limit.IN_PROGRESS, 4294967295)
    replace_snapshot(figures, waiters=(Waiter(7, "dd"),))
    (waiting,) = (each for each in findings(figures) if each.kind == "dm-snapshot-waiters")
    assert not any("snapshot_cow_threshold" in each.command for each in waiting.remedies)


@pytest.mark.parametrize(
    ("state", "in_progress", "status"),
    [
        ("in-flight", 10, CheckStatus.AGREE),
        ("in-flight", 11, CheckStatus.EXPLAINED),
        ("in-flight", 12, CheckStatus.DIFFER),
        ("pending", 11, CheckStatus.DIFFER),
    ],
)
def test_a_copy_counts_until_its_callback_has_returned(
    state: str, in_progress: int, status: CheckStatus
) -> None:
    w = world("6.10")
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    read_clients(figures, w)
    replace_snapshot(figures, client=w.clients["busy"], in_flight=in_progress)
    work = [figures.census.clients.work[0], np.uint64(0x5000)]
    items = pd.DataFrame({"work": work, "state": state, "pid": 9, "pool": 0})
    figures.census.workqueues = Workqueues(items=items)
    check = next(check for check in checks(figures) if check.name == "jobs of snapshots")
    assert (check.status, check.source) == (status, "dm_snapshot.in_progress")
    # The other work item is not of a client.
    assert len(figures.work_states) == 1


@pytest.mark.parametrize(("by", "moved"), [(0, 0), (6, 6), (None, None)])
def test_the_jobs_of_the_same_clients_are_counted_again(by: int | None, moved: int | None) -> None:
    figures, w = figures_of(Limit.IN_PROGRESS, 2048), world("6.10")
    read_clients(figures, w)
    before = int(figures.census.clients.nr_jobs.sum())
    figures.census.nr_jobs_after = None if by is None else before + by
    check = next(check for check in checks(figures) if check.name == "jobs and sub-jobs")
    assert (check.counter, check.moved) == (before + (by or 0), moved)


def test_share_of_unknown_is_unknown() -> None:
    figures = figures_of(Limit.NONE, None)
    shares = "share_of_unreclaimable"
    assert tables(figures)["related_slabs"].frame[shares].tolist() == [0.5]
    figures.unreclaimable_bytes = None
    assert np.isnan(tables(figures)["related_slabs"].frame[shares]).all()
    assert summary(figures)[shares].value is None


def slab_only(ram: int) -> list[Finding]:
    """Findings without debug info of dm_mod and dm_snapshot."""
    figures = figures_of(None, None, ram=ram)
    figures.census.snapshots, figures.census.has_snapshots = Snapshots(), False
    assert summary(figures)["clients"].value is None
    assert summary(figures)["jobs"].value == 30000
    return findings(figures)


def test_large_slabs_of_unknown_clients_are_found() -> None:
    (finding,) = slab_only(300 * MIB)
    assert finding.severity is Severity.CRITICAL
    assert (finding.id, finding.memory) == ("kcopyd-jobs", {"slab:kcopyd_job": 100 * MIB})
    assert slab_only(64 << 30) == []


def test_screen_is_short_without_kcopyd() -> None:
    figures = Figures(Kernel(FakeKernel("6.10").prog), Census(), LogEvents())
    figures.unreclaimable_bytes = None
    assert (tables(figures), findings(figures)) == ({}, [])
    pool = Pool(
        1, 0, cpu=0, node=0, nice=0, flags=0, workers=1, idle=0, pending=1, age=40, is_stalled=True
    )
    figures.census.workqueues = Workqueues([pool])
    assert tables(figures).keys() == {"pools", "pending_work"}
    assert [finding.id for finding in findings(figures)] == ["workqueue-stall:0"]


@pytest.mark.parametrize("member", ["chunk_size", "chunk_mask", "chunk_shift"])
def test_a_chunk_size_that_contradicts_itself_is_unknown(member: str) -> None:
    k, snapshot = snapshot_kernel("")
    k.set(snapshot.store.member_(member), 3_000_000_000)
    found, row = read(k, snapshot)
    assert (row.chunk_sectors, found.damaged) == (None, 1)
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    figures.census.snapshots = found
    assert tables(figures)["snapshots"].frame["chunk_bytes"].isna().all()


def test_an_exception_table_with_a_bent_pointer() -> None:
    k, snapshot = snapshot_kernel("")
    chain = snapshot.complete.table[1]
    k.set(chain.next, chain.next.next.value_())
    found, row = read(k, snapshot)
    assert (row.exceptions, found.damaged) == (4, 1)
    # A number of buckets that is none.
    k.set(snapshot.complete.hash_mask, 5)
    found, row = read(k, snapshot)
    assert (row.exceptions, found.damaged) == (0, 1)


def test_snapshots_of_the_hash_of_origins() -> None:
    k, snapshot = snapshot_kernel("")
    table = k.alloc("struct list_head [256]")
    for bucket in table:
        k.list_init(bucket)
    k.variable("_origins", "struct list_head *", int(table.address_))
    origin = k.alloc("struct origin")
    k.list_init(origin.snapshots)
    k.list_add_tail(origin.hash_list, table[9])
    # Of three, one has a target.
    for each in (snapshot, *(k.alloc("struct dm_snapshot") for _ in range(2))):
        k.list_add_tail(each.list, origin.snapshots)
    found, _ = read(k, snapshot)
    assert (found.registered, found.damaged) == (3, 0)
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    figures.census.snapshots = found
    check = next(check for check in checks(figures) if check.source == "_origins")
    assert (check.ours, check.counter, check.status) == (1, 3, CheckStatus.DIFFER)
    k.set(origin.snapshots.next, origin.snapshots)
    assert read(k, snapshot)[0].damaged == 1


def test_jobs_of_a_lost_snapshot_are_a_gap() -> None:
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    read_clients(figures, world("6.10"))
    gap = next(gap for gap in gaps(figures) if gap.what == "busy clients without a device")
    assert gap.count == 1
    # Idle clients may have no target.
    figures.census.jobs.jobs[:] = 0
    assert "busy clients without a device" not in {gap.what for gap in gaps(figures)}


def test_without_debug_info_of_dm_mod_a_gap_says_what_jobs_include() -> None:
    figures = figures_of(None, None)
    assert [gap.what for gap in gaps(figures)] == ["clients"]
    assert {
        key: figure.bound for key, figure in summary(figures).items() if figure.bound.value
    } == {"jobs": Bound.AT_MOST, "total_bytes": Bound.AT_LEAST}
    assert "clients" in {name for name, table in tables(figures).items() if not table.is_known}


def test_figures_of_a_whole_census_are_exact() -> None:
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    figures.census.has_clients = figures.census.has_snapshots = True
    assert {figures.jobs_bound, figures.memory_bound} == {Bound.EXACT}
    assert all(table.is_known for table in tables(figures).values())
    figures.census.clients = Clients(reserves_lost=1)
    figures.census.errors["bios"] = "unreadable"
    assert [figures.jobs_bound, figures.memory_bound] == [Bound.AT_MOST, Bound.AT_LEAST]
    figures.census.report.slabs_invalid = 1
    assert [figures.jobs_bound, figures.memory_bound] == [Bound.ABOUT, Bound.AT_LEAST]


@pytest.mark.parametrize("where", ["unknown", "unreadable"])
def test_related_caches_that_are_unknown_are_a_gap(where: str) -> None:
    k = FakeKernel("6.10")
    variable = k.variable("exception_cache", "struct kmem_cache *", DIRECT_MAP)
    census, slab_map = Census(), SlabMap(Memory(k.prog))
    if where == "unreadable":
        k.drop(variable.address_)
    assert _roles(census, slab_map) == {}
    assert census.caches_unknown == 1
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    figures.census.caches_unknown = 1
    assert "slab caches of bios and exceptions" in {gap.what for gap in gaps(figures)}


def test_lost_pools_and_devices_differ_from_their_counts() -> None:
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    figures.census.workqueues = Workqueues(cpu_pools=4)
    figures.census.devices.named = 6
    differ = {check.source for check in checks(figures) if check.status is CheckStatus.DIFFER}
    assert differ == {"cpu_worker_pools", "names in the index of dm ioctl"}
