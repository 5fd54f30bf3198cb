# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare two results of the same analysis: figure by figure, row by row.

Rows are matched by name: by the fewest leading text columns that are unique in both tables. The
largest changes come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kcensus.human import human
from kcensus.results import Figure, Finding, Gap, Result, Severity, Unit
from kcensus.results.tables import Column, Show, Table, TableSpec

_AMOUNTS = (Unit.BYTES, Unit.PAGES, Unit.SECONDS, Unit.COUNT)
"""Units of columns that can rank rows, the preferred one first."""
_NUMBERS = (*_AMOUNTS, Unit.RATIO)
_OCCURRENCE = "occurrence"
_OWN = ("state", "before", "after", "change")
"""Columns of a comparison; a compared column of that name is shown as ``name_state``."""


def compare(pairs: Iterable[tuple[Result, Result]], before: str, after: str) -> Result:
    """Return all differences as one result.

    :param pairs: results of the same analyses on both targets
    :param before: name of the first target
    :param after: name of the second
    """
    pairs = list(pairs)
    first, second = (next((pair[side].kernel for pair in pairs), "unknown") for side in (0, 1))
    made = Result("diff", f"{before} against {after}", first, measures=False)
    made.live = any(result.live for pair in pairs for result in pair)
    if first != second:
        made.kernel = f"{first}, then {second}"
        made.findings.append(
            Finding(Severity.INFO, f"the kernels differ: {first} before, {second} after")
        )
    made.tables["figures"] = figures = _figures(pairs)
    for older, newer in pairs:
        for name, table in older.tables.items():
            other = newer.tables.get(name)
            changes = None if other is None else compare_tables(table, other)
            if changes is not None and len(changes.frame):
                changes.title = f"{older.analysis}: {changes.title}"
                made.tables[f"{older.analysis.replace('-', '_')}_{name}"] = changes
    rows = sum(len(table.frame) for table in made.tables.values() if table is not figures)
    made.summary |= {
        "figures_changed": Figure(len(figures.frame), label="figures that changed"),
        "rows_changed": Figure(rows, label="table rows that changed"),
    }
    made.gaps += [
        Gap(f"{gap.what} in {name}", gap.reason, gap.count, gap.effect)
        for side, name in ((0, before), (1, after))
        for pair in pairs
        for gap in pair[side].gaps
    ]
    return made


@dataclass(frozen=True)
class _Change:
    """A figure of a summary that differs."""

    analysis: str
    key: str
    figure: Figure
    before: Any
    after: Any

    @property
    def value(self) -> int | float | None:
        if _number(self.before) is None or _number(self.after) is None:
            return None
        change: int | float = self.after - self.before
        return change

    @property
    def share(self) -> float:
        """The change as a share of the larger value, 0 to 2; 2 for values that are not numbers."""
        if self.value is None:
            return 2.0
        return float(abs(self.value) / max(abs(self.before), abs(self.after)))

    def shown(self, value: Any) -> str:
        return human(value, self.figure.unit)


def _each(get: Any) -> Any:
    """Return a getter of a column from the changes, with values of any type."""
    # dtype=object: a missing number must not turn the others into floats.
    return lambda changes: pd.Series([get(change) for change in changes], dtype=object)


def _text(label: str, show: Show, help_: str, get: Any) -> Column:
    return Column(Unit.TEXT, label, show, help_, lambda changes: [get(each) for each in changes])


_FIGURES = TableSpec(
    "figures",
    "Figures",
    {
        "analysis": _text("analysis", Show.ALWAYS, "Name of the analysis.", lambda c: c.analysis),
        "figure": _text("key", Show.DATA, "Key in its summary.", lambda c: c.key),
        "label": _text("figure", Show.ALWAYS, "The figure.", lambda c: c.figure.label or c.key),
        "before": _text("", Show.ALWAYS, "Value before.", lambda c: c.shown(c.before)),
        "after": _text("", Show.ALWAYS, "Value after.", lambda c: c.shown(c.after)),
        "change": _text(
            "change",
            Show.ALWAYS,
            "After minus before.",
            lambda c: ("+" if (c.value or 0) > 0 else "") + c.shown(c.value),
        ),
        "before_value": Column(
            Unit.NONE, "", Show.DATA, "Exact value before.", _each(lambda c: _number(c.before))
        ),
        "after_value": Column(
            Unit.NONE, "", Show.DATA, "Exact value after.", _each(lambda c: _number(c.after))
        ),
        "change_value": Column(Unit.NONE, "", Show.DATA, "Exact change.", _each(lambda c: c.value)),
        "unit": _text("unit", Show.DATA, "Unit of the values.", lambda c: c.figure.unit.value),
    },
    "A figure of a summary that differs, the largest share of change first.",
)


def _figures(pairs: Sequence[tuple[Result, Result]]) -> Table:
    """Return the figures that differ, the largest share of change first."""
    changes = []
    for older, newer in pairs:
        for key in {**older.summary, **newer.summary}:
            sides = older.summary.get(key), newer.summary.get(key)
            before, after = (side and _plain(side.value) for side in sides)
            figure = sides[0] or sides[1]
            if figure is not None and before != after:
                changes.append(_Change(older.analysis, key, figure, before, after))
    changes.sort(key=lambda change: (-change.share, change.analysis, change.key))
    return _FIGURES.of(changes)


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python one; None for what is not a finite number."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> int | float | None:
    return None if isinstance(value, (bool, str)) else value


def compare_tables(before: Table, after: Table) -> Table | None:
    """Return the rows that are new, gone or changed, the largest change first.

    The amount that ranks them is the first column of bytes that changed in any row, else of pages,
    seconds or counts; columns that are always shown are preferred.

    :return: None where there is nothing to compare: no names, or no amounts
    """
    columns = {name: column for name, column in before.columns.items() if name in after.columns}
    before, after = _typed(before, after, columns), _typed(after, before, columns)
    numeric = [
        name
        for name, column in columns.items()
        if column.unit in _NUMBERS and _is_numeric(before, name) and _is_numeric(after, name)
    ]
    keys = _keys(before, after, columns)
    if not any(columns[name].unit in _AMOUNTS for name in numeric) or keys is None:
        return None
    old, new = (_indexed(table, keys, numeric) for table in (before, after))
    rows = old.index.union(new.index)
    was, now = rows.isin(old.index), rows.isin(new.index)
    old, new = old.reindex(rows, fill_value=0), new.reindex(rows, fill_value=0)
    changes = {name: _difference(old[name], new[name]) for name in numeric}
    changed = {name: _changed(old[name], new[name], change) for name, change in changes.items()}
    main = _main(columns, numeric, changed)

    names = {key: f"name_{key}" if key in _OWN else key for key in keys}
    frame = rows.to_frame(index=False).rename(columns=names)
    described = {
        name: Column(columns[key].unit, columns[key].label, Show.ALWAYS, columns[key].help)
        if key in columns
        else Column(Unit.NONE, "", Show.DATA)
        for key, name in names.items()
    }
    frame["state"] = np.where(~was, "new", np.where(~now, "gone", "changed"))
    described["state"] = Column(
        Unit.TEXT, "row" if "state" in keys else "state", Show.ALWAYS, "new, gone or changed."
    )
    unit, label = columns[main].unit, columns[main].label or main
    for name, values, heading in (
        ("before", old[main].to_numpy(), f"{label} before"),
        ("after", new[main].to_numpy(), f"{label} after"),
        ("change", changes[main], "change"),
    ):
        frame[name] = values
        described[name] = Column(unit, heading, Show.ALWAYS, columns[main].help)
    for name in numeric:
        if name != main:
            frame[f"{name}_change"] = changes[name]
            described[f"{name}_change"] = Column(
                columns[name].unit, f"{columns[name].label or name} change", Show.DATA
            )
    frame = frame[np.logical_or.reduce([~(was & now), *changed.values()])]
    order = np.argsort(-np.abs(frame["change"].to_numpy().astype(float)), kind="stable")
    frame = frame.iloc[order].reset_index(drop=True)
    return Table(frame, described, before.title, detail=before.detail)


def _typed(table: Table, like: Table, columns: Mapping[str, Column]) -> Table:
    """Give a table without rows, which has no types, those of the other table."""
    if len(table.frame):
        return table
    empty = like.frame.head(0)[list(columns)]
    return Table(empty, {name: table.columns[name] for name in columns}, table.title)


def _is_numeric(table: Table, name: str) -> bool:
    return table.frame[name].dtype.kind in "iuf"


def _main(columns: Mapping[str, Column], numeric: Sequence[str], changed: Mapping[str, Any]) -> str:
    """Return the amount that ranks rows; one that changed, unless none did."""
    return min(
        (name for name in numeric if columns[name].unit in _AMOUNTS),
        key=lambda name: (
            not changed[name].any(),
            _AMOUNTS.index(columns[name].unit),
            list(Show).index(columns[name].show),
        ),
    )


def _keys(before: Table, after: Table, columns: Mapping[str, Column]) -> list[str] | None:
    """Return the fewest leading names that are unique; with an ordinal where all are not."""
    names = [
        name
        for name, column in columns.items()
        if (column.unit is Unit.TEXT or (column.unit is Unit.NONE and column.show is Show.ALWAYS))
        and before.frame[name].dtype.kind == after.frame[name].dtype.kind != "b"
    ]
    for count in range(1, len(names) + 1):
        keys = names[:count]
        if not any(table.frame.duplicated(keys).any() for table in (before, after)):
            return keys
    return [*names, _OCCURRENCE] if names else None


def _indexed(table: Table, keys: Sequence[str], numeric: Sequence[str]) -> pd.DataFrame:
    frame = table.frame
    if keys[-1] == _OCCURRENCE:
        ordinal = frame.groupby(list(keys[:-1]), dropna=False).cumcount()
        frame = frame.assign(**{_OCCURRENCE: ordinal})
    return frame.set_index(list(keys))[list(numeric)]


def _changed(before: pd.Series[Any], after: pd.Series[Any], change: Any) -> Any:
    """Return which rows differ; a value that is missing on one side only differs."""
    known = before.isna().to_numpy() == after.isna().to_numpy()
    return (np.nan_to_num(change.astype(float)) != 0) | ~known


def _difference(before: pd.Series[Any], after: pd.Series[Any]) -> Any:
    """Return ``after - before``; exact for integers, unsigned ones too."""
    sides = (before, after)
    if any(side.dtype.kind == "f" or side.hasnans for side in sides):
        old, new = (side.to_numpy(float, na_value=np.nan) for side in sides)
        with np.errstate(invalid="ignore"):  # infinite on both sides: unchanged
            return new - old
    old, new = (side.to_numpy().astype(np.int64) for side in sides)
    return new - old
