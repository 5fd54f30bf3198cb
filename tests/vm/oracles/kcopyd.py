# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcopyd, snapshots and workqueues, one drgn object at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from drgn import Object, Program, cast
from drgn.helpers.linux.idr import idr_for_each
from drgn.helpers.linux.list import hlist_for_each_entry
from drgn.helpers.linux.slab import for_each_slab_cache, slab_cache_for_each_allocated_object

from tests.vm.oracles import entries

STATES = ("callback", "complete", "io", "pages")


@dataclass
class ClientTruth:
    nr_jobs: int
    jobs: set[int] = field(default_factory=set)
    """Masters in use."""
    split: int = 0
    sub_jobs: int = 0
    running: int = 0
    """Split masters with running sub-jobs."""
    listed: dict[str, int] = field(default_factory=dict)
    reserve: set[int] = field(default_factory=set)

    @property
    def in_flight(self) -> int:
        """Jobs and sub-jobs on none of the lists, without masters of running sub-jobs."""
        return len(self.jobs) - self.running + self.sub_jobs - sum(self.listed.values())


def clients_of_targets(prog: Program) -> dict[int, tuple[str, str, str]]:
    """Return device name, number and target of each client in the tables of the lab's guests."""
    found = {}
    for _, entry in idr_for_each(prog["_minor_idr"].address_of_()):
        md = cast("struct mapped_device *", entry)
        cell = cast("struct hash_cell *", md.interface_ptr)
        name = cell.name.string_().decode()
        table = cast("struct dm_table *", md.map)
        for i in range(int(table.num_targets)):
            target = table.targets[i]
            kind = target.type.name.string_().decode()
            if kind == "snapshot":
                kc = cast("struct dm_snapshot *", target.private).kcopyd_client
            elif kind == "mirror":
                kc = cast("struct mirror_set *", target.private).kcopyd_client
            elif kind == "thin-pool":
                kc = cast("struct pool_c *", target.private).pool.copier
            else:
                continue
            found[int(kc)] = name, md.name.string_().decode(), kind
    return found


def clients(prog: Program, addresses: set[int]) -> dict[int, ClientTruth]:
    """Return the clients at some addresses, and all others that have a job."""
    found = {address: _client(prog, address) for address in sorted(addresses)}
    for job in slab_cache_for_each_allocated_object(prog["_job_cache"], "struct kcopyd_job"):
        if any(int(job) in client.reserve for client in found.values()):
            continue
        if int(job.kc) not in found:
            found[int(job.kc)] = _client(prog, int(job.kc))
        truth = found[int(job.kc)]
        truth.jobs.add(int(job))
        if int(job.source.count) > int(job.kc.sub_job_size):
            truth.split += 1
            truth.sub_jobs += int(job.sub_jobs.counter)
            truth.running += int(job.sub_jobs.counter) > 0
    return found


def _client(prog: Program, address: int) -> ClientTruth:
    kc = Object(prog, "struct dm_kcopyd_client *", value=address)
    return ClientTruth(
        int(kc.nr_jobs.counter),
        listed={
            name: len([*entries(kc.member_(f"{name}_jobs"), "struct kcopyd_job", "list")])
            for name in STATES
        },
        reserve={int(kc.job_pool.elements[i]) for i in range(int(kc.job_pool.curr_nr))},
    )


def exceptions(table: Object) -> int:
    count = 0
    prog = table.prog_
    for i in range(int(table.hash_mask) + 1):
        bucket = table.table[i]
        if hasattr(bucket, "head"):
            count += len([*hlist_for_each_entry("struct dm_exception", bucket.head, "hash_list")])
            continue
        node = int(bucket.first) & ~1
        while node:
            count += 1
            node = int(Object(prog, "struct hlist_bl_node *", value=node).next)
    return count


def waiting(snapshot: Object) -> set[int]:
    waiters = entries(snapshot.in_progress_wait.head, "struct wait_queue_entry", "entry")
    return {int(cast("struct task_struct *", waiter.private).pid) for waiter in waiters}


def work_items(prog: Program) -> Counter[tuple[int, str, int]]:
    """Count work items by pool id, state, and address of the function."""
    found: Counter[tuple[int, str, int]] = Counter()

    def count(pool: Object, state: str, head: Object) -> None:
        for work in entries(head, "struct work_struct", "entry"):
            found[int(pool.id), state, int(work.func)] += 1

    for _, entry in idr_for_each(prog["worker_pool_idr"].address_of_()):
        pool = cast("struct worker_pool *", entry)
        count(pool, "pending", pool.worklist)
    for worker in busy_workers(prog):
        found[int(worker.pool.id), "in-flight", int(worker.current_func)] += 1
        count(worker.pool, "scheduled", worker.scheduled)
    for wq in entries(prog["workqueues"], "struct workqueue_struct", "list"):
        for pwq in entries(wq.pwqs, "struct pool_workqueue", "pwqs_node"):
            count(pwq.pool, "inactive", pwq.inactive_works)
    return found


def busy_workers(prog: Program) -> list[Object]:
    return [
        worker
        for _, entry in idr_for_each(prog["worker_pool_idr"].address_of_())
        for worker in entries(cast("struct worker_pool *", entry).workers, "struct worker", "node")
        if worker.current_work
    ]


def idle_clients(prog: Program) -> set[int]:
    """Return the addresses of clients, found by their workqueues, each named kcopyd.

    Every kmalloc() object of the client's size is read. A sheaf of kmalloc-512 may hold the address
    of a workqueue, too, but not MIN_JOBS.
    """
    wqs = {
        int(wq)
        for wq in entries(prog["workqueues"], "struct workqueue_struct", "list")
        if wq.name.string_() == b"kcopyd"
    }
    found = set()
    for cache in for_each_slab_cache(prog):
        name = cache.name.string_()
        if name.startswith(b"kmalloc-") and int(cache.object_size) == 256:
            for kc in slab_cache_for_each_allocated_object(cache, "struct dm_kcopyd_client"):
                if int(kc.kcopyd_wq) in wqs and int(kc.job_pool.min_nr) == 8:
                    found.add(int(kc))
    assert len(found) == len(wqs)
    return found
