# SPDX-License-Identifier: LGPL-2.1-or-later
"""Forecasts: the series that matter on their way to their limits, as tables for charts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kcensus.charts import forecast
from kcensus.engine.memory import Floats
from kcensus.human import shown_time
from kcensus.results import Danger
from kcensus.results.tables import COUNT, DATA, NONE, TEXT, Column, TableSpec
from kcensus.store.ceilings import MAX_EXTRAPOLATION, USED
from kcensus.store.growth.words import amount, days, duration, interval, near, per, without_limit
from kcensus.store.statistics import MIN_POINTS, medians
from kcensus.store.trends import State, Trend, Trends
from kcensus.text import printable

_MAX_FORECASTS = 6
_MAX_BOOTS, _MAX_POINTS = 8, 240
"""Latest boots, and points of all of them, in a chart."""
_LONGEST = 4.0
"""Most time in a chart after the last record, in multiples of the expected time to the limit."""


@dataclass(frozen=True)
class Drawn:
    """A trend that is drawn."""

    forecast: int
    """Number in both tables."""
    trend: Trend
    found: Trends

    @property
    def title(self) -> str:
        """The host and the series."""
        return printable(f"{self.trend.host}: {self.trend.words}")

    def end(self, place: int) -> str:
        """Return the time of the expected, earliest or latest end; empty if unknown or never."""
        ends = near(self.trend)
        known = ends and math.isfinite(ends[place])
        return (shown_time(float(self.trend.times[-1]) + ends[place]) or "") if known else ""

    @property
    def now(self) -> float | None:
        """Time from which on the forecast counts; None: that of the last record."""
        return self.found.now if self.trend.age else None

    @property
    def says(self) -> str:
        """The forecast in a sentence, or why there is none."""
        trend = self.trend
        limit, ends = trend.limit, near(trend)
        if trend.is_at_limit and limit:
            return f"{limit.name} is reached."
        if ends and limit:
            expected, earliest, latest = days(trend, *ends)
            verb = "was due" if trend.is_past else "is reached about"
            is_part = limit.danger is Danger.OOM and (trend.analysis, trend.metric) != USED
            alone = " and nothing else used RAM" if is_part else ""
            return (
                f"{limit.name} ({amount(trend, limit.value)}) {verb} {expected}: earliest"
                f" {earliest}, latest {latest or 'never'}, if nothing changed{alone}."
            )
        return f"No forecast: {self._why_none}."

    @property
    def _why_none(self) -> str:
        trend = self.trend
        if trend.slope is None:
            records = len(trend.times)
            return f"{records:,} record{'s' * (records != 1)} of a boot; a trend needs {MIN_POINTS}"
        if not trend.is_current:
            if trend.is_over:
                return f"the running boot has fewer than {MIN_POINTS} records of it"
            return "the latest record lacks it"
        if trend.is_far:
            return (
                f"the limit is more than {duration(MAX_EXTRAPOLATION * trend.span)} away,"
                f" {MAX_EXTRAPOLATION} times the span of the records"
            )
        if trend.state is State.STEADY:
            return f"no trend; the rate is {interval(trend)}{per(trend)}"
        if trend.state is State.SHRINKING:
            return "it shrinks"
        return without_limit(trend)


class _Point(NamedTuple):
    forecast: int
    seconds: float
    boot: int
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_trend(self) -> bool:
        return self.low is not None


def drawn(found: Trends, leads: list[Trend]) -> list[Drawn]:
    """Return the trends to draw: the growths with a limit, and else the fullest series of a host.

    :param leads: the leading trend of each growth, the most urgent first
    """
    chosen = [trend for trend in leads if trend.limit]
    hosts = {trend.host for trend in chosen}
    fullest: dict[str, Trend] = {}
    for trend in found.all:
        if trend.host not in hosts and _fullness(trend) > _fullness(fullest.get(trend.host)):
            fullest[trend.host] = trend
    chosen += fullest.values()
    return [Drawn(place, trend, found) for place, trend in enumerate(chosen[:_MAX_FORECASTS])]


def _fullness(trend: Trend | None) -> tuple[bool, bool, float]:
    """Return the sort key of a series without growth; one of a summary is best known."""
    if trend is None:
        return False, False, -math.inf
    share = float(trend.values[-1]) / trend.limit.value if trend.limit else 0.0
    return trend.limit is not None, trend.part == "summary", share


def _end(trend: Trend) -> float:
    """Return the time up to which a trend is drawn."""
    slope = trend.slope
    assert slope is not None
    ends = near(trend)
    if not trend.is_current or trend.state is State.STEADY:
        return slope.last
    if not ends:
        return slope.last + trend.span
    known = max(each for each in ends if math.isfinite(each))
    return slope.last + max(min(known, _LONGEST * ends[0]), trend.span / 8)


def _points(each: Drawn) -> Iterator[_Point]:
    trend, number = each.trend, each.forecast
    times, values, boots = each.found.points(trend)
    shown = np.unique(boots)[-_MAX_BOOTS:].tolist()
    for boot in shown:
        chosen = boots == boot
        few = medians(times[chosen], values[chosen], max(_MAX_POINTS // len(shown), 1))
        for moment, value in zip(*(part.tolist() for part in few), strict=True):
            yield _Point(number, moment, boot, value)
    if (slope := trend.slope) is not None:
        end = _end(trend)
        bend = min(slope.last + slope.unseen, end)
        knots: Floats = np.unique([slope.first, slope.middle, slope.last, bend, end])
        for moment, *edges in zip(knots.tolist(), *slope.band(knots).tolist(), strict=True):
            yield _Point(number, moment, trend.boot, *edges)


FORECASTS = TableSpec(forecast.FORECASTS, "Forecasts", {
    "forecast": Column(COUNT, "", DATA, "Number in the table of points."),
    "title": Column(TEXT, "", DATA, "Host and series."),
    "says": Column(TEXT, "", DATA, "The forecast, or why there is none."),
    "earliest": Column(TEXT, "", DATA, "Time at which the upper edge of the band is at the limit.",
        lambda each: each.end(1)),
    "expected": Column(TEXT, "", DATA, "Time at which the trend is at the limit.",
        lambda each: each.end(0)),
    "latest": Column(TEXT, "", DATA,
        "Time at which the lower edge of the band is at the limit; empty: never.",
        lambda each: each.end(2)),
    "limit": Column(TEXT, "", DATA, "Name of the limit.",
        lambda each: each.trend.limit and each.trend.limit.name),
    "limit_value": Column(NONE, "", DATA, "Value of the limit.",
        lambda each: each.trend.limit and each.trend.limit.value),
    "unit": Column(TEXT, "", DATA, "Unit of the values.", "trend.unit"),
    "now": Column(TEXT, "", DATA, "Time of the forecast; empty if it counts from the last record.",
        lambda each: shown_time(each.now) if each.now else ""),
}, "A growth with a limit; or, of a host without one, its fullest series.",
    detail=True)  # fmt: skip
POINTS = TableSpec(forecast.POINTS, "Points of the forecasts", {
    "forecast": Column(COUNT, "", DATA, "Number of the forecast."),
    "time": Column(TEXT, "", DATA, "Time, in UTC.", lambda point: shown_time(point.seconds)),
    "boot": Column(COUNT, "", DATA, "Ordinal of the boot."),
    "is_trend": Column(NONE, "", DATA, "Whether it is of the trend, not of the records."),
    "value": Column(NONE, "", DATA, "Recorded value, or that of the trend."),
    "low": Column(NONE, "", DATA, "Lower edge of the band of the trend."),
    "high": Column(NONE, "", DATA, "Upper edge of the band of the trend."),
}, "A record, or a point of a trend.", detail=True)  # fmt: skip


def points(found: list[Drawn]) -> list[_Point]:
    """Return the points of all forecasts."""
    return [point for each in found for point in _points(each)]
