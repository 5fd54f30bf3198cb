# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work split between processes, and the columns that they fill together: *synthetic* tasks."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import Future, ProcessPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.engine.memory import Memory
from kcensus.engine.workers import Columns, WorkersKilled, each
from tests.unit.fakekernel import Machine

pytestmark = pytest.mark.ends


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


def test_without_semaphores_this_process_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **named: object) -> None:
        raise PermissionError

    # As where /dev/shm is read-only.
    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    assert [*each(lambda task: (task, os.getpid()), 3, 2)] == [(n, os.getpid()) for n in range(3)]


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
@pytest.mark.parametrize("at_once", [False, True])
def test_a_killed_worker_is_an_error_of_one_sentence(
    number: signal.Signals, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(task: int) -> int:
        faulthandler.disable()  # of pytest
        if task == 2:
            os.kill(os.getpid(), number)
        return task

    def submit(*arguments: Any) -> Future[int]:
        future: Future[int] = original(*arguments)
        wait([future])
        return future

    original: Any = ProcessPoolExecutor.submit
    if at_once:
        monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
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


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_not_kept_once_they_were_taken(jobs: int) -> None:
    # Everything streams: what all tasks yield together may not fit in memory.
    results = each(lambda task: np.zeros(1), 6, jobs)
    taken = weakref.ref(next(results))
    next(results)
    gc.collect()
    assert taken() is None
    list(results)


def _of_this_process(memory: Memory, tasks: int) -> list[bool]:
    found = list(memory.each("tasks", lambda task: (task, os.getpid()), tasks))
    assert [task for task, _ in found] == [*range(tasks)]
    return [process == os.getpid() for _, process in found]


@pytest.mark.usefixtures("workers_that_gain")
def test_workers_begin_only_where_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(Machine("").prog, jobs=2)
    # Each task takes 8 ms.
    clock = SimpleNamespace(perf_counter=itertools.count(step=0.008).__next__)
    monkeypatch.setattr("kcensus.engine.memory.time", clock)
    assert all(_of_this_process(memory, 9))
    assert _of_this_process(memory, 100) == [True] * 7 + [False] * 93
    # Each one takes a minute.
    clock.perf_counter = itertools.count(step=60).__next__
    assert all(_of_this_process(memory, 2))
    assert _of_this_process(memory, 3) == [True, False, False]
    assert _of_this_process(memory, 0) == []


def test_workers_begin_at_once_in_tests() -> None:
    memory = Memory(Machine("").prog, jobs=2)
    assert _of_this_process(memory, 9) == [True] + [False] * 8


def test_no_room_at_all() -> None:
    out = Columns({"x": np.dtype("<u4")}, 0, shared=True)
    out.compact([])
    assert out["x"].tolist() == []


_ENDLESS = """
import os, sys, time
from kcensus.engine.workers import each

def work(task):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)

list(each(work, 2, 2))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_workers_end_with_their_parent(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _ENDLESS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert {parent.stdout.readline() for _ in range(2)} != {b""}
        parent.send_signal(number)
        # Its end of the pipe is closed when the last of them has ended.
        assert parent.stdout.read() == b""
