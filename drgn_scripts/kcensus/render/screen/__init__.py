# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text on a terminal, its pager, or in a pipe or file: headings, paragraphs, tagged paragraphs.

On a terminal lines fit its width. In a pipe or a file there is no color, no padding and no width to
fit, so nothing is cut; only sentences are wrapped.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import IO, TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from kcensus.render.screen.wrapping import continued, wrapped
from kcensus.text import printable

INDENT = 2
GUTTER = 2
"""Spaces between columns."""
_UNBOUNDED = 1 << 16
"""Width without a terminal: no line of a table is ever wrapped."""
_MAX_PROSE = 100
"""Width at which sentences are wrapped, even with more room."""
_LESS_OPTIONS = "FRX"
"""Options unless LESS is set: leave at once if all fits the screen, show colors, keep the text."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # The command line handles this for every form of output.
        raise


def console_for(stream: IO[str], *, is_paged: bool = False) -> Console:
    """Return a console on ``stream``: as wide as the terminal, or unbounded in a pipe.

    :param is_paged: whether the pipe leads to a pager on the terminal
    """
    environ = dict(os.environ)
    if not environ.get("COLUMNS", "").strip("0 "):  # on a screen of no width, rich draws nothing
        environ.pop("COLUMNS", None)
    fits = is_paged or stream.isatty() or "COLUMNS" in environ
    return _Console(
        file=stream,
        _environ=environ,
        width=None if fits else _UNBOUNDED,
        force_terminal=True if is_paged else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def _command() -> list[str]:
    """Return the pager of KCENSUS_PAGER, PAGER, or less; nothing if it cannot run."""
    settings = (os.environ.get(name) for name in ("KCENSUS_PAGER", "PAGER"))
    try:
        words = shlex.split(next((text for text in settings if text is not None), "less"))
    except ValueError:  # a quotation without an end
        return []
    return words if words and words != ["cat"] and shutil.which(words[0]) else []


@contextmanager
def paged_console(stream: TextIO, *, wanted: bool = True) -> Iterator[Console]:
    """Yield a console on a pager if ``stream`` is a terminal, otherwise on ``stream``.

    :param wanted: whether to use a pager
    """
    command = _command() if wanted and stream.isatty() else []
    if not command:
        yield console_for(stream)
        return
    pager = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        env={"LESS": _LESS_OPTIONS, **os.environ},
        encoding=stream.encoding,
        errors="backslashreplace",
    )
    assert pager.stdin is not None
    # Ctrl-C is for the pager: it stops a search, for instance.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(BrokenPipeError):  # the user has seen enough
            yield console_for(pager.stdin, is_paged=True)
    finally:
        with suppress(BrokenPipeError):
            pager.stdin.close()
        pager.wait()
        signal.signal(signal.SIGINT, before)


class Screen:
    """Prints on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = console.width
        self.prose_width = min(self.width, _MAX_PROSE)
        self.is_unicode = console.encoding.startswith("utf")

    def show(self, section: RenderableType) -> None:
        """Print a section."""
        if self.console.is_terminal:
            self.console.print(section)
            return
        with self.console.capture() as capture:
            self.console.print(section)
        self.lines(line.rstrip() for line in capture.get().splitlines())

    def lines(self, lines: Iterable[str], style: str | None = None) -> None:
        """Print lines as they are, many at a time, because a table may have a million."""
        lines = iter(lines)
        while block := list(islice(lines, 1000)):
            self.console.out("\n".join(block), style=style, highlight=False)

    def _line(self, line: Text) -> None:
        """Print a line of a paragraph, even if it is wider than the screen."""
        line.rstrip()
        self.console.print(line, no_wrap=True, overflow="ignore", crop=False)

    def blank(self) -> None:
        self.console.print()

    def heading(self, words: str, style: str = "bold underline") -> None:
        """Print a heading."""
        self.show(Text(printable(words), style=style))

    def prose(self, text: Text | str, indent: int = 0) -> None:
        """Print a paragraph."""
        words = Text(text) if isinstance(text, str) else text
        for line in wrapped(words, max(self.prose_width - indent, 1)):
            self._line(Text(" " * indent).append_text(line))

    def tagged(self, rows: Iterable[tuple[Text, Sequence[Text]]], tag_width: int = 0) -> None:
        """Print tags on the left, and the paragraphs of each on the right.

        :param tag_width: least width of the tags
        """
        rows = list(rows)
        tag_width = max([tag_width, *(tag.cell_len for tag, _ in rows)])
        room = max(self.prose_width - INDENT - tag_width - 2 * GUTTER, 1)
        for tag, paragraphs in rows:
            lines = [line for each in paragraphs for line in wrapped(each, room)]
            for number, line in enumerate(lines or [Text()]):
                start = Text(" " * INDENT).append_text(tag if number == 0 else Text())
                start.pad_right(INDENT + tag_width + GUTTER - start.cell_len)
                self._line(start.append_text(line))

    def commands(
        self, lines: Iterable[str], tag_width: int, style: str | None = "bold green"
    ) -> None:
        """Print commands below the paragraphs of :meth:`tagged`.

        A command that is too wide there begins further left. If it is too wide there, too, it goes
        on with a backslash.
        """
        for command in map(printable, lines):
            margins = INDENT + tag_width + GUTTER, INDENT
            whole = [each for each in margins if each + cell_len(command) <= self.width]
            margin = whole[0] if whole else INDENT
            pieces = continued(command, self.width - margin)
            self.lines((" " * margin + piece for piece in pieces), style)

    def section(self, title: str, rows: Iterable[tuple[Text, Sequence[Text]]]) -> None:
        """Print a heading, tags with their paragraphs, and an empty line."""
        self.heading(title)
        self.tagged(rows)
        self.blank()

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print labels on the left, and their values flush right."""
        widest = max(Text(value).cell_len for _, value in rows)
        room = self.width - 2 * INDENT - GUTTER - min(widest, self.width // 2)
        grid = Grid.grid(padding=(0, GUTTER, 0, 0))
        grid.add_column(overflow="fold", max_width=max(room, 1))
        grid.add_column(justify="right", overflow="fold")
        for label, value in rows:
            grid.add_row(Text(label), Text(value))
        self.show(Padding(grid, (0, 0, 0, INDENT), expand=False))
