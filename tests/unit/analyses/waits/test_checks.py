# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checks of *synthetic* tasks against what the kernel says of them."""

from __future__ import annotations

from dataclasses import replace

import drgn
import numpy as np
import pytest

from kcensus.analyses.waits import figures as figures_module
from kcensus.analyses.waits.checks import checks, gaps
from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.figures.tasks import State
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.results import Severity
from tests.unit.analyses.waits.making import Scene, findings
from tests.unit.fakekernel import FakeKernel

_NOW = 100
_SENTENCES = (
    "is blocked on a mutex likely owned by task {}.",
    "blocked on a semaphore likely last held by task {}",
    "<reader> blocked on an rw-semaphore likely owned by task {} <writer>",
)


def scene(monkeypatch: pytest.MonkeyPatch, *lines: tuple[float, str]) -> Figures:
    """Task 103 has slept for 4 s, and waits for 102, which has slept for 3 s; 100 runs."""
    made = Scene(4, {3: 0, 2: 1}, {0: (2, Strength.PROVEN), 1: (0, Strength.PROVEN)}).figures()
    made.waiting.tasks = replace(made.waiting.tasks, now_ns=_NOW * 10**9)
    monkeypatch.setattr("kcensus.kernel.log.records", lambda _: lines)
    return made


def owners(figures: Figures) -> list[tuple[int | None, int | None]]:
    """How many owners are ours, and how many the log names; without any, nothing."""
    found = [check for check in checks(figures) if check.name == "owners of locks"]
    return [(check.ours, check.counter) for check in found]


@pytest.mark.parametrize("sentence", _SENTENCES)
def test_owners_that_the_log_names(monkeypatch: pytest.MonkeyPatch, sentence: str) -> None:
    line = f"INFO: task a:b:103 {sentence}"
    assert owners(scene(monkeypatch, (98.0, line.format("task-2:102")))) == [(1, 1)]
    assert owners(scene(monkeypatch, (98.0, line.format("task-1:101")))) == []
    assert owners(scene(monkeypatch, (98.0, line.format("task-3:103")))) == [(0, 1)]


def test_lines_that_are_older_than_the_sleep_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"INFO: task task-3:103 {_SENTENCES[0]}"
    assert owners(scene(monkeypatch, (95.5, line.format("task-3:103")))) == []
    # The owner went to sleep after the line: it may have taken the lock since.
    assert owners(scene(monkeypatch, (96.5, line.format("task-2:102")))) == []
    last = f"INFO: task task-3:103 {_SENTENCES[2]}".replace("<writer>", "<reader>")
    assert owners(scene(monkeypatch, (98.0, last.format("task-3:103")))) == []


def test_the_scheduler_counts_tasks_that_left_its_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = scene(monkeypatch)
    tasks, flags = figures.waiting.tasks, np.array([False, False, False, True])
    for changed, count in (
        (tasks, 2),
        (replace(tasks, is_queued=flags), 1),
        (replace(tasks, is_frozen=flags), 1),
    ):
        other = Figures(figures.kernel)
        other.waiting.tasks = changed
        assert {check.name: check.ours for check in checks(other)}["tasks in state D"] == count
    (last,) = (node for node in other.task_nodes if other.tasks.pid(node) == 103)
    assert other.tasks.state(last) is State.FROZEN


def test_a_frozen_task_that_others_wait_for_can_be_thawed() -> None:
    figures = Scene(200, {150: 0}, {0: (0, Strength.PROVEN)}).figures()
    flags = np.arange(200) == 0
    figures.waiting.tasks = replace(figures.waiting.tasks, is_frozen=flags)
    (finding,) = findings(figures)
    assert finding.id == "waits-behind:100"
    assert "is frozen" in finding.evidence
    commands = [remedy.command for remedy in finding.remedies]
    assert "/proc/100/cgroup" in commands[0]
    assert "THAWED" in commands[0]


@pytest.mark.parametrize(
    ("state", "words"), [(4, "which a signal has stopped"), (8, "unless a debugger has stopped it")]
)
def test_a_stopped_task_that_others_wait_for_can_be_continued(state: int, words: str) -> None:
    # A single task that has waited for 3 s is usual elsewhere.
    figures = Scene(3, {2: 0}, {0: (0, Strength.PROVEN)}).figures()
    assert findings(figures) == []
    figures = Scene(3, {2: 0}, {0: (0, Strength.PROVEN)}).figures()
    states = figures.waiting.tasks.state.copy()
    states[0] = state
    figures.waiting.tasks = replace(figures.waiting.tasks, state=states)
    (finding,) = findings(figures)
    assert (finding.id, finding.severity) == ("waits-behind:100", Severity.NOTICE)
    (remedy,) = finding.remedies
    assert (remedy.command, words in remedy.effect) == ("kill -CONT 100", True)


@pytest.mark.parametrize(
    ("ran", "cycles", "unsteady"),
    [
        ([[]], 1, 0),
        ([[0], []], 1, 0),  # one wakeup, as by a timer
        ([[0], [1]], 0, 1),
        ([[2]], 1, 0),  # no part of the cycle
    ],
)
def test_a_cycle_with_tasks_that_ran_is_looked_for_again_or_a_gap(
    ran: list[list[int]], cycles: int, unsteady: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven = Strength.PROVEN
    known = Scene(3, {0: 0, 1: 1}, {0: (1, proven), 1: (0, proven)}).figures().waiting
    looks: list[Kernel] = []

    class Switches:
        def __init__(self, kernel: Kernel) -> None:
            looks.append(kernel)

        def ran(self) -> set[int]:
            return {int(known.tasks.address[task]) for task in ran[len(looks) - 1]}

    monkeypatch.setattr(figures_module, "waiting", lambda _: known)
    monkeypatch.setattr(figures_module, "_Switches", Switches)
    figures = Figures(Kernel(FakeKernel().prog, live=True))
    assert len(figures.cycles) == cycles
    counts = {gap.what: gap.count for gap in gaps(figures)}
    assert counts.get("cycles of tasks that ran during the read", 0) == unsteady
    assert len(looks) == len(ran)
    assert figures.kernel is looks[-1]


def test_pages_whose_place_is_unreadable_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only buffers of XFS are looked for there."""

    def unreadable(_: Kernel) -> None:
        raise drgn.FaultError("not mapped", 0)

    figures = scene(monkeypatch)
    monkeypatch.setattr(Kernel, "slab_map", property(unreadable))
    found = {gap.what: gap.reason for gap in gaps(figures)}
    assert found["struct page array"] == "its place is unreadable"
