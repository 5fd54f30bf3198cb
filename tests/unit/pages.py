# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTML as a browser reads it, and a result with a hostile text in every place."""

from __future__ import annotations

from html.parser import HTMLParser

from kcensus.results import Figure, Finding, Gap, Machine, Remedy, Result, Severity, Unit
from kcensus.results.tables import Column, Table

_TEXT = "<script>alert(1)</script> [bold]%s \"' </style></svg><img src=//x>"
HOSTILE = _TEXT % "\x1b[31m\n=1+1 \u202e&amp;"
SHOWN = _TEXT % "\\x1b[31m\\x0a=1+1 \\u202e&amp;"


class Page(HTMLParser):
    """The tags and attributes of a page or an output, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        """All text, as a reader sees it."""
        self.inline: dict[str, str] = {}
        """Contents of ``<style>`` and ``<script>``."""
        self.policy = ""
        self._inside = ""
        self.feed(text)

    def values(self, name: str) -> list[str]:
        """Return the values of an attribute, in order."""
        return [value for each, value in self.attributes if each == name]

    @property
    def handlers(self) -> list[str]:
        """The attributes that hold code."""
        return [name for name, _ in self.attributes if name.startswith("on")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._inside = tag if tag in ("style", "script") else ""
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.inline[self._inside] = self.inline.get(self._inside, "") + data
        else:
            self.words += data


def hostile_result() -> Result:
    finding = Finding(
        id=HOSTILE,
        severity=Severity.WARNING,
        title=HOSTILE,
        evidence=HOSTILE,
        story=(HOSTILE, HOSTILE),
        memory={HOSTILE: 1 << 20, "slab:" + HOSTILE: 1 << 20},
        remedies=(
            Remedy(command=HOSTILE, effect=HOSTILE, undo=HOSTILE, risk=HOSTILE, until=HOSTILE),
        ),
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
