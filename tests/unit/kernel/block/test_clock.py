# SPDX-License-Identifier: LGPL-2.1-or-later
"""The time of a *synthetic* kernel, with its timekeeper and without."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel import clock as clock_module
from kcensus.kernel.clock import clock
from tests.unit.fakekernel import add_types
from tests.unit.kernel.block.fake import HZ, JIFFIES, NOW_NS, FakeScheduler

SECOND = 10**9

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


@pytest.mark.parametrize("is_damaged", [False, True])
def test_without_a_timekeeper_jiffies_tell(is_damaged: bool) -> None:
    fake = FakeScheduler("deadline", "struct deadline_data")
    if is_damaged:
        fake.k.set(fake.k.symbols["tk_core"].timekeeper.tkr_mono.base, 1 << 63)
    else:
        del fake.k.symbols["tk_core"]
    now = clock(fake.kernel())
    assert (now.ns, now.source) == ((JIFFIES - _STARTED) * 10**9 // HZ, "jiffies")


@pytest.mark.parametrize(
    ("later", "source"),
    [
        ((20 * SECOND, 5 * SECOND), "idle"),  # the last one to enter idle
        ((-5, -SECOND), "timekeeper"),  # it has been updated since
        ((61 * SECOND, 0), "timekeeper"),  # damage, not sleep
    ],
)
@pytest.mark.parametrize("ktime", ["", ".tv64"])
def test_idle_machines_have_no_ticks(
    later: tuple[int, int], source: str, ktime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all CPUs are idle, without a tick, the one that entered idle last noted the time."""
    monkeypatch.setattr(clock_module, "cpu_offsets", lambda _: np.array([0, 64], np.uint64))
    fake = FakeScheduler("deadline", "struct deadline_data")
    member = f"0 {'union ktime' if ktime else 'long'} idle_entrytime"
    types = f"union ktime 8 : 0 long tv64\nstruct tick_sched 64 : {member}"
    add_types(fake.k.prog, types, "ticks")
    first = fake.k.alloc("struct tick_sched [2]", alone=True)
    fake.k.symbols["tick_cpu_sched"] = first[0]
    for cpu, distance in enumerate(later):
        fake.k.write_words(int(first[cpu].address_), NOW_NS + distance)
    now = clock(fake.kernel())
    passed = later[0] if source == "idle" else 0
    assert (now.ns, now.source) == (NOW_NS + passed, source)
    # Jiffies go on with it, so that stamps of both kinds have one "now".
    assert now.jiffies == JIFFIES + passed * HZ // SECOND


_OLD = """
union ktime 8 : 0 long tv64
struct old_read_base 24 : 0 unsigned int shift; 8 unsigned long xtime_nsec; 16 union ktime base
struct old_timekeeper 24 : 0 struct old_read_base tkr_mono
struct old_core 24 : 0 struct old_timekeeper timekeeper
"""


def test_a_timekeeper_before_4_10() -> None:
    """ktime_t was a union."""
    fake = FakeScheduler("deadline", "struct deadline_data")
    add_types(fake.k.prog, _OLD, "ktime")
    mono = fake.k.variable("tk_core", "struct old_core").timekeeper.tkr_mono
    fake.k.set(mono.base.tv64, NOW_NS - 3)
    fake.k.fill(mono, xtime_nsec=3 << 8, shift=8)
    assert clock(fake.kernel()).ns == NOW_NS
