# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON Schema of the documents that ``--json`` prints.

``schema.json`` beside this file is the part that is the same for all analyses; the tables come
from the declarations of each analysis.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from kcensus.analyses import analyses
from kcensus.results.tables import TableSpec


def schema() -> dict[str, Any]:
    """Return the schema with every table and column of every analysis that is installed."""
    whole: dict[str, Any] = json.loads(
        files(__package__).joinpath("schema.json").read_text("utf-8")
    )
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
                        "$ref": "#/$defs/scalar",
                    }
                    for name, column in spec.columns.items()
                }
            },
        }
        for spec in specs
    }
    return {"properties": tables}
