# SPDX-License-Identifier: LGPL-2.1-or-later
"""The graph of a result in the language of Graphviz."""

from __future__ import annotations

from pathlib import Path

from kcensus.render.directory import replacing
from kcensus.render.plain import rows
from kcensus.results import Result
from kcensus.text import printable

_STYLES = {"proven": "solid", "derived": "dashed", "possible": "dotted"}


def write_dot(result: Result, path: Path, nodes: str, edges: str) -> list[Path]:
    """Write the graph in two tables of a result to a file, and return its path.

    What is in a cycle is red; edges that are derived are dashed, those that are only possible
    dotted.

    :param nodes: name of the table of nodes
    :param edges: name of the table of edges
    """
    lines = [
        f"digraph {_quoted(printable(result.analysis))} {{",
        "  rankdir=LR;",
        '  node [fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    cycle_of: dict[object, object] = {}
    for row in _records(result, nodes):
        cycle_of[row["node"]] = row["cycle"]
        is_task = row["kind"] == "task"
        label = str(row["name"]) if is_task else f"{row['kind']}\n{row['name']}"
        parts = [f"label={_quoted(label)}", f"shape={'box' if is_task else 'ellipse'}"]
        parts += ["color=red", "penwidth=2"] if row["cycle"] else []
        lines.append(f"  n{row['node']} [{', '.join(parts)}];")
    for row in _records(result, edges):
        label = f"{row['kind']} ({row['mode']})" if row["mode"] else str(row["kind"])
        parts = [f"label={_quoted(label)}", f"style={_STYLES.get(str(row['strength']), 'solid')}"]
        source, target = row["source"], row["target"]
        if cycle_of.get(source) and cycle_of.get(source) == cycle_of.get(target):
            parts += ["color=red", "penwidth=2"]
        lines.append(f"  n{source} -> n{target} [{', '.join(parts)}];")
    with replacing(path) as part:
        part.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")
    return [path]


def _records(result: Result, name: str) -> list[dict[str, object]]:
    table = result.tables.get(name)
    if table is None:
        return []
    return [dict(zip(table.columns, row, strict=True)) for row in rows(table)]


def _quoted(text: str) -> str:
    """Return text as a string of Graphviz, whose escapes are those for quotes and line ends."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
