# SPDX-License-Identifier: LGPL-2.1-or-later
"""How urgent a finding is, and what it can lead to."""

from __future__ import annotations

import enum


class Severity(enum.IntEnum):
    """How urgent a finding is."""

    INFO = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


class Danger(enum.Enum):
    """What a finding can lead to besides less memory."""

    NONE = ""
    STALL = "stall"
    """CPUs or workers make no progress for seconds."""
    DEADLOCK = "deadlock"
    """Tasks wait for each other for ever."""
    OOM = "oom"
    """Memory runs out: the OOM killer, or allocations that fail."""
    INCOMPLETE = "incomplete"
    """Figures are missing, so that other findings may be missing too."""
