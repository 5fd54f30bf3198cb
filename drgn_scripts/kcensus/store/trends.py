# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trends of all series of a history: their directions, their rates, and their limits.

A series is one metric of one subject of one host. It is cut at each boot, and the trend is that of
the latest boot with enough points; only in the running boot does it lead to a limit. At most
:data:`FALSE_DISCOVERIES` of the growing series rise by chance (Benjamini and Hochberg), if the
noise is around a line; of random walks, up to one in ten seems to grow or to shrink.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from kcensus.engine.memory import Floats, Numbers
from kcensus.progress import Progress, SilentProgress
from kcensus.results import Unit
from kcensus.store.ceilings import (
    MAX_EXTRAPOLATION,
    REACHED,
    Limit,
    is_hypothetical,
    is_setting,
    limit_of,
    noun_of,
)
from kcensus.store.statistics import Slope, slope

Ends = tuple[float, float, float]
"""Seconds to a limit: expected, earliest and latest; infinite where it may never be reached."""

SERIES = ("host", "analysis", "part", "metric", "subject", "unit")
"""Columns that together name a series."""
NEEDED = (*SERIES, "record", "time", "boot", "uptime_seconds", "ram_bytes", "release", "value")
"""Columns of a history needed for trends."""
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
_SAME_BOOT = 120.0
"""Most seconds between computed times of one boot."""
_MAX_AHEAD = 86400.0
"""Most seconds by which a clock may be ahead of the reader's."""
_STALE_INTERVALS, _STALE_SECONDS = 5, 3600.0
"""Intervals of its records, and seconds, after which a host is stale."""
_COMPUTED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ|")
"""A boot identified by its time, rounded to a minute; or by nothing."""


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
    """Whether recording of the host has stopped."""
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
        is_clear = self.limit is not None and self.unit != Unit.BYTES.value
        return noun if is_clear or self.analysis in noun else f"{noun} of {self.analysis}"

    @property
    def rate(self) -> float:
        """Rate per second; 0 if unknown."""
        return self.slope.rate if self.slope else 0.0

    @property
    def span(self) -> float:
        """Seconds from the first to the last point of the trend."""
        return self.slope.last - self.slope.first if self.slope else 0.0

    @property
    def is_at_limit(self) -> bool:
        """Whether its last value has reached its limit, whatever its direction."""
        limit = self.limit
        return self.is_current and limit is not None and self.values[-1] >= REACHED * limit.value

    @cached_property
    def until_limit(self) -> Ends | None:
        """Seconds to the limit; None if the series does not grow, or has no limit."""
        if self.is_at_limit:
            return 0.0, 0.0, 0.0
        if not (self.slope and self.limit and self.is_current and self.state is State.GROWING):
            return None
        room = max(self.limit.value - self.slope.after, 0.0)
        rates = self.slope.rate, self.slope.high, self.slope.low
        expected, earliest, latest = (room / rate if rate > 0 else np.inf for rate in rates)
        return expected, earliest, latest

    @property
    def is_far(self) -> bool:
        """Whether the limit is too far ahead for a forecast."""
        far = self.until_limit is not None and self.until_limit[0] > MAX_EXTRAPOLATION * self.span
        return far and not self.is_at_limit

    @property
    def urgency(self) -> tuple[float, float]:
        """Sort key: first to reach its limit, then largest growth per day relative to its size."""
        size = max(abs(self.slope.before), abs(self.slope.after), 1.0) if self.slope else 1.0
        return (self.until_limit or (np.inf,))[0], -abs(self.rate / size)


@dataclass
class Trends:
    """The trends of a history."""

    all: list[Trend]
    """The most urgent ones first; repetitions of other series come last."""
    boots: pd.DataFrame
    """Per host and boot: ``host``, ``boot``, ``release``, ``records``, ``first``, ``last``."""
    stale: dict[str, pd.Timestamp]
    """Hosts without recent records, and the time of their last record."""
    ahead: list[str]
    """Hosts with a boot in the future."""

    def of(self, *states: State) -> list[Trend]:
        """Return the trends in any of the states."""
        return [each for each in self.all if each.state in states]


def amounts(history: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a history that are amounts of existing things."""
    kinds = pd.MultiIndex.from_frame(history[["analysis", "metric"]])
    real = [
        kind for kind in kinds.unique() if not is_hypothetical(kind[1]) and not is_setting(*kind)
    ]
    is_amount = history["unit"].isin(_AMOUNTS) & ~history["part"].isin(_NOT_AMOUNTS)
    return history[is_amount & kinds.isin(real)]


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
    rows = history[list(NEEDED)].dropna(subset=["time"])
    others = rows if context is None else context[list(NEEDED)].dropna(subset=["time"])
    records = pd.concat([rows, others]).drop_duplicates("record")
    records = records.sort_values(["host", "time"], kind="stable").reset_index(drop=True)
    clock = _Clock.of(records, np.inf if now is None else now)
    records["ordinal"] = clock.ordinal.to_numpy()
    records["seconds"] = clock.seconds.to_numpy()
    others = context_of(others)
    copies = _copies(pd.concat([rows, others]), clock)
    rows = rows[np.isfinite(rows["value"].astype(float))]
    rows = rows.sort_values(["host", "time"], kind="stable")
    found = [*_all(rows, records, clock, copies, progress or SilentProgress())]
    _decide(found)
    # As objects: of strings, pandas makes an Arrow scalar each, which took 1.4 of 5 s.
    boots = records[records["record"].astype(object).isin(rows["record"].astype(object))]
    stale = {} if now is None else _stale(boots, now)
    reclaimable = _reclaimable(others.dropna(subset="value"), records, clock)
    for each in found:
        each.is_stale = each.host in stale
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
    return Trends(found, table.drop(columns="ordinal"), stale, clock.ahead)


@dataclass(frozen=True)
class _Clock:
    """The times of records, by record."""

    seconds: pd.Series[float]
    """Seconds since 1970; within a boot as exact as uptimes, if these are known."""
    ordinal: pd.Series[int]
    """Ordinal of the boot."""
    ahead: list[str]
    """Hosts with a boot in the future, which comes first."""

    @staticmethod
    def of(records: pd.DataFrame, now: float) -> _Clock:
        seconds = _seconds(records)
        # A clock that is set is no growth, and the time of a dump has whole seconds only.
        uptime = records["uptime_seconds"].astype(float)
        groups = [records["host"], _boots(records)]
        known = uptime.notna().groupby(groups).transform("all")
        booted = (seconds - uptime).groupby(groups).transform("median")
        seconds = seconds.where(~known, booted + uptime)
        latest = seconds.groupby(groups).transform("max")
        is_ahead = latest > now + _MAX_AHEAD
        # Boots are in the order of their last records, as several may be of one minute.
        order = pd.DataFrame(
            {"host": records["host"], "ahead": ~is_ahead, "last": latest, "boot": groups[1]}
        )
        kinds = order.drop_duplicates().sort_values(["host", "ahead", "last", "boot"])
        kinds["ordinal"] = kinds.groupby("host").cumcount()
        ordinal = order.merge(kinds, how="left")["ordinal"]
        index = pd.Index(records["record"])
        return _Clock(
            pd.Series(seconds.to_numpy(float), index),
            pd.Series(ordinal.to_numpy(np.int64), index),
            sorted(records["host"][is_ahead].unique()),
        )

    def latest(self, rows: pd.DataFrame, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which rows are of the latest record with the same values in these columns."""
        if rows.empty:
            return np.zeros(0, bool)
        ranks = pd.DataFrame({"ordinal": self.ordinal, "seconds": self.seconds})
        order = ranks.sort_values(["ordinal", "seconds"], kind="stable").index
        rank = rows["record"].map(pd.Series(np.arange(len(order)), order))
        latest = rank.groupby([rows[name] for name in names]).transform("max")
        return (rank == latest).to_numpy(bool)


def _seconds(records: pd.DataFrame) -> pd.Series[float]:
    return (records["time"] - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)


def _boots(records: pd.DataFrame) -> pd.Series[str]:
    """Return the identity of each record's boot; the records are sorted by host and time."""
    names = records["boot"].astype(object)
    is_computed = np.array([bool(_COMPUTED.fullmatch(boot)) for boot in names], bool)
    some = records[is_computed]
    uptime = some["uptime_seconds"].astype(float)
    booted = _seconds(some) - uptime
    before = some.shift()
    is_near = (booted - booted.shift()).abs() <= _SAME_BOOT
    begins = ((some["boot"] != before["boot"]) & ~is_near) | (uptime < uptime.shift())
    begins &= some["host"] == before["host"]
    counts = begins.groupby(some["host"]).cumsum()
    names = names.copy()
    names[is_computed] = [f"\0{count:09}" for count in counts]
    return names


def _stale(records: pd.DataFrame, now: float) -> dict[str, pd.Timestamp]:
    found = {}
    for host, group in records.groupby("host"):
        seconds = np.sort(group["seconds"].to_numpy(float))
        interval = float(np.median(np.diff(seconds))) if len(seconds) > 1 else 0.0
        if now - seconds[-1] > max(_STALE_INTERVALS * interval, _STALE_SECONDS):
            found[str(host)] = group["time"].max()
    return found


def _reclaimable(rows: pd.DataFrame, records: pd.DataFrame, clock: _Clock) -> dict[str, float]:
    some = rows[(rows["metric"] == "reclaimable_bytes") & (rows["part"] == "summary")]
    return {each.host: each.rate for each in _all(some, records, clock, {}, SilentProgress())}


def _all(
    rows: pd.DataFrame,
    records: pd.DataFrame,
    clock: _Clock,
    copies: Mapping[tuple[str, str], float],
    progress: Progress,
) -> Iterator[Trend]:
    """Yield the trend of each series, without its state."""
    seconds = np.asarray(rows["record"].map(clock.seconds), np.float64)
    ordinals = np.asarray(rows["record"].map(clock.ordinal), np.int64)
    values = np.asarray(rows["value"], np.float64)
    ram = records.dropna(subset="ram_bytes").groupby("host")["ram_bytes"].last()
    is_latest = clock.latest(rows, SERIES[:4])
    running = clock.ordinal.groupby(records["host"].to_numpy()).max()
    series = rows.groupby(list(SERIES), sort=False).indices
    with progress.step("fitting trends", len(series)) as step:
        # The keys are tuples, as several columns are grouped by.
        for key, members in cast("Mapping[tuple[str, ...], Numbers]", series).items():
            chosen, fitted = _latest_boot(seconds, values, ordinals, members)
            host, analysis, part, metric, subject, unit = key
            limit = limit_of(analysis, metric, unit, ram.get(host), copies.get((host, subject)))
            yield Trend(
                host, analysis, part, metric, subject, unit,
                times=seconds[chosen],
                values=values[chosen],
                boot=int(ordinals[chosen[-1]]),
                is_current=bool(is_latest[chosen[-1]]),
                is_over=bool(ordinals[chosen[-1]] < running[host]),
                slope=fitted,
                limit=limit,
            )  # fmt: skip
            step.advance()


def _latest_boot(
    seconds: Floats, values: Floats, ordinals: Numbers, members: Numbers
) -> tuple[Numbers, Slope | None]:
    """Return the rows of a series in its latest boot with a slope, and the slope."""
    members = members[np.argsort(seconds[members], kind="stable")]
    boots = ordinals[members]
    for ordinal in np.unique(boots)[::-1]:
        chosen = members[boots == ordinal]
        if (fitted := slope(seconds[chosen], values[chosen])) is not None:
            return chosen, fitted
    return members[boots == boots.max()], None


def _copies(rows: pd.DataFrame, clock: _Clock) -> Mapping[tuple[str, str], float]:
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
