# SPDX-License-Identifier: LGPL-2.1-or-later
"""The language of Graphviz, for *synthetic* graphs and names that want to leave their quotes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcensus.analyses.waits.tables import tables
from kcensus.kernel.locking.owners import Strength
from kcensus.render.graphs.dot import write_dot
from kcensus.results import Result
from tests.unit.analyses.waits.making import Scene, owned

_SURE = Strength.PROVEN
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_ATTRIBUTE = rf"\w+=(?:{_STRING}|\w+)"
_LINE = re.compile(rf"  (?:n\d+|n\d+ -> n\d+|graph|node|edge) \[{_ATTRIBUTE}(?:, {_ATTRIBUTE})*\];")


def written(scene: Scene, path: Path) -> list[str]:
    result = Result("waits", "x", "6.1", tables=tables(scene.figures()))
    write_dot(result, path)
    first, *lines, last = path.read_text(encoding="utf-8").splitlines()
    assert (first, last) == ('digraph "waits" {', "}")
    return lines


@pytest.mark.slow
@given(st.text(max_size=16))
@example('"')
@example("\\")
@example('\\"];\n x -> y [label="')
@example("\\N\\G</TABLE>")
@example("a\r\u2028\u202eb\x1b[31m\x00")
@example('a"b\\c\x1b[31m\nx')
def test_a_name_stays_in_its_label(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    scene = Scene(2, {0: 1, 1: 0}, owned(2), names={0: name})
    lines = written(scene, tmp_path_factory.mktemp("dot") / "w.dot")
    assert [line for line in lines if not _LINE.fullmatch(line)] == []
    assert len(lines) == 3 + 4 + 4
    assert all(line.isprintable() for line in lines)


def test_strengths_and_cycles_have_their_styles(tmp_path: Path) -> None:
    held = {0: (0, _SURE), 1: (1, Strength.DERIVED), 2: (1, Strength.POSSIBLE)}
    scene = Scene(3, {0: 1, 1: 0, 2: 2}, held)
    lines = written(scene, tmp_path / "w.dot")
    edges = [line for line in lines if "->" in line]
    styles = {"solid": 4, "dashed": 1, "dotted": 1}
    assert {style: sum(f"style={style}" in line for line in edges) for style in styles} == styles
    # The third task is behind the cycle, and in none.
    assert sum("color=red" in line for line in edges) == 4
    assert sum("color=red" in line for line in lines) == 4 + 4


def test_a_result_without_a_graph_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "w.dot"
    path.write_text("older")
    empty = Result("waits", "x", "6.1")
    assert write_dot(empty, path) == [path]
    assert "older" not in path.read_text()
    assert "->" not in path.read_text()
