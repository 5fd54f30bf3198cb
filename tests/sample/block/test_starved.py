# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sample-io``: writes that BFQ starves on a 6.1 kernel, against what the guest saw."""

from __future__ import annotations

import subprocess

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.drawings import charts
from kcensus.analyses.runner import Context
from kcensus.kernel.waiting.finders.io.requests import Requests
from kcensus.results import Bound, Result, Severity
from kcensus.sources import open_target
from tests.lab.truth import io
from tests.sample.conftest import Sample
from tests.unit.faces.test_render_terminal import on_terminal


@pytest.fixture(scope="module")
def result(starved: Sample) -> Result:
    return starved.run("iosched")


@pytest.fixture(scope="module")
def disk(starved: Sample) -> io.Disk:
    return io.read(starved.truth).disks["vda"]


def test_requests_are_those_in_flight(result: Result, disk: io.Disk) -> None:
    frame = result.tables["disks"].frame.set_index("disk")
    assert frame["scheduler"]["vda"] == disk.scheduler == "bfq"
    # With a scheduler, requests count as in flight from when they are dispatched.
    assert result.summary["dispatched"].value == sum(disk.inflight) > 0
    tags = disk.tags("hctx0/sched_tags_bitmap")
    assert result.summary["requests"].value == len(tags)


def test_starved_writes_are_named_first_with_who_sleeps_behind_them(
    starved: Sample, result: Result
) -> None:
    # The device had not answered for 17.7 s: no remedy for the scheduler helps before it does.
    device, first, *_ = result.findings
    assert (device.id, device.severity) == ("requests-stuck:vda", Severity.CRITICAL)
    assert (first.id, first.severity) == ("requests-starved:vda-async", Severity.CRITICAL)
    openers = {
        pid
        for pid, task in io.read(starved.truth).tasks.items()
        if task.comm == "look-up" and "xfs_buf_lock" in task.stack
    }
    assert first.figures["sleepers"].value == len(openers) > 3
    frame = result.tables["sleepers"].frame
    assert openers <= {*frame["pid"][frame["link"] == "proven"]}
    # The finding names those that sleep longest.
    longest = frame[frame["function"] == "xfs_buf_lock"].nlargest(3, "since")
    assert f"look-up (PID {', '.join(map(str, longest['pid']))} and 3 more)" in first.evidence
    # All tasks of the higher class, whether they have requests in the driver or in the scheduler.
    classes = result.tables["requests"].frame["priority"].str.partition(" ")[0].value_counts()
    remedy = first.remedies[0].command.removeprefix("ionice -t -c best-effort -p ")
    pids = subprocess.run(["sh", "-c", f"echo {remedy}"], capture_output=True, check=True).stdout
    assert classes["realtime"] == 47
    # A bio of one more task was merged into another's request.
    named = {*map(int, pids.split())}
    assert len(named) == 48
    comms = frame.set_index("pid")["comm"]
    assert named == {*comms.index[comms == "direct-read"]}


@pytest.mark.parametrize("table", ["sleepers", "scheduler_queues"])
def test_a_narrow_terminal_has_the_pids(result: Result, table: str) -> None:
    heading = next(
        line
        for line in on_terminal(result, 80, top=1, tables=[table]).splitlines()
        if line.split()[:1] in (["PID"], ["disk"])
    )
    assert "PID" in heading
    assert "held by" in heading or table != "sleepers"


def test_tasks_in_state_d_sleep_where_their_stacks_say(starved: Sample, result: Result) -> None:
    tasks = io.read(starved.truth).tasks
    frame = result.tables["sleepers"].frame.set_index("pid")
    assert set(frame.index) == set(tasks)
    assert frame["comm"].to_dict() == {pid: task.comm for pid, task in tasks.items()}
    assert [pid for pid, task in tasks.items() if frame["function"][pid] not in task.stack] == []


def test_requests_by_age_are_all_requests(result: Result) -> None:
    requests = result.tables["requests"].frame
    ages = result.tables["request_ages"].frame
    assert requests["age"].between(10, 60).all()
    assert {*ages["age"]} == {"10 to 60 s"}
    by_state = requests["state"].value_counts().to_dict()
    assert ages.set_index("state")["requests"].to_dict() == by_state
    (chart,) = (each for each in charts(result) if each.title == "Requests by age")
    assert sum(sum(bar.parts) for bar in chart.bars) == len(requests)
    assert chart.legend == ("inserted", "dispatched")


def test_requests_by_task_are_of_those_who_inserted_them(starved: Sample, result: Result) -> None:
    frame = result.tables["request_owners"].frame
    assert frame["requests"].sum() == len(result.tables["requests"].frame)
    first = frame.iloc[0]
    assert (first["task"], first["kind"], first["inserted"]) == ("xfsaild/vda", "async", 39)
    readers = {
        pid
        for pid, task in io.read(starved.truth).tasks.items()
        if task.comm == "direct-read" and "blk_mq_get_tag" not in task.stack
    }
    named = frame[frame["task"] == "direct-read"]
    # Each reads one block; a request with several is of the one who came first.
    assert {*named["pid"]} <= readers
    assert named["bytes"].sum() == len(readers) * 4096
    assert {*named["owner"]} == {"iomap_dio_bio_end_io"}


def test_hardware_queues_have_the_tags_of_debugfs(result: Result, disk: io.Disk) -> None:
    frame = result.tables["hardware_queues"].frame
    row = frame[frame["disk"] == "vda"].set_index("number").loc[0]
    assert row["tags_used"] == len(disk.tags("hctx0/tags_bitmap"))
    assert row["sched_tags_used"] == len(disk.tags("hctx0/sched_tags_bitmap"))
    assert row["requests"] == len(result.tables["requests"].frame)
    assert row["dispatched"] == result.summary["dispatched"].value
    assert (row["software"], row["stopped"]) == (0, "no")


def test_a_part_of_the_graph_that_fails_is_a_gap_of_both_analyses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: Requests) -> None:
        raise LookupError("no struct request")

    monkeypatch.setattr(Requests, "find", fail)
    context = Context.of(open_target("sample-io"))
    for name in ("iosched", "waits"):
        made = context.run(analyses()[name])
        assert any(gap.reason.endswith(Requests.about) for gap in made.gaps)
        if name == "iosched":
            assert made.summary["sleepers_behind_requests"].bound is Bound.AT_LEAST
