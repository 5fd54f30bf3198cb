# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests that memory and a trace have in common."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.analyses.iosched.both import folded, gaps, pairs
from kcensus.results import Finding, Machine, Remedy, Severity
from kcensus.sources.blktrace.bios import NEVER

SECOND = 10**9
DISK = 8 << 20
SECTORS = 8


class Requests(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.sector)


def memory(allocated: Sequence[float], sectors: Sequence[int] | None = None) -> Any:
    """Requests in the memory of a machine with one disk, sda."""
    requests = Requests(
        sector=np.array(sectors or range(0, SECTORS * len(allocated), SECTORS)),
        allocated_ns=(np.array(allocated) * SECOND).astype(np.uint64),
        disk=np.zeros(len(allocated), np.int64),
    )
    return SimpleNamespace(requests=requests, disks=[SimpleNamespace(number=DISK, name="sda")])


def trace(
    got: Sequence[float | None],
    sectors: Sequence[int] | None = None,
    *,
    first: float | None = None,
    start: float | None = None,
) -> Any:
    """Bios of one disk; those without the time of their request are merged to a front."""
    count = len(got)
    times = np.array([NEVER if each is None else int(each * SECOND) for each in got])
    bios = SimpleNamespace(
        device=np.full(count, DISK),
        sector=np.array(sectors or range(0, SECTORS * count, SECTORS)),
        bytes=np.full(count, SECTORS * 512),
        got=times,
        merged=np.where(times == NEVER, SECOND, NEVER),
    )
    trace = SimpleNamespace(first_ns=first and int(first * SECOND), start=start)
    devices = {DISK: "8,0"}
    return SimpleNamespace(bios=bios, is_request=times != NEVER, trace=trace, devices=devices)


@pytest.mark.parametrize(
    ("allocated", "got", "rows"),
    [
        ([500.0], [1.0], []),  # one equal sector proves nothing
        ([500.0, 501.0], [1.0, 2.0], [0, 1]),
        ([500.0, 501.0, 777.0], [1.0, 2.0, 3.0], [0, 1]),
        ([500.0, 601.0, 777.0], [1.0, 2.0, 3.0], []),  # a trace of another time
    ],
)
def test_pairs_have_one_distance(allocated: list[float], got: list[float], rows: list[int]) -> None:
    found = pairs(memory(allocated), trace(got))
    assert found.request.tolist() == found.bio.tolist() == rows
    assert found.offset_ns == (499 * SECOND if rows else 0)


def test_the_clock_of_a_trace_needs_one_request() -> None:
    found = pairs(memory([500.0]), trace([1.0], first=499.000001))
    assert (found.request.tolist(), found.bio.tolist()) == ([0], [0])
    assert found.offset_ns == 499_000_001_000
    assert not len(pairs(memory([500.0]), trace([1.0], first=400.0)))


def test_one_of_many_requests_is_there_by_chance() -> None:
    allocated = [500.0, 501.0, 502.0, 503.0]
    inside = memory(allocated)
    of_another = trace([1.0, 2.0, 2.5, 4.0], [0, 88, 96, 104], first=499.0)
    assert not len(pairs(inside, of_another))
    # A trace that ended early shows those that began before.
    early = trace([1.0], first=499.0)
    assert pairs(inside, early).request.tolist() == [0]


@pytest.mark.parametrize("first", [None, 499.0])
def test_of_bios_at_one_sector_the_nearest_in_time_is_the_one(first: float | None) -> None:
    """A trace that goes on after the dump has later bios at the same sectors."""
    traced = trace([1.0, 2.0, 1.012, 6.0, 7.0], [0, 8, 0, 0, 8], first=first)
    found = pairs(memory([500.0, 501.0]), traced)
    assert (found.request.tolist(), found.bio.tolist()) == ([0, 1], [0, 1])


def test_a_request_begins_at_the_bio_that_was_merged_to_its_front() -> None:
    # Bio 1 (sectors 8 to 15) is merged to the front of the request of bio 0 (16 to 23).
    found = pairs(memory([500.0], [8]), trace([1.0, None], [16, 8], first=499.0))
    assert (found.request.tolist(), found.bio.tolist()) == ([0], [0])


@pytest.mark.parametrize(
    ("up", "reason"), [(1000.0, "another boot"), (510.0, "no request in common")]
)
def test_a_trace_without_a_common_request_is_a_gap(up: float, reason: str) -> None:
    inside, traced = memory([300.0]), trace([1.0], first=500.0, start=10_000.0)
    both = pairs(inside, traced)
    (gap,) = gaps(inside, Machine(time=10_010.0, uptime_seconds=up), traced, both)
    assert reason in gap.reason
    apart = [finding("requests-starved:sda-async"), finding("trace-async-starved:8,0")]
    assert folded(inside, apart[:1], apart[1:], both) == apart


def finding(name: str) -> Finding:
    title, remedies = f"{name.partition(':')[2]}: an async write waits", (Remedy(effect="Switch"),)
    return Finding(id=name, severity=Severity.CRITICAL, title=title, remedies=remedies)


def test_findings_of_a_trace_follow_those_of_memory_without_a_second_remedy() -> None:
    inside, traced = memory([500.0]), trace([1.0], first=499.0)
    both = pairs(inside, traced)
    known = [finding("requests-starved:sda-async")]
    found = [finding(f"trace-{kind}:8,0") for kind in ("async-starved", "sync-delayed")]
    first, second, third = folded(inside, known, found, both)
    assert first == known[0]
    assert (second.part_of, second.remedies) == ("requests-starved:sda-async", ())
    assert second.title == "sda: an async write waits"
    # Memory says nothing about sync requests.
    assert not third.part_of
    assert third.remedies
    assert not [*gaps(inside, Machine(), traced, both)]
    traced.devices = {DISK: "8,0", DISK + 1: "8,1"}
    (gap,) = gaps(inside, Machine(), traced, both)
    assert gap.count == 1
