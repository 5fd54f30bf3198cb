# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as tables of plain Python values.

JSON, CSV and Parquet share this, so that they hold the same values under the same names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kcensus.results import Result, Unit
from kcensus.results.tables import Column, Table
from kcensus.text import printable

if TYPE_CHECKING:
    import pandas as pd

Plain = int | float | str | bool | None

_ROWS_AT_ONCE = 1 << 16

_TEXT = Column(Unit.TEXT)
_NUMBER = Column(Unit.NONE)
_CHECKS = {
    "name": _TEXT,
    "ours": _NUMBER,
    "counter": _NUMBER,
    "difference": _NUMBER,
    "status": _TEXT,
    "unit": _TEXT,
    "source": _TEXT,
    "note": _TEXT,
}
_FINDINGS = {
    "severity": _TEXT,
    "title": _TEXT,
    "evidence": _TEXT,
    "remedy": _TEXT,
    "patch": _TEXT,
    "cost_bytes": Column(Unit.BYTES),
}
_GAPS = {"what": _TEXT, "reason": _TEXT, "count": Column(Unit.COUNT), "effect": _TEXT}

_RESERVED = frozenset({"summary", "checks", "findings", "gaps"})


def plain(value: Any) -> Plain:
    """Return a value as JSON has it.

    None, NaN, NaT, NA and infinities become None; text is escaped by
    :func:`~kcensus.text.printable`.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, bytes)):
        return printable(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "item"):  # a NumPy scalar
        return plain(value.item())
    text = str(value)  # dates and the like
    return None if text in ("NaT", "<NA>") else printable(text)


def plain_column(series: pd.Series[Any]) -> list[Plain]:
    """Return all values of a column, each as :func:`plain` does."""
    if series.dtype.kind in "mM":
        return [plain(value) for value in series]
    values = series.tolist()
    if series.dtype.kind in "iub" and not series.hasnans:
        return values
    # A million rows have a few thousand different names.
    texts: dict[str, str] = {}
    for at, value in enumerate(values):
        if isinstance(value, str):
            text = texts.get(value)
            if text is None:
                text = texts[value] = printable(value)
            values[at] = text
        else:
            values[at] = plain(value)
    return values


def rows(table: Table) -> Iterator[tuple[Plain, ...]]:
    """Yield the rows of a table, converted in chunks: a result may have millions."""
    frame = table.frame
    for start in range(0, len(frame), _ROWS_AT_ONCE):
        part = frame.iloc[start : start + _ROWS_AT_ONCE]
        yield from zip(*(plain_column(part[name]) for name in frame.columns), strict=True)


def identity(result: Result) -> dict[str, Plain]:
    """Return the fields that identify a result."""
    return {
        "analysis": printable(result.analysis),
        "target": printable(result.target),
        "kernel": printable(result.kernel),
        "live": result.live,
    }


def _table(columns: Mapping[str, Column], records: list[tuple[Any, ...]]) -> Table:
    import pandas as pd

    # dtype=object: a missing counter must not turn its neighbours into floats.
    frame = pd.DataFrame(records, columns=pd.Index(list(columns)), dtype=object)
    return Table(frame, columns)


def tables(result: Result) -> dict[str, Table]:
    """Return the tables of a result by name, then its checks, findings and gaps as tables.

    :raises ValueError: a table has a name that is reserved, or not usable as a file name and key
    """
    for name in result.tables:
        if name in _RESERVED or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"{name!r} cannot name a table")
    return {
        **result.tables,
        "checks": _table(
            _CHECKS,
            [
                (
                    check.name,
                    check.ours,
                    check.counter,
                    check.difference,
                    check.status.value,
                    check.unit.value,
                    check.source,
                    check.note,
                )
                for check in result.checks
            ],
        ),
        "findings": _table(
            _FINDINGS,
            [
                (
                    finding.severity.name.lower(),
                    finding.title,
                    finding.evidence,
                    finding.remedy,
                    finding.patch,
                    finding.cost_bytes,
                )
                for finding in result.findings
            ],
        ),
        "gaps": _table(_GAPS, [(g.what, g.reason, g.count, g.effect) for g in result.gaps]),
    }
