# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pictures show what kcensus prints today: look at new ones after `./run docs --pictures`."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tests.sample.docs import pictures

_MAX_BYTES = 150_000


@pytest.mark.parametrize("name", pictures.TERMINALS)
def test_terminals(name: str) -> None:
    drawn = pictures.terminal(pictures.TERMINALS[name])
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert "url(http" not in drawn
    assert (pictures.PICTURES / f"{name}.svg").read_text("utf-8") == drawn


@pytest.mark.slow
@pytest.mark.parametrize("name", pictures.CHARTS)
def test_charts(name: str) -> None:
    drawn = pictures.chart(pictures.CHARTS[name])
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert (pictures.PICTURES / f"{name}.svg").read_text("utf-8") == drawn


@pytest.mark.slow
def test_pages() -> None:
    assert json.loads(pictures.HASHES.read_text()) == pictures.fingerprints()


def test_pictures_are_small_and_all_known() -> None:
    files = [path for path in pictures.PICTURES.iterdir() if path != pictures.HASHES]
    assert {path.name: size for path in files if (size := path.stat().st_size) > _MAX_BYTES} == {}
    known = {f"{name}.svg" for name in (*pictures.TERMINALS, *pictures.CHARTS)}
    known |= {f"{name}.webp" for name in pictures.PAGES}
    assert {path.name for path in files} == known
