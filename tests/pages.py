# SPDX-License-Identifier: LGPL-2.1-or-later
"""Examples in pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

RECIPES_PAGE = (Path(__file__).parents[1] / "docs" / "drgn.md").read_text()

_SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sessions(page: str) -> list[str]:
    """Return the sessions of a Python prompt in a page."""
    return _SESSION.findall(page)


def recipes(page: str) -> Mapping[str, str]:
    """Return the sessions below headings of the third level, by heading."""
    _, *sections = re.split(r"^### ", page, flags=re.MULTILINE)
    return {
        section.partition("\n")[0]: "\n".join(sessions(section))
        for section in sections
        if sessions(section)
    }
