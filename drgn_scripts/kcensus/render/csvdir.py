# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as a directory of CSV files, safe to open in a spreadsheet.

``summary.csv`` has one figure per row, after what was analyzed; each table has a file, and so have
checks, gaps, findings, and what findings hold, with all rows and columns. Numbers are exact, in the
unit that JSON names; a missing value is an empty cell.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kcensus.render.directory import prepare, replacing
from kcensus.render.plain import Plain, all_findings, finding_tables, origin, plain, rows, tables
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


def _write(path: Path, header: Sequence[str], body: Iterable[Iterable[Plain]]) -> Path:
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_cell, header))
        writer.writerows(map(_cell, row) for row in body)
    return path


def write_csv(result: Result, directory: Path) -> list[Path]:
    """Write ``result`` to ``directory`` and return the files written, in order."""
    return _write_files(result, directory, tables(result) | finding_tables(result))


def write_report_csv(report: Report, directory: Path) -> list[Path]:
    """Write all findings to ``directory``, and each result to a directory in it."""
    whole, findings = all_findings(report)
    written = _write_files(whole, directory, findings)
    for name, result in report.results.items():
        written += write_csv(result, directory / name)
    return written


def _write_files(result: Result, directory: Path, parts: Mapping[str, Table]) -> list[Path]:
    prepare(directory)
    summary: list[tuple[Plain, ...]] = [
        (key, value, "", "", "") for key, value in origin(result).items()
    ]
    for key, figure in result.summary.items():
        value, bound = plain(figure.value), figure.bound.value
        summary.append((key, value, figure.unit.value, plain(figure.label), bound))
    header = ["key", "value", "unit", "label", "bound"]
    written = [_write(directory / "summary.csv", header, summary)]
    for name, table in parts.items():
        header = [str(column) for column in table.frame.columns]
        written.append(_write(directory / f"{name}.csv", header, rows(table)))
    return written
