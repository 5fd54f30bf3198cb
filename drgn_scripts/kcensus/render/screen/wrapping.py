# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sentences wrapped between words, with commands in backticks as one word; and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len, chop_cells
from rich.text import Text

_WORD = re.compile(r"(?:(?<![^\s(])`[^`]{1,400}`|\(PID \d+\)|\S)+")
"""A command in backticks, with the punctuation around it, or a word; a PID belongs to its label. A
backtick inside of a word, as in a file name, opens no command."""

_ARGUMENT = re.compile(r"(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[^\s'\"\\])+")
"""An argument of a command with its quotes: a line break may come before it."""
_CONTINUED = "  "
"""Indentation of further lines of a command."""


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


def continued(command: str, width: int) -> list[str]:
    """Return the lines of a shell command, none wider than ``width``, unless an argument is.

    All but the last end with a backslash, so that the lines can be pasted together. A terminal
    would break a wider line inside a word.
    """
    arguments = _ARGUMENT.findall(command)
    if cell_len(command) <= width or " ".join(arguments) != command or " #" in command:
        return [command]
    lines = [arguments[0]]
    for argument in arguments[1:]:
        if cell_len(f"{lines[-1]} {argument} \\") <= width:
            lines[-1] += f" {argument}"
        else:
            lines[-1] += " \\"
            lines.append(_CONTINUED + argument)
    return lines
