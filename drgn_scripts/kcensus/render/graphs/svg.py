# SPDX-License-Identifier: LGPL-2.1-or-later
"""Panels of graphs as SVG without scripts, styles, fonts or ids of its own.

A cycle is a ladder: tasks on the left, the objects of their waits on the right, each held by the
task of the next rung. A tree is indented as on the terminal. Text is in a monospaced font, whose
letters have the same width on every machine.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from xml.etree import ElementTree

from kcensus.charts import shortened
from kcensus.results.graphs import Box, Link, Panel, Row, Shape, Step
from kcensus.text import printable

CYCLE = "#d93a2b"
"""Contrasts 3:1 with white and with black. Lines of a cycle are thick, too."""
_DASHES = {"proven": "", "derived": "7 4", "possible": "1.5 4"}
_NAME, _SMALL = 7.25, 6.65
"""Widths of a letter of 12 and of 11 pixels."""
_MAX_NAME, _MAX_NOTE, _MAX_WORDS, _MAX_EVIDENCE = 34, 40, 34, 44
_HEIGHT, _PAD = 40, 10
_LEFT, _MIN_GAP, _RUNG = 28, 150, 88
"""Sizes of a ladder: margin for the line back to the first box, least width between its sides, and
height of a rung."""
_INDENT, _ROW = 46, 48


def svg(panel: Panel) -> str:
    """Return a panel as an ``<svg>`` element, names in it escaped."""
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    root.attrib |= {"font-family": "ui-monospace, monospace", "font-size": "12"}
    _add(root, "title", printable(panel.title))
    _add(root, "desc", printable("; ".join(panel.sentences)))
    width, height = _ladder(root, panel.ring)
    if panel.ring and panel.rows:
        _text(root, "stuck behind this cycle:", 2, height + 16, is_small=True)
        height += 24
    width, height = _trees(root, panel, width, height)
    root.attrib |= {"width": f"{width:.0f}", "height": f"{height:.0f}"}
    root.set("viewBox", f"0 0 {width:.0f} {height:.0f}")
    return ElementTree.tostring(root, encoding="unicode")


def legend() -> list[tuple[str, str]]:
    """Return marks, as ``<svg>`` elements, and their meanings."""
    marks = []
    for kind, words in (
        (Shape.TASK, "task"),
        (Shape.OBJECT, "object"),
        ("proven", "proven by a pointer"),
        ("derived", "derived from code or open files"),
        ("possible", "possible"),
        ("proven", "cycle"),
    ):
        size = {"width": "34", "height": "16", "aria-hidden": "true"}
        root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
        if isinstance(kind, Shape):
            _outline(root, Box(0, "", "", kind), 1, 2, 32, 12)
        else:
            _line(root, [(0, 8), (26, 8)], Link("", kind), words == "cycle", "right")
        marks.append((ElementTree.tostring(root, encoding="unicode"), words))
    return marks


# Ladders


def _ladder(root: ElementTree.Element, ring: Sequence[Step]) -> tuple[float, float]:
    """Draw a cycle, and return its width and height."""
    if not ring:
        return 0, 0
    wide = max(_width(step.box) for step in ring)
    longest = max(len(text) for step in ring for text in (step.link.words, _known(step.link)))
    gap = max(min(longest, _MAX_WORDS) * _SMALL + 16, _MIN_GAP)
    column = [0 if step.box.shape is not Shape.OBJECT else 1 for step in ring]
    x: list[float] = [_LEFT + side * (wide + gap) for side in column]
    rung, down = [0], (_RUNG - _HEIGHT) / 2
    for side, other in pairwise(column):
        rung.append(rung[-1] + (0 if (side, other) == (0, 1) else 1))
    y = [1.5 + each * _RUNG for each in rung]
    for at, step in enumerate(ring[:-1]):
        group = _linked(root, step.link)
        middle, after = x[at] + wide / 2, x[at + 1] + wide / 2
        if rung[at] == rung[at + 1]:
            line = y[at] + _HEIGHT / 2
            _line(group, [(x[at] + wide, line), (x[at + 1], line)], step.link, True, "right")
            _words(group, step.link, x[at] + wide + gap / 2 - 4, line)
        else:
            low = y[at] + _HEIGHT + down
            points = [(middle, low - down), (middle, low), (after, low), (after, y[at + 1])]
            _line(group, points, step.link, True, "down")
            is_straight = column[at] == column[at + 1]
            place = middle + 8 if is_straight else _LEFT + wide + gap / 2
            _words(group, step.link, place, low, "start" if is_straight else "middle")
    last = ring[-1]
    group = _linked(root, last.link)
    low = y[-1] + _HEIGHT + down
    middle = x[-1] + wide / 2
    line = y[0] + _HEIGHT / 2
    points = [(middle, y[-1] + _HEIGHT), (middle, low), (4, low), (4, line), (x[0], line)]
    _line(group, points, last.link, True, "right")
    _words(group, last.link, _LEFT + wide + (gap / 2 if column[-1] else -wide / 2), low)
    for at, step in enumerate(ring):
        _box(root, step.box, x[at], y[at], wide)
    return _LEFT + 2 * wide + gap + 3, low + 20


def _words(
    parent: ElementTree.Element, link: Link, x: float, y: float, anchor: str = "middle"
) -> None:
    words = shortened(printable(link.words), _MAX_WORDS)
    _text(parent, words, x, y - 6, is_small=True, anchor=anchor)
    known = shortened(_known(link), _MAX_WORDS)
    _text(parent, known, x, y + 14, is_small=True, is_dim=True, anchor=anchor)


def _known(link: Link) -> str:
    return printable(f"{link.strength}: {link.evidence}" if link.evidence else link.strength)


# Trees


def _trees(
    root: ElementTree.Element, panel: Panel, width: float, top: float
) -> tuple[float, float]:
    """Draw the rows of trees, and return width and height of the drawing so far."""
    bottom, place = top, dict[int, float]()
    for row in panel.rows:
        place[id(row)] = bottom + 3
        bottom += _ROW + (0 if row.depth else 2)
    for above, row, link in panel.branches:
        group = _linked(root, link)
        x, y = row.depth * _INDENT + 2, place[id(row)] + _HEIGHT / 2
        corner = above.depth * _INDENT + 2 + 20
        points = [(x, y), (corner, y), (corner, place[id(above)] + _HEIGHT)]
        way, head = (-1, "right") if row.is_lead else (1, "up")
        _line(group, points[::way], link, False, head)
        after = x + _width(row.box) + 12
        words = _place(row, shortened(printable(link.words), _MAX_WORDS))
        known = shortened(_known(link), _MAX_EVIDENCE)
        _text(group, words, after, y - 3, is_small=True)
        _text(group, known, after, y + 12, is_small=True, is_dim=True)
        width = max(width, after + max(_cells(words), _cells(known)) * _SMALL)
    for row in panel.rows:
        x, wide = row.depth * _INDENT + 2, _width(row.box)
        _box(root, row.box, x, place[id(row)], wide, is_plain=row.is_again)
        width = max(width, x + 4 + wide)
    return width, bottom


def _place(row: Row, words: str) -> str:
    """Return the relation of a row to the one above it, and the place of its other box."""
    where = f" (in cycle {row.box.cycle})" if row.box.cycle else ""
    if row.is_lead:
        kind, _, mode = words.partition(" (")
        return f"↑ may be {kind} it{f' ({mode}' if mode else ''}{where}"
    return f"{words} ↑{(where or ' (drawn above)') if row.is_again else ''}"


# Boxes, lines and texts


def _width(box: Box) -> float:
    name = min(_cells(printable(box.name)), _MAX_NAME) * _NAME
    note = min(_cells(printable(box.note)), _MAX_NOTE) * _SMALL
    return max(round(max(name, note) + 2 * _PAD), 120)


def _cells(text: str) -> int:
    """Return the number of columns of a text in a monospaced font."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _box(
    root: ElementTree.Element, box: Box, x: float, y: float, width: float, is_plain: bool = False
) -> None:
    group = ElementTree.SubElement(root, "g")
    tip = (box.name, box.note, box.tip)
    _add(group, "title", "; ".join(printable(text) for text in tip if text))
    _outline(group, box, x, y, width, _HEIGHT, is_plain=is_plain)
    name, middle = shortened(printable(box.name), _MAX_NAME), x + width / 2
    _text(group, name, middle, y + (17 if box.note else 24), anchor="middle", is_bold=True)
    if box.note:
        note = shortened(printable(box.note), _MAX_NOTE)
        _text(group, note, middle, y + 32, anchor="middle", is_small=True)


def _outline(
    parent: ElementTree.Element,
    box: Box,
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    is_plain: bool = False,
) -> None:
    """Draw the outline of a box: round for objects, on another one for counted nodes."""
    round_ = height / 2 if box.shape is Shape.OBJECT else 2
    sizes = {"x": x, "y": y, "width": width, "height": height, "rx": round_}
    shape = {name: f"{size:g}" for name, size in sizes.items()}
    line = {"stroke": "currentColor", "stroke-opacity": "0.75"}
    if box.cycle:
        line = {"stroke": CYCLE, "stroke-width": "2"}
    if box.shape is Shape.MORE:
        path = f"M{x + 4:g} {y + height:g}v3.5h{width:g}v{-height:g}h-4"
        _add(parent, "path", d=path, fill="none", **line)
    fill = {"fill": "none"} if is_plain else {"fill": "currentColor", "fill-opacity": "0.06"}
    _add(parent, "rect", **shape, **fill, **line)


def _linked(root: ElementTree.Element, link: Link) -> ElementTree.Element:
    """Return a group for the line of a link, with its evidence as a tooltip."""
    group = ElementTree.SubElement(root, "g")
    parts = (link.words, _known(link), link.tip)
    _add(group, "title", "; ".join(printable(text) for text in parts if text))
    return group


_HEADS = {"up": (-4, 7, 8, 0), "down": (-4, -7, 8, 0), "right": (-7, -4, 0, 8)}
"""Arrowheads: from the tip to a corner, from there to the other one."""


def _line(
    parent: ElementTree.Element,
    points: Sequence[tuple[float, float]],
    link: Link,
    is_cycle: bool,
    head: str,
) -> None:
    color = CYCLE if is_cycle else "currentColor"
    (x, y), (dx, dy, to_x, to_y) = points[-1], _HEADS[head]
    # The line ends inside its head, else a thick one would blunt the tip.
    ends = [*points[:-1], (x + (dx if not to_x else 0) / 2, y + (dy if not to_y else 0) / 2)]
    path = "M" + "L".join(f"{px:g} {py:g}" for px, py in ends)
    style = {"stroke": color, "stroke-width": "2.5" if is_cycle else "1.3"}
    dashes = _DASHES.get(link.strength, "")
    if dashes:
        style["stroke-dasharray"] = dashes
    _add(parent, "path", d=path, fill="none", **style)
    _add(parent, "path", d=f"M{x:g} {y:g}l{dx} {dy}l{to_x} {to_y}z", fill=color)


def _text(
    parent: ElementTree.Element,
    words: str,
    x: float,
    y: float,
    *,
    is_small: bool = False,
    is_dim: bool = False,
    is_bold: bool = False,
    anchor: str = "start",
) -> None:
    style = {"fill": "currentColor", "text-anchor": anchor}
    style |= {"font-size": "11"} if is_small else {}
    style |= {"font-weight": "600"} if is_bold else {}
    style |= {"opacity": "0.75"} if is_dim else {}
    _add(parent, "text", words, x=f"{x:g}", y=f"{y:g}", **style)


def _add(parent: ElementTree.Element, tag: str, words: str = "", /, **attributes: object) -> None:
    values = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
    ElementTree.SubElement(parent, tag, values).text = words or None
