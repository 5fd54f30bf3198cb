# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reports of hung tasks of *synthetic* kernels, and whether the tasks have run since."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kcensus.kernel.tasks.hung import Hang, present, replaced
from kcensus.kernel.tasks.tasks import tasks
from tests.unit.kernel.waiting.making import Sleepers

_TYPES = """
struct task_struct 64
    32 unsigned long start_time;
    8 unsigned long last_switch_count; 16 unsigned long nvcsw; 24 unsigned long nivcsw
"""
_OLD_TYPES = """
struct timespec 16 : 0 long tv_sec; 8 long tv_nsec
struct task_struct 64
    32 struct timespec start_time
"""
_SECOND = 10**9


@pytest.mark.parametrize(
    ("arrived", "checked", "is_hung"),
    [
        (200, 0, True),
        (140, 7, False),
        # Without sched_info, the detector has seen the same sleep.
        (-1, 7, True),
        (-1, 6, False),
    ],
)
def test_a_task_that_ran_after_the_message_hangs_no_more(
    arrived: int, checked: int, is_hung: bool
) -> None:
    scene = Sleepers(_TYPES, "io_schedule")
    scene.k.write_words(scene.task[0] + 8, checked, 5, 2)
    since = np.array([arrived * _SECOND if arrived >= 0 else -1])
    scene.remember(tasks, replace(scene.known, arrived_ns=since, now_ns=1000 * _SECOND))
    # The dump is of 1000 s after boot, the message of 850 s.
    hangs = {100: Hang(850.0, 120), 999: Hang(850.0, 120)}
    assert present(scene.kernel, hangs) == ({100: 120} if is_hung else {})
    assert present(scene.kernel, {100: Hang(-1.0, 120)}) == {}


@pytest.mark.parametrize(("start", "is_other"), [(100, False), (900, True)])
def test_a_task_that_started_after_the_message_is_another_one(start: int, is_other: bool) -> None:
    scene = Sleepers(_TYPES, "io_schedule")
    scene.k.write_words(scene.task[0] + 32, start * _SECOND)
    hangs = {100: Hang(850.0, 120), 999: Hang(850.0, 120)}
    assert replaced(scene.kernel, hangs) == ({100} if is_other else set())
    assert replaced(scene.kernel, {100: Hang(-1.0, 120)}) == set()


def test_a_start_in_seconds() -> None:
    scene = Sleepers(_OLD_TYPES, "io_schedule")
    scene.k.write_words(scene.task[0] + 32, 900, 5)
    assert replaced(scene.kernel, {100: Hang(850.0, 120)}) == {100}
    assert replaced(scene.kernel, {100: Hang(950.0, 120)}) == set()
