# SPDX-License-Identifier: LGPL-2.1-or-later
"""The content of a sample: small enough to take one every few seconds for months."""

from __future__ import annotations

from collections import Counter
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
"""Most characters of a row's name."""
_MAX_FINDINGS = 200
"""Most findings of an analysis to keep, by severity."""


@dataclass(frozen=True)
class Rows:
    """The largest rows of a table."""

    spec: TableSpec
    columns: Mapping[str, Column]
    """Declarations of the amounts."""
    largest: Largest[tuple[str, ...]]


@dataclass(frozen=True)
class Counted:
    """The outcome of one analysis in a census."""

    summary: Mapping[str, Figure]
    findings: Mapping[str, Finding]
    """Findings by id."""
    gaps: int
    checks_differ: int
    tables: tuple[Rows, ...]


@dataclass(frozen=True)
class Census:
    """The outcomes of the analyses, condensed: the objects of a kernel may take gigabytes."""

    results: Mapping[str, Counted] = field(default_factory=dict)
    """Outcomes of the analyses that did not fail, by analysis."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Reasons of failed analyses, by analysis."""
    number: int = 1
    time: float = 0.0
    """Seconds since 1970, when it was complete."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings with the names of their analyses."""
        return [
            (name, finding)
            for name, counted in self.results.items()
            for finding in counted.findings.values()
        ]

    def severities(self, analysis: str) -> dict[Severity, int]:
        """Return the number of findings of an analysis by severity."""
        found = Counter(each.severity for each in self.results[analysis].findings.values())
        return {severity: found[severity] for severity in Severity}


@dataclass(frozen=True)
class Sample:
    """One reading of the kernel."""

    number: int
    time: float
    """Seconds since 1970, by the local machine's clock."""
    elapsed: float
    """Seconds since the first sample."""
    seconds: float = 0.0
    """Duration without the census."""
    cpu_seconds: float = 0.0
    machine: Machine = field(default_factory=Machine)
    page_bytes: int | None = None
    """Size of a page; None if unknown."""
    gauges: Mapping[str, tuple[Gauge, ...]] = field(default_factory=dict)
    """Counters of the kernel read with this sample, by analysis."""
    gauges_elapsed: Mapping[str, float] = field(default_factory=dict)
    """Seconds from the first sample until these were read, by analysis."""
    last_gauges: Mapping[str, tuple[Gauge, ...]] = field(default_factory=dict)
    """Counters read last, with this sample or before, by analysis."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Reasons of failed readings of counters, by analysis."""
    unreadable: str = ""
    """Reason why nothing could be read, in one sentence: the kernel is gone, or another runs."""
    census: Census | None = None
    """The last one."""
    is_census: bool = False
    """Whether it was taken with this sample."""


def condensed(report: Report, wanted: Iterable[Analysis]) -> Census:
    """Return the parts of a report that a sample keeps."""
    results = report.results
    has = (each for each in wanted if each.name in results)
    return Census({each.name: _counted(each, results[each.name]) for each in has}, report.errors)


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
    # An unknown value is not 0.
    rows = tuple(row for row in found.rows if any(plain(value) != 0 for value in row[1]))
    columns = {metric: table.columns[metric] for metric in found.metrics}
    return Rows(spec, columns, replace(found, rows=rows))


def _names(key: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(bounded(part, _MAX_NAME) for part in key)
