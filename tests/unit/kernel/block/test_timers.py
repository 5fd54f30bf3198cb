# SPDX-License-Identifier: LGPL-2.1-or-later
"""When requests were dispatched, by their timers; which are scheduled or have pages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kcensus.engine.rows import within
from kcensus.kernel.block.operations import Operations
from kcensus.kernel.block.requests import _Reader
from kcensus.sources import open_target
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
    operations = Operations(open_target("sample").prog)
    number = {name: value for value, name in operations.names.items()}
    names = ["read", "write", "flush", "drv_in", "discard", "zone_append", "write_zeroes"]
    column = np.array([number[name] for name in names])
    flags = np.zeros(len(names), np.uint64)
    scheduled = operations.is_scheduled(column, flags)
    assert scheduled.tolist() == [True, True, False, False, True, True, True]
    has_pages = operations.has_pages(column)
    assert has_pages.tolist() == [True, True, True, True, False, True, False]
    assert operations.is_flush(column).tolist() == [name == "flush" for name in names]


def test_huge_counts_do_not_cost_small_ones() -> None:
    counts = np.array([900, 3, 900, 0, 4])
    assert within(counts, 10).tolist() == [False, True, False, True, True]
    assert within(counts, 2000).all()
