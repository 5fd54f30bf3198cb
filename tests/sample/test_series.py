# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundled series: weeks of a simulated clock, of a host that boots twice and grows."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kcensus
from kcensus.cli import main
from kcensus.commands import Exit
from kcensus.samples import DIRECTORY
from kcensus.store import StoreError
from kcensus.store.statistics import slope

SERIES = "sample-series"
_TRUTH = Path(__file__).parent / "truth" / f"{SERIES}.json"
_DAY = 86400
_MAX_BYTES = 300_000


@pytest.fixture(scope="module")
def counted() -> pd.DataFrame:
    """What the guest counted itself at each record of its last boot."""
    log = json.loads(_TRUTH.read_text())["last boot"]
    return pd.DataFrame(log, columns=["hundredths", "names", "cgroups"])


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    history: pd.DataFrame = kcensus.history(SERIES)
    return history


@pytest.fixture(scope="module")
def growing() -> dict[tuple[str, str], dict[Hashable, Any]]:
    rows = kcensus.trend(SERIES).tables["growing"].to_dict("records")
    return {(row["metric"], row["subject"]): row for row in rows}


def offline_in_last_boot(rows: pd.DataFrame) -> pd.DataFrame:
    chosen = rows[(rows["analysis"] == "memcgs") & (rows["boot"] == rows["boot"].iloc[-1])]
    chosen = chosen[(chosen["metric"] == "memcgs_offline") & (chosen["part"] == "summary")]
    ordered: pd.DataFrame = chosen.sort_values("time")
    return ordered


@pytest.mark.slow
def test_its_clock_is_named_as_simulated(
    rows: pd.DataFrame, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    records, words = rows["record"].nunique(), "simulated clock"
    assert words in rows.attrs["provenance"]
    assert f"{records} records" in rows.attrs["provenance"]
    document, page = tmp_path / "t.json", tmp_path / "t.html"
    assert main(["trend", SERIES]) == Exit.DONE
    assert words in capsys.readouterr().out
    assert main(["trend", SERIES, "--json", str(document), "--html", str(page)]) == Exit.DONE
    assert words in json.loads(document.read_text())["provenance"]
    assert words in page.read_text()


def test_all_clocks_of_the_guest_were_simulated(rows: pd.DataFrame) -> None:
    records = rows.drop_duplicates("record").sort_values("time")
    for _, boot in records.groupby("boot"):
        wall = boot["time"].diff().dt.total_seconds().dropna()
        uptime = boot["uptime_seconds"].diff().dropna()
        assert wall.to_list() == pytest.approx([_DAY / 2] * len(wall), abs=60)
        assert uptime.to_list() == pytest.approx(wall.to_list(), abs=2)
    assert (records["time"].max() - records["time"].min()).days >= 19


def test_records_are_what_the_guest_did(rows: pd.DataFrame, counted: pd.DataFrame) -> None:
    offline = offline_in_last_boot(rows)
    assert offline["value"].to_list() == counted["cgroups"].to_list()
    late = offline["uptime_seconds"].to_numpy() - counted["hundredths"].to_numpy() / 100
    assert late.min() >= -0.1  # a clock in memory is up to a tick early
    assert late.max() <= 10


def test_trend_is_what_the_guest_did(
    growing: dict[tuple[str, str], dict[Hashable, Any]], counted: pd.DataFrame
) -> None:
    row = growing["memcgs.memcgs_offline", ""]
    assert row["points"] >= 16
    last = counted.tail(row["points"])
    days = last["hundredths"] / 100 / _DAY
    rate = np.polyfit(days, last["cgroups"], 1)[0]
    assert row["rate_per_day_low"] <= rate <= row["rate_per_day_high"]
    # Weekends have half of the work.
    assert row["rate_per_day_high"] - row["rate_per_day_low"] < rate


@pytest.mark.slow
def test_trends_do_not_cross_the_reboot(rows: pd.DataFrame) -> None:
    boots = kcensus.trend(SERIES).tables["boots"]
    assert len(boots) == rows["boot"].nunique() == 2
    latest = rows["time"][rows["boot"] == rows["boot"].iloc[-1]]
    found = kcensus.trend(SERIES).tables["growing"]
    assert (pd.to_datetime(found["since"]) >= latest.min().floor("s")).all()
    # What the first boot held is gone in the second.
    slabs = rows[(rows["metric"] == "slab_bytes") & (rows["part"] == "summary")]
    before, after = (group["value"] for _, group in slabs.groupby("boot", sort=False))
    assert after.iloc[0] < before.iloc[-1] / 2


def test_a_forecast_of_half_of_the_records_holds_the_rest(rows: pd.DataFrame) -> None:
    """The band of what was known earlier has the records that came later."""
    offline = offline_in_last_boot(rows)
    times = (offline["time"] - offline["time"].iloc[0]).dt.total_seconds().to_numpy(float)
    values = offline["value"].to_numpy(float)
    half = len(values) // 2
    fitted = slope(times[:half], values[:half])
    assert fitted is not None
    _, low, high = fitted.band(times[half:])
    assert ((low <= values[half:]) & (values[half:] <= high)).mean() >= 0.9


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
