# SPDX-License-Identifier: LGPL-2.1-or-later
"""Let the other programs of a machine go first."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NICE = 19
OOM_SCORE_ADJ = 1000
"""The OOM killer takes a process with this value before all others."""


def yield_to_others() -> None:
    """Take CPU time, disk and memory after all others, as far as this process may choose that.

    The I/O priority follows: task_nice_ioprio() in include/linux/ioprio.h makes (nice + 20) / 5 of
    a process that set none, which is 7, the lowest of the class best-effort. The class idle would
    be too low: a process that waits for a turn may hold a lock of the file system.
    """
    # Linux has a nice value per thread, and threads start with that of the thread that makes them.
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has ended, or is as nice already
            os.setpriority(os.PRIO_PROCESS, int(thread), NICE)
    with contextlib.suppress(OSError):  # a sandbox has made /proc read-only
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
