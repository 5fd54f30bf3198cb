# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plots of notebooks show the figures of the results: read back from what is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

import kcensus
from kcensus.charts.forecast import forecasts
from kcensus.store import StoreError
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
        # Of the other patch, both samples have the limit's code: only the limit differs.
        judged = "confirmed" if patch == "list-lru-memory" else "inconclusive"
        assert verdict.summary["verdict"] == judged
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


def test_a_patch_that_made_things_worse_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kcensus.validate

    def worse(*arguments: object) -> kcensus.Result:
        verdict: kcensus.Result = real(*arguments)
        summary = verdict.result.summary
        summary["change"] = replace(summary["change"], value=-0.75)
        return verdict

    monkeypatch.setattr(kcensus, "validate", worse)
    ax = run("patch_validation", monkeypatch, patches=["list-lru-memory"])["ax"]
    assert ax.containers[2][0].get_width() == pytest.approx(175)
    assert ax.get_xlim()[1] > 175
    assert "175 %" in [text.get_text() for text in ax.texts]


def test_explore(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = run("explore", monkeypatch)
    directories = kcensus.dentries(kcensus.open_target("sample")).tables["directories"]
    negative = directories["negative"][directories["negative"] > 0]
    (line,) = variables["sizes_ax"].lines
    assert [*line.get_ydata()] == sorted(negative, reverse=True)
    drawn = [length for _, length in bars(variables["largest_ax"])]
    assert drawn == negative.nlargest(10).to_list()
    # From the row to the object: the directory has one reference per child.
    parents = variables["dentries"]["d_parent"]
    assert variables["parent"].value_() == int(parents[variables["row"].name])


def test_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = run("growth", monkeypatch)
    result = kcensus.trend("sample-series")
    made = forecasts(result.result)
    plots = [plt.figure(number).axes[0] for number in plt.get_fignums()]
    assert len(plots) == min(len(made), variables["charts"]) > 1
    history = kcensus.history("sample-series", analysis="slab", metric="slab_bytes", part="summary")
    for ax, forecast in zip(plots, made, strict=False):
        assert ax.get_title(loc="left") == forecast.title
    titles = [forecast.title for forecast in made]
    slabs = plots[titles.index("lab: slab memory")]
    records = [line for line in slabs.lines if line.get_marker() == "."]
    values = np.concatenate([np.asarray(line.get_ydata()) for line in records])
    assert values.tolist() == history.sort_values("time")["value"].to_list()
    growing = result.tables["growing"].set_index(["metric", "subject"])
    seconds = growing.loc[("slab.slab_bytes", ""), "limit_seconds"]
    drawn = made[titles.index("lab: slab memory")]
    assert drawn.reached[1] - drawn.last_record == pytest.approx(seconds, abs=2)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"host": "nope"}, "it has lab"),
        ({"since": "yesterday?"}, "2026-01-31"),
        ({"since": "2100-01-01"}, "no records"),
    ],
)
def test_growth_of_nothing_is_refused(
    parameters: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=words):
        run("growth", monkeypatch, **parameters)
