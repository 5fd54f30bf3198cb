# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trends of all series of a history: which grow, how fast, and what they run into.

A series is one metric of one subject of one host. It is cut at each boot, and the trend is that of
the latest boot with enough points; only in the boot that runs does it lead to a limit. Of many
series, some rise by chance: those that are said to grow are chosen with the aim that at most
:data:`FALSE_DISCOVERIES` of them are such (Benjamini and Hochberg). That holds for noise around a
line. Of random walks, up to one in ten is said to grow or to shrink (tests/unit/store).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from kcensus.progress import Progress, SilentProgress
from kcensus.results import Unit
from kcensus.store.limits import REACHED, Limit, is_hypothetical, is_setting, limit_of
from kcensus.store.statistics import Floats, Slope, slope

Rows = npt.NDArray[np.int64]

SERIES = ("host", "analysis", "part", "metric", "subject", "unit")
"""Columns that together name a series."""
NEEDED = (*SERIES, "record", "time", "boot", "uptime_seconds", "ram_bytes", "release", "value")
"""Columns of a history that trends need."""
CONTEXT = (("kcopyd", "limit"), ("slab", "reclaimable_bytes"))
"""Analysis and metric of what says how severe the growth of other series is."""
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
_MAX_AHEAD = 86400.0
"""Seconds by which a clock may be ahead of that of the reader."""
_STALE_INTERVALS, _STALE_SECONDS = 5, 3600.0
"""A host is recorded no more after so many intervals of its records, and so many seconds."""
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
    is_over: bool = False
    """Whether that boot is over."""
    is_stale: bool = False
    """Whether the host is recorded no more."""
    reclaimable_rate: float = 0.0
    """Bytes per second by which reclaimable slab memory of the host grows."""
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

    @property
    def is_at_limit(self) -> bool:
        """Whether its last value has reached its limit, whichever way it goes."""
        limit = self.limit
        return self.is_current and limit is not None and self.values[-1] >= REACHED * limit.value

    @cached_property
    def until_limit(self) -> tuple[float, float, float] | None:
        """Seconds to the limit: expected, earliest and latest; infinite where it may never be.

        None if the series does not grow, or has no limit.
        """
        if self.is_at_limit:
            return 0.0, 0.0, 0.0
        if not (self.slope and self.limit and self.is_current and self.state is State.GROWING):
            return None
        room = max(self.limit.value - self.slope.after, 0.0)
        expected, earliest, latest = (
            room / rate if rate > 0 else np.inf
            for rate in (self.slope.rate, self.slope.high, self.slope.low)
        )
        bend = self.slope.acceleration
        high = self.slope.high
        if bend > 0:  # if its rate goes on to rise
            earliest = min(earliest, (np.sqrt(high**2 + 2 * bend * room) - high) / bend)
        elif self.slope.rate**2 + 2 * bend * room < 0:  # or to fall
            latest = np.inf
        return expected, float(earliest), float(latest)

    @property
    def urgency(self) -> tuple[float, float]:
        """Sort key: what reaches its limit first, then what grows by the largest share per day."""
        if self.slope is None:
            return (self.until_limit or (np.inf,))[0], 0.0
        share = self.slope.rate / max(abs(self.slope.before), abs(self.slope.after), 1.0)
        return (self.until_limit or (np.inf,))[0], -abs(share)


@dataclass
class Trends:
    """The trends of a history."""

    all: list[Trend]
    """The most urgent ones first; those with the same values as another one come last."""
    boots: pd.DataFrame
    """Per host and boot: ``host``, ``boot``, ``release``, ``records``, ``first``, ``last``."""
    stale: dict[str, pd.Timestamp]
    """Hosts that are recorded no more, and the time of their last record."""
    overlapping: list[str]
    """Hosts of which two boots were recorded at the same time."""
    disordered: list[str]
    """Hosts whose clock was set, so that times and uptimes of records have another order."""
    ahead: list[str]
    """Hosts of which a boot has times in the future."""

    def of(self, *states: State) -> list[Trend]:
        """Return those of some states."""
        return [each for each in self.all if each.state in states]


def amounts(history: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a history that are amounts of what exists."""
    kinds = history[["analysis", "metric"]]
    real = [
        kind
        for kind in kinds.drop_duplicates().itertuples(index=False, name=None)
        if not is_hypothetical(kind[1]) and not is_setting(*kind)
    ]
    is_real = pd.MultiIndex.from_frame(kinds).isin(real)
    is_amount = history["unit"].isin(_AMOUNTS) & ~history["part"].isin(_NOT_AMOUNTS)
    return history[is_amount & is_real]


def context_of(history: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a history that say how severe the growth of others is."""
    return history[pd.MultiIndex.from_frame(history[["analysis", "metric"]]).isin(CONTEXT)]


def trends(
    history: pd.DataFrame,
    progress: Progress | None = None,
    *,
    context: pd.DataFrame | None = None,
    now: float | None = None,
) -> Trends:
    """Return the trends of all series of a history, as ``kcensus.history()`` returns it.

    :param context: rows that :func:`context_of` returned, where ``history`` may lack them
    :param now: seconds since 1970; None where the history is not of hosts that still run
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
    boots = records[records["record"].isin(rows["record"])]
    stale = {} if now is None else _stale(boots, now)
    reclaimable = _reclaimable(others.dropna(subset="value"), records, clock)
    for each in found:
        each.is_stale = each.host in stale
        each.reclaimable_rate = reclaimable.get(each.host, 0.0)
    # Of series with the same values, that of a summary is best known.
    found.sort(key=lambda each: (*each.urgency, each.part != "summary"))
    _mark_repeats(found)
    found.sort(key=lambda each: each.same_as != "")
    return Trends(
        found, _boot_table(boots), stale, _overlapping(boots), _disordered(boots), clock.ahead
    )


@dataclass(frozen=True)
class _Clock:
    """The times of records, by record."""

    seconds: pd.Series[float]
    """Since 1970; within a boot as exact as uptimes, where they are known."""
    ordinal: pd.Series[int]
    """Of the boot."""
    ahead: list[str]
    """Hosts of which a boot has times in the future; such a boot comes first."""

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
        """Return which rows are of the latest record that has the same of these columns."""
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
    """Return what identifies the boot of each record; they are sorted by host and time."""
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
    """Return the hosts that are recorded no more, and the time of their last records."""
    found = {}
    for host, group in records.groupby("host"):
        seconds = np.sort(group["seconds"].to_numpy(float))
        interval = float(np.median(np.diff(seconds))) if len(seconds) > 1 else 0.0
        if now - seconds[-1] > max(_STALE_INTERVALS * interval, _STALE_SECONDS):
            found[str(host)] = group["time"].max()
    return found


def _overlapping(records: pd.DataFrame) -> list[str]:
    """Return the hosts of which two boots were recorded at the same time."""
    spans = records.groupby(["host", "ordinal"])["seconds"].agg(["min", "max"])
    ends = spans["max"].groupby("host").shift()
    late = spans["min"] < ends - _SAME_BOOT
    return sorted({str(host) for host, _ in spans.index[late]})


def _disordered(records: pd.DataFrame) -> list[str]:
    """Return the hosts whose clock was set back within a boot."""
    ordered = records.sort_values(["host", "ordinal", "seconds"], kind="stable")
    back = ordered.groupby(["host", "ordinal"])["time"].diff() < -pd.Timedelta(seconds=_SAME_BOOT)
    return sorted(ordered["host"][back].unique())


def _reclaimable(rows: pd.DataFrame, records: pd.DataFrame, clock: _Clock) -> dict[str, float]:
    """Return by how many bytes per second the reclaimable slab memory of each host grows."""
    some = rows[(rows["metric"] == "reclaimable_bytes") & (rows["part"] == "summary")]
    return {each.host: each.rate for each in _all(some, records, clock, {}, SilentProgress())}


def _all(
    rows: pd.DataFrame,
    records: pd.DataFrame,
    clock: _Clock,
    copies: Mapping[tuple[str, str], float],
    progress: Progress,
) -> Iterator[Trend]:
    """Yield the trend of each series, undecided."""
    seconds = np.asarray(rows["record"].map(clock.seconds), np.float64)
    ordinals = np.asarray(rows["record"].map(clock.ordinal), np.int64)
    values = np.asarray(rows["value"], np.float64)
    ram = records.dropna(subset="ram_bytes").groupby("host")["ram_bytes"].last()
    is_latest = clock.latest(rows, SERIES[:4])
    running = clock.ordinal.groupby(records["host"].to_numpy()).max()
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
                is_over=bool(ordinals[chosen[-1]] < running[host]),
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
    chosen = members[boots == boots.max()]
    return chosen[np.argsort(seconds[chosen], kind="stable")], None


def _copies(rows: pd.DataFrame, clock: _Clock) -> Mapping[tuple[str, str], float]:
    """Return how many copies each snapshot may have in flight, by host and device.

    A limit that the latest record of the device does not have, or has as unknown, was lifted.
    """
    some = rows[(rows["analysis"] == "kcopyd") & rows["metric"].isin(["limit", "in_flight"])]
    some = some[clock.latest(some, ["host", "subject"]) & (some["metric"] == "limit")]
    some = some.dropna(subset="value")
    latest: dict[Any, float] = some.groupby(["host", "subject"])["value"].max().to_dict()
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
