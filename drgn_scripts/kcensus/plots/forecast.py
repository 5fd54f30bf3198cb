# SPDX-License-Identifier: LGPL-2.1-or-later
"""A forecast on Matplotlib: records, trend, band, and the limit with the times of its reach."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import date2num

from kcensus.charts import COLORS
from kcensus.charts.forecast import BAND, Floats, Forecast
from kcensus.plots import drawing

_LIMIT = "#d93a2b"
_ABOVE = 1.18
"""Room for the names of the ends above a limit."""
_SHOWN = 95
"""Characters of a line of the sentence below a plot."""


def draw(forecast: Forecast, ax: Axes | None) -> Axes:
    """Draw a forecast; without a trend, its records alone."""
    ax = drawing.axes_for(ax, forecast.title, bars=9, lines=2)
    label: str | None = "records"
    end = -np.inf
    for times, values in forecast.boots:
        if end > -np.inf:
            _upright(ax, (end + times[0]) / 2, "reboot")
        size = 5 if len(times) <= 120 else 2.5
        ax.plot(_dates(times), values, ".", markersize=size, color=COLORS[0], label=label)
        label, end = None, float(times[-1])
    if len(forecast.times):
        _trend(ax, forecast)
    if forecast.shows_limit:
        _limit(ax, forecast)
    elif forecast.limit:
        ax.plot([], [], " ", label=drawing.shown(forecast.limit_words))
    ax.set_ylim(0, forecast.top * (_ABOVE if forecast.marks and forecast.shows_limit else 1))
    if forecast.last_record <= forecast.now <= forecast.right:
        _upright(ax, forecast.now, "now")
    drawing.scale(ax.yaxis, forecast.unit)
    drawing.scale_time(ax.xaxis)
    ax.xaxis.get_offset_text().set_visible(False)  # a month alone
    ax.margins(x=0.02)
    says = "\n".join(textwrap.fill(each, _SHOWN) for each in (forecast.says, forecast.note))
    ax.set_xlabel(drawing.shown_text(says.rstrip()), loc="left", fontsize="small")
    drawing.add_legend(ax)
    return ax


def _dates(times: Floats) -> Floats:
    moments = (times * 1e6).astype("datetime64[us]")
    return np.asarray(date2num(moments), np.float64)  # type: ignore[no-untyped-call]


def _upright(ax: Axes, time: float, words: str) -> None:
    place = float(_dates(np.array([time]))[0])
    ax.axvline(place, color="0.5", linestyle=":", linewidth=1)
    ax.annotate(
        words, (place, 0.8), (3, -3), xycoords=("data", "axes fraction"),
        textcoords="offset points", va="top", fontsize="small",
    )  # fmt: skip


def _trend(ax: Axes, forecast: Forecast) -> None:
    times, line, low, high = forecast.band()
    dates = _dates(times)
    known = times <= forecast.last_record
    style: dict[str, Any] = {"color": COLORS[1], "linewidth": 0}
    # Of the records, the band says little.
    ax.fill_between(dates, low, high, where=known, alpha=0.1, **style)
    ax.fill_between(dates, low, high, where=times >= forecast.last_record, alpha=0.22, label=BAND,
        **style)  # fmt: skip
    ahead = (times >= forecast.last_record) & ~(line >= forecast.limit_value)
    ax.plot(dates[known], line[known], color=COLORS[1], label="trend")
    ax.plot(dates[ahead], line[ahead], "--", color=COLORS[1])


def _limit(ax: Axes, forecast: Forecast) -> None:
    words = drawing.shown(forecast.limit_words)
    ax.axhline(forecast.limit_value, color=_LIMIT, label=words)
    for place, (time, shown) in enumerate(forecast.marks):
        date = float(_dates(np.array([time]))[0])
        style = "-" if shown.startswith("expected") else "--"
        ax.plot([date, date], [0, forecast.limit_value], style, color=_LIMIT, linewidth=1)
        # To the left, and later ones above, so that words do not overlap.
        ax.annotate(
            shown, (date, forecast.limit_value), (0, 4 + 12 * place),
            textcoords="offset points", ha="right", fontsize="small",
        )  # fmt: skip
