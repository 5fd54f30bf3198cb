# SPDX-License-Identifier: LGPL-2.1-or-later
"""What `kcensus iosched --trace` says of a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcensus import cli
from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.drawings import charts
from kcensus.analyses.iosched.run import of_trace
from kcensus.analyses.iosched.trace.figures import Figures
from kcensus.progress import SilentProgress
from kcensus.render.html.svg import svg
from kcensus.results import Answer, Bound, CheckStatus, Result, Severity
from kcensus.sources.blktrace.files import read_trace
from tests.unit.sources.blktrace import recorded as files
from tests.unit.sources.blktrace.recorded import WRITE, Event, life, message

pytestmark = pytest.mark.ends

SECOND = 10**9
HOSTILE = b"\xff\x1b[2J<b>$x^2$\n|"


def answer_of(directory: Path, name: str) -> Answer:
    return of_trace(str(directory / name), SilentProgress())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.unpack(tmp_path_factory.mktemp("trace"), "starved") / "starved"


@pytest.fixture(scope="module")
def starved(recorded: Path) -> Answer:
    return answer_of(recorded.parent, recorded.name)


def traced(directory: Path, made: list[Event]) -> Answer:
    made = sorted(made, key=lambda each: each.time)
    (directory / "x.blktrace.0").write_bytes(files.packed(made))
    return answer_of(directory, "x")


def values(answer: Answer) -> dict[str, Any]:
    return {key: figure.value for key, figure in answer.summary.items()}


def reads(*starts: int, sector: int = 1000) -> list[Event]:
    places = [(sector + 8 * step, start) for step, start in enumerate(starts)]
    return [each for at, start in places for each in life(at, *range(start, start + 5), pid=6)]


def starving(waited: float, count: int = 20, *, dispatched: bool = True) -> list[Event]:
    """Return an async write that waits while sync reads of another task are dispatched."""
    end = int(waited * 1e9)
    moments = (0, 1, 2, end, end + 1) if dispatched else (0, 1, 2)
    made = [files.name_of(0, 5, HOSTILE), *life(8, *moments, flags=WRITE, pid=5)]
    return made + reads(*(1000 + step * (end // count) for step in range(count)))


def turn(start: int, *during: str, dispatched: int = 0) -> list[Event]:
    """Return the messages of CFQ about a turn of the queue of :func:`starving`."""
    words = ["cfq5A  / set_active wl_class:1 wl_type:0", *during, "cfq5A  / slice expired t=1"]
    words.append(f"cfq5A  / sl_used=1 disp={dispatched} charge=0 iops=1 sect=0")
    return [message(start + at, text) for at, text in enumerate(words)]


def test_an_async_write_that_starved_is_the_first_finding(starved: Answer) -> None:
    first = starved.findings[0]
    assert (first.id, first.severity) == ("trace-async-starved:254,0", Severity.WARNING)
    assert first.figures["waited"].value == pytest.approx(6.64755047)
    assert first.figures["held"].value == pytest.approx(6.6, abs=0.1)
    assert "kworker/u4:1" in first.evidence
    assert starved.summary["trace_worst_async_write_wait"].value == pytest.approx(6.64755047)
    assert {each.status for each in starved.checks} == {CheckStatus.AGREE}
    assert starved.gaps == []
    # Memory and trace have no key in common.
    assert all(key.startswith("trace_") for key in (*starved.summary, *starved.tables))


@pytest.mark.parametrize(
    ("scheduler", "waited", "count", "severity"),
    [
        ("bfq", 0.9, 20, None),
        ("bfq", 1.2, 20, Severity.NOTICE),
        ("bfq", 5.4, 20, Severity.WARNING),
        ("bfq", 15.6, 20, Severity.CRITICAL),
        ("bfq", 8.1, 9, None),
        ("", 4.9, 20, None),  # mq-deadline lets writes wait so long
        ("", 5.4, 20, Severity.WARNING),
        ("", 15.6, 20, Severity.CRITICAL),
    ],
)
def test_the_wait_and_those_who_went_first_decide(
    tmp_path: Path, scheduler: str, waited: float, count: int, severity: Severity | None
) -> None:
    messages = [message(3, f"{scheduler}5A add_request 1")] if scheduler else []
    answer = traced(tmp_path, [*starving(waited, count), *messages])
    assert [each.severity for each in answer.findings] == ([] if severity is None else [severity])
    worst = answer.summary["trace_worst_async_write_wait"]
    assert worst.value == pytest.approx(waited)
    assert worst.bound is Bound.EXACT
    assert "trace_cfq_turns_lost" not in answer.summary  # without messages of CFQ, it is unknown


def test_a_write_that_still_waits_counts_with_its_age(tmp_path: Path) -> None:
    made = [*starving(20.0, 40, dispatched=False), Event("P", 20_000_000_002, flags=0)]
    answer = traced(tmp_path, made)
    assert answer.summary["trace_waiting"].value == 1
    assert answer.summary["trace_worst_async_write_wait"].bound is Bound.AT_LEAST
    finding = answer.findings[0]
    assert (finding.figures["waiting"].value, finding.figures["waited"].value) == (1, 20.0)
    row = answer.tables["trace_waits"].frame.iloc[0]
    assert (row["state"], row["waited"], row["overtaken_by"]) == ("inserted", 20.0, 40)


def test_messages_name_the_scheduler_its_fix_and_the_queue(tmp_path: Path) -> None:
    made = [*starving(15.6), message(3, "cfq5A  / insert_request")]
    for second in (1, 2, 3):
        made += turn(second * SECOND, "cfq1618SN / preempt")
    answer = traced(tmp_path, made)
    finding = answer.findings[0]
    assert finding.patch == "cfq-async-starvation"
    assert finding.remedies[0].command == "echo deadline > /sys/dev/block/8:0/queue/scheduler"
    assert "cfq5A" in finding.evidence
    queue = answer.tables["trace_queues"].frame.iloc[0]
    assert (queue["queue"], queue["preempted"], queue["expired_empty"]) == ("cfq5A", 3, 3)


@pytest.mark.parametrize(
    ("began", "dispatched", "lost"),
    [
        (10.0, False, 1),  # selected long after the write had expired, and left without it
        (0.2, False, 0),  # when it was selected, the write had not expired
        (10.0, True, 0),  # it dispatched something
    ],
)
def test_turns_without_a_dispatch_show_the_kernel_without_the_fix(
    tmp_path: Path, began: float, dispatched: bool, lost: int
) -> None:
    made = [*starving(15.6), message(3, "cfq5A  / insert_request")]
    during = ["cfq5A  / dispatched a request"] * dispatched
    made += turn(int(began * 1e9), *during, "cfq6S  / preempt", dispatched=int(dispatched))
    answer = traced(tmp_path, made)
    assert answer.summary["trace_cfq_turns_lost"].value == lost
    finding = answer.findings[0]
    assert finding.figures["turns_lost"].value == lost
    assert ("lacks the fix" in finding.evidence) == bool(lost)
    assert finding.patch == ("cfq-async-starvation" if lost else "")


def test_a_request_that_was_merged_into_another_one_does_not_wait(tmp_path: Path) -> None:
    """Kernels with CFQ have no event for it: D and C of one request reach over both."""
    made = [*life(0, 0, 1, 2, flags=WRITE), *life(8, 10, 11, 12, flags=WRITE)]
    made += life(0, 3000, 5000, letters="DC", sectors=16, flags=WRITE)
    made += [message(each, "cfq5A  / insert_request") for each in (3, 13)]
    made += turn(10 * SECOND, "cfq6S  / preempt")
    made += reads(*range(10_000, 30 * SECOND, 100_000_000), sector=50_000)
    # One of the other direction, and one before its insertion, do not count: they are requests.
    made += life(800, SECOND, SECOND + 1, SECOND + 2, flags=WRITE)
    made += [Event("D", 2 * SECOND, 792, 32), Event("D", 9 * 10**8, 792, 32, flags=WRITE)]
    answer = traced(tmp_path, made)
    waits = answer.tables["trace_waits"].frame.set_index("sector")
    assert waits.loc[8, "waited"] == pytest.approx(2988e-9)
    assert waits.loc[800, "state"] == "inserted"
    keys = ("trace_waiting", "trace_cfq_turns_lost", "trace_requests")
    assert [values(answer)[key] for key in keys] == [1, 0, 304]
    assert {each.status for each in answer.checks} == {CheckStatus.AGREE}


def test_the_posted_excerpt_waits_15_6_seconds(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text(files.STARVED)
    answer = answer_of(tmp_path, "trace.txt")
    assert answer.summary["trace_worst_async_write_wait"].value == 15.626265317
    # The preemption that it shows is 25 ms after the insertion: too early to prove anything.
    assert answer.summary["trace_cfq_turns_lost"].value == 0
    phases = answer.tables["trace_phases"].frame.set_index("phase")
    assert phases.loc["I2D", "longest"] == 15.626265317
    assert phases.loc["I2D", "operation"] == "async write"
    assert answer.tables["trace_waits"].frame["task"].tolist() == ["xfsaild/sda1"]


def test_phases_have_percentiles_by_operation_and_device(tmp_path: Path) -> None:
    made = []
    for step in range(1, 101):
        start = 10_000 * step
        made += life(8 * step, start, start + 1, start + 2, start + 2 + step, start + 1000)
    frame = traced(tmp_path, made).tables["trace_phases"].frame
    row = frame[frame["phase"] == "I2D"].iloc[0]
    assert (row["device"], row["operation"], row["count"]) == ("8,0", "sync read", 100)
    nanoseconds = [round(row[key] * 1e9, 3) for key in ("average", "median", "p90", "p99")]
    assert nanoseconds == [50.5, 50, 90, 99]
    assert row["longest"] == 100e-9


def test_losses_are_gaps(tmp_path: Path) -> None:
    files.unpack(tmp_path, "starved")
    part = tmp_path / "starved.blktrace.1"
    (tmp_path / "starved.blktrace.3").write_bytes(part.read_bytes()[:-20])
    part.unlink()
    answer = answer_of(tmp_path, "starved")
    counts = {gap.what: gap.count for gap in answer.gaps}
    assert counts["files of the trace"] == 1  # of CPU 2, nothing is known
    assert answer.summary["trace_offline_cpus"].value == 1
    assert counts["bytes of the trace"] == 28
    assert answer.summary["trace_requests"].bound.value == "at least"


def test_nothing_from_a_trace_reaches_a_screen_or_page_unescaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [*starving(15.6), message(7, "cfq5A\x1b / set_active"), message(8, "cfq5A / \x1b")]
    traced(tmp_path, made)
    page = tmp_path / "page.html"
    assert cli.main(["iosched", "--trace", str(tmp_path / "x"), "--all", "--no-pager"]) == 0
    screen = capsys.readouterr().out
    assert "\x1b" not in screen
    assert "\\x1b[2J" in screen
    assert cli.main(["iosched", "--trace", str(tmp_path / "x"), "--html", str(page)]) == 0
    text = page.read_text()
    assert "\x1b" not in text
    assert "<b>$x" not in text


def test_a_trace_needs_no_target(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["iosched", "--trace", str(recorded), "--no-pager"]) == 0
    screen = capsys.readouterr().out
    titles = {spec.name: spec.title for spec in analyses()["iosched"].tables()}
    assert all(titles[name] in screen for name in ("trace_phases", "trace_tasks"))
    assert cli.main(["iosched", "--trace", str(recorded), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["target"] == str(recorded)
    assert len(made["tables"]["trace_waits"]) == 537


@pytest.mark.parametrize("name", ["nothing", "nothing/x"])
def test_a_trace_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(AnalysisError):
        answer_of(tmp_path, name)
    assert cli.main(["iosched", "--trace", str(tmp_path / name)]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_charts_show_waits_over_time_by_length_and_as_a_timeline(starved: Answer) -> None:
    result = Result("iosched", "x", "", **{k: v for k, v in vars(starved).items() if k != "source"})
    made = {chart.title: chart for chart in charts(result)}
    specs = analyses()["iosched"].chart_specs()
    assert [*made] == [spec.title for spec in specs if spec.table in starved.tables]
    over_time, longest, histogram, timeline = made.values()
    frame = starved.tables["trace_over_time"].frame
    assert {*over_time.legend} == {*frame["task"]}
    assert len(over_time.bars) == len(longest.bars) == 32
    assert all(len(title) <= 45 for title in made)
    assert sum(sum(bar.parts) for bar in histogram.bars) == 537
    starts = [bar.start for bar in timeline.bars]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert max(bar.parts[0] for bar in timeline.bars) == pytest.approx(6.64755047)
    for chart in made.values():
        assert svg(chart).startswith("<svg")


def test_the_devices_with_the_longest_waits_have_findings(tmp_path: Path) -> None:
    many = [(number, each) for number in range(1, 13) for each in starving(5.0 + number)]
    made = [replace(each, device=number << 20) for number, each in many if each.note < 0]
    found = traced(tmp_path, made).findings
    assert [each.id for each in found] == [f"trace-async-starved:{n},0" for n in range(12, 4, -1)]
    assert found[0].figures["more_devices"].value == 4
    # The queue of a partition is that of its disk.
    made = [replace(each, device=8 << 20 | 17) for each in starving(16.0) if each.note < 0]
    remedy = traced(tmp_path, made).findings[0].remedies[0]
    assert "/sys/dev/block/8:17/../queue/scheduler" in remedy.command


def test_the_rows_of_waits_have_the_names_of_their_own_tasks(tmp_path: Path) -> None:
    """Names of tasks that did I/O on another disk before are older than the first event."""
    made = []
    for pid in range(100, 140):
        start, name = SECOND + pid, b"t%d" % pid
        made += [files.name_of(start, pid, b"bash"), files.name_of(start + 5000, pid, name)]
        start *= 60
        made += life(8 * pid, start, start + 1, start + 2, start + 2 + SECOND, pid=pid)
    frame = traced(tmp_path, made).tables["trace_waits"].frame
    assert len(frame) == 40
    assert frame["task"].tolist() == [f"t{pid}" for pid in frame["pid"]]


@pytest.mark.parametrize("letters", ["QGIDR", "QGIDRI"])
def test_a_requeued_request_is_not_in_the_hands_of_the_scheduler(
    tmp_path: Path, letters: str
) -> None:
    made = life(8, 0, 1, 2, 3, SECOND, SECOND, letters=letters, flags=WRITE)
    made += reads(*range(SECOND, 9 * SECOND, 200_000_000))
    answer = traced(tmp_path, [*made, Event("P", 9 * SECOND, flags=0)])
    keys = ("in_driver", "waiting", "requeued_waiting", "worst_async_write_wait")
    assert [values(answer)[f"trace_{key}"] for key in keys] == [0, 0, 1, 1e-9]
    row = answer.tables["trace_waits"].frame.set_index("sector").loc[8]
    assert (row["state"], row["waited"], row["requeued"]) == ("requeued", 1e-9, 8.0)
    assert [each.kind for each in answer.findings] == ["trace-requests-requeued"]
    # One that was dispatched again is in the driver.
    found = values(traced(tmp_path, life(8, 0, 1, 2, 3, 4, 5, 6, letters="QGIDRID")))
    assert (found["trace_in_driver"], found["trace_waiting"]) == (1, 0)


def test_the_time_between_two_dispatches_is_a_phase(tmp_path: Path) -> None:
    made = life(8, 0, 1, 2, 3, 4, 8 * SECOND, 8 * SECOND + 5, letters="QGIDRDC")
    answer = traced(tmp_path, made)
    phases = answer.tables["trace_phases"].frame.set_index("phase")
    assert phases.loc["D2D", "longest"] == pytest.approx(8)
    assert phases.loc["D2C", "longest"] == pytest.approx(5e-9)
    assert answer.findings[0].figures["waited"].value == pytest.approx(8)


def test_requests_that_were_inserted_earlier_do_not_overtake(tmp_path: Path) -> None:
    """All reads were in the queue before the write; it waits for its turn."""
    made = life(8, 50, 51, 52, 15 * SECOND, 15 * SECOND + 1, flags=WRITE)
    for step in range(1, 61):
        made += life(1000 + 8 * step, 0, 1, 2, step * 240_000_000, step * 240_000_000 + 1, pid=6)
    answer = traced(tmp_path, made)
    assert "trace-async-starved" not in {each.kind for each in answer.findings}
    assert answer.tables["trace_waits"].frame["overtaken_by"].max() == 0


def test_a_device_that_dispatches_nothing_is_not_the_schedulers_fault(tmp_path: Path) -> None:
    """20 reads overtake the write for 2 s, then the device is silent for 30 s."""
    end, last = 32 * SECOND, 1000 + 1_900_000_000
    made = life(8, 0, 1, 2, end, end + 1, flags=WRITE)
    made += reads(*range(1000, last, 100_000_000), end - 40)
    made += life(8000, last, last + 1, last + 2, last + 3, end - 50, pid=6)
    answer = traced(tmp_path, made)
    (stuck,) = answer.findings
    assert stuck.kind == "trace-requests-stuck"
    worst = answer.summary["trace_worst_in_driver"]
    for figure in (stuck.figures["waited"], stuck.figures["silent"], worst):
        assert figure.value == pytest.approx(30.1, abs=0.01)


@pytest.mark.parametrize(
    ("completed", "kind"), [(2, "trace-requests-overdue"), (40, "trace-requests-stuck")]
)
def test_requests_wait_for_an_empty_driver_or_a_silent_one(
    tmp_path: Path, completed: int, kind: str
) -> None:
    made = life(8, 0, 1, 2, 3, completed * SECOND)
    for step in range(5):
        made += life(800 + 8 * step, SECOND, SECOND + 1, SECOND + 2, flags=WRITE)
    (finding,) = traced(tmp_path, [*made, Event("P", 31 * SECOND, flags=0)]).findings
    assert finding.kind == kind
    assert finding.figures["waiting"].value == 5
    assert finding.figures["waited"].value == (29.0 if completed == 2 else 39.999999997)


@pytest.mark.parametrize("got", [True, False])
def test_a_bio_that_waits_for_a_request_is_no_request(tmp_path: Path, got: bool) -> None:
    made = life(8, 0, 1, 2, 3, 30 * SECOND)
    late = (30 * SECOND + 1, 30 * SECOND + 2, 30 * SECOND + 3, 30 * SECOND + 4)
    made += life(800, SECOND, *(late if got else ()), flags=WRITE)
    answer = traced(tmp_path, made)
    assert answer.summary["trace_requests"].value == 1 + got
    assert answer.summary["trace_without_request"].value == int(not got)
    stuck, awaited = answer.findings
    assert (stuck.kind, awaited.kind) == ("trace-requests-stuck", "trace-requests-awaited")
    assert awaited.part_of == stuck.id
    assert awaited.figures["waited"].value == pytest.approx(29)
    # Bios of a device without requests wait for none.
    made = [*life(8, 0, device=253 << 20), *life(800, 1, 2, 3, 4, 20 * SECOND + 4)]
    found = values(traced(tmp_path, made))
    assert (found["trace_without_request"], found["trace_requests"]) == (0, 1)


def test_waits_and_overtakers_are_those_of_a_loop_over_requests(recorded: Path) -> None:
    figures = Figures(read_trace(str(recorded)))
    bios = figures.bios
    is_sync = figures.is_sync & (bios.merged == -1) & (bios.dispatched != -1)
    sync = [*zip(bios.inserted[is_sync].tolist(), bios.dispatched[is_sync].tolist(), strict=True)]
    rows = np.flatnonzero(figures.wait >= 0)
    overtaken, held = figures.overtaken(rows).tolist(), figures.held(rows).tolist()
    assert max(overtaken) > 300
    for place, row in enumerate(rows.tolist()):
        begin = int(bios.inserted[row])
        end = begin + int(figures.wait[row])
        passed = [gone for inserted, gone in sync if inserted > begin and gone < end]
        assert overtaken[place] == len(passed)
        assert sorted(bios.dispatched[figures.overtakers(row)].tolist()) == sorted(passed)
        # The disk is never silent for a second.
        assert held[place] == max(passed, default=begin) - begin


def test_requests_in_the_scheduler_add_up_and_no_silence_looks_short(tmp_path: Path) -> None:
    made = life(8, 0, 1, 2, 32 * SECOND, 32 * SECOND + 1, flags=WRITE, pid=5)
    made += life(800, 0, 1, 2, SECOND, SECOND + 1, pid=6)
    answer = traced(tmp_path, [files.name_of(0, 5, b"writer"), *made])
    frame = answer.tables["trace_over_time"].frame
    waiting = frame.groupby("task")["waiting"].sum()
    assert waiting["writer"] == pytest.approx(32, abs=0.01)
    assert waiting["?"] == pytest.approx(1, abs=0.01)
    assert frame["dispatched"].sum() == 2
    longest = answer.tables["trace_slices"].frame["longest"]
    assert longest.tolist() == pytest.approx([*range(1, 33)], abs=0.001)


def test_the_worst_wait_of_each_task_and_operation_is_a_row(starved: Answer) -> None:
    waits, tasks = (starved.tables[f"trace_{name}"].frame for name in ("waits", "tasks"))
    worst = waits.groupby(["task", "device", "operation"])["waited"].max()
    assert len(tasks) == len(worst)
    keys = zip(tasks["task"], tasks["device"], tasks["operation"], strict=True)
    assert dict(zip(keys, tasks["longest"], strict=True)) == worst.to_dict()
    assert tasks["count"].sum() == 537


def test_the_queue_of_the_longest_wait_comes_first(tmp_path: Path) -> None:
    made = [*starving(15.6), message(3, "cfq5A  / insert_request")]
    for name in ("cfq6S", "cfq7S"):
        made += [message(10, f"{name}  / set_active"), message(11, f"{name}  / sl_used=1 disp=0")]
    frame = traced(tmp_path, made).tables["trace_queues"].frame
    assert frame["queue"].iloc[0] == "cfq5A"
    assert frame["longest"].iloc[0] == pytest.approx(15.6)


def test_while_the_driver_hangs_no_switch_of_the_scheduler_is_advised(tmp_path: Path) -> None:
    made = [*starving(15.6), *life(8000, 0, 1, 2, 15 * SECOND), Event("P", 30 * SECOND, flags=0)]
    found = {each.kind: each for each in traced(tmp_path, made).findings}
    assert found["trace-async-starved"].remedies == ()
    assert found["trace-async-starved"].no_remedy


@pytest.mark.parametrize("dispatched", [True, False])
def test_a_request_whose_bio_was_queued_before_the_trace_waits(
    tmp_path: Path, dispatched: bool
) -> None:
    lost = "QG" if dispatched else "QGDC"
    made = [each for each in starving(16.0) if each.letter not in lost or each.pid != 5]
    answer = traced(tmp_path, [*made, Event("P", 16_000_000_002, flags=0)])
    assert answer.summary["trace_waiting"].value == int(not dispatched)
    assert answer.summary["trace_worst_async_write_wait"].value == pytest.approx(16.0)
    assert [each.kind for each in answer.findings] == ["trace-async-starved"]
    assert answer.gaps == []


@pytest.mark.parametrize("place", [20, 103])
def test_a_damaged_time_is_no_wait(tmp_path: Path, place: int) -> None:
    made = life(8, 0, 1, 2, flags=WRITE, pid=5) + reads(*range(3, 20_000, 1000))
    made.insert(place, Event("P", 10 * 86_400 * SECOND, flags=0))
    (tmp_path / "x.blktrace.0").write_bytes(files.packed(made))
    answer = answer_of(tmp_path, "x")
    assert answer.findings == []
    assert answer.summary["trace_duration"].value == pytest.approx(0, abs=1)
    assert [(gap.what, gap.count) for gap in answer.gaps] == [("events or lines", 1)]


def test_cpus_that_are_offline_are_no_gap(tmp_path: Path) -> None:
    for cpu in (0, 2, 4, 6):
        made = life(8 * cpu, 0, 1, 2, 3, 4, cpu=cpu)
        (tmp_path / f"x.blktrace.{cpu}").write_bytes(files.packed(made))
    answer = answer_of(tmp_path, "x")
    assert answer.gaps == []
    assert answer.summary["trace_requests"].bound is Bound.EXACT
    assert answer.summary["trace_offline_cpus"].value == 3


def test_actions_of_zoned_devices_are_known(tmp_path: Path) -> None:
    made = [*life(8, 0, 1, 2, 3, 4), *(Event(f"ZONE_{each}", 9) for each in ("PLUG", "MGMT"))]
    (tmp_path / "x.blktrace.0").write_bytes(files.packed(made, version=8))
    answer = answer_of(tmp_path, "x")
    assert answer.gaps == []
    assert answer.summary["trace_events"].value == 7


def test_the_queues_that_fared_worst_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcensus.analyses.iosched.trace.tables.MAX_ROWS", 2)
    words = ("set_active wl_class:1", "sl_used=1 disp=0 charge=0 iops=1 sect=0")
    names = ("cfq1A", "cfq2A", "cfq3A", "cfq3A")
    made = [message(9 + at, f"{each}  / {word}") for at, each in enumerate(names) for word in words]
    made += starving(15.6)
    assert "cfq3A" in traced(tmp_path, made).tables["trace_queues"].frame["queue"].tolist()
