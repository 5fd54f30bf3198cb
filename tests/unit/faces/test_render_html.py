# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as an HTML page, with hostile names in it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.render.html import write_html
from kcensus.render.plain import remedy_text
from kcensus.results import Finding, Gap, Remedy, Result, Severity, Unit
from kcensus.results.tables import Column, Table
from tests.unit.synthetic import only_synthetic, synthetic_result

HOSTILE = "<script>alert(1)</script> [bold]\x1b[31m\n=1+1 \u202e&amp; \"'"
SHOWN = "<script>alert(1)</script> [bold]\\x1b[31m\\x0a=1+1 \\u202e&amp; \"'"


class Page(HTMLParser):
    """The tags of a page and the text between them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.titles: list[str | None] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.titles += [value for name, value in attrs if name == "title"]
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_names_do_no_harm(tmp_path: Path) -> None:
    name = HOSTILE
    result = Result(HOSTILE, HOSTILE, HOSTILE)
    result.findings.append(
        Finding(
            id=HOSTILE,
            severity=Severity.WARNING,
            title=HOSTILE,
            evidence=HOSTILE,
            remedies=(Remedy(command=HOSTILE, effect=HOSTILE, undo=HOSTILE),),
            patch=HOSTILE,
        )
    )
    result.gaps.append(Gap(HOSTILE, HOSTILE, 1, HOSTILE))
    result.tables["names"] = Table.of("Names", {"name": ([name], Column(Unit.TEXT))})
    (path,) = write_html(result, tmp_path / "page.html")
    page = Page(path)
    assert "script" not in page.tags
    assert page.text.count(SHOWN) >= 3
    assert "\x1b" not in path.read_text(encoding="utf-8")


def test_everything_of_a_result_is_there(tmp_path: Path) -> None:
    result = synthetic_result("x")
    (path,) = write_html(result, tmp_path / "page.html")
    text = "\n".join(Page(path).text)
    for finding in result.findings:
        assert remedy_text(finding) in text
    for check in result.checks:
        assert check.status.value in text
    for table in result.tables.values():
        assert table.title in text


def test_headings_have_the_help_of_their_columns(tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    column = Column(Unit.COUNT, "n", help='Numbers "of" <things>.')
    result.tables["numbers"] = Table.of("Numbers", {"number": ([1], column)})
    (path,) = write_html(result, tmp_path / "page.html")
    assert Page(path).titles == ['Numbers "of" <things>.']


def test_a_long_table_says_what_is_left_out(tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    result.tables["long"] = Table.of("Long", {"number": (list(range(1234)), Column())})
    (path,) = write_html(result, tmp_path / "page.html")
    assert "and 234 more rows" in path.read_text()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_synthetic():
        page = tmp_path / "page.html"
        assert cli.main(["synthetic", "vmcore", "--html", str(page)]) == 0
        assert capsys.readouterr().out == f"{page}\n"
        assert cli.main(["synthetic", "vmcore", "--html", str(tmp_path)]) == 2
