# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who sleeps, on what, and behind which requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.engine.memory import Words
from kcensus.kernel.block.requests import State
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.joined import Joins, RequestPlaces, joined
from kcensus.kernel.tasks.waits import Waits, waits

Counts = npt.NDArray[np.int64]
_SECTOR = 512


@dataclass(frozen=True)
class Sleepers:
    """Tasks in state D, and the requests that have to complete before they run."""

    waits: Waits
    joins: Joins

    def __len__(self) -> int:
        return len(self.waits)

    def request_of(self, figures: Figures) -> tuple[Counts, Counts]:
        """Return the request that each task waits for longest, and the row of its join; or -1.

        Of several requests, it is one that is not dispatched rather than one in the driver, and
        the one that has been there longest.
        """
        requests, joins = figures.requests, self.joins
        inserted = requests.state[joins.request] == State.INSERTED
        age = figures.requests.waiting_ns[joins.request] + requests.in_driver_ns[joins.request]
        order = np.lexsort((age, inserted, joins.is_proven))
        best = np.full(len(self), -1)
        best[joins.wait[order]] = order  # the last one of each wait stays
        chosen = joins.request[best] if len(joins) else best
        return np.where(best >= 0, chosen, -1), best

    def behind(self, requests: Counts) -> Counts:
        """Return the rows of the tasks that wait for any of some requests."""
        return np.unique(self.joins.wait[np.isin(self.joins.request, requests)])


def sleepers(figures: Figures) -> Sleepers:
    """Return who sleeps, and the requests that they wait for.

    :raises LookupError: the debug info lacks tasks
    """
    requests = figures.requests
    gendisks: Words = np.array([disk.address for disk in figures.disks] or [0], np.uint64)
    places = RequestPlaces(
        disk=gendisks[requests.disk],
        sector=requests.sector,
        sectors=requests.bytes // _SECTOR,
    )
    found = waits(figures.kernel)
    joins = joined(figures.kernel, found, figures.bios, places)
    return Sleepers(replace(found, since_ns=since_submitted(found, joins, requests.age_ns)), joins)


def since_submitted(waits: Waits, joins: Joins, age_ns: Counts) -> Counts:
    """Return the ages of waits; at least that of the youngest request of those who wait for their
    own.

    Such a task wakes up every half of hung_task_timeout_secs, and goes on waiting (blk_wait_io(),
    since v5.7, commit not verified): it has been off its CPU for less.

    :param age_ns: of each request, nanoseconds, or -1
    """
    own = np.array([kind is WaitKind.REQUEST for kind in waits.kind], np.bool_)
    pairs = np.flatnonzero(joins.is_proven & np.append(own, np.False_)[joins.wait])
    youngest = np.full(len(waits), np.iinfo(np.int64).max)
    np.minimum.at(youngest, joins.wait[pairs], age_ns[joins.request[pairs]])
    youngest[youngest == np.iinfo(np.int64).max] = -1
    found: Counts = np.maximum(waits.since_ns, youngest)
    return found
