# SPDX-License-Identifier: LGPL-2.1-or-later
"""The site in Chromium: ``./run docs && ./run test tests/browser``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Tab
from tests.pages import ROOT

SITE = ROOT / "build" / "docs"
PAGES = ("index", "tutorial", "howto/support", "manual/use", "reference/tables", "reference/python")


@pytest.fixture
def quiet(browser: Tab) -> Iterator[Tab]:
    """A browser whose console stays empty, and which loads files of the site only."""
    browser.console.clear()
    browser.requests.clear()
    yield browser
    browser.evaluate("0")  # so that all events have arrived
    assert browser.console == []
    inside = SITE.resolve().as_uri(), "data:image/"
    assert [url for url in browser.requests if not url.startswith(inside)] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_and_load_nothing_from_elsewhere(quiet: Tab, page: str, scheme: str) -> None:
    path = Path(SITE, f"{page}.html")
    assert path.exists(), "./run docs builds the site"
    quiet.show(1400, scheme)
    quiet.open(path)
    for width in (1400, 400):
        quiet.show(width, scheme)
        assert quiet.evaluate("document.documentElement.scrollWidth") <= width
    broken = "[...document.images].filter(image => image.complete && !image.naturalWidth).length"
    assert quiet.evaluate(broken) == 0
    background = quiet.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
