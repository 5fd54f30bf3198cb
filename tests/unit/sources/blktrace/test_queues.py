# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages of CFQ and BFQ are counted per queue."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from operator import attrgetter
from pathlib import Path

import pytest

from kcensus.sources.blktrace.files import read_trace
from kcensus.sources.blktrace.queues import tally
from tests.unit.sources.blktrace.recorded import STARVED as POSTED
from tests.unit.sources.blktrace.recorded import Event, message, packed, unpack


def queues_of(directory: Path, made: list[Event]) -> dict[bytes, tuple[int, ...]]:
    (directory / "x.blktrace.0").write_bytes(packed(made))
    counts = attrgetter("selected", "dispatched", "expired", "preempted", "expired_empty")
    return {each.name: counts(each) for each in tally(read_trace(str(directory / "x")))}


def test_the_posted_excerpt_preempts_the_queue_of_xfsaild(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(POSTED)
    first, second = tally(read_trace(str(tmp_path / "x")))
    assert (first.name, first.pid, first.is_sync) == (b"cfq1618SN", 1618, True)
    assert (first.preempts, first.preempted, first.inserted) == (1, 0, 1)
    assert (second.name, second.pid, second.is_sync) == (b"cfq767A", 767, False)
    assert (second.expired, second.preempted, second.expired_empty) == (1, 1, 1)


def test_cfq_expires_by_preemption_or_by_time(tmp_path: Path) -> None:
    texts = [
        "cfq1A  /grp set_active wl_class:0 wl_type:0",
        "cfq1A  /grp dispatched a request",
        "cfq1A  /grp slice expired t=0",
        "cfq1A  /grp sl_used=2 disp=1 charge=2 iops=0 sect=8",
        "cfq2SN /grp preempt",
        "cfq1A  /grp slice expired t=1",
        "cfq1A  /grp sl_used=1 disp=0 charge=0 iops=1 sect=0",
        "cfq1A slice expired t=0",  # without groups
    ]
    made = [message(step, text) for step, text in enumerate(texts)]
    assert queues_of(tmp_path, made) == {b"cfq1A": (1, 1, 3, 1, 1), b"cfq2SN": (0, 0, 0, 0, 0)}


def test_devices_preempt_their_own_queues(tmp_path: Path) -> None:
    made = [
        message(0, "cfq2S / preempt", device=1 << 20),
        message(1, "cfq1A / slice expired t=1", device=2 << 20),
        message(2, "cfq3A / slice expired t=1", device=1 << 20),
    ]
    preempted = {name: row[3] for name, row in queues_of(tmp_path, made).items()}
    assert preempted == {b"cfq2S": 0, b"cfq1A": 0, b"cfq3A": 1}


@pytest.mark.parametrize("cgroup", [False, True])
def test_bfq_says_why_a_queue_expires(tmp_path: Path, cgroup: bool) -> None:
    texts = [
        "bfq10A set_in_service_queue, cur-budget = 100",
        "bfq10A bfqq_served 8 secs",
        "bfq10A expire (3, slow 0, num_disp 1, short_ttime 0)",
        "bfq10A set_in_service_queue, cur-budget = 100",
        "bfq10A expire (4, slow 0, num_disp 0, short_ttime 0)",
        "bfqSHARED-S set_in_service_queue, cur-budget = 100",
        "bfq dispatch requests: 1 busy queues",
        "bfq [bfq_limit_depth] wr_busy 0 sync 1 depth 0",
        "bfq-hostile set_in_service_queue",
    ]
    made = [message(step, text, cgroup=cgroup) for step, text in enumerate(texts)]
    found = {b"bfq10A": (2, 1, 2, 1, 1), b"bfqSHARED-S": (1, 0, 0, 0, 0)}
    assert queues_of(tmp_path, made) == found


def test_a_recorded_trace_has_what_a_loop_over_its_messages_counts(tmp_path: Path) -> None:
    unpack(tmp_path, "bfq")
    said = []
    for path in tmp_path.glob("bfq.blktrace.*"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at + 46 : at + 48], "little")
            action = int.from_bytes(data[at + 28 : at + 32], "little")
            if action & 0xFFFF00FF == 0x0400_0002:
                time = int.from_bytes(data[at + 8 : at + 16], "little")
                said.append((time, data[at + 48 : at + 48 + length][8 * bool(action & 0x100) :]))
            at += 48 + length
    counts: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
    served: dict[bytes, int] = {}
    for _, text in sorted(said):
        match = re.match(rb"(bfq(?:\d+|SHARED-)[SA]) (.*)", text)
        if not match:
            continue
        name, words = match.groups()
        if words.startswith(b"set_in_service_queue"):
            counts[name]["selected"] += 1
            served[name] = 0
        elif words.startswith(b"bfqq_served"):
            counts[name]["dispatched"] += 1
            served[name] = served.get(name, 0) + 1
        elif words.startswith(b"expire ("):
            counts[name]["expired"] += 1
            counts[name]["preempted"] += words.startswith(b"expire (4")
            counts[name]["expired_empty"] += served.pop(name, None) == 0
        elif words.startswith(b"add_request"):
            counts[name]["inserted"] += 1
    found = {each.name: each for each in tally(read_trace(str(tmp_path / "bfq")))}
    assert {*found} == {name for name, count in counts.items() if count}
    assert sum(count["selected"] for count in counts.values()) > 20
    for name, count in counts.items():
        for key in ("selected", "dispatched", "expired", "preempted", "inserted", "expired_empty"):
            assert getattr(found[name], key) == count[key], (name, key)
