# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trends of all series of a history: which grow, how fast, and what they run into.

A series is one metric of one subject of one host. It is cut at each boot, and the trend is that of
the latest boot with enough points; only in the boot that runs does it lead to a limit. Of many
series, some rise by chance: those that are said to grow are chosen so that at most
:data:`FALSE_DISCOVERIES` of them are expected to be such (Benjamini and Hochberg).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from kcensus.progress import Progress, SilentProgress
from kcensus.results import Unit
from kcensus.store.limits import Limit, is_hypothetical, limit_of
from kcensus.store.statistics import Floats, Slope, slope

Rows = npt.NDArray[np.int64]

SERIES = ("host", "analysis", "part", "metric", "subject", "unit")
"""Columns that together name a series."""
NEEDED = (*SERIES, "record", "time", "boot", "uptime_seconds", "ram_bytes", "release", "value")
"""Columns of a history that trends need."""
_AMOUNTS = (Unit.BYTES.value, Unit.COUNT.value, Unit.PAGES.value)
"""Units of series that can grow; the others are shares, times and settings."""
_NOT_AMOUNTS = ("findings", "quality")
"""Parts of a history that repeat others, or are about kcensus."""
FALSE_DISCOVERIES = 0.05
_MIN_CHANGE = 0.001
"""Share of its value by which a series must change to be more than steady."""
_MIN_STEPS = 2
"""Times its resolution by which it must change."""
_SAME_BOOT = 120.0
"""Seconds by which computed times of one boot may differ."""
_COMPUTED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ|")
"""A boot that is identified by its time, rounded to a minute; or by nothing."""


class State(enum.Enum):
    """Which way a series goes."""

    GROWING = "growing"
    SHRINKING = "shrinking"
    STEADY = "no trend"
    SHORT = "too few points"


@dataclass
class Trend:
    """One series, and its trend."""

    host: str
    analysis: str
    part: str
    metric: str
    subject: str
    unit: str
    times: Floats
    """Of the points of the boot that the trend is of: seconds since 1970, ascending."""
    values: Floats
    boot: int
    """Ordinal of that boot among those of the host."""
    is_current: bool
    """Whether the series has a point in the latest record of its kind, in that boot."""
    slope: Slope | None
    limit: Limit | None
    state: State = State.SHORT
    same_as: str = ""
    """Name of an earlier series of the host with the same values."""

    @property
    def name(self) -> str:
        """Its name among those of its host."""
        part = "" if self.part == "summary" else f".{self.part}"
        subject = f" of {self.subject}" if self.subject else ""
        return f"{self.analysis}{part}.{self.metric}{subject}"

    @property
    def rate(self) -> float:
        """Per second; 0 where it is unknown."""
        return self.slope.rate if self.slope else 0.0

    @property
    def span(self) -> float:
        """Seconds from the first to the last point of the trend."""
        return self.slope.last - self.slope.first if self.slope else 0.0

    @cached_property
    def until_limit(self) -> tuple[float, float, float] | None:
        """Seconds to the limit: expected, earliest and latest; infinite where it may never be.

        None if the series does not grow, or has no limit.
        """
        if not (self.slope and self.limit and self.is_current and self.state is State.GROWING):
            return None
        room = max(self.limit.value - self.slope.after, 0.0)
        expected, earliest, latest = (
            room / rate if rate > 0 else np.inf
            for rate in (self.slope.rate, self.slope.high, self.slope.low)
        )
        return expected, earliest, latest

    @property
    def urgency(self) -> tuple[float, float]:
        """Sort key: what reaches its limit first, then what grows by the largest share per day."""
        if self.slope is None:
            return np.inf, 0.0
        share = self.slope.rate / max(abs(self.slope.before), abs(self.slope.after), 1.0)
        return (self.until_limit or (np.inf,))[0], -abs(share)


@dataclass
class Trends:
    """The trends of a history."""

    all: list[Trend]
    """The most urgent ones first; those with the same values as another one come last."""
    boots: pd.DataFrame
    """Per host and boot: ``host``, ``boot``, ``release``, ``records``, ``first``, ``last``."""

    def of(self, *states: State) -> list[Trend]:
        """Return those of some states."""
        return [each for each in self.all if each.state in states]


def amounts(history: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a history that are amounts of what exists."""
    metrics = history["metric"]
    real = {metric for metric in metrics.unique() if not is_hypothetical(metric)}
    is_amount = history["unit"].isin(_AMOUNTS) & ~history["part"].isin(_NOT_AMOUNTS)
    return history[is_amount & metrics.isin(real)]


def trends(history: pd.DataFrame, progress: Progress | None = None) -> Trends:
    """Return the trends of all series of a history, as ``kcensus.history()`` returns it.

    :raises KeyError: a column is missing
    """
    if missing := [name for name in NEEDED if name not in history.columns]:
        raise KeyError(f"the history lacks {', '.join(missing)}")
    rows = history[list(NEEDED)].dropna(subset=["time", "value"])
    rows = rows.sort_values(["host", "time"], kind="stable")
    records = rows.drop_duplicates("record").reset_index(drop=True)
    records["ordinal"] = _boots(records)
    clock = _Clock.of(records)
    found = [*_all(rows, records, clock, progress or SilentProgress())]
    _decide(found)
    # Of series with the same values, that of a summary is best known.
    found.sort(key=lambda each: (*each.urgency, each.part != "summary"))
    _mark_repeats(found)
    found.sort(key=lambda each: each.same_as != "")
    return Trends(found, _boot_table(records))


@dataclass(frozen=True)
class _Clock:
    """The times of records, by record."""

    seconds: pd.Series[float]
    """Since 1970; within a boot as exact as uptimes, where they are known."""
    ordinal: pd.Series[int]
    """Of the boot."""

    @staticmethod
    def of(records: pd.DataFrame) -> _Clock:
        epoch = pd.Timestamp(0, tz="UTC")
        seconds = (records["time"] - epoch) / pd.Timedelta(seconds=1)
        # A clock that is set is no growth, and the time of a dump has whole seconds only.
        uptime = records["uptime_seconds"].astype(float)
        groups = [records["host"], records["ordinal"]]
        known = uptime.notna().groupby(groups).transform("all")
        booted = (seconds - uptime).groupby(groups).transform("median")
        seconds = seconds.where(~known, booted + uptime)
        index = pd.Index(records["record"])
        return _Clock(
            pd.Series(seconds.to_numpy(), index), pd.Series(records["ordinal"].to_numpy(), index)
        )


def _boots(records: pd.DataFrame) -> Rows:
    """Return the ordinal of the boot of each record; they are sorted by host and time."""
    uptime = records["uptime_seconds"].astype(float)
    seconds = (records["time"] - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    booted = seconds - uptime
    before = records.shift()
    is_computed = np.array([bool(_COMPUTED.fullmatch(boot)) for boot in records["boot"]], bool)
    is_other = records["boot"] != before["boot"]
    is_near = is_computed & ((booted - booted.shift()).abs() <= _SAME_BOOT)
    begins = (is_other & ~is_near) | (is_computed & (uptime < uptime.shift()))
    begins &= records["host"] == before["host"]
    return np.asarray(begins.groupby(records["host"]).cumsum(), np.int64)


def _all(
    rows: pd.DataFrame, records: pd.DataFrame, clock: _Clock, progress: Progress
) -> Iterator[Trend]:
    """Yield the trend of each series, undecided."""
    seconds = np.asarray(rows["record"].map(clock.seconds), np.float64)
    ordinals = np.asarray(rows["record"].map(clock.ordinal), np.int64)
    values = np.asarray(rows["value"], np.float64)
    ram = records.dropna(subset="ram_bytes").groupby("host")["ram_bytes"].last()
    latest = rows.groupby(list(SERIES[:4]), sort=False)["time"].transform("max")
    is_latest = (rows["time"] == latest).to_numpy(bool)
    copies = _copies(rows)
    series = rows.groupby(list(SERIES), sort=False).indices
    with progress.step("fitting trends", len(series)) as step:
        # The keys are tuples, as several columns are grouped by.
        for key, members in cast("Mapping[tuple[str, ...], Rows]", series).items():
            chosen, fitted = _latest_boot(seconds, values, ordinals, members)
            host, analysis, part, metric, subject, unit = key
            limit = limit_of(analysis, metric, unit, ram.get(host), copies.get((host, subject)))
            yield Trend(
                host, analysis, part, metric, subject, unit,
                times=seconds[chosen],
                values=values[chosen],
                boot=int(ordinals[chosen[-1]]),
                is_current=bool(is_latest[chosen[-1]]),
                slope=fitted,
                limit=limit,
            )  # fmt: skip
            step.advance()


def _latest_boot(
    seconds: Floats, values: Floats, ordinals: Rows, members: Rows
) -> tuple[Rows, Slope | None]:
    """Return the rows of a series in the latest boot that has enough of them, and their trend.

    :param members: rows of the series
    """
    boots = ordinals[members]
    for ordinal in np.unique(boots)[::-1]:
        chosen = members[boots == ordinal]
        chosen = chosen[np.argsort(seconds[chosen], kind="stable")]
        if (fitted := slope(seconds[chosen], values[chosen])) is not None:
            return chosen, fitted
    return members[boots == boots[-1]], None


def _copies(rows: pd.DataFrame) -> Mapping[tuple[str, str], float]:
    """Return how many copies each snapshot may have in flight, by host and device."""
    is_limit = (rows["analysis"] == "kcopyd") & (rows["metric"] == "limit")
    latest: dict[Any, float] = rows[is_limit].groupby(["host", "subject"])["value"].last().to_dict()
    return latest


def _decide(found: list[Trend]) -> None:
    """Set the states of all trends."""
    varying = [each for each in found if each.slope and each.slope.rate]
    adjusted = stats.false_discovery_control([each.slope.chance for each in varying if each.slope])
    chances = dict(zip(map(id, varying), adjusted, strict=True))
    for each in found:
        if each.slope is not None:
            is_clear = chances.get(id(each), 1.0) <= FALSE_DISCOVERIES
            each.state = _state(each.slope) if is_clear else State.STEADY


def _mark_repeats(found: list[Trend]) -> None:
    """Set :attr:`Trend.same_as`: many figures are also the only row of a table."""
    seen: dict[tuple[str, str, bytes, bytes], str] = {}
    for each in found:
        content = each.host, each.unit, each.times.tobytes(), each.values.tobytes()
        name = seen.setdefault(content, each.name)
        each.same_as = "" if name == each.name else name


def _state(slope: Slope) -> State:
    change = abs(slope.after - slope.before)
    least = _MIN_CHANGE * max(abs(slope.before), abs(slope.after))
    if slope.low <= 0 <= slope.high or change < max(least, _MIN_STEPS * slope.resolution):
        return State.STEADY
    return State.GROWING if slope.rate > 0 else State.SHRINKING


def _boot_table(records: pd.DataFrame) -> pd.DataFrame:
    table = records.groupby(["host", "ordinal"], as_index=False).agg(
        boot=("boot", "first"),
        release=("release", "last"),
        records=("record", "size"),
        first=("time", "min"),
        last=("time", "max"),
    )
    return table.drop(columns="ordinal")
