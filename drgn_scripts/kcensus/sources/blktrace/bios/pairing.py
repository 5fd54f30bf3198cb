# SPDX-License-Identifier: LGPL-2.1-or-later
"""The events of a trace in order of place and time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kcensus.sources.blktrace.bios.choice import MAX_SECTOR, Choice, blocks
from kcensus.sources.blktrace.bios.links import FOREIGN, KIND_BITS, Links
from kcensus.sources.blktrace.bios.model import Bios
from kcensus.sources.blktrace.events import MERGES, Act, Integers, Trace
from kcensus.sources.blktrace.threads import side_by_side

_MAX_SECTORS = 1 << 23
"""Sectors of an event: 32 bits of bytes."""
_MAX_SHARE = 4
"""Most links of requests to merged bios per event; only a damaged trace has more."""
_MAX_LIFE = 16
"""Most events of a request to search: one that is often requeued has more."""
_REST = Act.SPLIT | FOREIGN
"""The link of a split at the place of the rest of the bio."""
_PLAIN = (Act.QUEUE, Act.GET_REQUEST, Act.INSERT, Act.ISSUE, Act.COMPLETE)
"""The links of most bios."""


def pair(trace: Trace) -> Bios:
    """Make the bios of a trace."""
    choice = Choice(trace)
    bios = Pairing(trace, choice).bios()
    bios.flushes, bios.passthrough = choice.flushes, choice.passthrough
    bios.insertions, bios.completions = choice.insertions, choice.completions
    bios.unpaired += choice.impossible
    return bios


class Pairing:
    """The paired events of a trace, and their links.

    A link is an event and a place; most events have one, at their begin.
    """

    def __init__(self, trace: Trace, choice: Choice) -> None:
        self._trace, self._events, self._group = trace, choice, choice.group
        self._action, self._sector = choice.action, choice.sector
        self._span = int(self._sector.max(initial=0)) + _MAX_SECTORS + 1
        self._rest = np.zeros(0, np.int64)
        """Begin of the rest of a split bio, by row; -1 for others. Empty without splits."""
        self._unpaired, self._words = 0, np.zeros(0, np.int64)
        self._sort()

    def bios(self) -> Bios:
        """Link events to bios, and return the bios."""
        plain, links = self._linked()
        more = self._merged_requests(links)
        if len(more):
            self._words = np.insert(self._words, np.searchsorted(self._words, more), more)
            plain, links = self._linked()
        bios = Bios.empty(len(plain) + len(links.begins))
        bios.is_absorbed[len(plain) + links.bios(np.searchsorted(self._words, more))] = True
        side_by_side(lambda block: self._fill_plain(bios, block, plain[block]), blocks(len(plain)))
        links.fill(bios, slice(len(plain), len(bios)))
        bios.unpaired = self._unpaired
        return bios

    def _linked(self) -> tuple[Integers, Links]:
        """Return the begins of plain bios, and the links of others."""
        count = len(self._words)
        low = np.zeros(count + 8, np.uint8)
        low[:count] = self._words
        low &= (1 << KIND_BITS) - 1
        begins = np.flatnonzero(
            (low == Act.QUEUE) | (low == _REST) if len(self._rest) else low == Act.QUEUE
        )
        plain = self._plain(low, begins)
        links = self._others(plain)
        crowded = links.crowded_places(begins, self._place_of(begins))
        if len(crowded):
            plain = plain[~np.isin(self._place_of(plain), crowded)]
            links = self._others(plain)
            links.crowded_places(begins, self._place_of(begins))
            links.link_in_turn(crowded)
        return plain, links

    def _place_of(self, links: Integers) -> Integers:
        return self._words[links] >> self._bits

    def _row_of(self, links: Integers) -> Integers:
        return (self._words[links] & self._mask) >> KIND_BITS

    def _base(self, rows: Integers | slice) -> Integers | int:
        return 0 if self._group is None else self._group[rows] * np.int64(self._span)

    def _places(self, rows: Integers | slice) -> Integers:
        return self._sector[rows] + self._base(rows)

    def _sort(self) -> None:
        count = len(self._action)
        more = [self._rests(), self._merged()]
        rows = np.concatenate([rows for rows, _ in more])
        places = np.concatenate([places for _, places in more])
        # A number holds the place, the row, whether the link is at the event's own place, and the
        # action: to look these up after sorting would take longer than to sort.
        self._bits = max(count - 1, 1).bit_length() + KIND_BITS
        self._mask = (1 << self._bits) - 1
        groups = 1 if self._group is None else int(self._group.max(initial=0)) + 1
        self._known = None
        if (groups * self._span).bit_length() + self._bits > 63:
            self._known = np.unique(np.concatenate([self._places(slice(None)), places]))
        words = np.empty(count + len(rows), np.int64)

        def fill(block: slice) -> None:
            row = np.arange(block.start, block.stop)
            words[block] = self._word(self._places(block), row, self._action[block])

        side_by_side(fill, blocks(count))
        words[count:] = self._word(places, rows, self._action[rows] | FOREIGN)
        words.sort()
        self._words = words

    def _word(self, place: Integers, row: Integers, kind: Integers) -> Integers:
        if self._known is not None:
            place = np.searchsorted(self._known, place)
        word: Integers = (place << self._bits) | (row << KIND_BITS)
        word |= kind
        return word

    def _rests(self) -> tuple[Integers, Integers]:
        """Return splits, and the places of the rests of the bios."""
        rows = np.flatnonzero(self._action == Act.SPLIT)
        if not len(rows):
            return rows, rows
        splits = self._trace.splits
        keys = _keys(splits["time"], splits["sector"])
        wanted = _keys(self._events.time[rows], self._sector[rows])
        order = np.argsort(keys, kind="stable")
        at = np.minimum(np.searchsorted(keys[order], wanted), max(len(order) - 1, 0))
        has_rest = keys[order][at] == wanted if len(order) else np.zeros(len(rows), np.bool_)
        rest = splits["rest"][order[at]].astype(np.int64) if len(order) else rows
        good = has_rest & (rest > self._sector[rows]) & (rest < MAX_SECTOR)
        good &= rest < self._span
        self._unpaired += int((~good).sum())
        self._rest = np.full(len(self._action), -1)
        self._rest[rows[good]] = rest[good]
        return rows[good], rest[good] + self._base(rows[good])

    def _merged(self) -> tuple[Integers, Integers]:
        """Return events of requests, and the places of merged bios inside of them."""
        merges = np.flatnonzero(np.isin(self._action, MERGES))
        none = np.zeros(0, np.int64)
        if not len(merges):
            return none, none
        fronts = merges[self._action[merges] == Act.FRONT_MERGE]
        # A bio merged in front turns the first bio of the request into a merged one.
        places = np.unique(
            np.concatenate([self._places(merges), self._events.end(fronts) + self._base(fronts)])
        )
        # A request with a merged bio is larger than the smallest merged bio.
        least = int((self._events.end(merges) - self._sector[merges]).min())
        rows, inside = self._inside(places, least)
        return rows, places[inside]

    def _inside(self, places: Integers, least: int) -> tuple[Integers, Integers]:
        """Return events of requests, and which of ``places`` are inside of them.

        :param places: sorted
        :param least: sectors that the events exceed
        """
        size = self._trace.events["bytes"]
        rows = np.concatenate(
            [
                np.flatnonzero(size[self._events.rows[block]] > least << 9) + block.start
                for block in blocks(len(self._events.rows))
            ]
        )
        rows = rows[np.isin(self._action[rows], (Act.ISSUE, Act.COMPLETE, Act.REQUEUE))]
        low = np.searchsorted(places, self._places(rows), side="right")
        high = np.searchsorted(places, self._events.end(rows) + self._base(rows))
        count = np.maximum(high - low, 0)
        limit = _MAX_SHARE * len(self._action) + (1 << 20)
        total = np.cumsum(count)
        if len(total) and total[-1] > limit:
            kept = total <= limit
            self._unpaired += int((~kept & (count > 0)).sum())
            rows, low, count = rows[kept], low[kept], count[kept]
        first = np.cumsum(count) - count
        within = np.arange(int(count.sum())) - np.repeat(first, count)
        return np.repeat(rows, count), np.repeat(low, count) + within

    def _merged_requests(self, links: Links) -> Integers:
        """Return links of events to requests that were merged into others, sorted.

        Before Linux kernel commit f3bdc62fd82e ("blktrace: Provide event for request merging") (in
        v5.9), two requests become one without an event: later events belong to the first one alone.
        """
        request, until = links.undispatched()
        if not len(request):
            return request
        row = self._row_of(request)
        places = self._places(row)
        order = np.argsort(places, kind="stable")
        least = int((self._events.end(row) - self._sector[row]).min())
        rows, inside = self._inside(places[order], least)
        own = order[inside]
        is_merged = (
            (rows > row[own])
            & (rows < until[own])
            & (self._events.end(rows) >= self._events.end(row[own]))
        )
        rows, own = rows[is_merged], own[is_merged]
        # Else the sectors are in both, and the first request passed the other one.
        is_grown = self._inserted_end(rows) <= self._sector[row[own]]
        rows, own = rows[is_grown], own[is_grown]
        return np.sort(self._word(places[own], rows, self._action[rows] | FOREIGN))

    def _inserted_end(self, rows: Integers) -> Integers:
        """Return the ends of requests at their insertion; 0 if not found.

        :param rows: events of the requests
        """
        end = np.zeros(len(rows), np.int64)
        if not len(rows):
            return end
        at = np.searchsorted(self._words, self._word(self._places(rows), rows, self._action[rows]))
        place = self._words[at] >> self._bits
        left = np.arange(len(rows))
        for _ in range(_MAX_LIFE):
            at[left] -= 1
            left = left[at[left] >= 0]
            kind = self._words[at[left]] & ((1 << KIND_BITS) - 1)
            is_same = self._place_of(at[left]) == place[left]
            is_same &= ~np.isin(kind, (Act.QUEUE, _REST, Act.COMPLETE))
            left, kind = left[is_same], kind[is_same]
            if not len(left):
                break
            inserts = left[kind == Act.INSERT]
            end[inserts] = self._events.end(self._row_of(at[inserts]))
        return end

    def _plain(self, low: npt.NDArray[np.uint8], begins: Integers) -> Integers:
        """Return which of ``begins`` belong to bios with the links of :data:`_PLAIN` alone.

        :param low: actions of all links, and eight zeros
        """
        plain = begins[np.diff(begins, append=len(self._words)) == len(_PLAIN)]
        kinds: Integers = np.ndarray((len(low) - 7,), "<u8", low, strides=(1,))
        unused = np.uint64(8 * (8 - len(_PLAIN)))
        pattern = np.uint64(int.from_bytes(bytes(_PLAIN), "little")) << unused
        plain = plain[kinds[plain] << unused == pattern]
        same: Integers = plain[self._place_of(plain) == self._place_of(plain + len(_PLAIN) - 1)]
        return same

    def _others(self, plain: Integers) -> Links:
        is_other = np.ones(len(self._words), np.bool_)
        for step in range(len(_PLAIN)):
            is_other[plain + step] = False
        others = np.flatnonzero(is_other)
        return Links(
            self._events,
            self._rest,
            others,
            self._place_of(others),
            self._row_of(others),
            self._words[others].astype(np.uint8),
        )

    def _fill_plain(self, bios: Bios, block: slice, begins: Integers) -> None:
        rows = [self._row_of(begins + step) for step in range(len(_PLAIN))]
        moments = (bios.queued, bios.got, bios.inserted, bios.dispatched, bios.completed)
        for column, row in zip(moments, rows, strict=True):
            column[block] = self._events.time[row]
        bios.issued[block] = bios.dispatched[block]
        events, source = self._trace.events, self._events.rows[rows[0]]
        for name in ("device", "flags", "pid"):
            getattr(bios, name)[block] = events[name][source]
        bios.sector[block] = self._sector[rows[0]]
        bios.bytes[block] = ((events["bytes"][source].astype(np.int64) + 511) >> 9) << 9
        bios.error[block] = self._events.column("error", rows[-1])


def _keys(time: Integers, sector: Integers) -> npt.NDArray[np.uint64]:
    """Return a number for each pair of time and sector; pairs are unlikely to share one."""
    odd = np.uint64(0x9E3779B97F4A7C15)
    return time.astype(np.uint64) * odd ^ sector.astype(np.uint64)
