# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables, and their declarations: each column once, with its name, unit and a line of help."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.results import Unit


class Show(enum.Enum):
    """Where a column is shown; JSON, CSV, Parquet and DataFrames always have it."""

    ALWAYS = "always"
    """On every screen."""
    WIDE = "wide"
    """On a screen that is wide enough."""
    DATA = "data"
    """Not on a screen."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    unit: Unit = Unit.COUNT
    label: str = ""
    """Heading on screen, at most five words; the column's name where empty."""
    show: Show = Show.WIDE
    help: str = ""
    """One line: what ``--help``, HTML tooltips, notebooks and the JSON schema say of it."""
    get: Callable[[Any], Any] | None = None
    """The values, given the rows of the table; by default their column of the same name."""
    is_drawn: bool = False
    """Whether lines and spaces of its texts are a drawing, such as a tree."""
    type: str = ""
    """C type of what is at an address, such as ``struct super_block``; empty for other units.

    The column ``address`` of a table is that of the object that a row describes."""


@dataclass
class Table:
    """A named DataFrame whose columns have units. Rows are in the order to be read."""

    frame: pd.DataFrame
    columns: Mapping[str, Column]
    title: str = ""
    note: str = ""
    detail: bool = False
    """Too long for a screen: in data only."""
    is_known: bool = True
    """Whether what it holds could be read; if not, it is empty, and a gap says why."""

    def __post_init__(self) -> None:
        missing = [name for name in self.columns if name not in self.frame.columns]
        extra = [name for name in self.frame.columns if name not in self.columns]
        if missing or extra:
            raise ValueError(f"{self.title!r}: columns missing {missing}, undescribed {extra}")

    @staticmethod
    def of(title: str, columns: Mapping[str, tuple[Any, Column]], *, detail: bool = False) -> Table:
        """Make a table from its columns: by name their values, equally many, and declaration."""
        return Table(
            pd.DataFrame({name: values for name, (values, _) in columns.items()}),
            {name: column for name, (_, column) in columns.items()},
            title,
            detail=detail,
        )

    def largest_first(self, key: str, *names: str) -> Table:
        """Sort by descending ``key``, and by ascending ``names`` where that is equal."""
        self.frame = self.frame.sort_values(
            [key, *names], ascending=[False] + [True] * len(names), ignore_index=True
        )
        return self


@dataclass(frozen=True)
class TableSpec:
    """The declaration of a table, from which help, schema and every table itself are made."""

    name: str
    """Key of the table in a result."""
    title: str
    columns: Mapping[str, Column]
    help: str = ""
    """One line: what a row is."""
    largest_first: tuple[str, ...] = ()
    """Columns to sort by, the first descending, the others ascending; unsorted where empty."""
    detail: bool = False
    """Too long for a screen: in data only."""
    key: tuple[str, ...] = ()
    """Columns that together name a row, equally in every dump of a machine."""
    series: tuple[str, ...] = ()
    """Amounts that ``kcensus record`` keeps of the largest rows, which the first of them ranks.
    Amounts of rows with the same name are added."""

    def of(self, rows: Any, note: str = "") -> Table:
        """Make the table.

        :param rows: what the columns' getters take; a column without a getter is
            ``rows[column's name]`` (a DataFrame or a mapping of arrays)
        """
        frame = pd.DataFrame(
            {
                name: column.get(rows) if column.get else rows[name]
                for name, column in self.columns.items()
            }
        ).reset_index(drop=True)
        table = Table(frame, self.columns, self.title, note, self.detail)
        return table.largest_first(*self.largest_first) if self.largest_first else table


def ratios(part: npt.ArrayLike, whole: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return ``part / whole`` element by element, 0 where ``whole`` is 0.

    :param part: numbers, shape (n,)
    :param whole: numbers, shape (n,), or one number
    """
    parts = np.asarray(part, np.float64)
    wholes = np.broadcast_to(np.asarray(whole, np.float64), parts.shape)
    return np.divide(parts, wholes, out=np.zeros(len(parts)), where=wholes != 0)
