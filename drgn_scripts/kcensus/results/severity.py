# SPDX-License-Identifier: LGPL-2.1-or-later
"""Severity of findings, with the thresholds that all analyses share.

A finding about memory is judged by its bytes: below 1 MiB or 0.1 % of RAM there is none. A wait is
judged by its time; a stalled worker pool, and a certain deadlock inside of the kernel, are critical
at once. Thresholds for one subject only, such as the children of one directory, are in
``findings.py`` of its analysis.
"""

from __future__ import annotations

import enum


class Severity(enum.IntEnum):
    """Urgency of a finding."""

    INFO = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


class Danger(enum.Enum):
    """Danger of a finding besides less memory."""

    NONE = ""
    STALL = "stall"
    """CPUs or workers make no progress for seconds."""
    DEADLOCK = "deadlock"
    """Tasks wait for each other for ever."""
    OOM = "oom"
    """Memory runs out: the OOM killer, or allocations that fail."""
    INCOMPLETE = "incomplete"
    """Figures are missing, so that other findings may be missing too."""


MIN_BYTES = 1 << 20
"""Least bytes of a finding: for less, no remedy is worth its trouble."""
SHARES = {
    Severity.CRITICAL: 0.25,
    Severity.WARNING: 0.05,
    Severity.NOTICE: 0.005,
    Severity.INFO: 0.001,
}
"""Least share of RAM of a finding, by severity.

At a quarter of RAM, other users of memory get into trouble (reclaim, the OOM killer); from 5 % on,
it is worth a change window; from 0.5 % on, worth knowing when there is one.
"""

LATE, HUNG = 10.0, 120.0
"""Seconds of a task's wait that users notice, and of one that the hung task detector reports: the
default of hung_task_timeout_secs."""


def severity_of(holds: int, ram_bytes: int | None) -> Severity | None:
    """Return the severity of held memory; None if it is no finding.

    :param holds: bytes
    :param ram_bytes: RAM of the machine; None or 0 if unknown: then NOTICE, from 1 MiB on
    """
    if holds < MIN_BYTES:
        return None
    if not ram_bytes:
        return Severity.NOTICE
    return next((each for each, share in SHARES.items() if holds >= share * ram_bytes), None)
