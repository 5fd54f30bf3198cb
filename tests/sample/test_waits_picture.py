# SPDX-License-Identifier: LGPL-2.1-or-later
"""The picture of who waits in a guest whose disk is starved."""

from __future__ import annotations

import re
from pathlib import Path

from kcensus import saved
from kcensus.charts import picture
from kcensus.render.html import write_html
from kcensus.render.json import write_json
from kcensus.results.graphs import Shape
from tests.sample.conftest import Sample


def test_the_picture_of_a_saved_result_is_the_same(starved: Sample, tmp_path: Path) -> None:
    result = starved.run("waits")
    path = tmp_path / "w.json"
    with path.open("w", encoding="utf-8") as file:
        write_json(result, file)
    (section,) = saved.load(str(path)).sections
    assert section.result is not None
    assert picture(section.result) == picture(result)


def test_the_picture_shows_what_the_tables_say(starved: Sample, tmp_path: Path) -> None:
    result = starved.run("waits")
    drawn = picture(result)
    behind = result.tables["nodes"].frame.set_index("node")["behind"].to_dict()
    edges = result.tables["edges"].frame
    strengths = {
        (source, target): strength
        for source, target, strength in edges[["source", "target", "strength"]].itertuples(
            index=False
        )
    }
    assert drawn.panels
    assert not any(panel.ring for panel in drawn.panels)
    for panel in drawn.panels:
        root = panel.rows[0].box
        assert f"{behind[root.node]:,} task" in panel.title
        for source, target, link in panel.edges:
            if source.shape is not Shape.MORE:
                assert strengths[source.node, target.node] == link.strength
    waiting = {*edges[edges["kind"] == "waits for"]["source"]}
    told = len(waiting & {box.node for box in drawn.boxes})
    several = [box.name for box in drawn.boxes if box.shape is Shape.MORE]
    left_out = re.findall(r"tasks that wait: ([\d,]+)", drawn.note)
    told += sum(int(text.split()[0].replace(",", "")) for text in (*several, *left_out))
    assert told == len(waiting)
    path = tmp_path / "w.html"
    write_html(result, path)
    assert path.read_text().count("<figure") == len(drawn.panels)
