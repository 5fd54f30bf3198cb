# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reports of the hung task detector, and whether they are about the present sleep of a task.

Messages stay in the log after a hang has ended, and PIDs are used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Numbers
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import MISSING
from kcensus.kernel.tasks.tasks import tasks


class Hang(NamedTuple):
    """The last message about a task."""

    stamp: float
    """Seconds since boot; -1 if unknown."""
    seconds: int
    """For which the task had not run."""


def present(kernel: Kernel, hangs: Mapping[int, Hang]) -> dict[int, int]:
    """Return the seconds of the messages, by PID, whose task has not run since.

    :param hangs: the last message by PID
    """
    if not hangs:
        return {}
    known = tasks(kernel)
    rows = np.flatnonzero(np.isin(known.pid, np.array([*hangs], np.int64)))
    asleep = dict(zip(known.pid[rows].tolist(), _last_ran(kernel, rows).tolist(), strict=True))
    return {
        pid: hang.seconds
        for pid, hang in hangs.items()
        if pid in asleep and hang.stamp >= 0 and asleep[pid] <= hang.stamp
    }


def replaced(kernel: Kernel, hangs: Mapping[int, Hang]) -> set[int]:
    """Return the PIDs whose task started after the message, which is about another task.

    :param hangs: the last message by PID
    """
    known = tasks(kernel)
    rows = np.flatnonzero(np.isin(known.pid, np.array([*hangs], np.int64)))
    type_, per_second = kernel.prog.type("struct task_struct"), 1e9
    try:
        # Until Linux kernel commit ccbf62d8a284 ("sched: Make task->start_time nanoseconds based")
        # (in v3.17), a struct timespec.
        if type_.member("start_time").type.kind == drgn.TypeKind.STRUCT:
            members, per_second = layout(kernel.prog, type_, {"start": "start_time.tv_sec"}), 1.0
        else:
            members = layout(kernel.prog, type_, {"start": "start_time"})
    except MISSING:
        return set()
    start = gather(kernel.memory, known.address[rows], members, Faults())["start"] / per_second
    return {
        pid
        for pid, at in zip(known.pid[rows].tolist(), start.tolist(), strict=True)
        if 0 <= hangs[pid].stamp < at
    }


def _last_ran(kernel: Kernel, rows: Numbers) -> npt.NDArray[np.float64]:
    """Return when tasks last got a CPU, in seconds since boot; infinity if that is unknown."""
    known = tasks(kernel)
    arrived = known.arrived_ns[rows]
    since = np.where((arrived >= 0) & (known.now_ns >= 0), (known.now_ns - arrived) / 1e9, np.inf)
    # Without sched_info, the detector's own count tells whether the task has run since its last
    # check.
    try:
        names = ["last_switch_count", "nvcsw", "nivcsw"]
        members = layout(kernel.prog, "struct task_struct", names)
    except MISSING:
        return since
    read = gather(kernel.memory, known.address[rows], members, Faults())
    count = read["nvcsw"] + read["nivcsw"]
    is_same = read.readable & (count != 0) & (read["last_switch_count"] == count)
    return np.where(np.isinf(since) & is_same, 0.0, since)
