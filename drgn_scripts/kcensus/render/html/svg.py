# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts as SVG without scripts, styles or fonts of its own, as the page's policy demands.

Lengths are in percent: a chart is as wide as its place, with the text of its surroundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from markupsafe import Markup

from kcensus.charts import COLORS, Chart, shortened_names
from kcensus.text import printable

_MAX_LEGEND = 22
_LEGEND_HEIGHT, _BAR_HEIGHT, _THICKNESS = 18, 34, 9
_LINES = dict(zip(COLORS[1:], ((2, ""), (9, "1.5 2"), (4, "3 3"), (5, "")), strict=True))
"""Width and dashes of the line along a part, by color: they distinguish parts on paper without
colors."""


def svg(chart: Chart) -> Markup:
    """Return a chart as an ``<svg>`` element, names in it escaped."""
    lines = (len(chart.legend) + 1) // 2
    top = lines * _LEGEND_HEIGHT
    root = _root(top + len(chart.bars) * _BAR_HEIGHT)
    _add(root, "title", printable(chart.title))
    _add(root, "desc", printable("; ".join(f"{bar.name}: {bar.value}" for bar in chart.bars)))
    entries = shortened_names(map(printable, chart.legend), _MAX_LEGEND)
    for index, words in enumerate(entries):
        x, y = 50 * (index % 2), index // 2 * _LEGEND_HEIGHT
        _swatch(root, chart.colors[index], x, y + 2)
        # In SVG, a percentage cannot be shifted by pixels except by dx.
        _add(root, "text", words, x=f"{x}%", y=y + 11, dx=15)
    longest = max((bar.start + sum(bar.parts) for bar in chart.bars), default=0) or 1
    names = shortened_names(printable(bar.name) for bar in chart.bars)
    for index, (name, bar) in enumerate(zip(names, chart.bars, strict=True)):
        group = ElementTree.SubElement(root, "g")
        y = top + index * _BAR_HEIGHT
        _add(group, "title", printable(f"{bar.name}: {bar.value}"))
        _add(group, "text", name, y=y + 13)
        _add(group, "text", printable(bar.value), x="100%", y=y + 13, **{"text-anchor": "end"})
        shares = [100 * part / longest for part in bar.parts]
        _stack(group, shares, chart.colors, y + 18, 100 * bar.start / longest)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def swatch(color: str) -> Markup:
    """Return the mark of a part in a legend."""
    root = _root(10, "10")
    root.set("aria-hidden", "true")
    _swatch(root, color, 0, 0)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def stack(parts: Sequence[float]) -> Markup:
    """Return one stacked bar, as long as its place is wide, without text."""
    root = _root(_THICKNESS)
    root.set("aria-hidden", "true")
    whole = sum(parts) or 1
    _stack(root, [100 * part / whole for part in parts], COLORS, 0)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _swatch(parent: ElementTree.Element, color: str, x: int, y: int) -> None:
    # A nested element, as a line cannot end at a percentage and some pixels.
    square = ElementTree.SubElement(parent, "svg", x=f"{x}%", y=str(y), width="10", height="10")
    _add(square, "rect", width=10, height=10, fill=color)
    _add_line(square, color, (0, 10), 5)


def _stack(
    parent: ElementTree.Element,
    shares: Sequence[float],
    colors: Sequence[str],
    y: int,
    start: float = 0.0,
) -> None:
    """Add the parts of a bar side by side; shares and start in percent of the width."""
    place = {"y": y, "height": _THICKNESS}
    _add(parent, "rect", **place, width="100%", fill="currentColor", opacity=0.08)
    x = start
    for share, color in zip(shares, colors, strict=False):
        if share:
            _add(parent, "rect", **place, x=f"{x:.2f}%", width=f"{share:.2f}%", fill=color)
            _add_line(parent, color, (f"{x:.2f}%", f"{x + share:.2f}%"), y + _THICKNESS / 2)
        x += share


def _add_line(
    parent: ElementTree.Element, color: str, ends: tuple[object, object], y: float
) -> None:
    """Add the line along a part, which is shown on paper alone."""
    if color not in _LINES:
        return
    width, dashes = _LINES[color]
    style = {"class": "printed", "stroke": "#fff", "stroke-width": width}
    if dashes:
        style["stroke-dasharray"] = dashes
    _add(parent, "line", x1=ends[0], x2=ends[1], y1=y, y2=y, **style)


def _root(height: int, width: str = "100%") -> ElementTree.Element:
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "font-size": "13"}
    return ElementTree.Element("svg", attributes, width=width, height=str(height))


def _add(parent: ElementTree.Element, tag: str, words: str = "", /, **attributes: object) -> None:
    values = {name: str(value) for name, value in attributes.items()}
    if tag == "text":
        values["fill"] = "currentColor"
    ElementTree.SubElement(parent, tag, values).text = words or None
