# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the charts of a result show, however they are drawn.

Each analysis declares its charts (:attr:`~kcensus.analyses.Analysis.charts`); this makes bars of
them. The HTML page draws them as SVG, :mod:`kcensus.plots` with Matplotlib.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses import analyses
from kcensus.human import human
from kcensus.results import MEMORY_USES, Machine, Result, Unit
from kcensus.results.charts import ChartSpec
from kcensus.results.graphs import Picture
from kcensus.results.tables import Column, Table
from kcensus.results.thresholds import MIN_BYTES
from kcensus.text import printable

COLORS = ("#1664e2", "#e0721b", "#17a595", "#987bc7", "#557038")
"""Of the parts of a bar, in order. Each contrasts 3:1 with white and with black; any two differ for
people who are blind to red, green or blue."""
REST = "#8a8f98"
"""Of what no analysis accounts for."""
MAX_NAME = 34
_MAX_BARS, _MAX_STEPS = 10, 100


@dataclass(frozen=True)
class Bar:
    """One bar: its name, the lengths of its parts, and its value in words."""

    name: str
    parts: tuple[float, ...]
    value: str
    start: float = 0.0
    """Where it begins on the scale."""


@dataclass(frozen=True)
class Chart:
    """Bars with a common scale. Names are printable, and as long as they are in the kernel."""

    title: str
    legend: tuple[str, ...]
    """Names of the parts of a bar; empty where each has one."""
    bars: tuple[Bar, ...]
    unit: Unit
    colors: tuple[str, ...] = COLORS
    measure: str = ""
    """What is counted; empty for bytes."""
    note: str = ""
    """What is left out."""


def specs(result: Result) -> Sequence[ChartSpec]:
    """Return the declared charts of the analysis of a result."""
    known = analyses().get(result.analysis)
    return known.chart_specs() if known else ()


def charts(result: Result) -> list[Chart]:
    """Return the charts of a result that say something: a comparison, of enough bytes."""
    every = (chart(result, spec) for spec in specs(result))
    return [each for each in every if _compares(each)]


def picture(result: Result) -> Picture:
    """Return the picture of the graph of a result; empty where there is nothing to draw."""
    known = analyses().get(result.analysis)
    return (known.picture_of(result) if known else None) or Picture()


def _compares(chart: Chart) -> bool:
    lengths = [part for bar in chart.bars for part in bar.parts if part]
    longest = max((sum(bar.parts) for bar in chart.bars), default=0)
    least = MIN_BYTES if chart.unit is Unit.BYTES else 1
    return (len(lengths) > 1 or len(chart.bars) > 1) and longest >= least


def chart(result: Result, spec: ChartSpec) -> Chart:
    """Return a chart; without bars where the result lacks the table or its columns.

    Another version of kcensus may have saved the result.
    """
    table = result.tables.get(spec.table)
    columns: Mapping[str, Column] = table.columns if table is not None else {}
    keys = [key for key in spec.values if key in columns]
    if table is None or not keys or not {spec.names, spec.parts, spec.offset} - {""} <= {*columns}:
        return Chart(spec.title, (), (), Unit.COUNT)
    unit = columns[keys[0]].unit
    if spec.parts:
        return _by_part(table, keys[0], spec)
    if spec.offset:
        return _timeline(table, keys, spec)
    # A column has the same color where others are missing.
    colors = tuple(COLORS[spec.first_color + spec.values.index(key)] for key in keys)
    names, lengths = _rows(table, keys, spec)
    total = lengths.sum(axis=1)
    left_out = slice(_MAX_STEPS, None) if spec.is_ordered else slice(_MAX_BARS, None)
    bars = tuple(
        Bar(name, tuple(parts), in_words(sum(parts), unit))
        for name, parts in zip(names, lengths[: left_out.start].tolist(), strict=False)
    )
    rest = total[left_out]
    note = f"and {len(rest):,} more: {in_words(rest.sum(), unit)}" if len(rest) else ""
    labels = tuple(printable(columns[key].label or key.replace("_", " ")) for key in keys)
    legend = labels if len(keys) > 1 else ()
    measure = "" if unit is Unit.BYTES else spec.measure or labels[0]
    return Chart(spec.title, legend, bars, unit, colors, measure, note)


def _by_part(table: Table, key: str, spec: ChartSpec) -> Chart:
    """Return bars whose parts are rows: those of the longest parts have colors of their own."""
    _, lengths = _rows(table, [key], replace(spec, is_ordered=True))
    bar, names = pd.factorize(np.array([_name(value) for value in table.frame[spec.names]], object))
    part, labels = pd.factorize(np.array([_name(each) for each in table.frame[spec.parts]], object))
    sums = np.zeros((len(names), len(labels)))
    np.add.at(sums, (bar, part), lengths[:, 0])
    total = sums.sum(axis=0)
    order = np.argsort(-total, kind="stable")[: np.count_nonzero(total)]
    shown, rest = order[: len(COLORS)], order[len(COLORS) :]
    unit = table.columns[key].unit
    columns = [sums[:, each] for each in shown]
    legend = [labels[each] for each in shown]
    if len(rest):
        columns.append(sums[:, rest].sum(axis=1))
        legend.append(f"{len(rest):,} more")
    stacked = np.stack(columns or [np.zeros(len(names))], axis=1)
    bars = tuple(
        Bar(str(name), tuple(parts), in_words(sum(parts), unit))
        for name, parts in zip(names[:_MAX_STEPS], stacked.tolist(), strict=False)
    )
    measure = spec.measure or printable(table.columns[key].label)
    return Chart(spec.title, tuple(legend), bars, unit, (*COLORS[: len(shown)], REST), measure)


def _timeline(table: Table, keys: Sequence[str], spec: ChartSpec) -> Chart:
    """Return bars that begin where a column says; the first rows of the table, by their starts."""
    names, lengths = _rows(table, [*keys, spec.offset], replace(spec, is_ordered=True))
    rows = np.argsort(lengths[:_MAX_BARS, -1], kind="stable").tolist()
    unit = table.columns[keys[0]].unit
    first = float(lengths[rows, -1].min()) if rows else 0.0
    bars = tuple(
        Bar(
            names[row],
            tuple(lengths[row, :-1].tolist()),
            in_words(lengths[row, 0], unit),
            float(lengths[row, -1]) - first,
        )
        for row in rows
    )
    legend = tuple(printable(table.columns[key].label or key) for key in keys)
    colors = tuple(COLORS[spec.first_color + spec.values.index(key)] for key in keys)
    more = len(names) - len(rows)
    note = f"from {in_words(first, unit)} on"
    note += f"; {more:,} more in the table" if more > 0 else ""
    return Chart(spec.title, legend, bars, unit, colors, spec.measure, note)


def totals(result: Result, spec: ChartSpec) -> tuple[Unit, dict[str, float]]:
    """Return the unit of a chart and the lengths of all its bars by name, the largest first."""
    shape = chart(result, spec)
    if not shape.bars:
        return shape.unit, {}
    table = result.tables[spec.table]
    keys = [key for key in spec.values if key in table.columns]
    names, lengths = _rows(table, keys, spec)
    return shape.unit, dict(zip(names, lengths.sum(axis=1).tolist(), strict=True))


def _rows(
    table: Table, keys: Sequence[str], spec: ChartSpec
) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return names and lengths of all bars: shape (bars, keys).

    Rows with the same name are one bar, the largest first, without those of length 0; unless the
    rows are steps.
    """
    columns = [pd.to_numeric(table.frame[key], errors="coerce") for key in keys]
    numbers = [column.to_numpy(np.float64, na_value=np.nan) for column in columns]
    values = np.maximum(np.nan_to_num(np.stack(numbers, axis=1), posinf=0), 0)
    names = [_name(value) for value in table.frame[spec.names]]
    if spec.is_ordered:
        return names, values
    code, unique = pd.factorize(np.array(names, object))
    sums = np.zeros((len(unique), len(keys)))
    np.add.at(sums, code, values)
    total = sums.sum(axis=1)
    order = np.argsort(-total, kind="stable")[: np.count_nonzero(total)]
    return [unique[row] for row in order], sums[order]


def _name(value: object) -> str:
    if isinstance(value, str):
        return printable(value)
    return "-" if pd.isna(value) else f"{value:,}"  # type: ignore[call-overload]


def in_words(value: float, unit: Unit) -> str:
    """Return a length for people."""
    return human(round(value) if unit in (Unit.BYTES, Unit.COUNT) else float(value), unit)


def memory_use(machine: Machine) -> Chart:
    """Return one bar: what RAM is used for by the kernel's own counters, free memory at the end."""
    memory = dict(machine.memory)
    free = memory.pop("free", 0)
    slabs = memory.pop("slab_reclaimable", 0) + memory.pop("slab_unreclaimable", 0)
    lengths = {"slabs": slabs}
    for name in ("anonymous", "page_cache", "shmem"):
        lengths[MEMORY_USES[name]] = memory.pop(name, 0)
    lengths["other kernel memory"] = sum(memory.values())
    lengths["free"] = free
    return _ram_bar("RAM by use", lengths, sum(lengths.values()), COLORS)


def _ram_bar(
    title: str, lengths: Mapping[str, int], whole: int, colors: Sequence[str], note: str = ""
) -> Chart:
    legend = tuple(f"{name}: {human(size, Unit.BYTES)}" for name, size in lengths.items())
    bar = Bar("RAM", tuple(lengths.values()), human(whole, Unit.BYTES))
    return Chart(title, legend, (bar,), Unit.BYTES, (*colors, REST), note=note)


def ram_use(results: Mapping[str, Result], ram_bytes: int, failed: Collection[str] = ()) -> Chart:
    """Return one bar: what the analyses account for of the RAM, the rest at the end.

    Parts of the slab pages are taken out of them, so no byte is counted twice. Results without a
    declaration of uses (:attr:`~kcensus.analyses.Analysis.ram`) add nothing. The uses of an
    analysis have the same color on every machine.

    :param failed: analyses without a result
    """
    known = analyses()
    users = [name for name, analysis in known.items() if analysis.ram]
    # Strict, as an analysis more needs another color, too.
    color_of = dict(zip(users, COLORS, strict=True))
    declared = {name: known[name].ram_of(results[name]) for name in users if name in results}
    uses = [use for each in declared.values() for use in each]
    whole = sum(use.bytes for use in uses if use.is_total)
    parts = [use for use in uses if use.in_slabs and not use.is_total]
    excess = sum(use.bytes for use in parts) - whole
    others = max(-excess, 0)
    notes = [f"failed analyses count as not analysed: {', '.join(failed)}"] if failed else []
    if whole and excess > 0:
        notes.append(f"parts exceed the slab pages by {human(excess, Unit.BYTES)}")
    if any(result.gaps for result in results.values()):
        notes.append("what could not be read counts as not analysed")
    sizes: defaultdict[tuple[str, str], int] = defaultdict(int)
    for user, each in declared.items():
        for use in each:
            name = ("other slabs" if parts else "slabs") if use.is_total else use.name
            sizes[color_of[user], name] += others if use.is_total else use.bytes
    shown = sorted((pair for pair in sizes.items() if pair[1] > 0), key=lambda pair: -pair[1])
    lengths = {name: size for (_, name), size in shown}
    colors = [color for (color, _), _ in shown]
    lengths["not analysed"] = max(ram_bytes - sum(lengths.values()), 0)
    return _ram_bar("RAM that is analysed", lengths, ram_bytes, colors, "; ".join(notes))


def shortened(name: str, longest: int = MAX_NAME) -> str:
    """Shorten a name in the middle: paths and caches differ at their ends."""
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[1 - half :]}"


def shortened_names(names: Iterable[str], longest: int = MAX_NAME) -> list[str]:
    """Shorten names for one chart; those that differ in their middles alone are numbered."""
    every = list(names)
    short = {name: shortened(name, longest) for name in every}
    counts, numbers = Counter(short.values()), Counter[str]()
    for name, words in short.items():
        if counts[words] > 1:
            numbers[words] += 1
            mark = f" #{numbers[words]}"
            short[name] = shortened(name, longest - len(mark)) + mark
    return [short[name] for name in every]
