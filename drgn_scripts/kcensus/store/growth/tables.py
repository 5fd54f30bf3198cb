# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables of trends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from kcensus.charts import shortened
from kcensus.human import shown_time
from kcensus.results.tables import (
    ALWAYS,
    COUNT,
    DATA,
    NONE,
    RATIO,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    TableSpec,
)
from kcensus.store.ceilings import MAX_EXTRAPOLATION, growth_of
from kcensus.store.growth import forecasts
from kcensus.store.growth.chart import chart
from kcensus.store.growth.parts import is_part, overlap_of
from kcensus.store.growth.words import (
    DAY,
    amount,
    course,
    days,
    duration,
    interval,
    near,
    shown_limit,
    shown_rate,
    without_limit,
)
from kcensus.store.trends import State, Trend, Trends
from kcensus.text import printable

_MAX_PARTS, _MAX_PART = 2, 20
"""Fastest parts to name, and characters of their names."""
_MAX_CHARTS = 2
_TIMES = ("first", "last")


class Shown:
    """Trends, and what is shown of them."""

    def __init__(self, found: Trends, levels: str) -> None:
        self.found = found
        self.levels = levels
        """Characters of courses, the lowest one first."""

    @cached_property
    def growths(self) -> list[_Growth]:
        """The growths, the most urgent first."""
        return growths(self.found, self.levels)

    @cached_property
    def drawn(self) -> list[forecasts.Drawn]:
        """The forecasts."""
        return forecasts.drawn(self.found, [each.trends[0] for each in self.growths])


class _Row(NamedTuple):
    trend: Trend
    levels: str

    @property
    def metric(self) -> str:
        trend = self.trend
        part = "" if trend.part == "summary" else f"{trend.part}."
        return f"{trend.analysis}.{part}{trend.metric}"

    # Of the whole boot without a trend

    @property
    def points(self) -> int:
        return self.trend.slope.points if self.trend.slope else len(self.trend.times)

    @property
    def first(self) -> float:
        return self.trend.slope.first if self.trend.slope else float(self.trend.times[0])

    @property
    def last(self) -> float:
        return self.trend.slope.last if self.trend.slope else float(self.trend.times[-1])

    @property
    def after(self) -> float:
        return self.trend.after

    def until(self, end: int) -> float | None:
        """Return the seconds to the limit, or at an end of the interval; None for never."""
        known = None if self.trend.is_far else self.trend.until_limit
        seconds = max(known[end] - self.trend.age, 0.0) if known else math.inf
        return seconds if math.isfinite(seconds) else None


class _Line(NamedTuple):
    line: str


class _Growth(NamedTuple):
    """What grows together: parts of one amount, or one thing in bytes and as a count."""

    name: str
    overlaps: str
    """Name of another growth with the same bytes in part; empty without one."""
    trends: list[Trend]
    """Those with a limit first; among them the one that stands for all; then the most urgent."""
    levels: str

    @property
    def lead(self) -> _Row:
        return _Row(self.trends[0], self.levels)

    @property
    def growth(self) -> str:
        """The name, with that of a growth that has the same bytes."""
        return self.name + (f" (overlaps {self.overlaps})" if self.overlaps else "")

    @property
    def used(self) -> str:
        """The share of the limit in use, by the last record, or why there is no limit."""
        trend = self.trends[0]
        if not trend.limit:
            return without_limit(trend)
        return f"{float(trend.values[-1]) / trend.limit.value:.0%} of {trend.limit.name}"

    @property
    def ends(self) -> tuple[str, str, str]:
        """Expected, earliest and latest day of the limit; the first says if there is none."""
        trend = self.trends[0]
        if ends := near(trend):
            expected, earliest, latest = days(trend, *ends)
            return f"{expected}{' (past)' * trend.is_past}", earliest, latest or "never"
        far = f"beyond {duration(MAX_EXTRAPOLATION * trend.span)}" if trend.limit else ""
        return far, "", ""

    @property
    def parts(self) -> str:
        """The fastest parts of the leading series."""
        lead = self.trends[0]
        parts = [
            each
            for each in self.trends[1:]
            if each.subject and each.unit == lead.unit and is_part(each)
        ]
        parts.sort(key=lambda each: -each.rate)
        shown = {
            shortened(each.subject, _MAX_PART): shown_rate(each)
            for each in reversed(parts[:_MAX_PARTS])
        }
        return ", ".join(f"{subject} {rate}" for subject, rate in reversed(shown.items()))


def growths(found: Trends, levels: str) -> list[_Growth]:
    """Return the growing series of running boots by what grows, the first at its limit on top."""
    groups: dict[tuple[str, str], list[Trend]] = {}
    for trend in found.of(State.GROWING):
        if trend.is_current and not trend.is_over:
            name = growth_of(trend.analysis, trend.metric, trend.unit)
            groups.setdefault((trend.host, name), []).append(trend)
    for each in groups.values():
        each.sort(key=lambda trend: (trend.limit is None, not trend.is_whole))
    return [
        _Growth(
            name, overlap_of(name) if (host, overlap_of(name)) in groups else "", trends, levels
        )
        for (host, name), trends in groups.items()
    ]


def _rows(*states: State) -> Callable[[Shown], list[_Row]]:
    return lambda shown: [_Row(trend, shown.levels) for trend in shown.found.of(*states)]


def _fitted(name: str, scale: float = 1) -> Callable[[_Row], Any]:
    """Return the getter of an attribute of the slope; None without one."""

    def get(row: _Row) -> Any:
        value = None if row.trend.slope is None else getattr(row.trend.slope, name)
        return value * scale if scale != 1 and value is not None else value

    return get


def _boots(shown: Shown) -> pd.DataFrame:
    boots = shown.found.boots
    times = {name: [time.isoformat(timespec="seconds") for time in boots[name]] for name in _TIMES}
    return boots.assign(**times)


_TREND = {
    "metric": Column(TEXT, "", ALWAYS, "ANALYSIS.KEY, or ANALYSIS.TABLE.COLUMN."),
    "subject": Column(TEXT, "", ALWAYS, "Row of the table, such as a slab cache.", "trend.subject"),
    "rate": Column(TEXT, "", ALWAYS, "Slope since the rate last changed.",
        lambda row: shown_rate(row.trend)),
    "interval": Column(TEXT, "95 % interval", ALWAYS, "Interval of the rate.",
        lambda row: interval(row.trend)),
    "limit_in": Column(TEXT, "reaches", ALWAYS,
        f"Limit, and time until it is reached, within {MAX_EXTRAPOLATION} times the span.",
        lambda row: shown_limit(row.trend)),
    "course": Column(TEXT, "", WIDE, "Values of the boot, scaled from the lowest to the highest.",
        lambda row: course(row.trend, row.levels)),
    "limit_interval": Column(TEXT, "at the interval", WIDE,
        "Time to the limit at both ends of the 95 % interval.",
        lambda row: " to ".join(dict.fromkeys(map(duration, near(row.trend)[1:])))),
    "host": Column(TEXT, "", WIDE, "Name of the host.", "trend.host"),
    "before": Column(TEXT, "fitted from", WIDE, "Fitted value at the begin of the trend.",
        lambda row: row.trend.slope and amount(row.trend, row.trend.slope.before)),
    "after": Column(TEXT, "fitted to", WIDE, "Fitted value at the end of the trend.",
        lambda row: amount(row.trend, row.after)),
    "span_seconds": Column(SECONDS, "span", WIDE, "Time from the first to the last point.",
        lambda row: row.last - row.first),
    "points": Column(COUNT, "", WIDE, "Records of the trend."),
    "same_as": Column(TEXT, "", DATA, "Series above with the same values.", "trend.same_as"),
    "state": Column(TEXT, "", DATA, "growing, shrinking, no trend, or too few points.",
        "trend.state.value"),
    "since": Column(TEXT, "", DATA, "Time of the first point of the trend.",
        lambda row: shown_time(row.first)),
    "until": Column(TEXT, "", DATA, "Time of the last point of the trend.",
        lambda row: shown_time(row.last)),
    "is_current": Column(NONE, "", DATA, "Whether the latest record of this boot has the series.",
        "trend.is_current"),
    "is_over": Column(NONE, "", DATA, "Whether the boot of the trend has ended.", "trend.is_over"),
    "is_cut": Column(NONE, "", DATA, "Whether the series had another rate before the trend.",
        _fitted("is_cut")),
    "unit": Column(TEXT, "", DATA, "Unit of the exact values.", "trend.unit"),
    "rate_per_day": Column(NONE, "", DATA, "Exact rate.", _fitted("rate", DAY)),
    "rate_per_day_low": Column(NONE, "", DATA, "Lower end of the 95 % interval.",
        _fitted("low", DAY)),
    "rate_per_day_high": Column(NONE, "", DATA, "Upper end of the 95 % interval.",
        _fitted("high", DAY)),
    "chance": Column(RATIO, "", DATA, "Probability of such a trend by chance.", _fitted("chance")),
    "before_value": Column(NONE, "", DATA, "Exact fitted value at the begin of the trend.",
        _fitted("before")),
    "after_value": Column(NONE, "", DATA, "Exact fitted value at the end of the trend.", "after"),
    "limit": Column(TEXT, "", DATA, "Name of the limit.",
        lambda row: row.trend.limit and row.trend.limit.name),
    "limit_value": Column(NONE, "", DATA, "Value of the limit.",
        lambda row: row.trend.limit and row.trend.limit.value),
    "limit_seconds": Column(SECONDS, "", DATA, "Time to the limit.",
        lambda row: row.until(0)),
    "limit_seconds_earliest": Column(SECONDS, "", DATA,
        "Time to the limit at the upper end of the interval.",
        lambda row: row.until(1)),
    "limit_seconds_latest": Column(SECONDS, "", DATA,
        "Time to the limit at the lower end of the interval; none: never.",
        lambda row: row.until(2)),
}  # fmt: skip
GROWTHS = TableSpec("growths", "What grows, and when it is full", {
    "growth": Column(TEXT, "", ALWAYS,
        "Series that are parts of one amount; growths that overlap must not be added."),
    "rate": Column(TEXT, "", ALWAYS, "Slope of the series that leads.",
        lambda row: shown_rate(row.lead.trend)),
    "used": Column(TEXT, "", ALWAYS, "Share of the limit in use by the last record."),
    "earliest": Column(TEXT, "", ALWAYS, "When the upper edge of the band is at the limit.",
        lambda row: row.ends[1]),
    "expected": Column(TEXT, "", ALWAYS,
        f"When the trend is at the limit, within {MAX_EXTRAPOLATION} times the span.",
        lambda row: row.ends[0]),
    "latest": Column(TEXT, "", ALWAYS, "When the lower edge of the band is at the limit.",
        lambda row: row.ends[2]),
    "parts": Column(TEXT, "largest parts", ALWAYS, "Parts that grow fastest."),
    "series": Column(COUNT, "", WIDE, "Series that are parts of it, in the table growing.",
        lambda row: len(row.trends)),
    "course": replace(_TREND["course"],
        get=lambda row: course(row.lead.trend, row.levels)),
    "leader": Column(TEXT, "leading series", WIDE, "The series with the rate.",
        lambda row: row.lead.metric),
    "host": replace(_TREND["host"], get="lead.trend.host"),
}, "A growth, the first to reach its limit on top.", rows="growths")  # fmt: skip
CHART = TableSpec("chart", "The way to the limits", {
    "line": Column(TEXT, "records, and the trend until the limit", ALWAYS, "A line of a drawing.",
        is_drawn=True),
}, "A line of a drawing.", rows=lambda shown: _drawn(shown))  # fmt: skip
GROWING = TableSpec("growing", "Growing series", _TREND,
    "A series that grows, the first to reach its limit on top.", rows=_rows(State.GROWING),
    keeps_types=True)  # fmt: skip
SHRINKING = TableSpec("shrinking", "Shrinking series", _TREND, "A series that shrinks.",
    rows=_rows(State.SHRINKING), keeps_types=True)  # fmt: skip
STEADY = TableSpec("steady", "Series without a trend", _TREND,
    "A series without a trend, or with too few points for one.",
    rows=_rows(State.STEADY, State.SHORT), keeps_types=True)  # fmt: skip
BOOTS = TableSpec("boots", "Boots", {
    "host": Column(TEXT, "", ALWAYS, "Name of the host."),
    "boot": Column(TEXT, "", ALWAYS, "Identifier of the boot; trends do not cross boots."),
    "release": Column(TEXT, "kernel", ALWAYS, "Kernel release."),
    "records": Column(COUNT, "", ALWAYS, "Records of the boot."),
    "first": Column(TEXT, "", ALWAYS, "Time of the first record, in UTC."),
    "last": Column(TEXT, "", ALWAYS, "Time of the last record, in UTC."),
}, "A boot of a host.", rows=_boots)  # fmt: skip
FORECASTS = replace(forecasts.FORECASTS, rows="drawn")
POINTS = replace(forecasts.POINTS, rows=lambda shown: forecasts.points(shown.drawn))
TABLES = (GROWTHS, CHART, GROWING, SHRINKING, STEADY, BOOTS, FORECASTS, POINTS)
FIRST_TABLES = ("growths", "chart")


def _drawn(shown: Shown) -> list[_Line]:
    """Return the charts of the first forecasts, or why they have none."""
    lines: list[_Line] = []
    for each in shown.drawn[:_MAX_CHARTS]:
        trend = each.trend
        if trend.slope and near(trend):
            lines += [_Line("")] * bool(lines)
            lines += map(_Line, [each.title, *chart(trend, amount, shown.levels)])
        else:
            lines.append(_Line(printable(f"{each.title}: {each.says}")))
    return lines
