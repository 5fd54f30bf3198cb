# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stop work at a time, also where Python drops exceptions, as in callbacks of a library."""

from __future__ import annotations

import signal
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_AGAIN = 1.0
"""Seconds after which to look whether an exception was dropped."""


class OutOfTime(BaseException):
    """Not an Exception, which analyses survive."""


@contextmanager
def alarm(until: float | None) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the context at a time of :func:`time.monotonic`.

    Once it is on its way out of the context, nothing interrupts the cleanup.
    """
    if until is None:
        yield
        return
    raised: weakref.ref[OutOfTime] | None = None

    def stop(*_: Any) -> None:
        nonlocal raised
        if raised is not None and raised() is not None:
            return
        error = OutOfTime()
        raised = weakref.ref(error)
        try:
            raise error
        finally:
            del error  # this frame is in its traceback

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(until - time.monotonic(), 0.001), _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
