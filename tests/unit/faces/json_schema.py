# SPDX-License-Identifier: LGPL-2.1-or-later
"""Validates JSON documents: the part of JSON Schema that the published schema uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kcensus.render

SCHEMA = json.loads((Path(kcensus.render.__file__).parent / "schema.json").read_text("utf-8"))

_TYPES: dict[str, tuple[type, ...]] = {
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


def errors(document: Any, schema: dict[str, Any] = SCHEMA, place: str = "$") -> Iterator[str]:
    """Yield one line for each violation of ``schema``."""
    assert set(schema) <= _KEYWORDS, set(schema) - _KEYWORDS
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        yield from errors(document, SCHEMA["$defs"][name], place)
    if "oneOf" in schema:
        failures = [list(errors(document, choice, place)) for choice in schema["oneOf"]]
        if sum(not failure for failure in failures) != 1:
            yield from min(failures, key=len) or [f"{place}: more than one schema matches"]
    if "const" in schema and document != schema["const"]:
        yield f"{place}: {document!r} is not {schema['const']!r}"
    if "enum" in schema and document not in schema["enum"]:
        yield f"{place}: {document!r} is not in {schema['enum']}"
    if "type" in schema and not _is_a(document, schema["type"]):
        yield f"{place}: {document!r} is not of type {schema['type']}"
    if "pattern" in schema and not re.search(schema["pattern"], document):
        yield f"{place}: {document!r} does not match {schema['pattern']}"
    if isinstance(document, dict):
        yield from _object_errors(document, schema, place)
    if isinstance(document, list) and "items" in schema:
        for number, item in enumerate(document):
            yield from errors(item, schema["items"], f"{place}[{number}]")


def _object_errors(document: dict[str, Any], schema: dict[str, Any], place: str) -> Iterator[str]:
    for key in schema.get("required", ()):
        if key not in document:
            yield f"{place}: {key} is missing"
    for key, value in document.items():
        if "propertyNames" in schema:
            yield from errors(key, schema["propertyNames"], f"{place}.{key}")
        inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
        if inner is False:
            yield f"{place}: unknown key {key}"
        else:
            yield from errors(value, inner, f"{place}.{key}")


def _is_a(value: Any, types: str | list[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)
