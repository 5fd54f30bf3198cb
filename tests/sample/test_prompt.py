# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings at a Python prompt, on recorded kernels."""

from __future__ import annotations

from pathlib import Path

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


def test_a_task_without_a_stack_has_a_reason() -> None:
    """Capsules hold no registers, so nothing tells where a task runs."""
    stacks = kcensus.stacks("sample", 1)
    assert stacks == {1: []}
    assert f"({stacks.reasons[1]})" in repr(stacks)
    assert "unreadable" not in repr(stacks)
    assert kcensus.stacks("sample", 2).reasons == {}


def test_a_type_that_is_not_recorded_names_one_that_is() -> None:
    with pytest.raises(kcensus.NotRecorded, match=r"did you mean struct dentry\?"):
        kcensus.objects("sample", "struct dentri", "d_inode")
    with pytest.raises(kcensus.NotRecorded) as refused:
        kcensus.objects("sample", "struct xyz", "d_inode")
    assert "did you mean" not in str(refused.value)


OWN = """
id = "ours"
title = "A patch of ours"
subsystem = "list_lru"
status = "never merged"
summary = "It does something."
symptom = "Something was slow."
[detect]
[[detect.rules]]
state = "present"
has = [{ member = "struct list_lru.xa" }]
[costs]
analysis = "list-lru"
key = "dead_slot_bytes"
what = "lists of unused ids"
[validate]
symptom-at-least = 1
metric = { analysis = "list-lru", key = "structural_bytes", what = "list_lrus" }
[[validate.workload]]
metric = { analysis = "list-lru", key = "super_blocks", what = "super blocks" }
within = 0.1
at-least = 1
"""


def test_a_catalogue_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(OWN)
    result = kcensus.validate("ours", "sample", "sample-after", catalogue=tmp_path)
    assert result.tables["pairs"]["useful"].tolist() == [True]
    with pytest.raises(LookupError, match="unknown patch 'ours'"):
        kcensus.validate("ours", "sample", "sample-after")
    assert "ours" in kcensus.patch_ids([str(tmp_path)])
    rows = kcensus.patches("sample", catalogue=[tmp_path]).tables["patches"].set_index("patch")
    assert rows.loc["ours", "state"] == "absent"
    assert rows.loc["ours", "cost_bytes"] > 1 << 20
    (tmp_path / "ours.toml").write_text(OWN.replace("status", "state"))
    with pytest.raises(kcensus.CatalogueError, match=r"ours\.toml"):
        kcensus.patches("sample", catalogue=str(tmp_path))


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
