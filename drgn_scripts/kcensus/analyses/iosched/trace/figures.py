# SPDX-License-Identifier: LGPL-2.1-or-later
"""The figures object: the bios of a trace, their classes, and the duration of each phase."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kcensus.sources.blktrace.bios import NEVER, Bios, happened, pair
from kcensus.sources.blktrace.bios.choice import blocks
from kcensus.sources.blktrace.events import (
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
from kcensus.sources.blktrace.queues import Queue, tally

CLASSES = ("sync read", "async write", "sync write", "async discard", "sync discard")
"""Operations of requests; a read is always synchronous."""
SYNC_READ, ASYNC_WRITE, SYNC_WRITE, ASYNC_DISCARD, SYNC_DISCARD = range(len(CLASSES))
PHASES = {
    "Q2I": ("queued", "inserted"),
    "Q2G": ("queued", "got"),
    "G2I": ("got", "inserted"),
    "Q2M": ("queued", "merged"),
    "I2D": ("inserted", "dispatched"),
    "M2D": ("merged", "dispatched"),
    "D2D": ("dispatched", "issued"),
    "D2C": ("issued", "completed"),
    "Q2C": ("queued", "completed"),
}
"""Both ends of phases as btt names them; D2D, of requeued requests, is not btt's."""
_MAX_NS = (1 << 20) * 1_000_000_000
"""Longer waits (12 days) are damaged times."""
_MIN_HOLE = 1_000_000_000
"""Least nanoseconds without a dispatch that are not the scheduler's doing: slow devices take some
100 ms for a request, and CFQ and BFQ idle for a queue for some 8 ms (slice_idle)."""
_MAX_EARLIER = 8192
"""Sync requests in one scheduler at a time: nr_requests of each hardware queue."""
_BLOCK = 4096


class Figures:
    """Figures of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.end = trace, trace.end
        self.bios: Bios = pair(trace)

    @cached_property
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

    @cached_property
    def is_sync(self) -> Mask:
        """Whether the scheduler treats a bio as synchronous."""
        return ~np.isin(self.kind, (ASYNC_WRITE, ASYNC_DISCARD))

    @cached_property
    def is_unmerged(self) -> Mask:
        """Whether a bio was not merged into the request of another one."""
        return ~happened(self.bios.merged) & ~self.bios.is_absorbed

    @cached_property
    def is_request(self) -> Mask:
        """Whether a bio began a request, rather than being merged into one or left without one."""
        bios = self.bios
        began = happened(bios.got) | happened(bios.inserted) | happened(bios.dispatched)
        return began & self.is_unmerged

    @cached_property
    def is_without_request(self) -> Mask:
        """Whether a bio waits for a free request at the end of the trace.

        Bios of devices without requests, such as those of dm, do not wait for one.
        """
        bios = self.bios
        mask = self.is_unmerged & ~self.is_request & happened(bios.queued) & self._is_left
        if mask.any():
            mask &= np.isin(bios.device, np.unique(bios.device[self.is_request]))
        return mask

    @property
    def _is_left(self) -> Mask:
        return ~happened(self.bios.completed) & ~self.bios.is_lost

    @cached_property
    def is_waiting(self) -> Mask:
        """Whether a request is in the scheduler at the end of the trace, never dispatched."""
        bios = self.bios
        return happened(bios.inserted) & ~happened(bios.dispatched) & self._is_left

    @cached_property
    def is_requeued(self) -> Mask:
        """Whether the driver returned a request without dispatching it again.

        The request is in the scheduler, on the dispatch list of a hardware queue or on the list of
        requeued requests: a trace does not show on which.
        """
        return happened(self.bios.returned) & self._is_left & self.is_request

    @cached_property
    def is_in_driver(self) -> Mask:
        """Whether a request is in the driver at the end of the trace."""
        return happened(self.bios.issued) & self._is_left & self.is_request & ~self.is_requeued

    @cached_property
    def until(self) -> Integers:
        """End of the trace of each bio's device, ns."""
        devices, code = np.unique(self.bios.device, return_inverse=True)
        ends = [self.trace.ends.get(device, self.end) for device in devices.tolist()]
        return np.array(ends, np.int64)[code]

    @cached_property
    def wait(self) -> Integers:
        """Nanoseconds that a request spent in the scheduler until its first dispatch, so far; -1
        where unknown."""
        bios = self.bios
        return _between(bios.inserted, np.where(self.is_waiting, self.until, bios.dispatched))

    @cached_property
    def in_driver(self) -> Integers:
        """Nanoseconds that a request spent in the driver since its last dispatch, so far; -1 where
        unknown."""
        bios = self.bios
        time = _between(bios.issued, np.where(self.is_in_driver, self.until, bios.completed))
        time[~self.is_request] = NEVER
        return time

    @cached_property
    def without_request(self) -> Integers:
        """Nanoseconds that a bio waited for a free request, so far; -1 where unknown."""
        bios = self.bios
        return _between(bios.queued, np.where(self.is_without_request, self.until, bios.got))

    @cached_property
    def requeued(self) -> Integers:
        """Nanoseconds between the first and last dispatch of a requeued request, or since its last
        return by the driver; -1 for other requests."""
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
        """Return the nanoseconds of a phase of each bio; -1 if an end is missing."""
        bios = self.bios
        begin, end = (getattr(bios, moment) for moment in PHASES[name])
        if name == "M2D":
            begin = np.where(bios.inserted == NEVER, begin, NEVER)
        if name == "D2D":
            begin = np.where(end > begin, begin, NEVER)
        return _between(begin, end)

    @cached_property
    def devices(self) -> dict[int, str]:
        """Names of the devices with bios."""
        return {int(each): major_minor(int(each)) for each in np.unique(self.bios.device)}

    @cached_property
    def device(self) -> Integers:
        """The number of the device of each bio, in the order of :attr:`devices`."""
        if len(self.devices) < 2:
            return np.zeros(len(self.bios), np.int64)
        return np.searchsorted([*self.devices], self.bios.device)

    @cached_property
    def task(self) -> tuple[Integers, list[str]]:
        """The task that queued each bio: an index, and the names by index; see :meth:`tasks`."""
        return self.tasks(np.arange(len(self.bios)))

    @cached_property
    def queues(self) -> list[Queue]:
        """The queues of schedulers with messages."""
        return tally(self.trace)

    @cached_property
    def _dispatched(self) -> dict[int, Integers]:
        """Rows of the dispatched synchronous requests, in the order of dispatch, by device."""
        bios = self.bios
        rows = np.flatnonzero(self.is_sync & self.is_request & (bios.dispatched != NEVER))
        rows = rows[np.argsort(bios.dispatched[rows], kind="stable")]
        return {device: rows[bios.device[rows] == device] for device in self.devices}

    @cached_property
    def _sync(self) -> dict[int, tuple[Integers, Integers]]:
        """Times of insertion and dispatch of :attr:`_dispatched`, by device."""
        both = (self.bios.inserted, self.bios.dispatched)
        return {device: (both[0][rows], both[1][rows]) for device, rows in self._dispatched.items()}

    @cached_property
    def _in_order_of_insertion(self) -> dict[int, tuple[Integers, Integers]]:
        found = {}
        for device, (inserted, dispatched) in self._sync.items():
            order = np.argsort(inserted, kind="stable")
            found[device] = (inserted[order], dispatched[order])
        return found

    @cached_property
    def holes(self) -> dict[int, tuple[Integers, Integers]]:
        """Begin and end of the times in which a device dispatched nothing, by device."""
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
        """Return the nanoseconds without a dispatch of a device between two times each."""
        starts, ends = self.holes[device]
        total = np.append(0, np.cumsum(ends - starts))

        def until(moments: Integers) -> Integers:
            place = np.searchsorted(starts, moments, side="right")
            left = np.append(0, ends)[place] - moments
            return total[place] - np.where(place > 0, np.maximum(left, 0), 0)

        return until(end) - until(begin)

    def overtaken(self, rows: Integers) -> Integers:
        """Return the number of sync requests inserted after, but dispatched before each request.

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
                # Count the later requests of this block: all of it, or its end.
                whole = np.flatnonzero(first <= start)
                own[whole] += np.searchsorted(np.sort(block), end[whole])
                for row in np.flatnonzero((first > start) & (first < start + _BLOCK)).tolist():
                    own[row] += int((block[first[row] - start :] < end[row]).sum())
            counts[mine] = own
        return counts

    def overtakers(self, row: int) -> Integers:
        """Return the rows of the requests counted by :meth:`overtaken`, in the order of dispatch.

        :param row: of a request that waited
        """
        device = int(self.bios.device[row])
        inserted, dispatched = self._sync[device]
        begin = int(self.bios.inserted[row])
        first, last = np.searchsorted(dispatched, [begin, begin + int(self.wait[row])])
        return self._dispatched[device][first:last][inserted[first:last] > begin]

    def held(self, rows: Integers) -> Integers:
        """Return the nanoseconds during which later synchronous requests overtook each request.

        The time ends with the dispatch of the last overtaker. Times without a dispatch of the
        device are left out: the scheduler does not cause them.

        :param rows: of requests that waited
        """
        held = np.zeros(len(rows), np.int64)
        for device, mine in self._by_device(rows):
            inserted, dispatched = self._sync[device]
            begin = self.bios.inserted[rows[mine]]
            place = np.searchsorted(dispatched, self._left(rows[mine])) - 1
            # Go back past the requests that were inserted earlier.
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
        """Return the time at which each request left the scheduler, or the end of the trace."""
        return self.bios.inserted[rows] + self.wait[rows]

    def _by_device(self, rows: Integers) -> Iterator[tuple[int, Integers]]:
        """Yield each device, and the places of its rows."""
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
        return index, [name.decode("utf-8", "backslashreplace") or "?" for name in names]


def _between(begin: Integers, end: Integers) -> Integers:
    """Return the nanoseconds between two times, at least 1; -1 if one is missing."""
    took = np.empty(len(begin), np.int64)
    for block in blocks(len(begin)):
        since, until, part = begin[block], end[block], took[block]
        np.subtract(until, since, out=part)
        np.clip(part, 1, _MAX_NS, out=part)
        part[(since == NEVER) | (until == NEVER)] = NEVER
    return took
