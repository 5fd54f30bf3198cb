# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a trace takes, relative to blkparse and btt; ten million events with ``--all``.

These are two passes over the same bytes in C: blkparse merges the files, and prints the events or
writes them in binary, and btt pairs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kcensus.analyses.iosched.run import of_trace
from kcensus.progress import SilentProgress
from kcensus.sources.blktrace.files import read_trace
from tests.bench.timing import Cost, cost, report
from tests.lab import host
from tests.unit.sources.blktrace.recorded import unpack

_HEADER = np.dtype(
    [("magic", "<u4"), ("sequence", "<u4"), ("time", "<u8"), ("sector", "<u8")]
    + [(name, "<u4") for name in ("bytes", "action", "pid", "device", "cpu")]
    + [("error", "<u2"), ("length", "<u2")]
)
_NOTIFY = 1 << 26


def places(data: bytes) -> list[int]:
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


def cost_of(directory: Path, *commands: list[str]) -> Cost:
    # Python keeps what it compiles, as it does for users.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def work() -> None:
        for command in commands:
            subprocess.run(command, check=True, cwd=directory, env=environment, capture_output=True)

    return cost(work)


@pytest.mark.parametrize(
    ("name", "least"), [pytest.param("starved", 3.0, marks=pytest.mark.long), ("bfq", 1.2)]
)
@pytest.mark.usually(1_000_000)
@pytest.mark.parametrize("events", [1_000_000, 10_000_000])
def test_events(tmp_path: Path, slack: float, events: int, name: str, least: float) -> None:
    """Of ``bfq``, most events are messages.

    ``default`` is what their manuals show, ``statistics`` has figures by task and the latencies of
    each I/O, as those of kcensus do, and ``without_text`` is the least that blkparse does.
    """
    events = replicate(tmp_path, name, events)
    prefix = str(tmp_path / name)
    merged, text = str(tmp_path / "merged"), str(tmp_path / "text")
    blkparse = [host.find("blkparse"), "-i", prefix, "-d", merged]
    btt = [host.find("btt"), "-i", merged, "-o", "btt"]
    each = ["-A", "-l", "d2c", "-q", "q2c", "-p", "per_io"]
    tools = {
        "default": cost_of(tmp_path, [*blkparse, "-o", text], btt),
        "statistics": cost_of(tmp_path, [*blkparse, "-o", text], [*btt, *each]),
        "without_text": cost_of(tmp_path, [*blkparse, "-O"], btt),
    }
    command = [sys.executable, "-m", "kcensus", "iosched", "--trace", prefix, "--json"]
    ours = min((cost_of(tmp_path, command) for _ in range(2)), key=lambda each: each.cpu)
    inside = cost(lambda: of_trace(prefix, SilentProgress())).cpu
    report(
        f"trace of {events:,} events, {name}, s",
        kcensus_cpu=ours.cpu,
        kcensus_elapsed=ours.elapsed,
        kcensus_cpu_without_start=inside,
        **{f"{way}_cpu": each.cpu for way, each in tools.items()},
        **{f"{way}_elapsed": each.elapsed for way, each in tools.items()},
    )
    report(
        f"trace of {events:,} events, {name}, ratios to blkparse and btt",
        **{f"{way}_cpu": each.cpu / ours.cpu for way, each in tools.items()},
        **{f"{way}_elapsed": each.elapsed / ours.elapsed for way, each in tools.items()},
        without_start=tools["default"].cpu / inside,
    )
    assert tools["default"].cpu / inside > least / slack


def test_a_million_lines_of_blkparse(tmp_path: Path, slack: float) -> None:
    unpack(tmp_path, "starved")
    text = (tmp_path / "starved.txt").read_bytes()
    lines = text[: text.index(b"CPU0")].splitlines(keepends=True)
    rounds = 1_000_000 // len(lines)
    (tmp_path / "many.txt").write_bytes(b"".join(lines) * rounds)

    def loop() -> None:
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

    ours, least = cost(lambda: read_trace(str(tmp_path / "many.txt"))).cpu, cost(loop).cpu
    report("text of a million events", kcensus=ours, loop=least, ratio=least / ours)
    assert least / ours > 0.8 / slack
