# SPDX-License-Identifier: LGPL-2.1-or-later
"""How severe a wait is, and what the findings of memory and of a trace say of its remedy."""

from __future__ import annotations

from kcensus.results import Severity

Steps = tuple[tuple[float, Severity], ...]
"""Seconds from which on a wait is this severe, the longest first."""

IN_SCHEDULER: Steps = (
    (10.0, Severity.CRITICAL),
    (5.0, Severity.WARNING),
    (1.0, Severity.NOTICE),
)
"""Of a request that the driver could have had: others overtook it, or the driver had none. CFQ and
BFQ expire asynchronous requests after 0.25 s; a system call that waits for 10 s is a stall to any
user."""
IN_DRIVER: Steps = (
    (60.0, Severity.CRITICAL),
    (15.0, Severity.WARNING),
    (5.0, Severity.NOTICE),
)
"""Of a request that the driver has; most drivers abort a request after 30 s, and try again."""

SWITCH_HANGS = (
    "To switch the scheduler would wait for the requests in the driver, and let none in "
    "meanwhile: see to the device first"
)
SWITCH_RISK = (
    "New requests and the command wait until then; weights and limits of the old one no longer "
    "apply"
)


def severity(seconds: float, steps: Steps) -> Severity | None:
    """Return how severe a wait is; None if it is shorter than all steps."""
    return next((each for least, each in steps if seconds >= least), None)


def shortest(steps: Steps) -> float:
    """Return the seconds from which on a wait is a finding."""
    return steps[-1][0]


def shortest_ns(steps: Steps) -> int:
    """Return the nanoseconds from which on a wait is a finding."""
    return int(shortest(steps) * 1e9)
