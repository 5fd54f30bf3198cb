# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces of several files: of CPUs and devices that end at other times, and the log of blktrace."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.analyses.iosched.trace.checks import gaps, summary
from kcensus.analyses.iosched.trace.figures import Figures
from kcensus.results import Bound
from kcensus.sources.blktrace.events import Loss, Trace
from kcensus.sources.blktrace.files import read_trace
from tests.unit.sources.blktrace.recorded import READ, WRITE, Event, life, packed

SECOND = 10**9
SDA, SDB = 8 << 20, 8 << 20 | 16


def reads(begin: int, end: int, device: int = SDA, cpu: int = 0) -> list[Event]:
    made = []
    for number, start in enumerate(range(begin, end, SECOND // 100)):
        times = range(start, start + 5000, 1000)
        made += life(8 * number + cpu, *times, flags=READ, device=device, cpu=cpu)
    return made


def read(directory: Path, **files: list[Event]) -> Trace:
    for name, events in files.items():
        prefix, _, cpu = name.rpartition("_")
        events.sort(key=lambda each: each.time)
        (directory / f"{prefix}.blktrace.{cpu}").write_bytes(packed(events))
    return read_trace(str(directory))


def test_a_write_waits_until_the_end_of_its_own_trace(tmp_path: Path) -> None:
    waiting = life(1 << 20, SECOND, SECOND, SECOND, flags=WRITE)
    second_day = reads(1000 * SECOND, 1002 * SECOND, SDB)
    trace = read(tmp_path, sda_0=reads(0, 2 * SECOND) + waiting, sdb_0=second_day)
    assert trace.ends[SDB] == trace.end > 1000 * SECOND
    assert trace.ends[SDA] < 2 * SECOND
    assert int(Figures(trace).wait.max()) < SECOND


def test_a_device_that_does_not_answer_waits_on(tmp_path: Path) -> None:
    waiting = life(1 << 20, SECOND, SECOND, SECOND, flags=WRITE)
    others = reads(SECOND, 30 * SECOND, SDB)
    trace = read(tmp_path, sda_0=reads(0, 2 * SECOND) + waiting, sdb_0=others)
    assert trace.ends == {SDA: trace.end, SDB: trace.end}
    assert int(Figures(trace).wait.max()) > 28 * SECOND


def test_the_file_of_a_cpu_that_ends_early_ends_the_trace(tmp_path: Path) -> None:
    busy, cut = reads(0, 10 * SECOND, cpu=1), reads(0, 3 * SECOND)
    trace = read(tmp_path, sda_0=cut, sda_1=busy)
    assert [*trace.losses.of(Loss.FILES)] == ["sda.blktrace.0 ends 7.0 s before"]
    assert trace.end < 3 * SECOND
    figures = Figures(trace)
    assert len(figures.bios) < 700
    assert ("files of the trace", 1) in {(gap.what, gap.count) for gap in gaps(figures)}
    assert summary(figures)["trace_requests"].bound is Bound.AT_LEAST


def test_idle_cpus_and_idle_disks_are_no_early_ends(tmp_path: Path) -> None:
    both = reads(0, 3 * SECOND), reads(0, 3 * SECOND, cpu=1)
    late = life(1 << 20, *range(9 * SECOND, 9 * SECOND + 5), cpu=1)
    trace = read(tmp_path, sda_0=both[0], sda_1=both[1] + late)
    assert not trace.losses.of(Loss.FILES)
    assert trace.end > 9 * SECOND - SECOND
    assert summary(Figures(trace))["trace_requests"].bound is Bound.EXACT


LOG = b"""=== sda ===
  CPU  0: %20d events, %8d KiB data
  CPU  1: %20d events, %8d KiB data
  Total: %20d events (dropped %d), %8d KiB data
"""


@pytest.mark.parametrize(
    ("more", "second", "dropped", "known"),
    [(0, 0, 0, 0), (0, 0, 779, 779), (40, 0, 0, 0), (0, 25, 0, 0), (-20, 0, 0, None)],
)
def test_the_log_of_blktrace(
    tmp_path: Path, more: int, second: int, dropped: int, known: int | None
) -> None:
    read(tmp_path, sda_0=reads(0, 5 * SECOND))
    kib = -(-(tmp_path / "sda.blktrace.0").stat().st_size // 1024) + more
    total = (2500 + second, dropped, kib + second)
    (tmp_path / "log").write_bytes(LOG % (2500, kib, second, second, *total))
    trace = read_trace(str(tmp_path / "sda"))
    losses = trace.losses
    assert losses.get((Loss.DROPPED, "log")) == known
    assert [*losses.of(Loss.FILES)] == (["sda.blktrace.1 is missing"] if second else [])
    assert bool(losses.of(Loss.CUT)) == (more > 0)
    is_exact = not (second or known or more > 0)
    figures = summary(Figures(trace))
    assert (figures["trace_requests"].bound is Bound.EXACT) == is_exact
    assert ("trace_dropped_events" in figures) == (known is not None)
