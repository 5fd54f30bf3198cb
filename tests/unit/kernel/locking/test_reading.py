# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks of *synthetic* kernels in the graph of waits."""

from __future__ import annotations

import drgn

from kcensus.kernel.tasks.waits import sleeps
from kcensus.kernel.waiting.graph import EdgeKind
from kcensus.kernel.waiting.reader import unread_code, waiting
from tests.unit.kernel.waiting.making import Sleepers, edges

_TYPES = {
    "struct task_struct": (64, ""),
    # Of a kernel before v4.10, without CONFIG_SMP.
    "struct mutex": (16, "0 int count"),
    "struct rw_semaphore": (16, "0 long count\n8 unsigned long owner"),
}


def test_one_type_of_locks_without_owners_does_not_hide_the_others() -> None:
    scene = Sleepers(_TYPES, "reads", "locks", "owns")
    scene.remember(sleeps, scene.waits)
    rwsem, mutex = (
        int(scene.k.alloc(name).address_) for name in ("struct rw_semaphore", "struct mutex")
    )
    scene.k.write_words(rwsem, 1, scene.task[2])
    scene.wait(0, rwsem, "struct rw_semaphore")
    scene.wait(1, mutex, "struct mutex")
    found = waiting(scene.kernel)
    assert (rwsem, EdgeKind.HELD, scene.task[2]) in edges(found.graph)
    assert "owners of struct mutex" in found.missing
    assert "owners of struct rw_semaphore" not in found.missing
    assert unread_code(scene.k.prog.platform) == []


def test_code_of_another_architecture_is_said_not_to_be_read() -> None:
    (said,) = unread_code(drgn.Platform(drgn.Architecture.AARCH64))
    assert "aarch64" in said
    assert unread_code(None) == []
