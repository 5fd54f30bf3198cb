# SPDX-License-Identifier: LGPL-2.1-or-later
"""Assemble the answer about the requests of a kernel."""

from __future__ import annotations

import numpy as np

from kcensus.analyses.iosched.kernel.checks import checks, gaps
from kcensus.analyses.iosched.kernel.costs import costs
from kcensus.analyses.iosched.kernel.figures import Figures, Verdict
from kcensus.analyses.iosched.kernel.findings import findings
from kcensus.analyses.iosched.kernel.tables import TABLES
from kcensus.kernel.block.requests import State
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.results import Answer, Bound, Figure
from kcensus.results.tables import COUNT, SECONDS, TEXT, make_tables


def of_kernel(kernel: Kernel) -> Answer:
    """Return the answer about a kernel's requests and the tasks that wait for them.

    :raises LookupError: the debug info lacks block devices, requests or tasks
    """
    return answer(Figures(kernel))


def answer(figures: Figures) -> Answer:
    """Return the figures in the form of an answer."""
    has_any = figures.with_requests or len(figures.waits)
    return Answer(
        nothing="" if has_any else "no disk has a request queue",
        summary=summary(figures) | _tasks(figures) | costs(figures),
        tables=make_tables(TABLES, figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )


def summary(figures: Figures) -> dict[str, Figure]:
    requests = figures.requests
    inserted = figures.in_state(State.INSERTED)
    waits = requests.waiting_ns[inserted]
    asynchronous = waits[~requests.is_sync[inserted]]
    late = max((queue.late_ns for queue in figures.queues), default=0)
    until = [figures.silent_ns(disk) for disk in range(len(figures.disks))]
    delays = waits - np.array([*until, 0])[requests.disk[inserted]]
    starved = [queue for queue in figures.queues if queue.verdict is Verdict.STARVED]
    # Requests in a scheduler whose queues are unknown count as on no list.
    unknown = any(each.lacks for each in figures.schedulers)
    least = Bound.of(over=False, under=unknown)
    return {
        "requests": Figure(len(requests), COUNT, "requests"),
        "inserted": Figure(int(inserted.sum()), COUNT, "inserted, not dispatched", least),
        "dispatched": Figure(int(figures.in_state(State.DISPATCHED).sum()), COUNT, "in the driver"),
        "overdue": Figure(
            int(np.count_nonzero(requests.late_ns > 0)), COUNT, "past their expiry", least
        ),
        "worst_lateness": Figure(max(late, 0) / 1e9, SECONDS, "longest past its expiry"),
        "worst_wait": Figure(int(waits.max(initial=0)) / 1e9, SECONDS, "longest wait"),
        "worst_async_wait": Figure(
            int(asynchronous.max(initial=0)) / 1e9, SECONDS, "longest wait, async"
        ),
        "worst_async_delay": Figure(
            max(int(delays[~requests.is_sync[inserted]].max(initial=0)), 0) / 1e9,
            SECONDS,
            "async wait until last dispatch",
        ),
        "queues_starved": Figure(len(starved), COUNT, "starved queues of schedulers", least),
        "clock": Figure(figures.clock.source, TEXT, "clock of the dump"),
    }


def _tasks(figures: Figures) -> dict[str, Figure]:
    waits, joins = figures.waits, figures.joins
    linked, proven = np.unique(joins.wait), np.unique(joins.wait[joins.is_proven])
    in_buffers = sum(kind is WaitKind.XFS_BUF for kind in waits.kind)
    bound = Bound.AT_LEAST if waits.torn or figures.waiting.missing else Bound.EXACT
    longest = int(waits.since_ns.max(initial=0)) / 1e9
    return {
        "sleepers": Figure(len(waits), COUNT, "tasks in state D"),
        "longest_sleep": Figure(longest, SECONDS, "longest in state D"),
        "sleepers_behind_requests": Figure(len(linked), COUNT, "tasks behind a request", bound),
        "sleepers_proven": Figure(len(proven), COUNT, "tasks behind requests, proven", bound),
        "sleepers_xfs_buf": Figure(in_buffers, COUNT, "tasks behind an XFS buffer"),
        "sleepers_undetermined": Figure(waits.undetermined, COUNT, "tasks, object undetermined"),
    }
