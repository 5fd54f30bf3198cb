# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bios as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcensus.trace.events import Integers, Mask

NEVER = -1
"""The time of what did not happen in the trace."""


@dataclass
class Bios:
    """The bios of a trace as columns of equal length; times in ns, or :data:`NEVER`.

    A bio that was not merged is what begins a request.
    """

    queued: Integers
    """:data:`NEVER` if the trace begins with the insertion or dispatch of its request."""
    got: Integers
    """When it got a request (G)."""
    merged: Integers
    """When it was merged into a request (M, F)."""
    inserted: Integers
    """When its request was inserted into the scheduler, the first time."""
    dispatched: Integers
    """When its request left the scheduler, the first time."""
    issued: Integers
    """When its request went to the driver, the last time: after a requeue it does so again."""
    returned: Integers
    """Since when its request is in the scheduler again: inserted after a requeue, or requeued;
    :data:`NEVER` if it was dispatched or completed since."""
    completed: Integers
    device: Integers
    """dev_t of the trace."""
    sector: Integers
    bytes: Integers
    flags: Integers
    pid: Integers
    """Of the task that queued it; 0 where the trace has neither that nor the insertion."""
    error: Integers
    requeues: Integers
    is_lost: Mask
    """Whether another bio was queued at its place before it was completed: events are missing."""
    is_absorbed: Mask
    """Whether it began a request that the scheduler merged into another one without an event."""
    flushes: int = 0
    """Bios without data, which are not in the columns."""
    orphans: int = 0
    """Insertions, dispatches and completions of bios that the trace does not have, or not until
    they were dispatched."""
    passthrough: int = 0
    """Events of requests that user space made, which have no sector."""
    unpaired: int = 0
    """Events that are not paired, because their sectors or devices are impossible."""
    insertions: int = 0
    """I events with data."""
    completions: int = 0
    """C events with data."""

    def __len__(self) -> int:
        return len(self.queued)

    @staticmethod
    def empty(count: int) -> Bios:
        """Return columns of bios to which nothing happened, most of them to be filled."""
        return Bios(
            queued=np.empty(count, np.int64),
            got=np.empty(count, np.int64),
            merged=np.full(count, NEVER, np.int64),
            inserted=np.empty(count, np.int64),
            dispatched=np.empty(count, np.int64),
            issued=np.empty(count, np.int64),
            returned=np.full(count, NEVER, np.int64),
            completed=np.empty(count, np.int64),
            device=np.empty(count, np.uint32),
            sector=np.empty(count, np.int64),
            bytes=np.empty(count, np.int64),
            flags=np.empty(count, np.uint16),
            pid=np.empty(count, np.uint32),
            error=np.empty(count, np.int16),
            requeues=np.zeros(count, np.int64),
            is_lost=np.zeros(count, np.bool_),
            is_absorbed=np.zeros(count, np.bool_),
        )
