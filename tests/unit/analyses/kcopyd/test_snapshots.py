# SPDX-License-Identifier: LGPL-2.1-or-later
"""Snapshots of *synthetic* kernels, and their limits of copies."""

from __future__ import annotations

import pytest
from drgn import Object

from kcensus.analyses.kcopyd.checks import checks
from kcensus.analyses.kcopyd.tables import tables
from kcensus.engine.memory import Memory
from kcensus.kernel.dm import snapshots as dm_snapshots
from kcensus.kernel.dm.devices import DmTarget, MappedDevice
from kcensus.kernel.dm.snapshots import Limit, Snapshot, Snapshots
from kcensus.results import CheckStatus
from tests.unit.analyses.kcopyd.making import figures_of
from tests.unit.fakekernel import FakeKernel, add_types

SNAPSHOT_TYPES = """
struct dm_kcopyd_client 8
struct dm_dev 24 : 8 char [16] name
struct dm_exception_table 16 : 0 unsigned int hash_mask; 8 struct list_head * table
struct dm_exception 32 : 0 struct list_head hash_list
struct dm_exception_store 32
    0 struct dm_exception_store_type * type; 8 unsigned int chunk_size
    12 unsigned int chunk_mask; 16 unsigned int chunk_shift; 24 void * context
struct origin 40 : 8 struct list_head hash_list; 24 struct list_head snapshots
struct dm_exception_store_type 8 : 0 char * name
struct transient_c 8 : 0 unsigned long next_free
struct semaphore 24 : 0 unsigned int count; 8 struct list_head wait_list
struct semaphore_waiter 24 : 0 struct list_head list; 16 struct task_struct * task
struct task_struct 64 : 16 struct list_head tasks; 32 int pid; 40 char [16] comm
struct dm_snapshot 128
    0 struct dm_dev * origin; 8 struct dm_dev * cow; 16 int valid; 24 int active
    28 atomic_t pending_exceptions_count; 32 struct dm_exception_table pending
    48 struct dm_exception_table complete; 64 struct dm_exception_store * store
    72 struct dm_kcopyd_client * kcopyd_client; 104 struct list_head list
"""


def snapshot_kernel(member: str) -> tuple[FakeKernel, Object]:
    """A kernel with one snapshot, whose limit is in ``member``."""
    k = FakeKernel("4.18")
    add_types(k.prog, f"{SNAPSHOT_TYPES}    {member}", "snapshot")
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
    # Without a limit.
    k, snapshot = snapshot_kernel("")
    assert dm_snapshots.limit_mechanism(k.prog) is Limit.NONE
    assert dm_snapshots.cow_threshold(k.prog) is None
    found, one = read(k, snapshot)
    assert found.damaged == 0
    assert (one.in_flight, one.available, one.waiters) == (None, None, ())


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
