# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a picture shows of *synthetic* graphs."""

from __future__ import annotations

import dataclasses

import pytest

from kcensus.analyses.waits.picture import picture
from kcensus.analyses.waits.tables import tables
from kcensus.kernel.locking.owners import Strength
from kcensus.results import Result
from kcensus.results.graphs import Picture, Shape
from kcensus.results.tables import Table
from tests.unit.analyses.waits.making import Scene

_SURE, _MAYBE = Strength.PROVEN, Strength.POSSIBLE
_MAX_BOXES = 60


def result_of(scene: Scene) -> Result:
    return Result("waits", "x", "6.1", tables=tables(scene.figures()))


def _chain(count: int) -> Scene:
    held = {task: (task, _SURE) for task in range(count - 1)}
    return Scene(count, {task: task - 1 for task in range(1, count)}, held)


def _ring(count: int) -> Scene:
    held = {task: (task, _SURE) for task in range(count)}
    return Scene(count, {task: (task + 1) % count for task in range(count)}, held)


def _pairs(count: int) -> Scene:
    held = {task: (task, _SURE) for task in range(count)}
    return Scene(count, {task: task ^ 1 for task in range(count)}, held)


def _crowd(count: int) -> Scene:
    """One mutex, whose owner is awake."""
    return Scene(count, dict.fromkeys(range(1, count), 0), {0: (0, _SURE)})


def _alone(count: int) -> Scene:
    """Tasks in pairs, each of one that waits for the other one."""
    waits = {2 * pair: pair for pair in range(count)}
    return Scene(2 * count, waits, {pair: (2 * pair + 1, _SURE) for pair in range(count)})


def _counted(drawn: Picture) -> int:
    """How many tasks boxes of several count."""
    several = [box for box in drawn.boxes if box.shape is Shape.MORE]
    return sum(int(box.name.split()[0].replace(",", "")) for box in several)


def _is_complete(result: Result, drawn: Picture) -> bool:
    """Every box and edge of one node is in the tables, and no box is drawn twice."""
    nodes = set(result.tables["nodes"].frame["node"])
    frame = result.tables["edges"].frame
    edges = set(zip(frame["source"], frame["target"], strict=True))
    boxes = [box.node for box in drawn.boxes]
    ends = [
        (source.node, target.node) for panel in drawn.panels for source, target, _ in panel.edges
    ]
    found = {pair for pair in ends if min(pair) >= 0}
    rows = [row.box.node for panel in drawn.panels for row in panel.rows if not row.is_again]
    steps = [step.box.node for panel in drawn.panels for step in panel.ring]
    return (
        len(rows + steps) == len({*rows, *steps})
        and {n for n in boxes if n >= 0} <= nodes
        and found <= edges
    )


def test_a_deadlock_is_a_ring_in_which_tasks_and_locks_alternate() -> None:
    scene = Scene(4, {0: 1, 1: 0, 2: 0, 3: 1}, {0: (0, _SURE), 1: (1, _SURE)})
    result = result_of(scene)
    drawn = picture(result)
    (panel,) = drawn.panels
    shapes = [step.box.shape for step in panel.ring]
    assert shapes == [Shape.TASK, Shape.OBJECT] * 2
    assert [step.link.words for step in panel.ring] == ["waits for", "held by"] * 2
    assert {step.link.strength for step in panel.ring} == {"proven"}
    assert "deadlock (proven)" in panel.title
    behind = [row.box.name for row in panel.rows if not row.is_again]
    assert sorted(behind) == ["task-2 (PID 102)", "task-3 (PID 103)"]
    assert _is_complete(result, drawn)
    assert drawn.note == ""


def test_a_cycle_with_a_possible_edge_is_called_so() -> None:
    result = result_of(Scene(2, {0: 1, 1: 0}, {0: (0, _SURE), 1: (1, _MAYBE)}))
    (panel,) = picture(result).panels
    assert [step.link.strength for step in panel.ring].count("possible") == 1
    assert "possible deadlock" in panel.title


def test_a_task_that_waits_for_itself() -> None:
    (panel,) = picture(result_of(Scene(1, {0: 0}, {0: (0, _SURE)}))).panels
    assert len(panel.ring) == 2
    assert len(panel.sentences) == 2


def test_a_crowd_is_three_boxes_and_one_of_the_rest() -> None:
    drawn = picture(result_of(_crowd(201)))
    (panel,) = drawn.panels
    assert [row.depth for row in panel.rows] == [0, 1, 2, 2, 2, 2]
    assert panel.rows[-1].box.name == "197 more tasks"
    assert panel.rows[-1].box.shape is Shape.MORE
    # Those that wait longest have boxes.
    assert [row.box.name.split()[0] for row in panel.rows[2:5]] == [
        "task-200",
        "task-199",
        "task-198",
    ]
    # A box of one would take as much room as that task.
    (panel,) = picture(result_of(_crowd(5))).panels
    assert {row.box.shape for row in panel.rows} == {Shape.TASK, Shape.OBJECT}


@pytest.mark.parametrize(
    "scene",
    [_chain(300), _ring(300), _pairs(200), _crowd(300), _alone(200)],
    ids=["chain", "ring", "pairs", "crowd", "alone"],
)
def test_a_picture_is_bounded_and_says_what_it_leaves_out(scene: Scene) -> None:
    result = result_of(scene)
    drawn = picture(result)
    assert 2 <= len(drawn.boxes) <= _MAX_BOXES + len(drawn.panels)
    assert _is_complete(result, drawn)
    tasks = sum(box.shape is Shape.TASK for box in drawn.boxes)
    told = tasks + _counted(drawn)
    rest = [part for part in drawn.note.split("; ") if "tasks that wait" in part]
    if rest:
        told += int(rest[0].split(": ")[-1].split(".")[0].replace(",", ""))
    # Who does not wait has no place in the count of what is left out.
    awake = scene.count - len(scene.waits)
    assert scene.count - awake <= told <= scene.count


def test_an_edge_to_a_box_that_is_drawn_elsewhere_names_it_again() -> None:
    # Task 2 holds the mutex that task 3 waits for, and so does task 0 of the cycle, possibly.
    scene = Scene(4, {0: 1, 1: 0, 2: 0, 3: 2}, {0: (0, _SURE), 1: (1, _SURE), 2: (2, _SURE)})
    (panel,) = picture(result_of(scene)).panels
    again = [row for row in panel.rows if row.is_again]
    assert [row.depth for row in again] == [0]
    assert again[0].box.node in {step.box.node for step in panel.ring}


def test_a_lock_without_a_known_holder_is_called_so() -> None:
    (panel,) = picture(result_of(Scene(2, {0: 0, 1: 0}))).panels
    assert panel.rows[0].box.note.endswith("holder unknown")


def test_who_may_hold_a_lock_is_a_lead_and_not_blamed() -> None:
    result = result_of(Scene(4, {0: 0, 1: 0}, {0: (3, _MAYBE)}))
    drawn = picture(result)
    (panel,) = drawn.panels
    assert panel.rows[0].box.shape is Shape.OBJECT
    (lead,) = (row for row in panel.rows if row.is_lead)
    assert lead.box.name == "task-3 (PID 103)"
    assert panel.edges[0][:2] == (panel.rows[0].box, lead.box)
    assert _is_complete(result, drawn)


def test_nothing_waits() -> None:
    assert picture(result_of(Scene(1))).panels == ()
    assert picture(Result("waits", "x", "6.1")) == Picture()


@pytest.mark.parametrize("name", ["nodes", "edges", "tasks", "cycles", "objects"])
def test_a_result_of_another_version_may_lack_columns(name: str) -> None:
    result = result_of(Scene(3, {0: 1, 1: 0, 2: 0}, {0: (0, _SURE), 1: (1, _SURE)}))
    table = result.tables[name]
    for column in table.frame.columns:
        frame = table.frame.drop(columns=column)
        kept = {key: each for key, each in table.columns.items() if key != column}
        less = Table(frame, kept)
        picture(dataclasses.replace(result, tables={**result.tables, name: less}))
        wrong = table.frame.astype(object)
        wrong[column] = None
        other = Table(wrong, table.columns)
        picture(dataclasses.replace(result, tables={**result.tables, name: other}))
