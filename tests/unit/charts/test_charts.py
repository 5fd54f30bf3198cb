# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts show what the tables of a result say."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from kcensus import charts
from kcensus.analyses import analyses
from kcensus.analyses.drawings import charts as drawn_charts
from kcensus.analyses.drawings import ram_use
from kcensus.charts import COLORS, FREE, REST, ChartSpec
from kcensus.results import Gap, Result, Unit
from kcensus.results.tables import Column, Table
from tests.unit.synthetic import HOSTILE, figures


def result_with(analysis: str, table: str, **columns: tuple[Any, Unit]) -> Result:
    declared = {key: (values, Column(unit)) for key, (values, unit) in columns.items()}
    return Result(analysis, "x", "x", tables={table: Table.of(table, declared)})


def test_every_chart_shows_columns_of_its_table() -> None:
    declared = [(each, spec) for each in analyses().values() for spec in each.chart_specs()]
    assert len(declared) >= 8
    for analysis, spec in declared:
        columns = {table.name: table for table in analysis.tables()}[spec.table].columns
        assert {*spec.values, spec.names, spec.sharers} - {""} <= set(columns), spec
        assert len({columns[key].unit for key in spec.values}) == 1, spec
        assert spec.first_color + len(spec.values) <= len(COLORS)
    names = [(analysis.name, spec.name) for analysis, spec in declared]
    assert len(set(names)) == len(names)


def test_rows_of_the_same_name_are_one_bar() -> None:
    result = result_with(
        "list-lru",
        "owners",
        owner=(["tmpfs", "xfs", "tmpfs", "aio"], Unit.TEXT),
        bytes=([1 << 20, 5 << 20, 6 << 20, 0], Unit.BYTES),
    )
    (chart,) = drawn_charts(result)
    assert [(bar.name, bar.parts, bar.value) for bar in chart.bars] == [
        ("tmpfs", (7 << 20,), "7.0 MiB"),
        ("xfs", (5 << 20,), "5.0 MiB"),
    ]
    assert (chart.legend, chart.note) == ((), "")


def test_what_does_not_fit_is_summed_up() -> None:
    names, negative = [f"/{row}" for row in range(10_000)], (np.arange(10_000), Unit.COUNT)
    result = result_with("dentries", "directories", directory=(names, Unit.TEXT), negative=negative)
    (chart,) = drawn_charts(result)
    assert [bar.parts for bar in chart.bars] == [(9_999 - row,) for row in range(10)]
    assert chart.note == f"and 9,989 more: {sum(range(9_990)):,}"  # one has none


def test_steps_keep_their_order_and_zeros() -> None:
    result = result_with(
        "slab", "fill", fill=(["empty", "1-24%", "full"], Unit.TEXT), slabs=([3, 0, 4], Unit.COUNT)
    )
    (chart,) = drawn_charts(result)
    shown = [(bar.name, bar.value) for bar in chart.bars]
    assert shown == [("empty", "3"), ("1-24%", "0"), ("full", "4")]


@pytest.mark.parametrize(
    ("jobs", "io_jobs", "shown"),
    [([0], [0], 0), ([80], [0], 0), ([80], [1], 1), ([8, 8], [0, 0], 1)],
)
def test_a_page_has_charts_that_compare(jobs: list[int], io_jobs: list[int], shown: int) -> None:
    result = result_with(
        "kcopyd",
        "clients",
        device=([f"snapshot {row}" for row in range(len(jobs))], Unit.TEXT),
        in_flight=(jobs, Unit.COUNT),
        io_jobs=(io_jobs, Unit.COUNT),
    )
    assert len(drawn_charts(result)) == shown


def test_values_that_are_no_lengths_count_as_zero() -> None:
    spec = ChartSpec("x", "x", "X", ("a",), "name")
    values = pd.array([1, None, 3], "Int64")
    result = result_with("x", "x", name=(["a", "b", None], Unit.TEXT), a=(values, Unit.COUNT))
    assert [bar.name for bar in charts.chart(result, spec).bars] == ["-", "a"]
    floats = [float("nan"), float("inf"), -1.0]
    result = result_with("x", "x", name=(["a", "b", "c"], Unit.TEXT), a=(floats, Unit.COUNT))
    assert charts.chart(result, spec).bars == ()
    assert charts.chart(Result("x", "x", "x"), spec).bars == ()
    # A column has the same color where others are missing.
    spec = ChartSpec("x", "x", "X", ("a", "b"), "name")
    result = result_with("x", "x", name=(["n"], Unit.TEXT), b=([1], Unit.COUNT))
    assert charts.chart(result, spec).colors == (COLORS[1],)


def ram_results(**sizes: dict[str, int]) -> dict[str, Result]:
    return {name: Result(name, "x", "x", summary=figures(**each)) for name, each in sizes.items()}


def test_ram_use_counts_no_byte_twice() -> None:
    results = ram_results(
        slab={"slab_bytes": 1000},
        dentries={"slab_bytes": 300},
        kcopyd={"job_bytes": 450, "page_bytes": 70},
        memcgs={"shmem_bytes": 20, "per_cpu_bytes": 5, "structure_bytes": 99},
    )
    results["list-lru"] = result_with(
        "list-lru",
        "structures",
        place=(["kmalloc-32", "vmalloc", "unknown"], Unit.TEXT),
        bytes=([40, 60, 999], Unit.BYTES),
    )
    chart = ram_use(results, 4000)
    (bar,) = chart.bars
    assert dict(zip(chart.legend, bar.parts, strict=True)) == {
        "kcopyd jobs and pages: 520 B": 450 + 70,
        "dentries: 300 B": 300,
        "other slabs: 210 B": 1000 - 300 - 450 - 40,
        "list_lrus: 100 B": 40 + 60,
        "offline memory cgroups: 25 B": 20 + 5,
        "not analysed: 2.8 KiB": 4000 - 1155,
    }
    assert sum(bar.parts) == 4000
    assert {*chart.colors} == {*COLORS, REST}
    # Free memory is known.
    with_free = ram_use(results, 4000, free=1000)
    assert with_free.legend[-2:] == ("not analysed: 1.8 KiB", "free: 1,000 B")
    assert with_free.bars[0].parts[-2:] == (4000 - 1155 - 1000, 1000)
    assert with_free.colors[-2:] == (REST, FREE)


def test_a_use_of_ram_has_the_same_color_on_every_machine() -> None:
    machines = [
        ram_results(slab={"slab_bytes": 10}, dentries={"slab_bytes": 1}, kcopyd={"job_bytes": 2}),
        ram_results(slab={"slab_bytes": 10}, dentries={"slab_bytes": 7}, kcopyd={"job_bytes": 1}),
        ram_results(slab={"slab_bytes": 10}, kcopyd={"page_bytes": 3}),
    ]
    seen = {
        (name.partition(":")[0].removeprefix("other "), color)
        for shown in (ram_use(results, 100) for results in machines)
        for name, color in zip(shown.legend, shown.colors, strict=True)
    }
    uses = sorted(name for name, _ in seen)
    assert uses == ["dentries", "kcopyd jobs and pages", "not analysed", "slabs"]
    assert len({color for _, color in seen}) == 4


def test_names_are_printable() -> None:
    spec = ChartSpec("x", "x", "X", ("a",), "name", is_ordered=True)
    # The string dtype of pandas rejects lone surrogates.
    texts, lengths = pd.Series([*HOSTILE], dtype=object), range(len(HOSTILE))
    result = result_with("x", "x", name=(texts, Unit.TEXT), a=(lengths, Unit.COUNT))
    assert [bar.name for bar in charts.chart(result, spec).bars] == list(HOSTILE.values())


def test_shortened_names_of_a_chart_differ() -> None:
    start, end = "/var/lib/containers/storage/", "/merged/usr/lib/python3/site-packages"
    every = [f"{start}{middle}{end}" for middle in "aba"]
    shown = charts.shortened_names([*every, "/tmp"])
    assert shown[0] == shown[2] != shown[1]
    assert [name[-3:] for name in shown[:2]] == [" #1", " #2"]
    assert shown[3] == "/tmp"
    assert charts.MAX_NAME - 1 <= max(map(len, shown)) <= charts.MAX_NAME
    assert charts.shortened_names(every[:1]) == [charts.shortened(every[0])]


def test_ram_use_without_the_census_of_slabs_and_with_too_much() -> None:
    chart = ram_use(ram_results(dentries={"slab_bytes": 300}, patches={}), 1000)
    assert chart.legend == ("dentries: 300 B", "not analysed: 700 B")
    assert chart.colors == (COLORS[0], REST)
    results = ram_results(slab={"slab_bytes": 100}, dentries={"slab_bytes": 300})
    results["dentries"].gaps = [Gap("pages", "filtered", 1, "")]
    note = ram_use(results, 1000, ["memcgs"]).note
    assert all(words in note for words in ("memcgs", "200 B", "unreadable"))


_LUMINANCE = (0.2126, 0.7152, 0.0722)
_TO_XYZ = ((0.4124, 0.3576, 0.1805), _LUMINANCE, (0.0193, 0.1192, 0.9505))
# "A Physiologically-based Model for Simulation of Color Vision Deficiency" (Machado et al., 2009).
_VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "no green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def linear(color: str) -> npt.NDArray[np.float64]:
    channels = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(light: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a color in CIELAB, where distances are as large as they look."""
    x, y, z = np.cbrt(_TO_XYZ @ np.clip(light, 0, 1) / np.array([0.9505, 1, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("color", [*COLORS, REST])
def test_colors_contrast_with_white_and_black(color: str) -> None:
    luminance = linear(color) @ _LUMINANCE
    assert 1.05 / (luminance + 0.05) >= 3
    assert (luminance + 0.05) / 0.05 >= 3


@pytest.mark.parametrize("vision", _VISION)
def test_colors_differ_for_the_color_blind(vision: str) -> None:
    seen = [lab(np.array(_VISION[vision]) @ linear(color)) for color in COLORS]
    distances = [np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)]
    assert min(distances) > 20


def test_a_bar_of_merged_caches_says_so_and_a_part_of_zeros_is_left_out() -> None:
    columns = {
        "name": (["a", "b"], Column(Unit.TEXT)),
        "used": ([3, 2], Column(Unit.BYTES)),
        "free": ([0, 0], Column(Unit.BYTES)),
        "tail": ([1, 0], Column(Unit.BYTES)),
        "users": ([8, 1], Column()),
    }
    result = Result("x", "x", "x", tables={"t": Table.of("T", columns)})
    spec = ChartSpec("c", "t", "C", ("used", "free", "tail"), "name", sharers="users")
    made = charts.chart(result, spec)
    assert [bar.name for bar in made.bars] == ["a + 7 merged", "b"]
    assert made.legend == ("used", "tail")
    assert made.colors == (COLORS[0], COLORS[2])
    # One part alone is named, too: the other ones are zero.
    columns["tail"] = ([0, 0], Column(Unit.BYTES))
    result = Result("x", "x", "x", tables={"t": Table.of("T", columns)})
    assert charts.chart(result, spec).legend == ("used",)
