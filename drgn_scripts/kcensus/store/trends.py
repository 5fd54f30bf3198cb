# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trends of all series of a history: their directions, their rates, and their limits.

A series is one metric of one subject of one host. It is cut at each boot, and the trend is that of
the latest boot with enough points; only in the running boot does it lead to a limit. At most
:data:`FALSE_DISCOVERIES` of the growing series rise by chance (Benjamini and Hochberg), if the
noise is around a line; of random walks, up to one in ten seems to grow or to shrink.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import pandas as pd
from scipy import stats

from kcensus.engine.memory import Floats, Numbers
from kcensus.progress import Progress, SilentProgress
from kcensus.results import Unit
from kcensus.store.ceilings import (
    MACHINE,
    MAX_EXTRAPOLATION,
    REACHED,
    STALE_INTERVALS,
    STALE_SECONDS,
    Limit,
    is_hypothetical,
    is_setting,
    limit_of,
    noun_of,
    scope_of,
)
from kcensus.store.points import SERIES, Clock, Series
from kcensus.store.statistics import Slope, slope
from kcensus.store.together import together

Ends = tuple[float, float, float]
"""Seconds to a limit: expected, earliest and latest; infinite where it may never be reached."""

NEEDED = (*SERIES, "record", "time", "boot", "uptime_seconds", "ram_bytes", "release", "value")
"""Columns of a history needed for trends."""
LIVE = "live"
"""Column that says whether a kernel ran; of a history without it, all did."""
CONTEXT = (("kcopyd", "limit"), ("slab", "reclaimable_bytes"))
"""Analysis and metric of series that determine the severity of other series' growth."""
_AMOUNTS = (Unit.BYTES.value, Unit.COUNT.value, Unit.PAGES.value)
"""Units of series that can grow; other series are shares, times and settings."""
_NOT_AMOUNTS = ("findings", "quality")
"""Parts of a history that repeat others, or are about kcensus."""
FALSE_DISCOVERIES = 0.05
_MIN_CHANGE = 0.001
"""Least change of a series that is more than steady, as a share of its value."""
_MIN_STEPS = 2
"""Least change of it in multiples of its resolution."""
_MIN_REGULAR = 3
"""Least records of a running kernel from which on it is expected to be recorded again."""


class State(enum.Enum):
    """Direction of a series."""

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
    """Times of the points of its boot, seconds since 1970, ascending."""
    values: Floats
    boot: int
    """Ordinal of the boot among the host's boots."""
    is_current: bool
    """Whether the series has a point in the latest record of its kind, in that boot."""
    slope: Slope | None
    limit: Limit | None
    is_over: bool = False
    """Whether that boot is over."""
    is_stale: bool = False
    """Whether the host has no recent record."""
    age: float = 0.0
    """Seconds from the last point until now; 0 if times are counted from the last point."""
    reclaimable_rate: float = 0.0
    """Growth of reclaimable slab memory of the host, bytes per second."""
    state: State = State.SHORT
    same_as: str = ""
    """Name of an earlier series of the host with the same values."""

    @property
    def name(self) -> str:
        """The name within the host."""
        part = "" if self.part == "summary" else f".{self.part}"
        subject = f" of {self.subject}" if self.subject else ""
        return f"{self.analysis}{part}.{self.metric}{subject}"

    @property
    def words(self) -> str:
        """The name in sentences about the host: ``memory of dentry in slab caches``."""
        noun = noun_of(self.analysis, self.metric, self.unit)
        if self.part != "summary":
            subject = f" of {self.subject}" if self.subject else ""
            return f"{noun}{subject} in {self.analysis} {self.part.replace('_', ' ')}"
        is_clear = (
            self.is_whole
            or self.analysis == MACHINE
            or (self.limit is not None and self.unit != Unit.BYTES.value)
        )
        return noun if is_clear or self.analysis in noun else f"{noun} of {self.analysis}"

    @property
    def rate(self) -> float:
        """Rate per second; 0 if unknown."""
        return self.slope.rate if self.slope else 0.0

    @property
    def after(self) -> float:
        """The last value, without noise if there is a trend."""
        return self.slope.after if self.slope else float(self.values[-1])

    @property
    def span(self) -> float:
        """Seconds from the first to the last point of the trend."""
        return self.slope.last - self.slope.first if self.slope else 0.0

    @property
    def scope(self) -> int:
        """How much it contains: 0 for a part of a growth, 3 for all of RAM."""
        return scope_of(self.analysis, self.metric) if self.part == "summary" else 0

    @property
    def is_whole(self) -> bool:
        """Whether it stands for the growth that others are parts of."""
        return self.scope > 0

    @property
    def is_at_limit(self) -> bool:
        """Whether its last value has reached its limit, whatever its direction."""
        limit = self.limit
        return self.is_current and limit is not None and self.values[-1] >= REACHED * limit.value

    @cached_property
    def until_limit(self) -> Ends | None:
        """Seconds to the limit; None if the series does not grow, or has no limit.

        The earliest and the latest time are those of the band of the trend.
        """
        if self.is_at_limit:
            return 0.0, 0.0, 0.0
        if not (self.slope and self.limit and self.is_current and self.state is State.GROWING):
            return None
        return self.slope.until(self.limit.value)

    @property
    def is_past(self) -> bool:
        """Whether the limit should have been reached by now."""
        until = self.until_limit
        return until is not None and not self.is_at_limit and bool(until[0] < self.age)

    @property
    def is_far(self) -> bool:
        """Whether the limit is too far ahead for a forecast."""
        far = self.until_limit is not None and self.until_limit[0] > MAX_EXTRAPOLATION * self.span
        return far and not self.is_at_limit

    @property
    def urgency(self) -> tuple[float, float]:
        """Sort key: first date of its limit, then largest growth per day relative to its size."""
        size = max(abs(self.slope.before), abs(self.slope.after), 1.0) if self.slope else 1.0
        date = self.times[-1] + self.until_limit[0] if self.until_limit else np.inf
        return -np.inf if self.is_at_limit else float(date), -abs(self.rate / size)


@dataclass
class Trends:
    """The trends of a history."""

    all: list[Trend]
    """The most urgent ones first; repetitions of other series come last."""
    boots: pd.DataFrame
    """Per host and boot: ``host``, ``boot``, ``release``, ``records``, ``first``, ``last``."""
    stale: dict[str, pd.Timestamp]
    """Hosts without recent records, and the time of their last record."""
    silent: dict[str, float]
    """Those of them that were recorded regularly while they ran, and seconds since then."""
    now: float | None
    """Seconds since 1970; None if times are counted from the last records."""
    ahead: list[str]
    """Hosts with a boot in the future."""
    series: Series

    def points(self, trend: Trend) -> tuple[Floats, Floats, Numbers]:
        """Return times, values and ordinals of boots of all points of a series, by time."""
        key = (trend.host, trend.analysis, trend.part, trend.metric, trend.subject, trend.unit)
        return self.series.points(self.series.members[key])

    def whole(self, host: str, analysis: str, metric: str) -> Trend | None:
        """Return the trend of a figure of a host's summary; None where records lack it."""
        key = host, analysis, "summary", metric
        for each in self.all:
            if key == (each.host, each.analysis, each.part, each.metric):
                return each
        return None

    def of(self, *states: State) -> list[Trend]:
        """Return the trends in any of the states."""
        return [each for each in self.all if each.state in states]


def amounts(history: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a history that are amounts of existing things, and of all together."""
    kinds = pd.MultiIndex.from_frame(history[["analysis", "metric"]])
    real = [
        kind for kind in kinds.unique() if not is_hypothetical(kind[1]) and not is_setting(*kind)
    ]
    is_amount = history["unit"].isin(_AMOUNTS) & ~history["part"].isin(_NOT_AMOUNTS)
    return with_together(history[is_amount & kinds.isin(real)])


def with_together(history: pd.DataFrame) -> pd.DataFrame:
    """Return a history with the memory of all analyses together, where they are in it."""
    more = together(history)
    return pd.concat([history, more], ignore_index=True) if len(more) else history


def context_of(history: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a history that determine the severity of growth in other series."""
    return history[pd.MultiIndex.from_frame(history[["analysis", "metric"]]).isin(CONTEXT)]


def trends(
    history: pd.DataFrame,
    progress: Progress | None = None,
    *,
    context: pd.DataFrame | None = None,
    now: float | None = None,
) -> Trends:
    """Return the trends of all series of a history of ``kcensus.history()``.

    :param context: rows of :func:`context_of`, if ``history`` may lack them
    :param now: seconds since 1970; None for a history of hosts that no longer run
    :raises KeyError: a column is missing
    """
    if missing := [name for name in NEEDED if name not in history.columns]:
        raise KeyError(f"the history lacks {', '.join(missing)}")
    rows = _needed(history)
    others = rows if context is None else _needed(context)
    records = pd.concat([rows, others]).drop_duplicates("record")
    records = records.sort_values(["host", "time"], kind="stable").reset_index(drop=True)
    clock = Clock.of(records, np.inf if now is None else now)
    records["ordinal"] = clock.ordinal.to_numpy()
    records["seconds"] = clock.seconds.to_numpy()
    others = context_of(others)
    copies = _copies(pd.concat([rows, others]), clock)
    rows = rows[np.isfinite(rows["value"].astype(float))]
    rows = rows.sort_values(["host", "time"], kind="stable")
    series = Series.of(rows, clock)
    found = [*_all(series, rows, records, clock, copies, progress or SilentProgress())]
    _decide(found)
    # As objects: of strings, pandas makes an Arrow scalar each, which took 1.4 of 5 s.
    boots = records[records["record"].astype(object).isin(rows["record"].astype(object))]
    stale, silent = ({}, {}) if now is None else _stale(boots, now)
    last_live = boots.groupby("host")[LIVE].last().to_dict()
    reclaimable = _reclaimable(others.dropna(subset="value"), records, clock)
    for each in found:
        each.is_stale = each.host in stale
        if now is not None and last_live.get(each.host):
            each.age = max(now - float(each.times[-1]), 0.0)
        each.reclaimable_rate = reclaimable.get(each.host, 0.0)
    # Among series with the same values, the one of a summary is best known.
    found.sort(key=lambda each: (*each.urgency, each.part != "summary"))
    seen: dict[tuple[str, str, bytes, bytes], str] = {}
    for each in found:  # many figures are also the only row of a table
        content = each.host, each.unit, each.times.tobytes(), each.values.tobytes()
        name = seen.setdefault(content, each.name)
        each.same_as = "" if name == each.name else name
    found.sort(key=lambda each: each.same_as != "")
    table = boots.groupby(["host", "ordinal"], as_index=False).agg(
        boot=("boot", "first"), release=("release", "last"), records=("record", "size"),
        first=("time", "min"), last=("time", "max"),
    )  # fmt: skip
    boots = table.drop(columns="ordinal")
    return Trends(found, boots, stale, silent, now, clock.ahead, series)


def _needed(history: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a time, and their columns for trends."""
    rows = history[list(NEEDED)].assign(live=history[LIVE] if LIVE in history.columns else True)
    return rows.dropna(subset=["time"])


def _stale(records: pd.DataFrame, now: float) -> tuple[dict[str, pd.Timestamp], dict[str, float]]:
    found, silent = {}, {}
    for host, group in records.groupby("host"):
        seconds = np.sort(group["seconds"].to_numpy(float))
        interval = float(np.median(np.diff(seconds))) if len(seconds) > 1 else 0.0
        if now - seconds[-1] > max(STALE_INTERVALS * interval, STALE_SECONDS):
            found[str(host)] = group["time"].max()
            if group[LIVE].tail(_MIN_REGULAR).sum() >= _MIN_REGULAR:
                silent[str(host)] = now - float(seconds[-1])
    return found, silent


def _reclaimable(rows: pd.DataFrame, records: pd.DataFrame, clock: Clock) -> dict[str, float]:
    some = rows[(rows["metric"] == "reclaimable_bytes") & (rows["part"] == "summary")]
    found = _all(Series.of(some, clock), some, records, clock, {}, SilentProgress())
    return {each.host: each.rate for each in found}


def _all(
    found: Series,
    rows: pd.DataFrame,
    records: pd.DataFrame,
    clock: Clock,
    copies: Mapping[tuple[str, str], float],
    progress: Progress,
) -> Iterator[Trend]:
    """Yield the trend of each series, without its state."""
    ram = records.dropna(subset="ram_bytes").groupby("host")["ram_bytes"].last()
    is_latest = clock.latest(rows, SERIES[:4])
    running = clock.ordinal.groupby(records["host"].to_numpy()).max()
    with progress.step("fitting trends", len(found.members)) as step:
        for key, members in found.members.items():
            chosen, fitted = _latest_boot(found, members)
            host, analysis, part, metric, subject, unit = key
            limit = limit_of(analysis, metric, unit, ram.get(host), copies.get((host, subject)))
            yield Trend(
                host, analysis, part, metric, subject, unit,
                times=found.seconds[chosen],
                values=found.values[chosen],
                boot=int(found.ordinals[chosen[-1]]),
                is_current=bool(is_latest[chosen[-1]]),
                is_over=bool(found.ordinals[chosen[-1]] < running[host]),
                slope=fitted,
                limit=limit,
            )  # fmt: skip
            step.advance()


def _latest_boot(found: Series, members: Numbers) -> tuple[Numbers, Slope | None]:
    """Return the rows of a series in its latest boot with a slope, and the slope."""
    seconds, values = found.seconds, found.values
    members = members[np.argsort(seconds[members], kind="stable")]
    boots = found.ordinals[members]
    for ordinal in np.unique(boots)[::-1]:
        chosen = members[boots == ordinal]
        if (fitted := slope(seconds[chosen], values[chosen])) is not None:
            return chosen, fitted
    return members[boots == boots.max()], None


def _copies(rows: pd.DataFrame, clock: Clock) -> Mapping[tuple[str, str], float]:
    """Return the most copies in flight of each snapshot, by host and device.

    A limit missing from the latest record of the device, or unknown in it, was lifted.
    """
    some = rows[(rows["analysis"] == "kcopyd") & rows["metric"].isin(["limit", "in_flight"])]
    some = some[clock.latest(some, ["host", "subject"]) & (some["metric"] == "limit")]
    limits = some.dropna(subset="value").groupby(["host", "subject"])["value"].max()
    return cast("dict[tuple[str, str], float]", limits.to_dict())


def _decide(found: list[Trend]) -> None:
    varying = [each for each in found if each.slope and each.slope.rate]
    adjusted = stats.false_discovery_control([each.slope.chance for each in varying if each.slope])
    chances = dict(zip(map(id, varying), adjusted, strict=True))
    for each in found:
        if each.slope is not None:
            is_clear = chances.get(id(each), 1.0) <= FALSE_DISCOVERIES
            each.state = _state(each.slope) if is_clear else State.STEADY


def _state(slope: Slope) -> State:
    change = abs(slope.after - slope.before)
    least = _MIN_CHANGE * max(abs(slope.before), abs(slope.after))
    if slope.low <= 0 <= slope.high or change < max(least, _MIN_STEPS * slope.resolution):
        return State.STEADY
    return State.GROWING if slope.rate > 0 else State.SHRINKING
