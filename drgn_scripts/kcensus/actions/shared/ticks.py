# SPDX-License-Identifier: LGPL-2.1-or-later
"""When a command that repeats something does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

_MAX_SLEEP = 10.0
"""Seconds after which the clock is read again: it may have been set."""


class Clock(Protocol):
    """What :mod:`time` offers, so that tests need not wait."""

    def time(self) -> float:
        """Return seconds since 1970."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        ...


def ticks(every: int, late: Callable[[], object], clock: Clock = time) -> Iterator[None]:
    """Yield now, then whenever the time since 1970 is a multiple of ``every`` seconds.

    Multiples that pass between two ticks are left out; so is the first, if it is near.

    :param late: called when one is left out because the work took too long
    """
    earliest = clock.time() + every / 2
    yield
    while True:
        now = clock.time()
        if now > earliest + every / 2:
            late()
        due = (max(now, earliest) // every + 1) * every
        while (left := due - clock.time()) > 0:
            if left > 2 * every:  # the clock was set back
                due -= (left // every) * every
            else:
                clock.sleep(min(left, _MAX_SLEEP))
        earliest = due + every / 2
        yield
