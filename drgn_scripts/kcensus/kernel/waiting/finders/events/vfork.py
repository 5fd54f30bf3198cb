# SPDX-License-Identifier: LGPL-2.1-or-later
"""Children made with vfork(), which hold up their parents."""

from __future__ import annotations

import numpy as np

from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import COMPLETED_BY, COMPLETION, TASK


class Children(Finder):
    """Finds the children whose parents wait for them to exec or exit."""

    about = "children of vfork"

    def find(self) -> None:
        """Add edges to the tasks whose parents wait for them to exec or exit."""
        lanes = self._of_type("struct completion")
        if not len(lanes):
            return
        wanted = np.unique(self.object[lanes])
        # vfork_done is NULL in a task that exits, or has released its memory.
        tasks = self.known.address
        done = self._member("struct task_struct", "vfork_done", tasks, is_guess=True)
        kept = np.flatnonzero((done != 0) & np.isin(done, wanted))
        self.build.edges(
            COMPLETED_BY,
            (COMPLETION, done[kept]),
            (TASK, tasks[kept]),
            "task.vfork_done",
            place=tasks[kept] + self._offset("struct task_struct", "vfork_done"),
        )


FINDER = Children
