# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundled series: a host that boots twice, does nothing, then grows at a known rate."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import kcensus
from kcensus.samples import DIRECTORY
from kcensus.store import StoreError

SERIES = "sample-series"
_TRUTH = Path(__file__).parent / "truth" / f"{SERIES}.json"
_DAY = 86400
_MAX_BYTES = 200_000


@pytest.fixture(scope="module")
def rates() -> dict[str, float]:
    """What the guest counted itself, per day."""
    return {name: rate * _DAY for name, rate in json.loads(_TRUTH.read_text()).items()}


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    history: pd.DataFrame = kcensus.history(SERIES)
    return history


@pytest.fixture(scope="module")
def growing() -> dict[tuple[str, str], dict[Hashable, Any]]:
    rows = kcensus.trend(SERIES).tables["growing"].to_dict("records")
    return {(row["metric"], row["subject"]): row for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "subject", "of"),
    [
        ("dentries.directories.negative", "/srv/growth", {"names": 1}),
        ("memcgs.memcgs_online", "", {"cgroups": 1}),
        # Each cgroup has a dentry, too. sizeof(struct dentry) is 192.
        ("slab.caches.active_bytes", "dentry", {"names": 192, "cgroups": 192}),
    ],
)
def test_trends_are_what_the_guest_did(
    growing: dict[tuple[str, str], dict[Hashable, Any]],
    rates: dict[str, float],
    metric: str,
    subject: str,
    of: dict[str, int],
) -> None:
    row = growing[metric, subject]
    rate = sum(rates[name] * factor for name, factor in of.items())
    assert row["rate_per_day_low"] <= rate <= row["rate_per_day_high"]
    assert row["rate_per_day_high"] - row["rate_per_day_low"] < rate / 2
    assert row["points"] >= 20


@pytest.mark.slow
def test_the_boot_that_does_nothing_has_no_trend(rows: pd.DataFrame) -> None:
    first = rows[rows["boot"] == rows["boot"].iloc[0]]
    assert first["record"].nunique() >= 12
    result = kcensus.trend(first)
    assert result.tables["growing"].empty, result.tables["growing"][["metric", "subject", "rate"]]


@pytest.mark.slow
def test_trends_do_not_cross_the_reboot(rows: pd.DataFrame) -> None:
    boots = kcensus.trend(rows).tables["boots"]
    assert len(boots) == 2
    second = rows[rows["boot"] == rows["boot"].iloc[-1]]
    found = kcensus.trend(SERIES).tables["growing"]
    assert (pd.to_datetime(found["since"]) >= second["time"].min().floor("s")).all()


def test_series_is_small_and_has_all_analyses(rows: pd.DataFrame) -> None:
    files = [path for path in (DIRECTORY / SERIES).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < _MAX_BYTES
    assert {"dentries", "list-lru", "memcgs", "slab"} <= {*rows["analysis"]}


def test_a_directory_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir(SERIES)
    with pytest.raises(StoreError):
        kcensus.history(SERIES)
