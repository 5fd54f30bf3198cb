# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes bios and requests of events: which moments of a trace are about the same I/O.

Events have no identifier: what they have in common is device, direction and sector; these three are
called a place. An event belongs to the bio that was queued last at the place where it begins. Where
a request has several bios, events of the request belong also to bios that were merged (M, F) and
lie inside of it, and where a bio is split (X), its rest is a bio of its own. These are the rules of
btt, except that btt drops bios that are split and those queued where another one is in flight.

All events are sorted by place, then time, in one array of numbers that hold both; the bio that an
event belongs to then is the last one before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kcensus.trace.choice import MAX_SECTOR, Choice, blocks
from kcensus.trace.events import (
    BACK_MERGE,
    COMPLETE,
    FRONT_MERGE,
    GET_REQUEST,
    INSERT,
    ISSUE,
    QUEUE,
    REQUEUE,
    SPLIT,
    Integers,
    Mask,
    Trace,
)
from kcensus.trace.threads import side_by_side

_MAX_SECTORS = 1 << 23
"""Of an event: 32 bits of bytes."""
_MAX_SHARE = 4
"""Links of requests to merged bios, relative to the events; only a damaged trace has more."""
_MAX_LIFE = 16
"""Events of a request that are looked at: one that is requeued often has more."""
_KIND_BITS = 5
_ACTION = (1 << (_KIND_BITS - 1)) - 1
"""Enough for the actions that are paired."""
_FOREIGN = 1 << (_KIND_BITS - 1)
"""The link is at another place than that where its event begins."""
_REST = SPLIT | _FOREIGN
"""The link of a split at the place where the rest of the bio begins."""
_PLAIN = (QUEUE, GET_REQUEST, INSERT, ISSUE, COMPLETE)
"""The links of most bios."""
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


def pair(trace: Trace) -> Bios:
    """Make the bios of a trace."""
    choice = Choice(trace)
    bios = _Pairing(trace, choice).bios()
    bios.flushes, bios.passthrough = choice.flushes, choice.passthrough
    bios.insertions, bios.completions = choice.insertions, choice.completions
    bios.unpaired += choice.impossible
    return bios


class _Pairing:
    """The events of a trace that are paired, and their links.

    A link is an event and a place; most events have one, that where they begin.
    """

    def __init__(self, trace: Trace, choice: Choice) -> None:
        self._trace, self._rows, self.time = trace, choice.rows, choice.time
        self.action, self.sector, self._group = choice.action, choice.sector, choice.group
        self._span = int(self.sector.max(initial=0)) + _MAX_SECTORS + 1
        self.rest = np.zeros(0, np.int64)
        """Where the rest of a split bio begins, by row; -1 for others. Empty without splits."""
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

    def _linked(self) -> tuple[Integers, _Links]:
        """Return where plain bios begin, and the links of others."""
        count = len(self._words)
        low = np.zeros(count + 8, np.uint8)
        low[:count] = self._words
        low &= (1 << _KIND_BITS) - 1
        begins = np.flatnonzero((low == QUEUE) | (low == _REST) if len(self.rest) else low == QUEUE)
        plain = self._plain(low, begins)
        links = self._others(plain)
        crowded = links.crowded_places(begins, self.places(begins))
        if len(crowded):
            plain = plain[~np.isin(self.places(plain), crowded)]
            links = self._others(plain)
            links.crowded_places(begins, self.places(begins))
            links.link_in_turn(crowded)
        return plain, links

    def places(self, links: Integers) -> Integers:
        """Return the places of links."""
        places: Integers = self._words[links] >> self._bits
        return places

    def rows(self, links: Integers) -> Integers:
        """Return the rows of the events of links, which are in order of their times."""
        rows: Integers = (self._words[links] & self._mask) >> _KIND_BITS
        return rows

    def events(self, name: str, rows: Integers) -> Integers:
        """Return a column of the trace for some events."""
        column: Integers = self._trace.events[name][self._rows[rows]]
        return column

    def end(self, rows: Integers) -> Integers:
        """Return the sectors behind some events."""
        size = self.events("bytes", rows).astype(np.int64)
        end: Integers = self.sector[rows] + ((size + 511) >> 9)
        return end

    def _base(self, rows: Integers | slice) -> Integers | int:
        """Return the places at which the groups of some events begin."""
        return 0 if self._group is None else self._group[rows] * np.int64(self._span)

    def _places(self, rows: Integers | slice) -> Integers:
        """Return the places at which some events begin."""
        places: Integers = self.sector[rows] + self._base(rows)
        return places

    def _sort(self) -> None:
        """Sort links by place, then time."""
        count = len(self.action)
        more = [self._rests(), self._merged()]
        rows = np.concatenate([rows for rows, _ in more])
        places = np.concatenate([places for _, places in more])
        # A number holds the place, the row, whether the link is at the event's own place, and the
        # action: to look these up after sorting would take longer than to sort.
        self._bits = max(count - 1, 1).bit_length() + _KIND_BITS
        self._mask = (1 << self._bits) - 1
        groups = 1 if self._group is None else int(self._group.max(initial=0)) + 1
        self._known = None
        if (groups * self._span).bit_length() + self._bits > 63:
            self._known = np.unique(np.concatenate([self._places(slice(None)), places]))
        words = np.empty(count + len(rows), np.int64)

        def fill(block: slice) -> None:
            row = np.arange(block.start, block.stop)
            words[block] = self._word(self._places(block), row, self.action[block])

        side_by_side(fill, blocks(count))
        words[count:] = self._word(places, rows, self.action[rows] | _FOREIGN)
        words.sort()
        self._words = words

    def _word(self, place: Integers, row: Integers, kind: Integers) -> Integers:
        if self._known is not None:
            place = np.searchsorted(self._known, place)
        word: Integers = (place << self._bits) | (row << _KIND_BITS)
        word |= kind
        return word

    def _rests(self) -> tuple[Integers, Integers]:
        """Return splits, and the places where the rests of the bios begin."""
        rows = np.flatnonzero(self.action == SPLIT)
        if not len(rows):
            return rows, rows
        splits = self._trace.splits
        keys = _keys(splits["time"], splits["sector"])
        wanted = _keys(self.time[rows], self.sector[rows])
        order = np.argsort(keys, kind="stable")
        at = np.minimum(np.searchsorted(keys[order], wanted), max(len(order) - 1, 0))
        has_rest = keys[order][at] == wanted if len(order) else np.zeros(len(rows), np.bool_)
        rest = splits["rest"][order[at]].astype(np.int64) if len(order) else rows
        good = has_rest & (rest > self.sector[rows]) & (rest < MAX_SECTOR)
        good &= rest < self._span
        self._unpaired += int((~good).sum())
        self.rest = np.full(len(self.action), -1)
        self.rest[rows[good]] = rest[good]
        return rows[good], rest[good] + self._base(rows[good])

    def _merged(self) -> tuple[Integers, Integers]:
        """Return events of requests, and the places of merged bios inside of these."""
        merges = np.flatnonzero((self.action == BACK_MERGE) | (self.action == FRONT_MERGE))
        none = np.zeros(0, np.int64)
        if not len(merges):
            return none, none
        fronts = merges[self.action[merges] == FRONT_MERGE]
        # A bio that is merged in front makes one out of what began the request.
        places = np.unique(
            np.concatenate([self._places(merges), self.end(fronts) + self._base(fronts)])
        )
        # A request with a merged bio is larger than the smallest one of these.
        least = int((self.end(merges) - self.sector[merges]).min())
        rows, inside = self._inside(places, least)
        return rows, places[inside]

    def _inside(self, places: Integers, least: int) -> tuple[Integers, Integers]:
        """Return events of requests, and which of ``places`` are inside of these.

        :param places: sorted
        :param least: sectors that the events exceed
        """
        size = self._trace.events["bytes"]
        rows = np.concatenate(
            [
                np.flatnonzero(size[self._rows[block]] > least << 9) + block.start
                for block in blocks(len(self._rows))
            ]
        )
        rows = rows[np.isin(self.action[rows], (ISSUE, COMPLETE, REQUEUE))]
        low = np.searchsorted(places, self._places(rows), side="right")
        high = np.searchsorted(places, self.end(rows) + self._base(rows))
        count = np.maximum(high - low, 0)
        limit = _MAX_SHARE * len(self.action) + (1 << 20)
        total = np.cumsum(count)
        if len(total) and total[-1] > limit:
            kept = total <= limit
            self._unpaired += int((~kept & (count > 0)).sum())
            rows, low, count = rows[kept], low[kept], count[kept]
        first = np.cumsum(count) - count
        within = np.arange(int(count.sum())) - np.repeat(first, count)
        return np.repeat(rows, count), np.repeat(low, count) + within

    def _merged_requests(self, links: _Links) -> Integers:
        """Return links of events to requests that were merged into others, sorted.

        Before Linux kernel commit f3bdc62fd82e ("blktrace: Provide event for request merging") (in
        v5.9), two requests become one without an event: what follows is of the first one alone.
        """
        request, until = links.undispatched()
        if not len(request):
            return request
        row = self.rows(request)
        places = self._places(row)
        order = np.argsort(places, kind="stable")
        least = int((self.end(row) - self.sector[row]).min())
        rows, inside = self._inside(places[order], least)
        own = order[inside]
        is_merged = (rows > row[own]) & (rows < until[own]) & (self.end(rows) >= self.end(row[own]))
        rows, own = rows[is_merged], own[is_merged]
        # Else the sectors are in both, and the first request passed the other one.
        is_grown = self._inserted_end(rows) <= self.sector[row[own]]
        rows, own = rows[is_grown], own[is_grown]
        return np.sort(self._word(places[own], rows, self.action[rows] | _FOREIGN))

    def _inserted_end(self, rows: Integers) -> Integers:
        """Return where requests ended when they were inserted; 0 where that is not found.

        :param rows: events of the requests
        """
        end = np.zeros(len(rows), np.int64)
        if not len(rows):
            return end
        at = np.searchsorted(self._words, self._word(self._places(rows), rows, self.action[rows]))
        place = self._words[at] >> self._bits
        left = np.arange(len(rows))
        for _ in range(_MAX_LIFE):
            at[left] -= 1
            left = left[at[left] >= 0]
            kind = self._words[at[left]] & ((1 << _KIND_BITS) - 1)
            is_same = self.places(at[left]) == place[left]
            is_same &= ~np.isin(kind, (QUEUE, _REST, COMPLETE))
            left, kind = left[is_same], kind[is_same]
            if not len(left):
                break
            inserts = left[kind == INSERT]
            end[inserts] = self.end(self.rows(at[inserts]))
        return end

    def _plain(self, low: npt.NDArray[np.uint8], begins: Integers) -> Integers:
        """Return which of ``begins`` are those of bios with the links of :data:`_PLAIN` alone.

        :param low: actions of all links, and eight zeros
        """
        plain = begins[np.diff(begins, append=len(self._words)) == len(_PLAIN)]
        kinds: Integers = np.ndarray((len(low) - 7,), "<u8", low, strides=(1,))
        unused = np.uint64(8 * (8 - len(_PLAIN)))
        pattern = np.uint64(int.from_bytes(bytes(_PLAIN), "little")) << unused
        plain = plain[kinds[plain] << unused == pattern]
        same: Integers = plain[self.places(plain) == self.places(plain + len(_PLAIN) - 1)]
        return same

    def _others(self, plain: Integers) -> _Links:
        """Return all links but those of plain bios."""
        is_other = np.ones(len(self._words), np.bool_)
        for step in range(len(_PLAIN)):
            is_other[plain + step] = False
        others = np.flatnonzero(is_other)
        return _Links(self, others, self.places(others), self._words[others])

    def _fill_plain(self, bios: Bios, block: slice, begins: Integers) -> None:
        rows = [self.rows(begins + step) for step in range(len(_PLAIN))]
        moments = (bios.queued, bios.got, bios.inserted, bios.dispatched, bios.completed)
        for column, row in zip(moments, rows, strict=True):
            column[block] = self.time[row]
        bios.issued[block] = bios.dispatched[block]
        events, source = self._trace.events, self._rows[rows[0]]
        for name in ("device", "flags", "pid"):
            getattr(bios, name)[block] = events[name][source]
        bios.sector[block] = self.sector[rows[0]]
        bios.bytes[block] = ((events["bytes"][source].astype(np.int64) + 511) >> 9) << 9
        bios.error[block] = self.events("error", rows[-1])


class _Links:
    """The links of bios that are not plain, in order of place and time."""

    def __init__(
        self, pairing: _Pairing, links: Integers, place: Integers, words: Integers
    ) -> None:
        """Link each event to the bio that was queued last at its place.

        :param links: their rows among all links
        :param words: place, row and kind; see :class:`_Pairing`
        """
        self._pairing, self._links, self._place = pairing, links, place
        self._row = pairing.rows(links)
        low = words.astype(np.uint8)
        self._kind = low & np.uint8(_ACTION)
        self._is_own = (low & np.uint8(_FOREIGN)) == 0
        self._link()

    def _link(self) -> None:
        begins = (self._kind == QUEUE) | ((self._kind == SPLIT) & ~self._is_own)
        self._link_to(begins)
        # Queued before the trace, or the event is lost or was not recorded: the insertion has what
        # the wait needs, and without it the dispatch what the time in the driver needs.
        is_early = (self._bio < 0) & self._is_own
        is_early &= np.isin(self._kind, (INSERT, ISSUE, REQUEUE, COMPLETE))
        early = np.flatnonzero(is_early)
        kind = self._kind[early]
        early = early[(kind != REQUEUE) | (self._before(early) != COMPLETE)]
        if not len(early):
            return
        kind, before = self._kind[early], self._before(early)
        # An insertion or dispatch that follows a dispatch: a completion is lost.
        is_new = (kind == INSERT) | (kind == ISSUE)
        is_new &= (before == COMPLETE) | (before == ISSUE)
        begins[early[is_new]] = True
        self._link_to(begins)

    def _before(self, links: Integers) -> Integers:
        """Return the kinds of the links before some at their places; COMPLETE for first ones."""
        before = np.full(len(links), COMPLETE, np.uint8)
        is_same = self._place[links[1:]] == self._place[links[:-1]]
        before[1:][is_same] = self._kind[links[:-1]][is_same]
        return before

    def _link_to(self, begins: Mask) -> None:
        """Link each event to the last one of ``begins`` at its place."""
        self.begins = np.flatnonzero(begins)
        self._bio = np.cumsum(begins) - 1
        if not len(self.begins):
            self._bio[:] = -1
            return
        is_linked = self._bio >= 0
        is_linked &= self._place == self._place[self.begins[self._bio]]
        self._bio[~is_linked] = -1

    def crowded_places(self, queued: Integers, place: Integers) -> Integers:
        """Return the places where a bio was queued while another one was in flight.

        :param queued: where bios of all links begin
        :param place: of these
        """
        own = self._place[self.begins]
        is_done = np.zeros(len(own) + 1, np.bool_)
        is_done[self._bio[self._kind == COMPLETE]] = True
        following = np.searchsorted(queued, self._links[self.begins], side="right")
        self._is_followed = np.append(place, -1)[following] == own
        self._is_followed[:-1] |= own[1:] == own[:-1]
        return np.unique(own[self._is_followed & ~is_done[:-1]])

    def undispatched(self) -> tuple[Integers, Integers]:
        """Return requests without own dispatch or completion.

        :return: the last insertion of each, or when it was allocated, as a link; and the row of the
            event at which the next bio begins at its place
        """
        is_out = np.zeros(len(self.begins) + 1, np.bool_)
        is_out[self._bio[np.isin(self._kind, (ISSUE, COMPLETE, BACK_MERGE, FRONT_MERGE))]] = True
        is_start = (self._kind == GET_REQUEST) | (self._kind == INSERT)
        is_start &= (self._bio >= 0) & ~is_out[self._bio]
        last = np.full(len(self.begins), -1)
        starts = np.flatnonzero(is_start)
        last[self._bio[starts]] = starts
        bios = np.flatnonzero(last >= 0)
        until = np.append(self._row[self.begins], 0)[bios + 1]
        has_next = np.append(self._place[self.begins], -1)[bios + 1] == self._place[last[bios]]
        until[~has_next] = np.iinfo(np.int64).max
        return self._links[last[bios]], until

    def bios(self, links: Integers) -> Integers:
        """Return the bios of some links, given as their rows among all."""
        bios: Integers = self._bio[np.searchsorted(self._links, links)]
        return bios[bios >= 0]

    def link_in_turn(self, places: Integers) -> None:
        """Link events in the order of the bios where several were in flight at one sector.

        Only where as many are completed as were queued: else events are missing, and nothing tells
        which bio they belong to.
        """
        found = np.minimum(np.searchsorted(places, self._place), len(places) - 1)
        rows = np.flatnonzero(places[found] == self._place)
        group, kind = found[rows], self._kind[rows]
        is_begin, is_end = self._bio[rows] >= 0, kind == COMPLETE
        starts = np.zeros(len(self._kind), np.bool_)
        starts[self.begins] = True
        is_begin &= starts[rows]
        change = is_begin.astype(np.int64) - is_end
        total = np.cumsum(change)
        is_first = np.diff(group, prepend=-1) != 0
        before = np.repeat(
            (total - change)[is_first], np.diff(np.append(np.flatnonzero(is_first), len(rows)))
        )
        total -= before
        # A completion without a bio does not count; groups are kept apart by a large step.
        step = 2 * len(rows) + 2
        lowest = np.minimum.accumulate(total - group * step) + group * step
        in_flight = total - np.minimum(lowest, 0)
        period = np.cumsum((is_begin & (in_flight == 1)) | is_first)
        is_last = np.diff(np.append(period, -1)) != 0
        ends = np.full(int(period.max(initial=0)) + 1, -1)
        ends[period[is_last]] = in_flight[is_last]
        bios = self._bio[rows]
        first = np.full(len(ends), -1)
        count = np.bincount(period[is_begin], minlength=len(ends))
        begin_rows = np.flatnonzero(is_begin)[::-1]
        first[period[begin_rows]] = bios[begin_rows]
        for kinds in ((GET_REQUEST,), (BACK_MERGE, FRONT_MERGE), (INSERT,), (ISSUE,), (COMPLETE,)):
            mine = np.flatnonzero(np.isin(kind, kinds) & (ends[period] == 0))
            own = period[mine]
            turn = np.arange(len(mine)) - np.searchsorted(own, own)
            good = (turn < count[own]) & (first[own] >= 0)
            self._bio[rows[mine[good]]] = (first[own] + turn)[good]

    def fill(self, bios: Bios, block: slice) -> None:
        """Write the columns of the bios."""
        pairing, begins = self._pairing, self.begins
        count = len(begins)
        queue_row = self._row[begins]
        root, end = self._roots(count)
        source = queue_row[root]
        bio, kind, row, is_own = self._bio, self._kind, self._row, self._is_own
        is_linked = bio >= 0
        if not bool(is_own.all()):
            foreign = np.flatnonzero(~is_own & is_linked)
            # A merged bio belongs to a request that reaches its end.
            outside = pairing.end(row[foreign]) < end[bio[foreign]]
            is_linked[foreign[outside & (kind[foreign] != SPLIT)]] = False
        time = pairing.time

        def links(*kinds: int) -> Integers:
            mine = kind == kinds[0]
            for each in kinds[1:]:
                mine |= kind == each
            return np.flatnonzero(mine & is_linked)

        completions = _first(bio, links(COMPLETE))
        last = np.full(count, len(kind))
        last[bio[completions]] = completions
        in_order = bool((np.diff(bio[is_linked]) >= 0).all())

        def moments(found: Integers) -> Integers:
            """Return the times of links by bio."""
            times = np.full(count, NEVER, np.int64)
            times[bio[found]] = time[row[found]]
            return times

        def before_end(*kinds: int) -> Integers:
            found = links(*kinds)
            if not in_order:
                found = found[np.argsort(bio[found], kind="stable")]
            kept: Integers = found[found < last[bio[found]]]
            return kept

        def returned(
            requeues: Integers, issues: Integers, inserts: Integers, completed: Integers
        ) -> Integers:
            since = moments(requeues)
            again = np.flatnonzero(since != NEVER)
            if not len(again):
                return since
            link, issue, insert = (np.full(count, -1) for _ in range(3))
            for each, links_ in ((link, requeues), (issue, issues), (insert, inserts)):
                each[bio[links_]] = links_
            inserted = moments(inserts)
            is_again = insert[again] > link[again]
            since[again[is_again]] = inserted[again[is_again]]
            since[(issue > link) | (completed != NEVER)] = NEVER
            return since

        issues = before_end(ISSUE)
        error = np.zeros(count, np.int16)
        error[bio[completions]] = pairing.events("error", row[completions])
        # Of no bio, of one that is completed already, or all that is known of the wait of one.
        is_orphan = (bio < 0) | (is_linked & (np.arange(len(bio)) > np.append(last, 0)[bio]))
        is_orphan &= is_own & ((kind == INSERT) | (kind == ISSUE) | (kind == COMPLETE))
        is_orphan[begins[kind[begins] == ISSUE]] = True
        sector = pairing.sector[queue_row]
        if len(pairing.rest):
            is_rest = kind[begins] == SPLIT
            sector[is_rest] = pairing.rest[queue_row[is_rest]]
        completed, requeues = moments(completions), before_end(REQUEUE)
        queued = time[source]
        queued[np.isin(kind[begins[root]], (INSERT, ISSUE))] = NEVER
        columns = {
            "queued": queued,
            "got": moments(_first(bio, before_end(GET_REQUEST))),
            "merged": moments(_first(bio, before_end(BACK_MERGE, FRONT_MERGE))),
            "inserted": moments(_first(bio, before_end(INSERT))),
            "dispatched": moments(_first(bio, issues)),
            "issued": moments(issues),
            "returned": returned(requeues, issues, before_end(INSERT), completed),
            "completed": completed,
            "sector": sector,
            "bytes": (end - sector) << 9,
            "error": error,
            "requeues": np.bincount(bio[requeues], minlength=count),
            "is_lost": self._is_followed & (completed == NEVER),
            **{name: pairing.events(name, source) for name in ("device", "flags", "pid")},
        }
        columns["pid"][kind[begins[root]] == ISSUE] = 0
        for name, column in columns.items():
            getattr(bios, name)[block] = column
        bios.orphans = int(is_orphan.sum())

    def _roots(self, count: int) -> tuple[Integers, Integers]:
        """Return the bio that each one was split off, itself if none, and where each one ends."""
        begins, rest = self.begins, self._pairing.rest
        root = np.arange(count)
        end = self._pairing.end(self._row[begins])
        if not len(rest):
            return root, end
        splits = np.flatnonzero((self._kind == SPLIT) & self._is_own & (self._bio >= 0))
        splits = splits[rest[self._row[splits]] >= 0]
        parent = np.full(len(rest), -1)
        parent[self._row[splits]] = self._bio[splits]
        rests = np.flatnonzero(self._kind[begins] == SPLIT)
        owner = parent[self._row[begins[rests]]]
        root[rests] = np.where(owner >= 0, owner, rests)
        for _ in range(count.bit_length() + 1):
            above = root[root]
            if bool((above == root).all()):
                break
            root = above
        end = end[root]
        first = splits[::-1]
        end[self._bio[first]] = rest[self._row[first]]
        return root, end


def _first(bio: Integers, links: Integers) -> Integers:
    """Return the first of the links of each bio; the links of a bio are in the order of time."""
    mine = bio[links]
    is_first = np.ones(len(links), np.bool_)
    is_first[1:] = mine[1:] != mine[:-1]
    return links[is_first]


def _keys(time: Integers, sector: Integers) -> npt.NDArray[np.uint64]:
    """Return a number for each pair of time and sector; pairs are unlikely to share one."""
    odd = np.uint64(0x9E3779B97F4A7C15)
    return time.astype(np.uint64) * odd ^ sector.astype(np.uint64)
