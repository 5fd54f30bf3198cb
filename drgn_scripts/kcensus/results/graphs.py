# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pictures of graphs: what of a graph is drawn, however that is done.

A ring is a cycle; a tree has what waits below what it waits for. An edge that a tree cannot have
leads to a box that is drawn elsewhere, which is then named again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Shape(Enum):
    """What a box is."""

    TASK = "task"
    OBJECT = "object"
    MORE = "more"
    """Tasks that have no boxes of their own."""


@dataclass(frozen=True)
class Box:
    """A node. Its texts may be hostile, and are as long as they are in the kernel."""

    node: int
    """Its number in the graph; negative for what is not one node."""
    name: str
    note: str
    shape: Shape
    tip: str = ""
    """What a developer needs to find it in a dump."""
    cycle: int = 0
    """Number of the cycle that it is in; 0 for none."""


@dataclass(frozen=True)
class Link:
    """An edge, without its ends."""

    words: str
    """Such as ``waits for``."""
    strength: str
    """``proven``, ``derived`` or ``possible``."""
    evidence: str = ""
    tip: str = ""


@dataclass(frozen=True)
class Step:
    """A box of a ring."""

    box: Box
    link: Link
    """Leads to the next box; that of the last one to the first."""


@dataclass(frozen=True)
class Row:
    """A box of a tree."""

    box: Box
    depth: int
    """The row above it that is one less deep is what its link leads to."""
    link: Link | None
    is_again: bool = False
    """Whether the box may be drawn elsewhere."""
    is_lead: bool = False
    """Whether the link leads the other way: to this box."""


@dataclass(frozen=True)
class Panel:
    """A part of a picture that no edge leads out of, but to boxes that are named again."""

    title: str
    ring: tuple[Step, ...]
    rows: tuple[Row, ...]

    @property
    def sentences(self) -> list[str]:
        """What it shows, in words."""
        return [
            f"{_called(source)} {link.words} {_called(target)} ({link.strength})"
            for source, target, link in self.edges
        ]

    @property
    def edges(self) -> list[tuple[Box, Box, Link]]:
        """Boxes that links lead from, and those that they lead to; the ring comes first."""
        boxes = [step.box for step in self.ring]
        ends = zip(boxes, boxes[1:] + boxes[:1], self.ring, strict=True)
        found = [(box, after, step.link) for box, after, step in ends]
        for above, row, link in self.branches:
            found.append((above.box, row.box, link) if row.is_lead else (row.box, above.box, link))
        return found

    @property
    def branches(self) -> list[tuple[Row, Row, Link]]:
        """Rows with those that they are below, and the link between them."""
        path: list[Row] = []
        found = []
        for row in self.rows:
            del path[row.depth :]
            if path and row.link:
                found.append((path[-1], row, row.link))
            path.append(row)
        return found


def _called(box: Box) -> str:
    return f"{box.name} {box.note}" if box.shape is Shape.OBJECT else box.name


@dataclass(frozen=True)
class Picture:
    """Panels, those that matter most first."""

    panels: tuple[Panel, ...] = ()
    note: str = ""
    """What is left out."""

    @property
    def boxes(self) -> list[Box]:
        """All boxes, each once."""
        steps = [step.box for panel in self.panels for step in panel.ring]
        rows = [row.box for panel in self.panels for row in panel.rows]
        return [*{box.node: box for box in (*steps, *rows)}.values()]
