# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a cell of a notebook shows of results, reports and their tables."""

from __future__ import annotations

import doctest
from html.parser import HTMLParser
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest

import kcensus
from kcensus import reports, results
from kcensus.api import answers
from kcensus.api.answers import Report, Result
from kcensus.api.frames import Frame
from kcensus.reports import Section
from kcensus.results import Finding, Machine, Remedy, Severity, Unit
from kcensus.results.tables import Column, Table
from tests.unit.synthetic import HOSTILE as NAMES
from tests.unit.synthetic import synthetic_result

HOSTILE = "<script>alert(1)</script> \x1b[31m\n \u202e&amp; \"' </style></svg><img src=//x>"
SHOWN = "<script>alert(1)</script> \\x1b[31m\\x0a \\u202e&amp; \"' </style></svg><img src=//x>"


class Cell(HTMLParser):
    """The tags of an output and the text outside of its style sheet."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += "" if self.tags[-1:] == ["style"] and "{" in data else data


def is_inert(cell: Cell) -> bool:
    """Return whether an output runs nothing, loads nothing, and leaves the rest of the page be."""
    hosts = {urlsplit(value or "").netloc for name, value in cell.attributes if name == "href"}
    names = {name for name, _ in cell.attributes}
    return (
        hosts <= {"git.kernel.org", "lore.kernel.org"}
        and not names & {"src", "id", "style", "srcset", "action"}
        and not any(name.startswith("on") for name in names)
        and not set(cell.tags) & {"script", "img", "link", "iframe", "form", "object"}
    )


def hostile_result() -> results.Result:
    """Return a result with a hostile text in every place."""
    result = results.Result(
        "slab", HOSTILE, HOSTILE, machine=Machine(host=HOSTILE, kernel=HOSTILE, ram_bytes=1 << 30)
    )
    remedy = Remedy(effect=HOSTILE, command=HOSTILE, risk=HOSTILE, undo=HOSTILE, until=HOSTILE)
    result.findings = [
        Finding(
            id=f"x:{HOSTILE}",
            severity=Severity.WARNING,
            title=HOSTILE,
            evidence=HOSTILE,
            memory={HOSTILE: 1 << 24, "other": 1},
            remedies=(remedy, remedy),
            patch="list-lru-xarray",
        )
    ]
    columns = {
        "cache": ([HOSTILE, "x" * 4096], Column(Unit.TEXT, HOSTILE, help=HOSTILE)),
        "active_bytes": ([1 << 24, 1 << 23], Column(Unit.BYTES)),
    }
    result.tables["caches"] = Table.of(HOSTILE, columns)
    result.tables["caches"].note = HOSTILE
    return result


def test_hostile_texts_are_inert() -> None:
    result = hostile_result()
    section = Section("slab", "", result)
    failed = Section(HOSTILE, HOSTILE, None, HOSTILE)
    report = Report(reports.Report(result, [section, failed]), {"slab": Result(result)})
    table = Result(result).tables["caches"]
    frames = [
        table,
        table.set_index("cache"),
        table.set_index("cache").frame(labels=True),
        table.frame(labels=True),
        table.groupby("cache").sum(),
        table.set_index([*table.columns[:2]]),
        table.set_index("cache").T,
    ]
    for frame in frames:
        assert not {"\x1b", "\u202e"} & {*repr(frame), *frame._repr_html_()}  # type: ignore[operator]
    for html in (Result(result)._repr_html_(), report._repr_html_(), table._repr_html_()):
        cell = Cell(html)
        assert is_inert(cell)
        assert "\x1b" not in html
        assert "\u202e" not in html
        assert len(html) < 20_000  # a name of 4,096 characters is there once: in a tooltip
    assert SHOWN in Cell(Result(result)._repr_html_()).words


def test_a_cell_shows_machine_findings_figures_charts_and_tables() -> None:
    target = kcensus.open_target("sample")
    result = kcensus.kcopyd(target)
    cell = Cell(result._repr_html_())
    assert is_inert(cell)
    assert "475.5 MiB RAM" in cell.words
    assert "kcopyd-unthrottled" in cell.words
    assert "92.4 MiB" in cell.words
    assert {"svg", "table", "details"} <= set(cell.tags)
    assert cell.tags.count("table") == len(result.first_tables)
    assert "More tables: related_slabs" in cell.words


def test_a_report_shows_what_matters() -> None:
    report = kcensus.report(kcensus.open_target("sample"))
    cell = Cell(report._repr_html_())
    assert is_inert(cell)
    assert "table" not in cell.tags
    for name, finding in report.findings:
        assert (finding.title in cell.words) == (not finding.part_of), name
    assert len(report._repr_html_()) < 40_000


def test_a_long_table_is_an_excerpt() -> None:
    result = hostile_result()
    rows = range(10_000)
    columns = {"n": (rows, Column(Unit.COUNT)), "active_bytes": (rows, Column(Unit.BYTES))}
    result.tables["caches"] = Table.of("Many", columns)
    cell = Cell(Result(result)._repr_html_())
    assert cell.tags.count("tr") == 1 + 20
    assert 'tables["caches"] has all' in cell.words
    assert len(Result(result).tables["caches"]) == 10_000


def test_a_table_shows_units_and_escapes_names() -> None:
    table = Result(synthetic_result()).tables["caches"]
    cell = Cell(table._repr_html_())
    assert cell.words.count("ratio") == 1
    for name, shown in NAMES.items():
        assert (name in cell.words) == (name == shown and len(name) <= 50)
        assert (shown in repr(table)) or len(shown) > 50
    assert table["cache"].tolist() == list(NAMES)
    assert list(table.columns)[:2] == ["cache", "objects"]


@pytest.fixture
def table() -> Frame:
    frame = Frame(
        {
            "name": ["a\u202eb", "c"],
            "bytes": np.array([3 << 20, 1536], np.uint64),
            "small_bytes": [12, 1023],
            "share": [0.12345, float("nan")],
            "count": [1, 2],
            "maybe_bytes": pd.array([1 << 31, None], "Int64"),
            "address": np.array([0xFFFF888000000000, 0], np.uint64),
        }
    )
    units = ("text", "bytes", "bytes", "ratio", "count", "bytes", "address")
    labels = ("name", "size", "size", "of all", "", "maybe", "at")
    frame.attrs = {
        "title": "T",
        "units": dict(zip(frame.columns, units, strict=True)),
        "labels": dict(zip(frame.columns, labels, strict=True)),
    }
    return frame


def test_a_frame_for_people_is_scaled(table: Frame) -> None:
    shown = table.frame(labels=True, scale=True)
    assert list(shown.columns) == [
        "name", "size (bytes) [MiB]", "size (small_bytes) [B]", "of all [%]", "count",
        "maybe [GiB]", "at",
    ]  # fmt: skip
    assert shown.iloc[0].tolist() == ["a\\u202eb", 3.0, 12, 12.34, 1, 2.0, "0xffff888000000000"]
    assert shown["size (bytes) [MiB]"].iloc[1] == 0.0  # 1.5 KiB, of MiB
    assert shown.isna().iloc[1].sum() == 2


def test_the_example_of_tables_runs() -> None:
    outcome = doctest.testmod(answers)
    assert (outcome.failed, outcome.attempted > 0) == (0, True)


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
