# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests: their lists, dispatch, operations, and the counters of those in flight."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.block import disks, operations, requests
from kcensus.kernel.block.disks import BlockDevices, Partitions
from kcensus.kernel.block.operations import Operations
from kcensus.kernel.block.requests import _Reader
from kcensus.sources import open_target
from tests.unit.fakekernel import FakeKernel
from tests.unit.kernel.block.fake import HZ, JIFFIES, NOW_NS, FakeScheduler

SECOND = 10**9
TIMEOUT = 30 * HZ


def test_a_timer_that_may_have_been_started_again() -> None:
    fake = FakeScheduler("deadline", "struct deadline_data")
    reader = _Reader.__new__(_Reader)
    reader.kernel = fake.kernel()
    columns: Any = SimpleNamespace(fields={"deadline": SimpleNamespace(path="deadline")})
    reader.columns = columns
    # The timer began a second ago, but for the last one, which has a stamp.
    deadline = np.full(4, JIFFIES - HZ + TIMEOUT, np.uint64)
    column: dict[str, Any] = {"deadline": deadline, "timeout": np.full(4, TIMEOUT, np.uint32)}
    ages = np.array([2, 40, 50, 40]) * SECOND
    allocated = np.where(ages == 50 * SECOND, 0, NOW_NS - ages).astype(np.uint64)
    stamps = np.array([0, 0, 0, NOW_NS - 35 * SECOND], np.uint64)
    dispatched, is_at_latest = reader._dispatched(column, stamps, allocated)
    ago = (np.uint64(NOW_NS) - dispatched) // np.uint64(SECOND)
    assert ago.tolist() == [1, 1, 1, 35]
    # The second was allocated more than a timeout before, the third at an unknown time.
    assert is_at_latest.tolist() == [False, True, True, False]


def test_operations() -> None:
    known = Operations(open_target("sample").prog)
    number = {name: value for value, name in known.names.items()}
    names = ["read", "write", "flush", "drv_in", "discard", "zone_append", "write_zeroes"]
    column = np.array([number[name] for name in names])
    flags = np.zeros(len(names), np.uint64)
    scheduled = known.is_scheduled(column, flags)
    assert scheduled.tolist() == [True, True, False, False, True, True, True]
    has_pages = known.has_pages(column)
    assert has_pages.tolist() == [True, True, True, True, False, True, False]
    assert known.is_flush(column).tolist() == [name == "flush" for name in names]


def test_operations_that_are_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel 3.10 of Red Hat has an ``enum req_op`` with the masks of flags."""
    known = {
        "enum rq_flag_bits": {"__REQ_WRITE": 0, "__REQ_SYNC": 4, "__REQ_DISCARD": 7},
        "enum req_op": {"REQ_OP_READ": 0, "REQ_OP_WRITE": 1, "REQ_OP_DISCARD": 128},
    }
    monkeypatch.setattr(operations, "_enumerators", lambda prog, name: known.get(name, {}))
    found = Operations(open_target("sample").prog)
    flags = np.array([0, 0x1, 0x11, 0x81], np.uint64)
    names = [found.name(each) for each in found.operation(flags).tolist()]
    assert names == ["read", "write", "write", "discard"]
    assert found.is_sync(flags).tolist() == [True, False, True, False]


_LIST_TYPES = """
struct request_queue 16
struct blk_mq_hw_ctx 16 : 0 struct list_head dispatch
struct flush 16 : 0 int seq
struct request 64 : 0 struct list_head queuelist; 16 struct flush flush
"""


def test_software_queues_that_are_lost_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    k, none = FakeKernel(types=_LIST_TYPES), np.empty(0, np.uint64)
    reader: Any = requests._Reader.__new__(requests._Reader)
    reader.kernel, reader.prog, reader.memory = SimpleNamespace(prog=k.prog), k.prog, Memory(k.prog)
    reader.faults, reader.damage = Faults(), Counter()
    reader.type, reader.hardware = k.prog.type("struct request"), SimpleNamespace(address=none)
    reader.devices = BlockDevices((), Partitions(none, *[none.astype(np.int64)] * 3))
    lists = SimpleNamespace(request=none, torn=0)
    monkeypatch.setattr(requests, "software_queues", lambda *_: (none, none, 2))
    monkeypatch.setattr(requests, "scheduler_queues", lambda _: [])
    monkeypatch.setattr(requests, "fifos", lambda *_: lists)
    monkeypatch.setattr(requests._Reader, "_flush_queues", lambda _: (none, none))
    reader._with_listed(none, np.empty(0, np.int64))
    reader._places(none, np.empty(0, np.int64))
    assert reader.damage["torn"] == 2


_TYPES = """
struct atomic 8 : 0 long counter
struct disk_stats 64 : 0 struct local [2] in_flight
struct block_device 8 : 0 struct disk_stats * bd_stats
"""
_DISK = 0xFFFF_8880_0000_1000


@pytest.mark.parametrize("local", ["struct atomic a", "long v"], ids=["x86", "powerpc"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_partitions_count(local: str, is_damaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "cpu_offsets", lambda prog: np.array([0, 64], np.uint64))
    k = FakeKernel("6.13", _TYPES + f"struct local 8 : 0 {local}")
    parts = []
    # Of the whole disk and of a partition; requests end on other CPUs than they begin on.
    for reads, writes in (([1, 0], [0, 0]), ([5, -2], [0, 4])):
        part = k.alloc("struct block_device")
        stats = k.alloc("struct disk_stats [2]", alone=True)
        k.set(part.bd_stats, stats)
        for cpu in range(2):
            for way, values in enumerate((reads, writes)):
                place = stats[cpu].in_flight[way]
                k.write_words(int(place.address_), values[cpu] % (1 << 64))
        parts.append(int(part.address_))
    if is_damaged:
        k.set(part.bd_stats, 0)
    found = disks._in_flight(
        Memory(k.prog),
        np.array(parts, np.uint64),
        np.full(2, _DISK, np.uint64),
        np.array([0, 1]),
        np.array([_DISK], np.uint64),
        Faults(),
    )
    assert found.tolist() == ([[-1, -1]] if is_damaged else [[4, 4]])
