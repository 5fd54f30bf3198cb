# SPDX-License-Identifier: LGPL-2.1-or-later
"""Severity of a wait, and sentences about remedies that memory and traces share."""

from __future__ import annotations

from kcensus.results import Severity

Steps = tuple[tuple[float, Severity], ...]
"""Least seconds of a wait and their severity, the longest first."""

IN_SCHEDULER: Steps = ((10.0, Severity.CRITICAL), (5.0, Severity.WARNING), (1.0, Severity.NOTICE))
"""Waits of a request in the scheduler while others overtook it, or the driver had none.

CFQ and BFQ expire asynchronous requests after 0.25 s; a system call that waits for 10 s is a stall
to any user.
"""
IN_DRIVER: Steps = ((60.0, Severity.CRITICAL), (15.0, Severity.WARNING), (5.0, Severity.NOTICE))
"""Times of a request in the driver; most drivers abort a request after 30 s, and try again."""

SILENT = 5.0
"""Seconds without a dispatch from which on the device is a cause of its own."""

LOOK_AT_DEVICE = (
    "Look in the kernel log for timeouts, resets and lost paths of the device, and at the "
    "statistics of the storage"
)
SWITCH_HANGS = (
    "Do not switch the scheduler while the device does not answer: the command would hang until "
    "the requests in the driver complete, and block new requests"
)
SWITCH_RISK = (
    "the command and new requests wait until the queue is empty; weights and limits of the old "
    "scheduler no longer apply"
)
LEGACY_SWITCH_RISK = (
    "the command waits for all requests of the old scheduler; new ones bypass it meanwhile, in the "
    "order of their arrival; its weights and limits no longer apply"
)
"""blk_queue_bypass_start() (3.5 to 4.20) drains the scheduler, and does not block new requests."""
LEGACY_UNTIL = (
    "reboot; to keep it, boot with elevator={} (for all disks), or set the scheduler of this disk "
    "in a udev rule; tuned may set another one: see its profile"
)
"""elevator= is for legacy queues, up to v4.20."""


def severity(seconds: float, steps: Steps) -> Severity | None:
    """Return the severity of a wait; None if it is shorter than all steps."""
    return next((each for least, each in steps if seconds >= least), None)


def shortest(steps: Steps) -> float:
    """Return the shortest wait that is a finding, seconds."""
    return steps[-1][0]


def shortest_ns(steps: Steps) -> int:
    """Return the shortest wait that is a finding, nanoseconds."""
    return int(shortest(steps) * 1e9)
