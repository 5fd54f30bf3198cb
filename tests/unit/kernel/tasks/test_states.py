# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which tasks of *synthetic* kernels sleep."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.tasks import PROXY_WAKING, Tasks, tasks
from tests.unit.fakekernel import DIRECT_MAP, FakeKernel

_TYPES = """
struct mutex 8 : 0 unsigned long owner
struct sched_entity 16 : 0 unsigned long exec_start; 8 unsigned char sched_delayed
struct signal_struct 16 : 0 struct list_head thread_head
struct task_struct 160
    0 struct list_head tasks; 16 struct list_head thread_node; 32 struct signal_struct * signal
    40 unsigned int __state; 44 unsigned int flags; 48 int pid; 52 int on_cpu; 56 char [16] comm
    72 void * stack; 80 struct sched_entity se; 96 int on_rq; 104 struct mutex * blocked_on
    112 int exit_state
"""
_MUTEX = DIRECT_MAP + 0x5000_0000
D, S = 2, 1
Words = dict[str, int]
"""Members of the task that make up its state."""


def read(*wanted: Words) -> Tasks:
    k = FakeKernel("6.10", _TYPES)
    head = k.variable("init_task", "struct task_struct")
    k.list_init(head.tasks)
    for number, words in enumerate(wanted):
        task = k.alloc("struct task_struct", pid=100 + number)
        k.set(task.se.sched_delayed, words.pop("sched_delayed", 0))
        k.fill(task, **words)
        k.list_add_tail(task.tasks, head.tasks)
    found = tasks(Kernel(k.prog))
    rows = found.pid.tolist()
    assert rows[-len(wanted) :] == [100 + number for number in range(len(wanted))]
    return found


def words(state: int, on_rq: int = 0, **more: int) -> Words:
    return {"__state": state, "on_rq": on_rq, **more}


@pytest.mark.parametrize("state", [D, S])
def test_tasks_on_a_run_queue_are_not_asleep_yet(state: int) -> None:
    found = read(words(state), words(state, 1), words(state, 2))
    assert found.is_asleep[-3:].tolist() == [True, False, False]


def test_tasks_that_sleep_on_a_run_queue() -> None:
    delayed, proxied = words(D, 1, sched_delayed=1), words(D, 1, blocked_on=_MUTEX)
    found = read(delayed, proxied, words(D, 1, blocked_on=int(PROXY_WAKING)))
    assert found.is_asleep[-3:].tolist() == [True, True, False]
    assert found.is_queued[-3:].all()
    assert found.blocked_on[-3:].tolist() == [0, _MUTEX, 0]


def test_frozen_tasks_are_not_blocked() -> None:
    kthread = 0x0020_0000
    # A container's, kcompactd's flag of new kernels, and TASK_FROZEN.
    found = read(words(D, flags=0x1_0000), words(D, flags=0x1_0000 | kthread), words(0x8000))
    assert found.is_frozen[-3:].tolist() == [True, False, True]
    assert found.is_blocked[-3:].tolist() == [False, True, False]
    assert found.is_asleep[-3:].tolist() == [False, True, False]


def test_tasks_that_sleep_for_a_spinlock_of_preempt_rt() -> None:
    assert read(words(0x1000)).is_blocked[-1:].tolist() == [True]


def test_where_run_queues_are_unknown_the_state_counts() -> None:
    none = np.zeros(2, np.uint64)
    number, flags = np.zeros(2, np.int64), np.zeros(2, np.bool_)
    state = np.array([D, 0], np.uint64)
    columns = (flags, flags, flags, number, number, number, none, none, none, none, none)
    found = Tasks(none, number, ["a", "b"], state, *columns)
    assert found.is_blocked.tolist() == [True, False]
