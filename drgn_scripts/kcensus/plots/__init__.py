# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plots of results on Matplotlib, each the answer to one question at a glance.

>>> import kcensus
>>> from kcensus import plots
>>> axes = plots.slab_caches(kcensus.slab(kcensus.open_target("sample")))
>>> axes.get_title(loc="left")
'Largest slab caches'

Every function takes one or more results, of :mod:`kcensus` or of a file, and returns the Matplotlib
Axes with the plot: the parameter ``ax``, by default new ones. Without anything to show, the Axes
say so. Names are escaped, and shortened in the middle; the tables of the result have them in full.

:func:`chart` draws any chart declared by an analysis; the HTML page has the same ones.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus import results
from kcensus.analyses import analyses
from kcensus.analyses.drawings import memory_use, ram_use, specs
from kcensus.api.answers import Report, Result
from kcensus.catalogue import load
from kcensus.charts import COLORS, Bar, Chart, ChartSpec, in_words
from kcensus.charts import chart as bars_of
from kcensus.charts.forecast import forecasts as forecasts_of
from kcensus.human import human
from kcensus.plots import drawing
from kcensus.plots.drawing import style
from kcensus.plots.forecast import draw as draw_forecast
from kcensus.results import Machine, Unit
from kcensus.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = (
    "COLORS",
    "before_after",
    "chart",
    "charts",
    "directories",
    "dying_memcgs",
    "forecast",
    "forecasts",
    "growth",
    "kcopyd_jobs",
    "list_lru_owners",
    "list_lru_projection",
    "name_patterns",
    "ram_analysed",
    "ram_by_use",
    "slab_caches",
    "slab_fill",
    "slab_utilization",
    "slab_waste",
    "style",
)

AnyResult: TypeAlias = Result | results.Result
Times: TypeAlias = "npt.ArrayLike | Sequence[datetime.datetime] | pd.DatetimeIndex | pd.Series[Any]"
"""Datetimes, UTC, or seconds since 1970."""
_Pairs: TypeAlias = dict[str, tuple[float, float]]
"""Values before and after, by name."""
_MAX_PAIRS = 10
_MAX_MARKS = 200
"""Most points to draw as large dots."""
_PUBLISHED = ("slab-objcg-controller", "utilization-typical")
"""Patch and figure of the catalogue: utilization of most machines before the patch."""
_FAR = 2
"""A limit this many times as large as all values is named, not drawn."""


def charts(result: AnyResult) -> list[str]:
    """Return the names of the charts that the analysis of a result declares."""
    return [spec.name for spec in specs(_plain(result))]


def chart(result: AnyResult, name: str, *, ax: Axes | None = None) -> Axes:
    """Draw a chart that the analysis declares, as horizontal bars.

    :raises ValueError: the analysis declares no chart of this name
    """
    return drawing.draw(bars_of(_plain(result), _spec(result, name)), ax)


def _declared(analysis: str, name: str, what: str) -> Callable[..., Axes]:
    """Return a function that draws a chart of an analysis."""

    def draw(result: AnyResult, *, ax: Axes | None = None) -> Axes:
        return chart(_of(result, analysis), name, ax=ax)

    draw.__doc__ = f"Draw {what}."
    return draw


slab_caches = _declared(
    "slab", "caches", "the largest slab caches: bytes in use, free slots, padding and tails"
)
slab_waste = _declared("slab", "waste", "the slab caches with most bytes that hold no object")
slab_fill = _declared("slab", "fill", "how many slabs are how full, as a histogram")
directories = _declared("dentries", "directories", "the directories with most negative dentries")
name_patterns = _declared("dentries", "patterns", "the name patterns with most negative dentries")
list_lru_projection = _declared(
    "list-lru", "projection", "the memory of list_lrus at each stage of the patch series"
)
list_lru_owners = _declared("list-lru", "owners", "the memory of list_lrus by owner")
kcopyd_jobs = _declared("kcopyd", "jobs", "kcopyd jobs by client and state")
dying_memcgs = _declared(
    "memcgs", "pins", "offline (dying) memory cgroups by holder; several holders can pin one"
)


def slab_utilization(slab: AnyResult, *, ax: Axes | None = None) -> Axes:
    """Draw the share of slab memory in caches up to each utilization (an ECDF).

    A line marks the utilization of all slabs together. If memory cgroups have slab caches of their
    own, as up to 5.8, a band marks the published utilization of most such machines.
    """
    result = _plain(_of(slab, "slab"))
    ax = drawing.axes_for(ax, "Slab memory by utilization of its cache", bars=7, lines=3)
    table = result.tables.get("caches")
    columns = ["utilization", "bytes"]
    if table is None or not len(table.frame) or not {*columns} <= {*table.frame}:
        return drawing.nothing(ax)
    rows = table.frame[columns].apply(pd.to_numeric, errors="coerce").dropna()
    rows = rows[rows["bytes"] > 0].sort_values("utilization")
    share = rows["bytes"].cumsum() / rows["bytes"].sum()
    line = "slab memory in caches of at most this utilization"
    ax.step([0, *rows["utilization"], 1], [0, *share, 1], where="post", color=COLORS[0], label=line)
    whole = result.summary.get("utilization")
    if whole is not None and isinstance(whole.value, (int, float)):
        words = f"utilization of all slabs together: {human(whole.value, Unit.RATIO)}"
        ax.axvline(whole.value, color=COLORS[3], linestyle="--", label=words)
    own = result.summary.get("child_cache_bytes")
    if own is not None and own.value:
        patch, name = _PUBLISHED
        published = load().patches[patch]
        figure = next(each for each in published.figures if each.name == name)
        low, high = figure.value / 100, (figure.to or figure.value) / 100
        source = f"{published.postings[0].where}, {published.postings[0].date}"
        words = f"{low:.0%} to {high:.0%}: {figure.what} ({source})"
        ax.axvspan(low, high, color=COLORS[1], alpha=0.25, linewidth=0, label=words)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    drawing.scale(ax.xaxis, Unit.RATIO)
    drawing.scale(ax.yaxis, Unit.RATIO)
    ax.set_xlabel("utilization of the cache")
    ax.set_ylabel("share of slab memory")
    drawing.add_legend(ax)
    return ax


def ram_by_use(report: Report | Mapping[str, AnyResult], *, ax: Axes | None = None) -> Axes:
    """Draw one bar: RAM by use, by the kernel's own counters.

    :param report: all results of one machine; as a mapping, by the names of their analyses
    """
    machine, _ = _machine_of(report)
    if machine is None or not machine.memory:
        return drawing.nothing(drawing.axes_for(ax, "RAM by use", bars=1))
    return drawing.draw(memory_use(machine), ax)


def ram_analysed(report: Report | Mapping[str, AnyResult], *, ax: Axes | None = None) -> Axes:
    """Draw one bar: the RAM accounted for by analyses, the rest, and free memory.

    :param report: all results of one machine; as a mapping, by the names of their analyses
    """
    machine, every = _machine_of(report)
    if machine is None or not machine.ram_bytes:
        return drawing.nothing(drawing.axes_for(ax, "RAM that is analysed", bars=1))
    failed = [*report.failed] if isinstance(report, Report) else []
    free = machine.memory.get("free", 0)
    return drawing.draw(ram_use(every, machine.ram_bytes, failed, free), ax)


def _machine_of(
    report: Report | Mapping[str, AnyResult],
) -> tuple[Machine | None, dict[str, results.Result]]:
    given = report.results if isinstance(report, Report) else report
    every = {name: _plain(result) for name, result in given.items()}
    return next((result.machine for result in every.values() if result.machine), None), every


def before_after(
    before: AnyResult,
    after: AnyResult,
    figures: Sequence[str] = (),
    *,
    chart: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw two results of one analysis side by side, with the change.

    :param figures: keys of their summaries, of one unit; by default the first one of its headline
    :param chart: name of a chart to compare instead, by its largest bars
    :raises ValueError: there are no such figures or chart, or the units differ
    """
    older, newer = _plain(before), _plain(after)
    _of(newer, older.analysis)
    title = _spec(older, chart).title if chart else f"{older.analysis} before and after"
    if older.nothing or newer.nothing:
        return drawing.nothing(drawing.axes_for(ax, title, bars=1))
    unit, pairs = _rows(older, newer, chart) if chart else _figures(older, newer, figures)
    bars = []
    for name, (first, second) in pairs.items():
        change = f" ({second / first - 1:+.1%})" if first and first != second else ""
        bars.append(Bar(name, (first, 0), in_words(first, unit)))
        bars.append(Bar("", (0, second), in_words(second, unit) + change))
    legend = (f"before: Linux {older.kernel}", f"after: Linux {newer.kernel}")
    return drawing.draw(Chart(title, legend, tuple(bars), unit), ax, together=2)


def forecasts(trend: AnyResult) -> list[str]:
    """Return the titles of the forecasts of a result of :func:`kcensus.trend`."""
    return [each.title for each in forecasts_of(_plain(_of(trend, "trend")))]


def forecast(trend: AnyResult, number: int = 0, *, ax: Axes | None = None) -> Axes:
    """Draw a growth on its way to its limit: records, trend, band, and when the limit is reached.

    >>> import kcensus
    >>> from kcensus import plots
    >>> axes = plots.forecast(kcensus.trend("sample-series"))
    >>> axes.get_title(loc="left")
    'lab: kernel memory together'

    Where no forecast is honest, the plot says why. The HTML page of ``kcensus trend`` has the same
    charts.

    :param number: place in :func:`forecasts`, the first to reach its limit on top
    """
    every = forecasts_of(_plain(_of(trend, "trend")))
    if not every:
        return drawing.nothing(drawing.axes_for(ax, "Forecast", bars=1))
    if not 0 <= number < len(every):
        raise ValueError(f"{number} is not a forecast: there are {len(every)}, from 0 on")
    return draw_forecast(every[number], ax)


def growth(
    time: Times,
    value: npt.ArrayLike,
    fit: npt.ArrayLike | None = None,
    low: npt.ArrayLike | None = None,
    high: npt.ArrayLike | None = None,
    *,
    unit: Unit | str = Unit.BYTES,
    label: str = "",
    limit: float | None = None,
    band: str = "interval of the trend",
    ax: Axes | None = None,
) -> Axes:
    """Draw a figure over time, with its trend and a band around the trend.

    :param time: datetimes, UTC, or seconds since 1970; shape (n,)
    :param value: shape (n,)
    :param fit: the trend at these times
    :param low: the lower edge of the band at these times, together with ``high``
    :param unit: of the values
    :param label: of the values
    :param limit: the value that must not be reached
    :param band: name of the area between ``low`` and ``high``
    """
    ax = drawing.axes_for(ax, label, bars=8, lines=1)
    values = np.asarray(value, np.float64)
    moments = np.asarray(time)
    if moments.dtype.kind in "iuf":
        moments = (moments * 1e9).astype(np.int64).astype("datetime64[ns]")
    moments = pd.DatetimeIndex(pd.to_datetime(moments, utc=True)).tz_localize(None).to_numpy()
    if not np.isfinite(values).any():
        return drawing.nothing(ax)
    size = 6 if len(values) <= _MAX_MARKS else 2.5
    ax.plot(moments, values, ".", markersize=size, color=COLORS[0], label="measured")
    if low is not None and high is not None:
        edges = (np.asarray(low, np.float64), np.asarray(high, np.float64))
        ax.fill_between(moments, *edges, color=COLORS[1], alpha=0.25, linewidth=0, label=band)
    if fit is not None:
        ax.plot(moments, np.asarray(fit, np.float64), "--", color=COLORS[1], label="trend")
    if limit is not None:
        words = f"limit: {in_words(limit, Unit(unit))}"
        if limit <= _FAR * np.nanmax(values):
            ax.axhline(limit, color=COLORS[3], linestyle=":", label=words)
        else:
            ax.plot([], [], " ", label=f"{words}, above this plot")
    ax.set_xlabel("time, UTC")
    drawing.scale(ax.yaxis, Unit(unit))
    drawing.scale_time(ax.xaxis)
    drawing.add_legend(ax)
    return ax


def _plain(result: AnyResult) -> results.Result:
    given: object = result.result if isinstance(result, Result) else result
    if isinstance(given, results.Result):
        return given
    hint = "; use one of its results, such as report.results['slab']"
    raise TypeError(
        f"this needs the result of one analysis, not a {type(given).__name__}"
        + (hint if isinstance(given, Report) else "")
    )


def _of(result: AnyResult, analysis: str) -> AnyResult:
    """Return a result if it is one of the analysis."""
    given = printable(_plain(result).analysis)
    if given != analysis:
        raise ValueError(f"this plot needs a result of {analysis!r}, not of {given!r}")
    return result


def _spec(result: AnyResult, name: str) -> ChartSpec:
    known = {spec.name: spec for spec in specs(_plain(result))}
    if name in known:
        return known[name]
    has = ", ".join(known) or "none"
    raise ValueError(f"{name!r} is not a chart of {_plain(result).analysis!r} (it has {has})")


def _rows(older: results.Result, newer: results.Result, chart: str) -> tuple[Unit, _Pairs]:
    drawn = [bars_of(each, _spec(each, chart), sys.maxsize) for each in (older, newer)]
    first, second = ({bar.name: sum(bar.parts) for bar in each.bars} for each in drawn)
    pairs = {name: (first.get(name, 0.0), second.get(name, 0.0)) for name in {**first, **second}}
    largest = sorted(pairs, key=lambda name: -max(pairs[name]))[:_MAX_PAIRS]
    unit = drawn[not first].unit
    return unit, {name: pairs[name] for name in largest if any(pairs[name])}


def _figures(
    older: results.Result, newer: results.Result, keys: Sequence[str]
) -> tuple[Unit, _Pairs]:
    known = analyses().get(older.analysis)
    chosen = keys or (known.headline[:1] if known else ())
    pairs, units = {}, set()
    for key in chosen:
        sides = [side.summary.get(key) for side in (older, newer)]
        figures = [each for each in sides if each and isinstance(each.value, (int, float))]
        if len(figures) < len(sides):
            raise ValueError(f"{key!r} is not a number in the summaries of both results")
        first, second = (float(figure.value or 0) for figure in figures)
        pairs[printable(figures[0].label or key)] = (first, second)
        units |= {figure.unit for figure in figures}
    if len(units) > 1:
        names = ", ".join(sorted(unit.value for unit in units))
        raise ValueError(f"the figures have different units ({names}): plot them one by one")
    return (units or {Unit.COUNT}).pop(), pairs
