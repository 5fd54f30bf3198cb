# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of waiters of *synthetic* kernels, from the side of the lock and of the task's stack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.wait_tables import bit_waiters
from kcensus.kernel.locking.waiters import completion_waiters, queue_waiters, semaphore_waiters
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.objects.queued import Queued, Shape, queued, stack_words
from tests.unit.fakekernel import PAGE, FakeKernel
from tests.unit.kernel.waiting.making import SIZE, Sleepers, words

_FUNCTION = 0xFFFF_FFFF_8100_0000
_WAITERS = """
struct wait_queue_head 24 : 8 struct list_head head
struct wait_queue_entry 40
    0 unsigned int flags; 8 void * private; 16 void * func; 24 struct list_head entry
struct semaphore_waiter 32 : 0 struct list_head list; 16 struct task_struct * task
struct swait_queue_head 24 : 8 struct list_head task_list
struct swait_queue 24 : 0 struct task_struct * task; 8 struct list_head task_list
struct folio 64
struct wait_bit_key 24 : 0 void * flags; 8 int bit_nr
"""
_ERAS = {
    "list": """
struct semaphore 24 : 0 unsigned int count; 8 struct list_head wait_list
struct completion 32 : 8 struct wait_queue_head wait
""",
    "ring": """
struct semaphore 24 : 0 unsigned int count; 8 struct semaphore_waiter * first_waiter
struct completion 32 : 8 struct swait_queue_head wait
""",
}
_BEFORE_4_13 = """
struct __wait_queue_head 24 : 8 struct list_head task_list
struct __wait_queue 40
    0 unsigned int flags; 8 void * private; 16 void * func; 24 struct list_head task_list
struct completion 32 : 8 struct __wait_queue_head wait
"""
_OLD_BITS = """
struct wait_bit_queue 64 : 0 struct wait_bit_key key; 24 struct wait_queue_entry wait
"""
_BITS = """
struct wait_page_queue 56 : 0 struct folio * folio; 8 int bit_nr; 16 struct wait_queue_entry wait
struct wait_bit_queue_entry 64 : 0 struct wait_bit_key key; 24 struct wait_queue_entry wq_entry
"""
_BEACON = """
struct task_struct 64
struct beacon 32 : 8 struct list_head watchers
struct beacon_waiter 24 : 0 struct task_struct * task; 8 struct list_head node
"""


class Fake(Sleepers):
    def __init__(self, era: str, bits: str = _BITS) -> None:
        super().__init__(_WAITERS + _ERAS[era] + bits, "io", "io", "io")
        self.era = era

    def on_stack(self, task: int, type_: str, place: int = 512) -> int:
        """The address of a structure on a task's stack, which mentions the task."""
        address = self.stack[task] + SIZE - place
        member = {"struct wait_queue_entry": 8, "struct swait_queue": 0}.get(type_, 16)
        self.k.write_words(address + member, self.task[task])
        return address

    def queue(self, *tasks: int) -> int:
        head = int(self.k.alloc("struct wait_queue_head").address_) + 8
        self.ring(head, *(self.on_stack(task, "struct wait_queue_entry") + 24 for task in tasks))
        return head

    def semaphore(self, *tasks: int) -> int:
        semaphore = int(self.k.alloc("struct semaphore").address_)
        waiters = [self.on_stack(task, "struct semaphore_waiter") for task in tasks]
        if self.era == "list":
            self.ring(semaphore + 8, *waiters)
        elif waiters:
            self.ring(*waiters)
            self.k.write_words(semaphore + 8, waiters[0])
        return semaphore

    def queued(self, *rows: int) -> Queued:
        return queued(self.kernel, self.known, np.array(rows))


@pytest.fixture(params=_ERAS)
def fake(request: pytest.FixtureRequest) -> Fake:
    return Fake(request.param)


def test_semaphores(fake: Fake) -> None:
    semaphores = [fake.semaphore(*tasks) for tasks in ((2, 0), (), (1,))]
    found = semaphore_waiters(fake.kernel, words(*semaphores), fake.faults)
    assert found.lane.tolist() == [0, 0, 2]
    assert found.task.tolist() == [fake.task[2], fake.task[0], fake.task[1]]
    assert len(found.torn) == 0


def test_a_torn_semaphore_ends_and_is_noted(fake: Fake) -> None:
    semaphore, waiter = words(fake.semaphore(0, 1, 2)), fake.stack[1] + SIZE - 512
    # The second one leads back to itself.
    fake.k.write_words(waiter, waiter)
    found = semaphore_waiters(fake.kernel, semaphore, fake.faults)
    assert set(fake.task[:2]) <= set(found.task.tolist()) <= set(fake.task)
    assert found.torn.tolist() == [0]
    fake.k.drop(waiter)
    assert semaphore_waiters(fake.kernel, semaphore, fake.faults).torn.tolist() == [0]


def test_completions_and_queues(fake: Fake) -> None:
    completion = int(fake.k.alloc("struct completion").address_)
    type_, link = (
        ("struct wait_queue_entry", 24) if fake.era == "list" else ("struct swait_queue", 8)
    )
    waiter = fake.on_stack(1, type_)
    fake.ring(completion + 16, waiter + link)
    found = completion_waiters(fake.kernel, words(completion), fake.faults)
    assert found.task.tolist() == [fake.task[1]]
    # One that was never initialized is empty.
    queue = int(fake.k.alloc("struct wait_queue_head").address_)
    found = queue_waiters(fake.kernel, words(queue), fake.faults)
    assert (len(found.task), len(found.torn)) == (0, 0)


def test_completions_before_the_lists_were_renamed() -> None:
    k, task = FakeKernel(types=_BEFORE_4_13), 0xFFFF_8880_0100_0000
    completion, waiter = (
        int(k.alloc(f"struct {name}").address_) for name in ("completion", "__wait_queue")
    )
    k.write_words(waiter, 1, task, _FUNCTION, completion + 16, completion + 16)
    k.write_words(completion + 16, waiter + 24, waiter + 24)
    found = completion_waiters(Kernel(k.prog), words(completion), Faults())
    assert found.task.tolist() == [task]


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
    head = fake.queue(0, 2)
    # A mention of the task that is in no list, and one that is linked to itself only.
    fake.on_stack(1, "struct wait_queue_entry")
    lonely = fake.on_stack(1, "struct wait_queue_entry", place=1024)
    fake.ring(lonely + 24)
    found = fake.queued(0, 1, 2)
    assert found.lane.tolist() == [0, 2]
    assert found.head.tolist() == [head] * 2
    assert found.shape == [Shape.QUEUE] * 2
    assert found.torn == 0


def test_a_waiter_that_was_not_asked_for_is_passed(fake: Fake) -> None:
    head = fake.queue(0, 1, 2)
    found = fake.queued(0)
    assert found.head.tolist() == [head]
    # Behind a torn link, the head is unknown.
    fake.k.drop(fake.stack[1] + SIZE - 512)
    found = fake.queued(0)
    assert (found.head.tolist(), found.torn) == ([], 0)


@pytest.mark.parametrize("asked", [(0, 1, 2), (0, 1), (1,)])
def test_waiters_of_a_ring_without_a_head(fake: Fake, asked: tuple[int, ...]) -> None:
    """Tasks that were not asked for sleep interruptibly, or were just woken up."""
    fake.ring(*(fake.on_stack(task, "struct semaphore_waiter") for task in range(3)))
    found = fake.queued(*asked)
    assert found.lane.tolist() == list(range(len(asked)))
    assert (found.head.tolist(), found.torn) == ([0] * len(asked), 0)
    assert found.shape == [Shape.LOCK] * len(asked)


def test_a_waiter_on_the_heap_is_no_head(fake: Fake) -> None:
    queue = int(fake.k.alloc("struct wait_queue_head").address_)
    entries = [fake.on_stack(task, "struct wait_queue_entry") for task in (0, 1)]
    heap = int(fake.k.alloc("struct wait_queue_entry").address_)
    first, second = (entry + 24 for entry in entries)
    fake.ring(queue + 8, first, heap + 24, second)
    found = fake.queued(0, 1)
    assert found.lane.tolist() == [0, 1]
    assert (found.head.tolist(), found.torn) == ([0, 0], 0)


def test_waiters_of_a_struct_that_a_finder_names() -> None:
    scene = Sleepers(_BEACON, "beacon_wait", "beacon_wait", "msleep")
    head = int(scene.k.alloc("struct beacon").address_) + 8
    nodes = [stack + 1024 for stack in scene.stack[:2]]
    scene.ring(head, *nodes)
    for lane, node in enumerate(nodes):
        scene.k.write_words(node - 8, scene.task[lane])
    _, finder = scene.run(Finder)
    waiter, lanes = ("struct beacon_waiter", "task", "node"), np.array([2, 1, 0])
    assert [*finder._heads(lanes, *waiter)] == [(1, head), (0, head)]
    # Its neighbours do not lead back to a torn link.
    scene.k.write_words(nodes[0], 0xFFFF_C900_0000_0000)
    assert [*finder._heads(lanes, *waiter)] == []
    with pytest.raises(LookupError):
        [*finder._heads(lanes, "struct watcher", "task", "node")]


def test_older_waiters_for_bits() -> None:
    fake = Fake("list", _OLD_BITS)
    k, task = fake.k, fake.task[0]
    entries = [int(k.alloc("struct wait_bit_queue").address_) for _ in range(3)]
    # There is a table of pages, too, but no type of its waiters.
    for name in ("page_wait_table", "bit_wait_table"):
        table = k.variable(name, "struct wait_queue_head [4]")
    heads = [int(queue.address_) + 8 for queue in table]
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


def test_stacks_that_share_a_page() -> None:
    """Where pages are larger than stacks, as on POWER with pages of 64 KiB."""
    k, half = FakeKernel("6.10"), PAGE // 2
    low = int(k.alloc("char", PAGE, alone=True).address_)
    k.write_words(low, *range(1, PAGE // 8 + 1))
    stack = np.array([low, low + half, low], np.uint64)
    # The third stack pointer is of the other stack.
    sp = np.array([low + half - 16, low + half + 64, low + half], np.uint64)
    known: Any = SimpleNamespace(stack=stack, sp=sp)
    found = {}
    for lanes, start, values in stack_words(Memory(k.prog), known, np.arange(3), half, Faults()):
        for lane, first, own in zip(lanes.tolist(), start.tolist(), values.tolist(), strict=True):
            found[lane] = first - low, [word for word in own if word]
    assert found == {
        0: (0, [PAGE // 16 - 1, PAGE // 16]),
        1: (half, [*range(PAGE // 16 + 9, PAGE // 8 + 1)]),
    }
