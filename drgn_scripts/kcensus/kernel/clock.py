# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ticks: how many there are in a second, and how many have been."""

from __future__ import annotations

import drgn


def hz(prog: drgn.Program) -> int:
    """CONFIG_HZ, from the clock that counts ticks: ``mult >> shift`` is nanoseconds of one.

    No variable holds HZ itself, and the kernel's configuration is seldom in its memory.

    :raises LookupError: this kernel has no ``clocksource_jiffies``, or it is damaged
    """
    clock = prog["clocksource_jiffies"]
    tick = int(clock.mult) >> int(clock.shift)
    if not 0 < tick <= 1_000_000_000:
        raise LookupError("the length of a tick is not known: clocksource_jiffies is damaged")
    return round(1_000_000_000 / tick)


def jiffies(prog: drgn.Program) -> int:
    """The number of ticks, as the low word that kernel structures keep.

    :raises LookupError: the variable is not known
    """
    return int(prog["jiffies_64"]) & ((1 << 64) - 1)


def elapsed(now: int, then: int) -> int:
    """Ticks from ``then`` to ``now``; not negative, since stamps of other CPUs may be ahead."""
    distance = (now - then) & ((1 << 64) - 1)
    return 0 if distance >= 1 << 63 else distance
