# SPDX-License-Identifier: LGPL-2.1-or-later
"""Say what the requests of a kernel wait for."""

from __future__ import annotations

import numpy as np

from kcensus.analyses.iosched.kernel import tasks
from kcensus.analyses.iosched.kernel.checks import checks, gaps
from kcensus.analyses.iosched.kernel.costs import costs
from kcensus.analyses.iosched.kernel.figures import Figures, Verdict
from kcensus.analyses.iosched.kernel.findings import findings
from kcensus.analyses.iosched.kernel.owners import request_owners
from kcensus.analyses.iosched.kernel.queues import hardware_queues_table
from kcensus.analyses.iosched.kernel.sleepers import Sleepers, sleepers
from kcensus.analyses.iosched.kernel.tables import tables
from kcensus.kernel.block.requests import State
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Figure, Unit


def of_kernel(kernel: Kernel) -> Answer:
    """Return what the memory of a kernel shows about its requests, and who sleeps behind them.

    :raises LookupError: the debug info lacks block devices, requests or tasks
    """
    figures = Figures(kernel)
    return answer(figures, sleepers(figures))


def answer(figures: Figures, asleep: Sleepers) -> Answer:
    """Return what was read of a kernel in the form of a result."""
    return Answer(
        nothing="" if figures.with_requests or len(asleep) else "no disk has a queue of requests",
        summary=summary(figures) | tasks.summary(asleep) | costs(figures, asleep),
        tables=tables(figures)
        | {
            "request_owners": request_owners(figures, asleep),
            "hardware_queues": hardware_queues_table(figures),
            "sleepers": tasks.table(figures, asleep),
        },
        checks=checks(figures) + tasks.checks(figures),
        findings=findings(figures, asleep),
        gaps=gaps(figures) + tasks.gaps(figures, asleep),
    )


def summary(figures: Figures) -> dict[str, Figure]:
    """Return the totals."""
    requests, count = figures.requests, Unit.COUNT
    inserted = figures.in_state(State.INSERTED)
    waits = requests.waiting_ns[inserted]
    asynchronous = waits[~requests.is_sync[inserted]]
    late = max((queue.late_ns for queue in figures.queues), default=0)
    until = [figures.silent_ns(disk) for disk in range(len(figures.disks))]
    delays = waits - np.array([*until, 0])[requests.disk[inserted]]
    starved = [queue for queue in figures.queues if queue.verdict is Verdict.STARVED]
    return {
        "requests": Figure(len(requests), count, "requests"),
        "inserted": Figure(int(inserted.sum()), count, "inserted, not dispatched"),
        "dispatched": Figure(int(figures.in_state(State.DISPATCHED).sum()), count, "in the driver"),
        "overdue": Figure(int(np.count_nonzero(requests.late_ns > 0)), count, "past their expiry"),
        "worst_lateness": Figure(max(late, 0) / 1e9, Unit.SECONDS, "longest past its expiry"),
        "worst_wait": Figure(int(waits.max(initial=0)) / 1e9, Unit.SECONDS, "longest wait"),
        "worst_async_wait": Figure(
            int(asynchronous.max(initial=0)) / 1e9, Unit.SECONDS, "longest wait, async"
        ),
        "worst_async_delay": Figure(
            max(int(delays[~requests.is_sync[inserted]].max(initial=0)), 0) / 1e9,
            Unit.SECONDS,
            "the same, until the last dispatch",
        ),
        "queues_starved": Figure(len(starved), count, "starved queues of schedulers"),
        "clock": Figure(figures.clock.source, Unit.TEXT, "clock of the dump"),
    }
