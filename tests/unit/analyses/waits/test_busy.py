# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the analysis says of tasks that run, in *synthetic* graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.figures.log import Log
from kcensus.analyses.waits.findings.remedies import mounts
from kcensus.kernel.tasks.hung import Hang
from kcensus.results import Severity
from tests.unit.analyses.waits.making import Scene, findings, owned

_SECOND = 10**9
_CONVOY = Scene(13, dict.fromkeys(range(1, 13), 0), owned(1))


def _log(*hung: tuple[str, int, int]) -> Log:
    """Return the log with a message about each task, by name, PID and seconds."""
    return Log(
        hung={(pid, name): seconds for name, pid, seconds in hung},
        last={pid: Hang(30.0, seconds) for _, pid, seconds in hung},
        names={pid: name for name, pid, _ in hung},
    )


def _running(scene: Scene, arrived: float, log: Log) -> Figures:
    """Let the first task run since so many seconds, at 30 s after boot."""
    figures = scene.figures()
    known = figures.waiting.tasks
    first = np.arange(len(known)) == 0
    figures.waiting.tasks = replace(
        known,
        is_on_cpu=first,
        arrived_ns=np.where(first, int(arrived * _SECOND), -1),
        now_ns=30 * _SECOND,
    )
    figures.log = log
    return figures


@pytest.mark.parametrize(("arrived", "is_stuck"), [(28.0, True), (1.0, False)])
def test_the_owner_of_a_mutex_with_a_soft_lockup(arrived: float, is_stuck: bool) -> None:
    log = Log(lockups={100: (5.0, 22)}, seen={100: (5.0, "spin [module]")})
    (finding,) = findings(_running(_CONVOY, arrived, log))
    assert finding.id == "waits-behind:100"
    assert "runs on CPU 0; the log has it in spin [module], 25.0 s before" in finding.evidence
    # It may have left the CPU since, and come back.
    assert ("soft lockup, of 47.0 s" in finding.evidence) == is_stuck
    assert finding.severity is Severity.WARNING
    assert finding.no_remedy
    assert not finding.remedies


def test_a_soft_lockup_that_no_known_task_waits_for() -> None:
    scene = Scene(2, {}, {}, names={0: "spin-holder"})
    found = findings(_running(scene, 28.0, Log(lockups={100: (5.0, 22)})))
    assert [each.id for each in found] == ["waits-cpu:0"]
    assert "spin-holder (PID 100)" in found[0].title
    assert found[0].figures["seconds"].value == 47.0
    assert findings(_running(scene, 1.0, Log(lockups={100: (5.0, 22)}))) == []


def test_a_hard_lockup_has_no_remedy_but_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(lockups={100: (5.0, 10)}, hard=frozenset({100}))
    figures = _running(Scene(2, {}, {}, names={0: "holder"}), 28.0, log)
    (found,) = findings(figures)
    assert (found.id, found.remedies) == ("waits-cpu:0", ())
    assert "reports a hard lockup" in found.evidence
    assert "restart" in found.no_remedy
    # It would be killed, or lose its priority, in vain.
    figures = _running(_CONVOY, 28.0, log)
    monkeypatch.setattr(figures.tasks, "in_program", lambda _: True)
    (found,) = findings(figures)
    assert (found.id, found.remedies) == ("waits-behind:100", ())
    assert "hard lockup, of 35.0 s" in found.evidence


def test_a_task_that_spins_for_an_unknown_lock_is_not_blamed_for_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = _running(_CONVOY, 28.0, Log(lockups={100: (5.0, 22)}))
    monkeypatch.setattr(figures.tasks, "spins_unknown", lambda row: row == 0)
    (found,) = findings(figures)
    assert (found.id, found.severity) == ("waits-spinning:100", Severity.WARNING)
    assert found.figures["tasks"].value == 12
    assert 100 in found.tasks
    assert "vmlinux" in found.no_remedy
    assert "loop" not in found.no_remedy
    # No known task waits for it.
    figures = _running(Scene(2, {}, {}), 28.0, Log(lockups={100: (5.0, 22)}))
    monkeypatch.setattr(figures.tasks, "spins_unknown", lambda row: row == 0)
    (found,) = findings(figures)
    assert found.id == "waits-cpu:0"
    assert "loop" not in found.no_remedy


def test_tasks_that_spin_have_a_finding_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # The same tasks wait for both: the second may hold the lock of the first.
    waits = dict.fromkeys(range(2, 14), 0)
    scene = Scene(14, waits, owned(1), also={0: 1})
    figures = scene.figures()
    monkeypatch.setattr(figures.tasks, "spins_unknown", lambda row: row == 0)
    assert {each.id for each in findings(figures)} == {"waits-spinning:100", "waits-behind:101"}


def test_the_end_of_a_thread_is_that_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Scene(2, {0: 1, 1: 0}, owned(2), interruptible={0, 1}).figures()
    monkeypatch.setattr(figures.tasks, "process", lambda _: ("shop", 90))
    (finding,) = findings(figures)
    (remedy,) = finding.remedies
    assert remedy.command == "kill -KILL 90"
    assert "process shop (PID 90) of thread task-" in remedy.effect


def test_the_end_of_a_mount_is_that_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Scene(2, {1: 0}, owned(1), functions={1: "vfs_get_tree"}, interruptible={1}).figures()
    monkeypatch.setattr(figures.tasks, "process", lambda _: ("shop", 90))
    (remedy,) = mounts(figures, 0)
    assert remedy.command == "kill -KILL 90"
    assert "process shop (PID 90) of thread task-1" in remedy.effect
    assert remedy.risk


def test_hung_tasks_of_other_findings_are_a_part_of_these() -> None:
    figures = _CONVOY.figures()
    figures.log = _log(("task-1", 101, 120), ("task-2", 102, 240))
    hung = {each.id: each for each in findings(figures)}["log-hung-task"]
    assert (hung.part_of, hung.no_remedy) == ("waits-behind:100", "")
    assert hung.figures["tasks"].value == 2
    figures = _CONVOY.figures()
    figures.log = _log(("task-1", 101, 120), ("gone", 999, 240))
    hung = {each.id: each for each in findings(figures)}["log-hung-task"]
    assert hung.part_of == ""
    assert hung.evidence == "no longer in state D: gone (PID 999)"
    assert hung.tasks == {101}
    assert hung.no_remedy


def test_the_root_of_hung_tasks_of_the_log_is_a_finding() -> None:
    """Few tasks, or short waits, are usual, but the kernel may have a lower limit."""
    scene = Scene(3, {1: 0, 2: 0}, owned(1))
    assert [each.id for each in findings(scene.figures())] == []
    figures = scene.figures()
    figures.log, figures.hung = _log(("task-1", 101, 5)), {101: 5}
    found = {each.id: each for each in findings(figures)}
    assert found.keys() == {"waits-behind:100", "log-hung-task"}
    assert found["log-hung-task"].part_of == "waits-behind:100"
    # It has run since.
    figures = scene.figures()
    figures.log, figures.hung = _log(("task-1", 101, 5)), {}
    assert [each.id for each in findings(figures)] == ["log-hung-task"]


def test_hung_tasks_whose_pid_others_have() -> None:
    # Two tasks, one after the other.
    figures = _CONVOY.figures()
    figures.log = _log(("before", 101, 120), ("task-1", 101, 240))
    hung = {each.id: each for each in findings(figures)}["log-hung-task"]
    assert (hung.part_of, hung.figures["tasks"].value, sorted(hung.tasks)) == ("", 2, [101])
    assert hung.evidence == "no longer in state D: before (PID 101)"
    # The present task has started after the message.
    figures = _CONVOY.figures()
    figures.log = _log(("before", 101, 120))
    figures.reported = set()
    hung = {each.id: each for each in findings(figures)}["log-hung-task"]
    assert (hung.part_of, hung.figures["tasks"].value, sorted(hung.tasks)) == ("", 1, [])
    assert hung.evidence == "no longer in state D: before (PID 101)"
