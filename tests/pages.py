# SPDX-License-Identifier: LGPL-2.1-or-later
"""Code blocks in pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
RECIPES_PAGE = (ROOT / "docs" / "drgn.md").read_text()

_SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    """Number of its first line, after the fence."""
    language: str
    """``sh`` where it has no fence, but is indented."""
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return the README and the pages of docs/ that are written by hand."""
    made = {ROOT / "docs" / name for name in ("reference", "project")}
    found = sorted((ROOT / "docs").rglob("*.md"))
    top = [path for path in (ROOT / "README.md", ROOT / "SECURITY.md") if path.exists()]
    return [*top, *(path for path in found if not made.intersection(path.parents))]


def blocks(page: Path) -> list[Block]:
    """Return all code blocks of a page, without directives such as ``{toctree}``."""
    return [
        Block(page, token.map[0] + (token.type == "fence") + 1, language, token.content)
        for token in MarkdownIt().parse(page.read_text("utf-8"))
        if token.type in ("fence", "code_block") and token.map
        for language in [token.info.strip() if token.type == "fence" else "sh"]
        if not language.startswith("{")
    ]


def sessions(page: Path) -> str:
    """Return the sessions of a Python prompt in a page, without those that need a real dump."""
    text, is_partial, _ = page.read_text("utf-8").partition("\n## Recipes for a dump\n")
    end = text.count("\n") if is_partial else None
    return "\n".join(
        block.text
        for block in blocks(page)
        if block.language == "pycon" and (end is None or block.line <= end)
    )


def recipes(text: str) -> Mapping[str, str]:
    """Return the sessions below headings of the third level, by heading."""
    _, *sections = re.split(r"^### ", text, flags=re.MULTILINE)
    found = {section.partition("\n")[0]: _SESSION.findall(section) for section in sections}
    return {heading: "\n".join(each) for heading, each in found.items() if each}
