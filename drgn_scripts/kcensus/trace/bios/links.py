# SPDX-License-Identifier: LGPL-2.1-or-later
"""Links of events to bios: which events of a place are about which of its bios."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kcensus.trace.bios.model import NEVER, Bios
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
)

if TYPE_CHECKING:
    from kcensus.trace.bios.pairing import Pairing

KIND_BITS = 5
ACTION = (1 << (KIND_BITS - 1)) - 1
"""Enough for the actions that are paired."""
FOREIGN = 1 << (KIND_BITS - 1)
"""The link is at another place than that where its event begins."""


class Links:
    """The links of bios that are not plain, in order of place and time."""

    def __init__(self, pairing: Pairing, links: Integers, place: Integers, words: Integers) -> None:
        """Link each event to the bio that was queued last at its place.

        :param links: their rows among all links
        :param words: place, row and kind; see :class:`~kcensus.trace.bios.pairing.Pairing`
        """
        self._pairing, self._links, self._place = pairing, links, place
        self._row = pairing.rows(links)
        low = words.astype(np.uint8)
        self._kind = low & np.uint8(ACTION)
        self._is_own = (low & np.uint8(FOREIGN)) == 0
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
