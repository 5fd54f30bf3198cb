# SPDX-License-Identifier: LGPL-2.1-or-later
"""Children that hang, die or say too much, and nurses that are killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest

from kcensus.fleets import apart
from kcensus.fleets.apart import Answer, Job, Nursery

# Of a nurse without imports: `job.path` says what its child does.
PROGRAM = """
import ctypes, os, time
from kcensus.fleets import apart
def work(job):
    if job.path == "hang":
        time.sleep(60)
    if job.path == "wait":
        time.sleep(1)
    if job.path == "nurse":
        os.kill(os.getppid(), 9)
        time.sleep(60)
    if job.path == "orphan":
        ctypes.CDLL(None).prctl(1, 0)  # as if the nurse had ended before it was called
        os.kill(os.getppid(), 9)
        time.sleep(20)
    return os.fsencode(job.path)
apart.end_with(os.getppid())
apart.serve({"report": work})
"""


def job(path: str, seconds: float = 30.0) -> Job:
    return Job(path, "report", f"attempt-{path}", seconds, 1 << 30)


def watched(job: Job, work: Callable[[Job], bytes]) -> Answer:
    with Pipe()[0] as connection:
        return apart._watched(job, work, connection)


def hang(job: Job) -> bytes:
    time.sleep(60)
    return b""


def die(job: Job) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def fail(job: Job) -> bytes:
    raise RuntimeError("a bug\udcff")


@pytest.mark.parametrize(
    ("work", "seconds", "ended", "content"),
    [
        (lambda job: b"done", 30.0, "", b"done"),
        (hang, 0.3, "time", b""),
        (die, 30.0, "killed", b""),
        (lambda job: os._exit(9), 30.0, "killed", b""),
        (lambda job: bytes(2 << 20), 30.0, "large", b""),
        (fail, 30.0, "failed", b"RuntimeError: a bug\\udcff"),
    ],
    ids=["done", "hang", "die", "exit", "large", "fail"],
)
def test_a_child_ends_somehow(
    work: Callable[[Job], bytes],
    seconds: float,
    ended: str,
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apart, "_MAX_ANSWER", 1 << 20)
    answer = watched(job("x", seconds), work)
    assert (answer.ended, answer.content) == (ended, content)
    assert answer.seconds < 20
    assert answer.peak_bytes > 1 << 20


def test_a_child_whose_nurse_has_ended_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert watched(job("x"), lambda job: b"done").content == b""


def test_a_nurse_whose_owner_has_ended_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Pipe()
    ours.close()
    monkeypatch.setattr(sys, "argv", ["-c", str(os.dup(theirs.fileno()))])
    monkeypatch.setattr("gc.freeze", lambda: None)
    apart.serve({})


@pytest.fixture
def nursery(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    monkeypatch.setattr(apart, "_PROGRAM", PROGRAM)
    made = Nursery()
    yield made
    made.close()


def test_a_nurse_does_one_job_after_another(nursery: Nursery) -> None:
    assert [nursery.run(job(name)).content for name in "abc"] == [b"a", b"b", b"c"]
    (nurse,) = nursery._nurses.values()
    nurse.kill()
    assert nursery.run(job("d")).content == b"d"


def test_a_nurse_takes_paths_that_are_no_utf_8(nursery: Nursery) -> None:
    assert nursery.run(job("/a\udcff")).content == b"/a\xff"


def test_a_job_may_run_twice_at_a_time(nursery: Nursery) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(nursery.run, [job("wait")] * 2)
        assert [answer.content for answer in answers] == [b"wait"] * 2


def test_a_job_that_kills_nurses_is_given_up(nursery: Nursery) -> None:
    with pytest.raises(RuntimeError, match="twice"):
        nursery.run(job("nurse"))
    assert nursery.run(job("a")).content == b"a"


def test_the_end_of_a_nurse_shows_before_that_of_its_child(nursery: Nursery) -> None:
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="twice"):
        nursery.run(job("orphan"))
    assert time.monotonic() - start < 15


def test_a_stopped_job_ends_at_once_and_others_go_on(nursery: Nursery) -> None:
    errors: list[Exception] = []

    def run() -> None:
        try:
            nursery.run(job("hang"))
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not nursery._running:
        time.sleep(0.01)
    nursery.stop(["attempt-hang", "attempt-later"])
    thread.join(10)
    assert not thread.is_alive()
    assert "stopped" in str(errors[0])
    with pytest.raises(RuntimeError, match="stopped"):
        nursery.run(job("later"))
    assert nursery.run(job("a")).content == b"a"


def test_a_nurse_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="did not start"):
        Nursery().run(job("a"))
