# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages of the kernel log about tasks: hung tasks, owners of locks, and oopses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import drgn

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import Line, records
from kcensus.kernel.names import ABSENT
from kcensus.sources.capsule import NotRecorded
from kcensus.text import task_name

_OOPS = re.compile(r"kernel BUG at|BUG: |Oops: |general protection fault")
_VICTIM = re.compile(r"\bPID: (\d+) Comm: (.*?) (?:Not tainted|Tainted|Kdump)")
_AFTER_OOPS = 8
"""Lines after an oops that may name its task."""
_HUNG = re.compile(r"INFO: task (.*):(\d+) blocked(?: in I/O wait)? for more than (\d+) seconds")
_BLOCKER = re.compile(
    r"INFO: task .*:(\d+)(?: is| <\w+>)? blocked on an? \S+ likely (?:owned|last held) by task "
    r".*:(\d+)(?: <(\w+)>)?"
)
"""Message since v6.15 (commit not verified) about a mutex, a semaphore or an rwsem, with "reader"
or "writer" for the waiter and the owner of an rwsem."""


@dataclass(frozen=True)
class Log:
    """Messages of the kernel log about tasks."""

    hung: dict[int, int] = field(default_factory=dict)
    """Longest sleep that the hung task detector reported, seconds, by PID."""
    owners: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Time of the message (seconds since boot) and PID of the owner, by PID of the waiter."""
    oopses: list[str] = field(default_factory=list)
    """Tasks named after an oops, which kills them; printable."""


def kernel_log(kernel: Kernel) -> Log:
    """Return the kernel log's messages about tasks; empty if the log cannot be read."""
    try:
        lines = records(kernel.prog)
    except (*ABSENT, NotRecorded, ValueError, AttributeError, TypeError, drgn.FaultError):
        return Log()
    return Log(*_waits(lines), _oopses(lines))


def _oopses(lines: list[Line]) -> list[str]:
    found: dict[str, None] = {}
    is_near = 0
    for _, line in lines:
        is_near = _AFTER_OOPS if _OOPS.search(line) else is_near - 1
        if is_near > 0 and (match := _VICTIM.search(line)):
            found[task_name(match[2], match[1])] = None
    return list(found)


def _waits(lines: list[Line]) -> tuple[dict[int, int], dict[int, tuple[float, int]]]:
    """Return the hung tasks of the log, and the owners of locks.

    Readers are left out, since they may have released the lock.
    """
    hung: dict[int, int] = {}
    owners: dict[int, tuple[float, int]] = {}
    for stamp, line in lines:
        if match := _HUNG.search(line):
            pid, seconds = int(match[2]), int(match[3])
            hung[pid] = max(seconds, hung.get(pid, 0))
        elif (match := _BLOCKER.search(line)) and match[3] != "reader" and stamp is not None:
            owners[int(match[1])] = stamp, int(match[2])
    return hung, owners
