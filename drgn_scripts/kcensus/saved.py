# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results read again from the JSON documents of ``--json``.

A document may come from anywhere: it is checked against the schema before a name or a number in it
is used. It can still contain anything, commands of remedies included.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd

from kcensus import results
from kcensus.analyses import analyses
from kcensus.catalogue.result import TABLES
from kcensus.render.plain import SCHEMA
from kcensus.reports import Report, Section
from kcensus.results.tables import Column, Table, TableSpec
from kcensus.sources.reader import os_error
from kcensus.text import pasteable, printable

_MAX_SIGNED = (1 << 63) - 1
_MAX_UNSIGNED = (1 << 64) - 1
_MAX_DIGITS = 20
_OF_ERRORS = "report-incomplete", "report-unsupported"
"""Ids of findings that follow from the errors of analyses."""
_READABLE = (2, SCHEMA)
"""Schemas of documents that can be read: before 3, addresses are numbers."""
_DIGITS, _ADDRESS = re.compile(r"-?[1-9][0-9]{15,19}"), re.compile("0x[0-9a-f]{1,16}")
_AGAIN = "write it again from the dump, with --json"
_COMPARED = ("ours", "counter", "moved", "difference")
"""Numbers of a check."""


class BadDocument(Exception):
    """A document cannot be used; the message is one sentence that names the file."""


def is_document(path: str | None) -> bool:
    """Return whether a path looks like a JSON document; no dump does."""
    if path is None or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(64).lstrip().startswith(b"{")
    except OSError:
        return False


def load(path: str) -> Report:
    """Return the report in a document, or the result in it as a report with one section.

    :raises BadDocument: it is not a document of ``--json``, or of another schema
    """
    name = printable(path)
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(
                file, parse_int=_integer, parse_float=_finite, parse_constant=_finite
            )
    except OSError as failure:
        raise BadDocument(str(os_error(name, failure))) from None
    except (ValueError, RecursionError) as failure:
        raise BadDocument(f"{name}: cannot be read as JSON ({_why(failure)}); {_AGAIN}") from None
    # Only documents need the validator.
    from kcensus.render.schema import error

    version = document.get("schema") if isinstance(document, dict) else None
    if version is None or "analysis" not in document:
        raise BadDocument(f"{name}: is not a document that --json wrote; {_AGAIN}")
    if version not in _READABLE:
        raise BadDocument(
            f"{name}: has schema {version!r}, this kcensus reads schemas "
            f"{' and '.join(map(str, _READABLE))}; {_AGAIN}"
        )
    document["schema"] = SCHEMA
    kind = "report_document" if "analyses" in document else "result_document"
    if problem := error(_without_rows(document), kind, allow_new=True):
        raise BadDocument(f"{name}: is damaged ({printable(problem)}); {_AGAIN}")
    try:
        return _report(document)
    except (KeyError, TypeError, ValueError, OverflowError) as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise BadDocument(f"{name}: is damaged ({why}); {_AGAIN}") from None


def _why(failure: ValueError | RecursionError) -> str:
    """Return in words why a text is no JSON that :func:`load` reads."""
    match failure:
        case RecursionError():
            return "nested too deeply"
        case UnicodeDecodeError():
            return f"byte {failure.start:,} is not UTF-8"
        case json.JSONDecodeError():
            return f"{failure.msg} in line {failure.lineno}, column {failure.colno}"
    return str(failure)


def _without_rows(document: Any) -> Any:
    """Return a document without rows of tables: they may be millions, and _values() checks them."""
    if not isinstance(document, dict):
        return document
    shape = dict(document)
    if isinstance(tables := shape.get("tables"), dict):
        shape["tables"] = {
            name: [] if isinstance(rows, list) else rows for name, rows in tables.items()
        }
    if isinstance(sections := shape.get("analyses"), dict):
        shape["analyses"] = {name: _without_rows(each) for name, each in sections.items()}
    return shape


def _integer(text: str) -> int:
    """Return an integer of 64 bits, signed or not; figures and columns have no larger ones."""
    number = int(text) if len(text) <= _MAX_DIGITS else _MAX_UNSIGNED + 1
    if not -_MAX_SIGNED - 1 <= number <= _MAX_UNSIGNED:
        raise ValueError(f"{text[:_MAX_DIGITS]}… has more than 64 bits")
    return number


def _number(value: Any, unit: results.Unit = results.Unit.COUNT) -> Any:
    """Return the integer that a string stands for; any other value as it is."""
    if not isinstance(value, str) or unit is results.Unit.TEXT:
        return value
    if unit is results.Unit.ADDRESS and _ADDRESS.fullmatch(value):
        return int(value, 16)
    is_integer = _DIGITS.fullmatch(value) and -_MAX_SIGNED - 1 <= int(value) <= _MAX_UNSIGNED
    return int(value) if is_integer else value


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:_MAX_DIGITS]} is not a finite number")
    return number


def _named(fields: Mapping[str, Any], names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names.split()}


def _head(document: Mapping[str, Any]) -> results.Result:
    machine = _machine(document["machine"])
    made = results.Result(**_named(document, "analysis target kernel live"), machine=machine)
    # What opened the target is not in the document: further options may be needed.
    made.placeholders = {"TARGET": "" if made.live else pasteable(made.target) or "DUMP"}
    return made


def _report(document: Mapping[str, Any]) -> Report:
    head = _head(document)
    if "analyses" not in document:
        return Report(head, [Section(head.analysis, _result(document))])
    sections = {name: Section(name, _result(each)) for name, each in document["analyses"].items()}
    sections |= {name: Section(name, None, why) for name, why in document["failed"].items()}
    head.findings = [
        _finding(each)
        for each in document["findings"]
        if each.get("analysis") == "report" and each["id"] not in _OF_ERRORS
    ]
    order = [name for name in (*analyses(), *sections) if name in sections]
    doctor = (
        "\n".join(remedy["command"])
        for finding in document["findings"]
        if finding["id"] in _OF_ERRORS
        for remedy in finding["remedies"]
    )
    return Report(head, [sections[name] for name in dict.fromkeys(order)], next(doctor, ""))


def _result(document: Mapping[str, Any]) -> results.Result:
    name, units = document["analysis"], document["units"]
    labels = document["labels"]["summary"]
    bounds = document.get("bounds", {})  # documents of early releases have none
    return replace(
        _head(document),
        summary={
            key: results.Figure(
                _number(value, unit := results.Unit(units["summary"][key])),
                unit,
                labels[key],
                results.Bound(bounds.get(key, "")),
            )
            for key, value in document["summary"].items()
        },
        tables={
            key: replace(
                _table(rows, units["tables"][key], _specs(name).get(key)),
                title=document["labels"]["tables"][key],
                is_known=key not in document.get("unknown_tables", ()),
            )
            for key, rows in document["tables"].items()
        },
        checks=[_check(each) for each in document["checks"]],
        findings=[_finding(each) for each in document["findings"]],
        gaps=[results.Gap(**_named(each, "what reason count effect")) for each in document["gaps"]],
        provenance=document.get("provenance", ""),
        **_named(document, "measures nothing"),
    )


def _machine(fields: Mapping[str, Any] | None) -> results.Machine | None:
    if fields is None:
        return None
    names = {field.name for field in dataclasses.fields(results.Machine)}
    known = {name: fields[name] for name in names if fields.get(name) is not None}
    numbers = ("page_size_bytes", "ram_bytes", "cpus", "nodes")
    known |= {name: _number(known[name]) for name in numbers if name in known}
    known["memory"] = {name: _number(size) for name, size in known.get("memory", {}).items()}
    if "time" in known:
        known["time"] = datetime.datetime.fromisoformat(known["time"]).timestamp()
    return results.Machine(**known)


def _check(fields: Mapping[str, Any]) -> results.Check:
    fields = {**fields, **{key: _number(fields.get(key)) for key in _COMPARED}}
    return results.Check(
        **_named(fields, "name ours counter moved source note"),
        unit=results.Unit(fields["unit"]),
        explained=fields["difference"] if fields["status"] == "explained" else None,
    )


def _finding(fields: Mapping[str, Any]) -> results.Finding:
    own = "id title evidence no_remedy patch patch_status patch_is_fix part_of"
    return results.Finding(
        **_named(fields, own),
        patch_packages=fields.get("patch_packages", ""),
        severity=results.Severity[fields["severity"].upper()],
        figures={
            key: results.Figure(
                _number(figure["value"], unit := results.Unit(figure["unit"])), unit
            )
            for key, figure in fields["figures"].items()
        },
        memory={place: _number(size) for place, size in fields["memory"].items()},
        danger=results.Danger(fields["danger"]),
        remedies=tuple(
            results.Remedy(
                **_named(remedy, "effect risk undo until is_upper_bound"),
                command="\n".join(remedy["command"]),
                returns=_number(remedy["returns_bytes"]),
            )
            for remedy in fields["remedies"]
        ),
        story=tuple(fields.get("story", ())),
        users=fields.get("users", {}),
    )


@cache
def _specs(analysis: str) -> Mapping[str, TableSpec]:
    if analysis == "patches":
        return {spec.name: spec for spec in TABLES}
    known = analyses().get(analysis)
    return {spec.name: spec for spec in known.tables()} if known else {}


def _table(
    rows: Sequence[Mapping[str, Any]], units: Mapping[str, str], spec: TableSpec | None
) -> Table:
    declared = spec.columns if spec else {}
    columns = {key: declared.get(key) or Column(results.Unit(unit)) for key, unit in units.items()}
    frame = pd.DataFrame(
        {
            key: _values([_number(row[key], results.Unit(unit)) for row in rows])
            for key, unit in units.items()
        }
    )
    return Table(frame, columns, detail=spec.detail if spec else False)


def _values(values: list[Any]) -> Any:
    """Return the values of a column as the narrowest type that holds them exactly."""
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if wrong := kinds - {int, float, str, bool}:
        raise TypeError(f"a {wrong.pop().__name__} cannot be in a table")
    if kinds == {int}:
        wide = max(present) > _MAX_SIGNED
        if len(present) == len(values):
            return pd.array(values, "uint64" if wide else "int64").to_numpy()
        return pd.array(values, "UInt64" if wide else "Int64")
    if kinds <= {int, float} and float in kinds:
        return pd.array(values, "float64").to_numpy()
    if kinds == {bool} and len(present) == len(values):
        return pd.array(values, "bool").to_numpy()
    return pd.Series(values, dtype=object)
