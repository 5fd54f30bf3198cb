# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trends of guests that were recorded while they ran: what they did is known from themselves."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest

import kcensus
from tests.lab import live, series

_EVERY = 2
"""Seconds between records."""
_POINTS = 24
_ANALYSES = "dentries,memcgs,slab"
"""Those of what grows, and of memory."""
_DAY = 86400
_MISS = 0.1
"""Share of the rate by which an interval may miss it: one of 95 % does so one time in twenty, by
7 % on a busy host. That of the bundled series must not."""


def row(result: kcensus.Result, metric: str, subject: str = "") -> dict[Hashable, Any]:
    frame = result.tables["growing"]
    chosen = frame[(frame["metric"] == metric) & (frame["subject"] == subject)]
    assert len(chosen) == 1, frame[["metric", "subject", "rate"]]
    found: dict[Hashable, Any] = chosen.to_dict("records")[0]
    return found


def assert_matches(trend: dict[Hashable, Any], rate: float) -> None:
    """Check that the interval of a trend has a rate per second."""
    low, high = trend["rate_per_day_low"] / _DAY, trend["rate_per_day_high"] / _DAY
    assert low - _MISS * rate <= rate <= high + _MISS * rate
    assert high - low < rate / 2  # or it would say nothing


@pytest.mark.usually  # it watches a guest for a minute; the bundled series is of such a one
def test_trend_is_the_rate_of_the_workload(kernel: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with live(kernel, "growth") as guest:
        series.record(guest, store, _EVERY, _POINTS, _ANALYSES)
        work = series.Work(guest)
    records = kcensus.history(store).drop_duplicates("record")
    assert len(records) == _POINTS

    def rates(trend: dict[Hashable, Any]) -> tuple[float, float]:
        """Names and cgroups in the time of a trend: a guest on a busy host may be late."""
        return work.rates(records["uptime_seconds"].tail(trend["points"]))

    names, cgroups = work.rates(records["uptime_seconds"])
    assert names == pytest.approx(series.NAMES_PER_SECOND, rel=0.1)
    assert cgroups == pytest.approx(series.CGROUPS_PER_SECOND, rel=0.1)
    result = kcensus.trend(store)
    directory = row(result, "dentries.directories.negative", "/srv/growth")
    assert_matches(directory, rates(directory)[0])
    online = row(result, "memcgs.memcgs_online")
    assert_matches(online, rates(online)[1])
    slab = row(result, "slab.caches.active_bytes", "dentry")
    # Each cgroup has a dentry, too. sizeof(struct dentry) is 192.
    assert_matches(slab, sum(rates(slab)) * 192)
    assert slab["limit"] == "RAM"
    assert online["limit"] == "memory cgroup ids"


@pytest.mark.usually
def test_a_flat_series_with_a_reboot_has_no_trend(kernel: str, tmp_path: Path) -> None:
    """The second boot of the same host has 20,000 negative dentries more than the first."""
    store = tmp_path / "store"
    for scenario in ("quiet", "steady"):
        with live(kernel, scenario) as guest:
            series.record(guest, store, _EVERY, _POINTS // 2, _ANALYSES)
    negatives = kcensus.history(store, metric="negative", part="summary")["value"]
    assert len(negatives) == _POINTS
    assert negatives.max() - negatives.min() > 19_000
    result = kcensus.trend(store)
    assert len(result.tables["boots"]) == 2
    assert result.tables["growing"].empty, result.tables["growing"][["metric", "subject", "rate"]]
    assert result.result.nothing
    steady = result.tables["steady"]
    states = steady[steady["metric"] == "dentries.negative"]["state"]
    assert states.tolist() == ["no trend"]
