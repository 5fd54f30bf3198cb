# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bios as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcensus.sources.blktrace.events import Integers, Mask

NEVER = -1
"""Time of an event that did not happen in the trace."""


def happened(times: Integers) -> Mask:
    """Return which times belong to events in the trace."""
    return np.not_equal(times, NEVER)


@dataclass
class Bios:
    """The bios of a trace as columns of equal length; times in ns, or :data:`NEVER`.

    A bio that was not merged begins a request.
    """

    queued: Integers
    """:data:`NEVER` if the trace begins with the insertion or dispatch of its request."""
    got: Integers
    """Time of getting a request (G)."""
    merged: Integers
    """Time of being merged into a request (M, F)."""
    inserted: Integers
    """First time of its request's insertion into the scheduler."""
    dispatched: Integers
    """First time of its request's leaving the scheduler."""
    issued: Integers
    """Last time of its request's dispatch to the driver: a requeue causes another one."""
    returned: Integers
    """Time of the last insertion after a requeue, or of the requeue, if its request is in the
    scheduler again; :data:`NEVER` if it was dispatched or completed since."""
    completed: Integers
    device: Integers
    """dev_t of the trace."""
    sector: Integers
    bytes: Integers
    flags: Integers
    pid: Integers
    """PID of the task that queued it; 0 if the trace has neither that nor the insertion."""
    error: Integers
    requeues: Integers
    is_lost: Mask
    """Whether another bio was queued at its place before its completion: events are missing."""
    is_absorbed: Mask
    """Whether it began a request that the scheduler merged into another one without an event."""
    flushes: int = 0
    """Bios without data, which are not in the columns."""
    orphans: int = 0
    """Insertions, dispatches and completions of bios missing from the trace, at least until their
    dispatch."""
    passthrough: int = 0
    """Events of requests from user space, which have no sector."""
    unpaired: int = 0
    """Events left unpaired for impossible sectors or devices."""
    insertions: int = 0
    """I events with data."""
    completions: int = 0
    """C events with data."""

    def __len__(self) -> int:
        return len(self.queued)

    @staticmethod
    def empty(count: int) -> Bios:
        """Return columns of bios without events, most of them to be filled."""
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
