# SPDX-License-Identifier: LGPL-2.1-or-later
"""The result of an analysis: figures, tables, checks, findings and gaps.

An analysis returns one :class:`Answer` and prints nothing. The terminal, JSON, CSV, Parquet and
HTML all render the same :class:`Result`, so they cannot disagree.

:mod:`kcensus.results.tables` holds the tables; it imports pandas, this module does not.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcensus.results.tables import Table

Scalar = int | float | str | bool | None


class Unit(enum.Enum):
    """What a number counts. Data stays in the unit; only a screen scales it."""

    NONE = ""
    BYTES = "bytes"
    COUNT = "count"
    PAGES = "pages"
    RATIO = "ratio"
    """0.0 … 1.0; shown as a percentage."""
    SECONDS = "seconds"
    ADDRESS = "address"
    TEXT = "text"


@dataclass(frozen=True)
class Figure:
    """One scalar of a summary."""

    value: Scalar
    unit: Unit = Unit.COUNT
    label: str = ""
    """Its name on screen, at most five words."""


class CheckStatus(enum.Enum):
    """What a cross-check showed."""

    AGREE = "agree"
    DIFFER = "differ"
    EXPLAINED = "explained"
    """They differ by exactly what :attr:`Check.note` accounts for."""
    ABSENT = "absent"
    """The kernel does not have this counter."""


@dataclass(frozen=True)
class Check:
    """A figure of ours cross-checked against a counter of the kernel."""

    name: str
    ours: int | None
    counter: int | None
    """The kernel's number, or None where it has no such counter."""
    unit: Unit = Unit.COUNT
    source: str = ""
    """Where the counter lives, e.g. ``kmem_cache_node.total_objects``."""
    note: str = ""
    explained: int | None = None
    """How much of ``counter - ours`` the note accounts for."""

    @property
    def difference(self) -> int | None:
        """``counter - ours``, or None where one of them is missing."""
        if self.ours is None or self.counter is None:
            return None
        return self.counter - self.ours

    @property
    def status(self) -> CheckStatus:
        """What the cross-check showed."""
        difference = self.difference
        if difference is None:
            return CheckStatus.ABSENT
        if difference == 0:
            return CheckStatus.AGREE
        return CheckStatus.EXPLAINED if difference == self.explained else CheckStatus.DIFFER


class Severity(enum.IntEnum):
    """How urgent a finding is."""

    INFO = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True)
class Finding:
    """One sentence a support engineer acts on."""

    severity: Severity
    title: str
    """One sentence: subject, problem, size, share."""
    evidence: str = ""
    remedy: str = ""
    patch: str = ""
    """Identifier in the patch catalogue, if a patch fixes it."""
    cost_bytes: int | None = None


@dataclass(frozen=True)
class Gap:
    """Something that could not be read, and what that does to the figures."""

    what: str
    """e.g. ``slab pages``, ``obj_cgroup vectors``."""
    reason: str
    """e.g. ``not in the dump (filtered)``."""
    count: int
    """How many of ``what``."""
    effect: str
    """Which figures are affected and in which direction."""


@dataclass(kw_only=True)
class Answer:
    """The output of an analysis, without the kernel it is about."""

    summary: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    measures: bool = True
    """Whether its figures are measured, so that a lack of checks must be reported."""
    source: str = ""
    """What was read where there is no target, such as the path of a log."""


@dataclass
class Result(Answer):
    """The answer of one analysis on one target."""

    analysis: str
    target: str
    kernel: str
    """Kernel release."""
    live: bool = False


_MIN_COST_SHARE = 0.001
"""Of RAM: a smaller cost does not count as one."""


def matters(finding: Finding, ram_bytes: int | None = None) -> bool:
    """Return whether a finding costs memory that matters, or says that something is stuck.

    Critical findings always matter. Of the others, one with a cost matters from 0.1 % of RAM on
    (any cost where RAM is unknown), and one without a cost from WARNING on.
    """
    if finding.severity >= Severity.CRITICAL:
        return True
    if finding.cost_bytes is None:
        return finding.severity >= Severity.WARNING
    return finding.cost_bytes > 0 and finding.cost_bytes >= _MIN_COST_SHARE * (ram_bytes or 0)


def rank(finding: Finding, ram_bytes: int | None = None) -> tuple[bool, int, int]:
    """Return the sort key of a finding: findings that matter first, then by severity and cost."""
    return not matters(finding, ram_bytes), -finding.severity, -(finding.cost_bytes or 0)


def nonzero_gaps(*gaps: Gap) -> list[Gap]:
    """Return the gaps that occurred: those whose count is not 0."""
    return [gap for gap in gaps if gap.count]


def ratio(part: float, whole: float) -> float:
    """Return ``part / whole``, or 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0
