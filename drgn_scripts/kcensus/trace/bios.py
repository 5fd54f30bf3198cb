# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes bios and requests of events: which moments of a trace are about the same I/O.

Events have no identifier: what they have in common is device and sector. An event belongs to the
bio that was queued last at the sector where the event begins. Where a request has several bios,
events of the request belong also to bios that were merged (M, F) and lie inside of it, and where a
bio is split (X), its rest is a bio of its own. These are the rules of btt, except that btt drops
bios that are split and those queued where another one is in flight.

All events are sorted by sector, then time, in one array of numbers that hold both; the bio that an
event belongs to then is the last one before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.trace.events import (
    BACK_MERGE,
    COMPLETE,
    FRONT_MERGE,
    GET_REQUEST,
    INSERT,
    ISSUE,
    PASSTHROUGH,
    QUEUE,
    REQUEUE,
    SPLIT,
    Integers,
    Mask,
    Trace,
)

_MAX_DEVICES = 1 << 12
_MAX_SECTOR = 1 << 48
_MAX_SHARE = 4
"""Links of requests to merged bios, relative to the events; only a damaged trace has more."""
_PAIRED = (QUEUE, GET_REQUEST, BACK_MERGE, FRONT_MERGE, INSERT, ISSUE, REQUEUE, COMPLETE, SPLIT)
_KIND_BITS = 4
"""Enough for the actions of :data:`_PAIRED`."""
_PLAIN = (QUEUE, GET_REQUEST, INSERT, ISSUE, COMPLETE)
"""The events of most bios."""
NEVER = -1
"""The time of what did not happen in the trace."""


@dataclass
class Bios:
    """The bios of a trace as columns of equal length; times in ns, or :data:`NEVER`.

    A bio that was not merged is what begins a request.
    """

    queued: Integers
    """:data:`NEVER` if the trace begins with the insertion of its request."""
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
    """Of the task that queued it."""
    error: Integers
    requeues: Integers
    is_lost: Mask
    """Whether another bio was queued at its sector before it was completed: events are missing."""
    flushes: int = 0
    """Bios without data, which are not in the columns."""
    orphans: int = 0
    """Insertions, dispatches and completions of bios that the trace does not have."""
    passthrough: int = 0
    """Events of requests that user space made, which have no sector."""
    unpaired: int = 0
    """Events that are not paired, because their sectors or devices are impossible."""

    def __len__(self) -> int:
        return len(self.queued)


def pair(trace: Trace) -> Bios:
    """Make the bios of a trace."""
    events = trace.events
    wanted = np.zeros(256, np.bool_)
    wanted[list(_PAIRED)] = True
    is_paired = wanted[events["action"]]
    has_data = (events["bytes"] > 0) | (events["action"] == SPLIT)
    is_user = (events["flags"] & PASSTHROUGH) != 0
    flushes = int((is_paired & ~has_data & (events["action"] == QUEUE) & ~is_user).sum())
    possible = events["sector"] < _MAX_SECTOR
    device = events["device"]
    code = np.zeros(len(device), np.int64)
    if len(device) and not bool((device == device[0]).all()):
        code, devices = pd.factorize(device)
        if len(devices) > _MAX_DEVICES:
            possible &= code < _MAX_DEVICES
    rows = np.flatnonzero(is_paired & has_data & possible & ~is_user)
    bios = _Pairing(trace, rows, code[rows]).bios()
    bios.flushes = flushes
    bios.passthrough = int(is_user.sum())
    bios.unpaired += int((is_paired & ~possible).sum())
    return bios


class _Pairing:
    """The events of a trace that are paired, and their links to bios."""

    def __init__(self, trace: Trace, rows: Integers, device: Integers) -> None:
        self._trace, self._rows = trace, rows
        self._action = trace.events["action"][rows]
        self._sector = trace.events["sector"][rows].astype(np.int64)
        self._end = self._sector + ((trace.events["bytes"][rows].astype(np.int64) + 511) >> 9)
        span = int(self._end.max(initial=0)) + 1
        self._base = device * span
        self._start = self._base + self._sector
        self._unpaired = 0
        self._is_in_turn: Mask | None = None

    def bios(self) -> Bios:
        """Link events to bios, and return the bios."""
        self._sort()
        self._link()
        if self._has_overlaps():
            self._link_in_turn()
        return self._columns()

    def _sort(self) -> None:
        """Sort links by place (device and sector), then time.

        A link is an event and a place; most events have one, that where they begin.
        """
        place = self._start
        row = np.arange(len(place))
        more = [self._rests(), self._merged()]
        if any(len(rows) for rows, _ in more):
            row = np.concatenate([row, *(rows for rows, _ in more)])
            place = np.concatenate([place, *(places for _, places in more)])
        # A number holds the place, the row, whether the link is at the event's own place, and the
        # action: to look these up after sorting would take longer than to sort.
        bits = max(len(self._start) - 1, 1).bit_length() + _KIND_BITS + 1
        if (int(place.max(initial=0)) + 1).bit_length() + bits > 64:
            place = np.unique(place, return_inverse=True)[1]
        word = place.astype(np.uint64)
        word <<= np.uint64(bits)
        word |= row.astype(np.uint64) << np.uint64(_KIND_BITS + 1)
        # The rest of a split bio is linked where it begins, the split itself at the bio.
        word[len(self._start) :] |= np.uint64(1 << _KIND_BITS)
        word |= self._action[row] if len(row) > len(self._start) else self._action
        word.sort()
        self._row = ((word & np.uint64((1 << bits) - 1)) >> np.uint64(_KIND_BITS + 1)).view(
            np.int64
        )
        self._place = (word >> np.uint64(bits)).view(np.int64)
        low = word.astype(np.uint8)
        self._kind = low & np.uint8((1 << _KIND_BITS) - 1)
        self._is_own = (low & np.uint8(1 << _KIND_BITS)) == 0

    def _rests(self) -> tuple[Integers, Integers]:
        """Return splits, and the places where the rests of the bios begin."""
        rows = np.flatnonzero(self._action == SPLIT)
        self._rest = np.zeros(0, np.int64)
        if not len(rows):
            return rows, rows
        splits = self._trace.splits
        keys = _keys(splits["time"], splits["sector"])
        events = self._trace.events
        wanted = _keys(events["time"][self._rows[rows]], events["sector"][self._rows[rows]])
        order = np.argsort(keys, kind="stable")
        at = np.minimum(np.searchsorted(keys[order], wanted), max(len(order) - 1, 0))
        has_rest = keys[order][at] == wanted if len(order) else np.zeros(len(rows), np.bool_)
        rest = splits["rest"][order[at]].astype(np.int64) if len(order) else rows
        good = has_rest & (rest > self._sector[rows]) & (rest < _MAX_SECTOR)
        good &= self._base[rows] + rest < (1 << 62)
        self._unpaired += int((~good).sum())
        self._rest = np.full(len(self._action), -1)
        self._rest[rows[good]] = rest[good]
        return rows[good], (self._base[rows] + rest)[good]

    def _merged(self) -> tuple[Integers, Integers]:
        """Return events of requests, and the places of merged bios inside of these."""
        merges = np.flatnonzero((self._action == BACK_MERGE) | (self._action == FRONT_MERGE))
        none = np.zeros(0, np.int64)
        if not len(merges):
            return none, none
        fronts = merges[self._action[merges] == FRONT_MERGE]
        # A bio that is merged in front makes one out of what began the request.
        places = np.unique(
            np.concatenate([self._start[merges], self._base[fronts] + self._end[fronts]])
        )
        # A request with a merged bio is larger than the smallest one of these.
        size = self._end - self._sector
        is_larger = size > int(size[merges].min())
        rows = np.flatnonzero(is_larger)
        rows = rows[np.isin(self._action[rows], (ISSUE, COMPLETE, REQUEUE))]
        low = np.searchsorted(places, self._start[rows], side="right")
        high = np.searchsorted(places, self._base[rows] + self._end[rows])
        count = np.maximum(high - low, 0)
        limit = _MAX_SHARE * len(self._action) + (1 << 20)
        total = np.cumsum(count)
        if len(total) and total[-1] > limit:
            kept = total <= limit
            self._unpaired += int((~kept & (count > 0)).sum())
            rows, low, count = rows[kept], low[kept], count[kept]
        first = np.cumsum(count) - count
        within = np.arange(int(count.sum())) - np.repeat(first, count)
        return np.repeat(rows, count), places[np.repeat(low, count) + within]

    def _link(self) -> None:
        """Link each event to the bio that was queued last at its place."""
        begins = (self._kind == QUEUE) | ((self._kind == SPLIT) & ~self._is_own)
        self._link_to(begins)
        # Queued before the trace, or the event is lost: the insertion tells what the wait needs.
        inserts = np.flatnonzero((self._bio < 0) & (self._kind == INSERT))
        if not len(inserts):
            return
        is_first = np.ones(len(inserts), np.bool_)
        is_first[1:] = self._place[inserts[1:]] != self._place[inserts[:-1]]
        is_first |= self._kind[inserts - 1] == COMPLETE
        begins[inserts[is_first]] = True
        self._link_to(begins)

    def _link_to(self, begins: Mask) -> None:
        """Link each event to the last one of ``begins`` at its place."""
        self._begins = np.flatnonzero(begins)
        self._bio = np.cumsum(begins) - 1
        if not len(self._begins):
            self._bio[:] = -1
            return
        is_linked = self._bio >= 0
        is_linked &= self._place == self._place[self._begins[self._bio]]
        self._bio[~is_linked] = -1

    def _has_overlaps(self) -> bool:
        """Return whether a bio was queued at the sector of another one that was in flight."""
        place = self._place[self._begins]
        is_done = np.zeros(len(place) + 1, np.bool_)
        is_done[self._bio[self._kind == COMPLETE]] = True
        self._is_followed = np.zeros(len(place), np.bool_)
        self._is_followed[:-1] = place[1:] == place[:-1]
        self._overlaps = self._is_followed & ~is_done[: len(place)]
        return bool(self._overlaps.any())

    def _link_in_turn(self) -> None:
        """Link events in the order of the bios where several were in flight at one sector.

        Only where as many are completed as were queued: else events are missing, and nothing tells
        which bio they belong to.
        """
        places = np.unique(self._place[self._begins[self._overlaps]])
        found = np.minimum(np.searchsorted(places, self._place), len(places) - 1)
        rows = np.flatnonzero(places[found] == self._place)
        group, kind = found[rows], self._kind[rows]
        is_begin, is_end = self._bio[rows] >= 0, kind == COMPLETE
        starts = np.zeros(len(self._kind), np.bool_)
        starts[self._begins] = True
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
        period = np.cumsum(is_begin & (in_flight == 1))
        is_last = np.diff(np.append(period, -1)) != 0
        ends = np.full(int(period.max(initial=0)) + 1, -1)
        ends[period[is_last]] = in_flight[is_last]
        bios = self._bio[rows]
        self._is_in_turn = np.zeros(len(self._begins), np.bool_)
        self._is_in_turn[bios[bios >= 0]] = True
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

    def _plain(self) -> Integers:
        """Return the bios whose links are those of :data:`_PLAIN`, all their own."""
        begins = self._begins
        bios = np.flatnonzero(np.diff(begins, append=len(self._kind)) == len(_PLAIN))
        if self._is_in_turn is not None:
            bios = bios[~self._is_in_turn[bios]]
        begin = begins[bios]
        good = self._bio[begin + len(_PLAIN) - 1] == bios
        all_own = bool(self._is_own.all())
        for step, kind in enumerate(_PLAIN):
            good &= self._kind[begin + step] == kind
            if not all_own:
                good &= self._is_own[begin + step]
        plain: Integers = bios[good]
        return plain

    def _columns(self) -> Bios:
        begins = self._begins
        count = len(begins)
        queue_row = self._row[begins]
        root, end = self._roots(count)
        events, rows = self._trace.events, self._rows
        source = rows[queue_row[root]]
        plain = self._plain()
        is_other = np.ones(len(self._kind), np.bool_)
        for step in range(len(_PLAIN)):
            is_other[begins[plain] + step] = False
        # From here on, links are those of all other bios.
        others = np.flatnonzero(is_other)
        bio, kind, row = self._bio[others], self._kind[others], self._row[others]
        is_own = self._is_own[others]
        is_linked = bio >= 0
        if not bool(is_own.all()):
            foreign = np.flatnonzero(~is_own & is_linked)
            # A merged bio belongs to a request that reaches its end.
            outside = self._end[row[foreign]] < end[bio[foreign]]
            is_linked[foreign[outside & (kind[foreign] != SPLIT)]] = False
        time = events["time"]

        def times_of(step: int) -> Integers:
            """Return the times of an event of the plain bios."""
            times: Integers = time[rows[self._row[begins[plain] + step]]]
            return times

        def links(*kinds: int) -> Integers:
            mine = kind == kinds[0]
            for each in kinds[1:]:
                mine |= kind == each
            return np.flatnonzero(mine & is_linked)

        completions = _first(bio, links(COMPLETE))
        last = np.full(count, len(kind))
        last[bio[completions]] = completions
        in_order = bool((np.diff(bio[is_linked]) >= 0).all())

        def moments(found: Integers, step: int | None = None) -> Integers:
            """Return the times of links by bio, and of an event of the plain ones."""
            times = np.full(count, NEVER, np.int64)
            times[bio[found]] = time[rows[row[found]]]
            if step is not None:
                times[plain] = times_of(step)
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
        error[bio[completions]] = events["error"][rows[row[completions]]]
        error[plain] = events["error"][rows[self._row[begins[plain] + len(_PLAIN) - 1]]]
        # Of no bio, or of one that is completed already.
        is_orphan = (bio < 0) | (is_linked & (np.arange(len(bio)) > last[bio]))
        is_orphan &= is_own & ((kind == INSERT) | (kind == ISSUE) | (kind == COMPLETE))
        sector = self._sector[queue_row].copy()
        if len(self._rest):
            is_rest = self._kind[begins] == SPLIT
            sector[is_rest] = self._rest[queue_row[is_rest]]
        completed, issued = moments(completions, 4), moments(issues, 3)
        requeues = before_end(REQUEUE)
        queued = time[source].copy()
        queued[self._kind[begins[root]] == INSERT] = NEVER
        return Bios(
            queued=queued,
            got=moments(_first(bio, before_end(GET_REQUEST)), 1),
            merged=moments(_first(bio, before_end(BACK_MERGE, FRONT_MERGE))),
            inserted=moments(_first(bio, before_end(INSERT)), 2),
            dispatched=moments(_first(bio, issues), 3),
            issued=issued,
            returned=returned(requeues, issues, before_end(INSERT), completed),
            completed=completed,
            device=events["device"][source],
            sector=sector,
            bytes=(end - sector) << 9,
            flags=events["flags"][source],
            pid=events["pid"][source],
            error=error,
            requeues=np.bincount(bio[requeues], minlength=count),
            is_lost=self._is_followed & (completed == NEVER),
            orphans=int(is_orphan.sum()),
            unpaired=self._unpaired,
        )

    def _roots(self, count: int) -> tuple[Integers, Integers]:
        """Return the bio that each one was split off, itself if none, and where each one ends."""
        begins = self._begins
        root = np.arange(count)
        end = self._end[self._row[begins]].copy()
        if not len(self._rest):
            return root, end
        splits = np.flatnonzero((self._kind == SPLIT) & self._is_own & (self._bio >= 0))
        splits = splits[self._rest[self._row[splits]] >= 0]
        parent = np.full(len(self._action), -1)
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
        end[self._bio[first]] = self._rest[self._row[first]]
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
