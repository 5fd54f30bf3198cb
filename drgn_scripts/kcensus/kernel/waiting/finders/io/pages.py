# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks with references to a page whose reference count others wait for."""

from __future__ import annotations

from collections.abc import Sequence

import drgn
import numpy as np

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import TASK, EdgeKind, NodeKind
from kcensus.kernel.waiting.identities import page_names

PAGE = NodeKind("page", ("struct page", "struct folio"))
REFERENCED = EdgeKind("referenced by", "has a reference to")


class Pages(Finder):
    """Finds the pages with an awaited reference count."""

    about = "pages"
    kinds = (PAGE,)

    def identify(self, kind: NodeKind, addresses: Sequence[int]) -> dict[int, str]:
        """Return the file of each page."""
        return page_names(self.kernel, addresses)

    def note(self) -> None:
        """Find the tasks that wait for references of a page, and the stacks with its address.

        wait_var_event() waits for a change of the page's own count.
        """
        lanes = self._of_type("unsigned long")
        if not len(lanes):
            return
        size = np.uint64(drgn.sizeof(self.kernel.prog.type("struct page")))
        first = np.uint64(int(self.kernel.prog["vmemmap"]))
        start = self.object[lanes] - self._offset("struct page", "_refcount.counter")
        is_count = (start >= first) & ((start - first) % size == 0)
        is_count &= start - first < np.uint64(1 << 46)
        for lane, address in zip(lanes[is_count].tolist(), start[is_count].tolist(), strict=True):
            self.object[lane], self.type[lane] = address, "struct page"
        pages = np.unique(start[is_count])
        waiters = set(lanes[is_count].tolist())
        for lane, address, place in self._mentions(pages):
            if lane not in waiters:
                self.build.edges(
                    REFERENCED,
                    (PAGE, np.array([address], np.uint64)),
                    (TASK, self.waits.task[[lane]]),
                    "on the stack",
                    strength=Strength.DERIVED,
                    place=np.array([place], np.uint64),
                    frame=plain(self._frame_at(lane, place)),
                )


FINDER = Pages
