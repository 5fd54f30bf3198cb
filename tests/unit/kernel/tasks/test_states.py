# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which tasks of *synthetic* kernels sleep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.tasks import PROXY_WAKING, Tasks, tasks
from tests.unit.fakekernel import DIRECT_MAP, FakeKernel, add_types

_TYPES = {
    "struct mutex": (8, "0 unsigned long owner"),
    "struct sched_entity": (16, "0 unsigned long exec_start\n8 unsigned char sched_delayed"),
    "struct signal_struct": (16, "0 struct list_head thread_head"),
    "struct task_struct": (
        160,
        "0 struct list_head tasks\n16 struct list_head thread_node"
        "\n32 struct signal_struct * signal\n40 unsigned int __state\n44 unsigned int flags"
        "\n48 int pid\n52 int on_cpu"
        "\n56 char [16] comm\n72 void * stack\n80 struct sched_entity se\n96 int on_rq"
        "\n104 struct mutex * blocked_on\n112 int exit_state",
    ),
}
_MUTEX = DIRECT_MAP + 0x5000_0000
D, S = 2, 1


@dataclass
class Words:
    """What makes up the state of a task."""

    state: int
    on_rq: int = 0
    sched_delayed: int = 0
    blocked_on: int = 0
    flags: int = 0


def read(*wanted: Words) -> Tasks:
    """Return tasks with these words, in their order."""
    k = FakeKernel("6.10")
    add_types(k.prog, _TYPES, "tasks")
    head = k.variable("init_task", "struct task_struct")
    k.list_init(head.tasks)
    for number, words in enumerate(wanted):
        task = k.alloc("struct task_struct")
        k.list_add_tail(task.tasks, head.tasks)
        k.set(task.pid, 100 + number)
        for name, value in (("on_rq", words.on_rq), ("__state", words.state)):
            k.set(task.member_(name), value)
        k.set(task.flags, words.flags)
        k.set(task.se.sched_delayed, words.sched_delayed)
        k.set(task.blocked_on, words.blocked_on)
    found = tasks(Kernel(k.prog))
    rows = found.pid.tolist()
    assert rows[-len(wanted) :] == [100 + number for number in range(len(wanted))]
    return found


def asleep(*wanted: Words) -> list[bool]:
    found = read(*wanted)
    result: list[bool] = found.is_asleep[-len(wanted) :].tolist()
    return result


@pytest.mark.parametrize("state", [D, S])
def test_tasks_on_a_run_queue_are_not_asleep_yet(state: int) -> None:
    assert asleep(Words(state), Words(state, on_rq=1), Words(state, on_rq=2)) == [
        True,
        False,
        False,
    ]


def test_tasks_that_sleep_on_a_run_queue() -> None:
    delayed, proxied = Words(D, 1, sched_delayed=1), Words(D, 1, blocked_on=_MUTEX)
    waking = Words(D, 1, blocked_on=int(PROXY_WAKING))
    assert asleep(delayed, proxied, waking) == [True, True, False]
    found = read(delayed, proxied, waking)
    assert found.is_queued[-3:].all()
    assert found.blocked_on[-3:].tolist() == [0, _MUTEX, 0]


def test_frozen_tasks_are_not_blocked() -> None:
    kthread = 0x0020_0000
    # A container's, kcompactd's flag of new kernels, and TASK_FROZEN.
    found = read(Words(D, flags=0x1_0000), Words(D, flags=0x1_0000 | kthread), Words(0x8000))
    assert found.is_frozen[-3:].tolist() == [True, False, True]
    assert found.is_blocked[-3:].tolist() == [False, True, False]
    assert found.is_asleep[-3:].tolist() == [False, True, False]


def test_tasks_that_sleep_for_a_spinlock_of_preempt_rt() -> None:
    assert read(Words(0x1000)).is_blocked[-1:].tolist() == [True]


def test_where_run_queues_are_unknown_the_state_counts() -> None:
    none = np.zeros(2, np.uint64)
    number, flags = np.zeros(2, np.int64), np.zeros(2, np.bool_)
    state = np.array([D, 0], np.uint64)
    columns = (flags, flags, flags, number, number, number, none, none, none, none, none)
    found = Tasks(none, number, ["a", "b"], state, *columns)
    assert found.is_blocked.tolist() == [True, False]
