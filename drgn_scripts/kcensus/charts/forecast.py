# SPDX-License-Identifier: LGPL-2.1-or-later
"""Forecasts of results: a series over time, its trend with a band, and the way to a limit.

A result has them as two tables, which :data:`FORECASTS` and :data:`POINTS` name; pages, Matplotlib
and files of pictures draw the same :class:`Forecast`.
"""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.charts import in_words
from kcensus.results import Result, Unit
from kcensus.text import printable

FORECASTS, POINTS = "forecasts", "forecast_points"
"""Tables with a forecast in each row, and with their points."""
BAND = "95 % band of the trend"
_FAR = 4
"""A limit this many times as large as all values is named, not drawn."""
_CUTS = 400
"""Places at which a band can be cut."""
_ENDS = ("earliest", "expected", "latest")
_MARGIN = 0.02
"""Part of the width to the right of a chart's end."""
_ROOM = 1.06
"""Height of a chart, in multiples of its largest value."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """A series over time, its trend, and its limit. Times are seconds since 1970."""

    title: str
    unit: Unit
    boots: tuple[tuple[Floats, Floats], ...]
    """Times and values of the records of each boot; no line crosses a reboot."""
    times: Floats
    """Times of the trend, ascending; empty without one."""
    line: Floats
    low: Floats
    high: Floats
    """The trend, and the edges of its band, at these times."""
    limit: str
    """Name of the limit; empty without one."""
    limit_value: float
    reached: tuple[float, ...]
    """Times of the earliest, the expected and the latest end, the last one infinite if the limit
    may never be reached; empty without a forecast."""
    says: str
    """The forecast in a sentence, or why there is none."""
    note: str = ""
    """How the records were made, if that is unusual."""
    now: float = np.nan
    """Time from which on the forecast counts; NaN if that is the last record."""

    @property
    def limit_words(self) -> str:
        """The limit with its value, and a remark if it is above the chart; empty without one."""
        if not self.limit:
            return ""
        words = f"{self.limit}: {in_words(self.limit_value, self.unit)}"
        return words if self.shows_limit else f"{words}, above this chart"

    @property
    def _recorded(self) -> float:
        return float(max((values.max() for _, values in self.boots), default=1.0))

    @property
    def _highest(self) -> float:
        return float(max([self._recorded, *self.high, 1.0]))

    @property
    def shows_limit(self) -> bool:
        """Whether the limit is in the chart, instead of far above it."""
        return bool(self.limit) and self.limit_value <= _FAR * self._highest

    @property
    def top(self) -> float:
        """Highest value of the chart. The band is cut at the limit; records can be above it."""
        highest = max(self.limit_value, self._recorded) if self.shows_limit else self._highest
        return float(_ROOM * highest)

    def band(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return times, trend, and the edges of its band, all cut where they reach the limit."""
        if not len(self.times):
            return self.times, self.line, self.low, self.high
        limit = self.limit_value if self.shows_limit else np.inf
        times = np.union1d(self.times, np.linspace(self.times[0], self.times[-1], _CUTS))
        line, low, high = (
            np.minimum(np.interp(times, self.times, edge), limit)
            for edge in (self.line, self.low, self.high)
        )
        return times, line, low, high

    @property
    def first(self) -> float:
        """Time of the left end of the chart."""
        return min((float(times[0]) for times, _ in self.boots), default=0.0)

    @property
    def last_record(self) -> float:
        """Time of the last record."""
        return max((float(times[-1]) for times, _ in self.boots), default=0.0)

    @property
    def end(self) -> float:
        """Time of the right end of the trend, or of the records."""
        return float(max([self.last_record, *self.times[-1:].tolist()]))

    @property
    def right(self) -> float:
        """Time of the right edge of the chart, which leaves room for the latest end."""
        return self.end + _MARGIN * (self.end - self.first)

    @property
    def marks(self) -> list[tuple[float, str]]:
        """Times in the chart, and their words: earliest, expected and latest end, first to last."""
        names = sorted(zip(self.reached, _ENDS[: len(self.reached)], strict=True))
        inside = [each for each in names if self.last_record < each[0] <= self.end + 1]
        words = [f"{_moment(time):%Y-%m-%d}" for time, _ in inside]
        if len({*words}) < len(words):
            words = [f"{_moment(time):%Y-%m-%d %H:%M}" for time, _ in inside]
        return [(time, f"{name} {when}") for (time, name), when in zip(inside, words, strict=True)]


def forecasts(result: Result) -> list[Forecast]:
    """Return the forecasts of a result; none if it, maybe of another version, lacks the tables."""
    tables = [result.tables.get(name) for name in (FORECASTS, POINTS)]
    if any(table is None for table in tables):
        return []
    rows, points = (table.frame for table in tables if table is not None)
    every = dict(iter(points.groupby("forecast"))) if len(points) else {}
    return [
        _forecast(row, every[row["forecast"]], printable(result.provenance))
        for row in rows.to_dict("records")
        if row["forecast"] in every
    ]


def _forecast(row: Mapping[Hashable, Any], points: pd.DataFrame, note: str) -> Forecast:
    seconds = _seconds(points["time"])
    is_trend = points["is_trend"].to_numpy(bool)
    boot = points["boot"].to_numpy()
    value, low, high = (_numbers(points[name]) for name in ("value", "low", "high"))
    measured = dict.fromkeys(boot[~is_trend])
    ends = [row[name] for name in ("earliest", "expected", "latest")]
    is_known = isinstance(ends[1], str) and ends[1] != ""
    known = _seconds([end or None for end in ends]) if is_known else np.array([])
    limit = row["limit"]
    return Forecast(
        title=printable(str(row["title"])),
        unit=Unit(row["unit"]),
        boots=tuple(
            (seconds[chosen], value[chosen])
            for each in measured
            for chosen in [~is_trend & (boot == each)]
        ),
        times=seconds[is_trend],
        line=np.maximum(value[is_trend], 0.0),
        low=np.maximum(low[is_trend], 0.0),
        high=high[is_trend],
        limit=printable(str(limit)) if isinstance(limit, str) else "",
        limit_value=float(row["limit_value"]) if isinstance(limit, str) else np.nan,
        reached=tuple(np.nan_to_num(known, nan=np.inf).tolist()),
        says=printable(str(row["says"])),
        note=note,
        now=float(_seconds([row.get("now") or None])[0]),
    )


def _moment(time: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time, datetime.timezone.utc)


def _seconds(times: Iterable[object]) -> Floats:
    """Return times as seconds since 1970; NaN if unknown."""
    moments = pd.to_datetime(pd.Series([*times], dtype=object), utc=True, format="ISO8601")
    return np.asarray((moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1), np.float64)


def _numbers(values: pd.Series[float]) -> Floats:
    return np.asarray(pd.to_numeric(values, errors="coerce"), np.float64)


def ticks(top: float, unit: Unit, most: int = 5) -> list[float]:
    """Return round values from 0 to ``top`` for the marks of an axis, in units of bytes."""
    base = 1.0
    while unit is Unit.BYTES and top >= 1024 * base:
        base *= 1024
    size = top / base / most
    power = 10.0 ** np.floor(np.log10(size)) if size > 0 else 1.0
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= size) * base
    return [float(each) for each in np.arange(0, top, step)]
