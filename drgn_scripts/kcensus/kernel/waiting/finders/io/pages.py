# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages and bits that tasks wait for, and tasks with references to a page that others wait for."""

from __future__ import annotations

from collections.abc import Sequence

import drgn
import numpy as np

from kcensus.arch import MAX_MEMORY_BYTES
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.locking.wait_tables import bit_waiters
from kcensus.kernel.tasks.functions import WaitKind, plain
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import TASK, EdgeKind, NodeKind
from kcensus.kernel.waiting.identities import page_names
from kcensus.kernel.waiting.objects.reading import Reading

PAGE = NodeKind("page", ("struct page", "struct folio"))
REFERENCED = EdgeKind("referenced by", "has a reference to")


def pages_and_bits(reading: Reading) -> None:
    """Note the pages and bits of tasks on hashed wait queues."""
    waiting = bit_waiters(reading.kernel)
    reading.missing += waiting.missing
    kept, lane = reading.lanes(waiting.task)
    is_page = waiting.is_page[kept]
    for mask, kind, type_ in (
        (is_page, WaitKind.FOLIO, page_type(reading.kernel.prog)),
        (~is_page, WaitKind.BIT, "unsigned long"),
    ):
        some = np.flatnonzero(mask)
        proof = [waiting.table[index] for index in kept[some].tolist()]
        reading.note(lane[some], waiting.object[kept[some]], kind, type_, proof)
    reading.torn += waiting.torn
    reading.faults += waiting.faults
    pages = lane[is_page]
    pages = pages[reading.object[pages] == waiting.object[kept[is_page]]]
    members = {"mapping": "mapping", "index": ("index", "__folio_index")}
    page = layout(reading.kernel.prog, page_type(reading.kernel.prog), members)
    read = gather(reading.kernel.memory, reading.object[pages], page, reading.faults)
    # The lowest bits mark anonymous or movable pages.
    has_file = (read["mapping"] != 0) & ((read["mapping"] & np.uint64(3)) == 0)
    host = layout(reading.kernel.prog, "struct address_space", ["host"])
    where = np.where(has_file, read["mapping"], np.uint64(0))
    inode = gather(reading.kernel.memory, where, host, reading.faults)["host"]
    size = int(reading.kernel.prog["PAGE_SIZE"])
    position = read["index"].astype(np.int64) * size
    reading.place_files(pages, inode, np.where(inode != 0, position, -1))


def page_type(prog: drgn.Program) -> str:
    # Since Linux kernel commit 7b230db3b8d3 ("mm: Introduce struct folio") (in v5.16).
    try:
        prog.type("struct folio")
    except LookupError:
        return "struct page"
    return "struct folio"


class Pages(Finder):
    """Finds the pages with an awaited reference count."""

    about = "pages"
    kinds = (PAGE,)
    lists = {"wait queues of pages and bits": pages_and_bits}
    sleeps = {
        WaitKind.FOLIO: """
            folio_wait_bit_common folio_wait_bit folio_wait_bit_killable folio_wait_writeback
            folio_put_wait_locked __folio_lock __folio_lock_killable __folio_lock_or_retry
            wait_on_page_bit_common wait_on_page_bit wait_on_page_bit_killable __lock_page
            __lock_page_killable __lock_page_or_retry put_and_wait_on_page_locked
            wait_on_page_writeback migration_entry_wait_on_locked
            """,
        WaitKind.BIT: """
            __wait_on_buffer __lock_buffer __wait_on_freeing_inode wait_on_inode
            inode_wait_for_writeback __inode_wait_for_writeback
            """,
    }

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
        most = np.uint64(MAX_MEMORY_BYTES >> self.kernel.memory.page_shift) * size
        first = np.uint64(int(self.kernel.prog["vmemmap"]))
        start = self.object[lanes] - self._offset("struct page", "_refcount.counter")
        is_count = (start >= first) & ((start - first) % size == 0)
        is_count &= start - first < most
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
