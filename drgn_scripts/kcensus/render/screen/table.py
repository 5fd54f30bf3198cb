# SPDX-License-Identifier: LGPL-2.1-or-later
"""A table on a screen.

If it does not fit, the columns that a narrow screen can do without are dropped, the last ones
first, and a line below the table names them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len
from rich.text import Text

from kcensus.human import counted, human
from kcensus.render.plain import Plain, is_shown, label, shown_column
from kcensus.render.screen import GUTTER, INDENT, Screen
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table
from kcensus.text import printable

_MIN_TEXT = 16
"""Columns are dropped before names are folded into less than this, or a quarter of the width."""
_MAX_CELL = 400
"""Characters of a cell, as of one that lists the workers of a pool; files have all of them."""
_BAR = 8
"""Width of a bar, in characters."""
_PARTS = re.compile(r"[^/._-]*[/._-]+|[^/._-]+")
"""Parts of a path, each with the characters behind which it can be broken."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_GUIDE = re.compile(r"(?:│  |   )*(?:├─ |└─ )?")
_BELOW = str.maketrans("├└─", "│  ")
"""Guide of further lines of a folded cell."""


@dataclass
class _Shown:
    label: str
    cells: list[str]
    is_text: bool
    is_optional: bool
    is_drawn: bool = False
    """Whether cells may begin with the guide of a tree."""
    shares: list[Plain] | None = None
    """Values to draw as bars."""
    width: int = 0

    def width_with(self, heading: Sequence[str]) -> int:
        """Return the width of the cells, and of a heading with these lines."""
        return max(1, *map(cell_len, chain(self.cells, heading)))

    def longest_word(self) -> int:
        """Return the width of the longest word, in heading and cells: with less, it is broken."""
        texts = [self.label, *self.cells]
        return max((cell_len(word) for text in texts for word in text.split()), default=1)


def print_table(name: str, table: Table, screen: Screen, top: int) -> None:
    """Print the first ``top`` rows of a table; all if ``top`` is 0, or for a drawn tree."""
    if any(column.is_drawn for column in table.columns.values()):
        top = 0
    total, frame = len(table.frame), table.frame.iloc[: top or None]
    shown = [
        (key, column, shown_column(frame[key], column))
        for key, column in table.columns.items()
        if column.show is not Show.DATA
    ]
    columns = [_column(*each) for each in shown if is_shown(*each[1:])]
    room = screen.width - INDENT
    if screen.console.is_terminal and screen.is_unicode:
        _draw_bars(columns, room)
    dropped = _fit(columns, room)
    screen.heading(label(name, table.title))
    if table.note:
        screen.prose(printable(table.note), INDENT)
    if total:
        screen.lines(_lines(columns, [column.label for column in columns], screen), "bold")
        if screen.console.is_terminal:
            rule = "─" if screen.is_unicode else "-"
            screen.lines([" " * INDENT + rule * _table_width(columns)], "dim")
        rows = zip(*(column.cells for column in columns), strict=True)
        screen.lines(chain.from_iterable(_lines(columns, row, screen) for row in rows))
    else:
        rows_of = "(no rows)" if table.is_known else "(unknown: see Gaps)"
        screen.lines([" " * INDENT + rows_of])
    if total > len(frame):
        more = f"... and {counted(total - len(frame), 'more row')} (use --top 0 or --json)"
        screen.prose(Text(more, style="dim"), INDENT)
    if dropped:
        names = ", ".join(column.label for column in dropped)
        remark = f"no room for: {names} (widen the terminal, or use --json)"
        screen.prose(Text(remark, style="dim"), INDENT)
    screen.blank()


def _column(key: str, column: Column, values: list[Plain]) -> _Shown:
    # The heading says that these are pages.
    unit = Unit.COUNT if column.unit is Unit.PAGES else column.unit
    return _Shown(
        label=label(key, column.label),
        cells=[_cut(human(value, unit)) for value in values],
        is_text=column.unit is Unit.TEXT or any(isinstance(value, str) for value in values),
        is_optional=column.show is not Show.ALWAYS,
        is_drawn=column.is_drawn,
        shares=values if unit is Unit.RATIO and column.show is Show.ALWAYS else None,
    )


def _cut(cell: str) -> str:
    return cell if len(cell) <= _MAX_CELL else f"{cell[:_MAX_CELL]}…"


def _draw_bars(columns: Sequence[_Shown], room: int) -> None:
    """Append a bar to each cell of the columns with shares, if the table has room for them."""
    with_shares = [column for column in columns if column.shares is not None]
    widths = sum(column.width_with([column.label]) + GUTTER for column in columns) - GUTTER
    if widths + len(with_shares) * (1 + _BAR) > room:
        return
    for column in with_shares:
        widest = column.width_with(())
        column.label = f"{column.label:>{widest}}".ljust(widest + 1 + _BAR)  # above the numbers
        column.cells = [
            f"{cell:>{widest}} {_bar(share):<{_BAR}}"
            for cell, share in zip(column.cells, column.shares or (), strict=True)
        ]


def _bar(share: Plain) -> str:
    """Return a bar, to an eighth of a character; some of it for any share above 0."""
    if not isinstance(share, (int, float)) or share <= 0:
        return ""
    eighths = min(max(round(share * _BAR * 8), 1), _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _table_width(columns: Sequence[_Shown]) -> int:
    return sum(column.width + GUTTER for column in columns) - GUTTER


def _fit(columns: list[_Shown], room: int) -> list[_Shown]:
    """Set the width of every column so that all fit into ``room``; return the dropped ones."""

    def excess() -> int:
        return _table_width(columns) - room

    dropped: list[_Shown] = []
    while True:
        for column in columns:
            column.width = column.width_with([column.label])
        if excess() <= 0:
            return dropped
        for column in columns:
            column.width = column.width_with(column.label.split())
        optional = [column for column in columns if column.is_optional]
        floor = max(_MIN_TEXT, room // 4) if optional else 1
        texts = [column for column in columns if column.is_text]
        # Columns are dropped before names are broken, except those of more than half the width.
        words = [column.longest_word() for column in texts]
        kept = [max(floor, word) if word <= room // 2 else floor for word in words]
        _shrink(texts, kept, excess())
        if not optional:
            _shrink(texts, [1] * len(texts), excess())
            # Once no column can be dropped, numbers are folded too: no digit is ever cut.
            _shrink(columns, [1] * len(columns), excess())
        if excess() <= 0 or not optional:
            return dropped
        columns.remove(optional[-1])
        dropped.insert(0, optional[-1])


def _shrink(columns: Sequence[_Shown], least: Sequence[int], excess: int) -> None:
    """Fold the widest columns, character by character, but none below its least width."""
    limits = list(zip(columns, least, strict=True))
    for _ in range(excess):
        foldable = [column for column, limit in limits if column.width > limit]
        if not foldable:
            break
        max(foldable, key=lambda column: column.width).width -= 1


def _breakable(cell: str, width: int) -> str:
    """Break paths wider than a column behind a slash, dash, dot or underscore, if they have one."""
    if "/" not in cell:
        return cell
    words = cell.split(" ")
    return " ".join(_broken(word, width) if cell_len(word) > width else word for word in words)


def _broken(word: str, width: int) -> str:
    lines = [""]
    for part in _PARTS.findall(word):
        if lines[-1] and cell_len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _lines(columns: Sequence[_Shown], cells: Sequence[str], screen: Screen) -> list[str]:
    """Return a row of the table: a line, or several with a folded cell."""
    folded = [_folded(*each, screen) for each in zip(columns, cells, strict=True)]
    most = max((len(parts) for parts, _ in folded), default=0)
    filled = [parts + [guide] * (most - len(parts)) for parts, guide in folded]
    lines = []
    for parts in zip(*filled, strict=True):
        line = " " * INDENT
        for column, part in zip(columns, parts, strict=True):
            space = " " * (column.width - cell_len(part))
            line += (part + space if column.is_text else space + part) + " " * GUTTER
        lines.append(line.rstrip())
    return lines


def _folded(column: _Shown, cell: str, screen: Screen) -> tuple[list[str], str]:
    """Return the lines of a cell, and what fills it below them: the guide of a tree goes on."""
    guide = found[0] if column.is_drawn and (found := _GUIDE.match(cell)) else ""
    if cell_len(cell) <= column.width:
        return [cell], guide.translate(_BELOW)
    if column.width <= len(guide):  # no room for a drawing
        guide = ""
    width = column.width - len(guide)
    text = Text(_breakable(cell[len(guide) :], width))
    parts = text.wrap(screen.console, width, overflow="fold")
    first, below = guide, guide.translate(_BELOW)
    return [
        (below if number else first) + part.plain.rstrip() for number, part in enumerate(parts)
    ], below
