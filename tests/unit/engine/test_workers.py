# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work split between processes, and the columns that they fill together: *synthetic* tasks."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import time
import weakref

import numpy as np
import numpy.typing as npt
import pytest

from kcensus.engine.workers import Columns, WorkersKilled, each


@pytest.mark.parametrize("jobs", [0, 1, 2, 5])
@pytest.mark.parametrize("tasks", [0, 1, 7])
def test_results_come_in_order(jobs: int, tasks: int) -> None:
    def work(task: int) -> int:
        # The first ones take longest.
        time.sleep(0.01 if task < 2 else 0)
        return task * task

    assert list(each(work, tasks, jobs)) == [task * task for task in range(tasks)]


def test_one_job_stays_in_this_process_and_more_leave_it() -> None:
    assert {*each(lambda task: os.getpid(), 4, 1)} == {os.getpid()}
    assert os.getpid() not in {*each(lambda task: os.getpid(), 4, 2)}


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_in_a_task_is_raised_and_leaves_nothing_behind(jobs: int) -> None:
    def work(task: int) -> int:
        if task == 2:
            raise LookupError("no such thing")
        return task

    results = each(work, 5, jobs)
    assert next(results) == 0
    with pytest.raises(LookupError, match="no such thing"):
        list(results)
    assert list(each(lambda task: task + 1, 3, jobs)) == [1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGKILL, signal.SIGTERM])
def test_a_killed_worker_is_an_error_of_one_sentence(number: signal.Signals) -> None:
    def work(task: int) -> int:
        faulthandler.disable()  # of pytest
        if task == 2:
            os.kill(os.getpid(), number)
        return task

    with pytest.raises(WorkersKilled, match=f"{number.name} killed a worker") as caught:
        list(each(work, 5, 2))
    assert str(caught.value).isprintable()
    assert list(each(lambda task: task, 3, 2)) == [0, 1, 2]


def test_two_works_at_a_time_do_not_mix() -> None:
    first = each(lambda task: ("first", task), 6, 2)
    assert next(first) == ("first", 0)
    second = each(lambda task: ("second", task), 4, 2)
    assert list(second) == [("second", task) for task in range(4)]
    assert list(first) == [("first", task) for task in range(1, 6)]


class Result:
    """Something that can be seen to go away."""


def result(task: int) -> Result:
    return Result()


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_not_kept_once_they_were_taken(jobs: int) -> None:
    # Everything streams: what all tasks yield together may not fit in memory.
    results = each(result, 6, jobs)
    taken = weakref.ref(next(results))
    next(results)
    gc.collect()
    assert taken() is None
    list(results)


@pytest.mark.parametrize("jobs", [1, 2])
def test_pieces_are_closed_up(jobs: int) -> None:
    dtypes = {"number": np.dtype("<u8"), "name": np.dtype("S3")}
    out = Columns(dtypes, 20, shared=jobs > 1)
    starts: npt.NDArray[np.int64] = np.array([0, 6, 12, 15])
    counts: npt.NDArray[np.int64] = np.array([2, 6, 0, 3])

    def work(task: int) -> None:
        rows = slice(starts[task], starts[task] + counts[task])
        out["number"][rows] = np.arange(counts[task]) + 100 * task
        out["name"][rows] = b"%d" % task

    for _ in each(work, 4, jobs):
        pass
    out.compact([*zip(starts.tolist(), counts.tolist(), strict=True)])
    numbers = [0, 1, *range(100, 106), *range(300, 303)]
    assert out["number"].tolist() == numbers
    assert out["name"].tolist() == [b"%d" % (number // 100) for number in numbers]


def test_no_room_at_all() -> None:
    out = Columns({"x": np.dtype("<u4")}, 0, shared=True)
    out.compact([])
    assert out["x"].tolist() == []
