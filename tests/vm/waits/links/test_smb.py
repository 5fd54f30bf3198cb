# SPDX-License-Identifier: LGPL-2.1-or-later
"""An SMB server that falls silent, and what ends the waits for it, against what the guest says."""

from __future__ import annotations

import re

import pytest

from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.kernel import Kernel
from kcensus.results import Finding
from tests.lab import scenario
from tests.lab.truth import waits as truth_of
from tests.vm.cases import analyzed
from tests.vm.waits.test_graph import Case, open_case
from tests.vm.waits.test_roots import dead_ends

pytestmark = pytest.mark.usually("6.1")

_HOSTS = {"soft": "10.0.0.6", "hard": "10.0.0.7", "late": "10.0.0.8"}
"""Server of each mount. The client has given the connection of the last one up once already."""
_ROLES = "read", "stat", "write"


def _asleep(case: Case, read: str) -> set[str]:
    """Return the clients in state D."""
    tasks = truth_of.read(case.dump.truth, read).tasks.values()
    names = {task.comm for task in tasks if task.state == "D"}
    return {name for name in names if name.partition("-")[0] in _HOSTS}


def _findings(case: Case) -> dict[str, Finding]:
    found = analyzed(case.target, "waits").findings
    return {each.id.split(":")[1]: each for each in found if each.kind == "waits-smb"}


@pytest.fixture(scope="module")
def case(kernel: str) -> Case:
    return open_case(kernel, "waits-smb")


def test_all_tasks_end_at_their_server(case: Case) -> None:
    assert dead_ends(Figures(Kernel(case.target.prog)))[1].total() == 0
    found, tasks = _findings(case), truth_of.read(case.dump.truth).tasks
    assert {*found} == {*_HOSTS.values()}
    for mount, host in _HOSTS.items():
        # With kernel threads that connect again.
        names = {tasks[pid].comm for pid in found[host].tasks}
        clients = {each for each in names if each.partition("-")[0] in _HOSTS}
        before = _asleep(case, truth_of.BEFORE)
        assert clients == {each for each in before if each.startswith(mount)}


def test_no_forced_unmount_ends_a_request(case: Case) -> None:
    before = _asleep(case, truth_of.BEFORE)
    # In old kernels, some operations fail as soon as the client connects again.
    early = {"late-read", "late-stat"}
    assert before | early == {f"{mount}-{role}" for mount in _HOSTS for role in _ROLES}
    # umount says that the mount is busy.
    assert case.dump.truth["forced"].split() == ["32"] * len(_HOSTS)
    assert before - _asleep(case, "forced") <= early
    remedies = [each for found in _findings(case).values() for each in found.remedies]
    assert not any("umount" in each.command for each in remedies)


def test_a_signal_ends_those_that_wait_for_an_answer(case: Case) -> None:
    ended = _asleep(case, "forced") - _asleep(case, "killed")
    assert {each for each in ended if each.startswith("hard")} == {"hard-read", "hard-stat"}


def test_an_unreachable_server_ends_requests(case: Case) -> None:
    found, trials = _findings(case), scenario.load("waits-smb", case.dump.kernel).trials
    (trial,) = (each for each in trials if each.name == "unreachable")
    assert "do ip route add unreachable $host" in trial.steps[0].arguments[-1]
    for mount, host in _HOSTS.items():
        _, remedy = found[host].remedies
        assert remedy.command == f"ip route add unreachable {host}"
        assert ("hard mounts (/hard)" in remedy.effect) is (mount == "hard")
    # In 6.12, a write that was repeated when the client connected again waits for credits.
    left = _asleep(case, "unreachable")
    assert {"hard-write"} <= left <= {"hard-write", "late-write"}
    assert left == {"hard-write"} or case.dump.kernel == "6.12"


def test_all_go_on_once_the_server_answers(case: Case) -> None:
    assert _asleep(case, "answered") == set()


def test_options_are_those_of_the_guest(case: Case) -> None:
    found = _findings(case)
    for mount, host in _HOSTS.items():
        line = re.search(rf"/{mount} cifs (\S+)", case.dump.truth["mounts"])
        assert line is not None
        options = line[1].split(",")
        assert ("hard" in options) is (mount == "hard")
        (interval,) = (int(each.partition("=")[2]) for each in options if "echo_interval" in each)
        seconds = {20: "1 min 0 s", 1: "3.0 s"}[interval]
        assert f"after {seconds} without an answer" in found[host].evidence
