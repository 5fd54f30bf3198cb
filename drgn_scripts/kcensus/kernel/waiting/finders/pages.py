# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who refers to a page while tasks wait for its references to go."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.layout import layout
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.waiting.finders.finder import Finder
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind


class Pages(Finder):
    """Finds the pages whose reference counts tasks wait for."""

    def find(self) -> None:
        """Find who waits for the references of a page to go, and who has its address on the stack.

        wait_var_event() waits for a change of the page's own count.
        """
        prog = self.kernel.prog
        lanes = self._of_type("unsigned long")
        if not len(lanes):
            return
        page = prog.type("struct page")
        size = np.uint64(drgn.sizeof(page))
        inside = np.uint64(
            layout(prog, page, ["_refcount.counter"]).fields["_refcount.counter"].offset
        )
        first = np.uint64(int(prog["vmemmap"]))
        start = self.object[lanes] - inside
        is_count = (start >= first) & ((start - first) % size == 0)
        is_count &= start - first < np.uint64(1 << 46)
        for lane, address in zip(lanes[is_count].tolist(), start[is_count].tolist(), strict=True):
            self.object[lane], self.type[lane] = address, "struct page"
        pages = np.unique(start[is_count])
        waiters = set(lanes[is_count].tolist())
        for lane, address, place in self._mentions(pages):
            if lane in waiters:
                continue
            frame = plain(self._frame_at(lane, place))
            self.build.edges(
                EdgeKind.REFERENCED,
                (NodeKind.PAGE, np.array([address], np.uint64)),
                (NodeKind.TASK, self.waits.task[[lane]]),
                strength=Strength.DERIVED,
                evidence="on the stack",
                place=np.array([place], np.uint64),
                frame=frame,
            )
