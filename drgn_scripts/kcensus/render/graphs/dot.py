# SPDX-License-Identifier: LGPL-2.1-or-later
"""The picture of a graph in the language of Graphviz."""

from __future__ import annotations

from pathlib import Path

from kcensus.outputs import replacing
from kcensus.results import Result
from kcensus.results.graphs import Box, Link, Shape, picture_of
from kcensus.text import printable

_STYLES = {"proven": "solid", "derived": "dashed", "possible": "dotted"}
_SHAPES = {Shape.TASK: "box", Shape.OBJECT: "ellipse", Shape.MORE: "box3d"}


def write_dot(result: Result, path: Path) -> list[Path]:
    """Write the picture of a result to a file, and return its path.

    Cycles are red, derived edges dashed, and possible ones dotted.
    """
    drawn = picture_of(result)
    lines = [
        f"digraph {_quoted(printable(result.analysis))} {{",
        '  graph [rankdir=LR, fontname="sans-serif", fontsize=10];',
        *([f"  label={_quoted(printable(drawn.note))};"] if drawn.note else []),
        '  node [fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    lines += [_node(box) for box in drawn.boxes]
    for panel in drawn.panels:
        lines += [
            _edge(source, target, link, is_red=at < len(panel.ring))
            for at, (source, target, link) in enumerate(panel.edges)
        ]
    with replacing(path) as part:
        part.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")
    return [path]


def _node(box: Box) -> str:
    label = "\n".join(printable(text) for text in (box.name, box.note) if text)
    parts = [f"label={_quoted(label)}", f"shape={_SHAPES[box.shape]}"]
    parts += [f"tooltip={_quoted(printable(box.tip))}"] if box.tip else []
    parts += ["color=red", "penwidth=2"] if box.cycle else []
    return f"  {_name(box)} [{', '.join(parts)}];"


def _edge(box: Box, after: Box, link: Link, *, is_red: bool) -> str:
    parts = [f"label={_quoted(printable(link.words))}", f"style={_STYLES[link.strength]}"]
    parts += [f"tooltip={_quoted(printable(link.evidence))}"] if link.evidence else []
    parts += ["color=red", "penwidth=2"] if is_red else []
    return f"  {_name(box)} -> {_name(after)} [{', '.join(parts)}];"


def _name(box: Box) -> str:
    return f"n{box.node}" if box.node >= 0 else f"more{-box.node}"


def _quoted(text: str) -> str:
    """Return text as a string of Graphviz, with escapes for quotes and line ends."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
