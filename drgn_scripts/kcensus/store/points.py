# SPDX-License-Identifier: LGPL-2.1-or-later
"""The points of series: when they are, and in which boot."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.memory import Floats, Numbers

SERIES = ("host", "analysis", "part", "metric", "subject", "unit")
"""Columns that together name a series."""
_SAME_BOOT = 120.0
"""Most seconds between computed times of one boot."""
_MAX_AHEAD = 86400.0
"""Most seconds by which a clock may be ahead of the reader's."""
_COMPUTED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ|")
"""A boot identified by its time, rounded to a minute; or by nothing."""


@dataclass(frozen=True)
class Clock:
    """The times of records, by record."""

    seconds: pd.Series[float]
    """Seconds since 1970; within a boot as exact as uptimes, if these are known."""
    ordinal: pd.Series[int]
    """Ordinal of the boot."""
    ahead: list[str]
    """Hosts with a boot in the future, which comes first."""

    @staticmethod
    def of(records: pd.DataFrame, now: float) -> Clock:
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
        return Clock(
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


@dataclass(frozen=True)
class Series:
    """The points of all series."""

    seconds: Floats
    """By row, as all but the last."""
    values: Floats
    ordinals: Numbers
    """Ordinals of boots."""
    members: Mapping[tuple[str, ...], Numbers]
    """Rows of each series, by the values of :data:`SERIES`."""

    @staticmethod
    def of(rows: pd.DataFrame, clock: Clock) -> Series:
        # The keys are tuples, as several columns are grouped by.
        members = rows.groupby(list(SERIES), sort=False).indices
        return Series(
            np.asarray(rows["record"].map(clock.seconds), np.float64),
            np.asarray(rows["value"], np.float64),
            np.asarray(rows["record"].map(clock.ordinal), np.int64),
            cast("Mapping[tuple[str, ...], Numbers]", members),
        )

    def points(self, members: Numbers) -> tuple[Floats, Floats, Numbers]:
        """Return times, values and ordinals of boots, by boot and time."""
        order = np.lexsort((self.seconds[members], self.ordinals[members]))
        chosen = members[order]
        return self.seconds[chosen], self.values[chosen], self.ordinals[chosen]


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
