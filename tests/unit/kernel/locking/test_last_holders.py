# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who may hold a semaphore that notes who took it last, on *synthetic* stacks."""

from __future__ import annotations

import pytest

from kcensus.kernel.locking.owners import Mode, Strength
from kcensus.kernel.tasks.call_sites import CallSites, Held
from kcensus.kernel.tasks.waits import sleeps
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.kernel.waiting.reader import Waiting, waiting
from tests.unit.kernel.waiting.making import Sleepers

_SEMAPHORE = "struct semaphore"
_TYPES = {
    "struct task_struct": (64, "8 struct mm_struct * mm"),
    "struct mm_struct": (64, "0 int mmap_lock"),
    _SEMAPHORE: (16, "0 unsigned int count\n8 unsigned long last_holder"),
}


def _waiting(monkeypatch: pytest.MonkeyPatch, last: int, code: str = "") -> tuple[Waiting, int]:
    """The first task waits for a semaphore.

    :param last: the task that took it last
    :param code: what its function has taken: ``it``, ``some`` semaphore, or nothing
    """
    scene = Sleepers(_TYPES, "down", "mutex_lock")
    semaphore = scene.k.alloc(_SEMAPHORE)
    scene.k.set(semaphore.last_holder, scene.task[last])
    address = int(semaphore.address_)
    scene.wait(0, address, _SEMAPHORE)
    scene.remember(sleeps, scene.waits)
    own = int(scene.waits.stacks.pc[last])
    held = [Held(_SEMAPHORE, Mode.NONE, address if code == "it" else 0, True, True, False)]
    monkeypatch.setattr(
        CallSites, "held", lambda _, pc, *__, **___: held if code and pc == own else []
    )
    return waiting(scene.kernel), scene.task[last]


def _holders(found: Waiting) -> dict[int, Strength]:
    graph = found.graph
    (node,) = (node for node, kind in enumerate(graph.kind) if kind is NodeKind.SEMAPHORE)
    return {
        int(graph.address[int(graph.target[edge])]): Strength(int(graph.strength[edge]))
        for edge in graph.following[node]
    }


def test_a_thread_that_others_wake_up_is_no_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    found, task = _waiting(monkeypatch, 0)
    assert _holders(found) == {task: Strength.POSSIBLE}
    (cycle,) = cycles(found.graph)
    assert cycle.strength is Strength.POSSIBLE


def test_the_last_one_that_took_it_may_have_dropped_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found, task = _waiting(monkeypatch, 1)
    assert _holders(found) == {task: Strength.POSSIBLE}


@pytest.mark.parametrize("code", ["it", "some"])
def test_code_on_the_stack_that_took_it(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, task = _waiting(monkeypatch, 1, code)
    assert _holders(found) == {task: Strength.DERIVED}
    # A task that waits for it took this one before only if its code names it.
    found, task = _waiting(monkeypatch, 0, code)
    strength = Strength.DERIVED if code == "it" else Strength.POSSIBLE
    assert _holders(found) == {task: strength}
