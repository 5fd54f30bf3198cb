# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a picture shows of *synthetic* graphs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kcensus.analyses.waits.findings import findings
from kcensus.analyses.waits.tables import tables
from kcensus.kernel.locking.owners import Strength
from kcensus.results import Result
from kcensus.results.graphs import Picture, Shape, picture_of
from kcensus.results.tables import Table
from tests.pictures import not_shown
from tests.unit.analyses.waits.making import Scene, owned

_SURE, _MAYBE = Strength.PROVEN, Strength.POSSIBLE
_MAX_BOXES = 60


def result_of(scene: Scene) -> Result:
    figures = scene.figures()
    told = findings(figures)
    found = [each.finding for each in told]
    return Result("waits", "x", "6.1", tables=tables(figures, told), findings=found)


SCENES = {
    "chain": Scene(300, {task: task - 1 for task in range(1, 300)}, owned(299)),
    "ring": Scene(300, {task: (task + 1) % 300 for task in range(300)}, owned(300)),
    "pairs": Scene(200, {task: task ^ 1 for task in range(200)}, owned(200)),
    "crowd": Scene(300, dict.fromkeys(range(1, 300), 0), owned(1)),
    # Pairs of a task and one that waits for it.
    "alone": Scene(
        400,
        {2 * pair: pair for pair in range(200)},
        {pair: (2 * pair + 1, _SURE) for pair in range(200)},
    ),
    # Mutexes without known holders, each with one task that has waited for long.
    "unheld": Scene(200, {task: task for task in range(200)}),
    # Tasks that each hold a lock, and wait for one that nothing holds; and a crowd.
    "late": Scene(60, dict.fromkeys(range(40, 60), 39) | dict.fromkeys(range(39), 90), owned(40)),
}


def rings(count: int, size: int) -> Scene:
    """Deadlocks of some tasks each, with one task behind each."""
    scene = Scene(count * (size + 1), {}, owned(count * size))
    for ring in range(count):
        first = ring * size
        for task in range(size):
            scene.waits[first + task] = first + (task + 1) % size
        scene.waits[count * size + ring] = first
    return scene


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
    scene = Scene(4, {0: 1, 1: 0, 2: 0, 3: 1}, owned(2))
    result = result_of(scene)
    drawn = picture_of(result)
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


def test_a_possible_cycle_a_task_that_waits_for_itself_and_a_lock_without_holder() -> None:
    result = result_of(Scene(2, {0: 1, 1: 0}, {0: (0, _SURE), 1: (1, _MAYBE)}))
    (panel,) = picture_of(result).panels
    assert [step.link.strength for step in panel.ring].count("possible") == 1
    assert "possible deadlock" in panel.title
    (panel,) = picture_of(result_of(Scene(1, {0: 0}, owned(1)))).panels
    assert (len(panel.ring), len(panel.sentences)) == (2, 2)
    (panel,) = picture_of(result_of(Scene(2, {0: 0, 1: 0}))).panels
    assert panel.rows[0].box.note.endswith("holder unknown")


def test_a_crowd_is_four_boxes_and_one_of_the_rest() -> None:
    drawn = picture_of(result_of(Scene(201, dict.fromkeys(range(1, 201), 0), owned(1))))
    (panel,) = drawn.panels
    assert [row.depth for row in panel.rows] == [0, 1, 2, 2, 2, 2, 2]
    assert panel.rows[-1].box.name == "196 more tasks"
    assert panel.rows[-1].box.shape is Shape.MORE
    # Those that wait longest have boxes.
    names = [row.box.name.split()[0] for row in panel.rows[2:5]]
    assert names == ["task-200", "task-199", "task-198"]
    # A box of one would take as much room as that task.
    (panel,) = picture_of(result_of(Scene(5, dict.fromkeys(range(1, 5), 0), owned(1)))).panels
    assert {row.box.shape for row in panel.rows} == {Shape.TASK, Shape.OBJECT}


@pytest.mark.ends
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_a_picture_is_bounded_and_has_or_counts_all(scene: Scene, tmp_path: Path) -> None:
    result = result_of(scene)
    drawn = picture_of(result)
    assert result.findings
    assert not_shown(result, tmp_path) == []
    assert 2 <= len(drawn.boxes) <= _MAX_BOXES + len(drawn.panels)
    assert _is_complete(result, drawn)
    several = [box for box in drawn.boxes if box.shape is Shape.MORE]
    told = sum(int(box.name.split()[0].replace(",", "")) for box in several)
    told += sum(box.shape is Shape.TASK for box in drawn.boxes)
    # Who does not wait has no place in the count of what is left out.
    assert len(scene.waits) <= told <= scene.count


def test_rings_larger_than_a_picture_leave_room_for_a_tree(tmp_path: Path) -> None:
    result = result_of(rings(3, 12))
    assert [finding.id.partition(":")[0] for finding in result.findings] == ["waits-deadlock"] * 3
    assert not_shown(result, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_any_graph_has_a_picture_with_its_findings(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 120))
    waiting = random.random(count) < random.uniform(0.3, 1)
    locks = int(random.integers(1, count + 1))
    waits = {n: int(random.integers(0, locks)) for n in np.flatnonzero(waiting).tolist()}
    sure = {True: _SURE, False: _MAYBE}
    holders = {
        lock: (int(random.integers(0, count)), sure[bool(random.random() < 0.8)])
        for lock in range(locks)
        if random.random() < 0.9
    }
    result = result_of(Scene(count, waits, holders))
    assert not_shown(result, tmp_path) == []


def test_an_edge_to_a_box_that_is_drawn_elsewhere_names_it_again() -> None:
    # Task 2 holds the mutex that task 3 waits for, and so does task 0 of the cycle, possibly.
    scene = Scene(4, {0: 1, 1: 0, 2: 0, 3: 2}, owned(3))
    (panel,) = picture_of(result_of(scene)).panels
    again = [row for row in panel.rows if row.is_again]
    assert [row.depth for row in again] == [0]
    assert again[0].box.node in {step.box.node for step in panel.ring}


def test_who_may_hold_a_lock_is_a_lead_and_not_blamed() -> None:
    result = result_of(Scene(4, {0: 0, 1: 0}, {0: (3, _MAYBE)}))
    drawn = picture_of(result)
    (panel,) = drawn.panels
    assert panel.rows[0].box.shape is Shape.OBJECT
    (lead,) = (row for row in panel.rows if row.is_lead)
    assert lead.box.name == "task-3 (PID 103)"
    assert panel.edges[0][:2] == (panel.rows[0].box, lead.box)
    assert _is_complete(result, drawn)


def test_nothing_waits() -> None:
    assert picture_of(result_of(Scene(1))).panels == ()
    assert picture_of(Result("waits", "x", "6.1")) == Picture()


def test_a_result_of_another_version_may_lack_columns() -> None:
    result = result_of(Scene(3, {0: 1, 1: 0, 2: 0}, owned(2)))
    table = result.tables["picture"]
    for column in table.frame.columns:
        kept = {key: each for key, each in table.columns.items() if key != column}
        less = Table(table.frame.drop(columns=column), kept)
        wrong = Table(table.frame.astype(object).assign(**{column: None}), table.columns)
        for other in (less, wrong):
            picture_of(dataclasses.replace(result, tables={"picture": other}))
