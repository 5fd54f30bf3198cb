# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare two results of the same analysis: figure by figure, row by row.

Rows are matched by name: by the fewest leading text columns that are unique in both tables. The
largest changes come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
            Finding(
                id="kernels-differ",
                severity=Severity.INFO,
                title=f"the kernels differ: {first} before, {second} after",
            )
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


_TEXT = Unit.TEXT
_FIGURES = TableSpec(
    "figures",
    "Figures",
    {
        "analysis": Column(_TEXT, "", Show.ALWAYS, "Name of the analysis."),
        "figure": Column(_TEXT, "key", Show.DATA, "Key in its summary."),
        "label": Column(_TEXT, "figure", Show.ALWAYS, "The figure."),
        "before": Column(_TEXT, "", Show.ALWAYS, "Value before."),
        "after": Column(_TEXT, "", Show.ALWAYS, "Value after."),
        "change": Column(_TEXT, "", Show.ALWAYS, "After minus before."),
        "before_value": Column(Unit.NONE, "", Show.DATA, "Exact value before."),
        "after_value": Column(Unit.NONE, "", Show.DATA, "Exact value after."),
        "change_value": Column(Unit.NONE, "", Show.DATA, "Exact change."),
        "unit": Column(_TEXT, "", Show.DATA, "Unit of the values."),
    },
    "A figure of a summary that differs, the largest share of change first.",
)


def _figures(pairs: Sequence[tuple[Result, Result]]) -> Table:
    """Return the figures that differ, the largest share of change first."""
    rows = []
    for older, newer in pairs:
        for key in {**older.summary, **newer.summary}:
            sides = older.summary.get(key), newer.summary.get(key)
            before, after = (_plain(side.value if side else None) for side in sides)
            figure = sides[0] or sides[1]
            if figure is None or before == after:
                continue
            old, new = _number(before), _number(after)
            change = None if old is None or new is None else new - old
            share = abs(change) / max(abs(old or 0), abs(new or 0)) if change else 2.0
            sign = "+" if (change or 0) > 0 else ""
            row = (
                older.analysis,
                key,
                figure.label or key,
                human(before, figure.unit),
                human(after, figure.unit),
                sign + human(change, figure.unit),
                old,
                new,
                change,
                figure.unit.value,
            )
            rows.append((-share, *row))
    rows.sort(key=lambda row: row[:3])
    # dtype=object: a missing number must not turn the others into floats.
    columns = pd.Index(["share", *_FIGURES.columns])
    return _FIGURES.of(pd.DataFrame(rows, columns=columns, dtype=object))


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
    older, newer = (table.frame[list(columns)] for table in (before, after))
    # A table without rows has no types; give it those of the other.
    if older.empty:
        older = newer.head(0)
    elif newer.empty:
        newer = older.head(0)
    numeric = [
        name
        for name, column in columns.items()
        if column.unit in _NUMBERS and {older[name].dtype.kind, newer[name].dtype.kind} <= {*"iuf"}
    ]
    keys = _keys(older, newer, columns)
    if not any(columns[name].unit in _AMOUNTS for name in numeric) or keys is None:
        return None
    old, new = (_indexed(frame, keys, numeric) for frame in (older, newer))
    rows = old.index.union(new.index)
    was, now = rows.isin(old.index), rows.isin(new.index)
    old, new = old.reindex(rows, fill_value=0), new.reindex(rows, fill_value=0)
    changes = {name: _difference(old[name], new[name]) for name in numeric}
    changed = {name: _changed(old[name], new[name], change) for name, change in changes.items()}
    main = _main(columns, changed)

    names = rows.to_frame(index=False)
    shown: dict[str, tuple[Any, Column]] = {
        f"name_{key}" if key in _OWN else key: (names[key], replace(columns[key], show=Show.ALWAYS))
        for key in keys
        if key != _OCCURRENCE
    }
    if _OCCURRENCE in keys:
        shown[_OCCURRENCE] = names[_OCCURRENCE], Column(Unit.NONE, "", Show.DATA)
    heading = "row" if "state" in keys else "state"
    state = Column(_TEXT, heading, Show.ALWAYS, "new, gone or changed.")
    amount, label = replace(columns[main], show=Show.ALWAYS), columns[main].label or main
    shown |= {
        "state": (np.where(~was, "new", np.where(~now, "gone", "changed")), state),
        "before": (old[main].to_numpy(), replace(amount, label=f"{label} before")),
        "after": (new[main].to_numpy(), replace(amount, label=f"{label} after")),
        "change": (changes[main], replace(amount, label="change")),
    }
    shown |= {
        f"{name}_change": (
            changes[name],
            Column(columns[name].unit, f"{columns[name].label or name} change", Show.DATA),
        )
        for name in numeric
        if name != main
    }
    table = Table.of(before.title, shown, detail=before.detail and after.detail)
    frame = table.frame[np.logical_or.reduce([~(was & now), *changed.values()])]
    table.frame = frame.sort_values(
        "change", key=lambda change: -change.astype(float).abs(), kind="stable", ignore_index=True
    )
    return table


def _main(columns: Mapping[str, Column], changed: Mapping[str, Any]) -> str:
    """Return the amount that ranks rows; one that changed, unless none did."""
    return min(
        (name for name in changed if columns[name].unit in _AMOUNTS),
        key=lambda name: (
            not changed[name].any(),
            _AMOUNTS.index(columns[name].unit),
            list(Show).index(columns[name].show),
        ),
    )


def _keys(
    before: pd.DataFrame, after: pd.DataFrame, columns: Mapping[str, Column]
) -> list[str] | None:
    """Return the fewest leading names that are unique; with an ordinal where all are not."""
    names = [
        name
        for name, column in columns.items()
        if (column.unit is Unit.TEXT or (column.unit is Unit.NONE and column.show is Show.ALWAYS))
        and before[name].dtype.kind == after[name].dtype.kind != "b"
    ]
    for count in range(1, len(names) + 1):
        keys = names[:count]
        if not any(frame.duplicated(keys).any() for frame in (before, after)):
            return keys
    return [*names, _OCCURRENCE] if names else None


def _indexed(frame: pd.DataFrame, keys: Sequence[str], numeric: Sequence[str]) -> pd.DataFrame:
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
    if any(side.dtype.kind == "f" or side.hasnans for side in (before, after)):
        with np.errstate(invalid="ignore"):  # infinite on both sides: unchanged
            return after.to_numpy(float, na_value=np.nan) - before.to_numpy(float, na_value=np.nan)
    return after.to_numpy().astype(np.int64) - before.to_numpy().astype(np.int64)
