# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether the tasks of findings about waits are in the tree and in the picture above them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kcensus.render.graphs.dot import write_dot
from kcensus.render.graphs.svg import svg
from kcensus.results import Result
from kcensus.results.graphs import picture_of

_NAMED = re.compile(r"\(PID \d+\)")
_SUBJECT = re.compile(r"waits-(?:unheld|exited):([0-9a-f]+)")


def not_shown(result: Result, directory: Path) -> list[str]:
    """Return what findings are about that the cycles and the tree, SVG or DOT do not show."""
    return [*_not_shown(result, directory)]


def _not_shown(result: Result, directory: Path) -> Iterator[str]:
    drawn = picture_of(result)
    boxes = {box.node for box in drawn.boxes if box.node >= 0}
    counted = {node for box in drawn.boxes for node in box.counted}
    nodes = result.tables["nodes"].frame
    pids = dict(zip(nodes["pid"], nodes["node"], strict=True))
    addresses = dict(zip((f"{each:x}" for each in nodes["object"]), nodes["node"], strict=True))
    (dot,) = write_dot(result, directory / "w.dot")
    lines = result.tables["tree"].frame
    pages = {
        "tree": "\n".join((*lines["line"], *result.tables["cycles"].frame["held_by"])),
        "SVG": "\n".join(map(svg, drawn.panels)),
        "DOT": dot.read_text(encoding="utf-8"),
    }
    in_rows = {row.box.node for panel in drawn.panels for row in panel.rows if not row.is_again}
    in_tree = {*lines["node"]} - {-1}
    if not {node for node in in_rows if node >= 0} <= in_tree <= boxes:
        yield "the tree has other nodes than the picture"
    for finding in result.findings:
        lost = {pid for pid in finding.tasks if pids[pid] not in boxes | counted}
        yield from (f"{finding.id}: PID {pid}" for pid in lost)
        subject = _SUBJECT.fullmatch(finding.id)
        if subject and addresses[subject[1]] not in boxes & {*lines["node"]}:
            yield f"{finding.id}: subject"
        told = _NAMED.findall(f"{finding.title} {finding.evidence}")
        # Of a task that has exited, the kernel log has the name.
        for name in sorted({*told} & {f"(PID {pid})" for pid in pids}):
            yield from (
                f"{finding.id}: {name} in {face}" for face in pages if name not in pages[face]
            )
