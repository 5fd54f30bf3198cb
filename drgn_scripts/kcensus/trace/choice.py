# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chooses the events of a trace that can be paired: those of requests with data.

Memory that a process has not used before costs more than most of what is done with it here: arrays
are filled block by block, and used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from kcensus.trace.events import (
    BACK_MERGE,
    BLOCK,
    COMPLETE,
    FRONT_MERGE,
    GET_REQUEST,
    INSERT,
    ISSUE,
    PASSTHROUGH,
    QUEUE,
    REQUEUE,
    SPLIT,
    Columns,
    Integers,
    Trace,
)

MAX_SECTOR = 1 << 48
_MAX_DEVICES = 1 << 12
_PAIRED = (QUEUE, GET_REQUEST, BACK_MERGE, FRONT_MERGE, INSERT, ISSUE, REQUEUE, COMPLETE, SPLIT)


class Choice:
    """The events that can be paired, in order of their times, and counts of others."""

    def __init__(self, trace: Trace) -> None:
        self.flushes = self.passthrough = self.impossible = self.insertions = self.completions = 0
        self._is_paired = np.zeros(256, np.bool_)
        self._is_paired[list(_PAIRED)] = True
        # The devices with most events are few enough for the bits of a place.
        counts: Counter[int] = Counter()
        for (device, _), count in trace.counts.items():
            counts[device] += count
        self._devices = np.sort([device for device, _ in counts.most_common(_MAX_DEVICES)])
        self._has_all = len(counts) <= _MAX_DEVICES
        rows, time, sector = (np.empty(len(trace), np.int64) for _ in range(3))
        action = np.empty(len(trace), np.uint8)
        end = 0
        for block in trace.blocks():
            columns = {name: column[block] for name, column in trace.events.items()}
            found = self._found(columns)
            begin, end = end, end + len(found)
            np.add(found, block.start, out=rows[begin:end])
            time[begin:end] = columns["time"][found]
            sector[begin:end] = columns["sector"][found]
            action[begin:end] = columns["action"][found]
        self.rows = rows[:end]
        """Rows of the columns of the trace."""
        self.time, self.sector, self.action = time[:end], sector[:end], action[:end]
        if not all((self.time[rows][1:] >= self.time[rows][:-1]).all() for rows in blocks(end, 1)):
            self._sort_by_time()
        self.device: Integers | None = None
        """The number of the device of each event; None if all are of one device."""
        if len(self._devices) > 1:
            self.device = np.searchsorted(self._devices, trace.events["device"][self.rows])

    def _found(self, columns: Columns) -> Integers:
        """Return which of some events are paired, and count others."""
        action, size = columns["action"], columns["bytes"]
        is_paired = np.take(self._is_paired, action)
        is_user = (columns["flags"] & PASSTHROUGH) != 0
        is_possible = columns["sector"] < MAX_SECTOR
        if not self._has_all:
            is_possible &= np.isin(columns["device"], self._devices)
        has_data = size > 0
        of_request = has_data & ~is_user
        self.passthrough += int(np.count_nonzero(is_user))
        self.flushes += int(np.count_nonzero((action == QUEUE) & ~has_data & ~is_user))
        self.insertions += int(np.count_nonzero((action == INSERT) & of_request))
        self.completions += int(np.count_nonzero((action == COMPLETE) & of_request))
        self.impossible += int(np.count_nonzero(is_paired & ~is_possible))
        of_request |= (action == SPLIT) & ~is_user
        return np.flatnonzero(is_paired & is_possible & of_request)

    def _sort_by_time(self) -> None:
        order = np.argsort(self.time, kind="stable")  # timsort: files are sorted already
        self.action = self.action[order]
        spare = np.empty_like(order)
        for name in ("time", "sector", "rows"):
            column = getattr(self, name)
            np.take(column, order, out=spare, mode="clip")
            setattr(self, name, spare)
            spare = column


def blocks(count: int, more: int = 0) -> Iterator[slice]:
    """Yield the rows of arrays, a few at a time, so that caches hold what is made of them.

    :param more: rows of the next block that a block has, too
    """
    for begin in range(0, count, BLOCK):
        yield slice(begin, min(begin + BLOCK + more, count))
