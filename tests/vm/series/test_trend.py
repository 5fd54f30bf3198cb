# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trends of guests that were recorded while they ran: what they did is known from themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kcensus
from tests.lab import Live, live

_EVERY = 2
"""Seconds between records."""
_POINTS = 24
_NAMES_PER_SECOND = 400
"""Of the scenario ``growth``, as its memory cgroups per second."""
_CGROUPS_PER_SECOND = 0.5
_DAY = 86400


def record(guest: Live, store: Path, count: int) -> None:
    """Record the analyses of what grows, and of memory."""
    options = [f"--every={_EVERY}s", f"--count={count}", "--analyses=dentries,memcgs,slab"]
    symbols = [word for path in guest.debug for word in ("-s", str(path))]
    command = [sys.executable, "-m", "kcensus", "record", f"qmp:{guest.qmp}", f"--store={store}"]
    subprocess.run([*command, *options, *symbols], check=True, capture_output=True, timeout=400)


def series(rows: pd.DataFrame, metric: str) -> pd.Series[float]:
    """A metric by uptime."""
    chosen = rows[(rows["metric"] == metric) & (rows["part"] == "summary")]
    return chosen.set_index("uptime_seconds")["value"]


def truth(guest: Live, uptimes: pd.Index[float]) -> tuple[float, ...]:
    """Names and cgroups per second between two uptimes, as the guest itself counted them."""
    lines = (line.split() for line in guest.console.read_text(errors="replace").splitlines())
    log = [
        tuple(map(int, words[1:])) for words in lines if len(words) == 4 and words[0] == "growth"
    ]
    times, names, cgroups = np.array(log, float).T
    rows = (times >= 100 * uptimes.min()) & (times <= 100 * uptimes.max())
    return tuple(
        float(np.polyfit(times[rows] / 100, each[rows], 1)[0]) for each in (names, cgroups)
    )


def row(result: kcensus.Result, metric: str, subject: str = "") -> pd.Series[object]:
    """The row of the series that grows."""
    frame = result.tables["growing"]
    found = frame[(frame["metric"] == metric) & (frame["subject"] == subject)]
    assert len(found) == 1, frame[["metric", "subject", "rate"]]
    return found.iloc[0]


def assert_within(trend: pd.Series[object], rate: float) -> None:
    low, high = trend["rate_per_day_low"], trend["rate_per_day_high"]
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert low <= rate * _DAY <= high
    assert high - low < rate * _DAY  # or it would say nothing


@pytest.mark.usually("6.1")
def test_trend_is_the_rate_of_the_workload(kernel: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with live(kernel, "growth") as guest:
        record(guest, store, _POINTS)
        rows = kcensus.history(store)
        names, cgroups = truth(guest, pd.Index(rows["uptime_seconds"]))
    assert rows["record"].nunique() == _POINTS
    assert names == pytest.approx(_NAMES_PER_SECOND, rel=0.1)
    assert cgroups == pytest.approx(_CGROUPS_PER_SECOND, rel=0.1)
    result = kcensus.trend(store)
    # Each cgroup was looked up once before it was made.
    assert_within(row(result, "dentries.negative"), names + cgroups)
    assert_within(row(result, "dentries.directories.negative", "/srv/growth"), names)
    assert_within(row(result, "memcgs.memcgs_online"), cgroups)
    slab = row(result, "slab.caches.active_bytes", "dentry")
    assert_within(slab, (names + cgroups) * 192)  # sizeof(struct dentry)
    assert slab["limit"] == "RAM"
    assert row(result, "memcgs.memcgs_online")["limit"] == "memory cgroup ids"


@pytest.mark.usually("6.1")
def test_a_flat_series_with_a_reboot_has_no_trend(kernel: str, tmp_path: Path) -> None:
    """The second boot of the same host has 20,000 negative dentries more than the first."""
    store = tmp_path / "store"
    for scenario in ("one", "steady"):
        with live(kernel, scenario) as guest:
            record(guest, store, _POINTS // 2)
    rows = kcensus.history(store)
    negatives = series(rows, "negative")
    assert negatives.max() - negatives.min() > 19_000
    result = kcensus.trend(store)
    assert len(result.tables["boots"]) == 2
    assert result.tables["growing"].empty, result.tables["growing"][["metric", "subject", "rate"]]
    assert result.result.nothing
    state = kcensus.trend(store, metric="dentries.negative").tables["steady"]
    assert state["state"].tolist() == ["no trend"]
