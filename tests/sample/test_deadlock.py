# SPDX-License-Identifier: LGPL-2.1-or-later
"""The deadlock of four tasks in a sample, against what each of them logged before it slept."""

from __future__ import annotations

from kcensus.results import Danger, Severity
from tests.lab.truth import waits as truth_of
from tests.sample.conftest import Sample


def test_the_deadlock_is_that_of_the_log(deadlocked: Sample) -> None:
    result, truth = deadlocked.run("waits"), truth_of.read(deadlocked.truth)
    (wanted,) = truth.cycles()
    cycle = result.tables["cycles"].frame
    assert {*cycle["pid"]} == wanted
    assert len(cycle) == len(wanted) == 4
    assert result.amount("deadlocks") == 1
    (finding,) = (each for each in result.findings if each.danger is Danger.DEADLOCK)
    assert finding.severity is Severity.CRITICAL
    assert len(finding.story) == 4
    assert finding.tasks == wanted


def test_each_task_waits_for_what_it_said(deadlocked: Sample) -> None:
    tasks = deadlocked.run("waits").tables["tasks"].frame.set_index("pid")
    claims = truth_of.read(deadlocked.truth).waits()
    assert claims
    for pid, claim in claims.items():
        if claim.address:
            assert tasks.loc[pid, "object"] == claim.address


def test_the_kernel_has_the_fix_of_the_published_one(deadlocked: Sample) -> None:
    assert [finding.patch for finding in deadlocked.run("waits").findings] == [""]
