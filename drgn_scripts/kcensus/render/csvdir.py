# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as a directory of CSV files, safe to open in a spreadsheet.

``summary.csv`` has one figure per row, after the identity of the result; each table has a file, and
so have checks, gaps, findings, and the parts of findings, with all rows and columns. Numbers are
exact, in the unit that JSON names, and addresses hexadecimal; a missing value is an empty cell.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from kcensus.outputs import prepare, replacing
from kcensus.render.plain import Plain, directories, origin, plain, rows, value_of
from kcensus.reports import Report
from kcensus.results import Result

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def _cell(value: Plain) -> Plain:
    """Mark a name that a spreadsheet would take for a formula as text, with an apostrophe."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value


def _write(path: Path, header: Sequence[str], body: Iterable[Iterable[Plain]]) -> Path:
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_cell, header))
        writer.writerows(map(_cell, row) for row in body)
    return path


def write_csv(subject: Result | Report, directory: Path) -> list[Path]:
    """Write a result to ``directory`` and return the files written, in order.

    A report has a directory with all findings, and in it one for each result.
    """
    written = []
    for where, result, tables in directories(subject, directory):
        prepare(where)
        summary: list[tuple[Plain, ...]] = [
            (key, value, "", "", "") for key, value in origin(result).items()
        ]
        for key, figure in result.summary.items():
            value, bound = value_of(figure), figure.bound.value
            summary.append((key, value, figure.unit.value, plain(figure.label), bound))
        header = ["key", "value", "unit", "label", "bound"]
        written.append(_write(where / "summary.csv", header, summary))
        for name, table in tables.items():
            header = [str(column) for column in table.frame.columns]
            written.append(_write(where / f"{name}.csv", header, rows(table)))
    return written
