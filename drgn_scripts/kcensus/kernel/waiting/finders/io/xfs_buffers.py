# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that hold the buffers of XFS."""

from __future__ import annotations

import numpy as np

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import HELD, TASK, NodeKind
from kcensus.kernel.xfs.buffers import LOCK, buffers

BUFFER = NodeKind("buffer", ("struct xfs_buf",), is_lock=True)
"""The lock of a buffer."""
BUFFER_IO = NodeKind("I/O of buffer", is_io=True)
"""The I/O of a buffer, or its pin in the log, which the holder of the lock waits for."""
BUFFER_LOCK = f"xfs_buf.{LOCK}"
"""Evidence of a wait for the lock of a buffer, not for its I/O."""


class XfsBuffers(Finder):
    """Finds the tasks that hold buffers of XFS."""

    about = "holders of XFS buffers"
    kinds = (BUFFER, BUFFER_IO)

    def note(self) -> None:
        """Distinguish waits for the I/O of a buffer from waits for its lock."""
        for lane in self._of_type("struct xfs_buf").tolist():
            if self.evidence[lane] != BUFFER_LOCK:
                self.draft.kind[lane] = BUFFER_IO

    def find(self) -> None:
        """Add edges to the holders of buffer locks.

        A holder is the task of the buffer's transaction, or a task that waits for the buffer's I/O.
        """
        lanes = self._of_type("struct xfs_buf")
        proofs = [self.evidence[lane] == BUFFER_LOCK for lane in lanes.tolist()]
        is_lock = np.array(proofs, np.bool_)
        locked, others = lanes[is_lock], lanes[~is_lock]
        known = locked[self.waits.holder[locked] != 0]
        # The last holder of the semaphore may be a task that began its I/O, and went on.
        every = buffers(self.kernel) if len(known) else None
        row = every.rows(self.object[known]) if every is not None else known
        has_owner = every.has_transaction[row] if every is not None else known != 0
        others = others[np.isin(self.object[others], self.object[locked])]
        owned, noted = known[has_owner], known[~has_owner]
        for lanes, holder, strength, proof in (
            (owned, self.waits.holder[owned], Strength.PROVEN, "xfs_buf.b_transp"),
            (noted, self.waits.holder[noted], Strength.POSSIBLE, "xfs_buf.b_sema.last_holder"),
            (others, self.waits.task[others], Strength.DERIVED, "waits for its I/O"),
        ):
            locks = BUFFER, self.object[lanes]
            self.build.edges(HELD, locks, (TASK, holder), proof, strength=strength)


FINDER = XfsBuffers
