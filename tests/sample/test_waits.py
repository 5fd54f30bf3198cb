# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom in the samples: a deadlock of four tasks, and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus import saved
from kcensus.render.html import write_html
from kcensus.render.json import write_json
from kcensus.results import Danger, Severity
from kcensus.results.graphs import Shape, picture_of
from tests.lab.truth import waits as truth_of
from tests.pictures import not_shown
from tests.sample.conftest import IO, WAITS, Sample, open_sample


def test_the_picture_of_a_saved_result_is_the_same(starved: Sample, tmp_path: Path) -> None:
    result = starved.run("waits")
    path = tmp_path / "w.json"
    with path.open("w", encoding="utf-8") as file:
        write_json(result, file)
    (section,) = saved.load(str(path)).sections
    assert section.result is not None
    assert picture_of(section.result) == picture_of(result)


def test_a_task_that_the_log_reports_again_is_one_hung_task() -> None:
    """The log has 21 messages about three tasks."""
    found = {each.id: each for each in open_sample(WAITS).run("waits").findings}
    assert found["log-hung-task"].figures["tasks"].value == 3


def test_hung_tasks_lead_to_the_deadlock() -> None:
    sample = open_sample(WAITS)
    (finding,) = (each for each in sample.run("waits").findings if each.id == "log-hung-task")
    assert finding.part_of.startswith("waits-deadlock:")
    (hung,) = (each for _, each in sample.report.findings if each.id == "log-hung-task")
    assert hung.part_of.startswith("waits-deadlock:")


def test_a_page_leads_to_its_device_and_to_the_disk_below() -> None:
    sample = open_sample("sample")
    tables = sample.run("waits").tables
    nodes = tables["nodes"].frame.set_index("node")
    edges = tables["edges"].frame
    names = nodes["kind"] + " " + nodes["name"]
    steps = [
        (names[source], kind, names[target])
        for source, kind, target in zip(
            edges["source"], edges["kind"], edges["target"], strict=True
        )
    ]
    assert ("page of block device dm-6", "served by", "device dm-6") in steps
    assert ("device dm-6", "stacked on", "disk ram1") in steps
    (finding,) = sample.run("iosched").findings
    assert finding.tasks <= {*tables["stacks"].frame["pid"]}


@pytest.mark.parametrize(
    ("name", "part", "cause"),
    [
        ("sample-after", "waits-copies", "dm-snapshot-waiters"),
        ("sample-after", "tasks-blocked", "dm-snapshot-waiters"),
        (IO, "waits-io", "requests-stuck"),
        (IO, "tasks-blocked", "requests-stuck"),
        (IO, "tags-exhausted", "requests-stuck"),
    ],
)
def test_waits_are_part_of_their_cause(name: str, part: str, cause: str) -> None:
    found = {each.kind: each for _, each in open_sample(name).report.findings}
    assert found[part].part_of.partition(":")[0] == cause


@pytest.mark.parametrize("name", [IO, WAITS])
def test_the_tasks_of_findings_are_in_the_picture(name: str, tmp_path: Path) -> None:
    result = open_sample(name).run("waits")
    assert result.findings
    assert not_shown(result, tmp_path) == []


def test_the_picture_shows_what_the_tables_say(starved: Sample, tmp_path: Path) -> None:
    result = starved.run("waits")
    drawn = picture_of(result)
    behind = result.tables["nodes"].frame.set_index("node")["behind"].to_dict()
    edges = result.tables["edges"].frame
    strengths = edges.set_index(["source", "target"])["strength"].to_dict()
    assert drawn.panels
    assert not any(panel.ring for panel in drawn.panels)
    for panel in drawn.panels:
        root = panel.rows[0].box
        assert f"{behind[root.node]:,} task" in panel.title
        for source, target, link in panel.edges:
            if source.shape is not Shape.MORE:
                assert strengths[source.node, target.node] == link.strength
    waiting = {*edges[edges["kind"] == "waits for"]["source"]}
    told = len(waiting & {box.node for box in drawn.boxes})
    several = [box.name for box in drawn.boxes if box.shape is Shape.MORE]
    told += sum(int(text.split()[0].replace(",", "")) for text in several)
    assert told == len(waiting)
    path = tmp_path / "w.html"
    write_html(result, path)
    assert path.read_text().count("<figure") == len(drawn.panels)


def test_the_deadlock_is_that_of_the_log(deadlocked: Sample) -> None:
    result, truth = deadlocked.run("waits"), truth_of.read(deadlocked.truth)
    (wanted,) = truth.cycles()
    cycle = result.tables["cycles"].frame
    assert {*cycle["pid"]} == wanted
    assert len(cycle) == len(wanted) == 4
    assert result.amount("deadlocks") == 1
    (finding,) = (each for each in result.findings if each.danger is Danger.DEADLOCK)
    assert finding.severity is Severity.CRITICAL
    # It is a capsule already.
    assert "capsule create" not in finding.evidence
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
    findings = deadlocked.run("waits").findings
    assert [finding.patch for finding in findings if not finding.part_of] == [""]
