# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of disks, queues, and requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.iosched.kernel.figures import Figures, Queue
from kcensus.analyses.iosched.kernel.tasks import SLEEPERS
from kcensus.charts import ChartSpec
from kcensus.engine.memory import Floats, Mask, Numbers, Words
from kcensus.kernel.block.disks import Disk, QueueKind
from kcensus.kernel.block.requests import Place, State
from kcensus.kernel.block.schedulers.model import NEVER, SchedulerQueues
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


def names_of(codes: npt.NDArray[np.integer], name: Callable[[int], str]) -> npt.NDArray[np.object_]:
    """Return the name of each code; ``name`` is called once per distinct code."""
    found, inverse = np.unique(codes, return_inverse=True)
    names = np.array([name(code) for code in found.tolist()], np.object_)
    return names[inverse]


_DISK = Column(TEXT, "disk", ALWAYS, "Name of the disk.")


def _seconds(nanoseconds: int) -> float:
    return max(nanoseconds, 0) / 1e9


class _Disk(NamedTuple):
    figures: Figures
    row: int

    @property
    def disk(self) -> Disk:
        return self.figures.disks[self.row]

    @property
    def own(self) -> Numbers:
        """Rows of its requests."""
        return self.figures.rows(self.row)

    @property
    def bottom(self) -> frozenset[int]:
        """Rows of the disks at the bottom of its stack."""
        return self.figures.stacks.bottom(self.row) - {self.row}

    def count(self, state: State) -> int:
        return int(np.count_nonzero(self.figures.requests.state[self.own] == state))

    @property
    def stopped(self) -> int:
        hardware = self.figures.hardware
        return int(np.count_nonzero(hardware.is_stopped[hardware.disk == self.row]))

    @property
    def oldest(self) -> float:
        requests, own = self.figures.requests, self.own
        waiting = requests.waiting_ns[own][requests.state[own] <= State.INSERTED]
        return _seconds(int(waiting.max(initial=0)))


def _disks(figures: Figures) -> list[_Disk]:
    rows = [_Disk(figures, row) for row in range(len(figures.disks))]
    return [row for row in rows if row.disk.kind != QueueKind.BIO or row.bottom]


DISKS = TableSpec("disks", "Disks with requests or a scheduler", {
    "disk": replace(_DISK, get="disk.name"),
    "device": Column(TEXT, "number", DATA, "Major and minor number.", "disk.device"),
    "scheduler": Column(TEXT, "", ALWAYS, "I/O scheduler, or none.", "disk.scheduler"),
    "queue": Column(TEXT, "", DATA, "mq: blk-mq; single: legacy queue; bio.", "disk.kind.value"),
    "requests": Column(COUNT, "", ALWAYS, "Allocated requests.", lambda row: len(row.own)),
    "inserted": Column(COUNT, "", ALWAYS, "In the scheduler, or on a list before it.",
        lambda row: row.count(State.INSERTED)),
    "dispatched": Column(COUNT, "in the driver", ALWAYS, "Dispatched to the driver.",
        lambda row: row.count(State.DISPATCHED)),
    "overdue": Column(COUNT, "", ALWAYS, "Past the expiry of their scheduler.",
        lambda row: int(np.count_nonzero(row.figures.requests.late_ns[row.own] > 0))),
    "oldest": Column(SECONDS, "longest wait", ALWAYS, "Longest wait for dispatch."),
    "in_driver": Column(SECONDS, "longest in driver", help="Longest time since dispatch.",
        get=lambda row: _seconds(int(row.figures.requests.in_driver_ns[row.own].max(initial=0)))),
    "tags_used": Column(COUNT, help="Driver tags in use.",
        get=lambda row: row.figures.tags(row.row)[0]),
    "tags": Column(COUNT, help="Tags of the driver; a legacy queue (up to 4.20) has none.",
        get=lambda row: row.figures.tags(row.row)[1]),
    "frozen": Column(COUNT, help="mq_freeze_depth: no request enters until 0.",
        get="disk.freeze_depth"),
    "quiesced": Column(COUNT, help="quiesce_depth: no dispatch; -1 if unknown.",
        get="disk.quiesce_depth", unknown=(-1,)),
    "stopped": Column(COUNT, help="Hardware queues that the driver stopped."),
    "on": Column(TEXT, help="Disks at the bottom of the stack.",
        get=lambda row: ", ".join(sorted(row.figures.disks[each].name for each in row.bottom))),
    "address": address("struct gendisk", get="disk.address"),
}, "A disk.", ("requests", "disk"), key=("disk",), series=("requests", "overdue"),
    rows=_disks)  # fmt: skip


class _Queue(NamedTuple):
    figures: Figures
    queue: Queue

    @property
    def scheduler(self) -> SchedulerQueues:
        return self.figures.schedulers[self.queue.disk]


SCHEDULER_QUEUES = TableSpec("scheduler_queues", "Queues of schedulers with requests", {
    "disk": replace(_DISK, get=lambda row: row.figures.disks[row.queue.disk].name),
    "queue": Column(TEXT, "", ALWAYS, "Name in the messages of the scheduler: cfq1618SN.",
        lambda row: row.figures.label(row.queue)),
    "kind": Column(TEXT, "", ALWAYS, "async if all or most requests are async.",
        lambda row: "async" if row.figures.is_async(row.queue) else "sync"),
    "requests": Column(COUNT, "", ALWAYS, "Number of requests.",
        lambda row: len(row.queue.requests)),
    "overdue": Column(COUNT, "", ALWAYS, "Requests past their expiry.", "queue.overdue"),
    "late": Column(SECONDS, "late by", ALWAYS, "Time of the first request past its expiry.",
        lambda row: _seconds(row.queue.late_ns) if row.queue.late_ns != NEVER else 0.0),
    "verdict": Column(TEXT, "", ALWAYS,
        "starved: later requests of other queues were dispatched since; device: the driver "
        "still has earlier requests, or each other queue had one turn; overdue: undetermined.",
        "queue.verdict.value"),
    "served": Column(SECONDS, "overtaken for", ALWAYS,
        "From the first expiry to the last dispatch of a later request of another queue.",
        lambda row: _seconds(row.queue.served_ns)),
    "pid": Column(NONE, "PID", ALWAYS, "Task of the queue; -1 several, 0 unknown.",
        lambda row: int(row.scheduler.pid[row.queue.row]), unknown=(-1, 0)),
    "times": Column(NONE, "times expiry", help="Time overtaken, divided by the expiry.",
        get=lambda row: round(row.figures.times(row.queue), 1)),
    "served_since": Column(COUNT, "overtakers", help="Later requests still in the driver.",
        get=lambda row: len(row.queue.overtakers)),
    "expiry": Column(SECONDS, help="Time a request may wait; 0: no limit.",
        get=lambda row: _seconds(row.figures.expiry_ns(row.queue))),
    "dispatched": Column(COUNT, help="In the driver, by the scheduler's count; -1 if unknown.",
        get=lambda row: int(row.scheduler.dispatched[row.queue.row]), unknown=(-1,)),
    "in_service": Column(TEXT, help="Whether the scheduler serves it now.",
        get=lambda row: "yes" if row.scheduler.is_in_service[row.queue.row] else "no"),
    "object_type": Column(TEXT, "type", DATA, "C type of the queue or list.", "scheduler.type"),
    "object": Column(ADDRESS, "", DATA, "Address of the queue or list head.",
        lambda row: int(row.scheduler.address[row.queue.row])),
}, "A queue of an I/O scheduler.", ("late", "disk", "queue"),
    rows=lambda f: [_Queue(f, queue) for queue in f.queues])  # fmt: skip


def _labels(figures: Figures) -> npt.NDArray[np.object_]:
    """Return the label of the queue of each request; empty without one."""
    labels, queue = np.full(len(figures.requests), "", np.object_), figures.requests.queue
    for disk, scheduler in enumerate(figures.schedulers):
        rows = figures.rows(disk)
        labels[rows] = np.array([*scheduler.label, ""], np.object_)[queue[rows]]
    return labels


def _waiting(figures: Figures) -> Floats:
    requests = figures.requests
    is_gone = requests.state >= State.DISPATCHED
    return np.where(is_gone, 0, np.maximum(requests.waiting_ns, 0)) / 1e9


def _late(figures: Figures) -> Floats:
    late = figures.requests.late_ns
    return np.maximum(np.where(late == NEVER, 0, late), 0) / 1e9


def _age(figures: Figures) -> Floats:
    age = figures.requests.age_ns
    return np.where(age < 0, -1e9, age) / 1e9


def _priority(figures: Figures) -> npt.NDArray[np.object_]:
    requests = figures.requests
    codes = (requests.priority_class & 3) << 3 | requests.priority_level
    return names_of(codes, _priority_name)


def state_name(state: int) -> str:
    """Return the word for a request's state in tables."""
    return State(state).name.lower()


def _priority_name(priority: int) -> str:
    kind, level = priority >> 3, priority & 7
    return f"{_CLASSES[kind]} {level}" if kind else _CLASSES[0]


REQUESTS = TableSpec("requests", "Requests", {
    "disk": replace(_DISK, get=lambda f: names_of(f.requests.disk, lambda row: f.disks[row].name)),
    "operation": Column(TEXT, "", ALWAYS, "read, write, flush or another.",
        lambda f: names_of(f.requests.operation, f.requests.operations.name)),
    "flags": Column(TEXT, help="REQ_* flags in lower case.",
        get=lambda f: names_of(f.requests.flags, f.requests.operations.flag_text)),
    "kind": Column(TEXT, "", ALWAYS, "sync or async, as the kernel sees the request.",
        lambda f: np.where(f.requests.is_sync, "sync", "async")),
    "state": Column(TEXT, "", ALWAYS, "allocated, inserted, dispatched or completed.",
        lambda f: names_of(f.requests.state, state_name)),
    "place": Column(TEXT, "on list", ALWAYS, "List with the request.",
        lambda f: names_of(f.requests.place,
            lambda place: Place(place).name.lower().replace("_", " ") if place else "")),
    "queue": Column(TEXT, "", ALWAYS, "Queue of the scheduler.", _labels),
    "waiting": Column(SECONDS, "", ALWAYS, "Time since insertion; 0 once dispatched.", _waiting),
    "late": Column(SECONDS, "late by", help="Time past the expiry.", get=_late),
    "in_driver": Column(SECONDS, help="Time since dispatch; a lower bound if known from the timer.",
        get=lambda f: np.maximum(f.requests.in_driver_ns, 0) / 1e9),
    "age": Column(SECONDS, help="Time since allocation; -1 if unknown.", get=_age, unknown=(-1,)),
    "sector": Column(NONE, help="First sector in the disk.", get="requests.sector"),
    "bytes": Column(BYTES, help="Remaining bytes.", get="requests.bytes"),
    "priority": Column(TEXT, help="I/O priority: class and level.", get=_priority),
    "tag": Column(NONE, "", DATA, "Tag of the driver, or -1.", "requests.tag"),
    "sched_tag": Column(NONE, "", DATA, "Tag of the scheduler, or -1.", "requests.sched_tag"),
    "owner": Column(TEXT, "ended by", help="bio.bi_end_io: shows the submitter.",
        get=lambda f: f.owners if len(f.requests) else []),
    "file": Column(TEXT, help="File of the page cache that is read or written.",
        get=lambda f: f.files if len(f.requests) else []),
    "cgroup": Column(TEXT, help="Cgroup charged for the bio.",
        get=lambda f: f.groups if len(f.requests) else []),
    "address": address("struct request", get="requests.address"),
}, "An allocated request.", ("waiting", "disk", "sector"))  # fmt: skip


class _Age(NamedTuple):
    figures: Figures
    requests: int
    bin: int
    """In :data:`_AGES`."""
    disk: int
    state: int


def _ages(figures: Figures) -> list[_Age]:
    requests = figures.requests
    bin_ = np.searchsorted(np.array([*_AGES]), requests.age_ns / 1e9, side="right")
    keys = np.stack([bin_, requests.disk, requests.state.astype(np.int64)], axis=1)
    # The age of other requests is unknown.
    found, count = np.unique(keys[requests.age_ns >= 0], axis=0, return_counts=True)
    pairs = zip(found.tolist(), count.tolist(), strict=True)
    return [_Age(figures, number, *key) for key, number in pairs]


AGES = TableSpec("request_ages", "Requests by age", {
    "age": Column(TEXT, "", ALWAYS, "Time since allocation.",
        lambda row: [*_AGES.values()][row.bin]),
    "disk": replace(_DISK, get=lambda row: row.figures.disks[row.disk].name),
    "state": Column(TEXT, "", ALWAYS, "State of the requests.", lambda row: state_name(row.state)),
    "up_to": Column(SECONDS, "younger than", DATA, "Upper bound of the age.",
        lambda row: [*_AGES][row.bin]),
    "requests": Column(COUNT, "", ALWAYS, "Number of requests."),
}, "Requests of a disk, of one state and age.", rows=_ages)  # fmt: skip


class _Tunable(NamedTuple):
    disk: Disk
    name: str
    value: int


def _tunables(figures: Figures) -> list[_Tunable]:
    return [
        _Tunable(disk, name, value)
        for disk, scheduler in zip(figures.disks, figures.schedulers, strict=True)
        for name, value in sorted(scheduler.tunables.items())
    ]


TUNABLES = TableSpec("tunables", "Tunables of schedulers", {
    "disk": replace(_DISK, get="disk.name"),
    "scheduler": Column(TEXT, "", ALWAYS, "I/O scheduler of the disk.", "disk.scheduler"),
    "name": Column(TEXT, "tunable", ALWAYS, "File in /sys/block/DISK/queue/iosched."),
    "value": Column(NONE, "", ALWAYS, "In the unit of that file."),
}, "A tunable of the I/O scheduler of a disk.", rows=_tunables)  # fmt: skip


def _owners(figures: Figures) -> Any:
    """Return the groups of requests of equal disk, task, cgroup, owner and kind."""
    requests, every = figures.requests, tasks(figures.kernel)
    is_inserted = requests.state == State.INSERTED
    comms = dict(zip(every.pid.tolist(), every.comm, strict=True))
    frame = pd.DataFrame(
        {
            "row": requests.disk,
            "pid": figures.inserted_by,
            "cgroup": figures.groups,
            "owner": figures.owners,
            "kind": np.where(requests.is_sync, "sync", "async"),
            "inserted": is_inserted,
            "dispatched": requests.state == State.DISPATCHED,
            "bytes": requests.bytes,
            "waiting": np.maximum(np.where(is_inserted, requests.waiting_ns, 0), 0) / 1e9,
            "name": names_of(requests.disk, lambda row: figures.disks[row].name),
            "comm": [comms.get(pid, "") for pid in figures.inserted_by.tolist()],
        }
    )
    return frame.groupby(["row", "pid", "cgroup", "owner", "kind"])


OWNERS = TableSpec("request_owners", "Requests by task and cgroup", {
    "disk": replace(_DISK, get=lambda groups: groups["name"].first()),
    "pid": Column(NONE, "PID", ALWAYS,
        "Task that inserted the requests, known from queues of BFQ or CFQ, or from direct I/O; "
        "-1 several, 0 unknown. Other tasks' bios may be merged into them.", unknown=(-1, 0)),
    "task": Column(TEXT, "", ALWAYS, "Name of the task.", lambda groups: groups["comm"].first()),
    "cgroup": Column(TEXT, "", ALWAYS, "Cgroup charged for the bios."),
    "owner": Column(TEXT, "ended by", ALWAYS, "bio.bi_end_io of the bios."),
    "kind": Column(TEXT, "", ALWAYS, "sync or async, as the kernel sees the requests."),
    "requests": Column(COUNT, "", ALWAYS, "Number of requests.", lambda groups: groups.size()),
    "inserted": Column(COUNT, "", ALWAYS, "Not dispatched."),
    "dispatched": Column(COUNT, "in the driver", ALWAYS, "Dispatched to the driver."),
    "bytes": Column(BYTES, "", ALWAYS, "Remaining bytes."),
    "oldest": Column(SECONDS, "longest wait", ALWAYS, "Longest wait for dispatch.",
        lambda groups: groups["waiting"].max()),
}, "Requests of a disk from one task, charged to one cgroup.", ("oldest", "requests"),
    rows=_owners)  # fmt: skip


def _count(figures: Figures, wanted: Mask) -> Numbers:
    """Return the number of wanted requests by hardware queue."""
    queue = figures.requests.hardware_queue
    return np.bincount(queue[wanted & (queue >= 0)], minlength=len(figures.hardware.address))


def _tags(figures: Figures, numbers: Numbers, sets: Words) -> Numbers:
    """Return the number of each queue's set of tags; 0 without one."""
    return np.append(numbers, 0)[figures.hardware.tag_sets.rows(sets)]


HARDWARE_QUEUES = TableSpec("hardware_queues", "Hardware queues", {
    "disk": replace(_DISK,
        get=lambda f: names_of(f.hardware.disk, lambda row: f.disks[row].name if row >= 0 else "")),
    "number": Column(NONE, "queue", ALWAYS, "As in /sys/block/DISK/mq.", "hardware.number"),
    "requests": Column(COUNT, "", ALWAYS, "Requests allocated for it.",
        lambda f: _count(f, f.requests.hardware_queue >= 0)),
    "software": Column(COUNT, "in software queues", ALWAYS, "On blk_mq_ctx lists of CPUs.",
        lambda f: _count(f, f.requests.place == Place.SOFTWARE_QUEUE)),
    "on_dispatch": Column(COUNT, "on dispatch list", ALWAYS,
        "Taken from the scheduler, refused by the driver.",
        lambda f: _count(f, f.requests.place == Place.DISPATCH)),
    "dispatched": Column(COUNT, "in the driver", ALWAYS, "Dispatched to the driver.",
        lambda f: _count(f, f.requests.state == State.DISPATCHED)),
    "tags_used": Column(COUNT, "", ALWAYS, "Driver tags in use.",
        lambda f: _tags(f, f.hardware.tag_sets.used, f.hardware.tags)),
    "tags": Column(COUNT, "", ALWAYS, "Driver tags; queues and disks may share them.",
        lambda f: _tags(f, f.hardware.tag_sets.depth, f.hardware.tags)),
    "sched_tags_used": Column(COUNT, "", ALWAYS, "Scheduler tags in use.",
        lambda f: _tags(f, f.hardware.tag_sets.used, f.hardware.sched_tags)),
    "sched_tags": Column(COUNT, "", ALWAYS, "Tags of the scheduler, or 0.",
        lambda f: _tags(f, f.hardware.tag_sets.depth, f.hardware.sched_tags)),
    "stopped": Column(TEXT, "", ALWAYS, "Whether the driver stopped it.",
        lambda f: np.where(f.hardware.is_stopped, "yes", "no")),
    "address": address("struct blk_mq_hw_ctx", "hctx", get="hardware.address"),
}, "A hardware queue of a disk.", ("requests", "disk", "number"))  # fmt: skip

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
