# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON Schema of the documents of ``--json``, and violations of it.

``schema.json`` beside this file is the common part of all analyses; the tables come from the
declarations of each analysis.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import fastjsonschema
from fastjsonschema import JsonSchemaValueException

from kcensus.analyses import analyses
from kcensus.results import Unit
from kcensus.results.tables import TableSpec

_ABOUT_THE_WHOLE = ("required", "additionalProperties", "propertyNames", "oneOf")
"""Rules with complete sentences, to which the value would add nothing."""


def _text() -> str:
    return files(__package__).joinpath("schema.json").read_text("utf-8")


def schema() -> dict[str, Any]:
    """Return the schema with every table and column of every installed analysis."""
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
                        "$ref": f"#/$defs/{'address' if column.unit is Unit.ADDRESS else 'scalar'}",
                    }
                    for name, column in spec.columns.items()
                }
            },
        }
        for spec in specs
    }
    return {"properties": tables}


def error(document: Any, kind: str = "", *, allow_new: bool = False) -> str:
    """Return one line about a violation of the common part of the schema; empty without one.

    :param kind: name of a definition, such as ``report_document``; any document if empty
    :param allow_new: accept unknown keys, as later releases may add
    """
    try:
        _validator(kind, allow_new)(document)
    except JsonSchemaValueException as failure:
        problem = failure.message.removeprefix(str(failure.name)).lstrip()
        if failure.rule not in _ABOUT_THE_WHOLE:
            problem = f"{_short(failure.value)} {problem}"
        return f"${str(failure.name).removeprefix('data')}: {problem}"
    return ""


@functools.cache
def _validator(kind: str, allow_new: bool) -> Callable[[Any], Any]:
    whole = json.loads(_text(), object_hook=_open if allow_new else None)
    part = {"$ref": f"#/$defs/{kind}", "$defs": whole["$defs"]} if kind else whole
    return fastjsonschema.compile(part)


def _open(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of the schema without its ban on other keys."""
    if part.get("additionalProperties") is False:
        del part["additionalProperties"]
    return part


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
