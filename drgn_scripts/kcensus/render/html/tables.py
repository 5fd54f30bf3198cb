# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures and tables on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kcensus.analyses import analyses
from kcensus.charts import shortened
from kcensus.human import human
from kcensus.render import plain
from kcensus.render.html.cards import first_links
from kcensus.render.html.text import breakable
from kcensus.reports import Section
from kcensus.results import Bound, Figure, Result, Unit
from kcensus.results.tables import Column, Table
from kcensus.text import printable

_MAX_ROWS = 100
"""Rows of a table on the page; JSON, CSV and Parquet have all."""
_MAX_HEADLINE = 4
_SHORT_CELL, _LONG_CELL = 32, 60
"""Most characters of a text column with one line per cell, and least ones with several words in a
line."""


def tiles(section: Section) -> list[tuple[str, str]]:
    """Return the names and values of a section's most telling figures, without zeros.

    Where all are 0, the first one says it.
    """
    summary = section.result.summary if section.result else {}
    first = section.headline_keys(1)
    return nonzero_tiles(section) or [plain.shown_figure(key, summary[key]) for key in first]


def nonzero_tiles(section: Section) -> list[tuple[str, str]]:
    """Return the tiles of a section; empty if all are 0."""
    summary = section.result.summary if section.result else {}
    keys = section.headline_keys(_MAX_HEADLINE)
    return [plain.shown_figure(k, summary[k]) for k in keys if not _is_nothing(summary[k])]


def _is_nothing(figure: Figure) -> bool:
    return figure.value == 0 and figure.bound is Bound.EXACT


def figures(result: Result) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Return the names and values of known nonzero figures, and the names of zeros and unknowns."""
    shown, zeros, unknown = [], [], []
    for key, figure in result.summary.items():
        if plain.plain(figure.value) is None:
            unknown.append(plain.label(key, figure.label))
        elif plain.is_zero(figure):
            zeros.append(plain.label(key, figure.label))
        else:
            shown.append(plain.shown_figure(key, figure))
    return shown, zeros, unknown


def first_tables(result: Result) -> Sequence[str]:
    """Return the tables that are open at first."""
    known = analyses().get(result.analysis)
    return known.first_tables if known and known.first_tables else tuple(result.tables)


@dataclass(frozen=True)
class ShownTable:
    """A table in the form of the page."""

    name: str
    title: str
    note: str
    total: int
    columns: Sequence[tuple[Column, str, str]]
    """Declaration, heading and class of each."""
    rows: Sequence[Sequence[tuple[str | Markup, str]]]
    """Text of each cell, and the number to sort by; empty if that is the text."""


def shown_tables(
    result: Result, rows: int = _MAX_ROWS, longest: int | None = None, *, with_drawings: bool = True
) -> Iterator[ShownTable]:
    """Yield the tables with content that fit on a screen.

    :param rows: most rows of each table
    :param longest: characters of a text; longer ones are shortened in the middle
    :param with_drawings: also tables that are drawings of characters
    """
    for name, table in result.tables.items():
        is_drawing = all(column.is_drawn for column in table.columns.values())
        if is_drawing and not with_drawings:
            continue
        if plain.has_content(table) and not table.detail:
            yield _shown_table(name, table, rows, longest)


def _shown_table(name: str, table: Table, most: int, max_text: int | None) -> ShownTable:
    frame = table.frame.head(most)
    columns, cells = [], []
    for key, column in table.columns.items():
        values = plain.shown_column(frame[key], column)
        if not plain.is_shown(column, values):
            continue
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        style = "short" if longest <= _SHORT_CELL else "prose" if longest > _LONG_CELL else ""
        if not any(isinstance(value, str) for value in values):
            style = "n"
        if column.is_drawn:
            style = "drawn"
        columns.append((column, plain.label(key, column.label), style))
        links = first_links() if key == "patch" else {}
        cells.append([_cell(value, column.unit, links, max_text) for value in values])
    title = plain.label(name, table.title)
    rows = list(zip(*cells, strict=True))
    return ShownTable(name, title, table.note, len(table.frame), columns, rows)


def _cell(
    value: plain.Plain, unit: Unit, links: Mapping[str, str], max_text: int | None
) -> tuple[str | Markup, str]:
    text = human(value, unit)
    if isinstance(value, str):
        link = Markup('<a href="{}" rel="noreferrer">{}</a>')
        shown = breakable(shortened(printable(text), max_text) if max_text else text)
        return link.format(links[value], shown) if value in links else shown, ""
    number = int(value) if isinstance(value, bool) else value
    return text, "" if number is None or text == str(number) else str(number)
