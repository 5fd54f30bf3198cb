# SPDX-License-Identifier: LGPL-2.1-or-later
"""A forecast on Matplotlib: records, trend, band, and the limit with the times of its reach."""

from __future__ import annotations

import datetime
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import date2num

from kcensus.charts import COLORS
from kcensus.charts.forecast import BAND, Floats, Forecast
from kcensus.plots import drawing

_LIMIT = "#d93a2b"
_LATE = 0.85
"""Part of the width behind which a date is to the left of its line."""
_SHOWN = 95
"""Characters of a line of the sentence below a plot."""


def draw(forecast: Forecast, ax: Axes | None) -> Axes:
    """Draw a forecast; without a trend, its records alone."""
    ax = drawing.axes_for(ax, forecast.title, bars=9, lines=2)
    label: str | None = "records"
    end = -np.inf
    for times, values in forecast.boots:
        if end > -np.inf:
            _reboot(ax, (end + times[0]) / 2)
        size = 5 if len(times) <= 120 else 2.5
        ax.plot(_dates(times), values, ".", markersize=size, color=COLORS[0], label=label)
        label, end = None, float(times[-1])
    if len(forecast.times):
        _trend(ax, forecast)
    if forecast.shows_limit:
        _limit(ax, forecast)
    elif forecast.limit:
        ax.plot([], [], " ", label=drawing.shown(forecast.limit_words))
    ax.set_ylim(0, forecast.top)
    drawing.scale(ax.yaxis, forecast.unit)
    drawing.scale_time(ax.xaxis)
    says = "\n".join(textwrap.fill(each, _SHOWN) for each in (forecast.says, forecast.note))
    ax.set_xlabel(drawing.shown_text(says.rstrip()), loc="left", fontsize="small")
    drawing.add_legend(ax)
    return ax


def _dates(times: Floats) -> Floats:
    moments = (times * 1e6).astype("datetime64[us]")
    return np.asarray(date2num(moments), np.float64)  # type: ignore[no-untyped-call]


def _reboot(ax: Axes, time: float) -> None:
    place = float(_dates(np.array([time]))[0])
    ax.axvline(place, color="0.5", linestyle=":", linewidth=1)
    ax.annotate(
        "reboot", (place, 1), (3, -3), xycoords=("data", "axes fraction"),
        textcoords="offset points", va="top", fontsize="small",
    )  # fmt: skip


def _trend(ax: Axes, forecast: Forecast) -> None:
    times, line, low, high = forecast.band()
    dates = _dates(times)
    ax.fill_between(dates, low, high, color=COLORS[1], alpha=0.22, linewidth=0, label=BAND)
    known = times <= forecast.last_record
    ahead = (times >= forecast.last_record) & ~(line >= forecast.limit_value)
    ax.plot(dates[known], line[known], color=COLORS[1], label="trend")
    ax.plot(dates[ahead], line[ahead], "--", color=COLORS[1])


def _limit(ax: Axes, forecast: Forecast) -> None:
    words = drawing.shown(forecast.limit_words)
    ax.axhline(forecast.limit_value, color=_LIMIT, label=words)
    label: str | None = "earliest, expected, latest"
    for place, time in enumerate(forecast.reached):
        if forecast.last_record < time <= forecast.end:
            date, style = float(_dates(np.array([time]))[0]), "-" if place == 1 else "--"
            ax.plot(
                [date, date], [0, forecast.limit_value], style, color=_LIMIT, linewidth=1,
                label=label if style == "--" else None,
            )  # fmt: skip
            label = None if style == "--" else label
            day = datetime.datetime.fromtimestamp(time, datetime.timezone.utc)
            is_late = time > forecast.first + _LATE * (forecast.end - forecast.first)
            ax.annotate(
                f"{day:%Y-%m-%d}", (date, 0), (-3 if is_late else 3, 4 + 12 * place),
                textcoords="offset points", ha="right" if is_late else "left", fontsize="small",
            )  # fmt: skip
