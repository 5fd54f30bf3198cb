# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tasks of *synthetic* kernels with PREEMPT_RT wait for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kcensus.engine.memory import Faults
from kcensus.kernel.tasks import waits
from kcensus.kernel.tasks.functions import WaitKind, lock_type, waits_in
from tests.unit.kernel.waiting.making import Sleepers, words

_SLOW = ("__schedule", "rt_mutex_schedule", "rt_mutex_slowlock_block")
_TYPES = {
    "struct task_struct": (64, ""),
    "struct rt_mutex_base": (32, "24 struct task_struct * owner"),
    "struct rt_mutex_waiter": (64, "32 struct task_struct * task\n40 struct rt_mutex_base * lock"),
    "struct rwbase_rt": (40, "0 int readers\n8 struct rt_mutex_base rtmutex"),
    "struct rw_semaphore": (40, "0 struct rwbase_rt rwbase"),
}
_READ = (*_SLOW, "rwbase_read_lock", "down_read", "code")
_MUTEX = (*_SLOW, "__rt_mutex_lock", "code")
_DRAIN = ("__schedule", "rwbase_schedule", "rwbase_write_lock", "down_write", "code")


def reader(*stacks: tuple[str, ...]) -> tuple[waits._Reader, int]:
    """A reader of tasks with these functions, and an rwsem; all but writers wait for its mutex."""
    scene = Sleepers(_TYPES, *(waits_in(stack) for stack in stacks))
    rwsem = int(scene.k.alloc("struct rw_semaphore").address_)
    waiting = []
    for task, stack in zip(scene.task, stacks, strict=True):
        waiter = int(scene.k.alloc("struct rt_mutex_waiter").address_)
        scene.k.write_words(waiter + 32, task, rwsem + 8)
        waiting.append(waiter if "rt_mutex_schedule" in stack else 0)
    made = waits._Reader.__new__(waits._Reader)
    made.kernel, made.faults, made.missing = scene.kernel, Faults(), []
    made.known = replace(scene.known, pi_blocked_on=words(*waiting))
    made.rows, made.object = np.arange(len(stacks)), words(*[0] * len(stacks))
    made.facts = [waits._Facts.of(stack) for stack in stacks]
    made.kind, made.type = [WaitKind.OTHER] * len(stacks), [""] * len(stacks)
    made.evidence = [""] * len(stacks)
    made._blockers()
    return made, rwsem


def test_functions() -> None:
    assert [lock_type(stack) for stack in (_READ, _DRAIN)] == ["struct rw_semaphore"] * 2
    assert lock_type(_MUTEX) == ""
    assert lock_type((*_SLOW, "mutex_lock", "code")) == "struct mutex"
    assert {waits_in(stack) for stack in (_READ, _DRAIN, _MUTEX)} == {"code"}


def test_an_rt_mutex_in_an_rwsem_is_the_rwsem() -> None:
    made, rwsem = reader(_READ, _MUTEX)
    assert made.object.tolist() == [rwsem, rwsem + 8]
    assert made.type == ["struct rw_semaphore", "struct rt_mutex_base"]
    assert made.missing == []


def test_writers_that_wait_for_readers_are_a_gap() -> None:
    made, _ = reader(_DRAIN)
    assert made.object.tolist() == [0]
    assert made.missing == ["readers of rwsems with PREEMPT_RT"]
