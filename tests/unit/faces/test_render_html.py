# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as an HTML page, with hostile names in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from kcensus import cli, explain
from kcensus.charts import COLORS, Bar, Chart, charts
from kcensus.render.html import write_html, write_report_html
from kcensus.render.html.svg import stack, svg, swatch
from kcensus.reports import Report, Section
from kcensus.results import Figure, Finding, Gap, Machine, Remedy, Result, Severity, Unit
from kcensus.results.tables import Column, Show, Table
from tests.unit.synthetic import only_synthetic, synthetic_result

HOSTILE = "<script>alert(1)</script> [bold]\x1b[31m\n=1+1 \u202e&amp; \"' </style></svg>"
SHOWN = "<script>alert(1)</script> [bold]\\x1b[31m\\x0a=1+1 \\u202e&amp; \"' </style></svg>"
HOSTS = {"git.kernel.org", "lore.kernel.org"}


class Page(HTMLParser):
    """The tags of a page and the text between them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.titles: list[str | None] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.policy = ""
        self.inline: dict[str, str] = {}
        """Contents of ``<style>`` and ``<script>``."""
        self.feed(path.read_text(encoding="utf-8"))

    @property
    def words(self) -> str:
        """All text, as a reader sees it."""
        return "".join(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        assert not any(name.startswith("on") or name in ("src", "style") for name in values)
        self.titles += [values["title"]] if "title" in values else []
        self.links += [values["href"] or ""] if "href" in values else []
        self.ids += [values["id"] or ""] if "id" in values else []
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] in (["style"], ["script"]) and self.tags[-1] not in self.inline:
            self.inline[self.tags[-1]] = data
        else:
            self.text.append(data)


def hostile_result() -> Result:
    finding = Finding(
        id=HOSTILE,
        severity=Severity.WARNING,
        title=HOSTILE,
        evidence=HOSTILE,
        story=(HOSTILE, HOSTILE),
        memory={HOSTILE: 1 << 20, "slab:" + HOSTILE: 1 << 20},
        remedies=(Remedy(command=HOSTILE, effect=HOSTILE, undo=HOSTILE, risk=HOSTILE),),
        no_remedy=HOSTILE,
        patch=HOSTILE,
    )
    names = {
        "cache": ([HOSTILE, "dentry"], Column(Unit.TEXT, HOSTILE, help=HOSTILE)),
        "active_bytes": ([1 << 20, 2], Column(Unit.BYTES)),
        "free_bytes": ([1, 2], Column(Unit.BYTES, HOSTILE)),
        "patch": ([HOSTILE, HOSTILE], Column(Unit.TEXT)),
    }
    return Result(
        "slab",
        HOSTILE,
        HOSTILE,
        machine=Machine(host=HOSTILE, taken_by=HOSTILE),
        summary={"name": Figure(HOSTILE, Unit.TEXT, HOSTILE)},
        tables={"caches": Table.of(HOSTILE, names)},
        findings=[finding],
        gaps=[Gap(HOSTILE, HOSTILE, 1, HOSTILE)],
    )


def write(result: Result, directory: Path) -> Page:
    (path,) = write_html(result, directory / "page.html")
    return Page(path)


def test_names_do_no_harm(tmp_path: Path) -> None:
    page = write(hostile_result(), tmp_path)
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert page.words.count(SHOWN) >= 10
    assert "svg" in page.tags
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else urlsplit(link).hostname in HOSTS


def test_the_policy_allows_the_inline_elements_and_nothing_else(tmp_path: Path) -> None:
    page = write(synthetic_result(), tmp_path)
    hashes = {
        tag: base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        for tag, content in page.inline.items()
    }
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules.pop("style-src") == f"'sha256-{hashes['style']}'"
    assert rules.pop("script-src") == f"'sha256-{hashes['script']}'"
    assert set(rules.values()) == {"'none'"}


def test_everything_of_a_result_is_there(tmp_path: Path) -> None:
    result = synthetic_result("x")
    text = write(result, tmp_path).words
    for finding in result.findings:
        for remedy in finding.remedies:
            lines = remedy.command.splitlines()
            for words in (*lines, remedy.effect, remedy.risk, remedy.undo, remedy.until):
                assert words in text
    for check in result.checks:
        assert check.status.value in text
    assert result.tables["caches"].title in text


def test_the_machine_leads(tmp_path: Path) -> None:
    machine = Machine("db-17", 1.7e9, 3725.0, 1 << 30, 8, 2, "5.14", "#1 SMP", "abcd", "sysrq")
    text = write(replace(synthetic_result(), machine=machine), tmp_path).words
    header = text[: text.index("Findings")]
    for words in ("db-17", "2023-11-14 22:13:20 UTC", "1 h 2 min", "1.0 GiB", "#1 SMP", "abcd"):
        assert words in header


def test_parts_are_below_the_finding_that_explains_them(tmp_path: Path) -> None:
    cause, symptom = (
        Finding(id=name, severity=Severity.NOTICE, title=name, memory={"slab:dentry": 1 << 20})
        for name in ("cause", "symptom:dentry")
    )
    result = Result("x", "x", "x")
    result.findings = [replace(symptom, part_of="cause"), cause]
    page = write(result, tmp_path)
    assert page.ids.index("finding-cause") < page.ids.index("finding-symptom-dentry")
    assert "1 more finding with the same cause" in page.words
    # Alone, it is shown all the same.
    result.findings = result.findings[:1]
    assert "finding-symptom-dentry" in write(result, tmp_path).ids


def test_patches_link_to_their_commits(tmp_path: Path) -> None:
    finding = Finding(
        id="x", severity=Severity.NOTICE, title="x", patch="list-lru-xarray", patch_is_fix=True
    )
    result = Result("x", "x", "x", findings=[finding])
    result.tables["patches"] = Table.of(
        "Patches", {"patch": (["list-lru-xarray", "unknown"], Column(Unit.TEXT))}
    )
    links = [link for link in write(result, tmp_path).links if not link.startswith("#")]
    assert links == ["https://git.kernel.org/linus/bbca91cca9a9"] * 2


def test_findings_link_to_their_explanations(tmp_path: Path) -> None:
    findings = [
        Finding(id=name, severity=Severity.NOTICE, title=name)
        for name in ("report-incomplete", "unknown")
    ]
    page = write(Result("x", "x", "x", findings=findings), tmp_path)
    explanation = explain.kinds()["report-incomplete"]
    assert page.links.count("#explain-report-incomplete") == 1
    assert {"explain-report-incomplete", "explanations"} <= set(page.ids)
    assert explanation.means in page.words
    for word in explanation.terms:
        assert explain.terms()[word].means in page.words


def test_headings_have_the_help_of_their_columns(tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    column = Column(Unit.COUNT, "n", help='Numbers "of" <things>.')
    result.tables["numbers"] = Table.of("Numbers", {"number": ([1], column)})
    assert write(result, tmp_path).titles == ['Numbers "of" <things>.']


def test_a_drawing_keeps_its_spaces(tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    drawn, plain = Column(Unit.TEXT, is_drawn=True), Column(Unit.TEXT)
    values = {"line": (["root", "   └─ leaf"], drawn), "name": (["a", "b"], plain)}
    result.tables["tree"] = Table.of("Tree", values)
    (path,) = write_html(result, tmp_path / "page.html")
    text = path.read_text()
    assert '<td class="drawn">   └─ leaf</td>' in text
    assert text.count('<td class="drawn"') == 2


def test_a_long_table_says_what_is_left_out(tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    result.tables["long"] = Table.of("Long", {"number": (list(range(1234)), Column())})
    page = write(result, tmp_path)
    assert "The first 100 of 1,234 rows" in page.words
    assert page.tags.count("tr") == 101


def test_what_is_empty_is_left_out(tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    columns = {
        "name": (["a"], Column(Unit.TEXT)),
        "gone": ([""], Column(Unit.TEXT)),
        "data": ([1], Column(show=Show.DATA)),
        "number": ([1234567], Column(Unit.COUNT)),
    }
    result.tables["full"] = Table.of("Full", columns)
    result.tables["empty"] = Table.of("Empty", {"number": ([], Column())})
    zeros = {"name": (["a"], Column(Unit.TEXT)), "number": ([0], Column(Unit.BYTES))}
    result.tables["zeros"] = Table.of("Zeros", zeros)
    result.tables["detail"] = Table.of("Detail", {"number": ([1], Column())}, detail=True)
    page = write(result, tmp_path)
    for title in ("Empty", "Zeros", "Detail"):
        assert title not in page.words
    assert page.tags.count("th") == 2
    # Sorted by the number, not by its text.
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<td class="n" data-v="1234567">1,234,567</td>' in text


def test_a_failed_analysis_is_named_in_the_contents(tmp_path: Path) -> None:
    head = Result("report", "x", "x")
    report = Report(head, [Section("broken", "why?", None, "it lacks a page")])
    (path,) = write_report_html(report, tmp_path / "page.html")
    page = Page(path)
    assert "report-incomplete" in page.words
    assert page.words.count("it lacks a page") == 2


def test_charts_are_labelled_and_escaped() -> None:
    (chart,) = charts(hostile_result())
    root = ElementTree.fromstring(svg(chart))
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names == {"svg", "title", "desc", "g", "rect", "text", "line"}
    assert root.get("role") == "img"
    assert root[0].text == "Largest slab caches"
    assert SHOWN in (root[1].text or "")


@pytest.mark.parametrize("parts", [[], [0], [1], [3, 1], list(range(9))])
def test_a_stack_is_no_wider_than_its_place(parts: list[int]) -> None:
    widths = re.findall(
        r'width="([\d.]+)%" height="9" fill="#|x="[\d.]+%" width="([\d.]+)%"', stack(parts)
    )
    assert sum(float(first or second) for first, second in widths) <= 100.1


def test_parts_of_a_bar_differ_without_colors() -> None:
    (chart,) = charts(hostile_result())
    bars = (Bar("x", (5.0, 3.0, 2.0, 0.0, 1.0), "11"),)
    root = ElementTree.fromstring(
        svg(replace(chart, legend=tuple("abcde"), bars=bars, colors=COLORS))
    )
    lines = [dict(each.attrib) for each in root.iter() if each.tag.endswith("line")]
    assert {line["class"] for line in lines} == {"printed"}
    looks = [(line["stroke-width"], line.get("stroke-dasharray")) for line in lines]
    entries, parts = looks[:4], looks[4:]  # the first color has none
    assert len({*entries}) == 4
    assert parts == [entries[0], entries[1], entries[3]]
    for color, look in zip(COLORS[1:], entries, strict=True):
        line = ElementTree.fromstring(swatch(color))[0][1]
        assert (line.get("stroke-width"), line.get("stroke-dasharray")) == look


def test_names_of_a_chart_differ() -> None:
    paths = [f"/srv/spool/jobs/of/tenant/{name}/incoming/mail/queue/new" for name in "ab"]
    bars = tuple(Bar(path, (1.0,), "1") for path in paths)
    root = ElementTree.fromstring(svg(Chart("x", (), bars, Unit.COUNT)))
    words = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert [name[-3:] for name in words[::2]] == [" #1", " #2"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_synthetic():
        page = tmp_path / "page.html"
        assert cli.main(["synthetic", "vmcore", "--html", str(page)]) == 0
        assert capsys.readouterr().out == f"{page}\n"
        assert cli.main(["synthetic", "vmcore", "--html", str(tmp_path)]) == 2
