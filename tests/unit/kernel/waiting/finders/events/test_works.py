# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work items that tasks flush, in words of *synthetic* kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.run_queues import RunQueues, run_queues
from kcensus.kernel.waiting.finders.cpus.occupied import CPU, RUNS, STARVED
from kcensus.kernel.waiting.finders.events.works import WORK, Works
from kcensus.kernel.waiting.graph import QUEUED, RUN_BY, EdgeKind
from kcensus.kernel.workqueues import Pool, Workqueues, workqueues
from tests.unit.kernel.waiting.making import Sleepers, edges, links, words

_WORK = """
struct wq_barrier 64 : 0 struct work_struct work; 32 struct completion done
struct work_struct 32
struct completion 32
struct wq_flusher 48 : 16 struct completion done
struct workqueue_struct 64 : 8 struct wq_flusher * first_flusher
"""
_RQ = 0xFFFF_8882_0000_0000
_ITEM, _NEXT, _BARRIER, _QUEUE = (0xFFFF_8881_0000_0000 + step * 256 for step in range(4))


def _items(*items: tuple[int, str, int], queue: int = _QUEUE) -> Workqueues:
    """A workqueue's items: address, state, and PID of the worker."""
    rows: list[dict[str, Any]] = [
        {"pool": 0, "wq": queue, "work": work, "func": 0, "state": state, "pid": pid, "seconds": 0}
        for work, state, pid in items
    ]
    return Workqueues(items=pd.DataFrame(rows), names={queue: "events"})


_RUNS, _NEXT_RUNS = (_ITEM, "in-flight", 101), (_NEXT, "in-flight", 101)


@pytest.mark.parametrize(
    ("items", "object_", "evidence", "wanted"),
    [
        # The worker runs it, and the barrier comes next.
        ([_RUNS, (_BARRIER, "scheduled", 101)], _ITEM, "worker.scheduled", [(_ITEM, RUN_BY)]),
        # It waits for a worker, too, behind which nothing runs that has to end first.
        (
            [_NEXT_RUNS, (_ITEM, "pending", 0), (_BARRIER, "pending", 0)],
            *(_ITEM, "list of pending work", []),
        ),
        # The workqueue runs as many as it may.
        (
            [_NEXT_RUNS, (_ITEM, "inactive", 0), (_BARRIER, "inactive", 0)],
            *(_ITEM, "list of inactive work", [(_ITEM, QUEUED), (_NEXT, RUN_BY)]),
        ),
        # Nothing is before the barrier, or it is on no list.
        ([(_BARRIER, "pending", 0)], _BARRIER + 32, "", []),
        ([_RUNS], _BARRIER + 32, "", []),
        # Its worker is on no list of tasks.
        ([(_ITEM, "in-flight", 999), (_BARRIER, "scheduled", 999)], _ITEM, "worker.scheduled", []),
    ],
)
def test_work_that_is_flushed(
    items: list[tuple[int, str, int]],
    object_: int,
    evidence: str,
    wanted: list[tuple[int, EdgeKind]],
) -> None:
    scene = Sleepers(_WORK, "__flush_work", "worker")
    scene.wait(0, _BARRIER + 32, "struct completion")
    scene.remember(workqueues, _items(*items))
    graph, _ = scene.run(Works)
    assert (int(scene.waits.object[0]), scene.waits.evidence[0]) == (object_, evidence)
    assert {(source, edge) for source, edge, _ in edges(graph)} == set(wanted)
    assert all(target == scene.task[1] for _, edge, target in edges(graph) if edge is RUN_BY)


@pytest.mark.parametrize("state", ["pending", "scheduled", "inactive"])
def test_work_that_two_tasks_flush(state: str) -> None:
    """Barriers follow the work item, the last one first."""
    scene = Sleepers(_WORK, "__flush_work", "__flush_work", "worker")
    for lane, barrier in enumerate((_BARRIER, _BARRIER + 64)):
        scene.wait(lane, barrier + 32, "struct completion")
    function = 0xFFFF_FFFF_8110_0000
    scene.k.functions({"wq_barrier_func": function})
    pid = 102 if state == "scheduled" else 0
    found = _items(
        (_NEXT, "in-flight", 102),
        (_ITEM, state, pid),
        (_BARRIER + 64, state, pid),
        (_BARRIER, state, pid),
    )
    found.items["func"] = np.array([0, 0, function, function], np.uint64)
    scene.remember(workqueues, found)
    graph, _ = scene.run(Works)
    assert scene.waits.object[:2].tolist() == [_ITEM, _ITEM]
    # One that a worker has taken along comes after what it runs.
    behind = [] if state == "pending" else [(_ITEM, QUEUED), (_NEXT, RUN_BY)]
    assert {(source, edge) for source, edge, _ in edges(graph)} == set(behind)


_COLORS = f"""{_WORK}
struct wq_flusher 48 : 0 struct list_head list; 16 int flush_color; 24 struct completion done
struct workqueue_struct 64
    0 int flush_color; 8 struct wq_flusher * first_flusher; 16 struct list_head flusher_queue
    32 struct list_head flusher_overflow
"""


def test_colors_of_flushes() -> None:
    """A flush waits for works of its own color and earlier ones, modulo the number of colors."""
    scene = Sleepers(_COLORS, *["__flush_workqueue"] * 3, "worker")
    scene.k.constant("WORK_NR_COLORS", 16)
    queue = scene.k.alloc("struct workqueue_struct", flush_color=15)
    flushers = [scene.k.alloc("struct wq_flusher") for _ in range(3)]
    scene.k.set(queue.first_flusher, flushers[0])
    for lane, (flusher, color) in enumerate(zip(flushers, (15, 0, -1), strict=True)):
        scene.k.set(flusher.flush_color, color)
        scene.wait(lane, flusher.done.address_, "struct completion")
    # The second one waits for its turn, the third one even for a color.
    scene.k.set(flushers[1].list.next, queue.flusher_queue)
    scene.k.set(flushers[2].list.next, queue.flusher_overflow)
    works = [0xFFFF_8881_0100_0000 + 256 * number for number in range(3)]
    found = _items(*((work, "in-flight", 103) for work in works), queue=queue.address_)
    found.items["color"] = [15, 0, 1]
    scene.remember(workqueues, found)
    graph, _ = scene.run(Works)
    nodes = [queue.address_, flushers[1].address_, flushers[2].address_]
    assert scene.waits.object[:3].tolist() == nodes
    proven, derived = int(Strength.PROVEN), int(Strength.DERIVED)
    assert {
        (nodes.index(source), works.index(target), sure)
        for _, source, edge, target, sure in links(graph)
        if edge is QUEUED
    } == {(0, 0, proven), *((1, n, proven) for n in (0, 1)), *((2, n, derived) for n in (0, 1, 2))}


@pytest.mark.parametrize(
    ("ages", "strength"),
    [((5, 9), Strength.DERIVED), ((9, 5), Strength.POSSIBLE), ((-1, 5), Strength.POSSIBLE)],
)
@pytest.mark.parametrize("types", [_COLORS, _WORK])
def test_works_without_a_color(ages: tuple[int, int], strength: Strength, types: str) -> None:
    """What a worker has slept in since before the flush was queued before it."""
    scene = Sleepers(types, "__flush_workqueue", "worker", "__flush_workqueue")
    scene.waits.since_ns[:] = scene.known.off_cpu_ns[:] = [*ages, 0]
    queue, flusher = scene.k.alloc("struct workqueue_struct"), scene.k.alloc("struct wq_flusher")
    scene.k.set(queue.first_flusher, flusher)
    for lane, place in ((0, flusher.done.address_), (2, flusher.done.address_ + 512)):
        scene.wait(lane, place, "struct completion")
    found = _items((_ITEM, "in-flight", 101), (_NEXT, "pending", 0), queue=queue.address_)
    scene.remember(workqueues, found)
    graph, _ = scene.run(Works)
    # The third one is not in line.
    assert scene.waits.type == ["struct workqueue_struct", "", "struct completion"]
    assert {(source, edge, target, sure) for _, source, edge, target, sure in links(graph)} == {
        (queue.address_, QUEUED, _ITEM, int(strength)),
        (_ITEM, RUN_BY, scene.task[1], int(Strength.PROVEN)),
    }


def _stalled(pid: int, cpu: int = 0, age: float = 5.0) -> Workqueues:
    known = _items((_NEXT, "in-flight", pid), (_ITEM, "pending", 0), (_BARRIER, "pending", 0))
    pool = Pool(0, 0, cpu, 0, 0, 0, 1, 0, 2, age, is_stalled=True)
    return replace(known, pools=[pool])


@pytest.mark.parametrize(
    ("cpu", "age", "awake", "target"),
    [
        (0, 8.0, False, ""),  # the task that runs there took its turn since
        (0, 5.0, True, "work"),  # the worker of the running item does not sleep
        (0, 5.0, False, "cpu"),
        (0, 0.1, False, ""),
        (-1, 5.0, True, ""),  # an unbound pool starts others beside it
    ],
)
def test_pending_work_of_a_cpu_without_progress(
    cpu: int, age: float, awake: bool, target: str
) -> None:
    scene = Sleepers(_WORK, "flush_work", "worker_thread")
    scene.wait(0, _BARRIER + 32, "struct completion")
    scene.known.arrived_ns[1] = 6 * 10**9
    if awake:
        scene.known.state[1] = 0
    scene.remember(workqueues, _stalled(101, cpu, age))
    queues = words(_RQ)
    idle, online = np.array([False]), np.array([True])
    current = scene.known.address[[1]]
    known = RunQueues({0: 0}, queues, current, queues, idle, online, Faults(), ~online)
    scene.remember(run_queues, known)
    graph, _ = scene.run(Works)
    wanted = {
        "work": {(WORK, _ITEM, QUEUED, _NEXT), (WORK, _NEXT, RUN_BY, scene.task[1])},
        "cpu": {(WORK, _ITEM, STARVED, _RQ), (CPU, _RQ, RUNS, scene.task[1])},
    }
    found = {link[:4] for link in links(graph)}
    assert found == wanted.get(target, set())
