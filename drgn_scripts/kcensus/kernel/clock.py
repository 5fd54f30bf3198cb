# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frequency and distance of jiffies."""

from __future__ import annotations

import drgn


def hz(prog: drgn.Program) -> int:
    """Return CONFIG_HZ, from ``clocksource_jiffies``: ``mult >> shift`` is nanoseconds per tick.

    No variable holds HZ, and the kernel's configuration is seldom in memory.

    :raises LookupError: the kernel has no ``clocksource_jiffies``, or it is damaged
    """
    clock = prog["clocksource_jiffies"]
    tick = int(clock.mult) >> int(clock.shift)
    if not 0 < tick <= 1_000_000_000:
        raise LookupError(f"clocksource_jiffies is damaged: a tick of {tick} ns is impossible")
    return round(1_000_000_000 / tick)


def elapsed(now: int, then: int) -> int:
    """Return the jiffies from ``then`` to ``now``; 0 where another CPU's stamp is ahead."""
    distance = (now - then) % (1 << 64)
    return 0 if distance >= 1 << 63 else distance
