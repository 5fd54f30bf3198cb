# SPDX-License-Identifier: LGPL-2.1-or-later
"""Forecasts as SVG: for a page, whose policy forbids styles and fonts, or as files."""

from __future__ import annotations

import datetime
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from kcensus.charts import COLORS, in_words
from kcensus.charts.forecast import BAND, Floats, Forecast, forecasts, ticks
from kcensus.outputs import OutputError, replacing
from kcensus.results import Result
from kcensus.text import printable

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 84, 336
"""Edges of the plot; ends are above it; times, and the legend, are below it."""
_FONT, _SMALL, _LINE = 15, 14, 19
"""Sizes of letters, which are readable at 400 pixels, and height of a line."""
_RECORD, _TREND, _LIMIT = COLORS[0], COLORS[1], "#d93a2b"
_PAPER, _INK = "#ffffff", "#16181c"
_MAX_LINE = 82
"""Characters of a line below a chart in a file."""
_DAY = 86400.0
_STEPS = (900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY)
"""Seconds between two dates on the axis; multiples of the last one if that is too short."""
_MAX_DATES = 5
_MAX_HOURS = 7 * _DAY
"""Most seconds of an axis with hours."""


def svg(forecast: Forecast, *, is_file: bool = False) -> str:
    """Return a forecast as an ``<svg>`` element, names in it escaped.

    :param is_file: with title, sentence, background and colors of its own
    """
    return ElementTree.tostring(_Drawing(forecast, is_file).root, encoding="unicode")


def write_svg(result: Result, path: Path) -> None:
    """Write the first forecast of a result as a picture for a report.

    :raises OutputError: it has none, or the file cannot be written
    """
    every = forecasts(result)
    if not every:
        raise OutputError(f"no picture was written: {result.nothing or 'there is no forecast'}")
    with replacing(path) as new:
        new.write_text(svg(every[0], is_file=True) + "\n", encoding="utf-8")


class _Drawing:
    def __init__(self, forecast: Forecast, is_file: bool) -> None:
        self._of = forecast
        self._above = 28 if is_file else 0
        below = [*_lines(forecast.says), *_lines(forecast.note)] if is_file else []
        height = _HEIGHT + self._above + (6 + _LINE * len(below) if is_file else 0)
        self.root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg", "role": "img", "font-size": str(_FONT),
                "viewBox": f"0 {-self._above} {_WIDTH} {height}", "width": "100%",
            },
        )  # fmt: skip
        self._add("title", forecast.title)
        self._add("desc", forecast.says)
        if is_file:
            self.root.attrib |= {
                "width": f"{_WIDTH}", "height": f"{height}", "color": _INK,
                "font-family": "system-ui, sans-serif",
            }  # fmt: skip
            self._add("rect", x=0, y=-self._above, width=_WIDTH, height=height, fill=_PAPER)
            self._text(forecast.title, 8, -6, font_size=18, font_weight=600)
            for line, words in enumerate(below):
                self._text(words, 8, _HEIGHT + 10 + _LINE * line, font_size=_SMALL)
        self._axes()
        self._trend()
        self._records()
        self._limit()
        self._legend()

    # Places

    def _x(self, time: float) -> float:
        span = (self._of.right - self._of.first) or 1.0
        return _LEFT + (time - self._of.first) / span * (_WIDTH - _RIGHT - _LEFT)

    def _y(self, value: float) -> float:
        share = min(max(value / self._of.top, 0.0), 1.0)
        return _BOTTOM - share * (_BOTTOM - _TOP)

    # Elements

    def _add(self, tag: str, words: str = "", /, **attributes: object) -> ElementTree.Element:
        values = {
            name.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else str(value)
            for name, value in attributes.items()
        }
        element = ElementTree.SubElement(self.root, tag, values)
        element.text = printable(words) or None
        return element

    def _text(
        self, words: str, x: float, y: float, anchor: str = "start", **attributes: object
    ) -> None:
        self._add("text", words, x=x, y=y, fill="currentColor", text_anchor=anchor, **attributes)

    def _line(self, ends: tuple[float, float, float, float], **attributes: object) -> None:
        x1, y1, x2, y2 = map(float, ends)
        style = {"stroke": "currentColor", **attributes}
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, **style)

    def _path(self, times: Floats, values: Floats) -> str:
        places = zip(times.tolist(), values.tolist(), strict=True)
        return " ".join(f"{self._x(time):.1f},{self._y(value):.1f}" for time, value in places)

    # Parts

    def _axes(self) -> None:
        for value in ticks(self._of.top, self._of.unit):
            y = self._y(value)
            self._line((_LEFT, y, _WIDTH - _RIGHT, y), stroke_opacity="0.15")
            words = "0" if not value else in_words(value, self._of.unit).replace(".0 ", " ")
            self._text(words, _LEFT - 6, y + 5, "end", font_size=_SMALL)
        span = self._of.end - self._of.first
        for moment in _dates(self._of.first, self._of.end):
            x = self._x(moment)
            self._line((x, _BOTTOM, x, _BOTTOM + 4), stroke_opacity="0.5")
            if x < _WIDTH - 44:
                self._text(_date(moment, span), x, _BOTTOM + 20, "middle", font_size=_SMALL)
        self._line((_LEFT, _BOTTOM, _WIDTH - _RIGHT, _BOTTOM), stroke_opacity="0.5")

    def _trend(self) -> None:
        each = self._of
        if not len(each.times):
            return
        times, line, low, high = each.band()
        is_ahead = times >= each.last_record
        # Of the records, the band says little.
        for part, opacity in ((times <= each.last_record, "0.1"), (is_ahead, "0.22")):
            edges = times[part], high[part], low[part]
            if len(edges[0]):
                back = self._path(edges[0][::-1], edges[2][::-1])
                around = f"{self._path(edges[0], edges[1])} {back}"
                self._add("polygon", points=around, fill=_TREND, fill_opacity=opacity)
        is_below = line < each.limit_value if each.shows_limit else np.full(len(times), True)
        known = is_below & (times <= each.last_record)
        ahead = is_below & is_ahead
        for part, dashes in ((known, ""), (ahead, "5 4")):
            style = {"stroke-dasharray": dashes} if dashes else {}
            self._add(
                "polyline", points=self._path(times[part], line[part]), fill="none",
                stroke=_TREND, stroke_width=2, **style,
            )  # fmt: skip

    def _records(self) -> None:
        previous = None
        for times, values in self._of.boots:
            radius = "2.2" if len(times) <= 120 else "1.4"
            for time, value in zip(times.tolist(), values.tolist(), strict=True):
                self._add("circle", cx=self._x(time), cy=self._y(value), r=radius, fill=_RECORD)
            if previous is not None:
                x = self._x((previous + float(times[0])) / 2)
                self._upright(x, "reboot")
            previous = float(times[-1])
        if self._of.last_record <= self._of.now <= self._of.right:
            self._upright(self._x(self._of.now), "now")

    def _upright(self, x: float, words: str) -> None:
        top = _TOP + 20  # below the limit
        self._line((x, top, x, _BOTTOM), stroke_dasharray="2 3", stroke_opacity="0.6")
        self._text(words, x + 4, top + 13, font_size=_SMALL)

    def _limit(self) -> None:
        each = self._of
        if not each.limit:
            return
        if not each.shows_limit:
            self._text(f"{each.limit_words} ↑", _WIDTH - _RIGHT, _TOP - 10, "end")
            return
        y = self._y(each.limit_value)
        self._line((_LEFT, y, _WIDTH - _RIGHT, y), stroke=_LIMIT, stroke_width=2)
        # Words to the left, and later ones above, cross no line.
        self._line((_LEFT, 12, _LEFT + 18, 12), stroke=_LIMIT, stroke_width=2)
        self._text(each.limit_words, _LEFT + 24, 17, font_weight=600)
        for place, (time, words) in enumerate(each.marks):
            x, is_expected = self._x(time), words.startswith("expected")
            style = {} if is_expected else {"stroke_dasharray": "4 3"}
            row = y - 8 - (_LINE - 1) * place
            self._line((x, row - 11, x, _BOTTOM), stroke=_LIMIT, stroke_opacity="0.8", **style)
            self._add("circle", cx=x, cy=y, r="3.5" if is_expected else "2.5", fill=_LIMIT)
            self._text(words, x - 4, row, "end", font_size=_SMALL)

    def _legend(self) -> None:
        y = _HEIGHT - 14
        self._add("circle", cx=_LEFT + 5, cy=y - 4, r="3", fill=_RECORD)
        self._text("records", _LEFT + 14, y)
        x = _LEFT + 90
        if len(self._of.times):
            self._line((x, y - 4, x + 18, y - 4), stroke=_TREND, stroke_width=2)
            self._text("trend", x + 24, y)
            self._add("rect", x=x + 82, y=y - 11, width=18, height=12, fill=_TREND,
                fill_opacity="0.22")  # fmt: skip
            self._text(BAND, x + 106, y)


def _dates(first: float, end: float) -> list[float]:
    """Return round times for the marks of an axis."""
    span, last = end - first, _STEPS[-1]
    fits = (step for step in _STEPS if span / step <= _MAX_DATES)
    step = next(fits, last * np.ceil(span / last / _MAX_DATES))
    moments: list[float] = np.arange(np.ceil(first / step) * step, end, step).tolist()
    return moments


def _date(moment: float, span: float) -> str:
    """Return a time as short as an axis of so many seconds allows."""
    at = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
    return f"{at:%m-%d %H:%M}" if span < _MAX_HOURS else f"{at:%Y-%m-%d}"


def _lines(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _MAX_LINE)
