# SPDX-License-Identifier: LGPL-2.1-or-later
"""The result of an analysis, which all forms of output render: figures, checks, findings and gaps.

:mod:`kcensus.results.tables` holds the tables; it imports pandas, this module does not.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kcensus.results.figures import Bound, Figure, Scalar, Unit, ratio
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


@dataclass(frozen=True)
class Gauge:
    """A counter of the kernel, which takes a few reads of memory."""

    key: str
    """The kernel's name in lower case: an identifier, like keys of a summary."""
    value: int
    unit: Unit = Unit.COUNT
    label: str = ""
    source: str = ""
    """Place of the counter, the same as in its :class:`Check`."""


class CheckStatus(enum.Enum):
    """Outcome of a cross-check."""

    AGREE = "agree"
    DIFFER = "differ"
    EXPLAINED = "explained"
    """They differ by the amount in :attr:`Check.note`."""
    ABSENT = "absent"
    """The kernel does not have this counter."""


@dataclass(frozen=True)
class Check:
    """A figure of ours cross-checked against a counter of the kernel."""

    name: str
    ours: int | None
    counter: int | None
    """The kernel's number, or None if it has no such counter."""
    unit: Unit = Unit.COUNT
    source: str = ""
    """Place of the counter, e.g. ``kmem_cache_node.total_objects``."""
    note: str = ""
    explained: int | None = None
    """Part of ``counter - ours`` that the note accounts for."""
    at_most: int | None = None
    """Largest part that the note can account for, if only a bound is known."""
    moved: int | None = None
    """Change from the earlier to the later one of the lowest and highest reading of a running
    kernel's counter; the later one is :attr:`counter`. None for a single reading."""

    @property
    def difference(self) -> int | None:
        """``counter - ours``, or None if one of them is missing."""
        if self.ours is None or self.counter is None:
            return None
        return self.counter - self.ours

    @property
    def beyond(self) -> int:
        """Distance of ours above (positive) or below all values of the counter."""
        difference, moved = self.difference or 0, self.moved or 0
        return -(max(difference - max(moved, 0), 0) or min(difference - min(moved, 0), 0))

    @property
    def status(self) -> CheckStatus:
        """Outcome of the cross-check."""
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

        The counter becomes the later one of its lowest and highest reading.

        :param readings: of the counter, oldest first; None for failed ones
        """
        known = [reading for reading in readings if reading is not None]
        if self.counter is None or len(known) < 2:
            return self
        first, last = sorted((known.index(min(known)), known.index(max(known))))
        return replace(self, counter=known[last], moved=known[last] - known[first])


@dataclass(frozen=True)
class Gap:
    """Unreadable or missing data, and its effect on the figures."""

    what: str
    """e.g. ``slab pages``, ``obj_cgroup vectors``."""
    reason: str
    """e.g. ``not in the dump (filtered)``."""
    count: int
    effect: str
    """The affected figures, and the direction of the error."""


@dataclass(kw_only=True)
class Answer:
    """The output of an analysis, without its kernel."""

    summary: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    nothing: str = ""
    """One sentence that replaces the figures on a screen if the kernel lacks the subject."""
    measures: bool = True
    """Whether its figures are measured, so that a lack of checks must be reported."""
    source: str = ""
    """Source of an answer without a target, such as the path of a log."""


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
"""Uses of RAM: labels of the keys of :attr:`Machine.memory`."""


@dataclass(frozen=True)
class Machine:
    """The machine of a result; None and empty if unknown."""

    host: str = ""
    time: float | None = None
    """Time of the dump by the machine's clock, seconds since 1970, UTC."""
    uptime_seconds: float | None = None
    ram_bytes: int | None = None
    cpus: int | None = None
    """Number of online CPUs."""
    nodes: int | None = None
    """Number of NUMA nodes with memory."""
    kernel: str = ""
    """Kernel release."""
    version: str = ""
    """Build of the kernel: ``#1 SMP Debian 5.10.251-1 (2026-01-01)``."""
    build_id: str = ""
    """Build ID of the vmlinux, in hexadecimal digits."""
    types: str = ""
    """Sources of the types and symbols: ``DWARF``, ``BTF``, ``type pack``, ``type pack, BTF`` …"""
    taken_by: str = ""
    """Cause of the dump: a panic message, or another one."""
    is_panic: bool = False
    """Whether :attr:`taken_by` is a panic message that has a cause to look for."""
    has_pseudonyms: bool = False
    """Whether names are pseudonyms, in a redacted capsule."""
    boot: str = ""
    """Identity of the boot: the same in all dumps between two starts of the kernel."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes by use (:data:`MEMORY_USES`), by counters of the kernel; together the RAM."""
    pressure: Mapping[str, float] = field(default_factory=dict)
    """Shares of the last 10 s in which tasks were stalled (PSI): ``io_some``, ``io_full``,
    ``memory_some``, ``memory_full``, ``cpu_some``; empty if unknown."""
    architecture: str = ""
    """As uname(2) names it."""
    page_size_bytes: int | None = None
    load: Mapping[str, float] = field(default_factory=dict)
    """Means of the tasks that ran or waited in state D, as in /proc/loadavg: ``minutes_1``,
    ``minutes_5``, ``minutes_15``; empty if unknown."""


@dataclass
class Result(Answer):
    """The answer of one analysis on one target."""

    analysis: str
    target: str
    kernel: str
    """Kernel release."""
    live: bool = False
    machine: Machine | None = None
    """None if the result is not about one machine."""
    compared: tuple[Machine, ...] = ()
    """The machine before and the one after, if the result compares two."""
    provenance: str = ""
    """How the target was made, if that is unusual: with a simulated clock."""
    counted: str = ""
    """Time from which on the times of a forecast count."""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    """Words for placeholders in commands of kcensus, such as ``TARGET``, quoted for a shell; empty
    words for a command that needs none. Screens and pages show them, documents do not."""

    def amount(self, key: str) -> int:
        """Return an amount of the summary, or 0 if unknown."""
        figure = self.summary.get(key)
        return int(figure.value) if figure and isinstance(figure.value, (int, float)) else 0


def nonzero_gaps(*gaps: Gap) -> list[Gap]:
    """Return the gaps with a count other than 0."""
    return [gap for gap in gaps if gap.count]
