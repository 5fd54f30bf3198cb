# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trends of histories: boots, limits, and what chance explains."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kcensus.engine.memory import Floats
from kcensus.explain import kinds
from kcensus.results import Danger, Severity
from kcensus.store import ceilings
from kcensus.store.ceilings import DEADLINES, is_hypothetical, limit_of, severity_of
from kcensus.store.growth import growth
from kcensus.store.statistics import MIN_POINTS, Slope
from kcensus.store.trends import State, Trend, amounts, trends
from tests.unit.store.histories import DENTRY, GIB, MEMCG_IDS, NEGATIVE, SLAB, Key, history
from tests.unit.store.test_statistics import scatter

pytestmark = pytest.mark.ends

_DAY = 86400.0


def only(rows: pd.DataFrame) -> Trend:
    found = trends(rows).all
    assert len(found) == 1
    return found[0]


def slope_of(trend: Trend) -> Slope:
    assert trend.slope is not None
    return trend.slope


def test_growth_and_its_limit() -> None:
    """1 MiB every 5 minutes, from 1 GiB of 8 GiB."""
    trend = only(history({SLAB: GIB + (1 << 20) * np.arange(200) + scatter(200, 1 << 20)}))
    assert (trend.state, trend.is_current) == (State.GROWING, True)
    assert slope_of(trend).low <= (1 << 20) / 300 <= slope_of(trend).high
    assert trend.limit is not None
    assert (trend.limit.name, trend.limit.value) == ("RAM", 8 * GIB)
    assert trend.until_limit is not None
    expected, earliest, latest = trend.until_limit
    assert earliest < expected < latest
    assert earliest <= (7 * 1024 - 199) * 300 <= latest


@pytest.mark.parametrize(
    ("key", "values", "state"),
    [
        (SLAB, GIB - (1 << 20) * np.arange(50) + scatter(50, 1 << 20), State.SHRINKING),
        (SLAB, 10 * GIB + 4096.0 * np.arange(100), State.STEADY),  # less than a thousandth
        (NEGATIVE, np.repeat([5, 6], 20), State.STEADY),  # one more in the whole time
        (SLAB, np.arange(5) * GIB, State.SHORT),
    ],
)
def test_what_does_not_grow_reaches_no_limit(key: Key, values: Floats, state: State) -> None:
    trend = only(history({key: values}, ram_bytes=16 * GIB))
    assert (trend.state, trend.until_limit) == (state, None)
    assert (trend.slope is None) == (state is State.SHORT)


def test_a_reboot_does_not_fake_growth() -> None:
    """The second boot has ten times as much, and neither grows."""
    values = np.r_[np.full(40, GIB / 10), np.full(40, GIB)] + scatter(80, 1 << 20)
    found = trends(history({SLAB: values}, boots=["a"] * 40 + ["b"] * 40))
    assert [each.state for each in found.all] == [State.STEADY]
    assert len(found.boots) == 2
    # The same without a reboot is a step, which is no trend either; as one line it would be.
    assert only(history({SLAB: values})).state is State.STEADY


def test_growth_in_each_boot_keeps_its_rate() -> None:
    """It starts again from 0: over both boots, the slope would be about 0."""
    values = np.r_[np.arange(40), np.arange(40)] * 1000
    trend = only(history({NEGATIVE: values}, boots=["a"] * 40 + ["b"] * 40))
    assert (trend.state, trend.boot, len(trend.times)) == (State.GROWING, 1, 40)
    assert slope_of(trend).low <= 1000 / 300 <= slope_of(trend).high
    # Soon after a reboot, the earlier boot has the trend, but no limit.
    values = np.r_[np.arange(40), np.arange(3)] * (10.0 * (1 << 20))
    trend = only(history({SLAB: values}, boots=["a"] * 40 + ["b"] * 3))
    assert (trend.state, trend.boot, trend.is_current) == (State.GROWING, 0, False)
    assert trend.until_limit is None


def test_boots_known_by_their_time_only() -> None:
    """The rounded minute of one boot can differ between records; uptime tells reboots apart."""
    values = np.arange(40) * 1000.0
    minutes = ["2025-12-31T23:59Z", "2026-01-01T00:00Z"]
    one = history({NEGATIVE: values}, boots=["x"] * 40)
    one["boot"] = [minutes[row % 2] for row in range(40)]
    assert len(trends(one).boots) == 1
    two = history({NEGATIVE: values}, boots=["x"] * 20 + ["y"] * 20).assign(boot="")
    assert len(trends(two).boots) == 2


def test_uptime_is_the_clock_within_a_boot() -> None:
    """The clock is set forward by an hour in the middle; records are 10 s apart."""
    rows = history({NEGATIVE: 50 * np.arange(60)}, step=10.0)
    later = rows["uptime_seconds"] > rows["uptime_seconds"].median()
    rows.loc[later, "time"] += pd.Timedelta(hours=1)
    trend = only(rows)
    assert slope_of(trend).low <= 5 <= slope_of(trend).high
    assert trend.span == pytest.approx(590)


@pytest.mark.parametrize("clock", ["ahead at first", "set back"])
def test_a_clock_that_is_corrected_hides_no_limit(clock: str) -> None:
    rows = history({SLAB: GIB + 20e6 * np.arange(60)})
    row = rows["record"].str.removeprefix("db1-").astype(int)
    if clock == "ahead at first":
        rows.loc[row < 8, "time"] += pd.Timedelta(days=1)
    else:
        rows.loc[row >= 40, "time"] -= pd.Timedelta(days=1)
    trend = only(rows)
    assert (trend.state, trend.is_current, len(trend.times)) == (State.GROWING, True, 60)
    assert trend.until_limit is not None


def test_a_boot_of_the_future_is_not_the_latest() -> None:
    values = np.r_[np.full(10, GIB), GIB + 20e6 * np.arange(60)]
    rows = history({SLAB: values}, boots=["a"] * 10 + ["b"] * 60)
    now = rows["time"].max().timestamp()
    rows.loc[rows["boot"] == "a", "time"] += pd.Timedelta(days=1500)
    found = trends(rows, now=now)
    (trend,) = found.all
    assert (trend.state, trend.is_current, trend.boot) == (State.GROWING, True, 1)
    assert found.ahead == ["db1"]
    assert [*found.boots["boot"]] == ["a", "b"]


def test_two_machines_of_one_name_are_two_boots() -> None:
    values = GIB + 20e6 * np.arange(60)
    first, second = (history({SLAB: values}, boots=[name] * 60) for name in "ab")
    second["time"] += pd.Timedelta(seconds=100)
    second["record"] += "b"
    found = trends(pd.concat([first, second]))
    (trend,) = found.all
    assert (len(found.boots), len(trend.times), trend.state) == (2, 60, State.GROWING)


@pytest.mark.parametrize("limit", [2048.0, None])
def test_the_limit_of_copies_is_that_of_the_latest_record(limit: float | None) -> None:
    in_flight: Key = ("kcopyd", "snapshots", "in_flight", "dev", "count")
    threshold: Key = ("kcopyd", "snapshots", "limit", "dev", "count")
    limits = np.r_[np.full(10, 2048.0), np.full(50, np.nan if limit is None else limit)]
    rows = history({in_flight: 1000 + 10 * np.arange(60), threshold: limits})
    for given in (rows, pd.concat([rows, rows.tail(1).assign(value=np.nan, record="db1-59")])):
        if limit is not None and given is not rows:
            continue
        only_copies = given[given["metric"] == "in_flight"]
        found = trends(only_copies, context=given[given["metric"] == "limit"])
        (trend,) = found.all
        assert (trend.limit.value if trend.limit else None) == limit
        assert (trend.until_limit is None) == (limit is None)


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize(("key", "value"), [(MEMCG_IDS, 65535), (SLAB, 7.93 * GIB)])
def test_what_is_at_its_limit_has_reached_it(key: Key, value: float, count: int) -> None:
    full = only(history({key: np.full(count, value)}))
    assert full.state is (State.SHORT if count == 1 else State.STEADY)
    assert [*(full.until_limit or ())] == [0, 0, 0]
    assert only(history({key: np.full(count, 0.9 * value)})).until_limit is None


def test_the_limit_of_a_rise_that_gets_faster_is_that_at_its_last_rate() -> None:
    """It takes 190 records more, or 370 at the last rate; at the mean rate it would take 740."""
    values = 1e9 + 2e5 * np.arange(100) ** 2 + scatter(100, 2e7)
    trend = only(history({SLAB: values}, ram_bytes=16 * GIB))
    assert trend.until_limit is not None
    expected, earliest, _ = trend.until_limit
    at_last_rate = (16 * GIB - 1e9 - 2e5 * 99**2) / (4e5 * 99) * 300
    assert earliest < expected <= 1.2 * at_last_rate


@pytest.mark.slow
def test_chance_makes_few_of_many_series_grow() -> None:
    keys: list[Key] = [("slab", "caches", "bytes", f"cache-{row}", "bytes") for row in range(200)]
    series = {key: 1e6 + scatter(40, 1e4, seed) for seed, key in enumerate(keys)}
    found = trends(history(series))
    assert len(found.of(State.STEADY)) >= 198
    assert sum(each.slope.chance < 0.05 for each in found.all if each.slope) > 2


def test_a_subject_that_is_gone_has_no_limit_ahead() -> None:
    gone = np.r_[np.arange(20) * 1e7, np.full(20, np.nan)]
    found = trends(history({DENTRY: gone, ("slab", "caches", "bytes", "x", "bytes"): np.ones(40)}))
    trend = next(each for each in found.all if each.subject == "dentry")
    assert (trend.state, trend.is_current, trend.until_limit) == (State.GROWING, False, None)


def test_the_most_urgent_is_first() -> None:
    rise = np.arange(40.0)
    series = {NEGATIVE: 1e6 * rise, DENTRY: 1e6 * rise, SLAB: 1e7 * rise}
    series[MEMCG_IDS] = 65000 + 10.0 * rise
    found = [each.metric for each in trends(history(series)).all]
    assert found == ["ids_in_use", "slab_bytes", "bytes", "negative"]


def test_hosts_are_apart() -> None:
    first, second = (np.arange(40) * 1e7, "db1"), (np.full(40, GIB), "db2")
    rows = pd.concat([history({SLAB: values}, host=host) for values, host in (first, second)])
    states = {each.host: each.state for each in trends(rows).all}
    assert states == {"db1": State.GROWING, "db2": State.STEADY}


def test_a_history_without_rows_or_a_column_or_with_an_infinite_number() -> None:
    trend = only(history({SLAB: np.r_[GIB + 20e6 * np.arange(59), np.inf]}))
    assert (trend.state, len(trend.times), trend.is_current) == (State.GROWING, 59, True)
    found = trends(history({SLAB: [1.0]}).iloc[:0])
    assert (found.all, len(found.boots)) == ([], 0)
    with pytest.raises(KeyError, match="uptime_seconds"):
        trends(history({SLAB: [1.0]}).drop(columns="uptime_seconds"))


def test_amounts_are_what_exists() -> None:
    keys: list[Key] = [
        SLAB,
        ("slab", "summary", "utilization", "", "ratio"),
        ("list-lru", "summary", "projected_xarray_bytes", "", "bytes"),
        ("slab", "findings", "holds_bytes", "slab:dentry", "bytes"),
        ("slab", "quality", "gaps", "", "count"),
        ("kcopyd", "snapshots", "limit", "dev", "count"),
        ("dentries", "summary", "buckets", "", "count"),
    ]
    rows = history({key: [1.0] for key in keys})
    assert [*amounts(rows)["metric"]] == ["slab_bytes"]


def test_limits() -> None:
    def name(analysis: str, metric: str, unit: str, copies: float | None = None) -> str | None:
        limit = limit_of(analysis, metric, unit, GIB, copies)
        return limit.name if limit else None

    assert name("slab", "slab_bytes", "bytes") == "RAM"
    assert name("list-lru", "ids_in_use", "count") == "memory cgroup ids"
    assert name("kcopyd", "in_flight", "count", 2048) == "snapshot_cow_threshold"
    assert name("kcopyd", "in_flight", "count") is None  # unlimited
    assert name("kcopyd", "used_bytes", "bytes") is None  # of a disk
    assert name("dentries", "negative", "count") is None
    assert limit_of("slab", "slab_bytes", "bytes", None, None) is None
    ids = limit_of("memcgs", "memcgs_online", "count", None, None)
    assert ids is not None
    assert (ids.value, ids.danger) == (ceilings.MAX_MEMCG_ID, Danger.NONE)
    assert is_hypothetical("nr_cache_ids_if_arrays")


@pytest.mark.parametrize(("severity", "seconds"), DEADLINES.items())
def test_severity_follows_the_time_that_is_left(severity: Severity, seconds: float) -> None:
    assert severity_of(seconds) is severity
    assert severity_of(seconds * 31) is not severity
    assert severity_of(31 * _DAY) is None


def test_a_limit_far_ahead_has_no_forecast() -> None:
    """Records over 5 h: 36 h ahead is within ten times of that, 65 h is not."""
    for gib_per_hour, is_far in ((0.17, False), (0.1, True)):
        rows = history({SLAB: GIB + np.arange(61) * gib_per_hour * GIB / 12})
        trend = only(rows)
        assert trend.is_far == is_far
        result = growth(rows, "store")
        assert bool(result.findings) == (not is_far)
        row = result.tables["growing"].frame.iloc[0]
        assert pd.isna(row["limit_seconds"]) == is_far
        assert row["limit_in"].startswith("RAM beyond 2 d" if is_far else "RAM in ")
        assert (result.tables["forecasts"].frame["expected"].iloc[0] == "") == is_far


def test_series_with_the_same_values_come_last() -> None:
    values = np.arange(40) * 1e7
    pattern: Key = ("dentries", "patterns", "negative_bytes", "a-<digits>", "bytes")
    rows = history({pattern: values, SLAB: values, NEGATIVE: np.arange(40)})
    found = [(each.metric, each.same_as) for each in trends(rows).all]
    assert found == [("slab_bytes", ""), ("negative", ""), ("negative_bytes", "slab.slab_bytes")]


def test_hosts_without_recent_records_are_one_finding_or_gap() -> None:
    rows = history({SLAB: np.arange(40) * 1e7})
    hosts = [rows.assign(host=f"h{n}", record=rows["record"] + f"-{n}") for n in range(5)]
    every = pd.concat(hosts, ignore_index=True)
    (gap,) = growth(every.assign(live=False), "store", now=1e10).gaps
    assert gap.count == 5
    assert gap.reason.endswith(" and 2 more")
    result = growth(every, "store", now=1e10)
    assert result.gaps == []
    assert {each.id: each.severity for each in result.findings}["host-silent"] is Severity.WARNING
    # A record or two by hand are no promise of more.
    assert growth(rows[rows["record"].isin(["db1-0", "db1-1"])], "store", now=1e10).findings == []


def test_its_explanation_has_the_constants() -> None:
    text = kinds()["reaches-limit"].determined
    assert f"more than {ceilings.MAX_EXTRAPOLATION} times the" in text
    assert f"fewer than {ceilings.URGENT_POINTS} records" in text
    assert ceilings.URGENT_POINTS == 2 * MIN_POINTS
