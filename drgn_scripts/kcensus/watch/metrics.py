# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample as metrics.

All are gauges, since the text is then valid both as Prometheus' text format 0.0.4 and as
OpenMetrics. Names are ``kcensus_ANALYSIS_KEY_UNIT``, and for tables
``kcensus_ANALYSIS_TABLE_row_COLUMN_UNIT``, with the columns that name a row as labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kcensus.render.plain import plain
from kcensus.results import Unit
from kcensus.text import bounded, printable
from kcensus.watch import MAX_ROWS
from kcensus.watch.samples import Census, Rows, Sample

MAX_SERIES = 500
"""Series of rows of tables, all together."""
_MAX_LABEL = 200
_SUFFIXES = {Unit.BYTES: "bytes", Unit.PAGES: "bytes", Unit.RATIO: "ratio", Unit.SECONDS: "seconds"}
"""Pages are exported in bytes: machines differ in the size of a page."""
_RESERVED = ("total", "count", "sum", "bucket", "created", "info")
"""Last words that belong to metrics of other types than gauges."""
_UP = ("kcensus_up", "1 if the last sample could read the kernel")

Value = tuple[tuple[str, ...], float]
"""Values of labels, and the value of the metric."""


@dataclass
class _Families:
    """Metrics by name, with common labels first."""

    labels: Mapping[str, str]
    page_bytes: int | None = None
    families: dict[str, GaugeMetricFamily] = field(default_factory=dict)

    def add(
        self, name: str, help_: str, values: Iterable[Value], labels: Sequence[str] = ()
    ) -> None:
        if name in self.families:
            raise ValueError(f"two metrics have the name '{name}'")
        family = GaugeMetricFamily(name, _help(help_), labels=[*self.labels, *labels])
        for words, value in values:
            family.add_metric([*self.labels.values(), *words], value)
        self.families[name] = family

    def amount(self, value: Any, unit: Unit) -> float | None:
        """Return an amount in the unit of its metric; None if unknown."""
        number = plain(value)
        if not isinstance(number, bool | int | float):
            return None
        if unit is not Unit.PAGES:
            return float(number)
        return float(number) * self.page_bytes if self.page_bytes else None

    def one(self, name: str, help_: str, value: float) -> None:
        self.add(name, help_, [((), value)])

    def each(self, name: str, help_: str, values: Mapping[str, float]) -> None:
        """Add a metric with one value per analysis."""
        self.add(name, help_, [((key,), value) for key, value in values.items()], ["analysis"])


class Metrics(Collector):
    """Gives the last sample to ``prometheus_client``, whose threads may ask at any time.

    :param labels: names and values of labels for all metrics
    :param rows: most rows of each table to export, up to :data:`MAX_ROWS`
    """

    def __init__(self, labels: Mapping[str, str] | None = None, *, rows: int = 0) -> None:
        self._rows = rows
        self._labels = {
            name: bounded(printable(value), _MAX_LABEL) for name, value in (labels or {}).items()
        }
        made = _Families(self._labels)
        made.one(*_UP, False)
        self._families = made.families
        self._failures: dict[str, int] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics of the last sample; reads no kernel."""
        yield from self._families.values()

    def set(
        self,
        sample: Sample,
        *,
        every: int,
        cpu_seconds: float,
        resident_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """Keep the metrics of a sample.

        :param every: seconds from one sample to the next
        :param cpu_seconds: CPU time of all samples
        :param resident_bytes: RAM that kcensus takes, by kind; None if unknown
        """
        made = _Families(self._labels, sample.page_bytes)
        made.one(*_UP, not sample.unreadable)
        self._count_failures(sample)
        if not sample.unreadable:
            _add_gauges(made, sample)
            _add_census(made, sample, self._rows)
        _add_health(made, sample, self._failures, every)
        made.one("kcensus_cpu_seconds", "CPU time of all samples since the start", cpu_seconds)
        made.add(
            "kcensus_resident_bytes",
            "RAM that kcensus takes; file is page cache, most of it debug info",
            [((kind,), size) for kind, size in (resident_bytes or {}).items()],
            ("kind",),
        )
        self._families = made.families

    def _count_failures(self, sample: Sample) -> None:
        census = sample.census if sample.is_census and sample.census else None
        for name in {*sample.last_gauges, *(census.results if census else ())}:
            self._failures.setdefault(name, 0)
        for name in {*sample.errors, *(census.errors if census else ())}:
            self._failures[name] = self._failures.get(name, 0) + 1


def name_of(analysis: str, *words: str, unit: Unit) -> str:
    """Return the name of a metric."""
    parts = "_".join((*words,)).split("_")
    suffix = _SUFFIXES.get(unit)
    if suffix and parts[-1] != suffix:
        parts.append(suffix)
    if parts[-1] in _RESERVED:
        parts.insert(0, parts.pop())
    return re.sub(r"\W", "_", "_".join(("kcensus", analysis, *parts)), flags=re.ASCII)


def _help(text: str) -> str:
    """Return help without escapes: the two formats differ in how they escape quotes."""
    return printable(text).replace("\\", "/").replace('"', "'")


def _add_gauges(made: _Families, sample: Sample) -> None:
    for analysis, gauges in sample.last_gauges.items():
        for gauge in gauges:
            help_ = f"{gauge.label or gauge.key}, as the kernel counts ({gauge.source})"
            value = made.amount(gauge.value, gauge.unit)
            if value is not None:
                made.one(name_of(analysis, gauge.key, unit=gauge.unit), help_, value)


def _add_census(made: _Families, sample: Sample, most: int) -> None:
    census = sample.census
    if census is None:
        return
    for analysis, each in census.results.items():
        for key, figure in each.summary.items():
            value = made.amount(figure.value, figure.unit)
            if value is not None and figure.unit not in (Unit.ADDRESS, Unit.TEXT):
                words = f"{figure.label or key.replace('_', ' ')} (kcensus {analysis})"
                made.one(name_of(analysis, key, unit=figure.unit), words, value)
    if most:
        _add_tables(made, census, most)
    made.add(
        "kcensus_findings",
        "findings of the last census",
        [
            ((analysis, severity.name.lower()), count)
            for analysis in census.results
            for severity, count in census.severities(analysis).items()
        ],
        ("analysis", "severity"),
    )
    gaps = {name: each.gaps for name, each in census.results.items()}
    made.each("kcensus_gaps", "gaps of the last census, by kind", gaps)
    made.each(
        "kcensus_checks_differ",
        "figures of the last census that differ from a counter of the kernel, without a reason",
        {name: each.checks_differ for name, each in census.results.items()},
    )
    made.one("kcensus_censuses", "censuses since the start", census.number)
    made.one(
        "kcensus_last_census_timestamp_seconds", "when the last census was complete", census.time
    )
    made.one("kcensus_census_seconds", "time that the last census took", census.seconds)
    made.one("kcensus_census_cpu_seconds", "CPU time of the last census", census.cpu_seconds)


def _add_tables(made: _Families, census: Census, most: int) -> None:
    tables = [(name, rows) for name, each in census.results.items() for rows in each.tables]
    shown = _rows_that_fit([rows for _, rows in tables], min(most, MAX_ROWS))
    left_out = [
        ((analysis, rows.spec.name), _add_rows(made, analysis, rows, shown))
        for analysis, rows in tables
    ]
    made.add(
        "kcensus_rows_left_out",
        "rows of a table beyond the largest ones, which are exported",
        left_out,
        ("analysis", "table"),
    )


def _rows_that_fit(tables: Sequence[Rows], most: int) -> int:
    """Return the number of rows to export of each table, for equal shares."""

    def series(limit: int) -> int:
        return sum(min(len(each.largest.rows), limit) * len(each.columns) for each in tables)

    return next((limit for limit in range(most, 0, -1) if series(limit) <= MAX_SERIES), 0)


def _add_rows(made: _Families, analysis: str, rows: Rows, limit: int) -> int:
    """Add the first rows of a table; return the number of others."""
    spec, found = rows.spec, rows.largest
    shown = found.rows[:limit]
    for place, metric in enumerate(found.metrics):
        column = rows.columns[metric]
        values = [
            (name, value)
            for name, amounts in shown
            if (value := made.amount(amounts[place], column.unit)) is not None
        ]
        made.add(
            name_of(analysis, spec.name, "row", metric, unit=column.unit),
            f"{column.help or column.label or metric} ({spec.title}, kcensus {analysis})",
            values,
            spec.key,
        )
    return found.left_out + len(found.rows) - len(shown)


def _add_health(made: _Families, sample: Sample, failures: Mapping[str, int], every: int) -> None:
    failed = {*sample.errors, *(sample.census.errors if sample.census else ())}
    made.each(
        "kcensus_analysis_up",
        "1 if the last sample, and the last census, could be taken",
        {name: not (sample.unreadable or name in failed) for name in sorted(failures)},
    )
    made.each(
        "kcensus_analysis_failures",
        "samples and censuses that failed since the start",
        {name: failures[name] for name in sorted(failures)},
    )
    made.one("kcensus_interval_seconds", "time from one sample to the next (--interval)", every)
    made.one("kcensus_samples", "samples since the start", sample.number)
    made.one("kcensus_last_sample_timestamp_seconds", "when the last sample was taken", sample.time)
    made.one("kcensus_sample_seconds", "time that the last sample took", sample.seconds)
    made.one("kcensus_sample_cpu_seconds", "CPU time of the last sample", sample.cpu_seconds)
