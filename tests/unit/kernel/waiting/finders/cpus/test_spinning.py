# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that spin for spinlocks, with stacks as drgn unwinds them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.waiting.finders.cpus import spinning
from kcensus.kernel.waiting.finders.cpus.spinning import SPINLOCK, Spinning
from kcensus.kernel.waiting.graph import HELD, TASK, WAITS
from tests.unit.kernel.waiting.making import Sleepers, links

_LOCK = 0xFFFF_8882_0000_0000


class _Lock:
    """An argument that points to a qspinlock with a value."""

    def __init__(self, value: int) -> None:
        self.val = SimpleNamespace(counter=value)

    def __int__(self) -> int:
        return _LOCK


class _Frame:
    def __init__(self, name: str, lock: _Lock | None = None, sp: int = 0, **registers: int) -> None:
        self.name, self._lock, self.sp, self._registers = name, lock, sp, registers

    def __getitem__(self, name: str) -> _Lock:
        if self._lock is None:
            raise KeyError(name)
        return self._lock

    def registers(self) -> dict[str, int]:
        return self._registers


def _run(scene: Sleepers, *traces: list[_Frame]) -> Any:
    on_cpu = np.array([True] * len(traces) + [False])
    scene.known = replace(scene.known, is_on_cpu=on_cpu, arrived_ns=np.zeros(len(on_cpu), np.int64))
    scene.remember(tasks, scene.known)
    by_task = dict(zip(scene.task, traces, strict=False))
    with mock.patch.object(spinning, "running_trace", lambda _, task: by_task.get(task)):
        return scene.run(Spinning)


def _spins(value: int = 1) -> list[_Frame]:
    frames = [_Frame("sysvec_x"), _Frame("native_queued_spin_lock_slowpath", _Lock(value))]
    return [*frames, _Frame("writer")]


@pytest.mark.parametrize("place", ["register", "stack", "nowhere"])
def test_a_task_with_the_address_of_the_lock_may_hold_it(place: str) -> None:
    scene = Sleepers("struct task_struct 64", "a", "b", "asleep")
    scene.put(1, _LOCK)
    sp = scene.stack[1] + (512 if place == "stack" else 2048)
    holder = _Frame("loop", sp=sp, rdi=_LOCK if place == "register" else 0)
    graph, _ = _run(scene, _spins(), [holder])
    wanted = {(TASK, scene.task[0], WAITS, _LOCK, int(Strength.DERIVED))}
    if place != "nowhere":
        wanted.add((SPINLOCK, _LOCK, HELD, scene.task[1], int(Strength.POSSIBLE)))
    assert links(graph) == wanted


@pytest.mark.parametrize(
    "trace",
    [
        _spins(0),  # the lock is free by now
        [_Frame("native_queued_spin_lock_slowpath")],  # its argument is lost
        [_Frame("writer", _Lock(1))],
    ],
)
def test_a_task_that_does_not_spin(trace: list[_Frame]) -> None:
    scene = Sleepers("struct task_struct 64", "a", "asleep")
    graph, _ = _run(scene, trace)
    assert not len(graph.source)
