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
from kcensus.analyses.iosched.run import of_trace
from kcensus.analyses.iosched.trace.figures import Figures
from kcensus.charts import charts
from kcensus.progress import SilentProgress
from kcensus.render.html.svg import svg
from kcensus.results import Answer, Bound, CheckStatus, Result, Severity
from kcensus.trace.files import read_trace
from tests.unit.trace.recorded import STARVED, WRITE, Event, life, message, name_of, packed, unpack

TITLES = {spec.name: spec.title for spec in analyses()["iosched"].tables()}
HOSTILE = b"\x1b[2J<b>$x^2$\n|"


def answer_of(directory: Path, name: str) -> Answer:
    return of_trace(str(directory / name), SilentProgress())


def traced(directory: Path, made: list[Event]) -> Answer:
    made = sorted(made, key=lambda each: each.time)
    (directory / "x.blktrace.0").write_bytes(packed(made))
    return answer_of(directory, "x")


def document(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert cli.main(["iosched", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def starving(waited: float, count: int = 20, *, dispatched: bool = True) -> list[Event]:
    """Return an async write that waits while sync reads of another task are dispatched."""
    end = int(waited * 1e9)
    moments = (0, 1, 2, end, end + 1) if dispatched else (0, 1, 2)
    made = [name_of(0, 5, HOSTILE), *life(8, *moments, flags=WRITE, pid=5)]
    for step in range(count):
        start = 1000 + step * (end // count)
        made += life(1000 + 8 * step, *(start + each for each in range(5)), pid=6)
    return made


def test_an_async_write_that_starved_is_the_first_finding(tmp_path: Path) -> None:
    answer = answer_of(unpack(tmp_path, "starved"), "starved")
    first = answer.findings[0]
    assert (first.id, first.severity) == ("trace-async-starved:254,0", Severity.WARNING)
    assert first.figures["waited"].value == pytest.approx(6.64755047)
    assert first.figures["held"].value == pytest.approx(6.6, abs=0.1)
    assert "kworker/u4:1" in first.evidence
    assert answer.summary["trace_worst_async_write_wait"].value == pytest.approx(6.64755047)
    assert {each.status for each in answer.checks} == {CheckStatus.AGREE}
    assert answer.gaps == []


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
    assert answer.summary["trace_worst_async_write_wait"].value == pytest.approx(waited)


def test_a_write_that_still_waits_counts_with_its_age(tmp_path: Path) -> None:
    made = [*starving(20.0, 40, dispatched=False), Event("P", 20_000_000_002, flags=0)]
    answer = traced(tmp_path, made)
    assert answer.summary["trace_waiting"].value == 1
    finding = answer.findings[0]
    assert finding.figures["waiting"].value == 1
    assert finding.figures["waited"].value == 20.0
    row = answer.tables["trace_waits"].frame.iloc[0]
    assert (row["state"], row["waited"], row["overtaken_by"]) == ("inserted", 20.0, 40)


def test_messages_name_the_scheduler_its_fix_and_the_queue(tmp_path: Path) -> None:
    made = [*starving(15.6), message(3, "cfq5A  / insert_request")]
    for start in (10**9, 2 * 10**9, 3 * 10**9):
        made.append(message(start, "cfq5A  / set_active wl_class:1 wl_type:0"))
        made.append(message(start + 1, "cfq1618SN / preempt"))
        made.append(message(start + 2, "cfq5A  / slice expired t=1"))
        made.append(message(start + 3, "cfq5A  / sl_used=1 disp=0 charge=0 iops=1 sect=0"))
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
    start = int(began * 1e9)
    made = starving(15.6)
    made.append(message(3, "cfq5A  / insert_request"))
    made.append(message(start, "cfq5A  / set_active wl_class:1 wl_type:0"))
    if dispatched:
        made.append(message(start + 1, "cfq5A  / dispatched a request"))
    made.append(message(start + 2, "cfq6S  / preempt"))
    made.append(message(start + 3, "cfq5A  / slice expired t=1"))
    count = int(dispatched)
    made.append(message(start + 4, f"cfq5A  / sl_used=1 disp={count} charge=0 iops=1 sect=0"))
    answer = traced(tmp_path, made)
    assert answer.summary["trace_cfq_turns_lost"].value == lost
    finding = answer.findings[0]
    assert finding.figures["turns_lost"].value == lost
    assert ("lacks the fix" in finding.evidence) == bool(lost)
    assert finding.patch == ("cfq-async-starvation" if lost else "")


def test_a_request_that_was_merged_into_another_one_does_not_wait(tmp_path: Path) -> None:
    """Kernels with CFQ have no event for it: D and C of one request reach over both."""
    made = [*life(0, 0, 1, 2, flags=WRITE), *life(8, 10, 11, 12, flags=WRITE)]
    made += [
        Event("D", 3000, 0, 16, flags=WRITE),
        Event("C", 5000, 0, 16, flags=WRITE),
        *(message(each, "cfq5A  / insert_request") for each in (3, 13)),
        message(10**10, "cfq5A  / set_active wl_class:0 wl_type:0"),
        message(10**10 + 1, "cfq6S  / preempt"),
        message(10**10 + 2, "cfq5A  / slice expired t=1"),
        message(10**10 + 3, "cfq5A  / sl_used=1 disp=0 charge=0 iops=1 sect=0"),
    ]
    for step in range(300):
        start = 10_000 + step * 100_000_000
        made += life(50_000 + 8 * step, *(start + each for each in range(5)), pid=6)
    # One of the other direction, and one before its insertion, do not count: they are requests.
    made += life(800, 10**9, 10**9 + 1, 10**9 + 2, flags=WRITE)
    made += [Event("D", 2 * 10**9, 792, 32), Event("D", 9 * 10**8, 792, 32, flags=WRITE)]
    answer = traced(tmp_path, made)
    waits = answer.tables["trace_waits"].frame.set_index("sector")
    assert waits.loc[8, "waited"] == pytest.approx(2988e-9)
    assert waits.loc[800, "state"] == "inserted"
    values = {key: figure.value for key, figure in answer.summary.items()}
    assert (values["trace_waiting"], values["trace_cfq_turns_lost"]) == (1, 0)
    assert values["trace_requests"] == 304
    assert {each.status for each in answer.checks} == {CheckStatus.AGREE}


def test_without_messages_of_cfq_turns_are_unknown(tmp_path: Path) -> None:
    assert "trace_cfq_turns_lost" not in traced(tmp_path, starving(15.6)).summary


def test_the_posted_excerpt_waits_15_6_seconds(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text(STARVED)
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
    unpack(tmp_path, "starved")
    part = tmp_path / "starved.blktrace.1"
    (tmp_path / "starved.blktrace.3").write_bytes(part.read_bytes()[:-20])
    part.unlink()
    answer = answer_of(tmp_path, "starved")
    counts = {gap.what: gap.count for gap in answer.gaps}
    assert counts["files of CPUs"] == 1  # of CPU 2, nothing is known
    assert answer.summary["trace_offline_cpus"].value == 1
    assert counts["bytes of the last event"] == 28
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


def test_the_screen_shows_tables_of_a_trace_without_a_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(unpack(tmp_path, "starved") / "starved")
    assert cli.main(["iosched", "--trace", path, "--no-pager"]) == 0
    screen = capsys.readouterr().out
    for name in ("trace_phases", "trace_tasks"):
        assert TITLES[name] in screen
    assert all(each.startswith("trace_") for each in answer_of(tmp_path, "starved").tables)


def test_memory_and_trace_have_no_key_in_common(tmp_path: Path) -> None:
    answer = answer_of(unpack(tmp_path, "starved"), "starved")
    assert all(key.startswith("trace_") for key in answer.summary)


def test_no_target_is_opened_for_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(unpack(tmp_path, "starved") / "starved")
    made = document(capsys, "--trace", path)
    assert made["target"] == path
    assert len(made["tables"]["trace_waits"]) == 537


@pytest.mark.parametrize("name", ["nothing", "nothing/x", ""])
def test_a_trace_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(AnalysisError):
        answer_of(tmp_path, name or "\x1b")
    assert cli.main(["iosched", "--trace", str(tmp_path / (name or "x"))]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_charts_show_waits_over_time_by_length_and_as_a_timeline(tmp_path: Path) -> None:
    answer = answer_of(unpack(tmp_path, "starved"), "starved")
    result = Result("iosched", "x", "", **{k: v for k, v in vars(answer).items() if k != "source"})
    made = {chart.title: chart for chart in charts(result)}
    specs = analyses()["iosched"].chart_specs()
    assert [*made] == [spec.title for spec in specs if spec.table in answer.tables]
    over_time, longest, histogram, timeline = made.values()
    frame = answer.tables["trace_over_time"].frame
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


def on_device(number: int, waited: float) -> list[Event]:
    """Return the events of :func:`starving` on a disk."""
    return [replace(each, device=number << 20) for each in starving(waited) if each.note < 0]


def test_the_devices_with_the_longest_waits_have_findings(tmp_path: Path) -> None:
    made = [each for number in range(1, 13) for each in on_device(number, 5.0 + number)]
    answer = traced(tmp_path, made)
    assert [each.id for each in answer.findings] == [
        f"trace-async-starved:{number},0" for number in range(12, 4, -1)
    ]
    assert answer.findings[0].figures["more_devices"].value == 4


def test_the_rows_of_waits_have_the_names_of_their_own_tasks(tmp_path: Path) -> None:
    """Names of tasks that did I/O on another disk before are older than the first event."""
    made, second = [], 10**9
    for pid in range(100, 140):
        made += [
            name_of(second + pid, pid, b"bash"),
            name_of(second + 5000 + pid, pid, b"t%d" % pid),
        ]
        start = 60 * second + pid
        made += life(8 * pid, start, start + 1, start + 2, start + 2 + second, pid=pid)
    frame = traced(tmp_path, made).tables["trace_waits"].frame
    assert len(frame) == 40
    assert frame["task"].tolist() == [f"t{pid}" for pid in frame["pid"]]


@pytest.mark.parametrize("letters", ["QGIDR", "QGIDRI"])
def test_a_requeued_request_is_not_in_the_hands_of_the_scheduler(
    tmp_path: Path, letters: str
) -> None:
    made = life(8, 0, 1, 2, 3, 10**9, 10**9, letters=letters, flags=WRITE)
    for step in range(40):
        start = 10**9 + step * 200_000_000
        made += life(1000 + 8 * step, *(start + each for each in range(5)), pid=6)
    answer = traced(tmp_path, [*made, Event("P", 9 * 10**9, flags=0)])
    values = {key: figure.value for key, figure in answer.summary.items()}
    assert [values[f"trace_{key}"] for key in ("in_driver", "waiting", "requeued_waiting")] == [
        0,
        0,
        1,
    ]
    assert values["trace_worst_async_write_wait"] == 1e-9
    row = answer.tables["trace_waits"].frame.set_index("sector").loc[8]
    assert (row["state"], row["waited"], row["requeued"]) == ("requeued", 1e-9, 8.0)
    assert [each.kind for each in answer.findings] == ["trace-requests-requeued"]


def test_the_time_between_two_dispatches_is_a_phase(tmp_path: Path) -> None:
    made = life(8, 0, 1, 2, 3, 4, 8 * 10**9, 8 * 10**9 + 5, letters="QGIDRDC")
    answer = traced(tmp_path, made)
    phases = answer.tables["trace_phases"].frame.set_index("phase")
    assert phases.loc["D2D", "longest"] == pytest.approx(8)
    assert phases.loc["D2C", "longest"] == pytest.approx(5e-9)
    assert answer.findings[0].figures["waited"].value == pytest.approx(8)


def test_requests_that_were_inserted_earlier_do_not_overtake(tmp_path: Path) -> None:
    """All reads were in the queue before the write; it waits for its turn."""
    made = life(8, 50, 51, 52, 15 * 10**9, 15 * 10**9 + 1, flags=WRITE)
    for step in range(60):
        start = (step + 1) * 240_000_000
        made += life(1000 + 8 * step, 0, 1, 2, start, start + 1, pid=6)
    answer = traced(tmp_path, made)
    assert "trace-async-starved" not in {each.kind for each in answer.findings}
    assert answer.tables["trace_waits"].frame["overtaken_by"].max() == 0


def test_a_device_that_dispatches_nothing_is_not_the_schedulers_fault(tmp_path: Path) -> None:
    """20 reads overtake the write for 2 s, then the device is silent for 30 s."""
    made = life(8, 0, 1, 2, 32 * 10**9, 32 * 10**9 + 1, flags=WRITE)
    for step in range(20):
        start = 1000 + step * 100_000_000
        end = start + 4 if step < 19 else 32 * 10**9 - 50
        made += life(1000 + 8 * step, *(start + each for each in range(4)), end, pid=6)
    late = 32 * 10**9 - 40
    made += life(8000, late, late + 1, late + 2, late + 3, late + 4, pid=6)
    answer = traced(tmp_path, made)
    stuck = answer.findings[0]
    assert [each.kind for each in answer.findings] == ["trace-requests-stuck"]
    assert stuck.figures["waited"].value == pytest.approx(30.1, abs=0.01)
    assert stuck.figures["silent"].value == pytest.approx(30.1, abs=0.01)
    assert answer.summary["trace_worst_in_driver"].value == pytest.approx(30.1, abs=0.01)


@pytest.mark.parametrize(
    ("completed", "kind"), [(2, "trace-requests-overdue"), (40, "trace-requests-stuck")]
)
def test_requests_wait_for_an_empty_driver_or_a_silent_one(
    tmp_path: Path, completed: int, kind: str
) -> None:
    made = life(8, 0, 1, 2, 3, completed * 10**9)
    for step in range(5):
        made += life(800 + 8 * step, 10**9, 10**9 + 1, 10**9 + 2, flags=WRITE)
    answer = traced(tmp_path, [*made, Event("P", 31 * 10**9, flags=0)])
    finding = answer.findings[0]
    assert [each.kind for each in answer.findings] == [kind]
    assert finding.figures["waiting"].value == 5
    assert finding.figures["waited"].value == (29.0 if completed == 2 else 39.999999997)


@pytest.mark.parametrize("got", [True, False])
def test_a_bio_that_waits_for_a_request_is_no_request(tmp_path: Path, got: bool) -> None:
    made = life(8, 0, 1, 2, 3, 30 * 10**9)
    late = (30 * 10**9 + 1, 30 * 10**9 + 2, 30 * 10**9 + 3, 30 * 10**9 + 4)
    made += life(800, 10**9, *(late if got else ()), flags=WRITE)
    answer = traced(tmp_path, made)
    assert answer.summary["trace_requests"].value == 1 + got
    assert answer.summary["trace_without_request"].value == int(not got)
    stuck, awaited = answer.findings
    assert (stuck.kind, awaited.kind) == ("trace-requests-stuck", "trace-requests-awaited")
    assert awaited.part_of == stuck.id
    assert awaited.figures["waited"].value == pytest.approx(29)


def test_bios_of_a_device_without_requests_wait_for_none(tmp_path: Path) -> None:
    made = [replace(each, device=253 << 20) for each in life(8, 0)]
    answer = traced(tmp_path, [*made, *life(800, 1, 2, 3, 4, 20 * 10**9 + 4)])
    assert answer.summary["trace_without_request"].value == 0
    assert answer.summary["trace_requests"].value == 1


@pytest.mark.parametrize("dispatched", [True, False])
def test_a_wait_that_ends_with_the_trace_is_a_lower_bound(tmp_path: Path, dispatched: bool) -> None:
    answer = traced(tmp_path, starving(15.6, dispatched=dispatched))
    bound = answer.summary["trace_worst_async_write_wait"].bound
    assert bound is (Bound.EXACT if dispatched else Bound.AT_LEAST)


def test_waits_and_overtakers_are_those_of_a_loop_over_requests(tmp_path: Path) -> None:
    trace = read_trace(str(unpack(tmp_path, "starved") / "starved"), SilentProgress())
    figures = Figures(trace)
    bios = figures.bios
    sync = [
        (inserted, dispatched)
        for inserted, dispatched, is_sync, merged in zip(
            bios.inserted.tolist(),
            bios.dispatched.tolist(),
            figures.is_sync.tolist(),
            bios.merged.tolist(),
            strict=True,
        )
        if is_sync and merged == -1 and dispatched != -1
    ]
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
    made = life(8, 0, 1, 2, 32 * 10**9, 32 * 10**9 + 1, flags=WRITE, pid=5)
    made += life(800, 0, 1, 2, 10**9, 10**9 + 1, pid=6)
    answer = traced(tmp_path, [name_of(0, 5, b"writer"), *made])
    frame = answer.tables["trace_over_time"].frame
    waiting = frame.groupby("task")["waiting"].sum()
    assert waiting["writer"] == pytest.approx(32, abs=0.01)
    assert waiting["?"] == pytest.approx(1, abs=0.01)
    assert frame["dispatched"].sum() == 2
    longest = answer.tables["trace_slices"].frame["longest"]
    assert longest.tolist() == pytest.approx([*range(1, 33)], abs=0.001)


def test_the_worst_wait_of_each_task_and_operation_is_a_row(tmp_path: Path) -> None:
    answer = answer_of(unpack(tmp_path, "starved"), "starved")
    waits = answer.tables["trace_waits"].frame
    tasks = answer.tables["trace_tasks"].frame
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
    made = starving(15.6)
    made += life(8000, 0, 1, 2, 15 * 10**9)
    made.append(Event("P", 30 * 10**9, flags=0))
    starved = next(
        each for each in traced(tmp_path, made).findings if each.kind == "trace-async-starved"
    )
    assert starved.remedies == ()
    assert starved.no_remedy


def test_a_request_that_was_dispatched_again_is_in_the_driver(tmp_path: Path) -> None:
    answer = traced(tmp_path, life(8, 0, 1, 2, 3, 4, 5, 6, letters="QGIDRID"))
    assert answer.summary["trace_in_driver"].value == 1
    assert answer.summary["trace_waiting"].value == 0


@pytest.mark.parametrize("dispatched", [True, False])
def test_a_request_whose_bio_was_queued_before_the_trace_waits(
    tmp_path: Path, dispatched: bool
) -> None:
    made = [each for each in starving(16.0) if each.letter not in "QG" or each.pid != 5]
    if not dispatched:
        made = [each for each in made if each.letter not in "DC" or each.pid != 5]
    answer = traced(tmp_path, [*made, Event("P", 16_000_000_002, flags=0)])
    assert answer.summary["trace_waiting"].value == int(not dispatched)
    assert answer.summary["trace_worst_async_write_wait"].value == pytest.approx(16.0)
    assert [each.kind for each in answer.findings] == ["trace-async-starved"]
    assert answer.gaps == []


@pytest.mark.parametrize("place", [20, 103])
def test_a_damaged_time_is_no_wait(tmp_path: Path, place: int) -> None:
    made = life(8, 0, 1, 2, flags=WRITE, pid=5)
    for step in range(20):
        made += life(1000 + 8 * step, *(1000 * step + 3 + each for each in range(5)), pid=6)
    made.insert(place, Event("P", 10 * 86_400 * 10**9, flags=0))
    (tmp_path / "x.blktrace.0").write_bytes(packed(made))
    answer = answer_of(tmp_path, "x")
    assert answer.findings == []
    assert answer.summary["trace_duration"].value == pytest.approx(0, abs=1)
    assert [(gap.what, gap.count) for gap in answer.gaps] == [("times of events", 1)]


def test_cpus_that_are_offline_are_no_gap(tmp_path: Path) -> None:
    for cpu in (0, 2, 4, 6):
        made = [replace(each, cpu=cpu) for each in life(8 * cpu, 0, 1, 2, 3, 4)]
        (tmp_path / f"x.blktrace.{cpu}").write_bytes(packed(made))
    answer = answer_of(tmp_path, "x")
    assert answer.gaps == []
    assert answer.summary["trace_requests"].bound is Bound.EXACT
    assert answer.summary["trace_offline_cpus"].value == 3


def test_actions_of_zoned_devices_are_known(tmp_path: Path) -> None:
    made = [*life(8, 0, 1, 2, 3, 4), *(Event(f"ZONE_{each}", 9) for each in ("PLUG", "MGMT"))]
    (tmp_path / "x.blktrace.0").write_bytes(packed(made, version=8))
    answer = answer_of(tmp_path, "x")
    assert answer.gaps == []
    assert answer.summary["trace_events"].value == 7


def test_the_queue_of_a_partition_is_that_of_its_disk(tmp_path: Path) -> None:
    made = [replace(each, device=8 << 20 | 17) for each in starving(16.0) if each.note < 0]
    remedy = traced(tmp_path, made).findings[0].remedies[0]
    assert "/sys/dev/block/8:17/../queue/scheduler" in remedy.command


def test_the_queues_that_fared_worst_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcensus.analyses.iosched.trace.tables.MAX_ROWS", 2)
    made = starving(15.6)
    for name in ("cfq1A", "cfq2A", "cfq3A"):
        for word in ("set_active wl_class:1", "sl_used=1 disp=0 charge=0 iops=1 sect=0"):
            made.append(message(9, f"{name}  / {word}"))
    made.append(message(10, "cfq3A  / set_active wl_class:1"))
    made.append(message(11, "cfq3A  / sl_used=1 disp=0 charge=0 iops=1 sect=0"))
    assert "cfq3A" in traced(tmp_path, made).tables["trace_queues"].frame["queue"].tolist()
