# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects on the stacks of tasks of *synthetic* kernels."""

from __future__ import annotations

import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.events.on_stacks import WOKEN_BY, OnStacks
from kcensus.kernel.waiting.graph import COMPLETION, QUEUE, NodeKind
from tests.unit.kernel.waiting.making import SIZE, Sleepers, links

_TYPES = "struct task_struct 64"


@pytest.mark.parametrize(
    ("function", "type_", "kind", "strength"),
    [
        ("d_alloc_parallel", "struct wait_queue_head", QUEUE, Strength.DERIVED),
        ("io_schedule", "struct wait_queue_head", QUEUE, Strength.POSSIBLE),
        ("wait_for_completion", "struct completion", COMPLETION, Strength.POSSIBLE),
    ],
)
def test_the_task_with_the_object_on_its_stack_ends_the_wait(
    function: str, type_: str, kind: NodeKind, strength: Strength
) -> None:
    scene = Sleepers(_TYPES, function, "xfs_buf_iowait")
    object_ = scene.stack[1] + 1024
    scene.wait(0, object_, type_)
    graph, _ = scene.run(OnStacks)
    assert links(graph) == {(kind, object_, WOKEN_BY, scene.task[1], int(strength))}


@pytest.mark.parametrize("at", [8, SIZE])
def test_below_the_stack_pointer_and_beyond_the_stack_is_nothing(at: int) -> None:
    scene = Sleepers(_TYPES, "d_alloc_parallel", "msleep")
    scene.wait(0, scene.stack[1] + at, "struct wait_queue_head")
    graph, _ = scene.run(OnStacks)
    assert len(graph) == 0


def test_a_task_that_waits_for_its_own_object_ends_no_wait() -> None:
    """A completion is most often on the stack of the task that waits for it."""
    scene = Sleepers(_TYPES, "wait_for_completion", "wait_for_completion", "mutex_lock")
    scene.wait(0, scene.stack[0] + 1024, "struct completion")
    for lane in (1, 2):
        scene.wait(lane, scene.stack[1] + 1024, ("struct completion", "struct mutex")[lane - 1])
    scene.wait(2, scene.stack[1] + 1024, "struct completion")
    graph, _ = scene.run(OnStacks)
    assert len(graph) == 0
