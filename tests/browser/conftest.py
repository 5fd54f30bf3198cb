# SPDX-License-Identifier: LGPL-2.1-or-later
"""A browser for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Tab, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Tab]:
    with chromium() as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """A browser whose console must be empty at the end, and which loads nothing but the page."""
    browser.console.clear()
    browser.requests.clear()
    yield browser
    browser.send("Emulation.setEmulatedMedia", media="")
    browser.evaluate("0")  # so that all events have arrived
    assert browser.console == []
    addresses = [url for url in browser.requests if not url.startswith("data:image/")]
    assert [url[:5] for url in addresses] == ["file:"]
