# SPDX-License-Identifier: LGPL-2.1-or-later
"""Links of events to bios: the events of a place that belong to each of its bios."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kcensus.sources.blktrace.bios.choice import Choice
from kcensus.sources.blktrace.bios.model import NEVER, Bios
from kcensus.sources.blktrace.events import MERGES, Act, Integers, Mask

KIND_BITS = 5
ACTION = (1 << (KIND_BITS - 1)) - 1
"""Mask of an action: enough for the paired actions."""
FOREIGN = 1 << (KIND_BITS - 1)
"""The link is at another place than the begin of its event."""


class Links:
    """The links of bios that are not plain, in order of place and time."""

    def __init__(
        self,
        events: Choice,
        rest: Integers,
        links: Integers,
        place: Integers,
        row: Integers,
        kind: npt.NDArray[np.uint8],
    ) -> None:
        """Link each event to the bio that was queued last at its place.

        :param rest: begin of the rest of a split bio, by row of ``events``; -1 for others
        :param links: their rows among all links
        :param row: of their events
        :param kind: action, and :data:`FOREIGN`
        """
        self._events, self._rest = events, rest
        self._links, self._place, self._row = links, place, row
        self._kind = kind & np.uint8(ACTION)
        self._is_own = (kind & np.uint8(FOREIGN)) == 0
        self._link()

    def _link(self) -> None:
        begins = (self._kind == Act.QUEUE) | ((self._kind == Act.SPLIT) & ~self._is_own)
        self._link_to(begins)
        # Queued before the trace, or the event is lost or was not recorded: the insertion is enough
        # for the wait, and without it the dispatch for the time in the driver.
        is_early = (self._bio < 0) & self._is_own
        is_early &= np.isin(self._kind, (Act.INSERT, Act.ISSUE, Act.REQUEUE, Act.COMPLETE))
        early = np.flatnonzero(is_early)
        kind = self._kind[early]
        early = early[(kind != Act.REQUEUE) | (self._before(early) != Act.COMPLETE)]
        if not len(early):
            return
        kind, before = self._kind[early], self._before(early)
        # An insertion or dispatch after a dispatch: a completion is lost.
        is_new = (kind == Act.INSERT) | (kind == Act.ISSUE)
        is_new &= (before == Act.COMPLETE) | (before == Act.ISSUE)
        begins[early[is_new]] = True
        self._link_to(begins)

    def _before(self, links: Integers) -> Integers:
        """Return the kind of the link before each link at its place; COMPLETE for the first."""
        before = np.full(len(links), Act.COMPLETE, np.uint8)
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
        """Return the places at which a bio was queued while another one was in flight.

        :param queued: begins of bios among all links
        :param place: places of these
        """
        own = self._place[self.begins]
        is_done = np.zeros(len(own) + 1, np.bool_)
        is_done[self._bio[self._kind == Act.COMPLETE]] = True
        following = np.searchsorted(queued, self._links[self.begins], side="right")
        self._is_followed = np.append(place, -1)[following] == own
        self._is_followed[:-1] |= own[1:] == own[:-1]
        return np.unique(own[self._is_followed & ~is_done[:-1]])

    def undispatched(self) -> tuple[Integers, Integers]:
        """Return requests without own dispatch or completion.

        :return: the last insertion of each, or its allocation, as a link; and the row of the event
            at which the next bio begins at its place
        """
        is_out = np.zeros(len(self.begins) + 1, np.bool_)
        is_out[self._bio[np.isin(self._kind, (Act.ISSUE, Act.COMPLETE, *MERGES))]] = True
        is_start = (self._kind == Act.GET_REQUEST) | (self._kind == Act.INSERT)
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
        """Link events in the order of the bios if several were in flight at one sector.

        Only if as many are completed as were queued: else events are missing, and nothing tells to
        which bio they belong.
        """
        found = np.minimum(np.searchsorted(places, self._place), len(places) - 1)
        rows = np.flatnonzero(places[found] == self._place)
        group, kind = found[rows], self._kind[rows]
        is_begin, is_end = self._bio[rows] >= 0, kind == Act.COMPLETE
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
        for kinds in (Act.GET_REQUEST, MERGES, Act.INSERT, Act.ISSUE, Act.COMPLETE):
            mine = np.flatnonzero(np.isin(kind, kinds) & (ends[period] == 0))
            own = period[mine]
            turn = np.arange(len(mine)) - np.searchsorted(own, own)
            good = (turn < count[own]) & (first[own] >= 0)
            self._bio[rows[mine[good]]] = (first[own] + turn)[good]

    def fill(self, bios: Bios, block: slice) -> None:
        """Write the columns of the bios."""
        events, rest, begins = self._events, self._rest, self.begins
        count = len(begins)
        queue_row = self._row[begins]
        root, end = self._roots(count)
        source = queue_row[root]
        bio, kind, row, is_own = self._bio, self._kind, self._row, self._is_own
        is_linked = bio >= 0
        if not bool(is_own.all()):
            foreign = np.flatnonzero(~is_own & is_linked)
            # A merged bio belongs to a request that reaches its end.
            outside = events.end(row[foreign]) < end[bio[foreign]]
            is_linked[foreign[outside & (kind[foreign] != Act.SPLIT)]] = False
        time = events.time

        def links(*kinds: int) -> Integers:
            return np.flatnonzero(np.isin(kind, kinds) & is_linked)

        completions = _first(bio, links(Act.COMPLETE))
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

        issues = before_end(Act.ISSUE)
        error = np.zeros(count, np.int16)
        error[bio[completions]] = events.column("error", row[completions])
        # Events of no bio, of a completed bio, or all known events of a bio's wait.
        is_orphan = (bio < 0) | (is_linked & (np.arange(len(bio)) > np.append(last, 0)[bio]))
        is_orphan &= is_own & ((kind == Act.INSERT) | (kind == Act.ISSUE) | (kind == Act.COMPLETE))
        is_orphan[begins[kind[begins] == Act.ISSUE]] = True
        sector = events.sector[queue_row]
        if len(rest):
            is_rest = kind[begins] == Act.SPLIT
            sector[is_rest] = rest[queue_row[is_rest]]
        completed, requeues = moments(completions), before_end(Act.REQUEUE)
        queued = time[source]
        queued[np.isin(kind[begins[root]], (Act.INSERT, Act.ISSUE))] = NEVER
        columns = {
            "queued": queued,
            "got": moments(_first(bio, before_end(Act.GET_REQUEST))),
            "merged": moments(_first(bio, before_end(*MERGES))),
            "inserted": moments(_first(bio, before_end(Act.INSERT))),
            "dispatched": moments(_first(bio, issues)),
            "issued": moments(issues),
            "returned": returned(requeues, issues, before_end(Act.INSERT), completed),
            "completed": completed,
            "sector": sector,
            "bytes": (end - sector) << 9,
            "error": error,
            "requeues": np.bincount(bio[requeues], minlength=count),
            "is_lost": self._is_followed & (completed == NEVER),
            **{name: events.column(name, source) for name in ("device", "flags", "pid")},
        }
        columns["pid"][kind[begins[root]] == Act.ISSUE] = 0
        for name, column in columns.items():
            getattr(bios, name)[block] = column
        bios.orphans = int(is_orphan.sum())

    def _roots(self, count: int) -> tuple[Integers, Integers]:
        """Return the bio from which each one was split, itself if none, and the end of each one."""
        begins, rest = self.begins, self._rest
        root = np.arange(count)
        end = self._events.end(self._row[begins])
        if not len(rest):
            return root, end
        splits = np.flatnonzero((self._kind == Act.SPLIT) & self._is_own & (self._bio >= 0))
        splits = splits[rest[self._row[splits]] >= 0]
        parent = np.full(len(rest), -1)
        parent[self._row[splits]] = self._bio[splits]
        rests = np.flatnonzero(self._kind[begins] == Act.SPLIT)
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
