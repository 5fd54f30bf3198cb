# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bar charts of tables, as SVG that has no scripts, styles or fonts of its own.

The page's content security policy, its two color schemes and a width of 400 pixels decide against
a library: Matplotlib draws letters as outlines in fixed colors and takes half a second to import,
Pygal adds scripts and styles, Altair draws in the browser. Bars are all that the tables need.
Lengths are in percent, so a chart is as wide as its place while its text keeps its size; text has
the color and font of its surroundings. Each chart repeats figures of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from xml.etree import ElementTree

from kcensus.human import human
from kcensus.render.plain import label, plain_column
from kcensus.results import Result, Unit
from kcensus.results.tables import Table
from kcensus.results.thresholds import MIN_BYTES
from kcensus.text import printable

COLORS = ("#3d7cc9", "#d9902f", "#b9504f", "#8065b5", "#3f9b7c")
"""Of the parts of a bar, in order; each contrasts 3:1 with white and with black."""
_MAX_BARS = 10
_MAX_LABEL, _MAX_LEGEND = 34, 22
_LEGEND_HEIGHT, _BAR_HEIGHT, _THICKNESS = 18, 34, 9
_NamedParts = tuple[str, tuple[float, ...]]


@dataclass(frozen=True)
class ChartSpec:
    """Which columns of which table a chart shows."""

    table: str
    title: str
    values: tuple[str, ...]
    """Columns to stack; those that the table lacks are left out."""
    names: str = ""
    """Column with the names of the bars; where empty, each value column is a bar: its sum."""
    is_ordered: bool = False
    """Whether all rows are shown, zeros too: steps of a scale."""
    first_color: int = 0
    """Index in :data:`COLORS`; a column has the same color in all charts."""


CHARTS: Mapping[str, Sequence[ChartSpec]] = {
    "dentries": (
        ChartSpec(
            "directories", "Directories with most negative dentries", ("negative",), "directory"
        ),
        ChartSpec("patterns", "Names with most negative dentries", ("negative",), "pattern"),
    ),
    "kcopyd": (
        ChartSpec(
            "clients",
            "Jobs by state",
            ("callback_jobs", "complete_jobs", "io_jobs", "pages_jobs", "in_flight"),
        ),
        ChartSpec("clients", "Jobs by client", ("jobs",), "device"),
    ),
    "list-lru": (
        ChartSpec(
            "projection",
            "Memory by stage of the list_lru series",
            ("node_array_bytes", "pointer_bytes", "list_bytes", "shrinker_map_bytes"),
            "stage",
            is_ordered=True,
        ),
        ChartSpec("owners", "Memory by owner of the list_lrus", ("bytes",), "owner"),
    ),
    "slab": (
        ChartSpec(
            "caches",
            "Largest slab caches",
            ("active_bytes", "free_bytes", "padding_bytes", "tail_bytes"),
            "cache",
        ),
        ChartSpec(
            "waste",
            "Waste by cache",
            ("free_bytes", "padding_bytes", "tail_bytes"),
            "cache",
            first_color=1,
        ),
        ChartSpec("fill", "Slabs by share of slots in use", ("slabs",), "fill", is_ordered=True),
    ),
}
"""By analysis."""


@dataclass(frozen=True)
class Bar:
    """One bar: its name, the lengths of its parts, and its value in words."""

    name: str
    parts: tuple[float, ...]
    value: str


@dataclass(frozen=True)
class Chart:
    """Bars with a common scale."""

    title: str
    legend: tuple[str, ...]
    """Names of the parts of a bar; empty where each has one."""
    bars: tuple[Bar, ...]
    colors: tuple[str, ...] = COLORS


def charts(result: Result) -> list[Chart]:
    """Return the charts of a result that have something to show."""
    specs = CHARTS.get(result.analysis, ())
    tables = result.tables
    every = (_chart(spec, tables[spec.table]) for spec in specs if spec.table in tables)
    return [chart for chart in every if chart is not None]


def _chart(spec: ChartSpec, table: Table) -> Chart | None:
    """Return the chart of a table; None where it would have less than two bars, or too few bytes.

    Columns can be absent from results that another version of kcensus saved.
    """
    keys = [key for key in spec.values if key in table.columns]
    if not keys or (spec.names and spec.names not in table.columns):
        return None
    labels = tuple(label(key, table.columns[key].label) for key in keys)
    unit = table.columns[keys[0]].unit
    bars = list(_sums(table, keys, labels)) if not spec.names else _rows(table, keys, spec)
    longest = max((sum(parts) for _, parts in bars), default=0)
    if len(bars) < 2 or longest < (MIN_BYTES if unit is Unit.BYTES else 1):
        return None
    return Chart(
        spec.title,
        labels if spec.names and len(keys) > 1 else (),
        tuple(Bar(name, parts, _words(sum(parts), unit)) for name, parts in bars),
        COLORS[spec.first_color :],
    )


def _sums(table: Table, keys: Sequence[str], labels: Sequence[str]) -> Iterator[_NamedParts]:
    """Yield the sum of each column."""
    for key, name in zip(keys, labels, strict=True):
        yield name, (sum(map(_length, plain_column(table.frame[key]))),)


def _rows(table: Table, keys: Sequence[str], spec: ChartSpec) -> list[_NamedParts]:
    """Return the rows, or the largest sums of those with the same name."""
    names = (human(value, Unit.TEXT) for value in plain_column(table.frame[spec.names]))
    columns = ([_length(value) for value in plain_column(table.frame[key])] for key in keys)
    rows = list(zip(names, zip(*columns, strict=True), strict=True))
    if spec.is_ordered:
        return rows
    sums: dict[str, tuple[float, ...]] = {}
    for name, parts in rows:
        before = sums.get(name)
        sums[name] = parts if before is None else tuple(map(add, before, parts))
    largest = sorted(sums.items(), key=lambda bar: -sum(bar[1]))[:_MAX_BARS]
    return [bar for bar in largest if any(bar[1])]


def _length(value: object) -> float:
    return max(value, 0) if isinstance(value, (int, float)) else 0


def _words(value: float, unit: Unit) -> str:
    return human(round(value) if unit in (Unit.BYTES, Unit.COUNT) else value, unit)


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
        words = _short(printable(name), _MAX_LEGEND)
        _add(root, "text", words, x=f"{x}%", y=y + 11, dx=15)
    longest = max((sum(bar.parts) for bar in chart.bars), default=0) or 1
    for index, bar in enumerate(chart.bars):
        group = ElementTree.SubElement(root, "g")
        y = top + index * _BAR_HEIGHT
        _add(group, "title", printable(f"{bar.name}: {bar.value}"))
        _add(group, "text", _short(printable(bar.name)), y=y + 13)
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


def _short(name: str, longest: int = _MAX_LABEL) -> str:
    """Shorten a name in the middle: paths and caches differ at their ends."""
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[1 - half :]}"
