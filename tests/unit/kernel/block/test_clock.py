# SPDX-License-Identifier: LGPL-2.1-or-later
"""The time of a *synthetic* kernel, with its timekeeper and without."""

from __future__ import annotations

import numpy as np

from kcensus.kernel.clock import clock
from tests.unit.kernel.block.fake import HZ, JIFFIES, NOW_NS, FakeScheduler

_STARTED = (1 << 32) - 300 * HZ
"""INITIAL_JIFFIES."""


def test_the_timekeeper_tells() -> None:
    fake = FakeScheduler("deadline", "struct deadline_data")
    now = clock(fake.kernel())
    assert (now.ns, now.jiffies, now.hz, now.source) == (NOW_NS, JIFFIES, HZ, "timekeeper")
    stamps = np.array([NOW_NS - 5, NOW_NS + 5], np.uint64)
    assert now.since(stamps).tolist() == [5, -5]
    stamps = np.array([JIFFIES - 5, JIFFIES + 5], np.uint64)
    assert now.since_jiffies(stamps).tolist() == [5 * 10**9 // HZ, -5 * 10**9 // HZ]


def test_without_a_timekeeper_jiffies_tell() -> None:
    fake = FakeScheduler("deadline", "struct deadline_data")
    del fake.k.symbols["tk_core"]
    now = clock(fake.kernel())
    assert (now.ns, now.source) == ((JIFFIES - _STARTED) * 10**9 // HZ, "jiffies")


def test_a_damaged_timekeeper_does_not_count() -> None:
    fake = FakeScheduler("deadline", "struct deadline_data")
    fake.k.set(fake.k.symbols["tk_core"].timekeeper.tkr_mono.base, 1 << 63)
    assert clock(fake.kernel()).source == "jiffies"
