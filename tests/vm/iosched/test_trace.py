# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces of the guests, against blkparse and btt on the same files.

btt drops bios that are split, and those without the event that they were queued, which the kernel
leaves out of some writes with a flush; and it mixes up those that are at one sector at the same
time. Its figures are therefore those without the events at these sectors, as are those of kcensus.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

from kcensus.analyses.iosched.run import of_trace
from kcensus.progress import SilentProgress
from kcensus.sources.blktrace.bios import NEVER, pair
from kcensus.sources.blktrace.files import read_trace
from tests.lab import build
from tests.vm.iosched.cases import SCHEDULERS, usually

pytestmark = usually

_PHASES = {"Q2G", "G2I", "Q2M", "I2D", "M2D", "D2C", "Q2C"}
_LINE = re.compile(
    r" *(?P<device>\d+,\d+) +\d+ +\d+ +[\d.]+ +\d+ +(?P<action>\w+) +\w+"
    r"(?: (?P<sector>\d+) (?P<mark>[+/]) (?P<number>\d+))?"
)
_STEP = re.compile(r".*\d+\.\d{9} [A-Z] +\d+\+\d+")
# Of struct blk_io_trace: sector, bytes, action, and the length of what follows.
_EVENT = struct.Struct("<16xQII14xH")
_NOTIFY, _IN_CGROUP, _MESSAGE = 1 << 26, 1 << 8, 2


@dataclass
class Tools:
    prefix: str
    directory: Path
    """Where they leave their files: ``merged`` has all events."""

    @cached_property
    def lines(self) -> list[re.Match[str]]:
        """What blkparse prints of events and messages."""
        text = self._run("blkparse", "-i", self.prefix, "-d", "merged")
        return [match for match in map(_LINE.match, text.splitlines()) if match]

    @cached_property
    def mixed_up(self) -> set[tuple[int, int]]:
        """Sectors of bios that btt does not pair: first ones and ends."""
        in_flight: dict[int, int] = {}
        requests: set[int] = set()
        places = set()
        for line in self.lines:
            if line["mark"] is None:
                continue
            sector, number, action = int(line["sector"]), int(line["number"]), line["action"]
            if line["mark"] == "/":  # a split, and where the rest begins
                places.add((sector, number + 1))
            elif action == "Q":
                if sector in in_flight:
                    places.add((sector, sector + max(number, in_flight[sector])))
                in_flight[sector] = number
            elif action in ("I", "D") and sector not in in_flight:
                places.add((sector, sector + number))
            if action in ("I", "D"):
                requests.add(sector)
            if action in ("D", "C"):
                inside = {*range(sector, sector + number)}
                # btt counts it for each request that begins inside, too.
                others = (requests & inside & in_flight.keys()) - {sector}
                places |= {(each, each + in_flight[each]) for each in others}
                if action == "C":
                    requests -= inside
                    for done in inside & in_flight.keys():
                        del in_flight[done]
        return places

    def bios(self) -> Iterator[list[tuple[str, int, int]]]:
        """Yield the events of each bio that btt has paired: letter, time and sector."""
        assert self.lines
        self._run("btt", "-i", "merged", "-o", "all", "-p", "bios")
        for text in (self.directory / "bios").read_text().split("\n\n"):
            steps = (line.split()[-3:] for line in text.splitlines() if _STEP.match(line))
            events = [
                (letter, int(time.replace(".", "")), int(place.partition("+")[0]))
                for time, letter, place in steps
            ]
            if events:
                yield events

    def averages(self, name: str) -> dict[str, list[str]]:
        """Return minimum, average, maximum and count by phase, as btt prints them of a file."""
        self._run("btt", "-i", name, "-o", "btt")
        table = (self.directory / "btt.avg").read_text().partition("Device Overhead")[0]
        rows = (line.split() for line in table.splitlines())
        # It calls phases of virtual disks (major 254) so, as if they were those of dm.
        return {
            row[0].removesuffix("dm"): row[1:] for row in rows if len(row) == 5 and row[4].isdigit()
        }

    def _run(self, *command: str) -> str:
        return subprocess.run(
            command,
            cwd=self.directory,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
        ).stdout


@pytest.fixture(scope="module", params=SCHEDULERS)
def tools(
    kernel: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tools:
    traces = build(kernel, request.param).path / "traces"
    return Tools(str(traces / "trace"), tmp_path_factory.mktemp("traces"))


def test_events_are_counted_as_by_blkparse(tools: Tools) -> None:
    answer = of_trace(tools.prefix, SilentProgress())
    printed = Counter((line["device"], line["action"]) for line in tools.lines)
    # blkparse does not know messages that name a cgroup.
    messages = sum(
        action & ~_IN_CGROUP == _NOTIFY | _MESSAGE
        for path in Path(tools.prefix).parent.glob("trace.blktrace.*")
        for *_, action in _events(path.read_bytes())
    )
    events = answer.tables["trace_events"].frame
    assert {
        (device.replace(":", ","), action): count
        for device, action, count in events.itertuples(index=False)
    } == {key: count for key, count in printed.items() if key[1] != "m"}
    assert answer.summary["trace_messages"].value == messages
    assert answer.summary["trace_lost_events"].value == 0


def test_bios_have_the_times_of_btt(tools: Tools) -> None:
    """All of them, in the whole trace, but those at sectors that btt mixes up."""
    trace = read_trace(tools.prefix)
    bios = pair(trace)
    # A trace may begin with messages that name a cgroup, which blkparse does not know.
    start = int(trace.column("time")[0])
    columns = {"G": bios.got, "I": bios.inserted, "D": bios.dispatched, "C": bios.completed}
    columns |= {"M": bios.merged, "F": bios.merged}
    mixed_up = [*tools.mixed_up]
    ours = {
        (queued - start, sector): row
        for row, (queued, sector) in enumerate(
            zip(bios.queued.tolist(), bios.sector.tolist(), strict=True)
        )
        # The kernel does not queue its own flushes, and 7.3 not the data with them.
        if queued != NEVER and bios.completed[row] != NEVER
    }
    clear = {key for key in ours if not any(first <= key[1] < end for first, end in mixed_up)}
    paired = {key: events for events in tools.bios() for key in [events[0][1:]] if key in clear}
    assert paired.keys() == clear
    assert len(clear) > 0.6 * len(ours)
    for key, events in paired.items():
        for letter, time, _ in events[1:]:
            assert columns[letter][ours[key]] - start == time, (key, letter)


def test_averages_and_maxima_are_those_of_btt(tools: Tools) -> None:
    """To the nanosecond, which is the last digit that btt prints."""
    left_out = _without((tools.directory / "merged"), tools.mixed_up, tools.directory / "kept")
    assert left_out < 0.4 * len(tools.lines)
    phases = of_trace(str(tools.directory / "kept"), SilentProgress()).tables["trace_phases"].frame
    printed = tools.averages("kept")
    assert printed.keys() & _PHASES >= {"Q2G", "G2I", "I2D", "D2C", "Q2C"}
    for phase in printed.keys() & _PHASES:
        _, average, most, count = printed[phase]
        own = phases[phases["phase"] == phase]
        assert own["count"].sum() == int(count), phase
        assert f"{own['longest'].max():.9f}" == most, phase
        total = (own["average"] * own["count"]).sum()
        assert total / own["count"].sum() == pytest.approx(float(average), abs=1e-9), phase


def _events(data: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield the events of a file: all their bytes, first sector, its end, and action."""
    start = 0
    while start < len(data):
        sector, size, action, more = _EVENT.unpack_from(data, start)
        stop = start + _EVENT.size + more
        yield data[start:stop], sector, sector + -(-size // 512), action
        start = stop


def _without(source: Path, places: set[tuple[int, int]], target: Path) -> int:
    """Copy the events of a file but for those at some sectors; return how many these are."""
    events = [*_events(source.read_bytes())]
    first, end = np.array([event[1:3] for event in events], np.uint64).T
    is_out = np.zeros(len(events), np.bool_)
    while places:
        hit = np.zeros(len(events), np.bool_)
        for low, high in places:
            hit |= (first < high) & (end > low)
        # Events of a request with several bios have sectors of all of them.
        places = {events[row][1:3] for row in np.flatnonzero(hit & ~is_out).tolist()}
        is_out |= hit
    target.write_bytes(b"".join(events[row][0] for row in np.flatnonzero(~is_out).tolist()))
    return int(is_out.sum())
