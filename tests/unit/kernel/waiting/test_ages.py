# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ages of the waits of tasks that wake up and go on to wait."""

from __future__ import annotations

import numpy as np

from kcensus.kernel.waiting.ages import since_submitted, wait_ages
from tests.unit.kernel.waiting.making import Sleepers


def test_a_task_that_woke_up_has_waited_since_its_last_request() -> None:
    # Two requests; none; asleep for longer than its request has existed; unknown.
    since, is_least = np.array([5, 5, 70, 7]), np.ones(4, np.bool_)
    wait, age = np.array([0, 0, 2, 3]), np.array([61, 60, 60, -1])
    found, may_be_longer = since_submitted(since, is_least, wait, age)
    assert found.tolist() == [60, 5, 70, 7]
    assert may_be_longer.tolist() == [False, True, False, True]


def test_a_task_without_a_request_has_waited_at_least_since_its_last_sleep() -> None:
    scene = Sleepers("struct task_struct 64", "blk_io_schedule", "xfs_buf_lock", "submit_bio_wait")
    scene.waits.since_ns[:2] = 5
    found, is_least = wait_ages(scene.kernel, scene.waits)
    assert found.tolist() == [5, 5, -1]
    assert is_least.tolist() == [True, False, False]
