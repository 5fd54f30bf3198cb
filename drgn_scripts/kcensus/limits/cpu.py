# SPDX-License-Identifier: LGPL-2.1-or-later
"""A share of one CPU that this process takes at most."""

from __future__ import annotations

import atexit
import os
import signal
import time
from typing import Any

_SLICE = 0.02
"""Seconds of CPU time after which the process rests."""


def limit_share(percent: int) -> None:
    """Let this process take at most ``percent`` of one CPU, on average, until it ends.

    All of its threads count, in user and kernel mode. Call it before drgn is imported, so that one
    thread instead of one per core reads debug info: they would take their time at once, and rest
    afterwards. Processes that it forks are not limited.

    :param percent: 1 to 100
    """
    # OpenMP reads it once, when drgn's library is loaded.
    os.environ["OMP_NUM_THREADS"] = "1"
    rest_per_second = 100 / percent - 1
    taken = time.process_time()

    def rest(*_: Any) -> None:
        # Python runs this between two of its own instructions: a long call of a library, or a long
        # read of memory, takes many slices, which the sleep makes good.
        nonlocal taken
        before, taken = taken, time.process_time()
        time.sleep((taken - before) * rest_per_second)

    if rest_per_second > 0:
        signal.signal(signal.SIGPROF, rest)
        # Libraries get on with an interrupted system call, as they would without the signal.
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, _SLICE, _SLICE)
        # When Python ends, it takes the handler away, and the signal would kill the process.
        atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)
