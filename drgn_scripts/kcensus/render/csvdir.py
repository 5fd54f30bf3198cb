# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as a directory of CSV files, safe to open in a spreadsheet.

``summary.csv`` has one figure per row, after the identity of the result; each table has a file, and
so have checks, gaps, findings, and the parts of findings, with all rows and columns. Results of
``diff``, ``trend`` and ``fleet`` measure nothing: they have no file of checks, gaps or findings
without rows. Numbers are exact, in the unit that JSON names, and addresses hexadecimal; a missing
value is an empty cell.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from kcensus.outputs import replacing
from kcensus.render.directory import write_directory
from kcensus.render.plain import Plain, origin, plain, rows, value_of
from kcensus.reports import Report
from kcensus.results import Result
from kcensus.results.tables import Table

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def _cell(value: Plain) -> Plain:
    """Mark a name that a spreadsheet would take for a formula as text, with an apostrophe."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value


def _write(path: Path, header: Sequence[str], body: Iterable[Iterable[Plain]]) -> None:
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_cell, header))
        writer.writerows(map(_cell, row) for row in body)


def _write_summary(path: Path, result: Result) -> None:
    summary: list[tuple[Plain, ...]] = [
        (key, value, "", "", "") for key, value in origin(result).items()
    ]
    for key, figure in result.summary.items():
        value, bound = value_of(figure), figure.bound.value
        summary.append((key, value, figure.unit.value, plain(figure.label), bound))
    _write(path, ["key", "value", "unit", "label", "bound"], summary)


def _write_table(path: Path, table: Table, _result: Result) -> None:
    _write(path, [str(column) for column in table.frame.columns], rows(table))


def write_csv(subject: Result | Report, directory: Path) -> list[Path]:
    """Write a result to ``directory`` as of :func:`write_directory`, and return the files."""
    return write_directory(subject, directory, ".csv", _write_summary, _write_table)
