# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runnable tasks without a CPU, in *synthetic* kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.run_queues import RunQueues, run_queues
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.waiting.finders.cpus.occupied import CPU, RUNS, STARVED, THROTTLED, Occupied
from kcensus.kernel.waiting.graph import TASK
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64 : 8 int prio; 16 struct sched_info sched_info
struct sched_info 32 : 16 unsigned long long last_queued
"""
_RQ = 0xFFFF_8882_0000_0000
_SECOND = 10**9


class Runnable(Sleepers):
    """Task 0 is runnable on CPU 0, which runs task 1.

    :param off: seconds since task 0 is runnable, of 100; 0 if unknown
    :param on: seconds since task 1 got it
    :param third: whether task 2 is runnable there, too
    """

    def __init__(
        self,
        off: float,
        on: float,
        *priority: int,
        is_idle: bool = False,
        is_throttled: bool = False,
        third: bool = False,
    ) -> None:
        super().__init__(_TYPES, "copy", "loop", *(["above"] * third))
        for task, value in zip(self.task, priority, strict=True):
            self.k.write_words(task + 8, value)
        self.k.write_words(self.task[0] + 32, int((100 - off) * _SECOND) if off else 0)
        seconds = np.array([off, on, 0.5])[: 2 + third] * _SECOND
        self.known = replace(
            self.known,
            state=words(0, 0, 0)[: 2 + third],
            cpu=np.zeros(2 + third, np.int64),
            is_queued=np.ones(2 + third, np.bool_),
            is_on_cpu=np.arange(2 + third) == 1,
            off_cpu_ns=np.array([50 * _SECOND, 0, 0])[: 2 + third],
            now_ns=100 * _SECOND,
            arrived_ns=seconds.astype(np.int64),
        )
        self.remember(tasks, self.known)
        current, idle = words(self.task[1]), np.array([is_idle])
        queues = words(_RQ)
        online, throttled = np.array([True]), np.array([is_throttled])
        known = RunQueues({0: 0}, queues, current, queues, idle, online, Faults(), throttled)
        self.remember(run_queues, known)


@pytest.mark.parametrize(
    ("off", "on", "priority"),
    [
        (5.0, 6.0, (120, 120)),  # it has not left the CPU since
        (5.0, 0.1, (120, 49)),  # a real-time task of a higher priority
    ],
)
def test_a_task_that_is_starved(off: float, on: float, priority: tuple[int, int]) -> None:
    scene = Runnable(off, on, *priority)
    graph, finder = scene.run(Occupied)
    sure = int(Strength.DERIVED)
    assert links(graph) == {
        (TASK, scene.task[0], STARVED, _RQ, sure),
        (CPU, _RQ, RUNS, scene.task[1], sure),
    }
    assert finder.names[CPU, _RQ] == "0"


@pytest.mark.parametrize(
    ("off", "on", "priority", "is_idle"),
    [
        (0.5, 6.0, (120, 120), False),  # a moment only
        (0.5, 0.1, (120, 49), False),  # it was just woken up
        (0, 60.0, (120, 49), False),
        (5.0, 0.1, (120, 120), False),  # they take turns with others
        (5.0, 0.1, (49, 49), False),
        (5.0, 6.0, (120, 120), True),
    ],
)
def test_a_task_that_waits_for_its_turn(
    off: float, on: float, priority: tuple[int, int], is_idle: bool
) -> None:
    graph, _ = Runnable(off, on, *priority, is_idle=is_idle).run(Occupied)
    assert not len(graph.source)


@pytest.mark.parametrize(
    ("current", "is_idle", "is_throttled", "evidence"),
    [
        (120, True, True, "rt_rq.rt_throttled, task.prio"),
        (120, False, True, "rt_rq.rt_throttled, task.prio"),
        (120, False, False, "task.on_rq, task.prio"),  # the deadline server runs it
    ],
)
def test_the_first_of_the_real_time_tasks_is_off_the_cpu(
    current: int, is_idle: bool, is_throttled: bool, evidence: str
) -> None:
    scene = Runnable(
        5.0, 0.1, 98, current, 49, is_idle=is_idle, is_throttled=is_throttled, third=True
    )
    graph, finder = scene.run(Occupied)
    sure = int(Strength.DERIVED)
    assert links(graph) == {
        (TASK, scene.task[0], STARVED, _RQ, sure),
        (CPU, _RQ, THROTTLED, scene.task[2], sure),
    }
    assert {*graph.evidence} == {evidence}
    assert finder.names[CPU, _RQ] == ("0 (throttled)" if is_throttled else "0")


@pytest.mark.parametrize("is_throttled", [False, True])
def test_a_task_that_has_the_cpu_all_the_time_is_the_only_culprit(is_throttled: bool) -> None:
    # Neither a throttling nor the deadline server lets a task run for so long.
    scene = Runnable(5.0, 6.0, 98, 120, 49, is_throttled=is_throttled, third=True)
    graph, _ = scene.run(Occupied)
    sure = int(Strength.DERIVED)
    assert links(graph) == {
        (TASK, scene.task[0], STARVED, _RQ, sure),
        (CPU, _RQ, RUNS, scene.task[1], sure),
    }


@pytest.mark.parametrize(
    ("own", "above", "is_throttled"),
    [
        (49, 98, True),  # it is the first itself
        (49, 49, True),
        (120, 49, True),  # throttling is for the benefit of such a task
        (98, 120, True),
        (98, 49, False),  # an idle CPU takes the first in a moment
    ],
)
def test_a_real_time_task_without_another_one_ahead(
    own: int, above: int, is_throttled: bool
) -> None:
    scene = Runnable(5.0, 0.1, own, 120, above, is_idle=True, is_throttled=is_throttled, third=True)
    graph, _ = scene.run(Occupied)
    assert not len(graph.source)
