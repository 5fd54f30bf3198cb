# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sample-io`` with a trace of its requests: who sleeps behind them, and what memory and trace say
together.

The guest was not traced. The events are made of its requests, as blktrace would have recorded them,
with reads of another task that went first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.tasks import behind
from kcensus.analyses.iosched.run import run
from kcensus.kernel.block.requests import State
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer
from kcensus.sources import open_target
from tests.unit.sources.blktrace.recorded import READ, WRITE, Event, life, name_of, packed

SYNC = 1 << 3
"""BLK_TC_SYNC."""
SECOND, READS = 10**9, 300
FAR = 1 << 24
"""A sector behind those of all requests."""
FIRST = 7_000_000
"""Nanoseconds from the first event to the first request of memory."""


@pytest.fixture(scope="module")
def starved() -> Kernel:
    return Kernel(open_target("sample-io").prog)


@pytest.fixture(scope="module")
def figures(starved: Kernel) -> Figures:
    return Figures(starved)


@pytest.fixture(scope="module")
def events(figures: Figures) -> list[Event]:
    """Events of all requests, of which each is from a task of its own, and of reads meanwhile."""
    requests, device = figures.requests, figures.disks[0].number
    begin = int(requests.allocated_ns.min()) - FIRST
    made = [Event("P", 0, device=device, flags=0)]
    for row in range(len(requests)):
        start = int(requests.allocated_ns[row]) - begin
        times = [start, start, start + 1]
        if requests.dispatched_ns[row]:
            times.append(int(requests.dispatched_ns[row]) - begin)
        flags = WRITE if requests.operations.is_write(requests.operation[[row]])[0] else READ
        pid = 1000 + row
        made.append(name_of(start, pid, f"task{row}".encode()))
        made[-1].device = device
        made += life(
            int(requests.sector[row]),
            *times,
            sectors=int(requests.bytes[row]) // 512,
            flags=flags | (SYNC if requests.is_sync[row] else 0),
            pid=pid,
            device=device,
        )
    for step in range(READS):
        start = 15 * SECOND + step * SECOND // 20
        made += life(FAR + 8 * step, *range(start, start + 5), flags=READ, device=device)
    return sorted(made, key=lambda each: each.time)


@pytest.fixture(scope="module")
def answer(
    starved: Kernel, events: list[Event], tmp_path_factory: pytest.TempPathFactory
) -> Answer:
    return run(starved, trace=traced(tmp_path_factory.mktemp("trace"), events))


def traced(directory: Path, events: list[Event]) -> str:
    (directory / "vda.blktrace.0").write_bytes(packed(events))
    return str(directory / "vda")


def test_each_sleeper_has_the_request_of_its_bio(figures: Figures) -> None:
    chosen, join = figures.awaited
    assert (chosen >= 0).sum() == 54
    # The first bio of each request leads to what its task sleeps for.
    bios, objects = figures.bios, figures.waits.object
    linked = np.flatnonzero(chosen >= 0)
    for row in linked.tolist():
        own = bios.origin_private[bios.request == chosen[row]]
        assert objects[row] in own.tolist()
    assert np.array_equal(figures.joins.request[join[linked]], chosen[linked])
    assert len(behind(figures, chosen[linked]).pids) == 54
    assert behind(figures, np.empty(0, np.int64)) == (frozenset(), "")


def test_sleepers_say_how_far_their_requests_are(figures: Figures) -> None:
    chosen, _ = figures.awaited
    frame = run(figures.kernel).tables["sleepers"].frame
    by_task = dict(zip(frame["address"], frame["request"], strict=True))
    said = [by_task[int(address)] for address in figures.waits.task]
    states = figures.requests.state[chosen]
    for row, text in enumerate(said):
        if chosen[row] < 0:
            assert text == ""
        elif states[row] == State.DISPATCHED:
            assert "driver" in text
        elif figures.requests.queue[chosen[row]] >= 0:
            label = figures.schedulers[0].label[figures.requests.queue[chosen[row]]]
            assert label in text
    assert "" in said


def test_all_requests_of_memory_are_found_in_the_trace(figures: Figures, answer: Answer) -> None:
    requests = figures.requests
    frame = answer.tables["requests_traced"].frame.set_index("address")
    assert len(frame) == answer.summary["requests_traced"].value == len(requests)
    frame = frame.loc[requests.address.tolist()]
    assert frame["pid"].tolist() == [1000 + row for row in range(len(requests))]
    assert frame["task"].tolist() == [f"task{row}" for row in range(len(requests))]
    behind = np.bincount(figures.joins.request, minlength=len(requests))
    assert frame["sleepers"].tolist() == behind.tolist()
    assert frame["sleepers"].sum() == 54
    # Requests that waited in the scheduler for all of it were overtaken by all the reads, and by
    # the guest's own ones that were dispatched since.
    limit = requests.allocated_ns.min() + 14 * SECOND
    early = (requests.state == State.INSERTED) & (requests.allocated_ns < limit)
    assert early.sum() > 10
    sync = requests.is_sync & (requests.dispatched_ns != 0)
    assert (frame["overtaken_by"][early] >= READS).all()
    assert (frame["overtaken_by"] <= READS + sync.sum()).all()


def test_what_the_trace_says_is_a_part_of_what_memory_says(answer: Answer, starved: Kernel) -> None:
    findings = {each.id: each for each in answer.findings}
    assert {each.id for each in answer.findings[:2]} == {
        "requests-stuck:vda", "requests-starved:vda-async"
    }  # fmt: skip
    assert findings["trace-async-starved:254,0"].part_of == "requests-starved:vda-async"
    assert findings["trace-sync-delayed:254,0"].part_of == "requests-starved:vda-sync"
    plain = run(starved)
    assert plain.summary.items() <= answer.summary.items()
    assert {each.id for each in plain.findings} < findings.keys()
    assert plain.tables.keys() < answer.tables.keys()
    assert len(answer.checks) > len(plain.checks)


def test_a_trace_of_another_time_has_no_requests_of_memory(
    starved: Kernel, events: list[Event], tmp_path: Path
) -> None:
    """The same sectors, each at another distance in time."""
    other = [Event(**(vars(each) | {"time": each.time * 3})) for each in events]
    found = run(starved, trace=traced(tmp_path, other))
    assert found.summary["requests_traced"].value == 0
    assert len(found.tables["requests_traced"].frame) == 0
