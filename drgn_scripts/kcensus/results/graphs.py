# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pictures of graphs, which a result keeps in the table :data:`PICTURE`.

A ring is a cycle; a tree has waiters below the objects of their waits. An edge that does not fit a
tree leads to a box that is repeated, and drawn elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from kcensus.results import Result
from kcensus.results.tables import DATA, NONE, TEXT, Column, TableSpec


class Shape(Enum):
    """Kind of a box."""

    TASK = "task"
    OBJECT = "object"
    MORE = "more"
    """Tasks without boxes of their own."""


@dataclass(frozen=True)
class Box:
    """A node. Its texts may be hostile, and are as long as in the kernel."""

    node: int
    """Number in the graph; negative for several nodes."""
    name: str
    note: str
    shape: Shape
    tip: str = ""
    """Type and address, for developers."""
    cycle: int = 0
    """Number of its cycle; 0 for none."""
    counted: tuple[int, ...] = ()
    """Nodes without boxes of their own."""


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
    """Link to the next box; the last one leads to the first."""


@dataclass(frozen=True)
class Row:
    """A box of a tree."""

    box: Box
    depth: int
    """Level; the link leads to the last row above with a level less."""
    link: Link | None
    is_again: bool = False
    """Whether the box may be drawn elsewhere."""
    is_lead: bool = False
    """Whether the link leads the other way: to this box."""


@dataclass(frozen=True)
class Panel:
    """A part of a picture; edges that leave it lead to repeated boxes."""

    title: str
    ring: tuple[Step, ...]
    rows: tuple[Row, ...]

    @property
    def sentences(self) -> list[str]:
        """The edges in words."""
        return [
            f"{_called(source)} {link.words} {_called(target)} ({link.strength})"
            for source, target, link in self.edges
        ]

    @property
    def edges(self) -> list[tuple[Box, Box, Link]]:
        """Links with the boxes at their starts and at their ends; the ring comes first."""
        boxes = [step.box for step in self.ring]
        ends = zip(boxes, boxes[1:] + boxes[:1], self.ring, strict=True)
        found = [(box, after, step.link) for box, after, step in ends]
        for above, row, link in self.branches:
            found.append((above.box, row.box, link) if row.is_lead else (row.box, above.box, link))
        return found

    @property
    def branches(self) -> list[tuple[Row, Row, Link]]:
        """Pairs of a row and a row below it, with the link between them."""
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
    """Panels, the most important first."""

    panels: tuple[Panel, ...] = ()
    note: str = ""
    """A remark on missing parts."""

    @property
    def boxes(self) -> list[Box]:
        """All boxes, each once."""
        steps = [step.box for panel in self.panels for step in panel.ring]
        rows = [row.box for panel in self.panels for row in panel.rows]
        return [*{box.node: box for box in (*steps, *rows)}.values()]


STRENGTHS = ("possible", "derived", "proven")
_TITLE, _RING, _ROW, _AGAIN, _LEAD = "title", "ring", "row", "again", "lead"
_COUNTED, _NOTE = "counted", "note"
PICTURE = TableSpec("picture", "Boxes of pictures", {
    "panel": Column(NONE, "", DATA, "Number of the part of the picture, from 0 on."),
    "part": Column(TEXT, "", DATA,
        "title, ring (box of a cycle), row (box of a tree), again (drawn elsewhere, too), lead "
        "(may hold the one above), counted (in the box above) or note."),
    "depth": Column(NONE, "", DATA, "Level of a box in its tree.", "row.depth"),
    "node": Column(NONE, "", DATA, "Row in the table nodes; negative for none.", "row.box.node"),
    "name": Column(TEXT, "", DATA, "First line of the box, or the title or note.", "row.box.name"),
    "note": Column(TEXT, "", DATA, "Second line of the box.", "row.box.note"),
    "shape": Column(TEXT, "", DATA, "task, object, or more for a box of several tasks.",
        "row.box.shape.value"),
    "tip": Column(TEXT, "", DATA, "Type and address of the node.", "row.box.tip"),
    "cycle": Column(NONE, "", DATA, "Number of the cycle it is in; 0 for none.", "row.box.cycle"),
    "words": Column(TEXT, "edge", DATA, "Words on the edge from the box.", "link.words"),
    "strength": Column(TEXT, "", DATA, "Strength of the edge; empty if none.", "link.strength"),
    "evidence": Column(TEXT, "known by", DATA, "Member or code that shows it.", "link.evidence"),
    "details": Column(TEXT, "", DATA, "Function and address of the member.", "link.tip"),
}, "A box of the picture of the graph, in the order of drawing.", detail=True,
    rows=lambda figures: [*_lines(figures.picture)])  # fmt: skip


class _Line(NamedTuple):
    panel: int
    part: str
    row: Row

    @property
    def link(self) -> Link:
        return self.row.link or Link("", "")


def _lines(picture: Picture) -> Iterator[_Line]:
    for number, panel in enumerate(picture.panels):
        yield _Line(number, _TITLE, Row(Box(-1, panel.title, "", Shape.OBJECT), 0, None))
        rows = [(_RING, Row(step.box, 0, step.link)) for step in panel.ring]
        rows += [
            (_LEAD if row.is_lead else _AGAIN if row.is_again else _ROW, row) for row in panel.rows
        ]
        for part, row in rows:
            yield _Line(number, part, row)
            for node in row.box.counted:
                box = Box(node, "", "", Shape.MORE)
                yield _Line(number, _COUNTED, Row(box, row.depth, None))
    if picture.note:
        box = Box(-1, picture.note, "", Shape.OBJECT)
        yield _Line(len(picture.panels), _NOTE, Row(box, 0, None))


def picture_of(result: Result) -> Picture:
    """Return the picture of a result; empty without one, and for one saved by another version."""
    table = result.tables.get(PICTURE.name)
    if table is None or not {*PICTURE.columns} <= {*table.frame.columns}:
        return Picture()
    panels: list[tuple[str, list[Step], list[Row]]] = []
    note = ""
    for row in table.frame.to_dict("records"):
        part, text = row["part"], _text(row["name"])
        if part == _NOTE:
            note = text
        elif part == _TITLE:
            panels.append((text, [], []))
        elif panels and part == _COUNTED:
            _count(panels[-1], _number(row["node"]))
        elif panels:
            box, link = _box_of(row), _link_of(row)
            if part == _RING:
                panels[-1][1].append(Step(box, link or Link("", STRENGTHS[0])))
            else:
                depth, is_lead = max(_number(row["depth"]), 0), part == _LEAD
                again = is_lead or part == _AGAIN
                panels[-1][2].append(Row(box, depth, link, again, is_lead))
    every = (Panel(title, tuple(ring), tuple(rows)) for title, ring, rows in panels)
    return Picture(tuple(every), note)


def _count(panel: tuple[str, list[Step], list[Row]], node: int) -> None:
    boxes: list[Any] = panel[2] or panel[1]
    if boxes:
        box = boxes[-1].box
        boxes[-1] = replace(boxes[-1], box=replace(box, counted=(*box.counted, node)))


def _box_of(row: Mapping[Any, Any]) -> Box:
    shape = row["shape"]
    return Box(
        _number(row["node"]),
        _text(row["name"]),
        _text(row["note"]),
        Shape(shape) if shape in {each.value for each in Shape} else Shape.OBJECT,
        _text(row["tip"]),
        max(_number(row["cycle"]), 0),
    )


def _link_of(row: Mapping[Any, Any]) -> Link | None:
    strength = _text(row["strength"])
    known = strength if strength in STRENGTHS else STRENGTHS[0]
    texts = (_text(row[name]) for name in ("evidence", "details"))
    return Link(_text(row["words"]), known, *texts) if strength else None


def _number(value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]  # of a saved result
    except (TypeError, ValueError, OverflowError):
        return -1


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
