# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debuggers of stopped tasks of *synthetic* kernels."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.stopped.tracers import TRACES, Tracers
from kcensus.kernel.waiting.graph import HELD, TASK, WAITS, NodeKind
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = "struct task_struct 64 : 8 unsigned int ptrace; 16 struct task_struct * parent"
_STOPPED, _TRACED = 4, 8


@pytest.mark.parametrize(
    ("state", "ptrace", "is_parent", "is_found"),
    [
        (_TRACED, 1, True, True),
        (_STOPPED, 0, True, False),
        # Its debugger has just gone, or its parent is no task.
        (_TRACED, 0, True, False),
        (_TRACED, 1, False, False),
    ],
)
def test_tracers(state: int, ptrace: int, is_parent: bool, is_found: bool) -> None:
    scene = Sleepers(_TYPES, "ptrace_stop", "gdb")
    scene.known.state[0] = state
    parent = scene.task[1] if is_parent else 0x5A5A_5A5A
    scene.k.write_words(scene.task[0] + 8, ptrace, parent)
    graph, _ = scene.run(Tracers)
    wanted = (TASK, scene.task[0], TRACES, scene.task[1], int(Strength.PROVEN))
    assert links(graph) == {wanted} if is_found else links(graph) == set()


@pytest.mark.parametrize("is_frozen", [False, True])
def test_objects_that_a_stopped_task_keeps_are_of_interest(is_frozen: bool) -> None:
    shown, other = NodeKind("lock", shows_stopped=True), NodeKind("queue")
    scene = Sleepers(_TYPES, "waits", "runs", "stopped")
    if is_frozen:
        object.__setattr__(scene.known, "is_trapped", np.array([False, False, True]))
    else:
        scene.known.state[2] = _STOPPED
    graph, finder = scene.run(Tracers)
    assert list(finder.of_interest(graph)) == []
    build, task, locks = finder.build, words(*scene.task), words(0x1000, 0x2000)
    for kind, lock in ((shown, locks[:1]), (other, locks[1:])):
        build.edges(WAITS, (TASK, task[:1]), (kind, lock), "waits")
        build.edges(HELD, (kind, lock), (TASK, task[2:]), "owner")
    # A task that runs has this one.
    build.edges(HELD, (shown, words(0x3000)), (TASK, task[1:2]), "owner")
    graph = build.graph()
    found = [int(graph.address[node]) for node in finder.of_interest(graph)]
    assert found == [0x1000]
