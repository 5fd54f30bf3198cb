# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that wait until another one, such as a flusher, has written an inode: unlink, umount."""

from __future__ import annotations

import numpy as np

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import BIT, TASK, EdgeKind

WRITING = EdgeKind("written by", "writes", is_passage=True)
_WAITS = ("__inode_wait_for_writeback", "inode_wait_for_writeback")
_WRITES = frozenset({"__writeback_single_inode"})
_ALIGNED = ~np.uint64(7)


class WrittenInodes(Finder):
    """Finds the tasks that write the inodes of such waits."""

    about = "inodes in writeback"
    sleeps = {WaitKind.BIT: " ".join(_WAITS)}

    def find(self) -> None:
        """Add edges from the bit I_SYNC of inodes to the tasks that write them.

        Since Linux kernel commit 532980cb1bff ("inode: port __I_SYNC to var event") (in v6.12),
        the address of the wait is that of the state, plus the number of the bit.

        :raises LookupError: the debug info lacks inodes
        """
        lanes = np.intersect1d(self._of_type("unsigned long"), self._having(frozenset(_WAITS)))
        writers = self._having(_WRITES)
        if not len(lanes) or not len(writers):
            return
        inode = (self.object[lanes] - self._offset("struct inode", "i_state")) & _ALIGNED
        host = self._member("struct inode", "i_data.host", inode, is_guess=True)
        lanes, inode = lanes[host == inode], inode[host == inode]
        found: dict[int, dict[int, int]] = {}
        for lane, address, place in self._mentions(np.unique(inode)):
            if lane in writers:
                found.setdefault(address, {}).setdefault(lane, place)
        for waiter, address in zip(lanes.tolist(), inode.tolist(), strict=True):
            others = [lane for lane in found.get(address, {}) if lane != waiter]
            for lane in others:
                self.build.edges(
                    WRITING,
                    (BIT, self.object[[waiter]]),
                    (TASK, self.waits.task[[lane]]),
                    "frame __writeback_single_inode",
                    strength=Strength.DERIVED if len(others) == 1 else Strength.POSSIBLE,
                    place=np.array([found[address][lane]], np.uint64),
                )


FINDER = WrittenInodes
