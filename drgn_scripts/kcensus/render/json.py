# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as one JSON document: every row and column, exact numbers, nothing scaled or rounded.

Addresses are hexadecimal strings, and other integers beyond 2^53 strings of their decimal digits:
jq 1.6, JavaScript and spreadsheets would round such numbers.

Two runs on the same vmcore give the same bytes: keys keep the order of the Result, and a document
has no duration, and only the dump's time and host. Each row of a table is on its own line, for
``diff`` and ``grep``.

``schema.json`` in this package is the JSON Schema of the documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

from kcensus.render import plain
from kcensus.reports import Report
from kcensus.results import Bound, Result
from kcensus.results.tables import Table
from kcensus.text import printable

_MAX_EXACT = 1 << 53
"""Largest integer up to which all are exact in a double."""


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return JSON; integers beyond 2^53 become strings of their digits."""
    return json.dumps(exact(value), ensure_ascii=False, allow_nan=False, indent=indent)


def exact(value: Any) -> Any:
    """Return a value with integers beyond 2^53 as strings of their digits."""
    if type(value) is int:
        return value if -_MAX_EXACT <= value <= _MAX_EXACT else str(value)
    if isinstance(value, Mapping):
        return {key: exact(each) for key, each in value.items()}
    return [exact(each) for each in value] if isinstance(value, (list, tuple)) else value


def _write_rows(table: Table, out: TextIO, indent: str) -> None:
    names = list(table.frame.columns)
    separator = "\n"
    out.write("[")
    for row in plain.rows(table):
        out.write(f"{separator}{indent}  {dumps(dict(zip(names, row, strict=True)))}")
        separator = ",\n"
    out.write("]" if separator == "\n" else f"\n{indent}]")


def _write_object(members: Mapping[str, Any], out: TextIO, indent: str = "") -> None:
    """Write ``{...}``: mappings nested, tables row by row, anything else on one line."""
    separator = "\n"
    out.write("{")
    for key, value in members.items():
        out.write(f"{separator}{indent}  {dumps(key)}: ")
        separator = ",\n"
        if isinstance(value, Table):
            _write_rows(value, out, indent + "  ")
        elif isinstance(value, Mapping):
            _write_object(value, out, indent + "  ")
        elif isinstance(value, list) and value:
            lines = f",\n{indent}    ".join(map(dumps, value))
            out.write(f"[\n{indent}    {lines}\n{indent}  ]")
        else:
            out.write(dumps(value))
    out.write("}" if separator == "\n" else f"\n{indent}}}")


def write_json(subject: Result | Report, out: TextIO) -> None:
    """Write a result, or a report, as one document that ends in a newline.

    A report has all findings, then the result of each analysis.
    """
    if isinstance(subject, Result):
        document = head(subject) | result_document(subject)
    else:
        document = head(subject.head) | {
            "findings": findings(subject),
            "failed": subject.errors,
            "analyses": {name: result_document(result) for name, result in subject.results.items()},
        }
    _write_object(document, out)
    out.write("\n")


def findings(report: Report) -> list[dict[str, Any]]:
    """Return the findings of a report, each with the name of its analysis."""
    return [
        {"analysis": printable(name), **plain.finding_document(finding)}
        for name, finding in report.findings
    ]


def result_document(result: Result) -> dict[str, Any]:
    """Return a result as plain values; its tables, checks and gaps are :class:`Table` still."""
    every = plain.tables(result)
    own = {name: every.pop(name) for name in result.tables}
    return {
        **_about(result),
        "summary": {key: plain.value_of(figure) for key, figure in result.summary.items()},
        "units": {
            "summary": {key: figure.unit.value for key, figure in result.summary.items()},
            "tables": {
                name: {key: column.unit.value for key, column in table.columns.items()}
                for name, table in own.items()
            },
        },
        "labels": {
            "summary": {key: printable(figure.label) for key, figure in result.summary.items()},
            "tables": {name: printable(table.title) for name, table in own.items()},
        },
        "bounds": {
            key: figure.bound.value
            for key, figure in result.summary.items()
            if figure.bound is not Bound.EXACT
        },
        "unknown_tables": [name for name, table in own.items() if not table.is_known],
        "measures": result.measures,
        "nothing": printable(result.nothing),
        **({"provenance": printable(result.provenance)} if result.provenance else {}),
        "tables": own,
        **every,
        "findings": [plain.finding_document(finding) for finding in result.findings],
    }


def _about(result: Result) -> dict[str, Any]:
    return {**plain.identity(result), "machine": plain.machine_document(result.machine)}


def head(result: Result) -> dict[str, Any]:
    """Return the versions and the subject of a result."""
    return {"schema": plain.SCHEMA, "kcensus": plain.installed_version(), **_about(result)}
