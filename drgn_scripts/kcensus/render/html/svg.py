# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts as SVG that has no scripts, styles or fonts of its own.

The page's content security policy, its two color schemes and a width of 400 pixels decide against
a library: Matplotlib draws letters as outlines in fixed colors and takes half a second to import,
Pygal adds scripts and styles, Altair draws in the browser. Bars are all that the tables need.
Lengths are in percent, so a chart is as wide as its place while its text keeps its size; text has
the color and font of its surroundings. Each chart repeats figures of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from kcensus.charts import COLORS, Chart, shortened
from kcensus.text import printable

_MAX_LEGEND = 22
_LEGEND_HEIGHT, _BAR_HEIGHT, _THICKNESS = 18, 34, 9


def svg(chart: Chart) -> str:
    """Return a chart as an ``<svg>`` element, names in it escaped."""
    lines = (len(chart.legend) + 1) // 2
    top = lines * _LEGEND_HEIGHT
    root = _root(top + len(chart.bars) * _BAR_HEIGHT)
    _add(root, "title", printable(chart.title))
    _add(root, "desc", printable("; ".join(f"{bar.name}: {bar.value}" for bar in chart.bars)))
    for index, name in enumerate(chart.legend):
        x, y = 50 * (index % 2), index // 2 * _LEGEND_HEIGHT
        _add(root, "rect", x=f"{x}%", y=y + 2, width=10, height=10, fill=chart.colors[index])
        # In SVG, a percentage cannot be shifted by pixels except by dx.
        words = shortened(printable(name), _MAX_LEGEND)
        _add(root, "text", words, x=f"{x}%", y=y + 11, dx=15)
    longest = max((sum(bar.parts) for bar in chart.bars), default=0) or 1
    for index, bar in enumerate(chart.bars):
        group = ElementTree.SubElement(root, "g")
        y = top + index * _BAR_HEIGHT
        _add(group, "title", printable(f"{bar.name}: {bar.value}"))
        _add(group, "text", shortened(printable(bar.name)), y=y + 13)
        _add(group, "text", printable(bar.value), x="100%", y=y + 13, **{"text-anchor": "end"})
        _stack(group, [100 * part / longest for part in bar.parts], chart.colors, y + 18)
    return ElementTree.tostring(root, encoding="unicode")


def stack(parts: Sequence[float]) -> str:
    """Return one stacked bar, as long as its place is wide, without text."""
    root = _root(_THICKNESS)
    root.set("aria-hidden", "true")
    whole = sum(parts) or 1
    _stack(root, [100 * part / whole for part in parts], COLORS, 0)
    return ElementTree.tostring(root, encoding="unicode")


def _stack(
    parent: ElementTree.Element, shares: Sequence[float], colors: Sequence[str], y: int
) -> None:
    """Add the parts of a bar side by side; shares in percent of the width."""
    place = {"y": y, "height": _THICKNESS}
    _add(parent, "rect", **place, width="100%", fill="currentColor", opacity=0.08)
    x = 0.0
    for share, color in zip(shares, colors, strict=False):
        if share:
            _add(parent, "rect", **place, x=f"{x:.2f}%", width=f"{share:.2f}%", fill=color)
        x += share


def _root(height: int) -> ElementTree.Element:
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "font-size": "13"}
    return ElementTree.Element("svg", attributes, width="100%", height=str(height))


def _add(parent: ElementTree.Element, tag: str, words: str = "", /, **attributes: object) -> None:
    values = {name: str(value) for name, value in attributes.items()}
    if tag == "text":
        values["fill"] = "currentColor"
    ElementTree.SubElement(parent, tag, values).text = words or None
