# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of disks, queues, and requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.tasks import SLEEPERS
from kcensus.charts import ChartSpec
from kcensus.engine.memory import Mask
from kcensus.kernel.block.disks import QueueKind
from kcensus.kernel.block.requests import Place, State
from kcensus.kernel.block.schedulers.model import NEVER
from kcensus.kernel.tasks.tasks import tasks
from kcensus.results.tables import (
    ADDRESS,
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    NONE,
    SECONDS,
    TEXT,
    Column,
    TableSpec,
    address,
)

_CLASSES = ("none", "realtime", "best effort", "idle")
_AGES = {
    0.01: "below 10 ms",
    0.1: "10 to 100 ms",
    1.0: "0.1 to 1 s",
    10.0: "1 to 10 s",
    60.0: "10 to 60 s",
    float("inf"): "from 60 s",
}
"""Bins of the histogram: upper bounds in seconds, and labels."""

_DISK = Column(TEXT, "disk", ALWAYS, "Name of the disk.")


def names_of(codes: npt.NDArray[np.integer], name: Callable[[int], str]) -> npt.NDArray[np.object_]:
    """Return the name of each code; ``name`` is called once per distinct code."""
    found, inverse = np.unique(codes, return_inverse=True)
    names = np.array([name(code) for code in found.tolist()], np.object_)
    return names[inverse]


def _seconds(nanoseconds: int) -> float:
    return max(nanoseconds, 0) / 1e9


def _disks(figures: Figures) -> list[dict[str, object]]:
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
    return rows


DISKS = TableSpec(
    "disks",
    "Disks with requests or a scheduler",
    {
        "disk": _DISK,
        "device": Column(TEXT, "number", DATA, "Major and minor number."),
        "scheduler": Column(TEXT, "scheduler", ALWAYS, "I/O scheduler, or none."),
        "queue": Column(TEXT, "queue", DATA, "mq: blk-mq; single: legacy queue; bio."),
        "requests": Column(COUNT, "requests", ALWAYS, "Allocated requests."),
        "inserted": Column(COUNT, "inserted", ALWAYS, "In the scheduler, or on a list before it."),
        "dispatched": Column(COUNT, "in the driver", ALWAYS, "Dispatched to the driver."),
        "overdue": Column(COUNT, "overdue", ALWAYS, "Past the expiry of their scheduler."),
        "oldest": Column(SECONDS, "longest wait", ALWAYS, "Longest wait for dispatch."),
        "in_driver": Column(SECONDS, "longest in driver", help="Longest time since dispatch."),
        "tags_used": Column(COUNT, "tags used", help="Driver tags in use."),
        "tags": Column(COUNT, "tags", help="Tags of the driver."),
        "frozen": Column(COUNT, "frozen", help="mq_freeze_depth: no request enters until 0."),
        "quiesced": Column(
            COUNT, "quiesced", help="quiesce_depth: no dispatch; -1 if unknown.", unknown=(-1,)
        ),
        "stopped": Column(COUNT, "stopped", help="Hardware queues that the driver stopped."),
        "on": Column(TEXT, "on", help="Disks at the bottom of the stack."),
        "address": address("struct gendisk"),
    },
    "A disk.",
    ("requests", "disk"),
    key=("disk",),
    series=("requests", "overdue"),
    rows=_disks,
)


def _queues(figures: Figures) -> list[dict[str, object]]:
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
    return rows


SCHEDULER_QUEUES = TableSpec(
    "scheduler_queues",
    "Queues of schedulers with requests",
    {
        "disk": _DISK,
        "queue": Column(TEXT, "queue", ALWAYS, "Name in the messages of the scheduler: cfq1618SN."),
        "kind": Column(TEXT, "kind", ALWAYS, "async if all or most requests are async."),
        "requests": Column(COUNT, "requests", ALWAYS, "Number of requests."),
        "overdue": Column(COUNT, "overdue", ALWAYS, "Requests past their expiry."),
        "late": Column(SECONDS, "late by", ALWAYS, "Time of the first request past its expiry."),
        "verdict": Column(
            TEXT,
            "verdict",
            ALWAYS,
            "starved: later requests of other queues were dispatched since; device: the driver "
            "still has earlier requests, or each other queue had one turn; overdue: undetermined.",
        ),
        "served": Column(
            SECONDS,
            "overtaken for",
            ALWAYS,
            "From the first expiry to the last dispatch of a later request of another queue.",
        ),
        "times": Column(NONE, "times expiry", ALWAYS, "Time overtaken, divided by the expiry."),
        "served_since": Column(COUNT, "overtakers", help="Later requests still in the driver."),
        "expiry": Column(SECONDS, "expiry", help="Time a request may wait; 0: no limit."),
        "dispatched": Column(
            COUNT,
            "dispatched",
            help="In the driver, by the scheduler's count; -1 if unknown.",
            unknown=(-1,),
        ),
        "in_service": Column(TEXT, "in service", help="Whether the scheduler serves it now."),
        "pid": Column(
            NONE, "PID", help="Task of the queue; -1 several, 0 unknown.", unknown=(-1, 0)
        ),
        "object_type": Column(TEXT, "type", DATA, "C type of the queue or list."),
        "object": Column(ADDRESS, "object", DATA, "Address of the queue or list head."),
    },
    "A queue of an I/O scheduler.",
    ("late", "disk", "queue"),
    rows=_queues,
)


def _requests(figures: Figures) -> dict[str, npt.ArrayLike]:
    requests, operations = figures.requests, figures.requests.operations
    count = len(requests)
    labels = np.full(count, "", np.object_)
    for disk, scheduler in enumerate(figures.schedulers):
        rows = figures.rows(disk)
        labels[rows] = np.array([*scheduler.label, ""], np.object_)[requests.queue[rows]]
    is_gone = requests.state >= State.DISPATCHED
    priority = (requests.priority_class & 3) << 3 | requests.priority_level
    late = np.where(requests.late_ns == NEVER, 0, requests.late_ns)
    return {
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
    }


def state_name(state: int) -> str:
    """Return the word for a request's state in tables."""
    return State(state).name.lower()


def _place_name(place: int) -> str:
    return Place(place).name.lower().replace("_", " ") if place else ""


def _priority_name(priority: int) -> str:
    kind, level = priority >> 3, priority & 7
    return f"{_CLASSES[kind]} {level}" if kind else _CLASSES[0]


REQUESTS = TableSpec(
    "requests",
    "Requests",
    {
        "disk": _DISK,
        "operation": Column(TEXT, "operation", ALWAYS, "read, write, flush or another."),
        "flags": Column(TEXT, "flags", help="REQ_* flags in lower case."),
        "kind": Column(TEXT, "kind", ALWAYS, "sync or async, as the kernel sees the request."),
        "state": Column(TEXT, "state", ALWAYS, "allocated, inserted, dispatched or completed."),
        "place": Column(TEXT, "on list", ALWAYS, "List with the request."),
        "queue": Column(TEXT, "queue", ALWAYS, "Queue of the scheduler."),
        "waiting": Column(SECONDS, "waiting", ALWAYS, "Time since insertion; 0 once dispatched."),
        "late": Column(SECONDS, "late by", help="Time past the expiry."),
        "in_driver": Column(
            SECONDS,
            "in driver",
            help="Time since dispatch; a lower bound if known from the timer.",
        ),
        "age": Column(SECONDS, "age", help="Time since allocation; -1 if unknown.", unknown=(-1,)),
        "sector": Column(NONE, "sector", help="First sector in the disk."),
        "bytes": Column(BYTES, "bytes", help="Remaining bytes."),
        "priority": Column(TEXT, "priority", help="I/O priority: class and level."),
        "tag": Column(NONE, "tag", DATA, "Tag of the driver, or -1."),
        "sched_tag": Column(NONE, "sched tag", DATA, "Tag of the scheduler, or -1."),
        "owner": Column(TEXT, "ended by", help="bio.bi_end_io: shows the submitter."),
        "file": Column(TEXT, "file", help="File of the page cache that is read or written."),
        "cgroup": Column(TEXT, "cgroup", help="Cgroup charged for the bio."),
        "address": address("struct request"),
    },
    "An allocated request.",
    ("waiting", "disk", "sector"),
    rows=_requests,
)


def _ages(figures: Figures) -> list[dict[str, object]]:
    requests = figures.requests
    bounds, names = [*_AGES], [*_AGES.values()]
    bound = np.searchsorted(np.array(bounds), requests.age_ns / 1e9, side="right")
    keys = np.stack([bound, requests.disk, requests.state.astype(np.int64)], axis=1)
    # The age of other requests is unknown.
    keys = keys[requests.age_ns >= 0]
    found, count = np.unique(keys, axis=0, return_counts=True)
    return [
        {
            "age": names[age],
            "disk": figures.disks[disk].name,
            "state": state_name(state),
            "up_to": bounds[age],
            "requests": number,
        }
        for (age, disk, state), number in zip(found.tolist(), count.tolist(), strict=True)
    ]


AGES = TableSpec(
    "request_ages",
    "Requests by age",
    {
        "age": Column(TEXT, "age", ALWAYS, "Time since allocation."),
        "disk": _DISK,
        "state": Column(TEXT, "state", ALWAYS, "State of the requests."),
        "up_to": Column(SECONDS, "younger than", DATA, "Upper bound of the age."),
        "requests": Column(COUNT, "requests", ALWAYS, "Number of requests."),
    },
    "Requests of a disk, of one state and age.",
    rows=_ages,
)


def _tunables(figures: Figures) -> list[dict[str, object]]:
    return [
        {"disk": disk.name, "scheduler": disk.scheduler, "name": name, "value": value}
        for disk, scheduler in zip(figures.disks, figures.schedulers, strict=True)
        for name, value in sorted(scheduler.tunables.items())
    ]


TUNABLES = TableSpec(
    "tunables",
    "Tunables of schedulers",
    {
        "disk": _DISK,
        "scheduler": Column(TEXT, "scheduler", ALWAYS, "I/O scheduler of the disk."),
        "name": Column(TEXT, "tunable", ALWAYS, "File in /sys/block/DISK/queue/iosched."),
        "value": Column(NONE, "value", ALWAYS, "In the unit of that file."),
    },
    "A tunable of the I/O scheduler of a disk.",
    rows=_tunables,
)


def _owners(figures: Figures) -> pd.DataFrame:
    requests = figures.requests
    is_inserted = requests.state == State.INSERTED
    frame = pd.DataFrame(
        {
            "disk": requests.disk,
            "pid": figures.inserted_by,
            "cgroup": figures.groups,
            "owner": figures.owners,
            "kind": np.where(requests.is_sync, "sync", "async"),
            "requests": 1,
            "inserted": is_inserted,
            "dispatched": requests.state == State.DISPATCHED,
            "bytes": requests.bytes,
            "oldest": np.maximum(np.where(is_inserted, requests.waiting_ns, 0), 0) / 1e9,
        }
    )
    sums = dict.fromkeys(("requests", "inserted", "dispatched", "bytes"), "sum")
    groups = frame.groupby(["disk", "pid", "cgroup", "owner", "kind"], as_index=False)
    found = groups.agg({**sums, "oldest": "max"})
    every = tasks(figures.kernel)
    names = dict(zip(every.pid.tolist(), every.comm, strict=True))
    found["task"] = [names.get(pid, "") for pid in found["pid"].tolist()]
    found["disk"] = [figures.disks[disk].name for disk in found["disk"].tolist()]
    return found


OWNERS = TableSpec(
    "request_owners",
    "Requests by task and cgroup",
    {
        "disk": _DISK,
        "pid": Column(
            NONE,
            "PID",
            ALWAYS,
            "Task that inserted the requests, known from queues of BFQ or CFQ, or from direct I/O; "
            "-1 several, 0 unknown.",
            unknown=(-1, 0),
        ),
        "task": Column(TEXT, "task", ALWAYS, "Name of the task."),
        "cgroup": Column(TEXT, "cgroup", ALWAYS, "Cgroup charged for the bios."),
        "owner": Column(TEXT, "ended by", ALWAYS, "bio.bi_end_io of the bios."),
        "kind": Column(TEXT, "kind", ALWAYS, "sync or async, as the kernel sees the requests."),
        "requests": Column(COUNT, "requests", ALWAYS, "Number of requests."),
        "inserted": Column(COUNT, "inserted", ALWAYS, "Not dispatched."),
        "dispatched": Column(COUNT, "in the driver", ALWAYS, "Dispatched to the driver."),
        "bytes": Column(BYTES, "bytes", ALWAYS, "Remaining bytes."),
        "oldest": Column(SECONDS, "longest wait", ALWAYS, "Longest wait for dispatch."),
    },
    "Requests of a disk from one task, charged to one cgroup.",
    ("oldest", "requests"),
    rows=_owners,
)


def _hardware_queues(figures: Figures) -> dict[str, npt.ArrayLike]:
    hardware, requests = figures.hardware, figures.requests

    def count(wanted: Mask) -> npt.NDArray[np.int64]:
        rows = requests.hardware_queue[wanted & (requests.hardware_queue >= 0)]
        return np.bincount(rows, minlength=len(hardware.address))

    tags, sched_tags = map(hardware.tag_sets.rows, (hardware.tags, hardware.sched_tags))
    used, depth = (np.append(hardware.tag_sets.used, 0), np.append(hardware.tag_sets.depth, 0))
    names = np.array([*(disk.name for disk in figures.disks), ""], np.object_)
    return {
        "disk": names[hardware.disk],
        "number": hardware.number,
        "requests": count(requests.hardware_queue >= 0),
        "software": count(requests.place == Place.SOFTWARE_QUEUE),
        "on_dispatch": count(requests.place == Place.DISPATCH),
        "dispatched": count(requests.state == State.DISPATCHED),
        "tags_used": used[tags],
        "tags": depth[tags],
        "sched_tags_used": used[sched_tags],
        "sched_tags": depth[sched_tags],
        "stopped": np.where(hardware.is_stopped, "yes", "no"),
        "address": hardware.address,
    }


HARDWARE_QUEUES = TableSpec(
    "hardware_queues",
    "Hardware queues",
    {
        "disk": _DISK,
        "number": Column(NONE, "queue", ALWAYS, "As in /sys/block/DISK/mq."),
        "requests": Column(COUNT, "requests", ALWAYS, "Requests allocated for it."),
        "software": Column(COUNT, "in software queues", ALWAYS, "On blk_mq_ctx lists of CPUs."),
        "on_dispatch": Column(
            COUNT,
            "on dispatch list",
            ALWAYS,
            "Taken from the scheduler, refused by the driver.",
        ),
        "dispatched": Column(COUNT, "in the driver", ALWAYS, "Dispatched to the driver."),
        "tags_used": Column(COUNT, "tags used", ALWAYS, "Driver tags in use."),
        "tags": Column(COUNT, "tags", ALWAYS, "Driver tags; queues and disks may share them."),
        "sched_tags_used": Column(COUNT, "sched tags used", ALWAYS, "Scheduler tags in use."),
        "sched_tags": Column(COUNT, "sched tags", ALWAYS, "Tags of the scheduler, or 0."),
        "stopped": Column(TEXT, "stopped", ALWAYS, "Whether the driver stopped it."),
        "address": address("struct blk_mq_hw_ctx", "hctx"),
    },
    "A hardware queue of a disk.",
    ("requests", "disk", "number"),
    rows=_hardware_queues,
)

TABLES = (DISKS, SCHEDULER_QUEUES, REQUESTS, AGES, TUNABLES, OWNERS, HARDWARE_QUEUES, SLEEPERS)

CHARTS = (
    ChartSpec(
        "request_ages",
        "request_ages",
        "Requests by age",
        ("requests",),
        "age",
        is_ordered=True,
        parts="state",
        measure="requests",
    ),
)
