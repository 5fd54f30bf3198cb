# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds requests that the scheduler merged into others: they have no events of their own then.

Since Linux kernel commit f3bdc62fd82e ("blktrace: Provide event for request merging") (in v5.9),
there is an event for it. Before, the second of two requests is inserted and not seen again: the
events D and C of the first one reach over both.
"""

from __future__ import annotations

import numpy as np

from kcensus.trace.bios import NEVER, Bios
from kcensus.trace.events import COMPLETE, DISCARD, ISSUE, WRITE, Integers, Mask, Trace

_MAX_STEPS = 512
"""Events that begin before a request, and within the length of the longest one."""
_DIRECTION = WRITE | DISCARD


def absorb(trace: Trace, bios: Bios) -> Mask:
    """Give inserted requests that were merged into others the times of those; change ``bios``.

    :return: which bios began such requests
    """
    is_absorbed = np.zeros(len(bios), np.bool_)
    rows = np.flatnonzero(
        (bios.inserted != NEVER) & (bios.dispatched == NEVER) & (bios.completed == NEVER)
    )
    rows = rows[bios.merged[rows] == NEVER]
    dispatched = _covering(trace, ISSUE, bios, rows, bios.inserted[rows])
    rows, dispatched = rows[dispatched != NEVER], dispatched[dispatched != NEVER]
    is_absorbed[rows] = True
    bios.dispatched[rows] = bios.issued[rows] = dispatched
    bios.completed[rows] = _covering(trace, COMPLETE, bios, rows, dispatched)
    bios.is_lost[rows] = False
    return is_absorbed


def _covering(trace: Trace, action: int, bios: Bios, rows: Integers, after: Integers) -> Integers:
    """Return when the first event that covers each bio from before its first sector happened.

    :param rows: of bios
    :param after: the event is later than this
    :return: times; :data:`NEVER` where there is none
    """
    found = np.full(len(rows), np.iinfo(np.int64).max)
    if not len(rows):
        return found
    least = int(bios.bytes[rows].min())
    events = trace.events
    chosen = np.concatenate(
        [
            block.start
            + np.flatnonzero((events["action"][block] == action) & (events["bytes"][block] > least))
            for block in trace.blocks()
        ]
        or [rows[:0]]
    )
    chosen = chosen[np.lexsort((events["sector"][chosen], events["device"][chosen]))]
    device, begin = events["device"][chosen], events["sector"][chosen].astype(np.int64)
    size = events["bytes"][chosen].astype(np.int64) >> 9
    direction, time = events["flags"][chosen] & _DIRECTION, events["time"][chosen]
    lowest = bios.sector[rows] - int(size.max(initial=0))
    end = bios.sector[rows] + (bios.bytes[rows] >> 9)
    place = np.empty(len(rows), np.int64)
    for number in np.unique(bios.device[rows]).tolist():
        first, last = np.searchsorted(device, [number, number + 1])
        mine = bios.device[rows] == number
        sectors = bios.sector[rows[mine]]
        place[mine] = first + np.searchsorted(begin[first:last], sectors) - 1
    left = np.arange(len(rows))
    for _ in range(_MAX_STEPS):
        left = left[place[left] >= 0]
        event = place[left]
        is_near = (device[event] == bios.device[rows[left]]) & (begin[event] >= lowest[left])
        left, event = left[is_near], event[is_near]
        if not len(left):
            break
        fits = (begin[event] + size[event] >= end[left]) & (time[event] > after[left])
        fits &= direction[event] == bios.flags[rows[left]] & _DIRECTION
        found[left[fits]] = np.minimum(found[left[fits]], time[event[fits]])
        place[left] -= 1
    return np.where(found == np.iinfo(np.int64).max, NEVER, found)
