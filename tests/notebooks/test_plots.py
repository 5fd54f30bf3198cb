# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plots of notebooks show the figures of the results: read back from what is drawn."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import kcensus
from tests.notebooks.cells import assert_plots_show, bars, run


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    yield
    plt.close("all")


def test_capacity_report(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = run("capacity_report", monkeypatch)
    assert_plots_show(variables, kcensus.report(kcensus.open_target("sample")))
    caches = variables["caches"]
    assert len(caches) == 10
    assert caches["bytes"].is_monotonic_decreasing


def test_patch_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = run("patch_validation", monkeypatch)
    targets = [kcensus.open_target(name) for name in ("sample", "sample-after")]
    published = variables["published"]
    figures = kcensus.patches(targets[0]).tables["figures"]
    assert len(published) > 10
    for bar, run_ in zip(variables["bars"], published.itertuples(), strict=True):
        same = figures[(figures["patch"] == run_.patch) & (figures["run"] == run_.run)]
        same = same[(same["base_unit"] == run_.base_unit) & same["to"].isna()]
        values = same.set_index("moment")["base_value"]
        assert values.index.is_unique
        assert bar.get_width() == pytest.approx(100 * values["after"] / values["before"])
    # One container per color: published, predicted, measured.
    drawn = [[bar.get_width() for bar in parts] for parts in variables["ax"].containers]
    for place, patch in enumerate(variables["patches"]):
        verdict = kcensus.validate(patch, *targets)
        assert verdict.summary["verdict"] == "confirmed"
        before, after, predicted, claimed = (
            float(verdict.result.summary[key].value or 0)
            for key in ("before", "after", "predicted", "claimed_change")
        )
        expected = [100 - 100 * claimed, 100 * predicted / before, 100 * after / before]
        assert [parts[place] for parts in drawn] == pytest.approx(expected)
    sides = [kcensus.kcopyd(target).summary for target in targets]
    keys = ("job_bytes", "page_bytes", "bio_bytes")
    drawn_jobs = [[bar.get_width() for bar in parts] for parts in variables["jobs"].containers]
    assert np.sum(drawn_jobs, axis=0).tolist() == [side[key] for key in keys for side in sides]
    rows = kcensus.list_lru(targets[0]).tables["projection"]
    assert [length for _, length in bars(variables["projection"])] == rows["bytes"].to_list()


def test_explore(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = run("explore", monkeypatch)
    directories = kcensus.dentries(kcensus.open_target("sample")).tables["directories"]
    negative = directories["negative"][directories["negative"] > 0]
    (line,) = variables["sizes_ax"].lines
    assert [*line.get_ydata()] == sorted(negative, reverse=True)
    assert [length for _, length in bars(variables["largest_ax"])] == negative.nlargest(
        10
    ).to_list()
    # From the row to the object: the directory has one reference per child.
    assert variables["parent"].value_() == int(
        variables["dentries"].loc[variables["row"].name, "d_parent"]
    )


def test_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = run("growth", monkeypatch)
    history = kcensus.history("sample-series")
    growing = kcensus.trend("sample-series").tables["growing"]
    totals = growing[growing["subject"].isna() | (growing["subject"] == "")]
    plots = [plt.figure(number).axes[0] for number in plt.get_fignums()]
    assert len(plots) == min(len(totals), variables["charts"]) > 0
    for ax, (_, row) in zip(plots, totals.iterrows(), strict=False):
        analysis, metric = row["metric"].split(".")
        points, line = ax.lines[:2]
        same = history["analysis"].eq(analysis) & history["metric"].eq(metric)
        same &= history["part"].eq("summary") & history["time"].ge(
            pd.Timestamp(row["since"]).floor("s")
        )
        series = history[same].sort_values("time")
        assert np.asarray(points.get_ydata()).tolist() == series["value"].to_list()
        days = (series["time"] - series["time"].iloc[0]).dt.total_seconds() / 86400
        slope = np.polyfit(days, np.asarray(line.get_ydata(), float), 1)[0]
        assert slope == pytest.approx(row["rate_per_day"])
        assert row["rate_per_day_low"] <= slope <= row["rate_per_day_high"]
