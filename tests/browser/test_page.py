# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTML pages of results and notebooks in Chromium: on request, ``./run test tests/browser``.

Without Chromium they fail, as the tests of the lab do without the lab.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.commands import Exit
from kcensus.commands.notebook.library import notebooks
from kcensus.commands.notebook.page import page
from kcensus.render.html import write_html
from kcensus.reports import Report, Section
from kcensus.results import Result, Unit
from kcensus.results.tables import Column, Table
from tests.browser.chromium import Tab
from tests.unit.notebooks.test_page import hostile_notebook
from tests.unit.pages import hostile_result
from tests.unit.synthetic import synthetic_result


def report(directory: Path) -> Path:
    sections = [
        Section("synthetic", synthetic_result()),
        Section("slab", hostile_result()),
        Section("broken", None, "failed"),
    ]
    (path,) = write_html(Report(Result("report", "x", "x"), sections), directory / "a.html")
    return path


@pytest.mark.parametrize("width", [1400, 800, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_its_window(tab: Tab, tmp_path: Path, width: int, scheme: str) -> None:
    tab.show(width, scheme)
    tab.open(report(tmp_path))
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_names_do_no_harm(tab: Tab, tmp_path: Path) -> None:
    tab.open(report(tmp_path))
    assert tab.evaluate("document.scripts.length") == 1
    assert tab.evaluate("document.querySelectorAll('img, iframe, object, link').length") == 0


def test_tables_sort_by_number_and_filter(tab: Tab, tmp_path: Path) -> None:
    result = Result("x", "x", "x")
    columns = {
        "name": ([f"name {number}" for number in range(9)], Column(Unit.TEXT)),
        "bytes": ([900, 2 << 20, None, 3 << 10, 0, 5, 6, 7, 8], Column(Unit.BYTES)),
    }
    result.tables["numbers"] = Table.of("Numbers", columns)
    (path,) = write_html(result, tmp_path / "page.html")
    tab.open(path)
    tab.evaluate("document.querySelector('th:nth-child(2) span').click()")
    cells = "[...document.querySelectorAll('tbody tr:not([hidden]) td:first-child')]"
    names = f"{cells}.map(cell => cell.textContent.slice(5)).join('')"
    assert tab.evaluate(names) == "130876542"
    assert tab.evaluate("document.querySelector('th:nth-child(2)').ariaSort") == "descending"
    tab.evaluate("document.querySelector('th:nth-child(1) span').click()")
    assert tab.evaluate(names) == "012345678"
    tab.evaluate(
        "(input => { input.value = 'MIB'; input.dispatchEvent(new Event('input')); })"
        "(document.querySelector('input'))"
    )
    assert tab.evaluate(names) == "1"


def test_commands_are_copied(tab: Tab, tmp_path: Path) -> None:
    (path,) = write_html(synthetic_result(), tmp_path / "page.html")
    tab.open(path)
    tab.evaluate("document.querySelector('.command button').click()")
    deadline = time.monotonic() + 5
    while tab.evaluate("document.querySelector('.command button').textContent") == "Copy":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_paper_has_whole_findings_and_the_rest_as_on_screen(tab: Tab, tmp_path: Path) -> None:
    result = synthetic_result()
    result.findings[0] = replace(result.findings[0], part_of=result.findings[1].id)
    (path,) = write_html(result, tmp_path / "a.html")
    tab.open(path)
    tab.send("Emulation.setEmulatedMedia", media="print")
    for place, is_printed in ((".finding", True), ("section:not(#findings)", False)):
        closed = f"document.querySelector('{place} details:not([open])')"
        assert tab.evaluate(f"{closed} !== null")
        assert tab.evaluate(f"{closed}.lastElementChild.checkVisibility()") == is_printed
    assert tab.pdf().startswith(b"%PDF")


def test_a_line_on_paper_names_what_is_not_printed(tab: Tab, tmp_path: Path) -> None:
    empty = Section("quiet-one", Result("quiet-one", "x", "x"))
    sections = [Section("synthetic", synthetic_result()), empty]
    (path,) = write_html(Report(Result("report", "x", "x"), sections), tmp_path / "a.html")
    tab.open(path)
    tab.send("Emulation.setEmulatedMedia", media="print")
    shown = "(place => document.querySelector(place).checkVisibility())"
    assert not tab.evaluate(f"{shown}('.quiet')")
    assert tab.evaluate(f"{shown}('main > .printed')")
    assert "quiet-one" in tab.evaluate("document.querySelector('main > .printed').textContent")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@functools.cache
def written(name: str, directory: Path) -> Path:
    output = directory / f"{name}.html"
    arguments = ["notebook", name, "-o", str(output), "--no-progress"]
    assert cli.main(arguments) == Exit.DONE
    return output


@pytest.mark.parametrize("name", notebooks())
def test_a_notebook_fits_and_loads_nothing(tab: Tab, directory: Path, name: str) -> None:
    tab.show(1400, "light")
    tab.open(written(name, directory))
    for scheme in ("light", "dark"):
        for width in (1400, 800, 400):
            tab.show(width, scheme)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.scripts.length") == 0
    assert tab.evaluate("document.querySelectorAll('img').length") > 0
    shown = "[...document.images].every(image => image.complete && image.naturalWidth > 0)"
    assert tab.evaluate(shown)
    assert tab.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("code", [False, True])
def test_names_in_a_notebook_do_no_harm(tab: Tab, tmp_path: Path, code: bool) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(hostile_notebook(), code=code), encoding="utf-8")
    tab.show(400, "light")
    tab.open(path)
    assert tab.evaluate("document.querySelectorAll('script, iframe, object, link').length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert "\u202e" not in tab.evaluate("document.body.innerText")
    linked = "[...document.links].filter(link => !/^(https?:|#)/.test(link.getAttribute('href')))"
    assert tab.evaluate(f"{linked}.length") == 0
