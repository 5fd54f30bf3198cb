# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jiffies and their frequency."""

from __future__ import annotations

import drgn

_MASK = (1 << 64) - 1


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


def jiffies(prog: drgn.Program) -> int:
    """Return ``jiffies_64``.

    :raises LookupError: the variable has no debug info
    """
    return int(prog["jiffies_64"]) & _MASK


def elapsed(now: int, then: int) -> int:
    """Return the ticks from ``then`` to ``now``; 0 where another CPU's stamp is ahead."""
    distance = (now - then) & _MASK
    return 0 if distance >= 1 << 63 else distance
