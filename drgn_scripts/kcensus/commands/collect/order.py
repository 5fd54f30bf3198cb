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
TIME, SIZE = "the time limit", "the size limit"
LIFT = "--full lifts it"


@dataclass(frozen=True)
class Order:
    """Work on one target, in a process of its own; its files are open, without names."""

    work: str
    """``record``, ``report`` on the redacted capsule, or ``rescue`` the sections of a killed one.
    """
    parent: int
    spec: str | None
    reading: Reading
    files: dict[str, int]
    """Descriptors by name; ``sections`` and ``pages`` are not for the archive."""
    redact: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    key: bytes | None = None
    analyses_until: float | None = None
    """Time of :func:`time.monotonic`, which all processes share; None without a limit."""
    until: float | None = None
    max_bytes: int | None = None
    is_debugging: bool = False


@dataclass
class Account:
    """What became of one target."""

    spec: str | None
    name: str
    """As the archive and the screen have it."""
    kernel: str = ""
    format: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """By part of the work."""
    cpu_seconds: float = 0.0
    analyses: dict[str, str] = field(default_factory=dict)
    """``done``, or why there is no result, by analysis."""
    capsule: dict[str, Any] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What, and why."""
    error: str = ""
    """Why there is no report."""
    has_report: bool = False
    step: str = "starting"
    """What the process does."""

    @property
    def is_complete(self) -> bool:
        """Return whether all analyses have a result."""
        return self.has_report and all(each == "done" for each in self.analyses.values())
