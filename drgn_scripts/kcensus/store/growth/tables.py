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
from kcensus.human import human_change, shown_time
from kcensus.results import MEMORY_USES, Unit
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
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
from kcensus.store.ceilings import MACHINE, MAX_EXTRAPOLATION, USED, noun_of
from kcensus.store.growth import forecasts
from kcensus.store.growth.chart import chart
from kcensus.store.growth.parts import container, growths, parts_of
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
        groups = growths(self.found)
        return [
            _Growth(name, container(trends[0], groups), trends, self)
            for (host, name), trends in groups.items()
        ]

    @cached_property
    def memory(self) -> list[_Row]:
        """The uses of RAM of each host, where records have them."""
        order = [USED[1], *(f"{use}_bytes" for use in MEMORY_USES)]
        rows = [
            _Row(each, self.levels)
            for each in self.found.all
            if each.analysis == MACHINE and each.metric in order
        ]
        return sorted(rows, key=lambda row: (row.trend.host, order.index(row.trend.metric)))

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
    container: Trend | None
    """The leading series of the growth that has nearly all of its bytes; None without one."""
    trends: list[Trend]
    """Those with a limit first; among them the one that stands for all; then the most urgent."""
    shown: Shown

    @property
    def lead(self) -> _Row:
        return _Row(self.trends[0], self.shown.levels)

    @property
    def part_of(self) -> str:
        """The name of the growth that contains it; empty without one."""
        return self.container.words if self.container else ""

    @property
    def used(self) -> str:
        """The share of the limit in use, by the last record."""
        trend = self.trends[0]
        if not trend.limit:
            return "no limit"
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
        parts = parts_of(self.trends[0], self.shown.found)[:_MAX_PARTS]
        return ", ".join(f"{_part_name(each)} {shown_rate(each)}" for each in parts)


def _part_name(trend: Trend) -> str:
    noun = noun_of(trend.analysis, trend.metric, trend.unit).removesuffix(" memory")
    return shortened(trend.subject or noun, _MAX_PART)


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
    "host": replace(_TREND["host"], show=ALWAYS, get="lead.trend.host"),
    "growth": Column(TEXT, "", ALWAYS,
        "Series that are parts of one amount. Growths overlap: do not add them.", "name"),
    "rate": Column(TEXT, "", ALWAYS, "Slope of the series that leads.",
        lambda row: shown_rate(row.lead.trend)),
    "used": Column(TEXT, "", ALWAYS,
        "Share of the limit in use by the last record; the number of offline memory cgroups has "
        "none, as they release their ids."),
    "earliest": Column(TEXT, "", ALWAYS, "When the upper edge of the band is at the limit.",
        lambda row: row.ends[1]),
    "expected": Column(TEXT, "", ALWAYS,
        f"When the trend is at the limit, within {MAX_EXTRAPOLATION} times the span.",
        lambda row: row.ends[0]),
    "latest": Column(TEXT, "", ALWAYS, "When the lower edge of the band is at the limit.",
        lambda row: row.ends[2]),
    "parts": Column(TEXT, "fastest parts", WIDE, "Parts that grow fastest, each byte once."),
    "part_of": Column(TEXT, "", WIDE, "The growth that has nearly all of its bytes."),
    "series": Column(COUNT, "", WIDE, "Series that are parts of it, in the table growing.",
        lambda row: len(row.trends)),
    "course": replace(_TREND["course"],
        get=lambda row: course(row.lead.trend, row.lead.levels)),
    "leader": Column(TEXT, "leading series", WIDE, "The series with the rate.",
        lambda row: row.lead.metric),
}, "A growth, the first to reach its limit on top.", rows="growths")  # fmt: skip
MEMORY = TableSpec("memory", "What RAM holds", {
    "host": replace(_TREND["host"], show=ALWAYS),
    "use": Column(TEXT, "", ALWAYS, "Use of RAM, by the kernel's counters.",
        lambda row: noun_of(MACHINE, row.trend.metric, row.trend.unit)),
    "bytes": Column(BYTES, "last record", ALWAYS, "Bytes in the last record.",
        lambda row: int(row.trend.values[-1])),
    "change": Column(TEXT, "", ALWAYS, "Change since the first record of the boot.",
        lambda row: human_change(row.trend.values[-1] - row.trend.values[0], Unit.BYTES)),
    "rate": replace(_TREND["rate"]),
    "interval": replace(_TREND["interval"]),
    "state": replace(_TREND["state"], label="trend", show=ALWAYS),
}, "A use of RAM; together they are RAM. Memory in use, on top, is the sum of those that the "
    "kernel cannot give to others.", rows="memory")  # fmt: skip
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
TABLES = (GROWTHS, MEMORY, CHART, GROWING, SHRINKING, STEADY, BOOTS, FORECASTS, POINTS)
FIRST_TABLES = ("growths", "memory", "chart")


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
