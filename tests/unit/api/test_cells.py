# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results, reports and their tables at a prompt and in cells of a notebook."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest

import kcensus
from kcensus import plots, reports
from kcensus.analyses import analyses
from kcensus.api import answers
from kcensus.api.answers import Report, Result
from kcensus.api.frames import Frame
from kcensus.reports import Section
from kcensus.results import Figure, Unit
from kcensus.results.tables import ALWAYS, DATA, WIDE, Column, Table
from kcensus.results.tables import address as address_column
from tests.unit.pages import HOSTILE, SHOWN, Page, hostile_result
from tests.unit.synthetic import HOSTILE as NAMES
from tests.unit.synthetic import synthetic_result


def is_inert(cell: Page) -> bool:
    hosts = {urlsplit(value).netloc for value in cell.values("href")}
    names = {name for name, _ in cell.attributes}
    return (
        hosts <= {"git.kernel.org", "lore.kernel.org"}
        and not names & {"src", "id", "style", "srcset", "action"}
        and not cell.handlers
        and not set(cell.tags) & {"script", "img", "link", "iframe", "form", "object"}
    )


@pytest.mark.slow
def test_hostile_texts_are_inert() -> None:
    result = hostile_result()
    result.tables["caches"].frame.loc[1, "cache"] = "x" * 4096
    result.tables["caches"].note = HOSTILE
    section = Section("slab", result)
    failed = Section(HOSTILE, None, HOSTILE)
    report = Report(reports.Report(result, [section, failed]), {"slab": Result(result)})
    table = Result(result).tables["caches"]
    by_cache = table.set_index("cache")
    frames = [table, by_cache, by_cache.frame(labels=True), table.frame(labels=True), by_cache.T]
    for frame in (*frames, table.groupby("cache").sum(), table.set_index([*table.columns[:2]])):
        assert not {"\x1b", "\u202e"} & {*repr(frame), *frame._repr_html_()}  # type: ignore[operator]
    for html in (Result(result)._repr_html_(), report._repr_html_(), table._repr_html_()):
        cell = Page(html)
        assert is_inert(cell)
        assert "\x1b" not in html
        assert "\u202e" not in html
        assert len(html) < 20_000  # a name of 4,096 characters is there once: in a tooltip
    assert SHOWN in Page(Result(result)._repr_html_()).words


def test_a_cell_shows_machine_findings_figures_charts_and_tables() -> None:
    target = kcensus.open_target("sample")
    result = kcensus.kcopyd(target)
    cell = Page(result._repr_html_())
    assert is_inert(cell)
    for words in ("475.5 MiB RAM", "kcopyd-unthrottled", "92.4 MiB"):
        assert words in cell.words
    assert {"svg", "table", "details"} <= set(cell.tags)
    assert cell.tags.count("table") == len(result.first_tables)
    assert "More tables: related_slabs" in cell.words


@pytest.mark.slow
def test_a_report_shows_what_matters() -> None:
    report = kcensus.report(kcensus.open_target("sample"))
    cell = Page(report._repr_html_())
    assert is_inert(cell)
    assert "table" not in cell.tags
    for finding in report.findings:
        assert (finding.title in cell.words) == (not finding.part_of), finding.id
    assert len(report._repr_html_()) < 40_000


def test_a_long_table_is_an_excerpt() -> None:
    result = hostile_result()
    rows = range(10_000)
    columns = {"n": (rows, Column(Unit.COUNT)), "active_bytes": (rows, Column(Unit.BYTES))}
    result.tables["caches"] = Table.of("Many", columns)
    cell = Page(Result(result)._repr_html_())
    assert cell.tags.count("tr") == 1 + 20
    assert 'tables["caches"] has all' in cell.words
    assert len(Result(result).tables["caches"]) == 10_000


def test_a_table_shows_units_and_escapes_names() -> None:
    table = Result(synthetic_result()).tables["caches"]
    cell = Page(table._repr_html_())
    assert cell.words.count("ratio") == 1
    for name, shown in NAMES.items():
        assert (name in cell.words) == (name == shown and len(name) <= 50)
        assert (shown in repr(table)) or len(shown) > 50
    assert table["cache"].tolist() == list(NAMES)
    assert list(table.columns)[:2] == ["cache", "objects"]


def test_a_whole_table_has_the_columns_of_a_screen() -> None:
    """None gives way to an ellipsis; selected ones are shown."""
    wide = "x" * 40
    columns: dict[str, tuple[Any, Column]] = {
        name: ([wide], Column(Unit.TEXT, show=show))
        for name, show in (("a", ALWAYS), ("b", WIDE), ("c", DATA), ("d", ALWAYS), ("e", WIDE))
    }
    columns["address"] = np.array([0xFFFF888000000000], np.uint64), address_column("struct page")
    table = answers._frame(Table.of("T", columns))
    with pd.option_context("display.max_columns", 2):
        shown = repr(table)
        assert shown.count(wide) == 4
        assert "0xffff888000000000" in shown
        assert shown.endswith("[1 rows x 6 columns]; not shown: c")
        assert repr(table[["a", "c"]]).count(wide) == 2
        assert "not shown" not in repr(table.drop(columns="c"))


@pytest.fixture
def table() -> Frame:
    columns: dict[str, tuple[Any, Column]] = {
        "name": (["a\u202eb", "c"], Column(Unit.TEXT, "name")),
        "bytes": (np.array([3 << 20, 1536], np.uint64), Column(Unit.BYTES, "size")),
        "small_bytes": ([12, 1023], Column(Unit.BYTES, "size")),
        "share": ([0.12345, float("nan")], Column(Unit.RATIO, "of all")),
        "count": ([1, 2], Column(Unit.COUNT)),
        "maybe_bytes": (pd.array([1 << 31, None], "Int64"), Column(Unit.BYTES, "maybe")),
        "address": (np.array([0xFFFF888000000000, 0], np.uint64), Column(Unit.ADDRESS, "at")),
    }
    return answers._frame(Table.of("T", columns))


def test_a_frame_for_people_is_scaled(table: Frame) -> None:
    shown = table.frame(labels=True, scale=True)
    assert list(shown.columns) == [
        "name", "size (bytes) [MiB]", "size (small_bytes) [B]", "of all [%]", "count",
        "maybe [GiB]", "at",
    ]  # fmt: skip
    assert shown.iloc[0].tolist() == ["a\\u202eb", 3.0, 12, 12.34, 1, 2.0, "0xffff888000000000"]
    assert shown["size (bytes) [MiB]"].iloc[1] == 0.0  # 1.5 KiB, of MiB
    assert shown.isna().iloc[1].sum() == 2


def test_a_frame_is_raw_by_default(table: Frame) -> None:
    pd.testing.assert_frame_equal(table.frame(), pd.DataFrame(table))
    headings = ["name", "size (bytes)", "size (small_bytes)", "of all"]
    assert list(table.frame(labels=True).columns)[:4] == headings
    assert table.frame(labels=True).iloc[0, 1] == 3 << 20
    assert list(table.frame(scale=True).columns)[:2] == ["name", "bytes [MiB]"]
    assert table["bytes"].tolist() == [3 << 20, 1536]


def test_an_excerpt_keeps_units(table: Frame) -> None:
    excerpt = table.query("count == 2")[["name", "bytes"]].frame(labels=True, scale=True)
    assert list(excerpt.columns) == ["name", "size [KiB]"]
    assert excerpt["size [KiB]"].tolist() == [1.5]
    assert list(table.head(0).frame(labels=True, scale=True).columns)[1] == "size (bytes) [B]"
    assert list(Frame({"x": [1]}).frame(labels=True, scale=True).columns) == ["x"]


def test_paths_are_shown_by_addresses_in_hexadecimal_digits() -> None:
    target = kcensus.open_target("sample")
    dentries = kcensus.objects(target, "struct dentry", "d_parent")
    paths = kcensus.paths(target, dentries["d_parent"].unique()[:200])
    few, most = repr(paths[:2]), repr(paths)
    for address, path in paths[:2].items():
        assert f"{address:#x}" in few
        assert str(address) not in few
        assert path in few
    assert few.endswith("dtype: object")
    assert f"{paths.index[-1]:#x}" in most
    assert str(len(paths)) in most.splitlines()[-1]
    assert paths.index.dtype == np.uint64


def test_a_prompt_shows_what_fits() -> None:
    result = synthetic_result()
    result.summary |= {f"figure_{number}": Figure(number) for number in range(99)}
    lines = repr(Result(result)).splitlines()
    assert len(lines) <= 40
    assert "    CRITICAL 61.2% of the dentry slabs is free." in lines
    assert "    caches (9)" in lines
    assert "    … 94 more" in lines
    assert "\x1b" not in "".join(lines)
    # A notebook shows the first tables.
    first, every = Result(synthetic_result(), ("caches",)), Result(synthetic_result())
    first.result.tables["more"] = replace(first.result.tables["caches"], title="Not the first")
    assert "Caches by memory" in first._repr_html_()
    assert "Not the first" not in first._repr_html_()
    assert "\x1b" not in every._repr_html_()


def test_addresses_are_shown_in_hexadecimal_digits() -> None:
    address = np.uint64(0xFFFF888000001000)
    frame = Frame(
        {"pointer": np.full(500, address), "count": np.arange(500, dtype=np.uint64)},
        pd.Index(np.arange(500, dtype=np.uint64) + address, name="address"),
    )
    for shown in (repr(frame), frame._repr_html_()):
        assert shown.count("0xffff8880000011f3") == 1
        assert "0xffff888000001000" in shown
        assert "499" in shown
        assert "500 rows" in shown
        assert "250" not in shown
    assert "0xffff888000001000" in repr(frame.head(1))
    assert "500 rows" not in repr(frame.head(1))
    assert frame["pointer"].iloc[0] == address
    assert isinstance(Result(synthetic_result()).tables["caches"], Frame)


def test_a_parameter_that_an_analysis_lacks_is_not_taken_for_a_bad_capsule() -> None:
    with pytest.raises(TypeError, match="'nosuch'"):
        kcensus.slab(kcensus.open_target("sample"), nosuch=1)


def test_the_package_lists_its_lazy_names() -> None:
    names = {name for name in dir(kcensus) if not name.startswith("_")}
    assert {"objects", "Result", "slab"} <= names
    assert names <= {*kcensus.__all__, *(name.replace("-", "_") for name in analyses())}


@pytest.mark.parametrize("path", [*Path(__file__).parents[3].glob("notebooks/*.py")], ids=str)
def test_notebooks_import_public_names_only(path: Path) -> None:
    imports = [
        (node.module, each.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "kcensus"
        for each in node.names
    ]
    public = {("kcensus", name) for name in (*kcensus.__all__, "plots")}
    assert {*imports} <= public | {("kcensus.plots", name) for name in plots.__all__}
