# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages of notebooks in Chromium. These tests run on request: ``./run test tests/browser``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.actions import Exit
from kcensus.actions.notebooks.library import notebooks
from kcensus.actions.notebooks.page import page
from tests.browser.chromium import Tab, chromium
from tests.unit.notebooks.test_page import hostile_notebook


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with chromium() as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """A browser whose console must be empty at the end, and which loads nothing but the page."""
    browser.console.clear()
    browser.requests.clear()
    yield browser
    browser.evaluate("0")  # so that all events have arrived
    assert browser.console == []
    addresses = [url for url in browser.requests if not url.startswith("data:image/")]
    assert [url[:5] for url in addresses] == ["file:"]


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
def test_a_page_fits_and_loads_nothing(tab: Tab, directory: Path, name: str) -> None:
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
def test_names_do_no_harm(tab: Tab, tmp_path: Path, code: bool) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(hostile_notebook(), code=code), encoding="utf-8")
    tab.show(400, "light")
    tab.open(path)
    assert tab.evaluate("document.querySelectorAll('script, iframe, object, link').length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert "\u202e" not in tab.evaluate("document.body.innerText")
    linked = "[...document.links].filter(link => !/^(https?:|#)/.test(link.getAttribute('href')))"
    assert tab.evaluate(f"{linked}.length") == 0
