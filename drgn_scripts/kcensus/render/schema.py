# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON Schema of the documents that ``--json`` prints, and what in a document violates it.

``schema.json`` beside this file is the part that is the same for all analyses; the tables come
from the declarations of each analysis.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from kcensus.analyses import analyses
from kcensus.results.tables import TableSpec

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
_KEYWORDS = {
    *("$schema", "$defs", "$ref", "title", "description", "oneOf", "const", "enum", "type"),
    *("pattern", "properties", "required", "additionalProperties", "propertyNames", "items"),
}
"""The part of JSON Schema that the schema uses."""


@functools.cache
def _common() -> Mapping[str, Any]:
    """Return the part of the schema that is the same for all analyses."""
    common: Mapping[str, Any] = json.loads(_text())
    return common


def _text() -> str:
    return files(__package__).joinpath("schema.json").read_text("utf-8")


def schema() -> dict[str, Any]:
    """Return the schema with every table and column of every analysis that is installed."""
    whole: dict[str, Any] = json.loads(_text())
    parts = whole["$defs"]
    parts["result"]["allOf"] = []
    for name, analysis in analyses().items():
        key = f"tables_{name.replace('-', '_')}"
        parts[key] = _tables(analysis.tables())
        condition = {"properties": {"analysis": {"const": name}}}
        effect = {"properties": {"tables": {"$ref": f"#/$defs/{key}"}}}
        parts["result"]["allOf"].append({"if": condition, "then": effect})
    return whole


def _tables(specs: Sequence[TableSpec]) -> dict[str, Any]:
    tables = {
        spec.name: {
            "description": f"{spec.title}. Each row: {spec.help}",
            "items": {
                "properties": {
                    name: {
                        "description": column.help,
                        "x-unit": column.unit.value,
                        **({"x-type": column.type} if column.type else {}),
                        "$ref": "#/$defs/scalar",
                    }
                    for name, column in spec.columns.items()
                }
            },
        }
        for spec in specs
    }
    return {"properties": tables}


def errors(document: Any, kind: str = "", *, allow_new: bool = False) -> Iterator[str]:
    """Yield one line for each violation of the common part of the schema.

    :param kind: name of a definition, such as ``report_document``; any document if empty
    :param allow_new: accept keys that the schema does not have, as later releases may add
    """
    yield from _errors(document, _common()["$defs"][kind] if kind else _common(), "$", allow_new)


def _errors(document: Any, part: Mapping[str, Any], place: str, allow_new: bool) -> Iterator[str]:
    assert set(part) <= _KEYWORDS, set(part) - _KEYWORDS
    if "type" in part and not _is_a(document, part["type"]):
        yield f"{place}: {_short(document)} is not of type {part['type']}"
        return
    if "$ref" in part:
        name = part["$ref"].removeprefix("#/$defs/")
        yield from _errors(document, _common()["$defs"][name], place, allow_new)
    if "oneOf" in part:
        failures = [list(_errors(document, each, place, allow_new)) for each in part["oneOf"]]
        if sum(not failure for failure in failures) != 1:
            yield from min(failures, key=len) or [f"{place}: more than one schema matches"]
    if "const" in part and document != part["const"]:
        yield f"{place}: {_short(document)} is not {part['const']!r}"
    if "enum" in part and document not in part["enum"]:
        yield f"{place}: {_short(document)} is not in {part['enum']}"
    if "pattern" in part and not re.fullmatch(part["pattern"], document):
        yield f"{place}: {_short(document)} does not match {part['pattern']}"
    if isinstance(document, dict):
        yield from _object_errors(document, part, place, allow_new)
    if isinstance(document, list) and "items" in part:
        for number, item in enumerate(document):
            yield from _errors(item, part["items"], f"{place}[{number}]", allow_new)


def _object_errors(
    document: Mapping[str, Any], part: Mapping[str, Any], place: str, allow_new: bool
) -> Iterator[str]:
    for key in part.get("required", ()):
        if key not in document:
            yield f"{place}: {key} is missing"
    for key, value in document.items():
        if "propertyNames" in part:
            yield from _errors(key, part["propertyNames"], f"{place}.{key}", allow_new)
        inner = part.get("properties", {}).get(key, part.get("additionalProperties", {}))
        if inner is not False:
            yield from _errors(value, inner, f"{place}.{key}", allow_new)
        elif not allow_new:
            yield f"{place}: unknown key {key}"


def _is_a(value: Any, types: str | Sequence[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
