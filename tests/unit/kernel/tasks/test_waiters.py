# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of waiters of *synthetic* kernels, from the side of the lock and of the task's stack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.wait_tables import bit_waiters
from kcensus.kernel.locking.waiters import completion_waiters, queue_waiters, semaphore_waiters
from kcensus.kernel.tasks.queued import Queued, Shape, queued
from kcensus.kernel.tasks.tasks import Tasks
from tests.unit.fakekernel import FakeKernel, add_types

_SIZE = 16384
_COMMON = {
    "struct wait_queue_head": (24, "8 struct list_head head"),
    "struct wait_queue_entry": (
        40,
        "0 unsigned int flags\n8 void * private\n16 void * func\n24 struct list_head entry",
    ),
    "struct semaphore_waiter": (32, "0 struct list_head list\n16 struct task_struct * task"),
    "struct swait_queue_head": (24, "8 struct list_head task_list"),
    "struct swait_queue": (24, "0 struct task_struct * task\n8 struct list_head task_list"),
    "struct wait_page_queue": (
        56,
        "0 struct folio * folio\n8 int bit_nr\n16 struct wait_queue_entry wait",
    ),
    "struct folio": (64, ""),
    "struct wait_bit_key": (24, "0 void * flags\n8 int bit_nr"),
    "struct wait_bit_queue_entry": (
        64,
        "0 struct wait_bit_key key\n24 struct wait_queue_entry wq_entry",
    ),
}
_ERAS = {
    "list": {
        "struct semaphore": (24, "0 unsigned int count\n8 struct list_head wait_list"),
        "struct completion": (32, "8 struct wait_queue_head wait"),
    },
    "ring": {
        "struct semaphore": (24, "0 unsigned int count\n8 struct semaphore_waiter * first_waiter"),
        "struct completion": (32, "8 struct swait_queue_head wait"),
    },
}


@dataclass
class Fake:
    """Three tasks with a stack each, which can be linked to lists."""

    k: FakeKernel
    kernel: Kernel
    task: list[int]
    stack: list[int]
    faults: Faults

    def on_stack(self, task: int, type_: str, place: int = 512) -> int:
        """The address of a structure on a task's stack, which mentions the task."""
        address = self.stack[task] + _SIZE - place
        member = {"struct wait_queue_entry": 8, "struct swait_queue": 0}.get(type_, 16)
        self.k.write_words(address + member, self.task[task])
        return address

    def ring(self, *links: int) -> None:
        """Link nodes to a ring in their order."""
        for at, link in enumerate(links):
            after, before = links[(at + 1) % len(links)], links[at - 1]
            self.k.write_words(link, after, before)

    def queued(self, *rows: int) -> Queued:
        """What the stacks of some tasks show."""
        count = len(self.task)
        none, zero, flags = (
            np.full(count, -1),
            np.zeros(count, np.uint64),
            np.zeros(count, np.bool_),
        )
        stack = np.array(self.stack, np.uint64)
        known = Tasks(
            address=np.array(self.task, np.uint64),
            pid=none,
            comm=["io"] * count,
            state=zero,
            is_on_cpu=flags,
            is_kthread=flags,
            has_exited=flags,
            cpu=none,
            off_cpu_ns=none,
            arrived_ns=none,
            stack=stack,
            sp=stack + np.uint64(_SIZE - 2048),
            blocker=zero,
            blocked_on=zero,
            pi_blocked_on=zero,
        )
        return queued(self.kernel, known, np.array(rows))


@pytest.fixture(params=_ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fake(era: str) -> Fake:
    k = FakeKernel("6.10")
    add_types(k.prog, {**_COMMON, **_ERAS[era]}, "waiters")
    k.constant("THREAD_SIZE", _SIZE)
    tasks = [int(k.alloc("struct task_struct").address_) for _ in range(3)]
    stacks = [int(k.alloc(f"char [{_SIZE}]", alone=True).address_) for _ in range(3)]
    return Fake(k, Kernel(k.prog), tasks, stacks, Faults())


def words(*values: int) -> Words:
    return np.array(values, np.uint64)


def test_semaphores(fake: Fake, era: str) -> None:
    semaphores = [int(fake.k.alloc("struct semaphore").address_) for _ in range(3)]
    waiters = [fake.on_stack(task, "struct semaphore_waiter") for task in range(3)]
    if era == "list":
        for semaphore in semaphores:
            fake.ring(semaphore + 8)
        fake.ring(semaphores[0] + 8, waiters[2], waiters[0])
        fake.ring(semaphores[2] + 8, waiters[1])
    else:
        fake.ring(waiters[2], waiters[0])
        fake.ring(waiters[1])
        fake.k.write_words(semaphores[0] + 8, waiters[2])
        fake.k.write_words(semaphores[2] + 8, waiters[1])
    found = semaphore_waiters(fake.kernel, words(*semaphores), fake.faults)
    assert found.lane.tolist() == [0, 0, 2]
    assert found.task.tolist() == [fake.task[2], fake.task[0], fake.task[1]]
    assert len(found.torn) == 0


def test_a_torn_semaphore_ends_and_is_noted(fake: Fake, era: str) -> None:
    semaphore = int(fake.k.alloc("struct semaphore").address_)
    waiters = [fake.on_stack(task, "struct semaphore_waiter") for task in range(3)]
    if era == "list":
        fake.ring(semaphore + 8, *waiters)
    else:
        fake.ring(*waiters)
        fake.k.write_words(semaphore + 8, waiters[0])
    # The second one leads back to itself.
    fake.k.write_words(waiters[1], waiters[1])
    found = semaphore_waiters(fake.kernel, words(semaphore), fake.faults)
    assert set(fake.task[:2]) <= set(found.task.tolist()) <= set(fake.task)
    assert found.torn.tolist() == [0]
    fake.k.drop(fake.stack[1] + _SIZE - 512)
    found = semaphore_waiters(fake.kernel, words(semaphore), fake.faults)
    assert found.torn.tolist() == [0]


def test_completions(fake: Fake, era: str) -> None:
    completion = int(fake.k.alloc("struct completion").address_)
    type_, link = ("struct wait_queue_entry", 24) if era == "list" else ("struct swait_queue", 8)
    waiter = fake.on_stack(1, type_)
    fake.ring(completion + 16, waiter + link)
    found = completion_waiters(fake.kernel, words(completion), fake.faults)
    assert found.task.tolist() == [fake.task[1]]


def test_a_queue_that_was_never_initialized_is_empty(fake: Fake) -> None:
    queue = int(fake.k.alloc("struct wait_queue_head").address_)
    found = queue_waiters(fake.kernel, words(queue), fake.faults)
    assert (len(found.task), len(found.torn)) == (0, 0)


def test_the_tables_of_pages_and_bits(fake: Fake) -> None:
    k, head = fake.k, 24
    tables = {
        name: k.variable(name, "struct wait_queue_head [4]")
        for name in ("folio_wait_table", "bit_wait_table")
    }
    for table in tables.values():
        for queue in table:
            fake.ring(int(queue.address_) + 8)
    page, word = 0xFFFF_EA00_0000_0040, 0xFFFF_8880_0001_0000
    for task, (table, place, address, bit) in enumerate(
        [("folio_wait_table", 16, page, 15), ("bit_wait_table", 24, word, 3)]
    ):
        entry = fake.on_stack(task, "struct wait_queue_entry")
        k.write_words(entry - place, address, bit)
        fake.ring(int(tables[table][2].address_) + 8, entry + head)
    found = bit_waiters(fake.kernel)
    assert found.task.tolist() == fake.task[:2]
    assert found.object.tolist() == [page, word]
    assert found.is_page.tolist() == [True, False]
    assert found.table == ["folio_wait_table", "bit_wait_table"]
    assert found.torn == 0


def test_a_stack_leads_to_the_head_of_the_list(fake: Fake) -> None:
    queue = int(fake.k.alloc("struct wait_queue_head").address_)
    entries = [fake.on_stack(task, "struct wait_queue_entry") for task in (0, 2)]
    fake.ring(queue + 8, *(entry + 24 for entry in entries))
    # A mention of the task that is in no list, and one that is linked to itself only.
    fake.on_stack(1, "struct wait_queue_entry")
    lonely = fake.on_stack(1, "struct wait_queue_entry", place=1024)
    fake.ring(lonely + 24)
    found = fake.queued(0, 1, 2)
    assert found.lane.tolist() == [0, 2]
    assert found.head.tolist() == [queue + 8] * 2
    assert found.shape == [Shape.QUEUE] * 2
    assert found.torn == 0


def test_a_waiter_that_was_not_asked_for_is_passed(fake: Fake) -> None:
    queue = int(fake.k.alloc("struct wait_queue_head").address_)
    entries = [fake.on_stack(task, "struct wait_queue_entry") for task in (0, 1, 2)]
    fake.ring(queue + 8, *(entry + 24 for entry in entries))
    found = fake.queued(0)
    assert found.head.tolist() == [queue + 8]
    # Behind a torn link, the head is unknown.
    fake.k.drop(fake.stack[1] + _SIZE - 512)
    found = fake.queued(0)
    assert (found.head.tolist(), found.torn) == ([], 0)


def test_waiters_of_a_ring_without_a_head(fake: Fake) -> None:
    waiters = [fake.on_stack(task, "struct semaphore_waiter") for task in range(3)]
    fake.ring(*waiters)
    found = fake.queued(0, 1, 2)
    assert found.lane.tolist() == [0, 1, 2]
    assert found.head.tolist() == [0, 0, 0]
    assert found.shape == [Shape.LOCK] * 3
    assert found.torn == 0


def test_a_ring_of_which_a_part_was_asked_for(fake: Fake) -> None:
    waiters = [fake.on_stack(task, "struct semaphore_waiter") for task in range(3)]
    fake.ring(*waiters)
    # The third one sleeps interruptibly, or was just woken up.
    for asked in ((0, 1), (1,)):
        found = fake.queued(*asked)
        assert found.lane.tolist() == list(range(len(asked)))
        assert found.head.tolist() == [0] * len(asked)
        assert found.torn == 0


def test_a_waiter_on_the_heap_is_no_head(fake: Fake) -> None:
    queue = int(fake.k.alloc("struct wait_queue_head").address_)
    entries = [fake.on_stack(task, "struct wait_queue_entry") for task in (0, 1)]
    heap = int(fake.k.alloc("struct wait_queue_entry").address_)
    first, second = (entry + 24 for entry in entries)
    fake.ring(queue + 8, first, heap + 24, second)
    found = fake.queued(0, 1)
    assert found.lane.tolist() == [0, 1]
    assert (found.head.tolist(), found.torn) == ([0, 0], 0)


def test_older_waiters_for_bits() -> None:
    k = FakeKernel("6.10")
    types = {**_COMMON, **_ERAS["list"]}
    del types["struct wait_bit_queue_entry"]
    del types["struct wait_page_queue"]
    members = "0 struct wait_bit_key key\n24 struct wait_queue_entry wait"
    add_types(k.prog, {**types, "struct wait_bit_queue": (64, members)}, "waiters")
    task = int(k.alloc("struct task_struct").address_)
    entries = [int(k.alloc("struct wait_bit_queue").address_) for _ in range(3)]
    # There is a table of pages, too, but no type of its waiters.
    for name in ("page_wait_table", "bit_wait_table"):
        table = k.variable(name, "struct wait_queue_head [4]")
    heads = [int(queue.address_) + 8 for queue in table]
    fake = Fake(k, Kernel(k.prog), [task], [], Faults())
    fake.ring(heads[2], *(entry + 48 for entry in entries))
    k.write_words(entries[0], 0xFFFF_8880_0001_0000, 3)
    k.write_words(entries[0] + 32, task)
    found = bit_waiters(fake.kernel)
    assert (found.task.tolist(), found.table) == ([task], ["bit_wait_table"])
    # The other two have no object: one queue.
    assert found.torn == 1
    assert found.missing == ["page_wait_table"]


def test_a_completion_with_the_task_behind_it_is_no_lock(fake: Fake) -> None:
    waiter = fake.on_stack(0, "struct swait_queue") + 8
    head = fake.on_stack(0, "struct semaphore_waiter", place=1024)
    fake.ring(head, waiter)
    found = fake.queued(0)
    assert (found.node.tolist(), found.head.tolist()) == ([waiter], [head])
    assert found.shape == [Shape.SIMPLE]
