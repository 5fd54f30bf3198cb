# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count turns of asynchronous CFQ queues that end although a request in them had expired.

``cfq_dispatch_requests()`` selects a queue and dispatches from it under one lock. If the first
request of the queue has expired at that time, it is dispatched since Linux kernel commit
3932a86b4b9d ("cfq: fix starvation of asynchronous writes") (in v4.9): a turn that ends without a
dispatch shows a kernel without the fix. A trace does not have fifo_expire_async: if it is longer
than the default, a kernel with the fix may end such turns, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.iosched.trace.figures import ASYNC_WRITE, Figures
from kcensus.sources.blktrace.bios import NEVER
from kcensus.sources.blktrace.events import Integers
from kcensus.sources.blktrace.messages import EMPTY, INSERTED, SELECTED

_EXPIRY = 250_000_000
"""fifo_expire_async of CFQ, by default, in ns; a trace does not have it."""
_MAX_DELAY = 1_000_000
"""Most nanoseconds from the event of an insertion to its message, under the same lock."""
_ASYNC_CFQ = re.compile(rb"cfq\d{1,10}A")


def lost_turns(figures: Figures, device: int | None = None) -> int | None:
    """Return the number of lost turns; None without messages about an asynchronous CFQ queue.

    :param device: dev_t of the trace; by default all devices
    """
    messages, bios = figures.trace.messages, figures.bios
    numbers = [number for number, name in enumerate(figures.trace.queues) if _ASYNC_CFQ.match(name)]
    is_own = np.isin(messages["queue"], numbers)
    if device is not None:
        is_own &= messages["device"] == device
    if not is_own.any():
        return None
    rows = np.flatnonzero(
        (figures.kind == ASYNC_WRITE) & figures.is_request & (bios.inserted != NEVER)
    )
    left = np.where(figures.is_waiting, figures.until + 1, bios.dispatched)
    turns: dict[tuple[int, int], tuple[Integers, Integers]] = {}
    total = 0
    for disk in np.unique(messages["device"][is_own]).tolist():
        here = messages["device"] == disk
        on_device = rows[bios.device[rows] == disk]
        queue = _queues(figures, np.flatnonzero(here), bios.inserted[on_device])
        for number, mine in _groups(messages["queue"], np.flatnonzero(is_own & here)):
            turns[disk, number] = _turns(figures, mine)
        for number, places in _groups(queue, np.flatnonzero(queue >= 0)):
            if (disk, number) in turns:
                own = on_device[places]
                total += _expired_before(bios.inserted[own], left[own], *turns[disk, number])
    return total


def _groups(values: Integers, rows: Integers) -> Iterator[tuple[int, Integers]]:
    """Yield each value of ``values[rows]``, and its rows in their order."""
    rows = rows[np.argsort(values[rows], kind="stable")]
    for mine in np.split(rows, np.flatnonzero(np.diff(values[rows])) + 1):
        if len(mine):
            yield int(values[mine[0]]), mine


def _queues(figures: Figures, rows: Integers, inserted: Integers) -> Integers:
    """Return the queue that each request was inserted into, by the next message; -1 if unknown.

    :param rows: of messages of one device
    """
    messages = figures.trace.messages
    rows = rows[messages["kind"][rows] == INSERTED]
    if not len(rows):
        return np.full(len(inserted), -1)
    times = messages["time"][rows]
    place = np.minimum(np.searchsorted(times, inserted), len(rows) - 1)
    delay = times[place] - inserted
    is_near = (delay >= 0) & (delay <= _MAX_DELAY)
    return np.where(is_near, messages["queue"][rows[place]].astype(np.int64), -1)


def _turns(figures: Figures, rows: Integers) -> tuple[Integers, Integers]:
    """Return the begins and ends of the turns of a queue that end without a dispatch.

    :param rows: of messages about the queue
    """
    messages = figures.trace.messages
    kind, time = messages["kind"][rows], messages["time"][rows]
    begin = np.maximum.accumulate(np.where(kind == SELECTED, np.arange(len(rows)), -1))
    ends = np.flatnonzero((kind == EMPTY) & (begin >= 0))
    # Leave out turns that began before the trace, or lost a message.
    turns = np.cumsum(kind == EMPTY)
    ends = ends[turns[ends] - turns[begin[ends]] == 1]
    return time[begin[ends]], time[ends]


def _expired_before(inserted: Integers, left: Integers, begins: Integers, ends: Integers) -> int:
    """Return the number of turns with a request that had expired before the turn began."""
    if not len(inserted) or not len(begins):
        return 0
    order = np.argsort(inserted, kind="stable")
    longest = np.maximum.accumulate(left[order])
    place = np.searchsorted(inserted[order], begins - _EXPIRY, side="right") - 1
    return int(np.count_nonzero((place >= 0) & (longest[place] > ends)))
