# SPDX-License-Identifier: LGPL-2.1-or-later
"""Choose the events of a trace that can be paired: those of requests with data.

Fresh memory costs more than most of the work on it: arrays are filled block by block, and reused.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np

from kcensus.sources.blktrace.events import (
    BLOCK,
    DISCARD,
    PASSTHROUGH,
    WRITE,
    Act,
    Columns,
    Integers,
    Trace,
)
from kcensus.sources.blktrace.threads import side_by_side

MAX_SECTOR = 1 << 48
_MAX_DEVICES = 1 << 12
_PAIRED = [act for act in Act if act.letters in "QGMFIDRCX"]


class Choice:
    """The events that can be paired, in order of their times, and counts of others."""

    def __init__(self, trace: Trace) -> None:
        self._events = trace.events
        self._is_paired = np.zeros(256, np.bool_)
        self._is_paired[_PAIRED] = True
        # The devices with most events are few enough for the bits of a place.
        counts: Counter[int] = Counter()
        for (device, _), count in trace.counts.items():
            counts[device] += count
        self._devices = np.sort([device for device, _ in counts.most_common(_MAX_DEVICES)])
        self._has_all = len(counts) <= _MAX_DEVICES
        spans = [*trace.blocks()]
        found = side_by_side(lambda span: self._found(trace.events, span), spans)
        others = np.array([counts for _, counts in found], np.int64).reshape(-1, 5).sum(axis=0)
        self.flushes, self.passthrough, self.impossible = others[:3].tolist()
        self.insertions, self.completions = others[3:].tolist()
        ends = [*itertools.accumulate(len(rows) for rows, _ in found)]
        count = ends[-1] if ends else 0
        self.rows, self.time, self.sector = (np.empty(count, np.int64) for _ in range(3))
        """Rows of the events in the columns of the trace, their times and their sectors."""
        self.action = np.empty(count, np.uint8)
        direction = np.empty(count, np.uint8)

        def fill(number: int) -> None:
            span, rows, end = spans[number], found[number][0], ends[number]
            block = slice(end - len(rows), end)
            np.add(rows, span.start, out=self.rows[block], dtype=np.int64)
            for name in ("time", "sector", "action"):
                out = getattr(self, name)[block]
                np.take(trace.events[name][span].view(out.dtype), rows, out=out, mode="clip")
            flags = np.take(trace.events["flags"][span], rows)
            np.add((flags & WRITE) != 0, (flags & DISCARD) != 0, out=direction[block], dtype="u1")

        side_by_side(fill, range(len(spans)))
        if not all(
            bool((self.time[rows][1:] >= self.time[rows][:-1]).all()) for rows in blocks(count, 1)
        ):
            direction = direction[self._sort_by_time()]
        self.group: Integers | None = None
        """Number of each event's device and direction (read, write or discard); None if all are
        alike."""
        if len(self._devices) > 1:
            self.group = np.searchsorted(self._devices, trace.events["device"][self.rows])
            self.group *= int(direction.max(initial=0)) + 1
            self.group += direction
        elif bool((direction != direction[:1]).any()):
            self.group = direction

    def column(self, name: str, rows: Integers) -> Integers:
        """Return a column of the trace for some events, given as their rows here."""
        return self._events[name][self.rows[rows]]

    def end(self, rows: Integers) -> Integers:
        """Return the sectors behind the ends of some events."""
        size = self.column("bytes", rows).astype(np.int64)
        return self.sector[rows] + ((size + 511) >> 9)

    def _found(self, events: Columns, span: slice) -> tuple[Integers, list[int]]:
        """Return which of some events are paired, and the counts of others."""
        action, sector, size, flags = (
            events[name][span] for name in ("action", "sector", "bytes", "flags")
        )
        is_paired = np.take(self._is_paired, action)
        is_user = (flags & PASSTHROUGH) != 0
        is_possible = sector < MAX_SECTOR
        if not self._has_all:
            is_possible &= np.isin(events["device"][span], self._devices)
        has_data = size > 0
        of_request = has_data & ~is_user
        counts = [
            int(np.count_nonzero(mask))
            for mask in (
                (action == Act.QUEUE) & ~has_data & ~is_user,
                is_user,
                is_paired & ~is_possible,
                (action == Act.INSERT) & of_request,
                (action == Act.COMPLETE) & of_request,
            )
        ]
        of_request |= (action == Act.SPLIT) & ~is_user
        # Rows of a block fit into 16 bits.
        return np.flatnonzero(is_paired & is_possible & of_request).astype(np.uint16), counts

    def _sort_by_time(self) -> Integers:
        order = np.argsort(self.time, kind="stable")  # timsort: files are sorted already
        self.action = self.action[order]
        spare = np.empty_like(order)
        for name in ("time", "sector", "rows"):
            column = getattr(self, name)
            np.take(column, order, out=spare, mode="clip")
            setattr(self, name, spare)
            spare = column
        return order


def blocks(count: int, more: int = 0) -> Iterator[slice]:
    """Yield the rows of arrays, a few at a time, so that caches hold them and the results.

    :param more: rows of the next block to add to a block
    """
    for begin in range(0, count, BLOCK):
        yield slice(begin, min(begin + BLOCK + more, count))
