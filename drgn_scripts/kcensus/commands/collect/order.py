# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the command asks of the process that reads one target, and the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kcensus.commands.shared.options import Reading

FORMS = ("report.txt", "report.json", "report.html")
"""Forms of the report, the most important first."""
CAPSULE = "case.capsule"
FIRST = ("waits", "iosched", "kcopyd", "list-lru", "memcgs", "slab", "dentries")
"""Analyses from cheap to dear."""
RECORDED = 0.35
"""Share of the time after which analyses stop whose names are then redacted, for a second report:
of all of a target's time, or if more is left, of that left when it is open."""
TIME, SIZE = "the time limit (--max-time)", "the size limit (--max-size)"
LIFT = "--full lifts it"


@dataclass(frozen=True)
class Order:
    """Work on one target, in a process of its own; its files are open, without names."""

    work: str
    """``record``, ``report`` on the redacted capsule, or ``rescue`` the sections of a killed one.
    """
    spec: str | None
    reading: Reading
    files: dict[str, int]
    """Descriptors by name; ``sections`` and ``pages`` are not for the archive."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Analyses not to run, and why: the capsule lacks them."""
    redact: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    key: bytes | None = None
    analyses_until: float | None = None
    """Time of :func:`time.monotonic`, which all processes share; None without a limit."""
    until: float | None = None
    started: float = 0.0
    """When the process was started."""
    max_bytes: int | None = None
    is_debugging: bool = False


@dataclass
class Account:
    """What became of one target."""

    spec: str | None
    name: str
    """As the archive has it; without a path if that is redacted."""
    shown: str = ""
    """As the screen has it."""
    is_redacted: bool = False
    kernel: str = ""
    format: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """By part of the work."""
    cpu_seconds: float = 0.0
    analyses: dict[str, str] = field(default_factory=dict)
    """``done``, or why there is no result, by analysis."""
    kinds: dict[str, str] = field(default_factory=dict)
    """The same without names of the machine."""
    capsule: dict[str, Any] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What, and why."""
    error: str = ""
    """Why there is no report."""
    error_kind: str = ""
    """The same without names of the machine."""
    no_room: str = ""
    """Why nothing can be written."""
    forms: list[str] = field(default_factory=list)
    """Complete forms of the report."""
    step: str = "starting"
    """What the process does."""
    is_rendering: bool = False
    """Whether the process renders the report: another one would take longer."""

    @property
    def has_report(self) -> bool:
        """Return whether there is a report in any form."""
        return bool(self.forms)

    @property
    def is_complete(self) -> bool:
        """Return whether all analyses have a result."""
        return self.has_report and all(each == "done" for each in self.analyses.values())
