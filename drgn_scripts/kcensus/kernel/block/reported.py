# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages of the kernel log about disks that do not answer, and about the tasks behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kcensus.human import counted, human_seconds
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.log import HUNG_TASK, Line, records
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.tasks.hung import Hang, present
from kcensus.kernel.tasks.tasks import tasks

_CONTROLLER = re.compile(r"^nvme (nvme\d+): .*(?:\bI/O .*\btimeout\b|\bQID \d+ timeout\b)")
"""Message of a controller of NVMe, whose disks have its name as a prefix."""
_DISKS = (
    re.compile(r"^sd [\d:]+: \[(\w+)\] .*(?:timing out command|hostbyte=DID_(?:TIME_OUT|NO_CONN))"),
    re.compile(r"\b(?:I/O|timeout|recoverable transport|critical \w+) error, dev (\w+), sector"),
    re.compile(r"^block (nbd\d+): (?:Possible stuck request|Connection timed out)"),
)
"""Messages about disks."""
_MAX_TEXT = 100
"""Most characters of a message to show."""


@dataclass
class Messages:
    """Messages of the log about one disk or controller."""

    count: int = 0
    stamp: float = -1.0
    """Seconds since boot of the last one; -1 if unknown."""
    text: str = ""
    """The last one; printable."""


@dataclass(frozen=True)
class Reported:
    """Messages of the log about disks and tasks."""

    disks: dict[str, Messages] = field(default_factory=dict)
    """By name of the disk, or of its controller."""
    hung: dict[int, Hang] = field(default_factory=dict)
    """Last report of the hung task detector, by PID."""


@once
def reported(kernel: Kernel) -> Reported:
    """Return the messages; none if the log cannot be read."""
    try:
        return parse(records(kernel.prog))
    except DAMAGED:
        return Reported()


def parse(lines: Iterable[Line]) -> Reported:
    """Return the messages among the lines of a log."""
    found = Reported()
    for stamp, line in lines:
        for pattern in (_CONTROLLER, *_DISKS):
            if match := pattern.search(line):
                own = found.disks.setdefault(match[1], Messages())
                own.count += 1
                own.stamp, own.text = -1.0 if stamp is None else stamp, line
                break
        if match := HUNG_TASK.search(line):
            found.hung[int(match[2])] = Hang(-1.0 if stamp is None else stamp, int(match[3]))
    return found


def log_evidence(kernel: Kernel, disk: str, pids: Iterable[int]) -> str:
    """Return a phrase about the messages on a disk and its waiters; printable, empty for none.

    :param disk: name of the disk
    :param pids: of the tasks behind it
    """
    known, parts = reported(kernel), []
    controller = re.match(r"(nvme\d+)(?:c\d+)?n\d+$", disk)
    names = [disk, controller[1]] if controller else [disk]
    for name in names:
        if own := known.disks.get(name):
            now = tasks(kernel).now_ns / 1e9
            ago = f", the last {human_seconds(max(now - own.stamp, 0.0))} before the dump"
            when = ago if own.stamp >= 0 and now >= 0 else ""
            text = own.text if len(own.text) <= _MAX_TEXT else f"{own.text[:_MAX_TEXT]}…"
            messages = counted(own.count, "message")
            parts.append(f'the log has {messages} about {name}{when}: "{text}"')
    if hung := present(kernel, {pid: known.hung[pid] for pid in pids if pid in known.hung}):
        longest = human_seconds(max(hung.values()))
        count = f"{len(hung):,} of these tasks"
        parts.append(f"the log reports {count} as blocked for more than {longest}")
    return "; ".join(parts)
