# SPDX-License-Identifier: LGPL-2.1-or-later
"""Forecasts of trends: what is drawn, when a limit is reached, and where there is no forecast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.dates import num2date

from kcensus import plots, saved
from kcensus.charts.forecast import Floats, Forecast, forecasts, ticks
from kcensus.cli import main
from kcensus.commands import Exit
from kcensus.render.graphs.forecast import svg
from kcensus.render.html import write_html
from kcensus.results import Result, Unit
from kcensus.store.growth import growth
from kcensus.store.statistics import slope
from tests.unit.store.histories import GIB, MEMCG_IDS, SLAB, Key, history, write_store

_HOSTILE = "<b>\x1b[31m$x^2$\n1"
_DAY = 86400.0


def grown(
    count: int = 60, noise: float = 1e6, before: int = 0, host: str = "db1", step: float = 3 * 3600
) -> Result:
    """The growth of slab memory by 20 MB each 3 hours, after a boot with some other records."""
    random = np.random.default_rng(0)
    values = np.r_[np.full(before, 2 * GIB), GIB + 20e6 * np.arange(count)]
    values = values + random.normal(0, noise, len(values))
    boots = ["a"] * before + ["b"] * count
    return growth(history({SLAB: values}, host=host, boots=boots, step=step), "store")


def only(result: Result) -> Forecast:
    (made,) = forecasts(result)
    return made


def test_a_forecast_has_records_trend_band_and_limit() -> None:
    result = grown()
    made = only(result)
    assert (made.title, made.limit, made.limit_value) == ("db1: slab memory", "RAM", 8 * GIB)
    assert [len(times) for times, _ in made.boots] == [60]
    rate = np.diff(made.line) / np.diff(made.times)
    assert np.allclose(rate, 20e6 / 10800, rtol=0.01)
    assert (made.low < made.line).all()
    assert (made.line < made.high).all()
    assert (made.first, made.last_record) == (made.boots[0][0][0], made.boots[0][0][-1])
    # It goes on to the latest end.
    assert made.end == pytest.approx(made.reached[2], abs=1)
    row = result.tables["growing"].frame.iloc[0]
    ends = ("limit_seconds_earliest", "limit_seconds", "limit_seconds_latest")
    assert np.allclose(
        np.array(made.reached) - made.last_record, row[[*ends]].astype(float), atol=2
    )
    earliest, expected, latest = made.reached
    assert earliest < expected < latest
    true = made.boots[0][0][0] + (7 * GIB / 20e6) * 10800
    assert earliest < true < latest


@pytest.mark.parametrize("seed", range(8))
def test_new_records_are_in_the_band(seed: int) -> None:
    random = np.random.default_rng(seed)
    times: Floats = np.linspace(0, 119 * 3600, 120)
    values: Floats = 5.0 * times + random.normal(0, 1e4, 120)
    fitted = slope(times[:80], values[:80])
    assert fitted is not None
    line, low, high = fitted.band(times)
    assert ((low <= line) & (line <= high)).all()
    inside = (low <= values) & (values <= high)
    assert inside[:80].mean() >= 0.95
    assert inside[80:].mean() >= 0.9


def test_the_band_reaches_a_value_at_its_ends() -> None:
    times: Floats = np.linspace(0, 39 * 3600, 40)
    fitted = slope(times, 5.0 * times + np.random.default_rng(1).normal(0, 1e4, 40))
    assert fitted is not None
    value = 2 * fitted.after
    ends: Floats = fitted.last + np.array(fitted.until(value))
    assert np.allclose(np.diagonal(fitted.band(ends)[[0, 2, 1]]), value)
    assert fitted.until(-value)[0] == 0  # it is behind


def test_records_before_a_reboot_are_a_part_of_their_own() -> None:
    made = only(grown(before=20))
    assert [len(times) for times, _ in made.boots] == [20, 60]
    assert made.times[0] >= made.boots[1][0][0] - 1
    root = ElementTree.fromstring(svg(made))
    texts = [each.text for each in root.findall(".//{*}text")]
    assert texts.count("reboot") == 1


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([GIB], "1 record of a boot"),
        ([GIB, 2 * GIB], "2 records of a boot"),
        (np.full(40, GIB), "no trend"),
        (4 * GIB - 20e6 * np.arange(40), "shrinks"),
        (GIB + 1e6 * np.arange(40), "10 times the span"),
    ],
)
def test_without_an_honest_forecast_the_chart_says_why(values: list[float], why: str) -> None:
    made = only(growth(history({SLAB: np.array(values)}), "store"))
    assert made.reached == ()
    assert made.says.startswith("No forecast: ")
    assert why in made.says
    assert why in ElementTree.tostring(ElementTree.fromstring(svg(made)), encoding="unicode")
    assert plots.forecast(growth(history({SLAB: np.array(values)}), "store")).get_xlabel()
    plt.close("all")


def test_a_boot_that_has_just_begun_has_no_forecast() -> None:
    values = np.r_[GIB + 20e6 * np.arange(60), np.full(3, GIB)]
    made = only(growth(history({SLAB: values}, boots=["a"] * 60 + ["b"] * 3), "store"))
    assert (made.reached, made.end) == ((), made.last_record)
    assert "fewer than 8 records" in made.says


def test_memory_in_use_counts_all_users() -> None:
    used: Key = ("machine", "summary", "used_bytes", "", "bytes")
    grown = GIB + 20e6 * np.arange(60)
    says = [only(growth(history({key: grown}), "store")).says for key in (SLAB, used)]
    assert ["nothing else" in each for each in says] == [True, False]
    assert all("RAM (8.0 GiB) is reached" in each for each in says)


def test_a_far_limit_is_named_and_not_drawn() -> None:
    made = only(growth(history({MEMCG_IDS: 100 + np.arange(60)}), "store"))
    assert not made.shows_limit
    assert made.top < 1000
    assert "above" in made.limit_words


def test_records_above_the_limit_are_in_the_chart() -> None:
    made = only(growth(history({SLAB: GIB + 20e6 * np.arange(60)}), "store"))
    above = replace(made, limit_value=made.boots[0][1].max() / 2)
    assert above.shows_limit
    assert above.top > above.boots[0][1].max()


def test_without_records_there_is_nothing_to_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = growth(history({SLAB: np.full(3, GIB)}).iloc[:0], "store")
    assert forecasts(empty) == []
    assert plots.forecast(empty).texts
    plt.close("all")
    store = write_store(tmp_path / "store", history({SLAB: np.full(3, GIB)}))
    picture = tmp_path / "a.svg"
    options = ["--since", "2100-01-01", "--svg", str(picture)]
    assert main(["trend", str(store), *options]) == Exit.FAILED
    assert "No series" in capsys.readouterr().err
    assert not picture.exists()


def test_a_picture_stands_alone(tmp_path: Path) -> None:
    rows = history({SLAB: GIB + 20e6 * np.arange(60)}).assign(live=False)
    store = write_store(tmp_path / "store", rows)
    picture = tmp_path / "a.svg"
    assert main(["trend", str(store), "--svg", str(picture)]) == Exit.DONE
    root = ElementTree.parse(picture).getroot()
    texts = " ".join(each.text or "" for each in root.findall(".//{*}text"))
    made = only(growth(history({SLAB: GIB + 20e6 * np.arange(60)}), "store"))
    for words in ("db1: slab memory", "RAM: 8.0 GiB", made.says[:60]):
        assert words in texts
    assert root.find("{*}rect") is not None  # its own background


def test_matplotlib_and_svg_show_the_same() -> None:
    result = grown(before=20)
    made = only(result)
    ax = plots.forecast(result)
    records = [line for line in ax.lines if line.get_marker() == "."]
    drawn = np.concatenate([line.get_ydata() for line in records])
    assert np.allclose(drawn, np.concatenate([values for _, values in made.boots]))
    words = [words for _, words in made.marks]
    assert [each.split()[0] for each in words] == ["earliest", "expected", "latest"]
    # All are of one day, so that they have hours.
    assert len({*words}) == len({each.partition(" ")[2] for each in words}) == 3
    assert {text.get_text() for text in ax.texts} == {"reboot", *words}
    lines = [
        np.asarray(each.get_data(), np.float64)
        for each in ax.lines
        if each.get_color() == "#d93a2b"
    ]
    verticals = [float(x[0]) for x, y in lines if y[0] == 0]
    seconds = [num2date(each).timestamp() for each in verticals]  # type: ignore[no-untyped-call]
    assert np.allclose(seconds, made.reached, atol=1)
    plt.close("all")
    dots = ElementTree.fromstring(svg(made)).findall(".//{*}circle")
    assert len(dots) == 80 + len(made.reached) + 1  # one in the legend


def test_now_is_in_the_picture() -> None:
    rows = history({SLAB: GIB + 20e6 * np.arange(60)})
    now = rows["time"].max().timestamp() + 3000
    result = growth(rows, "store", now=now)
    made = only(result)
    assert made.now == pytest.approx(now, abs=1)
    texts = [each.text for each in ElementTree.fromstring(svg(made)).findall(".//{*}text")]
    assert "now" in texts
    assert "now" in [text.get_text() for text in plots.forecast(result).texts]
    plt.close("all")
    assert np.isnan(only(growth(rows, "store")).now)


def test_amounts_are_not_below_0() -> None:
    values = np.r_[np.zeros(20), 4e7 * np.arange(40)] + np.random.default_rng(0).random(60) * 5e7
    result = growth(history({SLAB: values}), "store")
    made = only(result)
    assert min(made.low.min(), made.line.min()) >= 0
    assert not result.tables["growing"].frame["before"].iloc[0].startswith("-")
    # The used share is that of the last record.
    used = result.tables["growths"].frame["used"].iloc[0]
    assert used == f"{values[-1] / (8 * GIB):.0%} of RAM"


def test_a_document_keeps_its_forecasts(tmp_path: Path) -> None:
    rows = history({SLAB: GIB + 20e6 * np.arange(60)}).assign(live=False)
    store = write_store(tmp_path / "store", rows)
    document = tmp_path / "t.json"
    assert main(["trend", str(store), "--json", str(document)]) == Exit.DONE
    read = saved.load(str(document)).results["trend"]
    again, made = only(read), only(growth(history({SLAB: GIB + 20e6 * np.arange(60)}), "store"))
    assert (again.title, again.says, again.reached) == (made.title, made.says, made.reached)
    assert np.allclose(again.high, made.high)


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    result = grown(host=_HOSTILE)
    made = only(result)
    for text in (svg(made), svg(made, is_file=True)):
        ElementTree.fromstring(text)
        assert not {"\x1b", "\n"} & {*text}
        assert "<b>" not in text
    ax = plots.forecast(result)
    ax.figure.canvas.draw()
    plt.close("all")
    (page,) = write_html(result, tmp_path / "page.html")
    assert "<b>" not in page.read_text()


@pytest.mark.parametrize(
    ("top", "unit", "last"),
    [
        (231.5 * 2**20, Unit.BYTES, 200 * 2**20),
        (1.5 * 2**30, Unit.BYTES, 1.0 * 2**30),
        (70_000, Unit.COUNT, 60_000),
        (1.0, Unit.COUNT, 0.8),
    ],
)
def test_ticks_are_round(top: float, unit: Unit, last: float) -> None:
    marks = ticks(top, unit)
    assert marks[0] == 0
    assert 3 <= len(marks) <= 7
    assert marks[-1] == pytest.approx(last)
