# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parser of the kernel's log, on excerpts of real ones and on lines that are cut."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from kcensus.analyses import AnalysisError
from kcensus.analyses.kcopyd.census import Census
from kcensus.analyses.kcopyd.log_events import Event, LogEvents, lines, parse
from kcensus.analyses.kcopyd.tables import LOG_EVENTS
from kcensus.analyses.runner import Context
from kcensus.results import Result
from kcensus.results.tables import Show, make_tables
from tests.leads import references
from tests.running import runner

run = runner("kcopyd")

DATA = Path(__file__).parents[2] / "data"
KIB = 1024
Row = tuple[object, ...]


def read(name: str) -> str:
    return (DATA / f"dmesg-{name}.txt").read_text()


def parsed(text: str) -> LogEvents:
    return parse(lines(text.splitlines()))


def result_of(directory: Path, text: str) -> Result:
    log = directory / "dmesg.txt"
    log.write_text(text)
    return run(Context.without_target(), log=str(log))


def items(log: LogEvents, *states: str) -> list[Row]:
    return [(e.pool, e.cpus, e.workqueue, e.function, e.module, e.pid) for e in log.of(*states)]


_PENDING_27 = [
    (8, "4", "events", "cache_reap", None, None),
    (8, "4", "mm_percpu_wq", "vmstat_update", None, None),
    (5, "2", "kblockd", "blk_timeout_work", None, None),
]
_PENDING_95 = [
    (0, "0", "events", "vmstat_shepherd", None, None),
    (0, "0", "events", "cache_reap", None, None),
    (0, "0", "mm_percpu_wq", "vmstat_update", None, None),
    (4, "2", "dm_bufio_cache", "work_fn", "dm_bufio", None),
]


@pytest.mark.parametrize(
    ("seconds", "stamp", "place", "pid", "pending", "pool"),
    [
        (27, 67501.194592, (8, "4"), 67, _PENDING_27, (3, "idle: 129 23765")),
        (95, 68899.948523, (0, "0"), 13, _PENDING_95, (4, "idle: 27130 27223 1084")),
    ],
)
def test_lockups(
    seconds: int, stamp: float, place: Row, pid: int, pending: list[Row], pool: Row
) -> None:
    log = parsed(read(f"lockup-{seconds}s"))
    (lockup,) = log.of("lockup")
    assert (lockup.time, lockup.cpus, lockup.seconds) == (stamp, place[1], seconds)
    kcopyd = (*place, "kcopyd", "do_work", "dm_mod")
    assert items(log, "in-flight") == [(*kcopyd, pid)]
    assert items(log, "pending") == [*pending, *[(*kcopyd, None)] * 5]
    (found,) = log.of("pool")
    assert (found.pool, found.cpus, found.seconds) == (*place, seconds)
    assert (found.count, found.detail, log.lines, log.unknown) == (*pool, 28, 0)


def test_oom_report_with_its_slab_table() -> None:
    log = parsed(read("oom-kcopyd"))
    (oom,) = log.of("oom")
    assert (oom.time, oom.comm) == (463.492878, "kthreadd")
    (pages,) = log.of("slab pages")
    assert pages.count == 3483521
    slabs = {e.detail: (e.used_bytes, e.total_bytes) for e in log.of("slab")}
    assert slabs == {
        "bio-6": (1028 * KIB, 1028 * KIB),
        "bio-5": (1028 * KIB, 1028 * KIB),
        "dm_snap_pending_exception": (236783 * KIB, 243789 * KIB),
        "dm_exception": (41 * KIB, 42 * KIB),
        "bio-4": (1216 * KIB, 1216 * KIB),
        "bio-3": (439396 * KIB, 439396 * KIB),
        "kcopyd_job": (6973427 * KIB, 6973427 * KIB),
    }
    assert [(e.pid, e.comm) for e in log.of("oom kill")] == [(1298, "ruby2.3")] * 2
    assert log.unknown == 0


def test_findings_of_a_log_alone(tmp_path: Path) -> None:
    text = read("oom-kcopyd") + read("lockup-27s") + read("lockup-95s")
    result = result_of(tmp_path, text)
    lockup, oom = result.findings
    assert "2 workqueue lockups, the longest of 1 min 35 s on CPU 0" in lockup.title
    assert "do_work [dm_mod] of kcopyd" in lockup.evidence
    assert "kcopyd_job with 6.7 GiB" in oom.title
    assert "ruby2.3 (PID 1298)" in oom.evidence
    # Without a target, the catalogue is all there is.
    assert references(lockup) == ["kcensus patches show dm-kcopyd-callback-list"]
    assert result.target == str(tmp_path / "dmesg.txt")
    assert result.summary["log_lines_unknown"].value == 0
    assert len(result.tables["log_events"].frame) == result.summary["log_events"].value == 50


def test_the_table_shows_what_the_log_has(tmp_path: Path) -> None:
    table = result_of(tmp_path, read("oom-kcopyd")).tables["log_events"]
    shown = {name for name, column in table.columns.items() if column.show is not Show.DATA}
    # Of lockups there are none; the names of caches are details.
    assert shown == {"time", "event", "pid", "comm", "used_bytes", "total_bytes", "detail"}
    assert table.columns["detail"].show is Show.ALWAYS
    assert set(table.frame.columns) == set(table.columns)


def test_kcopyd_on_another_cpu_is_not_where_the_lockup_was(tmp_path: Path) -> None:
    text = "BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 33s!\n"
    text += read("lockup-27s").replace("stuck for 27s", "stuck for 7s")
    (finding,) = result_of(tmp_path, text).findings
    assert finding.title.endswith("on CPU 1")
    assert (finding.evidence, finding.remedies) == ("running on that CPU: nothing shown", ())


@pytest.mark.ends
@pytest.mark.parametrize("name", ["oom-kcopyd", "lockup-27s", "lockup-95s"])
def test_every_cut_of_every_line_is_survived(name: str) -> None:
    text = read(name).splitlines()
    for at, line in enumerate(text):
        for length in range(0, len(line), 3):
            cut = [*text[:at], line[:length], *text[at + 1 :]]
            log = parsed("".join(f"{each}\n" for each in cut))
            assert log.lines == len(text)


WORKQUEUES = "[1.0] Showing busy workqueues and worker pools:\n[1.1] "


@pytest.mark.parametrize(
    "text",
    [
        WORKQUEUES + "pwq 8: cpus=4 node=0 fl",
        WORKQUEUES + "pool 8: cpus=4 node=0 flags=0x0 nice=0 hung=27s wor",
        WORKQUEUES + "workqueue kcopyd: fla",
        WORKQUEUES + "in-flight: ",
        WORKQUEUES + "pending: do_work [dm_",
        WORKQUEUES + "pending",
        "[1.0] BUG: workqueue lockup - pool cpus=4 node=0 flags=0x0 nice=0 stuck f",
        "[1.0] INFO: task kworker/0:1:12 blocked for more th",
        "[1.0] Killed process 1298 (rub",
        "[1.0] Unreclaimable slab info:\n[1.0] Name Used Total\n[1.0] kcopyd_job 6973427KB 69",
    ],
)
def test_cut_lines_are_counted(text: str) -> None:
    log = parsed(f"{text}\n[1.2] usb 1-1: hello")
    assert (log.events, log.unknown) == ([], 1)


def test_hung_tasks_soft_lockups_and_hogs() -> None:
    log = parsed(
        "[  242.1] INFO: task kworker/u8:3:76 blocked for more than 120 seconds.\n"
        "[  243.1] INFO: task a task: with colons:77 blocked in I/O wait for more than 241 "
        "seconds.\n"
        "[  244.1] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [kworker/1:2:67]\n"
        "[  245.1] workqueue: do_work [dm_mod] hogged CPU for >10000us 4 times, consider switching "
        "to WQ_UNBOUND\n"
    )
    name = "a task: with colons"
    assert log.of("hung task") == [
        Event(242.1, "hung task", comm="kworker/u8:3", pid=76, seconds=120.0, detail="blocked"),
        Event(243.1, "hung task", comm=name, pid=77, seconds=241.0, detail="blocked in I/O wait"),
    ]
    (soft,) = log.of("soft lockup")
    assert (soft.cpus, soft.comm, soft.pid, soft.seconds) == ("1", "kworker/1:2", 67, 22.0)
    (hog,) = log.of("cpu hog")
    assert (hog.function, hog.module, hog.count) == ("do_work", "dm_mod", 4)
    assert log.unknown == 0


def test_items_as_newer_kernels_print_them() -> None:
    log = parsed(
        "Showing busy workqueues and worker pools:\n"
        "workqueue events: flags=0x100\n"
        "  pwq 2: cpus=1 node=0 flags=0x0 nice=0 active=6 refcnt=7\n"
        "    in-flight: 34:do_work [dm_mod] for 27s, 55(RESCUER):wb_workfn BAR(12)\n"
        "    pending: 3*vmstat_update, drain_local_stock\n"
        "    inactive: work_fn [dm_bufio]\n"
        "pool 2: cpus=1 node=0 flags=0x0 nice=0 hung=35s workers=3 manager: 12 idle: 56 21\n"
    )
    running, rescued = log.of("in-flight")
    assert (running.pid, running.seconds, running.module) == (34, 27.0, "dm_mod")
    assert (rescued.pid, rescued.detail) == (55, "rescuer")
    waiting = Counter({e.function: e.count for e in log.of("pending")})
    assert waiting == {"vmstat_update": 3, "drain_local_stock": 1}
    assert [(e.function, e.workqueue) for e in log.of("inactive")] == [("work_fn", "events")]
    (pool,) = log.of("pool")
    assert (pool.seconds, pool.detail) == (35.0, "manager: 12 idle: 56 21")
    assert [e.time for e in log.events] == [None] * len(log.events)
    assert log.unknown == 0
    # Other lines are none of ours.
    log = parsed("[1.0] usb 1-1: pending: nothing\n[1.1] workqueue foo: flags=0x0\n\nplain\n")
    assert (log.events, log.unknown, log.lines) == ([], 0, 4)


def test_stamps() -> None:
    said = "kthreadd invoked oom-killer: gfp_mask=0x0"
    for before, after in (
        ("", ""),
        ("<4>", ""),
        ("", "[ T1234]"),
        ("Nov 21 12:00:00 a kernel: ", ""),
    ):
        assert [*lines([f"{before}[  463.492878]{after} {said}"])] == [(463.492878, said)]


def test_hostile_bytes_cannot_reach_a_terminal() -> None:
    (line,) = lines(["[1.0] INFO: task \x1b[31mred:12 blocked for more than 120 seconds."])
    assert "\x1b" not in line[1]
    (event,) = parse([line]).of("hung task")
    assert event.comm == "\\x1b[31mred"


def refused(path: Path) -> str:
    with pytest.raises(AnalysisError) as error:
        run(Context.without_target(), log=str(path))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_log_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    assert refused(log) == f"--log: cannot read '{log}': No such file or directory"
    assert refused(tmp_path) == f"--log: cannot read '{tmp_path}': Is a directory"
    assert "has no end" in refused(Path("/proc/kmsg"))
    for binary in (b"\x7fELF\2\1\1" + bytes(1000), "[ 1.0] plain\n".encode("utf-16")):
        log.write_bytes(binary)
        assert refused(log) == f"--log: '{log}' is not a text file; pass the output of dmesg"
    log.write_text("root:x:0:0:root:/root:/bin/bash\n")
    assert "is not a kernel log" in refused(log)
    monkeypatch.setattr("kcensus.analyses.kcopyd.log_events._MAX_BYTES", 1 << 20)
    log.write_bytes(b"[ 1.0] plain\n" * 100_000)
    assert "is larger than 1 MiB" in refused(log)


@pytest.mark.parametrize("text", [b"", b"\xff[ 1.0] plain\n", b"[ 1.0] ok\r\n" * 500 + bytes(99)])
def test_a_log_with_strange_bytes_is_read(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "log").write_bytes(text)
    result = run(Context.without_target(), log=str(tmp_path / "log"))
    assert result.summary["log_lines"].value == text.count(b"\n") + (text[-1:] not in b"\n")


def test_numbers_that_fit_nowhere() -> None:
    many = "9" * 5000
    log = parsed(
        f"[{many}.1] INFO: task a:{many} blocked for more than {many} seconds.\n"
        f"[1.0] INFO: task a:{many} blocked for more than {many} seconds.\n"
        f"[1.0] Unreclaimable slab info:\n[1.0] kcopyd_job {many}KB {many}KB\n[1.0] \n"
    )
    (hung,) = log.of("hung task")
    assert (hung.pid, hung.seconds) == (None, None)
    assert log.of("slab") == []
    assert log.unknown == 1
    figures = SimpleNamespace(census=Census(), log=log)
    assert len(make_tables((LOG_EVENTS,), figures)["log_events"].frame) == 1


@pytest.mark.parametrize(
    "line",
    [
        "kcopyd_job" + " " * 100_000 + "x",
        "BUG: workqueue lockup - pool cpus=" + "0" * 100_000,
        "pwq 8: cpus=" + "0" * 100_000,
        "pool 8: cpus=" + "0," * 50_000,
        "in-flight: " + "1*" * 50_000,
        "[" + " " * 100_000,
    ],
)
def test_long_lines_take_no_longer_than_they_are(line: str) -> None:
    start = time.process_time()
    for header in ("Showing busy workqueues and worker pools:", "Unreclaimable slab info:"):
        parsed(f"{header}\n{line}")
    # Quadratic, it would be minutes.
    assert time.process_time() - start < 2


def test_records_on_pages_of_zeros_are_lost() -> None:
    made = parse([(0.0, "Linux version"), (0.0, ""), (1.0, ""), (2.0, r"\x00\x00"), (3.0, "text")])
    assert (made.lines, made.lost) == (5, 1)
