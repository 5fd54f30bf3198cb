# SPDX-License-Identifier: LGPL-2.1-or-later
"""The figures object: the bios of a trace, how long each phase of them took, and in which class."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

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
    "D2D": "first to last dispatch, if requeued",
    "D2C": "dispatched to completed",
    "Q2C": "queued to completed",
}
"""Phases as btt names them; D2D is not one of btt's."""
MAX_SECONDS = 1 << 20
"""Longer waits (12 days) are damaged times."""
_MIN_HOLE = 1_000_000_000
"""Nanoseconds without a dispatch from which on that is not the scheduler's doing: slow devices take
some 100 ms for a request, and CFQ and BFQ idle for a queue for some 8 ms (slice_idle)."""
_MAX_EARLIER = 8192
"""Sync requests in one scheduler at a time: nr_requests of each hardware queue."""
_BLOCK = 4096


class Figures:
    """What was read from a trace, and what follows from it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.bios: Bios = pair(trace)
        self.end = trace.end
        """Time of the last event of all devices."""

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
    def is_unmerged(self) -> Mask:
        """Whether a bio was not merged into the request of another one."""
        mask: Mask = (self.bios.merged == NEVER) & ~self.bios.is_absorbed
        return mask

    @functools.cached_property
    def is_request(self) -> Mask:
        """Whether a bio began a request, instead of being merged into one or left without."""
        bios = self.bios
        mask: Mask = bios.got != NEVER
        mask |= bios.inserted != NEVER
        mask |= bios.dispatched != NEVER
        mask &= self.is_unmerged
        return mask

    @functools.cached_property
    def is_without_request(self) -> Mask:
        """Whether a bio waits for a free request at the end of the trace.

        Devices without requests, such as those of dm, have none that do.
        """
        bios = self.bios
        mask: Mask = self.is_unmerged & ~self.is_request & ~bios.is_lost
        mask &= (bios.queued != NEVER) & (bios.completed == NEVER)
        if mask.any():
            mask &= np.isin(bios.device, np.unique(bios.device[self.is_request]))
        return mask

    @functools.cached_property
    def is_waiting(self) -> Mask:
        """Whether a request is in the scheduler at the end of the trace, never dispatched."""
        bios = self.bios
        mask: Mask = (bios.inserted != NEVER) & (bios.dispatched == NEVER)
        mask &= (bios.completed == NEVER) & ~bios.is_lost
        return mask

    @functools.cached_property
    def is_requeued(self) -> Mask:
        """Whether the driver took a request back, and it was not dispatched again.

        It is in the scheduler, on the dispatch list of a hardware queue or on that of requeued
        requests: a trace does not show which.
        """
        bios = self.bios
        mask: Mask = (bios.returned != NEVER) & (bios.completed == NEVER)
        mask &= ~bios.is_lost & self.is_request
        return mask

    @functools.cached_property
    def is_in_driver(self) -> Mask:
        """Whether a request is in the driver at the end of the trace."""
        bios = self.bios
        mask: Mask = (bios.issued != NEVER) & (bios.completed == NEVER)
        mask &= ~bios.is_lost & self.is_request & ~self.is_requeued
        return mask

    @functools.cached_property
    def until(self) -> Integers:
        """When the trace of each bio's device ended."""
        devices, code = np.unique(self.bios.device, return_inverse=True)
        ends = [self.trace.ends.get(device, self.end) for device in devices.tolist()]
        until: Integers = np.array(ends, np.int64)[code]
        return until

    @functools.cached_property
    def wait(self) -> Integers:
        """Nanoseconds that a request spent in the scheduler until its first dispatch, so far; -1
        where unknown."""
        bios = self.bios
        return _between(bios.inserted, np.where(self.is_waiting, self.until, bios.dispatched))

    @property
    def since(self) -> Integers:
        """When the wait of each request began."""
        return self.bios.inserted

    @functools.cached_property
    def in_driver(self) -> Integers:
        """Nanoseconds that a request spent in the driver since its last dispatch, so far; -1 where
        unknown."""
        bios = self.bios
        time = _between(bios.issued, np.where(self.is_in_driver, self.until, bios.completed))
        time[~self.is_request] = NEVER
        return time

    @functools.cached_property
    def without_request(self) -> Integers:
        """Nanoseconds that a bio waited for a free request, so far; -1 where unknown."""
        bios = self.bios
        return _between(bios.queued, np.where(self.is_without_request, self.until, bios.got))

    @functools.cached_property
    def requeued(self) -> Integers:
        """Nanoseconds from the first dispatch of a requeued request to its last, or since it was
        taken back; -1 where it was not."""
        bios = self.bios
        rows = np.flatnonzero((bios.requeues > 0) & self.is_request)
        again = self.is_requeued[rows]
        time = np.full(len(bios), NEVER, np.int64)
        time[rows] = _between(
            np.where(again, bios.returned[rows], bios.dispatched[rows]),
            np.where(again, self.until[rows], bios.issued[rows]),
        )
        return time

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
            "D2D": (bios.dispatched, bios.issued),
            "D2C": (bios.issued, bios.completed),
            "Q2C": (bios.queued, bios.completed),
        }[name]
        if name == "M2D":
            begin = np.where(bios.inserted == NEVER, begin, NEVER)
        if name == "D2D":
            if not bios.requeues.any():
                return np.full(len(bios), NEVER)
            begin = np.where(end > begin, begin, NEVER)
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
    def _dispatched(self) -> dict[int, Integers]:
        """Rows of the synchronous requests that were dispatched, in that order, by device."""
        bios = self.bios
        rows = np.flatnonzero(self.is_sync & self.is_request & (bios.dispatched != NEVER))
        rows = rows[np.argsort(bios.dispatched[rows], kind="stable")]
        return {device: rows[bios.device[rows] == device] for device in self.devices}

    @functools.cached_property
    def _sync(self) -> dict[int, tuple[Integers, Integers]]:
        """When these were inserted and dispatched, by device."""
        bios = self.bios
        return {
            device: (bios.inserted[rows], bios.dispatched[rows])
            for device, rows in self._dispatched.items()
        }

    @functools.cached_property
    def _in_order_of_insertion(self) -> dict[int, tuple[Integers, Integers]]:
        found = {}
        for device, (inserted, dispatched) in self._sync.items():
            order = np.argsort(inserted, kind="stable")
            found[device] = (inserted[order], dispatched[order])
        return found

    @functools.cached_property
    def holes(self) -> dict[int, tuple[Integers, Integers]]:
        """Times from when until when a device dispatched nothing, by device."""
        bios, found = self.bios, {}
        for device in self.devices:
            end = self.trace.ends.get(device, self.end)
            mine = self.is_request & (bios.device == device)
            again = mine & (bios.requeues > 0)
            times = np.concatenate([bios.dispatched[mine], bios.issued[again], [0, end]])
            times = np.sort(times[times != NEVER])
            places = np.flatnonzero(np.diff(times) >= _MIN_HOLE)
            found[device] = (times[places], times[places + 1])
        return found

    def silence(self, device: int, begin: Integers, end: Integers) -> Integers:
        """Return for how many ns a device dispatched nothing from each time to another."""
        starts, ends = self.holes[device]
        total = np.append(0, np.cumsum(ends - starts))

        def until(moments: Integers) -> Integers:
            place = np.searchsorted(starts, moments, side="right")
            left = np.append(0, ends)[place] - moments
            spent: Integers = total[place] - np.where(place > 0, np.maximum(left, 0), 0)
            return spent

        passed: Integers = until(end) - until(begin)
        return passed

    def overtaken(self, rows: Integers) -> Integers:
        """Return how many synchronous requests that were inserted after each request were
        dispatched before it, up to :attr:`end`.

        :param rows: of requests that waited
        """
        counts = np.zeros(len(rows), np.int64)
        for device, mine in self._by_device(rows):
            inserted, dispatched = self._in_order_of_insertion[device]
            begin, end = self.bios.inserted[rows[mine]], self._left(rows[mine])
            first = np.searchsorted(inserted, begin, side="right")
            own = np.zeros(len(first), np.int64)
            until = int(np.searchsorted(inserted, end.max(initial=0)))
            for start in range(int(first.min(initial=until)), until, _BLOCK):
                block = dispatched[start : start + _BLOCK]
                # Of this block, what was inserted later: all of it, or from a place on.
                whole = np.flatnonzero(first <= start)
                own[whole] += np.searchsorted(np.sort(block), end[whole])
                for row in np.flatnonzero((first > start) & (first < start + _BLOCK)).tolist():
                    own[row] += int((block[first[row] - start :] < end[row]).sum())
            counts[mine] = own
        return counts

    def overtakers(self, row: int) -> Integers:
        """Return the rows of the requests that :meth:`overtaken` counts, as they were dispatched.

        :param row: of a request that waited
        """
        device = int(self.bios.device[row])
        inserted, dispatched = self._sync[device]
        begin = int(self.bios.inserted[row])
        first, last = np.searchsorted(dispatched, [begin, begin + int(self.wait[row])])
        later: Integers = self._dispatched[device][first:last][inserted[first:last] > begin]
        return later

    def held(self, rows: Integers) -> Integers:
        """Return for how many ns later synchronous requests overtook each request.

        That is until the last of them was dispatched, without the time in which the device
        dispatched nothing: that is not the scheduler's.

        :param rows: of requests that waited
        """
        held = np.zeros(len(rows), np.int64)
        for device, mine in self._by_device(rows):
            inserted, dispatched = self._sync[device]
            begin = self.bios.inserted[rows[mine]]
            place = np.searchsorted(dispatched, self._left(rows[mine])) - 1
            # Go back past those that were inserted earlier.
            left = np.flatnonzero(place >= 0)
            for _ in range(_MAX_EARLIER):
                left = left[inserted[place[left]] <= begin[left]]
                if not len(left):
                    break
                place[left] -= 1
                left = left[(place[left] >= 0) & (dispatched[place[left]] > begin[left])]
            if not len(inserted):
                continue
            found = (place >= 0) & (inserted[place] > begin)
            last = np.where(found, dispatched[place], begin)
            held[mine] = last - begin - self.silence(device, begin, last)
        return held

    def _left(self, rows: Integers) -> Integers:
        """Return when requests left the scheduler, or the end of the trace."""
        left: Integers = self.bios.inserted[rows] + self.wait[rows]
        return left

    def _by_device(self, rows: Integers) -> Iterator[tuple[int, Integers]]:
        """Yield each device, and the places of those rows that are of it."""
        device = self.bios.device[rows]
        for each in np.unique(device).tolist():
            yield each, np.flatnonzero(device == each)

    def tasks(self, rows: Integers) -> tuple[Integers, list[str]]:
        """Return the tasks that queued bios.

        :return: an index for each row, and the names by index, not safe to print; ``?`` where
            unknown
        """
        bios = self.bios
        queued, inserted = bios.queued[rows], bios.inserted[rows]
        index, names = self.trace.tasks(bios.pid[rows], np.where(queued == NEVER, inserted, queued))
        return index, [name.decode("utf-8", "surrogateescape") or "?" for name in names]


def _between(begin: Integers, end: Integers) -> Integers:
    """Return the time from one moment to another, at least 1 ns; -1 where one is missing."""
    took = np.empty(len(begin), np.int64)
    for block in blocks(len(begin)):
        since, until, part = begin[block], end[block], took[block]
        np.subtract(until, since, out=part)
        np.clip(part, 1, MAX_SECONDS * 1_000_000_000, out=part)
        part[(since == NEVER) | (until == NEVER)] = NEVER
    return took
