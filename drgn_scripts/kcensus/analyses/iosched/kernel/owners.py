# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose requests there are: by task, cgroup, and the function that ends them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.sleepers import Sleepers
from kcensus.kernel.block.requests import State
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.tasks import tasks
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec

REQUEST_OWNERS = TableSpec(
    "request_owners",
    "Requests by task and cgroup",
    {
        "disk": Column(Unit.TEXT, "disk", Show.ALWAYS, "Name of the disk."),
        "pid": Column(
            Unit.NONE,
            "PID",
            Show.ALWAYS,
            "Task that inserted them: by the queue of BFQ or CFQ, or because it waits for its own "
            "direct I/O; -1 several, 0 unknown.",
        ),
        "task": Column(Unit.TEXT, "task", Show.ALWAYS, "Its name."),
        "cgroup": Column(Unit.TEXT, "cgroup", Show.ALWAYS, "Cgroup that the bios are charged to."),
        "owner": Column(Unit.TEXT, "ended by", Show.ALWAYS, "Function that the bios end with."),
        "kind": Column(Unit.TEXT, "kind", Show.ALWAYS, "sync or async, as the kernel sees them."),
        "requests": Column(Unit.COUNT, "requests", Show.ALWAYS, "How many."),
        "inserted": Column(Unit.COUNT, "inserted", Show.ALWAYS, "Of them not dispatched."),
        "dispatched": Column(Unit.COUNT, "in the driver", Show.ALWAYS, "Of them dispatched."),
        "bytes": Column(Unit.BYTES, "bytes", Show.ALWAYS, "Still to read or write."),
        "oldest": Column(
            Unit.SECONDS, "longest wait", Show.ALWAYS, "Of those that are not dispatched."
        ),
    },
    "Requests of a disk from one task, charged to one cgroup.",
    ("oldest", "requests"),
)
Counts = npt.NDArray[np.int64]


def request_owners(figures: Figures, asleep: Sleepers) -> Table:
    """Make the table of those whose requests there are."""
    requests = figures.requests
    waiting = np.where(requests.state == State.INSERTED, requests.waiting_ns, 0)
    frame = pd.DataFrame(
        {
            "disk": requests.disk,
            "pid": inserted_by(figures, asleep),
            "cgroup": figures.groups,
            "owner": figures.owners,
            "kind": np.where(requests.is_sync, "sync", "async"),
            "requests": 1,
            "inserted": requests.state == State.INSERTED,
            "dispatched": requests.state == State.DISPATCHED,
            "bytes": requests.bytes,
            "oldest": np.maximum(waiting, 0) / 1e9,
        }
    )
    sums = dict.fromkeys(("requests", "inserted", "dispatched", "bytes"), "sum")
    groups = frame.groupby(["disk", "pid", "cgroup", "owner", "kind"], as_index=False)
    found = groups.agg({**sums, "oldest": "max"})
    every = tasks(figures.kernel)
    names = dict(zip(every.pid.tolist(), every.comm, strict=True))
    found["task"] = [names.get(pid, "") for pid in found["pid"].tolist()]
    found["disk"] = [figures.disks[disk].name for disk in found["disk"].tolist()]
    return REQUEST_OWNERS.of(found[[*REQUEST_OWNERS.columns]])


def inserted_by(figures: Figures, asleep: Sleepers) -> Counts:
    """Return the PID of the task that inserted each request; 0 if unknown, -1 if several."""
    requests, waits, joins = figures.requests, asleep.waits, asleep.joins
    found: Counts = np.zeros(len(requests), np.int64)
    for disk, scheduler in enumerate(figures.schedulers):
        rows, queue = figures.rows(disk), requests.queue[figures.rows(disk)]
        order = np.argsort(scheduler.address)
        for pointers in requests.private if len(scheduler) else ():
            # Of a request in the driver, CFQ and BFQ keep the queue that it came from.
            place = order[
                np.searchsorted(scheduler.address, pointers[rows], sorter=order) % len(order)
            ]
            is_named = (pointers[rows] != 0) & (scheduler.address[place] == pointers[rows])
            queue = np.where((queue < 0) & is_named, place, queue)
        found[rows] = np.append(scheduler.pid, 0)[queue]
    is_own = np.array([kind is WaitKind.REQUEST for kind in waits.kind], np.bool_)
    direct = joins.is_proven & np.append(is_own, np.False_)[joins.wait]
    direct &= found[joins.request] <= 0
    found[joins.request[direct]] = waits.pid[joins.wait[direct]]
    return found
