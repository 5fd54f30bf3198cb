# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wait queues and completions on the stack of a task that others wait for."""

from __future__ import annotations

import numpy as np

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import TASK, EdgeKind

WOKEN_BY = EdgeKind("woken by", "must wake the waiters of")
_TYPES = (
    *("struct wait_queue_head", "struct __wait_queue_head", "struct swait_queue_head"),
    "struct completion",
)
_BY_OWNER = frozenset({"d_alloc_parallel", "d_wait_lookup"})
"""Functions that wait on a queue of the task that looks up the same name: the look-up's caller has
it on its stack, since Linux kernel commit d9171b934526 ("parallel lookups machinery, part 4 (and
last)") (in v4.7), and wakes its waiters when it is done."""


class OnStacks(Finder):
    """Finds the tasks with the object of other tasks' waits on their stacks."""

    about = "objects on stacks"

    def find(self) -> None:
        """Add edges from the objects to the tasks that have them on their stacks.

        A task outlives the waits for an object on its stack, and most often ends them. Only of some
        functions is it known that no other task does.
        """
        lanes = self._of_type(*_TYPES)
        size = np.uint64(self.waits.stacks.size)
        if not len(lanes) or not size:
            return
        order = np.argsort(self.known.stack)
        stack, sp = self.known.stack[order], self.known.sp[order]
        objects = self.object[lanes]
        at = np.searchsorted(stack, objects, "right") - 1
        inside = (at >= 0) & (objects - stack[at] < size) & (objects >= sp[at]) & (stack[at] != 0)
        owner = self.known.address[order[at]]
        inside &= owner != self.waits.task[lanes]
        waiting = set(zip(self.waits.task.tolist(), self.object.tolist(), strict=True))
        for row in np.flatnonzero(inside).tolist():
            lane, task, object_ = int(lanes[row]), owner[row], objects[row]
            if (int(task), int(object_)) in waiting:
                continue
            is_own = plain(self.waits.function[lane]) in _BY_OWNER
            self.build.edges(
                WOKEN_BY,
                ([self.draft.kind_of(lane)], np.array([object_], np.uint64)),
                (TASK, np.array([task], np.uint64)),
                "on the stack",
                strength=Strength.DERIVED if is_own else Strength.POSSIBLE,
                place=np.array([object_], np.uint64),
            )


FINDER = OnStacks
