# SPDX-License-Identifier: LGPL-2.1-or-later
"""Timers on *synthetic* stacks that are to wake up their tasks."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.waiting.timed import shared, since_submitted, timed, wait_ages
from tests.unit.kernel.waiting.making import Sleepers, words

_TYPES = """
struct hlist_node 16 : 0 void * next; 8 void * pprev
struct timer_list 40 : 0 struct hlist_node entry; 16 unsigned long expires; 24 void * function
struct hrtimer 64 : 40 void * function; 56 unsigned char state
"""
_PLACE, _CODE = 1024, 0xFFFF_FFFF_8110_0000


class Timers(Sleepers):
    def __init__(self, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        names = ("process_timeout", "hrtimer_wakeup")
        self.wakers = {name: _CODE + 16 * number for number, name in enumerate(names)}
        self.k.functions(self.wakers)

    def timer(self, lane: int, *, is_pending: bool = True) -> None:
        timer = self.stack[lane] + _PLACE
        bucket = int(self.k.alloc("char [8]").address_)
        self.k.write_words(bucket, timer if is_pending else 0)
        self.put(lane, 0, bucket, 0x1000, self.wakers["process_timeout"], place=_PLACE)

    def timed(self) -> list[bool]:
        rows = np.arange(len(self.task))
        found = timed(self.kernel, self.known, rows, self.waits, self.faults)
        assert not self.faults
        return [bool(each) for each in found]


def test_functions_that_wait_with_a_timeout() -> None:
    scene = Timers("wait_for_completion_timeout", "wait_for_completion", "down_timeout")
    assert scene.timed() == [True, False, True]
    # It waits again and again.
    scene = Timers("submit_bio_wait", "wait_for_completion_io_timeout")
    scene.waits.stacks.lane[:] = 0
    assert scene.timed() == [False, False]


@pytest.mark.parametrize("is_pending", [True, False])
def test_a_timer_on_the_stack(is_pending: bool) -> None:
    # Without a timeout, the same function sets up none.
    scene = Timers("schedule_timeout", "io_schedule_timeout", "read")
    scene.timer(0, is_pending=is_pending)
    scene.timer(2)
    assert scene.timed() == [is_pending, False, False]


@pytest.mark.parametrize(("state", "is_pending"), [(1, True), (0, False), (2, False)])
def test_a_timer_of_high_resolution(state: int, is_pending: bool) -> None:
    scene = Timers("schedule_hrtimeout_range_clock", "futex_wait_queue")
    scene.put(0, scene.wakers["hrtimer_wakeup"], 0, state, place=_PLACE + 40)
    assert scene.timed() == [is_pending, False]


def test_a_task_that_woke_up_has_waited_since_its_last_request() -> None:
    # Two requests; none; asleep for longer than its request has existed; unknown.
    # The last has a clone, which a device above may have issued again.
    since, is_least = np.array([5, 5, 70, 7, 5]), np.ones(5, np.bool_)
    wait, age = np.array([0, 0, 2, 3, 4]), np.array([61, 60, 60, -1, 60])
    found, may_be_longer = since_submitted(since, is_least, wait, age, wait == 4)
    assert found.tolist() == [60, 5, 70, 7, 60]
    assert may_be_longer.tolist() == [False, True, False, True, True]


def test_requests_with_bios_of_several_owners() -> None:
    request, owner = np.array([0, 1, 1, 3, 3, 4]), words(1, 1, 1, 2, 3, 3)
    assert shared(request, owner).tolist() == [3]


def test_a_task_without_a_request_has_waited_at_least_since_its_last_sleep() -> None:
    scene = Sleepers("struct task_struct 64", "blk_io_schedule", "xfs_buf_lock", "submit_bio_wait")
    scene.waits.since_ns[:2] = 5
    found, is_least = wait_ages(scene.kernel, scene.waits)
    assert found.tolist() == [5, 5, -1]
    assert is_least.tolist() == [True, False, False]
