# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables, and their declarations: each column once, with name, unit, heading, help and getter."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.typing import DataFrameGroupBy

from kcensus.results.figures import Unit

Getter = Callable[[Any], Any] | str
"""A function; or the name of an attribute, with dots for nested ones."""


class Show(enum.Enum):
    """Screens with a column; JSON, CSV, Parquet and DataFrames always have it."""

    ALWAYS = "always"
    """On every screen."""
    WIDE = "wide"
    """On a screen that is wide enough."""
    DATA = "data"
    """Not on a screen."""


ALWAYS, WIDE, DATA = Show.ALWAYS, Show.WIDE, Show.DATA
ADDRESS, BYTES, COUNT, NONE = Unit.ADDRESS, Unit.BYTES, Unit.COUNT, Unit.NONE
PAGES, RATIO, SECONDS, TEXT = Unit.PAGES, Unit.RATIO, Unit.SECONDS, Unit.TEXT
"""Short names, so that most declarations of columns fit on a line."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    unit: Unit = Unit.COUNT
    label: str = ""
    """Heading on screen, at most five words; the column's name, with spaces, if empty."""
    show: Show = Show.WIDE
    help: str = ""
    """One line for ``--help``, HTML tooltips, notebooks and the JSON schema."""
    get: Getter = ""
    """Getter of the values from the rows (:meth:`TableSpec.of`); by default the column's name."""
    is_drawn: bool = False
    """Whether lines and spaces of its texts are a drawing, such as a tree."""
    unknown: tuple[int, ...] = ()
    """Numbers that stand for an unknown or absent one; screens show a dash."""
    type: str = ""
    """C type of the object at an address, such as ``struct super_block``. The column ``address`` of
    a table has the object of the row."""

    def heading(self, name: str) -> str:
        """Return the heading of the column ``name``."""
        return self.label or name.replace("_", " ")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the getter, which pickle rejects if it is a lambda."""
        return vars(self) | {"get": ""}

    def values(self, name: str, rows: Any) -> Any:
        """Return the values of the column ``name`` for rows of :meth:`TableSpec.of`."""
        get = self.get or name
        if not isinstance(rows, (list, tuple)):
            values = _call(get, rows, name)
            # Not its array: texts of dtype object may have values that the string dtype rejects.
            return values.reset_index(drop=True) if isinstance(values, pd.Series) else values
        cells = _cells(get, rows, name)
        if self.unit is Unit.ADDRESS:
            return np.array(cells, np.uint64)
        if self.unit is Unit.TEXT or all(cell is not None for cell in cells):
            return cells
        is_exact = all(cell is None or isinstance(cell, int) for cell in cells)
        return pd.array(cells, "Int64" if is_exact else "Float64")


def _call(getter: Getter, rows: Any, name: str = "") -> Any:
    """Return what a getter takes from rows; in a mapping or frame, the entry ``name`` is first."""
    entries = rows.obj if isinstance(rows, DataFrameGroupBy) else rows
    if not isinstance(entries, (Mapping, pd.DataFrame)):
        return attrgetter(getter)(rows) if isinstance(getter, str) else getter(rows)
    if name not in entries and not isinstance(getter, str):
        return getter(rows)
    entry = name if name in entries else getter
    if entries is rows:
        return rows[entry]
    keys = rows.size().index
    return keys.get_level_values(entry) if entry in keys.names else rows[entry].sum()


def _cells(getter: Getter, rows: Sequence[Any], name: str) -> list[Any]:
    """Return what a getter takes from each row; mappings are as in :func:`_call`."""
    if any(isinstance(row, Mapping) for row in rows[:1]):
        return [_call(getter, row, name) for row in rows]
    return [*map(attrgetter(getter) if isinstance(getter, str) else getter, rows)]


@dataclass
class Table:
    """A named DataFrame with units for its columns. Rows are in the order to be read."""

    frame: pd.DataFrame
    columns: Mapping[str, Column]
    title: str = ""
    note: str = ""
    detail: bool = False
    """Too long for a screen: in data only."""
    is_known: bool = True
    """Whether its content could be read; if not, it is empty, and a gap has the reason."""

    def __post_init__(self) -> None:
        missing = [name for name in self.columns if name not in self.frame.columns]
        extra = [name for name in self.frame.columns if name not in self.columns]
        if missing or extra:
            raise ValueError(f"{self.title!r}: columns missing {missing}, undescribed {extra}")

    @staticmethod
    def of(title: str, columns: Mapping[str, tuple[Any, Column]], *, detail: bool = False) -> Table:
        """Make a table from its columns, by name: equally many values, and the declaration."""
        return Table(
            pd.DataFrame({name: values for name, (values, _) in columns.items()}),
            {name: column for name, (_, column) in columns.items()},
            title,
            detail=detail,
        )

    def largest_first(self, key: str, *names: str) -> Table:
        """Sort by descending ``key``, and by ascending ``names`` among equal ones."""
        self.frame = self.frame.sort_values(
            [key, *names], ascending=[False] + [True] * len(names), ignore_index=True
        )
        return self


@dataclass(frozen=True)
class TableSpec:
    """The declaration of a table: the source of help, schema and the table itself."""

    name: str
    """Key of the table in a result."""
    title: str
    columns: Mapping[str, Column]
    help: str = ""
    """One line about a row."""
    largest_first: tuple[str, ...] = ()
    """Columns to sort by, the first descending, the others ascending; unsorted if empty."""
    detail: bool = False
    """Too long for a screen: in data only."""
    key: tuple[str, ...] = ()
    """Columns that together name a row, equally in every dump of a machine."""
    series: tuple[str, ...] = ()
    """Amounts of the largest rows that ``kcensus record`` keeps; the first one ranks the rows.
    Amounts of rows with the same name are added."""

    rows: Getter = lambda figures: figures
    """The rows of the table for :meth:`of`, given the figures of its analysis; None if they have no
    such table."""
    keep: Getter | None = None
    """Mask or numbers of the rows to keep, given an object with all rows."""
    is_known: Callable[[Any], bool] = lambda figures: True
    """Whether the content could be read, given the figures."""
    keeps_types: bool = False
    """Whether its numbers stay of their types: a missing one does not turn others into floats."""
    hides_empty: bool = False
    """Whether columns without any value are in data only."""

    def of(self, rows: Any, note: str = "") -> Table:
        """Make the table.

        :param rows: a list of rows for the getters (None is a missing number); or an object with
            all rows, of which each getter takes a whole column. In a mapping or a frame, the entry
            with the column's name comes first; in the groups of a frame, this key or the sums
        """
        table = Table(self.frame(rows), self.columns, self.title, note, self.detail)
        if self.hides_empty:
            table.columns = {
                name: replace(column, show=DATA) if table.frame[name].isna().all() else column
                for name, column in self.columns.items()
            }
        return table.largest_first(*self.largest_first) if self.largest_first else table

    def frame(self, rows: Any) -> pd.DataFrame:
        """Return the values of all columns in the order of the rows (see :meth:`of`)."""
        if self.keeps_types:
            cells = {
                name: _cells(each.get or name, rows, name) for name, each in self.columns.items()
            }
            return pd.DataFrame(cells, dtype=object)
        columns = {name: each.values(name, rows) for name, each in self.columns.items()}
        frame = pd.DataFrame(columns)
        if frame.empty:  # pandas makes floats of nothing
            texts = [name for name, each in self.columns.items() if each.unit is TEXT]
            frame = frame.astype(dict.fromkeys(texts, "str"))
        if self.keep is not None:
            frame = frame.iloc[np.asarray(_call(self.keep, rows))].reset_index(drop=True)
        return frame


def make_tables(specs: Iterable[TableSpec], figures: Any) -> dict[str, Table]:
    """Make the tables of an analysis from its figures, except those without rows (None)."""
    made = {}
    for spec in specs:
        if (rows := _call(spec.rows, figures)) is not None:
            made[spec.name] = replace(spec.of(rows), is_known=spec.is_known(figures))
    return made


def ratios(part: npt.ArrayLike, whole: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return ``part / whole`` element by element, 0 where ``whole`` is 0.

    :param part: numbers, shape (n,)
    :param whole: numbers, shape (n,), or one number
    """
    parts = np.asarray(part, np.float64)
    wholes = np.broadcast_to(np.asarray(whole, np.float64), parts.shape)
    return np.divide(parts, wholes, out=np.zeros(len(parts)), where=wholes != 0)


def address(type_: str, label: str = "", help_: str = "", get: Getter = "") -> Column:
    """Return the column of the addresses of C objects.

    :param type_: type of the objects, such as ``struct super_block``; its name is the heading
    """
    heading = label or type_.removeprefix("struct ")
    return Column(ADDRESS, heading, DATA, help_ or f"{type_} pointer.", get, type=type_)
