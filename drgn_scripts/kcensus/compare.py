# SPDX-License-Identifier: LGPL-2.1-or-later
"""What changed between two results of the same analysis: figure by figure, row by row.

Rows are the same where their names are: the fewest leading text columns that tell the rows of both
tables apart. What grew or shrank most stands first.
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
from kcensus.results.tables import Column, Show, Table

_AMOUNTS = (Unit.BYTES, Unit.PAGES, Unit.SECONDS, Unit.COUNT)
"""What can grow and shrink, and which of them ranks rows, in this order."""
_NUMBERS = (*_AMOUNTS, Unit.RATIO)
_OCCURRENCE = "occurrence"
_OWN = ("state", "before", "after", "change")
"""Columns of a comparison; a name that is called so is shown as ``name_state``."""


def compare(pairs: Iterable[tuple[Result, Result]], before: str, after: str) -> Result:
    """All that changed, as one result.

    :param pairs: results of the same analyses on both targets
    :param before: name of the first target
    :param after: name of the second
    """
    pairs = list(pairs)
    kernels = [pair[0].kernel for pair in pairs], [pair[1].kernel for pair in pairs]
    first, second = (next(iter(names), "unknown") for names in kernels)
    kernel = first if first == second else f"{first}, then {second}"
    made = Result("diff", f"{before} against {after}", kernel, measures=False)
    made.live = any(result.live for pair in pairs for result in pair)
    if first != second:
        made.findings.append(
            Finding(Severity.INFO, f"the kernels differ: {first} before, {second} after")
        )
    made.tables["figures"] = _figures(pairs)
    for older, newer in pairs:
        for name, table in older.tables.items():
            other = newer.tables.get(name)
            changed = None if other is None else compare_tables(table, other)
            if changed is not None and len(changed.frame):
                changed.title = f"{older.analysis}: {changed.title}"
                made.tables[f"{older.analysis.replace('-', '_')}_{name}"] = changed
    made.summary |= {
        "figures_changed": Figure(
            len(made.tables["figures"].frame), Unit.COUNT, "figures that changed"
        ),
        "rows_changed": Figure(
            sum(len(table.frame) for table in made.tables.values())
            - len(made.tables["figures"].frame),
            Unit.COUNT,
            "rows of tables that changed",
        ),
    }
    for which, side in ((before, 0), (after, 1)):
        for pair in pairs:
            made.gaps += [
                Gap(f"{gap.what} in {which}", gap.reason, gap.count, gap.effect)
                for gap in pair[side].gaps
            ]
    return made


@dataclass(frozen=True)
class _Change:
    """A figure of a summary that is not the same."""

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
        """How much of the larger value changed, 0 to 2; what is no number changed altogether."""
        if self.value is None:
            return 2.0
        return float(abs(self.value) / max(abs(self.before), abs(self.after)))

    @property
    def shown(self) -> str:
        text = human(self.value, self.figure.unit)
        return f"+{text}" if self.value is not None and self.value > 0 else text


def _figures(pairs: Sequence[tuple[Result, Result]]) -> Table:
    """Figures of the summaries that are not the same, with the largest share of change first."""
    rows = []
    for older, newer in pairs:
        for key in dict.fromkeys([*older.summary, *newer.summary]):
            one, other = older.summary.get(key), newer.summary.get(key)
            figure = one or other
            before, after = (None if each is None else _plain(each.value) for each in (one, other))
            if figure is not None and before != after:
                rows.append(_Change(older.analysis, key, figure, before, after))
    rows.sort(key=lambda row: (-row.share, row.analysis, row.key))
    text, none = Unit.TEXT, Unit.NONE
    return Table.of(
        "Figures",
        {
            "analysis": ([row.analysis for row in rows], Column(text, "analysis", Show.ALWAYS)),
            "figure": ([row.key for row in rows], Column(text, "key", Show.DATA)),
            "label": (
                [row.figure.label or row.key for row in rows],
                Column(text, "figure", Show.ALWAYS),
            ),
            "before": (
                [human(row.before, row.figure.unit) for row in rows],
                Column(text, "", Show.ALWAYS),
            ),
            "after": (
                [human(row.after, row.figure.unit) for row in rows],
                Column(text, "", Show.ALWAYS),
            ),
            "change": ([row.shown for row in rows], Column(text, "change", Show.ALWAYS)),
            "before_value": (
                _objects([_number(row.before) for row in rows]),
                Column(none, "", Show.DATA),
            ),
            "after_value": (
                _objects([_number(row.after) for row in rows]),
                Column(none, "", Show.DATA),
            ),
            "change_value": (_objects([row.value for row in rows]), Column(none, "", Show.DATA)),
            "unit": ([row.figure.unit.value for row in rows], Column(text, "unit", Show.DATA)),
        },
    )


def _plain(value: Any) -> Any:
    """A scalar of Python, where it was one of NumPy; None, where it was no number."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> int | float | None:
    return None if isinstance(value, (bool, str)) else value


def _objects(values: Sequence[Any]) -> pd.Series[Any]:
    """Numbers as they are: one that is missing must not turn the others into floats."""
    return pd.Series(list(values), dtype=object)


def compare_tables(before: Table, after: Table) -> Table | None:
    """Rows that were added, removed or changed, the largest change first.

    The amount that ranks them is the first column of bytes that changed at all, else of pages,
    seconds or counts, and of these the first that is always shown.

    :return: None where a table has nothing to compare: no names, or no amounts
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
    was, now = old.index, new.index
    old, new = old.reindex(rows, fill_value=0), new.reindex(rows, fill_value=0)
    changes = {name: _difference(old[name], new[name]) for name in numeric}
    moved = {name: _moved(old[name], new[name], change) for name, change in changes.items()}
    main = _main(columns, numeric, moved)
    differs = np.zeros(len(rows), bool)
    for change in moved.values():
        differs |= change
    differs |= ~(rows.isin(was) & rows.isin(now))
    state = np.where(~rows.isin(was), "new", np.where(~rows.isin(now), "gone", "changed"))
    named = {key: f"name_{key}" if key in _OWN else key for key in keys}
    frame = rows.to_frame(index=False).rename(columns=named)
    frame["state"] = state
    described = {
        named[key]: Column(columns[key].unit, columns[key].label, Show.ALWAYS)
        if key in columns
        else Column(Unit.NONE, "", Show.DATA)
        for key in keys
    }
    described["state"] = Column(Unit.TEXT, "row" if "state" in keys else "state", Show.ALWAYS)
    unit, label = columns[main].unit, columns[main].label or main
    for name, values, heading in (
        ("before", old[main].to_numpy(), f"{label} before"),
        ("after", new[main].to_numpy(), f"{label} after"),
        ("change", changes[main], "change"),
    ):
        frame[name] = values
        described[name] = Column(unit, heading, Show.ALWAYS)
    for name in numeric:
        if name != main:
            frame[f"{name}_change"] = changes[name]
            described[f"{name}_change"] = Column(
                columns[name].unit, f"{columns[name].label or name} change", Show.DATA
            )
    frame = frame[differs]
    order = np.abs(frame["change"].to_numpy().astype(float))
    frame = frame.iloc[np.argsort(-order, kind="stable")].reset_index(drop=True)
    return Table(frame, described, before.title, detail=before.detail)


def _typed(table: Table, like: Table, columns: Mapping[str, Column]) -> Table:
    """A table without rows has no types of its own: it gets those of the other."""
    if len(table.frame):
        return table
    empty = like.frame.head(0)[list(columns)]
    return Table(empty, {name: table.columns[name] for name in columns}, table.title)


def _is_numeric(table: Table, name: str) -> bool:
    return table.frame[name].dtype.kind in "iuf"


def _main(columns: Mapping[str, Column], numeric: Sequence[str], moved: Mapping[str, Any]) -> str:
    """The amount that ranks rows; one that changed nowhere only where none did."""
    amounts = [name for name in numeric if columns[name].unit in _AMOUNTS]
    return min(
        amounts,
        key=lambda name: (
            not moved[name].any(),
            _AMOUNTS.index(columns[name].unit),
            list(Show).index(columns[name].show),
        ),
    )


def _keys(before: Table, after: Table, columns: Mapping[str, Column]) -> list[str] | None:
    """The fewest leading names that tell rows apart; with an ordinal where all do not suffice."""
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
        frame = frame.assign(
            **{_OCCURRENCE: frame.groupby(list(keys[:-1]), dropna=False).cumcount()}
        )
    return frame.set_index(list(keys))[list(numeric)]


def _moved(before: pd.Series[Any], after: pd.Series[Any], change: Any) -> Any:
    """Which rows are not the same: what is known on one side alone changed, by whatever."""
    known = before.isna().to_numpy() == after.isna().to_numpy()
    return (np.nan_to_num(change.astype(float)) != 0) | ~known


def _difference(before: pd.Series[Any], after: pd.Series[Any]) -> Any:
    """``after - before``; of whole numbers exactly, unsigned ones too."""
    sides = (before, after)
    if any(side.dtype.kind == "f" or side.hasnans for side in sides):
        old, new = (side.to_numpy(float, na_value=np.nan) for side in sides)
        with np.errstate(invalid="ignore"):  # what is infinite on both sides did not change
            return new - old
    old, new = (side.to_numpy().astype(np.int64) for side in sides)
    return new - old
