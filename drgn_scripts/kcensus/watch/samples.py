# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a sample holds: little enough to keep one, and to take one every few seconds for months."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kcensus.analyses import Analysis
from kcensus.render.plain import plain
from kcensus.reports import Report
from kcensus.results import CheckStatus, Figure, Finding, Gauge, Machine, Result, Severity
from kcensus.results.largest import Largest, largest
from kcensus.results.tables import Column, TableSpec
from kcensus.text import bounded
from kcensus.watch import MAX_ROWS

_MAX_NAME = 200
"""Characters of a column that names a row."""
_MAX_FINDINGS = 200
"""Of each analysis; the most severe."""


@dataclass(frozen=True)
class Rows:
    """The largest rows of a table."""

    spec: TableSpec
    columns: Mapping[str, Column]
    """Declarations of the amounts."""
    largest: Largest[tuple[str, ...]]


@dataclass(frozen=True)
class Counted:
    """What a census found for one analysis."""

    summary: Mapping[str, Figure]
    findings: Mapping[str, Finding]
    """By id."""
    gaps: int
    checks_differ: int
    tables: tuple[Rows, ...]


@dataclass(frozen=True)
class Census:
    """What the analyses found, condensed: the objects of a kernel may take gigabytes."""

    results: Mapping[str, Counted] = field(default_factory=dict)
    """By analysis, where it did not fail."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why an analysis failed, by analysis."""
    number: int = 1
    """From 1."""
    time: float = 0.0
    """Seconds since 1970, when it was complete."""
    seconds: float = 0.0
    """How long it took."""
    cpu_seconds: float = 0.0
    """CPU time of that."""

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings with the names of their analyses."""
        return [
            (name, finding)
            for name, counted in self.results.items()
            for finding in counted.findings.values()
        ]

    def severities(self, analysis: str) -> dict[Severity, int]:
        """Return how many findings of an analysis have each severity."""
        count = dict.fromkeys(Severity, 0)
        for finding in self.results[analysis].findings.values():
            count[finding.severity] += 1
        return count


@dataclass(frozen=True)
class Sample:
    """What was read at one moment."""

    number: int
    """From 1."""
    time: float
    """Seconds since 1970, by the clock of the machine that kcensus runs on."""
    elapsed: float
    """Seconds since the first sample."""
    seconds: float = 0.0
    """How long it took, without a census."""
    cpu_seconds: float = 0.0
    """CPU time of that."""
    machine: Machine = field(default_factory=Machine)
    page_bytes: int | None = None
    """Size of a page; None if unknown."""
    gauges: Mapping[str, tuple[Gauge, ...]] = field(default_factory=dict)
    """What the kernel counts, by analysis, where it was read with this sample."""
    gauges_elapsed: Mapping[str, float] = field(default_factory=dict)
    """Seconds from the first sample until these were read, by analysis."""
    last_gauges: Mapping[str, tuple[Gauge, ...]] = field(default_factory=dict)
    """What was read last, by analysis: with this sample, or with one before."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why gauges of an analysis could not be read the last time, by analysis."""
    unreadable: str = ""
    """Why nothing could be read, in one sentence: the kernel is gone, or another one runs."""
    census: Census | None = None
    """The last one."""
    is_census: bool = False
    """Whether it was taken with this sample."""


def condensed(report: Report, wanted: Iterable[Analysis]) -> Census:
    """Return what is kept of a report."""
    results = report.results
    has = [each for each in wanted if each.name in results]
    known = {each.name: _counted(each, results[each.name]) for each in has}
    return Census(known, report.errors)


def _counted(analysis: Analysis, result: Result) -> Counted:
    severe = sorted(result.findings, key=lambda each: -each.severity)[:_MAX_FINDINGS]
    specs = [spec for spec in analysis.tables() if spec.series and spec.name in result.tables]
    return Counted(
        dict(result.summary),
        {finding.id: finding for finding in severe},
        len(result.gaps),
        sum(check.status is CheckStatus.DIFFER for check in result.checks),
        tuple(_rows(spec, result) for spec in specs),
    )


def _rows(spec: TableSpec, result: Result) -> Rows:
    table = result.tables[spec.name]
    found = largest(spec, table, MAX_ROWS, _names)
    # What is unknown is not nothing.
    rows = tuple(row for row in found.rows if any(plain(value) != 0 for value in row[1]))
    columns = {metric: table.columns[metric] for metric in found.metrics}
    return Rows(spec, columns, replace(found, rows=rows))


def _names(key: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(bounded(part, _MAX_NAME) for part in key)
