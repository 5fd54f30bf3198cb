# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcopyd, snapshots and workqueues, one drgn object at a time.

Nothing here shares code with the package.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from drgn import Object, Program, cast
from drgn.helpers.linux.idr import idr_for_each
from drgn.helpers.linux.list import hlist_for_each_entry, list_empty, list_for_each_entry
from drgn.helpers.linux.slab import for_each_slab_cache, slab_cache_for_each_allocated_object

STATES = ("callback", "complete", "io", "pages")


@dataclass
class ClientTruth:
    """The jobs of a client."""

    nr_jobs: int
    jobs: set[int] = field(default_factory=set)
    """Masters in use."""
    split: int = 0
    sub_jobs: int = 0
    running: int = 0
    """Split masters with running sub-jobs."""
    listed: dict[str, int] = field(default_factory=dict)
    reserve: set[int] = field(default_factory=set)
    wq: int = 0

    @property
    def in_flight(self) -> int:
        """Jobs and sub-jobs on none of the lists, without masters of running sub-jobs."""
        return len(self.jobs) - self.running + self.sub_jobs - sum(self.listed.values())


def clients_of_targets(prog: Program) -> dict[int, tuple[str, str, str]]:
    """Return device name, number and target of each client in the tables of the lab's guests."""
    found = {}
    for _, entry in idr_for_each(prog["_minor_idr"].address_of_()):
        md = Object(prog, "struct mapped_device *", value=entry.value_())
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
    found: dict[int, ClientTruth] = {}
    reserve: set[int] = set()

    def add(address: int) -> ClientTruth:
        if address in found:
            return found[address]
        kc = Object(prog, "struct dm_kcopyd_client *", value=address)
        truth = found[address] = ClientTruth(int(kc.nr_jobs.counter), wq=int(kc.kcopyd_wq))
        for name in STATES:
            head = kc.member_(f"{name}_jobs").address_of_()
            truth.listed[name] = sum(
                1 for _ in list_for_each_entry("struct kcopyd_job", head, "list")
            )
        for i in range(int(kc.job_pool.curr_nr)):
            truth.reserve.add(int(kc.job_pool.elements[i]))
        reserve.update(truth.reserve)
        return truth

    for address in sorted(addresses):
        add(address)
    for job in slab_cache_for_each_allocated_object(prog["_job_cache"], "struct kcopyd_job"):
        if int(job) in reserve:
            continue
        truth = add(int(job.kc))
        truth.jobs.add(int(job))
        if int(job.source.count) > int(job.kc.sub_job_size):
            truth.split += 1
            truth.sub_jobs += int(job.sub_jobs.counter)
            truth.running += int(job.sub_jobs.counter) > 0
    return found


def exceptions(table: Object) -> int:
    """Return the number of exceptions in a hash table."""
    count = 0
    prog = table.prog_
    for i in range(int(table.hash_mask) + 1):
        bucket = table.table[i]
        if hasattr(bucket, "head"):
            count += sum(
                1 for _ in hlist_for_each_entry("struct dm_exception", bucket.head, "hash_list")
            )
            continue
        node = int(bucket.first) & ~1
        while node:
            count += 1
            node = int(Object(prog, "struct hlist_bl_node *", value=node).next)
    return count


def waiting(snapshot: Object) -> set[int]:
    """Return the PIDs of the tasks that wait for a snapshot."""
    entries = list_for_each_entry(
        "struct wait_queue_entry", snapshot.in_progress_wait.head.address_of_(), "entry"
    )
    return {int(cast("struct task_struct *", entry.private).pid) for entry in entries}


def work_items(prog: Program) -> Counter[tuple[int, str, int, int]]:
    """Count work items by pool id, state, address of the function, and PID (0 unless it runs)."""
    found: Counter[tuple[int, str, int, int]] = Counter()
    for _, entry in idr_for_each(prog["worker_pool_idr"].address_of_()):
        pool = Object(prog, "struct worker_pool *", value=entry.value_())
        for work in list_for_each_entry("struct work_struct", pool.worklist.address_of_(), "entry"):
            found[int(pool.id), "pending", int(work.func), 0] += 1
        for worker in list_for_each_entry("struct worker", pool.workers.address_of_(), "node"):
            if worker.current_work:
                key = int(pool.id), "in-flight", int(worker.current_func), int(worker.task.pid)
                found[key] += 1
                for work in list_for_each_entry(
                    "struct work_struct", worker.scheduled.address_of_(), "entry"
                ):
                    found[int(pool.id), "scheduled", int(work.func), int(worker.task.pid)] += 1
    for wq in list_for_each_entry(
        "struct workqueue_struct", prog["workqueues"].address_of_(), "list"
    ):
        for pwq in list_for_each_entry("struct pool_workqueue", wq.pwqs.address_of_(), "pwqs_node"):
            if not list_empty(pwq.inactive_works.address_of_()):
                for work in list_for_each_entry(
                    "struct work_struct", pwq.inactive_works.address_of_(), "entry"
                ):
                    found[int(pwq.pool.id), "inactive", int(work.func), 0] += 1
    return found


def busy_workers(prog: Program) -> list[Object]:
    """Return all workers that have an item."""
    return [
        worker
        for _, entry in idr_for_each(prog["worker_pool_idr"].address_of_())
        for worker in list_for_each_entry(
            "struct worker",
            Object(prog, "struct worker_pool *", value=entry.value_()).workers.address_of_(),
            "node",
        )
        if worker.current_work
    ]


def idle_clients(prog: Program) -> set[int]:
    """Return the addresses of clients, found by their workqueues, each named kcopyd.

    Every kmalloc() object of the client's size is read. A sheaf of kmalloc-512 may hold the address
    of a workqueue, too, but not MIN_JOBS.
    """
    wqs = {
        int(wq)
        for wq in list_for_each_entry(
            "struct workqueue_struct", prog["workqueues"].address_of_(), "list"
        )
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
