# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as an HTML page, with hostile names in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from kcensus import explain
from kcensus.analyses.drawings import charts
from kcensus.charts import COLORS, Bar, Chart
from kcensus.render.html import cell_html, write_html
from kcensus.render.html.svg import stack, svg, swatch
from kcensus.render.html.text import breakable
from kcensus.render.plain import finding_document
from kcensus.reports import Report, Section
from kcensus.results import Figure, Finding, Machine, Result, Severity, Unit
from kcensus.results.tables import Column, Show, Table
from tests.unit.pages import SHOWN, Page, hostile_result
from tests.unit.synthetic import synthetic_result

HOSTS = {"git.kernel.org", "lore.kernel.org"}


def write(result: Result, directory: Path) -> Page:
    (path,) = write_html(result, directory / "page.html")
    page = Page(path.read_text("utf-8"))
    assert (page.handlers, page.values("src"), page.values("style")) == ([], [], [])
    return page


def test_names_do_no_harm(tmp_path: Path) -> None:
    page = write(hostile_result(), tmp_path)
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert page.words.count(SHOWN) >= 10
    assert "svg" in page.tags
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text
    for link in page.values("href"):
        is_inside = link.startswith("#")
        assert link[1:] in page.values("id") if is_inside else urlsplit(link).hostname in HOSTS


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
    for remedy in (each for finding in result.findings for each in finding.remedies):
        lines = remedy.command.splitlines()
        for words in (*lines, remedy.effect, remedy.risk, remedy.undo, remedy.until):
            assert words in text
    assert all(check.status.value in text for check in result.checks)
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
    ids = page.values("id")
    assert ids.index("finding-cause") < ids.index("finding-symptom-dentry")
    assert "1 more finding with the same cause" in page.words
    # Alone, it is shown all the same.
    result.findings = result.findings[:1]
    assert "finding-symptom-dentry" in write(result, tmp_path).values("id")


def test_patches_link_to_their_commits(tmp_path: Path) -> None:
    finding = Finding(
        id="x",
        severity=Severity.NOTICE,
        title="x",
        patch="list-lru-xarray",
        patch_status="merged in 5.18",
        patch_is_fix=True,
        patch_packages="RHEL 9.1: <since>",
    )
    result = Result("x", "x", "x", findings=[finding])
    column = (["list-lru-xarray", "unknown"], Column(Unit.TEXT))
    result.tables["patches"] = Table.of("Patches", {"patch": column})
    links = [link for link in write(result, tmp_path).values("href") if link[0] != "#"]
    assert links == ["https://git.kernel.org/linus/bbca91cca9a9"] * 2
    assert "merged in 5.18; RHEL 9.1: <since>" in write(result, tmp_path).words


def test_findings_link_to_their_explanations(tmp_path: Path) -> None:
    ids = ("report-incomplete", "unknown")
    findings = [Finding(id=name, severity=Severity.NOTICE, title=name) for name in ids]
    page = write(Result("x", "x", "x", findings=findings), tmp_path)
    explanation = explain.kinds()["report-incomplete"]
    assert page.values("href").count("#explain-report-incomplete") == 1
    assert {"explain-report-incomplete", "explanations"} <= set(page.values("id"))
    assert explanation.means in page.words
    for word in explanation.terms:
        assert explain.terms()[word].means in page.words


def test_a_drawing_keeps_its_spaces_and_headings_have_help(tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    drawn, plain = Column(Unit.TEXT, is_drawn=True), Column(Unit.TEXT, help='"Of" <things>.')
    values = {"line": (["root", "   └─ leaf"], drawn), "name": (["a", "b"], plain)}
    result.tables["tree"] = Table.of("Tree", values)
    assert write(result, tmp_path).values("title") == ['"Of" <things>.']
    text = (tmp_path / "page.html").read_text()
    assert '<td class="drawn">   └─ leaf</td>' in text
    assert text.count('<td class="drawn"') == 2
    # A table that is a drawing has neither stripes nor a filter.
    result.tables["chart"] = Table.of("Chart", {"line": (["a", "b"], drawn)})
    write(result, tmp_path)
    assert (tmp_path / "page.html").read_text().count('<table class="data drawing">') == 1


def test_what_is_empty_or_long_is_left_out(tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    result.tables["long"] = Table.of("Long", {"number": (list(range(1234)), Column())})
    page = write(result, tmp_path)
    assert "The first 100 of 1,234 rows" in page.words
    assert page.tags.count("tr") == 101
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
    report = Report(Result("report", "x", "x"), [Section("broken", None, "it lacks a page")])
    (path,) = write_html(report, tmp_path / "page.html")
    page = Page(path.read_text("utf-8"))
    assert "report-incomplete" in page.words
    assert page.words.count("it lacks a page") == 2


def test_sections_are_in_the_order_of_their_findings(tmp_path: Path) -> None:
    def section(name: str, *severities: Severity) -> Section:
        findings = [Finding(id=f"{name}-x", severity=each, title="t") for each in severities]
        return Section(name, Result(name, "x", "x", findings=findings))

    sections = [
        section("a"), section("b", Severity.NOTICE), section("c", Severity.CRITICAL),
        Section("d", None, "failed"), section("e"),
    ]  # fmt: skip
    (path,) = write_html(Report(Result("report", "x", "x"), sections), tmp_path / "a.html")
    page = path.read_text()
    assert re.findall(r'<section id="analysis-(\w)', page) == ["d", "c", "b", "a", "e"]
    # Only what has no finding is collapsed.
    assert re.findall(r'analysis-(\w)">\s*<details', page) == ["a", "e"]
    (path,) = write_html(Result("a", "x", "x"), tmp_path / "b.html")
    assert '<details class="quiet"' not in path.read_text()


def test_no_tiles_of_zeros(tmp_path: Path) -> None:
    def section(name: str, *values: int) -> Section:
        summary = {f"{name}{at}": Figure(value) for at, value in enumerate(values)}
        return Section(name, Result(name, "x", "x", summary=summary))

    cell = cell_html(Report(Result("report", "x", "x"), [section("a", 0, 7), section("b", 0)]))
    assert re.findall(r"<dt>(\w\d)</dt>", cell) == ["a1"]
    # Where all are 0, the first one says it.
    alone = Report(Result("report", "x", "x"), [section("a", 0, 7), section("b", 0, 0)])
    write_html(alone, tmp_path / "a.html")
    lists = re.findall('<dl class="tiles">(.*?)</dl>', (tmp_path / "a.html").read_text(), re.DOTALL)
    assert re.findall(r"<dt>(\w\d)</dt>", "".join(lists)) == ["a1", "b0"]
    assert re.findall(r"<dt>(\w\d)</dt>", cell_html(section("b", 0).result or Result("", "", "")))


def test_a_merged_cache_is_named_with_its_objects(tmp_path: Path) -> None:
    memory, users = {"slab:bio-0": 5, "slab:skbuff": 3}, {"slab:skbuff": "bios <b>"}
    finding = Finding(id="x", severity=Severity.NOTICE, title="t", memory=memory, users=users)
    (path,) = write_html(Result("x", "x", "x", findings=[finding]), tmp_path / "a.html")
    assert "bios &lt;b&gt; (in slab:skbuff)" in path.read_text()
    assert finding_document(finding)["users"] == users


def test_a_backtick_in_a_file_name_opens_no_command() -> None:
    text = "/srv/a`kcensus b` has more: `kcensus waits x`"
    assert re.findall("<code>(.*?)</code>", breakable(text)) == ["kcensus waits x"]


def test_charts_are_labelled_and_escaped() -> None:
    (chart,) = charts(hostile_result())
    root = ElementTree.fromstring(svg(chart))
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names == {"svg", "title", "desc", "g", "rect", "text", "line"}
    assert root.get("role") == "img"
    assert root[0].text == "Largest slab caches"
    assert SHOWN in (root[1].text or "")
    # Names of a chart differ.
    paths = [f"/srv/spool/jobs/of/tenant/{name}/incoming/mail/queue/new" for name in "ab"]
    bars = tuple(Bar(path, (1.0,), "1") for path in paths)
    root = ElementTree.fromstring(svg(Chart("x", (), bars, Unit.COUNT)))
    words = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert [name[-3:] for name in words[::2]] == [" #1", " #2"]


@pytest.mark.parametrize("parts", [[], [0], [1], [3, 1], list(range(9))])
def test_a_stack_is_no_wider_than_its_place(parts: list[int]) -> None:
    widths = re.findall(
        r'width="([\d.]+)%" height="9" fill="#|x="[\d.]+%" width="([\d.]+)%"', stack(parts)
    )
    assert sum(float(first or second) for first, second in widths) <= 100.1


def test_parts_of_a_bar_differ_without_colors() -> None:
    (chart,) = charts(hostile_result())
    bars = (Bar("x", (5.0, 3.0, 2.0, 0.0, 1.0), "11"),)
    chart = replace(chart, legend=tuple("abcde"), bars=bars, colors=COLORS)
    root = ElementTree.fromstring(svg(chart))
    lines = [dict(each.attrib) for each in root.iter() if each.tag.endswith("line")]
    assert {line["class"] for line in lines} == {"printed"}
    looks = [(line["stroke-width"], line.get("stroke-dasharray")) for line in lines]
    entries, parts = looks[:4], looks[4:]  # the first color has none
    assert len({*entries}) == 4
    assert parts == [entries[0], entries[1], entries[3]]
    for color, look in zip(COLORS[1:], entries, strict=True):
        line = ElementTree.fromstring(swatch(color))[0][1]
        assert (line.get("stroke-width"), line.get("stroke-dasharray")) == look
