# SPDX-License-Identifier: LGPL-2.1-or-later
"""One target on a scheduler and two workers, processes of their own that talk over TCP."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest

from kcensus import cli
from kcensus.fleets.split import Order, follower, travel
from kcensus.fleets.split.cluster import Cluster
from kcensus.samples import capsule
from tests.machines import Machines, until

pytestmark = pytest.mark.slow


def followers(machines: Machines) -> list[int]:
    """Return the processes of workers that hold a target."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True)
    own = {str(worker.pid) for worker in machines.workers}
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, parent in pairs if parent in own]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("machines"), "--no-nanny")
    with distributed.Client(made.address) as client:
        client.wait_for_workers(2, timeout=60)
    yield made
    made.close()


@pytest.fixture
def vmcore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A target that counts as large enough."""
    monkeypatch.setenv("KCENSUS_SPLIT_FROM", "0")
    return str(shutil.copy(str(capsule("sample")), tmp_path / "vmcore"))


def report(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main([*words, "--chunk-size", "32K", "--json"])
    return status, *capsys.readouterr()


def test_the_split_result_is_that_of_one_process(
    machines: Machines, vmcore: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("report", "dentries"):
        alone = report(capsys, command, vmcore)
        assert report(capsys, command, vmcore, "--scheduler", machines.address) == alone
        assert (alone[0], alone[2]) == (0, "")
    until(lambda: followers(machines) == [])


def test_two_workers_are_too_few_for_a_dump_that_is_not_compressed(
    machines: Machines, vmcore: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    alone = report(capsys, "dentries", vmcore)
    monkeypatch.delenv("KCENSUS_SPLIT_FROM")
    monkeypatch.setattr("kcensus.commands.shared.split._LEAST_BYTES", 1)
    monkeypatch.setattr("kcensus.fleets.split.leader.Divider.each", None)
    monkeypatch.setattr("kcensus.fleets.split.follower.prepare", None)
    status, out, error = report(capsys, "dentries", vmcore, "--scheduler", machines.address)
    assert (status, out, error.count("\n")) == (0, alone[1], 1)
    assert "3 threads" in error


def test_another_file_is_refused(
    machines: Machines, vmcore: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # What this process says of its own file is of another one.
    monkeypatch.setattr("kcensus.fleets.split.cluster.identity", lambda paths: {paths[0]: "1 ab"})
    status, out, error = report(capsys, "dentries", vmcore, "--scheduler", machines.address)
    assert (status, out) == (3, "")
    assert f"has another file at '{vmcore}'" in error
    assert error.count("\n") == 1
    until(lambda: followers(machines) == [])


def test_another_version_is_refused(
    machines: Machines, vmcore: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("kcensus.fleets.split.cluster.versions", lambda: {"drgn": "9.9"})
    status, _, error = report(capsys, "dentries", vmcore, "--scheduler", machines.address)
    assert status == 3
    assert re.search(r"worker tcp://\S+ has drgn \S+, and this machine 9.9", error)


def test_a_scheduler_that_does_not_answer(vmcore: str, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    status, _, error = report(capsys, "dentries", vmcore, "--scheduler", "tcp://127.0.0.1:9")
    assert (status, error.count("\n")) == (3, 1)
    assert "the scheduler 'tcp://127.0.0.1:9' cannot be reached" in error
    assert time.monotonic() - start < 20


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Do something in the middle: with the fourth share."""
    submit, count = Cluster.submit, iter(range(1_000_000))

    def submitted(self: Cluster, *share: Any) -> Any:
        if next(count) == 3:
            action()
        return submit(self, *share)

    monkeypatch.setattr(Cluster, "submit", submitted)


def test_an_interrupted_command_leaves_nothing(
    machines: Machines, vmcore: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def interrupt() -> None:
        assert len(followers(machines)) == 2
        raise KeyboardInterrupt

    meanwhile(monkeypatch, interrupt)
    status, out, _ = report(capsys, "dentries", vmcore, "--scheduler", machines.address)
    assert (status, out) == (130, "")
    until(lambda: followers(machines) == [])


def test_a_worker_is_killed(
    machines: Machines, vmcore: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def kill() -> None:
        machines.workers[1].kill()
        machines.workers[1].wait()

    alone = report(capsys, "dentries", vmcore)
    meanwhile(monkeypatch, kill)
    status, out, error = report(capsys, "dentries", vmcore, "--scheduler", machines.address)
    assert (status, out) == alone[:2]
    assert error.count("\n") <= 1  # what was lost with it may be done here
    until(lambda: followers(machines) == [])


def test_a_target_that_a_worker_lacks() -> None:
    order = Order("lacking", "/nonexistent/vmcore")
    assert follower.prepare(order, 1).error == "/nonexistent/vmcore: no such file"
    assert follower.share(order, "any", b"", 0, 1).error


def test_a_killed_process_is_replaced_once() -> None:
    order = Order("once", str(capsule("sample")))
    assert follower.prepare(order, 1).error == ""
    content, _ = travel.packed(lambda task: os.kill(os.getpid(), signal.SIGKILL))
    outcome = follower.share(order, "kills", content, 0, 1)
    assert (outcome.content, outcome.signal) == (b"", signal.SIGKILL)
    content, _ = travel.packed(lambda task: task + 1)
    outcome = follower.share(order, "adds", content, 2, 4)
    assert travel.taken(outcome.content, []) == [3, 4]
    follower.close(order.id)
    assert follower.share(order, "adds", content, 2, 4).error
