# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of disks, queues of schedulers, and requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.kernel.block.disks import QueueKind
from kcensus.kernel.block.requests import Place, State
from kcensus.kernel.block.schedulers.model import NEVER
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec

_CLASSES = ("none", "realtime", "best effort", "idle")
_AGES = {
    0.01: "below 10 ms",
    0.1: "10 to 100 ms",
    1.0: "0.1 to 1 s",
    10.0: "1 to 10 s",
    60.0: "10 to 60 s",
    float("inf"): "from 60 s",
}
"""Steps of the histogram: upper bounds in seconds."""

_DISK = Column(Unit.TEXT, "disk", Show.ALWAYS, "Name of the disk.")

DISKS = TableSpec(
    "disks",
    "Disks with requests or a scheduler",
    {
        "disk": _DISK,
        "device": Column(Unit.TEXT, "number", Show.DATA, "Major and minor number."),
        "scheduler": Column(Unit.TEXT, "scheduler", Show.ALWAYS, "I/O scheduler, or none."),
        "queue": Column(Unit.TEXT, "queue", Show.DATA, "mq: blk-mq; single: legacy queue; bio."),
        "requests": Column(Unit.COUNT, "requests", Show.ALWAYS, "All that are allocated."),
        "inserted": Column(
            Unit.COUNT, "inserted", Show.ALWAYS, "In the scheduler, or on another list before it."
        ),
        "dispatched": Column(Unit.COUNT, "in the driver", Show.ALWAYS, "Dispatched to the driver."),
        "overdue": Column(
            Unit.COUNT, "overdue", Show.ALWAYS, "Past the expiry of their scheduler."
        ),
        "oldest": Column(
            Unit.SECONDS, "longest wait", Show.ALWAYS, "Of a request that is not dispatched."
        ),
        "in_driver": Column(Unit.SECONDS, "longest in driver", help="Since it was dispatched."),
        "tags_used": Column(Unit.COUNT, "tags used", help="Tags of the driver in use."),
        "tags": Column(Unit.COUNT, "tags", help="Tags of the driver."),
        "frozen": Column(Unit.COUNT, "frozen", help="mq_freeze_depth: no request enters until 0."),
        "quiesced": Column(
            Unit.COUNT, "quiesced", help="quiesce_depth: nothing is dispatched; -1 if unknown."
        ),
        "stopped": Column(Unit.COUNT, "stopped", help="Hardware queues that the driver stopped."),
        "on": Column(Unit.TEXT, "on", help="Disks at the bottom of its stack."),
        "address": Column(
            Unit.ADDRESS, "gendisk", Show.DATA, "struct gendisk pointer.", type="struct gendisk"
        ),
    },
    "A disk.",
    ("requests", "disk"),
    key=("disk",),
    series=("requests", "overdue"),
)

SCHEDULER_QUEUES = TableSpec(
    "scheduler_queues",
    "Queues of schedulers with requests",
    {
        "disk": _DISK,
        "queue": Column(
            Unit.TEXT, "queue", Show.ALWAYS, "As its scheduler's traces call it, such as cfq1618SN."
        ),
        "kind": Column(
            Unit.TEXT, "kind", Show.ALWAYS, "async if it is for asynchronous requests, or most are."
        ),
        "requests": Column(Unit.COUNT, "requests", Show.ALWAYS, "Requests in it."),
        "overdue": Column(Unit.COUNT, "overdue", Show.ALWAYS, "Past their expiry."),
        "late": Column(
            Unit.SECONDS, "late by", Show.ALWAYS, "Past expiry, of the first to expire."
        ),
        "verdict": Column(
            Unit.TEXT,
            "verdict",
            Show.ALWAYS,
            "starved: later requests of others were dispatched since; device: the driver has not "
            "finished those it had, or each other queue had one turn; overdue: not known which.",
        ),
        "served": Column(
            Unit.SECONDS,
            "overtaken for",
            Show.ALWAYS,
            "From its expiry until a later request of another queue was dispatched last.",
        ),
        "times": Column(Unit.NONE, "times expiry", Show.ALWAYS, "The same, in times the expiry."),
        "served_since": Column(
            Unit.COUNT, "by", help="Such requests that are still in the driver."
        ),
        "expiry": Column(Unit.SECONDS, "expiry", help="How long a request may wait; 0 for ever."),
        "dispatched": Column(
            Unit.COUNT, "dispatched", help="In the driver, by the scheduler's count; -1 if unknown."
        ),
        "in_service": Column(Unit.TEXT, "in service", help="Whether the scheduler serves it now."),
        "pid": Column(Unit.NONE, "PID", help="Task that it was made for; -1 several, 0 unknown."),
        "object_type": Column(Unit.TEXT, "type", Show.DATA, "C type of its structure or list."),
        "object": Column(Unit.ADDRESS, "object", Show.DATA, "Its structure, or head of its list."),
    },
    "A queue of an I/O scheduler.",
    ("late", "disk", "queue"),
)

REQUESTS = TableSpec(
    "requests",
    "Requests",
    {
        "disk": _DISK,
        "operation": Column(Unit.TEXT, "operation", Show.ALWAYS, "What it does."),
        "flags": Column(Unit.TEXT, "flags", help="REQ_* flags in lower case."),
        "kind": Column(Unit.TEXT, "kind", Show.ALWAYS, "sync or async, as the kernel sees it."),
        "state": Column(
            Unit.TEXT, "state", Show.ALWAYS, "allocated, inserted, dispatched or completed."
        ),
        "place": Column(Unit.TEXT, "on list", Show.ALWAYS, "List that it is on."),
        "queue": Column(Unit.TEXT, "queue", Show.ALWAYS, "Queue of the scheduler."),
        "waiting": Column(
            Unit.SECONDS, "waiting", Show.ALWAYS, "Since it was inserted; 0 once dispatched."
        ),
        "late": Column(Unit.SECONDS, "late by", help="Past the expiry of its scheduler."),
        "in_driver": Column(
            Unit.SECONDS,
            "in driver",
            help="Since it was dispatched; at least, where only its timer shows that.",
        ),
        "age": Column(Unit.SECONDS, "age", help="Since it was allocated; -1 if unknown."),
        "sector": Column(Unit.NONE, "sector", help="First sector in the disk."),
        "bytes": Column(Unit.BYTES, "bytes", help="Still to read or write."),
        "priority": Column(Unit.TEXT, "priority", help="I/O priority: class and level."),
        "tag": Column(Unit.NONE, "tag", Show.DATA, "Tag of the driver, or -1."),
        "sched_tag": Column(
            Unit.NONE, "scheduler's tag", Show.DATA, "Tag of the scheduler, or -1."
        ),
        "owner": Column(
            Unit.TEXT, "ended by", help="Function that its bio ends with: whose request it is."
        ),
        "file": Column(Unit.TEXT, "file", help="File whose page cache it reads into or writes."),
        "cgroup": Column(Unit.TEXT, "cgroup", help="Cgroup that its bio is charged to."),
        "address": Column(
            Unit.ADDRESS, "request", Show.DATA, "struct request pointer.", type="struct request"
        ),
    },
    "An allocated request.",
    ("waiting", "disk", "sector"),
)

AGES = TableSpec(
    "request_ages",
    "Requests by age",
    {
        "age": Column(Unit.TEXT, "age", Show.ALWAYS, "Since they were allocated."),
        "disk": _DISK,
        "state": Column(Unit.TEXT, "state", Show.ALWAYS, "How far they got."),
        "up_to": Column(Unit.SECONDS, "younger than", Show.DATA, "The same as a number."),
        "requests": Column(Unit.COUNT, "requests", Show.ALWAYS, "How many."),
    },
    "Requests of a disk, of one state and age.",
)

TUNABLES = TableSpec(
    "tunables",
    "Tunables of schedulers",
    {
        "disk": _DISK,
        "scheduler": Column(Unit.TEXT, "scheduler", Show.ALWAYS, "I/O scheduler of the disk."),
        "name": Column(Unit.TEXT, "tunable", Show.ALWAYS, "File in /sys/block/DISK/queue/iosched."),
        "value": Column(Unit.NONE, "value", Show.ALWAYS, "In the unit of that file."),
    },
    "A tunable of the I/O scheduler of a disk.",
)

TABLES = (DISKS, SCHEDULER_QUEUES, REQUESTS, AGES, TUNABLES)


def tables(figures: Figures) -> dict[str, Table]:
    """Make the tables."""
    return {
        "disks": DISKS.of(_disks(figures)),
        "scheduler_queues": SCHEDULER_QUEUES.of(_queues(figures)),
        "requests": REQUESTS.of(_requests(figures)),
        "request_ages": AGES.of(_ages(figures)),
        "tunables": TUNABLES.of(_tunables(figures)),
    }


def _frame(spec: TableSpec, rows: list[dict[str, object]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*spec.columns])


def names_of(codes: npt.NDArray[np.integer], name: Callable[[int], str]) -> npt.NDArray[np.object_]:
    """Return the name of each code, which is made once for all of its rows."""
    found, inverse = np.unique(codes, return_inverse=True)
    names = np.array([name(code) for code in found.tolist()], np.object_)
    return names[inverse]


def _seconds(nanoseconds: int) -> float:
    return max(nanoseconds, 0) / 1e9


def _disks(figures: Figures) -> pd.DataFrame:
    requests, hardware = figures.requests, figures.hardware
    waiting = np.where(requests.state <= State.INSERTED, requests.waiting_ns, -1)
    rows: list[dict[str, object]] = []
    for row, disk in enumerate(figures.disks):
        own = figures.rows(row)
        below = figures.stacks.bottom(row) - {row}
        if disk.kind == QueueKind.BIO and not below:
            continue
        used, tags = figures.tags(row)
        rows.append(
            {
                "disk": disk.name,
                "device": disk.device,
                "scheduler": disk.scheduler,
                "queue": disk.kind.value,
                "requests": len(own),
                "inserted": int(np.count_nonzero(requests.state[own] == State.INSERTED)),
                "dispatched": int(np.count_nonzero(requests.state[own] == State.DISPATCHED)),
                "overdue": int(np.count_nonzero(requests.late_ns[own] > 0)),
                "oldest": _seconds(int(waiting[own].max(initial=0))),
                "in_driver": _seconds(int(requests.in_driver_ns[own].max(initial=0))),
                "tags_used": used,
                "tags": tags,
                "frozen": disk.freeze_depth,
                "quiesced": disk.quiesce_depth,
                "stopped": int(np.count_nonzero(hardware.is_stopped[hardware.disk == row])),
                "on": ", ".join(sorted(figures.disks[each].name for each in below)),
                "address": disk.address,
            }
        )
    return _frame(DISKS, rows)


def _queues(figures: Figures) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for queue in figures.queues:
        scheduler = figures.schedulers[queue.disk]
        rows.append(
            {
                "disk": figures.disks[queue.disk].name,
                "queue": figures.label(queue),
                "kind": "async" if figures.is_async(queue) else "sync",
                "requests": len(queue.requests),
                "overdue": queue.overdue,
                "late": _seconds(queue.late_ns) if queue.late_ns != NEVER else 0.0,
                "times": round(figures.times(queue), 1),
                "verdict": queue.verdict.value,
                "served_since": len(queue.overtakers),
                "served": _seconds(queue.served_ns),
                "expiry": _seconds(figures.expiry_ns(queue)),
                "dispatched": int(scheduler.dispatched[queue.row]),
                "in_service": "yes" if scheduler.is_in_service[queue.row] else "no",
                "pid": int(scheduler.pid[queue.row]),
                "object_type": scheduler.type,
                "object": int(scheduler.address[queue.row]),
            }
        )
    return _frame(SCHEDULER_QUEUES, rows)


def _requests(figures: Figures) -> pd.DataFrame:
    requests, operations = figures.requests, figures.requests.operations
    count = len(requests)
    labels = np.full(count, "", np.object_)
    for disk, scheduler in enumerate(figures.schedulers):
        rows = figures.rows(disk)
        labels[rows] = np.array([*scheduler.label, ""], np.object_)[requests.queue[rows]]
    is_gone = requests.state >= State.DISPATCHED
    priority = (requests.priority_class & 3) << 3 | requests.priority_level
    late = np.where(requests.late_ns == NEVER, 0, requests.late_ns)
    return pd.DataFrame(
        {
            "disk": names_of(requests.disk, lambda row: figures.disks[row].name),
            "operation": names_of(requests.operation, operations.name),
            "flags": names_of(requests.flags, operations.flag_text),
            "kind": np.where(requests.is_sync, "sync", "async"),
            "state": names_of(requests.state, state_name),
            "place": names_of(requests.place, _place_name),
            "queue": labels,
            "waiting": np.where(is_gone, 0, np.maximum(requests.waiting_ns, 0)) / 1e9,
            "late": np.maximum(late, 0) / 1e9,
            "in_driver": np.maximum(requests.in_driver_ns, 0) / 1e9,
            "age": np.where(requests.age_ns < 0, -1e9, requests.age_ns) / 1e9,
            "sector": requests.sector,
            "bytes": requests.bytes,
            "priority": names_of(priority, _priority_name),
            "tag": requests.tag,
            "sched_tag": requests.sched_tag,
            "owner": figures.owners if count else [],
            "file": figures.files if count else [],
            "cgroup": figures.groups if count else [],
            "address": requests.address,
        },
        columns=[*REQUESTS.columns],
    )


def state_name(state: int) -> str:
    """Return how tables call a state of a request."""
    return State(state).name.lower()


def _place_name(place: int) -> str:
    return Place(place).name.lower().replace("_", " ") if place else ""


def _priority_name(priority: int) -> str:
    kind, level = priority >> 3, priority & 7
    return f"{_CLASSES[kind]} {level}" if kind else _CLASSES[0]


def _ages(figures: Figures) -> pd.DataFrame:
    requests = figures.requests
    bounds, names = [*_AGES], [*_AGES.values()]
    bound = np.searchsorted(np.array(bounds), requests.age_ns / 1e9, side="right")
    keys = np.stack([bound, requests.disk, requests.state.astype(np.int64)], axis=1)
    # The age of others is unknown.
    keys = keys[requests.age_ns >= 0]
    found, count = np.unique(keys, axis=0, return_counts=True)
    return _frame(
        AGES,
        [
            {
                "age": names[age],
                "disk": figures.disks[disk].name,
                "state": state_name(state),
                "up_to": bounds[age],
                "requests": number,
            }
            for (age, disk, state), number in zip(found.tolist(), count.tolist(), strict=True)
        ],
    )


def _tunables(figures: Figures) -> pd.DataFrame:
    return _frame(
        TUNABLES,
        [
            {"disk": disk.name, "scheduler": disk.scheduler, "name": name, "value": value}
            for disk, scheduler in zip(figures.disks, figures.schedulers, strict=True)
            for name, value in sorted(scheduler.tunables.items())
        ],
    )
