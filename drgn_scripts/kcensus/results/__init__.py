# SPDX-License-Identifier: LGPL-2.1-or-later
"""The result of an analysis: figures, tables, checks, findings and gaps.

An analysis returns one :class:`Answer` and prints nothing. The terminal, JSON, CSV, Parquet and
HTML all render the same :class:`Result`, so they cannot disagree.

:mod:`kcensus.results.tables` holds the tables; it imports pandas, this module does not.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kcensus.results.findings import Finding, Remedy, fold, matters, parts_of, rank
from kcensus.results.severity import Danger, Severity

if TYPE_CHECKING:
    from kcensus.results.tables import Table

__all__ = (
    "Answer",
    "Bound",
    "Check",
    "CheckStatus",
    "Danger",
    "Figure",
    "Finding",
    "Gap",
    "Gauge",
    "Machine",
    "Remedy",
    "Result",
    "Scalar",
    "Severity",
    "Unit",
    "fold",
    "matters",
    "nonzero_gaps",
    "parts_of",
    "rank",
    "ratio",
)

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


class Bound(enum.Enum):
    """How a figure relates to the truth, where something that it needs could not be read."""

    EXACT = ""
    AT_MOST = "at most"
    AT_LEAST = "at least"
    ABOUT = "about"
    """Some things are not counted, and others too often."""

    @staticmethod
    def of(*, over: bool, under: bool) -> Bound:
        """Return the bound of a count that may be too high (``over``) or too low (``under``)."""
        if over:
            return Bound.ABOUT if under else Bound.AT_MOST
        return Bound.AT_LEAST if under else Bound.EXACT


@dataclass(frozen=True)
class Figure:
    """One scalar of a summary."""

    value: Scalar
    unit: Unit = Unit.COUNT
    label: str = ""
    """Its name on screen, at most five words."""
    bound: Bound = Bound.EXACT
    """What a gap makes of it; shown before the value."""


@dataclass(frozen=True)
class Gauge:
    """A number that the kernel keeps itself, and that a few reads of memory tell."""

    key: str
    """The kernel's name of it, in lower case: an identifier, as keys of a summary are."""
    value: int
    unit: Unit = Unit.COUNT
    label: str = ""
    """Its name on screen, at most five words."""
    source: str = ""
    """Where it lives; that of a :class:`Check` is the same where the check compares with it."""


class CheckStatus(enum.Enum):
    """What a cross-check showed."""

    AGREE = "agree"
    DIFFER = "differ"
    EXPLAINED = "explained"
    """They differ by what :attr:`Check.note` accounts for."""
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
    at_most: int | None = None
    """How much of it the note can account for, where only a bound is known."""
    moved: int | None = None
    """How far the counter of a running kernel moved while ours was read: of its lowest and its
    highest reading, the later one, which is :attr:`counter`, less the earlier one. None where it
    was read once."""

    @property
    def difference(self) -> int | None:
        """``counter - ours``, or None where one of them is missing."""
        if self.ours is None or self.counter is None:
            return None
        return self.counter - self.ours

    @property
    def beyond(self) -> int:
        """How far ours is from all that the counter was, above it (positive) or below."""
        difference, moved = self.difference or 0, self.moved or 0
        return -(max(difference - max(moved, 0), 0) or min(difference - min(moved, 0), 0))

    @property
    def status(self) -> CheckStatus:
        """What the cross-check showed."""
        difference, moved = self.difference, self.moved or 0
        if difference is None:
            return CheckStatus.ABSENT
        if difference == 0:
            return CheckStatus.AGREE
        least, most = difference - max(moved, 0), difference - min(moved, 0)
        explained = least <= (self.at_most or 0) and most >= 0
        if self.explained is not None:
            explained |= least <= self.explained <= most
        return CheckStatus.EXPLAINED if explained else CheckStatus.DIFFER

    def over(self, *readings: int | None) -> Check:
        """Return the check with a counter that a running kernel changed while ours was read.

        The counter is then known to have had all values between the lowest and the highest; it
        becomes the later one of these two.

        :param readings: of the counter, oldest first; None for those that failed
        """
        known = [reading for reading in readings if reading is not None]
        if self.counter is None or len(known) < 2:
            return self
        first, last = sorted((known.index(min(known)), known.index(max(known))))
        return replace(self, counter=known[last], moved=known[last] - known[first])


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
    nothing: str = ""
    """One sentence that replaces the figures on a screen where the kernel lacks the subject."""
    measures: bool = True
    """Whether its figures are measured, so that a lack of checks must be reported."""
    source: str = ""
    """What was read where there is no target, such as the path of a log."""


MEMORY_USES = {
    "free": "free",
    "page_cache": "page cache",
    "shmem": "shmem (tmpfs)",
    "anonymous": "anonymous",
    "slab_reclaimable": "reclaimable slabs",
    "slab_unreclaimable": "unreclaimable slabs",
    "page_tables": "page tables",
    "kernel_stacks": "kernel stacks",
    "per_cpu": "per-CPU",
    "huge_pages": "huge pages",
    "other": "other",
}
"""What RAM is used for: labels of the keys of :attr:`Machine.memory`."""


@dataclass(frozen=True)
class Machine:
    """The machine that a result is about; None and empty where unknown."""

    host: str = ""
    time: float | None = None
    """Of the dump, by the clock of the machine: seconds since 1970, UTC."""
    uptime_seconds: float | None = None
    ram_bytes: int | None = None
    cpus: int | None = None
    """Online."""
    nodes: int | None = None
    """NUMA nodes with memory."""
    kernel: str = ""
    """Release."""
    version: str = ""
    """Build of the kernel: ``#1 SMP Debian 5.10.251-1 (2026-01-01)``."""
    build_id: str = ""
    """Of the vmlinux, in hexadecimal digits."""
    taken_by: str = ""
    """What took the dump: a panic message, or how else."""
    is_panic: bool = False
    """Whether :attr:`taken_by` is a panic message that has a cause to look for."""
    has_pseudonyms: bool = False
    """Whether names are pseudonyms, in a redacted capsule."""
    boot: str = ""
    """Identifies the boot: the same in all dumps between two starts of the kernel."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes of RAM by use (:data:`MEMORY_USES`), by counters of the kernel; together the RAM."""


@dataclass
class Result(Answer):
    """The answer of one analysis on one target."""

    analysis: str
    target: str
    kernel: str
    """Kernel release."""
    live: bool = False
    machine: Machine | None = None
    """None where the result is not about one machine."""
    compared: tuple[Machine, ...] = ()
    """The machine before and the one after, where the result compares two."""

    def amount(self, key: str) -> int:
        """Return a figure of the summary that counts something, or 0 where it is unknown."""
        figure = self.summary.get(key)
        return int(figure.value) if figure and isinstance(figure.value, (int, float)) else 0


def nonzero_gaps(*gaps: Gap) -> list[Gap]:
    """Return the gaps that occurred: those whose count is not 0."""
    return [gap for gap in gaps if gap.count]


def ratio(part: float, whole: float) -> float:
    """Return ``part / whole``, or 0 if ``whole`` is 0."""
    return part / whole if whole else 0.0
