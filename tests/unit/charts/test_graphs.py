# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pictures of graphs as SVG, on pages and in the language of Graphviz."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kcensus.analyses.waits.tables import tables
from kcensus.kernel.locking.owners import Strength
from kcensus.render.graphs.dot import write_dot
from kcensus.render.graphs.svg import CYCLE, legend, svg
from kcensus.render.html import cell_html, write_html
from kcensus.results import Result
from kcensus.results.graphs import Box, Link, Panel, Row, Shape, Step, picture_of
from tests.unit.analyses.waits.making import Scene

HOSTILE = "</svg><script>x</script>]]>&\x1b[31m\n\u202e\ud800\ufffe\x00\"'"
_SVG = "{http://www.w3.org/2000/svg}"
_STRENGTHS = ("proven", "derived", "possible")
_SHADES = (Strength.PROVEN, Strength.DERIVED, Strength.POSSIBLE)


def _box(node: int, name: str, shape: Shape = Shape.TASK, cycle: int = 0) -> Box:
    return Box(node, name, f"note {name}", shape, f"tip {name}", cycle)


def _panel(name: str = "a") -> Panel:
    boxes = [_box(0, name, cycle=1), _box(1, name, Shape.OBJECT, 1), _box(2, name, Shape.OBJECT, 1)]
    links = [Link(name, strength, name, name) for strength in _STRENGTHS]
    rows = (
        Row(boxes[1], 0, None, True),
        Row(_box(3, name), 1, links[1]),
        Row(_box(4, name, Shape.OBJECT), 2, links[2]),
        Row(_box(-1, name, Shape.MORE), 1, links[0]),
        Row(_box(5, name), 1, links[2], True, is_lead=True),
    )
    return Panel(name, tuple(map(Step, boxes, links)), rows)


def _result(name: str = "task") -> Result:
    waits = {0: 1, 1: 0, **dict.fromkeys(range(2, 40), 0)}
    held = {number: (number, shade) for number, shade in enumerate(_SHADES[:2])}
    scene = Scene(40, waits, held, names={0: name, 39: name})
    return Result("waits", name, "6.1", tables=tables(scene.figures()))


def test_hostile_names_are_escaped() -> None:
    text = svg(_panel(HOSTILE))
    root = ElementTree.fromstring(text)
    text.encode()
    tags = {each.tag.removeprefix(_SVG) for each in root.iter()}
    assert tags <= {"svg", "g", "title", "desc", "rect", "path", "text"}
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800\ufffe]", text)


def test_long_names_are_cut_with_all_of_them_in_a_tooltip() -> None:
    name = "kworker/" + "x" * 200
    root = ElementTree.fromstring(svg(_panel(name)))
    texts = [each.text or "" for each in root.iter(f"{_SVG}text")]
    assert max(map(len, texts)) < 60
    titles = [each.text or "" for each in root.iter(f"{_SVG}title")]
    assert sum(name in title for title in titles) >= 8
    assert float(root.get("width", "0")) < 1000


def test_a_picture_is_drawn_inside_its_frame() -> None:
    root = ElementTree.fromstring(svg(_panel()))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    boxes = [
        {key: float(box.get(key, "0")) for key in ("x", "y", "width", "height")}
        for box in root.iter(f"{_SVG}rect")
    ]
    assert len(boxes) == 3 + 5
    for box in boxes:
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width
        assert 0 <= box["y"] <= box["y"] + box["height"] <= height
    for one, other in itertools.permutations(boxes, 2):
        is_left = one["x"] + one["width"] <= other["x"]
        is_right = other["x"] + other["width"] <= one["x"]
        is_above = one["y"] + one["height"] <= other["y"]
        assert is_left or is_right or is_above or other["y"] + other["height"] <= one["y"]


def test_strengths_and_cycles_differ_without_color() -> None:
    root = ElementTree.fromstring(svg(_panel()))
    lines = [each for each in root.iter(f"{_SVG}path") if each.get("fill") == "none"]
    ring = [each for each in lines if each.get("stroke") == CYCLE and "L" in each.get("d", "")]
    assert len(ring) == 3
    assert len({each.get("stroke-dasharray") for each in ring}) == 3
    others = {each.get("stroke-width") for each in lines if each.get("stroke") == "currentColor"}
    assert {each.get("stroke-width") for each in ring}.isdisjoint(others)
    assert "derived: a" in "".join(root.itertext())


def test_a_screen_reader_hears_every_edge() -> None:
    root = ElementTree.fromstring(svg(_panel()))
    assert root.get("role") == "img"
    description = root.findtext(f"{_SVG}desc") or ""
    assert len(description.split("; ")) == 3 + 4
    for strength in _STRENGTHS:
        assert description.count(f"({strength})") >= 2


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    drawn = [[svg(panel) for panel in picture_of(_result()).panels] for _ in range(2)]
    assert drawn[0] == drawn[1]
    files = [write_dot(_result(), tmp_path / f"{at}.dot")[0].read_bytes() for at in range(2)]
    assert files[0] == files[1]


def test_a_page_has_the_picture_with_its_legend(tmp_path: Path) -> None:
    path = tmp_path / "w.html"
    result = _result("<script>\x1b</style>")
    write_html(result, path)
    page = path.read_text()
    assert page.count('class="graph"') == 1
    assert page.count('<figure class="ring">') == 1
    assert all(mark in page and words in page for mark, words in legend())
    assert page.count("<script>") == 1
    cell = cell_html(result, ())
    assert cell.count('class="graph"') == 1
    assert "<script" not in cell


def test_nothing_to_draw_leaves_no_trace_on_the_page(tmp_path: Path) -> None:
    for name in ("waits", "slab", "unknown"):
        path = tmp_path / f"{name}.html"
        write_html(Result(name, "x", "6.1"), path)
        assert 'class="graph"' not in path.read_text()


def test_graphviz_draws_what_the_page_does(tmp_path: Path) -> None:
    result = _result('a"b\\c\x1b[31m\nx')
    drawn = picture_of(result)
    (path,) = write_dot(result, tmp_path / "w.dot")
    lines = path.read_text().splitlines()
    edges = [line for line in lines if " -> " in line]
    nodes = [line for line in lines if "shape=" in line]
    assert len(nodes) == len(drawn.boxes)
    assert len(edges) == sum(len(panel.edges) for panel in drawn.panels)
    assert sum("color=red" in line for line in edges) == 4
    assert "\x1b" not in path.read_text()
    declared = {line.split()[0] for line in nodes}
    ends = {end.strip() for line in edges for end in line.split(" [")[0].split(" -> ")}
    assert ends == declared


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it(tmp_path: Path) -> None:
    (path,) = write_dot(_result('a"b\\c\x1b[31m\nx</svg>\\N'), tmp_path / "w.dot")
    made = subprocess.run(["dot", "-Tsvg", str(path)], capture_output=True, check=True)
    root = ElementTree.fromstring(made.stdout)
    titles = [each.text or "" for each in root.iter(f"{_SVG}title")]
    assert sum("->" in title for title in titles) > 4
