# SPDX-License-Identifier: LGPL-2.1-or-later
"""The clocks of the target: jiffies, and CLOCK_MONOTONIC."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass

import drgn
import numpy as np
from drgn.helpers.linux.cpumask import for_each_online_cpu
from drgn.helpers.linux.percpu import per_cpu

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import MISSING
from kcensus.kernel.size import MAX_CPUS

_NS = 1_000_000_000
_MAX_NS = 1 << 61
"""73 years."""


def hz(prog: drgn.Program) -> int:
    """Return CONFIG_HZ, from ``clocksource_jiffies``: ``mult >> shift`` is nanoseconds per tick.

    No variable holds HZ, and the kernel's configuration is seldom in memory.

    :raises LookupError: the kernel has no ``clocksource_jiffies``, or it is damaged
    """
    clock = prog["clocksource_jiffies"]
    tick = int(clock.mult) >> int(clock.shift)
    if not 0 < tick <= _NS:
        raise LookupError(f"clocksource_jiffies is damaged: a tick of {tick} ns is impossible")
    return round(_NS / tick)


def elapsed(now: int, then: int) -> int:
    """Return the jiffies from ``then`` to ``now``; 0 where another CPU's stamp is ahead."""
    distance = (now - then) % (1 << 64)
    return 0 if distance >= 1 << 63 else distance


@dataclass(frozen=True)
class Clock:
    """The time of the target at the moment of the dump."""

    ns: int
    """CLOCK_MONOTONIC, nanoseconds."""
    jiffies: int
    hz: int
    source: str
    """``timekeeper``: its last update, at most a tick ago; ``idle``: later, when the last CPU with
    a stopped tick entered idle; ``jiffies``: the timekeeper could not be read."""
    lost: int = 0
    """CPUs whose last idle time could not be read: ``ns`` may be seconds early."""

    def since(self, stamps: Words) -> Numbers:
        """Return the nanoseconds since stamps of CLOCK_MONOTONIC; negative for the future."""
        return (np.uint64(self.ns) - stamps.astype(np.uint64)).view(np.int64)

    def since_jiffies(self, stamps: Words) -> Numbers:
        """Return the nanoseconds since stamps in jiffies; negative for the future."""
        ticks = (np.uint64(self.jiffies) - stamps.astype(np.uint64)).view(np.int64)
        # A damaged stamp that would overflow is only "very long ago".
        most = (1 << 62) * self.hz // _NS
        return np.clip(ticks, -most, most) * (_NS // self.hz)


@once
def clock(kernel: Kernel) -> Clock:
    """Return the time of the target.

    The cycles since the timekeeper's last update are in no memory, so the result is early by up to
    a tick. Where all CPUs were idle, without a tick, the timekeeper may be seconds late: the last
    CPU to enter idle noted when it did.

    :raises LookupError: the debug info lacks jiffies
    :raises drgn.FaultError: they are unreadable
    """
    prog = kernel.prog
    frequency, jiffies = hz(prog), int(prog["jiffies_64"])
    try:
        ns = _timekeeper(prog)
    except (LookupError, AttributeError, drgn.FaultError):
        # INITIAL_JIFFIES: as 32 bits, the machine starts five minutes before they run over.
        ticks = max(jiffies - ((1 << 32) - 300 * frequency), 0)
        return Clock(min(ticks * (_NS // frequency), _MAX_NS), jiffies, frequency, "jiffies")
    idle, lost = _idle_entry(kernel)
    # A CPU that entered idle a minute after the last tick of all is damage, not sleep.
    if ns < idle < ns + 60 * _NS:
        ticks = (idle - ns) * frequency // _NS
        return Clock(idle, jiffies + ticks, frequency, "idle", lost)
    return Clock(ns, jiffies, frequency, "timekeeper", lost)


def _timekeeper(prog: drgn.Program) -> int:
    """Return CLOCK_MONOTONIC at the last update; raise AttributeError on layouts before v4.1."""
    try:
        # Since Linux kernel commit 22c62b9a84b8 ("timekeeping: Introduce auxiliary timekeepers")
        # (in v6.17), tk_core is a macro for an element of an array.
        core = prog["timekeeper_data"][prog["TIMEKEEPER_CORE"]]
    except LookupError:
        core = prog["tk_core"]
    mono = core.timekeeper.tkr_mono
    # Since Linux kernel commit 2456e8553544 ("ktime: Get rid of the union") (in v4.10), ktime_t is
    # a number.
    base = getattr(mono.base, "tv64", mono.base)
    ns = int(base) + (int(mono.xtime_nsec) >> (int(mono.shift) & 63))
    if not 0 <= ns <= _MAX_NS:
        raise LookupError(f"the timekeeper is damaged: {ns} ns since the start are impossible")
    return ns


def _idle_entry(kernel: Kernel) -> tuple[int, int]:
    """Return when the last CPU entered idle without its tick; 0 if unknown.

    :return: also the number of online CPUs that do not tell
    """
    prog = kernel.prog
    try:
        names = {"idle_entrytime": ("idle_entrytime.tv64", "idle_entrytime")}
        columns = layout(prog, "struct tick_sched", names)
        addresses = np.uint64(int(prog["tick_cpu_sched"].address_of_())) + cpu_offsets(prog)
    except MISSING:
        return 0, 0
    read = gather(kernel.memory, addresses, columns, Faults())
    unread = set(addresses[~read.readable].tolist())
    if unread:  # the area of a CPU that was never online may be all zero
        with contextlib.suppress(*MISSING):
            online = itertools.islice(for_each_online_cpu(prog), MAX_CPUS)
            places = {int(per_cpu(prog["tick_cpu_sched"], cpu).address_ or 0) for cpu in online}
            unread &= places
    return int(read["idle_entrytime"].max(initial=0)), len(unread)
