# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of CPU time, memory and priority, only where the process is the command ``kcensus``."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

_SLICE = 0.02
"""Seconds of CPU time after which the process rests."""

_owned = False
_yields = False


def own_process() -> None:
    """Declare this process as the command ``kcensus``, so that limits may be set."""
    global _owned
    _owned = True


def is_own_process() -> bool:
    """Return whether this process is the command ``kcensus``."""
    return _owned


def yield_to_others(*, is_nice: bool = True) -> None:
    """Take memory after all other programs, and CPU time and disk, too, as far as possible.

    The I/O priority follows: task_nice_ioprio() in include/linux/ioprio.h makes (nice + 20) / 5 of
    a process without one, which is 7, the lowest of the class best-effort. The class idle would be
    too low: a process that waits for its turn may hold a lock of the file system.

    :param is_nice: whether to yield CPU time and disk; the first call of a process decides
    """
    global _yields
    if _yields:
        return
    _yields = True
    if is_nice:
        # Linux has a nice value per thread, and new threads inherit their creator's.
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # the thread has ended, or is as nice already
                os.setpriority(os.PRIO_PROCESS, int(thread), 19)
    with contextlib.suppress(OSError):  # a sandbox has made /proc read-only
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_share(percent: int) -> None:
    """Let this process take at most ``percent`` (1 to 100) of one CPU, on average, until it ends.

    All of its threads count, in user and kernel mode; processes that it forks do not. Call it
    before drgn is imported, so that one thread instead of one per core reads debug info.
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
