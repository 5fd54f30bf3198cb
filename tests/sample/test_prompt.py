# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings at a Python prompt, on recorded kernels."""

from __future__ import annotations

import pytest

import kcensus
from kcensus.results import Finding, Severity


def test_findings_of_reports_and_results_have_one_shape() -> None:
    report = kcensus.report("sample")
    assert all(isinstance(each, Finding) for each in report.findings)
    (name,) = {each.analysis for each in report.results["kcopyd"].findings}
    assert name == "kcopyd"
    assert {each.analysis for each in report.findings} <= {*report.results}
    by_analysis = {id for each in report.results.values() for id in map(_key, each.findings)}
    assert by_analysis == {*map(_key, report.findings)}


def _key(finding: Finding) -> tuple[str, str]:
    return finding.analysis, finding.id


def test_the_stacks_of_a_finding() -> None:
    target = kcensus.open_target("sample-waits")
    waits = kcensus.waits(target)
    finding = next(each for each in waits.findings if each.tasks)
    stacks = kcensus.stacks(target, finding)
    assert {*stacks} == finding.tasks
    table = waits.tables["stacks"]
    assert table["pid"].nunique() > 1
    for pid, functions in stacks.items():
        known = table.loc[table["pid"] == pid, "function"]
        assert not len(known) or functions == [*known]
    pid = min(stacks)
    for place in (pid, [pid], table.loc[table["pid"] == pid, "address"].iloc[:1]):
        assert kcensus.stacks(target, place) == {pid: stacks[pid]}
    assert f"({pid}):\n    {stacks[pid][0]}" in repr(stacks)
    with pytest.raises(LookupError, match="there is no task 4194303"):
        kcensus.stacks(target, 4194303)
    with pytest.raises(ValueError, match="names no tasks"):
        kcensus.stacks(target, Finding(id="x", severity=Severity.INFO, title="x"))
