# SPDX-License-Identifier: LGPL-2.1-or-later
"""Times at which a command repeats its work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

_MAX_SLEEP = 10.0
"""Seconds after which the clock is read again: it may have been set."""


def ticks(
    every: int,
    late: Callable[[], object],
    *,
    now: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Yield now, then whenever the time since 1970 is a multiple of ``every`` seconds.

    Multiples that pass between two ticks are left out; so is the first, if it is near.

    :param late: called when the work took so long that one is left out
    :param now: returns seconds since 1970; it may be set at any time
    :param monotonic: returns seconds since some moment
    :param sleep: waits for seconds
    """
    earliest = now() + every / 2
    while True:
        start = monotonic()
        yield
        if monotonic() - start > every:
            late()
        due = (max(now(), earliest) // every + 1) * every
        while (left := due - now()) > 0:
            if left > 2 * every:  # the clock was set back
                due -= (left // every) * every
            else:
                sleep(min(left, _MAX_SLEEP))
        earliest = due + every / 2
