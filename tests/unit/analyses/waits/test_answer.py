# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the analysis says of *synthetic* graphs."""

from __future__ import annotations

import json
from pathlib import Path

from kcensus.analyses.waits.findings import findings
from kcensus.analyses.waits.run import summary
from kcensus.analyses.waits.tables import tables
from kcensus.analyses.waits.tree import rows
from kcensus.kernel.locking.owners import Strength
from kcensus.render.graphs.dot import write_dot
from kcensus.results import Danger, Result, Severity
from tests.unit.analyses.waits.making import Scene

_SURE, _LIKELY, _MAYBE = Strength.PROVEN, Strength.DERIVED, Strength.POSSIBLE
_ABBA = Scene(4, {0: 1, 1: 0, 2: 0}, {0: (0, _SURE), 1: (1, _SURE)})


def test_a_deadlock() -> None:
    figures = _ABBA.figures()
    (finding,) = findings(figures)
    assert finding.id == "waits-deadlock:100"
    assert (finding.severity, finding.danger) == (Severity.CRITICAL, Danger.DEADLOCK)
    assert {key: figure.value for key, figure in finding.figures.items()} == {
        "tasks": 2,
        "behind": 1,
        "oldest": 3.0,
    }
    assert len(finding.story) == 2
    assert finding.no_remedy
    assert not finding.remedies
    values = {key: figure.value for key, figure in summary(figures).items()}
    assert values["deadlocks"] == 1
    assert values["tasks_blocked"] == 3
    assert values["tasks_in_deadlocks"] == 2
    assert values["tasks_behind_deadlocks"] == 1
    assert values["tasks_undetermined"] == 0


def test_many_deadlocks() -> None:
    """Eight are findings, the surest ones; the last of these counts the others."""
    pairs = range(0, 24, 2)
    waits = {task: task ^ 1 for task in range(24)}
    held = {task: (task, _MAYBE if task in (0, 2) else _SURE) for task in range(24)}
    figures = Scene(24, waits, held).figures()
    assert len(figures.cycles) == len(pairs)
    found = findings(figures)
    assert [each.kind for each in found] == ["waits-deadlock"] * 8
    assert [len(each.story) for each in found] == [2] * 7 + [3]
    assert found[-1].story[-1].startswith("4 more")
    assert summary(figures)["deadlocks"].value == 10


def test_the_tables_of_a_deadlock() -> None:
    made = tables(_ABBA.figures())
    # The one that has slept longest is first.
    assert made["cycles"].frame["pid"].tolist() == [101, 100]
    assert made["cycles"].frame["held_by"].tolist() == ["task-0 (PID 100)", "task-1 (PID 101)"]
    tasks = made["tasks"].frame.set_index("pid")
    assert tasks.loc[102, "held_by"] == "task-0 (PID 100)"
    assert tasks["cycle"].to_dict() == {100: 1, 101: 1, 102: 0}
    assert made["objects"].frame["behind"].tolist() == [3, 3]
    nodes, edges = made["nodes"].frame, made["edges"].frame
    assert len(nodes) == 5
    assert len(edges) == 5
    assert set(edges["strength"]) == {"proven"}


def test_a_deadlock_that_is_only_possible() -> None:
    scene = Scene(2, {0: 1, 1: 0}, {0: (0, _SURE), 1: (1, _MAYBE)})
    (finding,) = findings(scene.figures())
    assert finding.id == "waits-deadlock-possible:100"
    assert finding.severity is Severity.WARNING
    values = {key: figure.value for key, figure in summary(scene.figures()).items()}
    assert (values["deadlocks"], values["deadlocks_possible"]) == (0, 1)


def test_what_can_be_killed() -> None:
    scene = Scene(2, {0: 1, 1: 0}, {0: (0, _SURE), 1: (1, _LIKELY)}, interruptible={1})
    (finding,) = findings(scene.figures())
    assert [remedy.command for remedy in finding.remedies] == ["kill -KILL 101"]
    assert "restart" not in finding.no_remedy


def test_a_convoy() -> None:
    scene = Scene(13, dict.fromkeys(range(1, 13), 0), {0: (0, _SURE)})
    (finding,) = findings(scene.figures())
    assert not finding.remedies
    assert finding.id == "waits-behind:100"
    assert finding.severity is Severity.WARNING
    assert finding.figures["tasks"].value == 12
    assert findings(Scene(3, {1: 0, 2: 0}, {0: (0, _SURE)}).figures()) == []


def test_a_lock_without_a_known_holder() -> None:
    (finding,) = findings(Scene(13, dict.fromkeys(range(1, 13), 0)).figures())
    assert finding.kind == "waits-unheld"
    assert finding.severity is Severity.WARNING
    assert finding.figures["tasks"].value == 12


def test_one_task_that_waits_for_long() -> None:
    (finding,) = findings(Scene(200, {150: 0}, {0: (0, _SURE)}).figures())
    assert finding.id == "waits-behind:100"
    assert finding.severity is Severity.WARNING
    assert finding.figures["oldest"].value == 151.0
    (finding,) = findings(Scene(200, {150: 0, 100: 1}).figures())
    assert finding.id == "waits-alone"
    assert {key: figure.value for key, figure in finding.figures.items()} == {
        "tasks": 1,
        "longest": 151.0,
    }
    assert findings(Scene(200, {100: 0}, {0: (0, _SURE)}).figures()) == []


def test_the_patch_against_a_published_deadlock() -> None:
    scene = Scene(
        2,
        {0: 1, 1: 0},
        {0: (0, _SURE), 1: (1, _SURE)},
        functions={0: "__offline_pages", 1: "mem_cgroup_css_offline"},
    )
    (finding,) = findings(scene.figures())
    assert finding.patch == "slab-objcg-controller"
    assert findings(_ABBA.figures())[0].patch == ""


def test_the_tree_of_a_long_chain_and_of_a_wide_one() -> None:
    chain = Scene(300, {n: n - 1 for n in range(1, 300)}, {n: (n, _SURE) for n in range(299)})
    drawn = rows(chain.figures())
    assert max(line.depth for line in drawn) < 20
    assert drawn[-1].node == -1
    wide = Scene(100, dict.fromkeys(range(1, 100), 0), {0: (0, _SURE)})
    drawn = rows(wide.figures())
    assert len(drawn) == 2 + 4 + 1
    assert "95" in drawn[-1].text


def test_names_are_escaped(tmp_path: Path) -> None:
    hostile = 'a"b\\c\x1b[31m\nx'
    scene = Scene(2, {0: 1, 1: 0}, {0: (0, _SURE), 1: (1, _SURE)}, names={0: hostile})
    figures = scene.figures()
    made = tables(figures)
    result = Result("waits", "x", "6.1", tables=made, findings=findings(figures))
    path = tmp_path / "w.dot"
    assert write_dot(result, path) == [path]
    text = path.read_text()
    assert "\x1b" not in text
    labels = [line.split('label="')[1] for line in text.splitlines() if "label=" in line]
    assert len(labels) == 4 + 4
    for label in labels:
        inside = label.replace('\\"', "").split('"')[0]
        assert json.loads(f'"{inside}"')
    assert "color=red" in text
    assert "\x1b" not in findings(figures)[0].title


def test_functions_are_named_with_their_modules() -> None:
    figures = _ABBA.figures()
    stacks = figures.waiting.waits.stacks
    assert set(stacks.names.values()) == {"mutex_user"}
    stacks.modules.update(dict.fromkeys(stacks.names, "dm_x"))
    made = tables(figures)
    assert set(made["cycles"].frame["function"]) == {"mutex_user [dm_x]"}
    assert set(made["tasks"].frame["function"]) - {""} == {"mutex_user [dm_x]"}
    assert any(row.text.endswith("in mutex_user [dm_x]") for row in rows(figures))
    assert stacks.described(0) == ["mutex_user [dm_x]"]


def test_the_stacks_of_a_cycle() -> None:
    made = tables(_ABBA.figures())["stacks"]
    assert made.frame["pid"].tolist() == [101, 100]
    assert made.frame["frame"].tolist() == [0, 0]
    assert set(made.frame["function"]) == {"mutex_user"}
    assert all(int(place, 16) >= 1 << 63 for place in made.frame["place"])


def test_a_deadlock_that_the_log_reports() -> None:
    figures = _ABBA.figures()
    figures.log = {101: 120, 102: 120}, {}
    (finding,) = findings(figures)
    assert "1 of these 2" in finding.evidence
