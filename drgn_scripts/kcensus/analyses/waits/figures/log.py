# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages of the kernel log about tasks: hung tasks, owners of locks, and oopses."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import HUNG_TASK, OOPS, PLACE, Line, read_log
from kcensus.kernel.names import MISSING
from kcensus.kernel.symbols import described
from kcensus.kernel.tasks.hung import Hang
from kcensus.text import task_name

_VICTIM = re.compile(r"\bPID: (\d+) Comm: (.*?) (?:Not tainted|Tainted|Kdump)")
_CPU = re.compile(r"\bCPU: (\d+) ")
_AFTER_VICTIM = 6
"""Lines after the name of a task that may have its registers."""
_LOCKUP = re.compile(r"BUG: soft lockup - \S+ stuck for (\d+)s! \[.*:(\d+)\]")
"""A redacted log has another number of the CPU."""
_HARD = re.compile(r"Watchdog detected hard LOCKUP on cpu (\d+)")
_THRESHOLD, _MAX_THRESHOLD = 10, 60
"""Default and most of watchdog_thresh: seconds without a timer interrupt that are a hard lockup."""
_AFTER_HARD = 40
"""Lines after a hard lockup, with the modules and locks, that may name the task of the CPU. A panic
in between names the task of the CPU that detected it."""
_AFTER_OOPS = 8
"""Lines after an oops that may name its task."""
_BLOCKER = re.compile(
    r"INFO: task .*:(\d+)(?: is| <\w+>)? blocked on an? \S+ likely (?:owned|last held) by task "
    r".*:(\d+)(?: <(\w+)>)?"
)
"""Message since Linux kernel commit 3cf67d61ff98 ("hung_task: show the blocker task if the task is
hung on mutex") (in v6.15), later also about a semaphore or an rwsem, with "reader" or "writer" for
the waiter and the owner of an rwsem."""


@dataclass(frozen=True)
class Log:
    """Messages of the kernel log about tasks."""

    hung: dict[tuple[int, str], int] = field(default_factory=dict)
    """Longest sleep that the hung task detector reported, seconds, by PID and name of the task:
    PIDs are used again."""
    last: dict[int, Hang] = field(default_factory=dict)
    """Its last report, by PID."""
    owners: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Time of the message (seconds since boot) and PID of the owner, by PID of the waiter."""
    names: dict[int, str] = field(default_factory=dict)
    """Name of the hung task in the last report, by PID."""
    oopses: list[str] = field(default_factory=list)
    """Tasks named after an oops, which kills them; printable."""
    seen: dict[int, tuple[float, str]] = field(default_factory=dict)
    """Time of the last message with the registers of a task (seconds since boot), and its function
    with the module, by PID."""
    lockups: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Time of the last report of a lockup (seconds since boot), and its length in seconds, by PID
    of the task that occupied the CPU."""
    hard: frozenset[int] = frozenset()
    """Those of hard lockups: the CPU takes no interrupts."""


def kernel_log(kernel: Kernel) -> Log:
    """Return the kernel log's messages about tasks; empty if the log cannot be read."""
    lines = read_log(kernel).lines
    log = Log(*_waits(lines), _oopses(lines), *_busy(lines))
    hard = _hard_lockups(lines)
    stamps = {pid: at for pid, at in hard.items() if at >= log.lockups.get(pid, (at,))[0]}
    seconds = 0
    with contextlib.suppress(*MISSING):
        seconds = int(kernel.prog["watchdog_thresh"]) if stamps else 0
    seconds = seconds if 0 < seconds <= _MAX_THRESHOLD else _THRESHOLD
    log.lockups.update({pid: (at, seconds) for pid, at in stamps.items()})
    return replace(log, hard=frozenset(stamps))


def _oopses(lines: list[Line]) -> list[str]:
    found: dict[str, None] = {}
    is_near = 0
    for _, line in lines:
        is_near = _AFTER_OOPS if OOPS.search(line) else is_near - 1
        if is_near > 0 and (match := _VICTIM.search(line)):
            found[task_name(match[2], match[1])] = None
    return list(found)


def _busy(lines: list[Line]) -> tuple[dict[int, tuple[float, str]], dict[int, tuple[float, int]]]:
    """Return where tasks ran, by messages with registers, and soft lockups."""
    seen: dict[int, tuple[float, str]] = {}
    lockups: dict[int, tuple[float, int]] = {}
    pid = near = 0
    for stamp, line in lines:
        if match := _VICTIM.search(line):
            pid, near = int(match[1]), _AFTER_VICTIM
        elif near > 0 and (match := PLACE.search(line)) and stamp is not None:
            seen[pid], near = (stamp, described(match[1], match[2] or "")), 0
        elif (match := _LOCKUP.search(line)) and stamp is not None:
            lockups[int(match[2])] = stamp, int(match[1])
        near -= 1
    return seen, lockups


def _hard_lockups(lines: list[Line]) -> dict[int, float]:
    """Return the time of the last hard lockup, by PID of the task on its CPU."""
    found: dict[int, float] = {}
    start, number, near = 0.0, "", 0
    for stamp, line in lines:
        if (match := _HARD.search(line)) and stamp is not None:
            start, number, near = stamp, match[1], _AFTER_HARD
        elif near > 0 and (match := _VICTIM.search(line)):
            # Other CPUs may report their tasks in between.
            cpu = _CPU.search(line)
            if cpu is not None and cpu[1] == number:
                found[int(match[1])], near = start, 0
        near = 0 if "Kernel panic" in line else near - 1
    return found


def _waits(
    lines: list[Line],
) -> tuple[
    dict[tuple[int, str], int], dict[int, Hang], dict[int, tuple[float, int]], dict[int, str]
]:
    """Return the hung tasks of the log, the last report of each, the owners of locks, and names.

    Readers are left out, since they may have released the lock.
    """
    hung: dict[tuple[int, str], int] = {}
    last: dict[int, Hang] = {}
    owners: dict[int, tuple[float, int]] = {}
    names: dict[int, str] = {}
    for stamp, line in lines:
        if match := HUNG_TASK.search(line):
            name, pid, seconds = match[1], int(match[2]), int(match[3])
            hung[pid, name] = max(seconds, hung.get((pid, name), 0))
            names[pid] = name
            last[pid] = Hang(-1.0 if stamp is None else stamp, seconds)
        elif (match := _BLOCKER.search(line)) and match[3] != "reader" and stamp is not None:
            owners[int(match[1])] = stamp, int(match[2])
    return hung, last, owners, names
