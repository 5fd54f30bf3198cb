# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plots show the figures of their results: read back from what is drawn, not from pixels."""

from __future__ import annotations

import builtins
import doctest
import importlib
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.legend import Legend
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import kcensus
from kcensus import plots
from kcensus.analyses.drawings import specs
from kcensus.api import answers
from kcensus.api.answers import Report
from kcensus.results import Figure, Machine, Result, Unit
from tests.unit.charts.test_charts import ram_results, result_with

pytestmark = pytest.mark.ends

PLOTS: dict[Callable[..., Axes], tuple[str, str]] = {
    plots.slab_caches: ("slab", "caches"),
    plots.slab_waste: ("slab", "waste"),
    plots.slab_fill: ("slab", "fill"),
    plots.directories: ("dentries", "directories"),
    plots.name_patterns: ("dentries", "patterns"),
    plots.list_lru_projection: ("list-lru", "projection"),
    plots.list_lru_owners: ("list-lru", "owners"),
    plots.kcopyd_jobs: ("kcopyd", "jobs"),
    plots.dying_memcgs: ("memcgs", "pins"),
}
"""Analysis and name of the chart that each function draws."""


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Fail on a warning, such as that of a glyph that no font has."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
    plt.close("all")


@pytest.fixture(scope="module")
def report() -> Report:
    made: Report = kcensus.report(kcensus.open_target("sample"))
    return made


def png(ax: Axes) -> bytes:
    file = io.BytesIO()
    ax.figure.savefig(file, format="png", dpi=40)  # type: ignore[union-attr]
    return file.getvalue()


def widths(ax: Axes) -> list[list[float]]:
    parts = [[bar.get_width() for bar in container] for container in ax.containers]
    return [list(bar) for bar in zip(*parts, strict=True)]


def names(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.findobj(Text) if isinstance(text, Text)]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
def test_bars_are_the_figures_of_the_result(report: Report, plot: Callable[..., Axes]) -> None:
    analysis, name = PLOTS[plot]
    answer = report.results[analysis]
    ax = plot(answer)
    (spec,) = (spec for spec in specs(answer.result) if spec.name == name)
    expected = pd.DataFrame(answer.tables[spec.table])
    keys = [key for key in spec.values if key in expected]
    keys = [key for key in keys if expected[key].any()]
    many = expected[spec.sharers] if spec.sharers else [1] * len(expected)
    sharers = dict(zip(expected[spec.names], many, strict=True))
    if not spec.is_ordered:
        expected = expected.groupby(spec.names, sort=False)[keys].sum().reset_index()
        total = expected[keys].sum(axis=1)
        expected = expected.iloc[np.argsort(-total.to_numpy(), kind="stable")]
        expected = expected[expected[keys].sum(axis=1) > 0].head(10)
    assert widths(ax) == expected[keys].astype(float).to_numpy().tolist()
    assert len(ax.texts) == len(expected)
    for shown, whole in zip(names(ax), expected[spec.names], strict=True):
        more = sharers[whole] - 1
        if more:
            shown = shown.removesuffix(f" + {more} merged")
        start, _, end = shown.partition("…")
        assert whole.startswith(start)
        assert whole.endswith(end)
    assert png(ax)


@pytest.mark.slow
@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
def test_an_empty_result_has_nothing_to_show(plot: Callable[..., Axes]) -> None:
    ax = plot(Result(PLOTS[plot][0], "x", "x"))
    assert "nothing to show" in texts(ax)
    png(ax)
    with pytest.raises(ValueError, match="other"):
        plot(Result("other", "x", "x"))


HOSTILE = {
    r"$\frac{1}{0}$ a$b": r"$\frac{1}{0}$ a$b",
    r"\$100 \$": r"\$100 \$",
    r"\N{BULLET} \alpha{": r"\N{BULLET} \alpha{",
    "_leading": "_leading",
    "日本語": r"\u65e5\u672c\u8a9e",
    "\U0001f4a9": r"\U0001f4a9",
    "\u202egnp.exe": r"\u202egnp.exe",
    "\x1b[31m\n": r"\x1b[31m\x0a",
    "x" * 4096: "x" * 17 + "…" + "x" * 16,
    "<script>'\"&%{}": "<script>'\"&%{}",
}
"""Names, and what a reader sees of them."""


def test_hostile_names_are_inert() -> None:
    result = of_directories([*HOSTILE], np.arange(len(HOSTILE), 0, -1))
    ax = plots.directories(result)
    png(ax)  # draws what is parsed, and warns of missing glyphs
    # This is what Matplotlib does with a text that has no formula.
    drawn = [label._preprocess_math(label.get_text()) for label in ax.get_yticklabels()]  # type: ignore[attr-defined]
    assert drawn == [(shown, False) for shown in HOSTILE.values()]
    result.kernel = "$x$"
    ax = plots.before_after(result, result, chart="directories")
    png(ax)
    assert "before: Linux \\$x\\$" in texts(ax)
    # Names that differ in their middles are numbered.
    paths = [f"/srv/spool/$jobs/of/tenant/{name}/incoming/mail/queue/new" for name in "ab"]
    shown = names(plots.directories(of_directories(paths, [2, 1])))
    assert [name[-3:] for name in shown] == [" #1", " #2"]
    assert all(name.startswith(r"/srv/spool/\$") for name in shown)


@pytest.mark.slow
def test_glyphs_of_all_chosen_fonts_are_drawn() -> None:
    families = ["DejaVu Sans", "STIXGeneral"]
    first, second = (
        get_font(findfont(FontProperties(family=[name]))).get_charmap() for name in families
    )
    name = next(chr(code) for code in sorted(second) if code not in first and chr(code).isalpha())
    result = of_directories([name], [1])
    assert names(plots.directories(result)) == [f"\\u{ord(name):04x}"]
    with mpl.rc_context({"font.family": families}):
        ax = plots.directories(result)
        png(ax)
    assert names(ax) == [name]


def with_child_caches(report: Report) -> Result:
    """Return slabs as of a kernel whose memory cgroups have caches of their own."""
    slab = report.results["slab"].result
    summary = slab.summary | {"child_cache_bytes": Figure(1, Unit.BYTES)}
    return replace(slab, summary=summary)


@pytest.mark.slow
def test_utilization_has_the_published_band_of_such_kernels(report: Report) -> None:
    slab = report.results["slab"]
    # Memory cgroups share slabs since 5.9.
    assert not plots.slab_utilization(slab).patches
    ax = plots.slab_utilization(with_child_caches(report))
    png(ax)
    x, y = (np.asarray(values, float) for values in ax.lines[0].get_data())
    caches = slab.tables["caches"]
    assert np.all(np.diff(x) >= 0)
    assert y[-1] == 1
    for limit in (0.4, 0.72, 0.9):
        below = caches.loc[caches["utilization"] <= limit, "bytes"].sum()
        assert y[x <= limit][-1] == pytest.approx(below / caches["bytes"].sum())
    assert ax.lines[1].get_xdata() == pytest.approx([slab.summary["utilization"]] * 2)
    (band,) = (patch for patch in ax.patches if isinstance(patch, Rectangle))
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((0.45, 0.65))
    assert any("45% to 65%" in text and "2020-01-27" in text for text in texts(ax))


@pytest.mark.slow
def test_ram_by_use_has_the_counters_of_the_kernel(report: Report) -> None:
    ax = plots.ram_by_use(report)
    png(ax)
    machine = report.results["slab"].result.machine
    assert machine is not None
    memory = machine.memory
    (parts,) = widths(ax)
    assert sum(parts) == machine.ram_bytes == sum(memory.values())
    assert parts[0] == memory["slab_reclaimable"] + memory["slab_unreclaimable"] > 0
    assert parts[1:4] == [memory[name] for name in ("anonymous", "page_cache", "shmem")]
    assert parts[-1] == memory["free"] > 0
    assert "nothing to show" in texts(plots.ram_by_use(ram_results(slab={"slab_bytes": 1})))


@pytest.mark.slow
def test_ram_that_is_analysed_is_one_bar(report: Report) -> None:
    ax = plots.ram_analysed(report)
    png(ax)
    machine = report.results["slab"].result.machine
    assert machine is not None
    (parts,) = widths(ax)
    assert sum(parts) == machine.ram_bytes
    colors = [box[0].get_facecolor() for box in ax.containers]
    slabs = sum(
        parts[colors.index(color)]
        for name, color in zip(legend(ax), legend_colors(ax), strict=True)
        if name.startswith(("kcopyd", "dentries", "other slabs"))
    )
    list_lru = report.results["list-lru"].result.amount("structural_bytes")
    outside = report.results["kcopyd"].result.amount("page_bytes")
    assert slabs - outside + list_lru == report.results["slab"].result.amount("slab_bytes")
    assert "nothing to show" in texts(plots.ram_analysed(ram_results(slab={"slab_bytes": 1})))
    # The machine is that of any result.
    results = ram_results(dentries={"slab_bytes": 300}, slab={"slab_bytes": 700})
    results["slab"].machine = Machine(ram_bytes=1000)
    assert widths(plots.ram_analysed(results)) == [[400, 300, 300]]


def box_of(ax: Axes) -> Legend:
    box = ax.get_legend()
    assert box is not None
    return box


def legend(ax: Axes) -> list[str]:
    return [text.get_text() for text in box_of(ax).get_texts()]


def legend_colors(ax: Axes) -> list[object]:
    return [patch.get_facecolor() for patch in box_of(ax).get_patches()]


def test_a_long_entry_of_a_legend_is_wrapped(report: Report) -> None:
    figure, (ax, _) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    png(plots.slab_utilization(with_child_caches(report), ax=ax))
    box = box_of(ax)
    assert max(text.get_window_extent().x1 for text in box.get_texts()) <= figure.bbox.x1 / 2
    assert any("\n" in name for name in legend(ax))


@pytest.mark.parametrize("beside", [1, 2])
def test_a_legend_reads_from_left_to_right(report: Report, beside: int) -> None:
    figure, axes = plt.subplots(1, beside, figsize=(6 * beside, 4), layout="constrained")
    ax = plots.ram_analysed(report, ax=np.ravel(axes)[0])
    png(ax)
    places = [text.get_window_extent() for text in box_of(ax).get_texts()]
    rows = sorted({round(place.y0) for place in places}, reverse=True)
    order = sorted(
        range(len(places)), key=lambda i: (rows.index(round(places[i].y0)), places[i].x0)
    )
    colors = [container[0].get_facecolor() for container in ax.containers]
    assert [legend_colors(ax)[entry] for entry in order] == colors
    assert len(rows) > 1
    assert max(place.x1 for place in places) <= figure.bbox.x1 / beside


def of_directories(names: list[str], negative: Any) -> Result:
    columns = {"directory": (names, Unit.TEXT), "negative": (negative, Unit.COUNT)}
    return result_with("dentries", "directories", **columns)


def summary(kernel: str, **figures: int) -> Result:
    result = Result("slab", "x", kernel)
    result.summary = {
        key: Figure(value, Unit.BYTES if key.endswith("bytes") else Unit.COUNT, f"{key} label")
        for key, value in figures.items()
    }
    return result


@pytest.mark.slow
def test_before_and_after_figures() -> None:
    older = summary("5.10", slab_bytes=4 << 20, free_bytes=0, slabs=3)
    newer = summary("6.12", slab_bytes=1 << 20, free_bytes=5, slabs=3)
    ax = plots.before_after(older, newer, ("slab_bytes", "free_bytes"))
    png(ax)
    assert widths(ax) == [[4 << 20, 0], [0, 1 << 20], [0, 0], [0, 5]]
    assert names(ax) == ["slab_bytes label", "free_bytes label"]
    assert [text.get_text() for text in ax.texts] == ["4.0 MiB", "1.0 MiB (-75.0%)", "0 B", "5 B"]
    assert legend(ax) == ["before: Linux 5.10", "after: Linux 6.12"]
    assert widths(plots.before_after(older, newer)) == [[4 << 20, 0], [0, 1 << 20]]
    with pytest.raises(ValueError, match="different units"):
        plots.before_after(older, newer, ("slab_bytes", "slabs"))
    with pytest.raises(ValueError, match="'nothing'"):
        plots.before_after(older, newer, ("nothing",))
    with pytest.raises(ValueError, match="dentries"):
        plots.before_after(older, Result("dentries", "x", "x"))
    # Nothing is compared with what is not in use.
    newer = summary("6.12")
    newer.nothing = "not in use"
    for pair in ((older, newer), (newer, older)):
        assert "nothing to show" in texts(plots.before_after(*pair, ("slab_bytes",)))


@pytest.mark.slow
def test_before_and_after_rows() -> None:
    def result(caches: dict[str, int]) -> Result:
        sizes = (list(caches.values()), Unit.BYTES)
        return result_with("slab", "caches", cache=(list(caches), Unit.TEXT), active_bytes=sizes)

    ax = plots.before_after(result({"a": 10, "b": 40}), result({"a": 50, "c": 1}), chart="caches")
    png(ax)
    assert names(ax) == ["a", "b", "c"]
    assert widths(ax) == [[10, 0], [0, 50], [40, 0], [0, 0], [0, 0], [0, 1]]
    empty = Result("slab", "x", "x")
    assert "nothing to show" in texts(plots.before_after(empty, empty, chart="caches"))
    with pytest.raises(ValueError, match="it has caches, waste, fill"):
        plots.before_after(empty, empty, chart="x")


@pytest.mark.slow
def test_growth() -> None:
    start, values = 1_795_301_726, np.array([1.0, 2.0, 3.0]) * 2**20
    seconds = start + 60 * np.arange(3)
    index = pd.to_datetime(seconds, unit="s", utc=True)
    for time in (seconds, index, list(index.tz_localize(None)), index.to_series()):
        ax = plots.growth(
            time, values, values + 1, values - 9, values + 9, label="x", limit=4 * 2**20
        )
        png(ax)
        x, y = ax.lines[0].get_data()
        assert np.asarray(x).astype("datetime64[s]").astype(int).tolist() == seconds.tolist()
        assert np.asarray(y).tolist() == values.tolist()
        assert np.asarray(ax.lines[1].get_ydata()).tolist() == (values + 1).tolist()
        assert ax.lines[2].get_ydata() == [4 * 2**20] * 2
        edges = ax.collections[0].get_paths()[0].vertices
        assert (np.min(edges[:, 1]), np.max(edges[:, 1])) == (values[0] - 9, values[-1] + 9)  # type: ignore[index]
    far = plots.growth(seconds, values, limit=2**40)
    assert far.get_ylim()[1] < 4 * 2**20
    assert "limit: 1.0 TiB, above this plot" in legend(far)
    assert "nothing to show" in texts(plots.growth([], []))
    png(plots.growth(seconds[:1], [0.5], unit="ratio"))


@pytest.mark.slow
@pytest.mark.parametrize("plot", PLOTS)
def test_an_axis_without_units_says_what_is_counted(
    report: Report, plot: Callable[..., Axes]
) -> None:
    ax = plot(report.results[PLOTS[plot][0]])
    png(ax)
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    has_units = all(tick.endswith("B") for tick in ticks)
    assert has_units or re.match("[a-z]+", ax.get_xlabel())


@pytest.mark.slow
def test_plots_draw_on_given_axes_and_keep_the_style(report: Report) -> None:
    _, (left, right) = plt.subplots(1, 2)
    assert plots.slab_fill(report.results["slab"], ax=left) is left
    assert plots.chart(report.results["slab"].result, "waste", ax=right) is right
    assert plots.charts(report.results["slab"]) == ["caches", "waste", "fill"]
    before = dict(mpl.rcParams)
    with plots.style(dark=True):
        ax = plots.slab_fill(report.results["slab"])
    assert dict(mpl.rcParams) == before
    assert mpl.colors.to_hex(ax.get_facecolor()) != "#ffffff"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "largest", "tick"),
    [
        (Unit.SECONDS, 4.4e5, "2 d"),
        (Unit.SECONDS, 5000, "30 min"),
        (Unit.SECONDS, 0.004, "1 ms"),
        (Unit.PAGES, 5000, "2,000 pages"),
        (Unit.BYTES, 5 << 20, "2 MiB"),
        (Unit.COUNT, 5000, "2,000"),
    ],
)
def test_ticks_have_units(unit: Unit, largest: float, tick: str) -> None:
    ax = plots.growth([0, 60], [0, largest], unit=unit)
    png(ax)
    assert tick in [label.get_text() for label in ax.get_yticklabels()]


@pytest.mark.slow
def test_a_report_is_refused_in_one_sentence(report: Report) -> None:
    calls: list[Callable[[Any], object]] = [plots.charts, plots.slab_caches]
    for call in calls:
        with pytest.raises(TypeError, match=r"one analysis, not a Report; .*report\.results"):
            call(report)


@pytest.mark.parametrize("module", [plots, answers])
@pytest.mark.slow
def test_the_example_runs(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert (outcome.failed, outcome.attempted > 0) == (0, True)


@pytest.mark.slow
def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name="matplotlib")
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("kcensus.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install '.\[notebook\]'"):
        importlib.import_module("kcensus.plots")
