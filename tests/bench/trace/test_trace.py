# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long ten million events take, relative to blkparse and btt.

These are two passes over the same bytes in C: blkparse merges the files, and prints the events or
writes them in binary, and btt pairs them; with all that, they need half a microsecond of CPU time
per event without text, and one to two with it.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kcensus.analyses.iosched.run import of_trace
from kcensus.progress import SilentProgress
from kcensus.trace.files import read_trace
from tests.bench.timing import report
from tests.unit.trace.recorded import unpack

_EVENTS = 10_000_000
_HEADER = np.dtype(
    [("magic", "<u4"), ("sequence", "<u4"), ("time", "<u8"), ("sector", "<u8")]
    + [(name, "<u4") for name in ("bytes", "action", "pid", "device", "cpu")]
    + [("error", "<u2"), ("length", "<u2")]
)
_NOTIFY = 1 << 26


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this process and those it waits for: a busy machine adds little."""

    def used() -> float:
        every = (
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        return sum(each.ru_utime + each.ru_stime for each in every)

    start = used()
    work()
    return used() - start


def places(data: bytes) -> list[int]:
    """Return where the events of a file begin."""
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += 48 + int.from_bytes(data[at + 46 : at + 48], "little")
    return found


def replicate(directory: Path, name: str, events: int) -> int:
    """Repeat a recorded trace with later times and further numbers; return its events."""
    unpack(directory, name)
    files = {path: path.read_bytes() for path in directory.glob(f"{name}.blktrace.*")}
    where = {path: places(data) for path, data in files.items()}
    heads = {}
    for path, data in files.items():
        view = np.ndarray((len(data) - 47,), _HEADER, data, strides=(1,))
        heads[path] = view[where[path]]
    times = np.concatenate([head["time"] for head in heads.values()])
    span = int(times.max() - times.min()) + 1_000_000
    rounds = events // len(times)
    for path, data in files.items():
        is_event = (heads[path]["action"] & _NOTIFY) == 0
        last = int(heads[path]["sequence"][is_event].max())
        with path.open("wb") as file:
            for number in range(rounds):
                copy = bytearray(data)
                view = np.ndarray((len(data) - 47,), _HEADER, copy, strides=(1,))
                rows = np.array(where[path])
                view["time"][rows] += np.uint64(number * span)
                view["sequence"][rows[is_event]] += np.uint32(number * last)
                file.write(copy)
    return rounds * len(times)


@pytest.mark.skipif(
    not (shutil.which("blkparse") and shutil.which("btt")), reason="blktrace is not installed"
)
@pytest.mark.parametrize(("name", "least"), [("starved", 2.5), ("bfq", 1.2)])
def test_ten_million_events(tmp_path: Path, slack: float, name: str, least: float) -> None:
    """Of ``bfq``, most events are messages."""
    events = replicate(tmp_path, name, _EVENTS)
    prefix = str(tmp_path / name)

    def tools(*without_text: str) -> None:
        merged = str(tmp_path / "merged")
        quiet = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        blkparse = ["blkparse", "-i", prefix, "-d", merged, *without_text]
        subprocess.run(blkparse, check=True, **quiet)  # type: ignore[call-overload]
        btt = ["btt", "-i", merged, "-o", "btt"]
        subprocess.run(btt, check=True, **quiet)  # type: ignore[call-overload]
        Path(merged).unlink()

    start = time.perf_counter()
    ours = cpu_seconds(lambda: of_trace(prefix, SilentProgress()))
    elapsed = time.perf_counter() - start
    reading = cpu_seconds(lambda: read_trace(prefix))
    with_text, without_text = cpu_seconds(tools), cpu_seconds(lambda: tools("-O"))
    report(
        f"trace of ten million events, {name}",
        events=events,
        kcensus=ours,
        reading=reading,
        elapsed=elapsed,
        blkparse_and_btt=with_text,
        without_text=without_text,
        ratio=with_text / ours,
        ratio_without_text=without_text / ours,
    )
    assert with_text / ours > least / slack


def test_a_million_lines_of_blkparse(tmp_path: Path, slack: float) -> None:
    unpack(tmp_path, "starved")
    text = (tmp_path / "starved.txt").read_bytes()
    lines = text[: text.index(b"CPU0")].splitlines(keepends=True)
    rounds = 1_000_000 // len(lines)
    (tmp_path / "many.txt").write_bytes(b"".join(lines) * rounds)

    def loop() -> None:
        """Read the same columns of one line after the other."""
        rows = []
        with (tmp_path / "many.txt").open() as file:
            for line in file:
                words = line.split()
                major, minor = map(int, words[0].split(","))
                seconds, nanoseconds = map(int, words[3].split("."))
                time = seconds * 1_000_000_000 + nanoseconds
                numbers = [int(words[place]) for place in (1, 2, 4)]
                has_place = len(words) > 9 and words[8] == "+"
                where = (int(words[7]), int(words[9])) if has_place else (0, 0)
                rows.append((major << 20 | minor, time, *numbers, *where, words[5], words[6]))

    ours, least = cpu_seconds(lambda: read_trace(str(tmp_path / "many.txt"))), cpu_seconds(loop)
    report("text of a million events", kcensus=ours, loop=least, ratio=least / ours)
    assert least / ours > 1.2 / slack
