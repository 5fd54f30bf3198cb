# SPDX-License-Identifier: LGPL-2.1-or-later
"""The figures object: the bios of a trace, how long each phase of them took, and in which class."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from kcensus.text import printable
from kcensus.trace.bios import NEVER, Bios, pair
from kcensus.trace.choice import blocks
from kcensus.trace.events import (
    DISCARD,
    FLUSH,
    FUA,
    SYNC,
    WRITE,
    Integers,
    Mask,
    Trace,
    major_minor,
)
from kcensus.trace.queues import Queue, tally

CLASSES = ("sync read", "async write", "sync write", "async discard", "sync discard")
"""Operations of requests; a read is always synchronous."""
SYNC_READ, ASYNC_WRITE, SYNC_WRITE, ASYNC_DISCARD, SYNC_DISCARD = range(len(CLASSES))
PHASES = {
    "Q2I": "queued to inserted",
    "Q2G": "queued to request",
    "G2I": "request to inserted",
    "Q2M": "queued to merged",
    "I2D": "inserted to dispatched",
    "M2D": "merged to dispatched",
    "D2C": "dispatched to completed",
    "Q2C": "queued to completed",
}
"""Phases as btt names them."""
MAX_SECONDS = 1 << 20
"""Longer waits (12 days) are damaged times."""


class Figures:
    """What was read from a trace, and what follows from it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.bios: Bios = pair(trace)
        self.end = trace.end

    @functools.cached_property
    def kind(self) -> npt.NDArray[np.uint8]:
        """The class of each bio: an index to :data:`CLASSES`."""
        flags = self.bios.flags
        # op_is_sync() in include/linux/blk_types.h.
        is_sync = (flags & (SYNC | FUA | FLUSH)) != 0
        kind = np.where(is_sync, SYNC_WRITE, ASYNC_WRITE)
        kind[(flags & WRITE) == 0] = SYNC_READ
        is_discard = (flags & DISCARD) != 0
        kind[is_discard] = np.where(is_sync, SYNC_DISCARD, ASYNC_DISCARD)[is_discard]
        return kind.astype(np.uint8)

    @functools.cached_property
    def is_sync(self) -> Mask:
        """Whether the scheduler takes a bio for a synchronous one."""
        mask: Mask = (self.kind != ASYNC_WRITE) & (self.kind != ASYNC_DISCARD)
        return mask

    @functools.cached_property
    def is_request(self) -> Mask:
        """Whether a bio began a request, instead of being merged into one."""
        mask: Mask = self.bios.merged == NEVER
        return mask

    @functools.cached_property
    def is_waiting(self) -> Mask:
        """Whether a request is in the scheduler at the end of the trace."""
        bios = self.bios
        mask: Mask = (bios.inserted != NEVER) & (bios.dispatched == NEVER)
        mask |= self.is_requeued
        mask &= (bios.completed == NEVER) & ~bios.is_lost
        return mask

    @functools.cached_property
    def is_requeued(self) -> Mask:
        """Whether a request was dispatched, taken back, and not dispatched until the end."""
        mask: Mask = (self.bios.returned != NEVER) & self.is_request
        return mask

    @functools.cached_property
    def is_in_driver(self) -> Mask:
        """Whether a request is in the driver at the end of the trace."""
        bios = self.bios
        mask: Mask = (bios.issued != NEVER) & (bios.completed == NEVER)
        mask &= ~bios.is_lost & self.is_request & ~self.is_requeued
        return mask

    @functools.cached_property
    def wait(self) -> Integers:
        """Nanoseconds that a request spent in the scheduler, so far; -1 where unknown.

        Of a request that was requeued and waits again, the longer one of its two waits.
        """
        bios = self.bios
        first = np.where(self.is_waiting & ~self.is_requeued, self.end, bios.dispatched)
        wait = _between(bios.inserted, first)
        again = np.flatnonzero(self.is_requeued & self.is_waiting)
        wait[again] = np.maximum(
            wait[again], _between(bios.returned[again], np.full(len(again), self.end))
        )
        return wait

    @functools.cached_property
    def since(self) -> Integers:
        """When the wait of each request began."""
        bios = self.bios
        again = self.end - bios.returned
        is_again = self.is_requeued & self.is_waiting & (self.wait == np.maximum(again, 1))
        since: Integers = np.where(is_again, bios.returned, bios.inserted)
        return since

    def phase(self, name: str) -> Integers:
        """Return the nanoseconds of a phase of each bio; -1 where it lacks one of its ends."""
        bios = self.bios
        begin, end = {
            "Q2I": (bios.queued, bios.inserted),
            "Q2G": (bios.queued, bios.got),
            "G2I": (bios.got, bios.inserted),
            "Q2M": (bios.queued, bios.merged),
            "I2D": (bios.inserted, bios.dispatched),
            "M2D": (bios.merged, bios.dispatched),
            "D2C": (bios.issued, bios.completed),
            "Q2C": (bios.queued, bios.completed),
        }[name]
        if name == "M2D":
            begin = np.where(bios.inserted == NEVER, begin, NEVER)
        return _between(begin, end)

    @functools.cached_property
    def devices(self) -> dict[int, str]:
        """Names of the devices with bios."""
        return {int(each): major_minor(int(each)) for each in np.unique(self.bios.device)}

    @functools.cached_property
    def device(self) -> Integers:
        """The number of the device of each bio, in the order of :attr:`devices`."""
        if len(self.devices) < 2:
            return np.zeros(len(self.bios), np.int64)
        return np.searchsorted([*self.devices], self.bios.device)

    @functools.cached_property
    def task(self) -> tuple[Integers, list[str]]:
        """The task that queued each bio: an index, and the names by index; see :meth:`tasks`."""
        return self.tasks(np.arange(len(self.bios)))

    @functools.cached_property
    def queues(self) -> list[Queue]:
        """The queues of schedulers that messages are about."""
        return tally(self.trace)

    @functools.cached_property
    def sync_dispatches(self) -> dict[int, Integers]:
        """Sorted times at which synchronous requests were dispatched, by device."""
        bios = self.bios
        chosen = self.is_sync & self.is_request & (bios.dispatched != NEVER)
        return {
            device: np.sort(bios.dispatched[chosen & (bios.device == device)])
            for device in self.devices
        }

    def overtaken(self, rows: Integers) -> Integers:
        """Return how many synchronous requests were dispatched while each request waited."""
        bios = self.bios
        begin = self.since[rows]
        end = begin + self.wait[rows]
        counts = np.zeros(len(rows), np.int64)
        for device in np.unique(bios.device[rows]).tolist():
            mine = bios.device[rows] == device
            times = self.sync_dispatches[device]
            counts[mine] = np.searchsorted(times, end[mine]) - np.searchsorted(
                times, begin[mine], side="right"
            )
        return np.maximum(counts, 0)

    def tasks(self, rows: Integers) -> tuple[Integers, list[str]]:
        """Return the tasks that queued bios.

        :return: an index for each row, and the names by index, printable; ``?`` where unknown
        """
        bios = self.bios
        queued, inserted = bios.queued[rows], bios.inserted[rows]
        index, names = self.trace.tasks(bios.pid[rows], np.where(queued == NEVER, inserted, queued))
        return index, [printable(name) or "?" for name in names]


def _between(begin: Integers, end: Integers) -> Integers:
    """Return the time from one moment to another, at least 1 ns; -1 where one is missing."""
    took = np.empty(len(begin), np.int64)
    for block in blocks(len(begin)):
        since, until, part = begin[block], end[block], took[block]
        np.subtract(until, since, out=part)
        np.clip(part, 1, MAX_SECONDS * 1_000_000_000, out=part)
        part[(since == NEVER) | (until == NEVER)] = NEVER
    return took
