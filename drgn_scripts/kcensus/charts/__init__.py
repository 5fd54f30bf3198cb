# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts: declarations by analyses, and bars made of them and the table of a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.human import human
from kcensus.results import Result, Unit
from kcensus.results.severity import MIN_BYTES
from kcensus.results.tables import Column, Table
from kcensus.text import printable

COLORS = ("#1664e2", "#e0721b", "#17a595", "#987bc7", "#557038")
"""Colors of the parts of a bar, in order. Each contrasts 3:1 with white and with black; any two
differ for people who are blind to red, green or blue."""
REST = "#8a8f98"
"""Color of memory that no analysis accounts for."""
FREE = "#c9ced6"
"""Color of free memory beside :data:`REST`."""
MAX_NAME = 34
_MAX_BARS, _MAX_STEPS = 10, 100


@dataclass(frozen=True)
class ChartSpec:
    """Horizontal bars, one for each row of a table."""

    name: str
    """Key of the chart; unique in the analysis."""
    table: str
    title: str
    values: tuple[str, ...]
    """Columns to stack, of one unit; missing ones are left out."""
    names: str
    """Column with the names of the bars."""
    is_ordered: bool = False
    """Whether to show all rows, zeros too: steps of a scale."""
    first_color: int = 0
    """Index of the color of the first column; a column has the same color in all charts."""
    measure: str = ""
    """The counted things, if the label of the first column is not enough."""
    sharers: str = ""
    """Column with the number of things that share the bar of a name: of caches merged into one."""
    parts: str = ""
    """Column with the names of the parts of a bar, each as long as its value in the only column of
    ``values``; rows of one bar follow one another."""
    offset: str = ""
    """Column with the start of each bar, of the same unit: bars lie on a common line of time."""


@dataclass(frozen=True)
class RamUse:
    """Memory that an analysis accounts for; no two uses count the same bytes."""

    name: str
    """Uses of an analysis with the same name are one part of the bar."""
    bytes: int
    in_slabs: bool
    """Whether it is a part of the slab pages."""
    is_total: bool = False
    """Whether it is all slab pages, from which the parts are subtracted."""


@dataclass(frozen=True)
class Bar:
    """One bar: its name, the lengths of its parts, and its value in words."""

    name: str
    parts: tuple[float, ...]
    value: str
    start: float = 0.0
    """Start on the scale."""


@dataclass(frozen=True)
class Chart:
    """Bars with a common scale. Names are printable, and as long as they are in the kernel."""

    title: str
    legend: tuple[str, ...]
    """Names of the parts of a bar; empty if each has a single part."""
    bars: tuple[Bar, ...]
    unit: Unit
    colors: tuple[str, ...] = COLORS
    measure: str = ""
    """The counted things; empty for bytes."""
    note: str = ""
    """A remark on missing bars."""


def compares(chart: Chart) -> bool:
    """Return whether a chart compares something, with enough bytes."""
    lengths = [part for bar in chart.bars for part in bar.parts if part]
    longest = max((sum(bar.parts) for bar in chart.bars), default=0)
    least = MIN_BYTES if chart.unit is Unit.BYTES else 1
    return (len(lengths) > 1 or len(chart.bars) > 1) and longest >= least


def chart(result: Result, spec: ChartSpec, most: int = _MAX_BARS) -> Chart:
    """Return a chart; without bars if the result, maybe of another version, lacks its columns.

    :param most: most bars, unless they are steps of a scale
    """
    table = result.tables.get(spec.table)
    columns: Mapping[str, Column] = table.columns if table is not None else {}
    keys = [key for key in spec.values if key in columns]
    if table is None or not keys or not {spec.names, spec.parts, spec.offset} - {""} <= {*columns}:
        return Chart(spec.title, (), (), Unit.COUNT)
    unit = columns[keys[0]].unit
    if spec.parts:
        return _by_part(table, keys[0], spec)
    if not spec.offset:
        names, lengths = _rows(table, keys, spec)
        if some := np.flatnonzero(lengths.sum(axis=0)).tolist():
            keys, lengths = [keys[place] for place in some], lengths[:, some]
    # A column keeps its color if others are missing or zero.
    colors = tuple(COLORS[spec.first_color + spec.values.index(key)] for key in keys)
    labels = tuple(printable(columns[key].heading(key)) for key in keys)
    if spec.offset:
        bars, note = _timeline(table, keys, spec, unit)
        return Chart(spec.title, labels, bars, unit, colors, spec.measure, note)
    shown = _MAX_STEPS if spec.is_ordered else most
    bars = _bars(names, lengths[:shown], unit)
    rest = lengths[shown:].sum(axis=1)
    note = f"and {len(rest):,} more: {in_words(rest.sum(), unit)}" if len(rest) else ""
    measure = "" if unit is Unit.BYTES else spec.measure or labels[0]
    return Chart(
        spec.title, labels if len(spec.values) > 1 else (), bars, unit, colors, measure, note
    )


def _by_part(table: Table, key: str, spec: ChartSpec) -> Chart:
    """Return bars with rows as parts; the longest parts have colors of their own."""
    bars, lengths = _rows(table, [key], replace(spec, is_ordered=True))
    bar, names = pd.factorize(np.array(bars, object))
    part, labels = pd.factorize(np.array([*map(_name, table.frame[spec.parts])], object))
    sums = np.zeros((len(names), len(labels)))
    np.add.at(sums, (bar, part), lengths[:, 0])
    order = _largest(sums.sum(axis=0))
    shown, rest = order[: len(COLORS)], order[len(COLORS) :]
    unit = table.columns[key].unit
    columns = [sums[:, each] for each in shown]
    legend = [labels[each] for each in shown]
    if len(rest):
        columns.append(sums[:, rest].sum(axis=1))
        legend.append(f"{len(rest):,} more")
    stacked = np.stack(columns or [np.zeros(len(names))], axis=1)
    measure = spec.measure or printable(table.columns[key].heading(key))
    colors = (*COLORS[: len(shown)], REST)
    return Chart(
        spec.title, tuple(legend), _bars(names, stacked[:_MAX_STEPS], unit), unit, colors, measure
    )


def _bars(names: Iterable[str], lengths: npt.NDArray[np.float64], unit: Unit) -> tuple[Bar, ...]:
    return tuple(
        Bar(name, tuple(parts), in_words(sum(parts), unit))
        for name, parts in zip(names, lengths.tolist(), strict=False)
    )


def _largest(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Return the places of the sums other than 0, the largest first."""
    return np.argsort(-sums, kind="stable")[: np.count_nonzero(sums)]


def _timeline(
    table: Table, keys: Sequence[str], spec: ChartSpec, unit: Unit
) -> tuple[tuple[Bar, ...], str]:
    """Return the first rows as bars with an offset, and a note about the start and further rows."""
    names, lengths = _rows(table, [*keys, spec.offset], replace(spec, is_ordered=True))
    rows = np.argsort(lengths[:_MAX_BARS, -1], kind="stable").tolist()
    first = float(lengths[rows, -1].min()) if rows else 0.0
    bars = tuple(
        Bar(names[row], tuple(parts), in_words(parts[0], unit), start - first)
        for row, (*parts, start) in zip(rows, lengths[rows].tolist(), strict=True)
    )
    more = len(names) - len(rows)
    note = f"from {in_words(first, unit)} on"
    return bars, note + (f"; {more:,} more in the table" if more > 0 else "")


def _rows(
    table: Table, keys: Sequence[str], spec: ChartSpec
) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return names and lengths of all bars, shape (bars, keys).

    Unless the rows are steps, equal names are one bar, the largest first, without empty ones.
    """
    columns = [pd.to_numeric(table.frame[key], errors="coerce") for key in keys]
    numbers = [column.to_numpy(np.float64, na_value=np.nan) for column in columns]
    values = np.maximum(np.nan_to_num(np.stack(numbers, axis=1), posinf=0), 0)
    names = [*map(_name, table.frame[spec.names])]
    if spec.sharers in table.columns:
        sharers = pd.to_numeric(table.frame[spec.sharers], errors="coerce").fillna(1)
        named = zip(names, sharers.tolist(), strict=True)
        names = [f"{name} + {more - 1:,.0f} merged" if more > 1 else name for name, more in named]
    if spec.is_ordered:
        return names, values
    code, unique = pd.factorize(np.array(names, object))
    sums = np.zeros((len(unique), len(keys)))
    np.add.at(sums, code, values)
    order = _largest(sums.sum(axis=1))
    return [unique[row] for row in order], sums[order]


def _name(value: object) -> str:
    if isinstance(value, str):
        return printable(value)
    return "-" if pd.isna(value) else f"{value:,}"  # type: ignore[call-overload]


def in_words(value: float, unit: Unit) -> str:
    """Return a length for people."""
    return human(round(value) if unit in (Unit.BYTES, Unit.COUNT) else float(value), unit)


def shortened(name: str, longest: int = MAX_NAME) -> str:
    """Shorten a name in the middle: paths and caches differ at their ends."""
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[1 - half :]}"


def shortened_names(names: Iterable[str], longest: int = MAX_NAME) -> list[str]:
    """Shorten the names of one chart; names that differ only in their middles are numbered."""
    every = list(names)
    short = {name: shortened(name, longest) for name in every}
    counts, numbers = Counter(short.values()), Counter[str]()
    for name, words in short.items():
        if counts[words] > 1:
            numbers[words] += 1
            mark = f" #{numbers[words]}"
            short[name] = shortened(name, longest - len(mark)) + mark
    return [short[name] for name in every]
