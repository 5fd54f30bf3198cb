# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sentences wrapped between words, with commands in backticks as one word."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len, chop_cells
from rich.text import Text

_WORD = re.compile(r"(?:`[^`]{1,400}`|\(PID \d+\)|\S)+")
"""A command in backticks, with the punctuation around it, or a word; a PID belongs to its label."""


def wrapped(text: Text, width: int) -> list[Text]:
    """Return the lines of a text, none wider than ``width``, unless a command is.

    A command is copied from the screen: it is never broken.
    """
    return [line for part in text.split("\n", allow_blank=True) for line in _lines(part, width)]


def _lines(text: Text, width: int) -> list[Text]:
    lines, start, end = [], -1, 0
    for first, last in _pieces(text.plain, width):
        if start >= 0 and cell_len(text.plain[start:last]) > width:
            lines.append(text[start:end])
            start = -1
        start, end = (first if start < 0 else start), last
    return [*lines, text[start:end] if start >= 0 else Text()]


def _pieces(plain: str, width: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each word; a wider word than a line is cut, unless it is a command."""
    for word in _WORD.finditer(plain):
        start = word.start()
        is_command = "`" in word[0] and " " in word[0]
        for piece in [word[0]] if is_command else chop_cells(word[0], width):
            yield start, start + len(piece)
            start += len(piece)
