# SPDX-License-Identifier: LGPL-2.1-or-later
"""What findings advise, tried with the programs of administrators: each ends its stall alone."""

from __future__ import annotations

import re

import pytest

from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.waiting.finders.limits.io_cost import COST
from kcensus.results import Finding, Result
from tests.lab import build, scenario
from tests.lab.truth import waits as truth_of
from tests.vm.cases import analyzed
from tests.vm.waits.test_graph import Case, open_case
from tests.vm.waits.test_roots import dead_ends

_ENDED_BY = {
    "connected": "waits-iscsi",
    "extended": "waits-thin:dm-2",
    "failed": "waits-thin:dm-7",
    "marked": "waits-mdmon:md126",
    "disconnected": "waits-nbd:nbd0",
    "heavier": "waits-io-cost:nullb0",
    "aborted": "waits-deadlock",
    "killed": "waits-behind",
    "recovered": "waits-scsi",
}
"""The finding that each trial is about, by the start of its id, in the order of the trials."""
_BY_ITSELF = {"waits-scsi"}
"""A recovery may end before its trial, which is about the next one."""
_FILTER = """ --config 'devices { use_devicesfile=0 filter=["a|^/dev/ram0p?[0-9]*$|", "r|.*|"] }'"""
_STAND_IN = {
    # No systemd; and the guest finds out numbers.
    "systemctl restart iscsid": r"(?m)^iscsid ",
    r"echo 1 > /sys/fs/fuse/connections/\d+/abort": r"echo 1 > /sys/fs/fuse/connections/\$n/abort",
    r"echo '\d+:\d+ 10000' > /sys/fs/cgroup/light/io.weight": r"10000\\?\" > \S+/light/io.weight",
    r"lvextend --size \+\d+M shop/first": r"lvextend --size \+1G shop/first",
    r"kill -KILL \d+": r"kill -KILL \$\{each#/proc/\}",
}
"""Commands of findings whose numbers only the guest knows, and their form in its trials."""


def _of(result: Result, start: str) -> Finding:
    (finding,) = (each for each in result.findings if each.id.startswith(start))
    return finding


def _waiting(case: Case, read: str) -> set[int]:
    tasks = truth_of.read(case.dump.truth, read).tasks
    return {
        pid
        for pid, task in tasks.items()
        if task.state == "D" or "request_wait_answer" in task.stack
    }


def _behind_share(case: Case, cgroup: str) -> set[int]:
    graph, names = case.found.graph, case.found.names
    return {
        case.pid(int(graph.source[edge]))
        for node, kind in enumerate(graph.kind)
        if kind is COST and f" {cgroup} " in names[kind, int(graph.address[node])]
        for edge in graph.preceding[node]
    }


def _ran(case: Case, trial: str) -> str:
    trials = {
        each.name: each for each in scenario.load(case.dump.scenario, case.dump.kernel).trials
    }
    return "\n".join(step.arguments[-1] for step in trials[trial].steps if step.verb == "run")


@pytest.mark.kernels("6.1")
def test_each_remedy_ends_the_stall_that_it_is_for(kernel: str) -> None:
    case = open_case(kernel, "waits-remedies")
    result = analyzed(case.target, "waits")
    assert dead_ends(Figures(Kernel(case.target.prog)))[1].total() == 0
    before = _waiting(case, "before")
    for trial, start in _ENDED_BY.items():
        finding, after = _of(result, start), _waiting(case, trial)
        mine = finding.tasks & _waiting(case, "before")
        if trial == "heavier":
            # The other cgroup has all of the disk already.
            mine &= _behind_share(case, "/light")
        assert mine
        if start not in _BY_ITSELF:
            assert mine <= before, trial
        assert not mine & after, trial
        before = after


@pytest.mark.kernels("6.1")
def test_the_guest_tries_the_commands_of_the_findings(kernel: str) -> None:
    case = open_case(kernel, "waits-remedies")
    result = analyzed(case.target, "waits")
    for trial, start in _ENDED_BY.items():
        # Other disks do not answer: the guest has the filter in its lvm.conf.
        commands = [
            each.command.replace(_FILTER, "")
            for each in _of(result, start).remedies
            if each.command
        ]
        ran = _ran(case, trial)
        assert any(
            command in ran
            or any(
                re.fullmatch(pattern, command) and re.search(form, ran)
                for pattern, form in _STAND_IN.items()
            )
            for command in commands
        ), (trial, commands)


@pytest.mark.kernels("6.1")
def test_the_kernel_takes_what_the_findings_promise(kernel: str) -> None:
    truth = open_case(kernel, "waits-remedies").dump.truth
    # mdmon marks the array as dirty; a session is back.
    assert truth["array-state"].split() == ["write-pending"]
    assert truth["session"].split()[0] == "FAILED"
    check, state, *_ = truth["session-later"].split()
    assert (check, state) == ("connects", "LOGGED_IN")
    assert truth["deadline@recovered"].split() == ["running", "60"]


@pytest.mark.kernels("6.1")
def test_a_deadline_skips_steps_of_a_recovery(kernel: str) -> None:
    truth = open_case(kernel, "waits-remedies").dump.truth
    seconds = {}
    for line in truth["deadlines"].splitlines():
        deadline, is_taken, value, start, end = line.split()
        # The recovery that has begun takes none.
        assert (is_taken, value) == ("refused", deadline)
        seconds[deadline] = float(end) - float(start)
    # Buses and hosts settle for 10 s each; a step takes 3 s, and one is under way.
    assert 5 + 10 <= seconds["5"] < 5 + 10 + 3 * 3
    assert seconds["off"] > seconds["5"] + 10


@pytest.mark.kernels("5.10")
def test_limits_of_cgroup_v1_are_lifted(kernel: str) -> None:
    case = open_case(kernel, "waits-cgroup1")
    result = analyzed(case.target, "waits")
    limit, memory = _of(result, "waits-io-limit"), _of(result, "waits-memory")
    for trial, finding, number in (("lifted", limit, 0), ("enabled", memory, 1)):
        mine = finding.tasks & _waiting(case, "before")
        if trial == "heavier":
            # The other cgroup has all of the disk already.
            mine &= _behind_share(case, "/light")
        assert mine
        assert finding.remedies[number].command in _ran(case, trial)
        assert not mine & _waiting(case, trial)


@pytest.mark.kernels("6.1")
def test_a_reader_gets_the_cpu_of_a_task_that_loses_its_priority(kernel: str) -> None:
    """Throttling keeps that task off its CPU at the moment of the dump: the CPU is idle."""
    dump = build(kernel, "waits-priority")
    case = open_case(kernel, "waits-priority")
    pid = next(pid for pid, task in case.truth.tasks.items() if task.comm == "rcu-above")
    found = {each.id: each for each in analyzed(case.target, "waits").findings}
    culprit = found[f"waits-behind:{pid}"]
    assert [each.command for each in culprit.remedies] == [f"chrt -o -p 0 {pid}"]
    if "rq.curr" not in culprit.evidence:  # throttled at the moment of the dump
        assert "FIFO 50" in culprit.evidence
        assert "look idle" in culprit.evidence
    assert not any("waits-behind" in each and "preempted" in found[each].title for each in found)
    running = {
        name: set(re.findall(r"CPU: 2 .*Comm: (rcu-\S+)", dump.truth[f"waits.log.{name}"]))
        for name in ("before", "lowered")
    }
    assert running["before"] == {"rcu-above"}
    assert "rcu-preempted" in running["lowered"]


@pytest.mark.kernels("6.1")
def test_a_mount_in_progress_ends_with_its_program(kernel: str) -> None:
    case = open_case(kernel, "waits-mount")
    (finding,) = analyzed(case.target, "waits").findings
    (pid,) = finding.tasks & _waiting(case, "before")
    assert finding.kind == "waits-smb"
    assert [each.command for each in finding.remedies][1:] == [f"kill -KILL {pid}"]
    assert pid not in _waiting(case, "killed")
