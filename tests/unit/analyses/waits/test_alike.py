# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of one kind about the same tasks become one."""

from __future__ import annotations

from kcensus.analyses.remedies import together
from kcensus.analyses.waits.findings.alike import merged
from kcensus.analyses.waits.findings.told import Told
from kcensus.results import Finding, Remedy, Severity

_TASK = frozenset({7})


def _told(name: str, tasks: frozenset[int], node: int) -> Told:
    remedy = Remedy(effect="Release it", command=f"release {name}", undo=f"delay {name}")
    return Told(
        Finding(
            id=f"waits-delay:{name}",
            severity=Severity.WARNING,
            title=f"{len(tasks)} waits for {name}",
            evidence=f"{name} holds I/O",
            tasks=tasks,
            remedies=(remedy,),
        ),
        [node],
    )


def test_one_task_that_waits_for_three_devices_is_one_finding() -> None:
    found = [_told(name, _TASK, node) for node, name in enumerate(("a", "b", "c"))]
    first, other = merged([*found, _told("d", frozenset({7, 8}), 3)])
    assert (first.finding.id, first.finding.tasks, first.nodes) == (
        "waits-delay:a",
        _TASK,
        [0, 1, 2],
    )
    assert first.finding.title.endswith("; the same task waits for b, c, too")
    assert first.finding.story == ("a: a holds I/O", "b: b holds I/O", "c: c holds I/O")
    (remedy,) = first.finding.remedies
    assert remedy.command == "release a\nrelease b\nrelease c"
    assert remedy.undo == "delay a\ndelay b\ndelay c"
    assert other.finding.id == "waits-delay:d"


def test_findings_without_tasks_stay_apart() -> None:
    found = [_told(name, frozenset(), 0) for name in "ab"]
    assert len(merged(found)) == 2


def test_remedies_with_another_risk_stay_apart() -> None:
    one, other = Remedy(effect="A", command="a"), Remedy(effect="A", command="b", risk="data")
    advice = Remedy(effect="Look")
    assert together([[one, advice], [other, advice]]) == (one, other, advice)
