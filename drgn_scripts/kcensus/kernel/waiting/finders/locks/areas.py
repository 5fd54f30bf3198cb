# SPDX-License-Identifier: LGPL-2.1-or-later
"""Page faults in the areas of memory maps that writers wait for."""

from __future__ import annotations

import numpy as np

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import HELD, TASK, NodeKind

AREA = NodeKind("area of memory map", ("struct vm_area_struct",))
_AREA_WRITERS = frozenset(
    {"__vma_start_exclude_readers", "__vma_start_write", "__vma_enter_locked", "vma_mark_detached"}
)
_EXCLUDES_READERS = 0x40000000
"""VMA_LOCK_OFFSET, renamed in later kernels: a bit of ``vm_refcnt``."""
_FAULTS = frozenset({"handle_mm_fault", "__handle_mm_fault"})


class Areas(Finder):
    """Finds the areas of memory maps with a waiting writer, and the page faults in them."""

    about = "areas of memory maps"
    kinds = (AREA,)

    def note(self) -> None:
        """Note the areas, and the page faults in them.

        Since Linux kernel commit f35ab95ca0af ("mm: replace vm_lock and detached flag with a
        reference count") (in v6.15), readers of an area are counted, and a writer waits for the
        count to drop; the memory map names the writer.
        """
        lanes = self._lanes(_AREA_WRITERS, None)
        if not len(lanes):
            return
        every = self._member("struct task_struct", "mm", self.waits.task)
        writer = self._member("struct mm_struct", "vma_writer_wait.task", every[lanes])
        lanes = lanes[writer == self.waits.task[lanes]]
        members = {"vm_mm": "vm_mm", "count": "vm_refcnt.refs.counter"}
        for lane, candidate, _ in self._picked(lanes):
            read = self._read("struct vm_area_struct", candidate, members, is_guess=True)
            kept = read.readable & (read["vm_mm"] == every[lane])
            kept &= (read["count"].astype(np.int64) & _EXCLUDES_READERS) != 0
            for each, area in zip(lane[kept].tolist(), candidate[kept].tolist(), strict=True):
                self._note(each, area, "struct vm_area_struct", "mm_struct.vma_writer_wait")
        areas = {int(self.object[lane]): lane for lane in lanes.tolist() if self.object[lane]}
        wanted = np.array(sorted(areas), np.uint64)
        if not len(wanted):
            return
        faulting = self._having(_FAULTS)
        for lane, area_of, place in self._picked(faulting, lambda words, _: np.isin(words, wanted)):
            writers = [areas[each] for each in area_of.tolist()]
            same = every[lane] == every[writers]
            self.build.edges(
                HELD,
                (AREA, area_of[same]),
                (TASK, self.waits.task[lane[same]]),
                "on the stack of a page fault",
                strength=Strength.DERIVED,
                mode="read",
                place=place[same],
            )


FINDER = Areas
