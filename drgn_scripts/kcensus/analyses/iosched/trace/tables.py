# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of a trace."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kcensus.analyses.iosched.trace.figures import (
    ASYNC_WRITE,
    CLASSES,
    PHASES,
    SYNC_READ,
    SYNC_WRITE,
    Figures,
)
from kcensus.analyses.iosched.trace.statistics import by_group
from kcensus.human import human_seconds
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec
from kcensus.text import printable
from kcensus.trace.bios import NEVER
from kcensus.trace.events import LETTERS, Integers, major_minor
from kcensus.trace.threads import side_by_side

MAX_WAITS = 1000
MAX_STEPS = 32
"""Slices of time."""
MAX_TASKS = 4
"""Tasks with slices of their own, so that each has a color."""
MAX_ROWS = 10_000
OTHERS = "others"

_DEVICE = Column(Unit.TEXT, "device", Show.ALWAYS, "Major and minor number of the disk.")
_CLASS = Column(
    Unit.TEXT, "operation", Show.ALWAYS, "Read, write or discard; synchronous or asynchronous."
)
_TASK = Column(Unit.TEXT, "task", Show.ALWAYS, "Task that queued it; ? where unknown.")
_STATISTICS = {
    "count": Column(Unit.COUNT, "count", Show.ALWAYS, "Bios with both ends of the phase."),
    "average": Column(Unit.SECONDS, "average", Show.ALWAYS, "Mean."),
    "median": Column(Unit.SECONDS, "median", Show.ALWAYS, "At most this long: half of them."),
    "p90": Column(Unit.SECONDS, "90 %", Show.WIDE, "At most this long: 90 % of them."),
    "p99": Column(Unit.SECONDS, "99 %", Show.ALWAYS, "At most this long: 99 % of them."),
    "longest": Column(Unit.SECONDS, "longest", Show.ALWAYS, "The longest of them."),
}

PHASE_TABLE = TableSpec(
    "trace_phases",
    "Time from event to event",
    {
        "phase": Column(
            Unit.TEXT,
            "phase",
            Show.ALWAYS,
            "As btt names it: from and to Queued, Got a request, Inserted into the scheduler, "
            "Merged, Dispatched, Completed.",
        ),
        "device": _DEVICE,
        "operation": _CLASS,
        **_STATISTICS,
    },
    "A phase of the bios of one device and operation.",
)

TASKS = TableSpec(
    "trace_tasks",
    "Waits in the scheduler by task",
    {
        "task": _TASK,
        "operation": _CLASS,
        **_STATISTICS,
        "total": Column(Unit.SECONDS, "total", Show.WIDE, "Sum of the waits."),
    },
    "Requests of tasks of one name and operation that left the scheduler (I2D); up to 10,000 rows.",
    ("longest", "task", "operation"),
)

WAITS = TableSpec(
    "trace_waits",
    "Longest waits in the scheduler",
    {
        "task": _TASK,
        "pid": Column(Unit.NONE, "PID", Show.WIDE, "Of the task that queued it."),
        "device": _DEVICE,
        "operation": _CLASS,
        "sector": Column(Unit.NONE, "sector", Show.ALWAYS, "Where the request began."),
        "bytes": Column(Unit.BYTES, "size", Show.WIDE, "Of the bio that began the request."),
        "inserted": Column(Unit.SECONDS, "inserted at", Show.DATA, "Since the first event."),
        "waited": Column(
            Unit.SECONDS, "waited", Show.ALWAYS, "Until dispatched, or the end of the trace."
        ),
        "served": Column(
            Unit.SECONDS, "in the driver", Show.WIDE, "From dispatch to completion; - if not seen."
        ),
        "overtaken_by": Column(
            Unit.COUNT, "sync dispatches", Show.ALWAYS, "Sync requests dispatched meanwhile."
        ),
        "state": Column(
            Unit.TEXT,
            "state at end",
            Show.ALWAYS,
            "inserted and requeued (still wait), dispatched, completed.",
        ),
        "label": Column(Unit.TEXT, "name", Show.DATA, "Task, operation and sector."),
    },
    "A request; the 1,000 that waited longest between insertion and dispatch.",
    ("waited", "device", "sector"),
)

QUEUES = TableSpec(
    "trace_queues",
    "Queues of the scheduler by its messages",
    {
        "queue": Column(Unit.TEXT, "queue", Show.ALWAYS, "As CFQ or BFQ names it: PID, S or A."),
        "task": Column(Unit.TEXT, "task", Show.ALWAYS, "Last name of that PID in the trace."),
        "device": _DEVICE,
        "sync": Column(Unit.NONE, "sync", Show.WIDE, "Whether it is for synchronous requests."),
        "inserted": Column(Unit.COUNT, "inserted", Show.WIDE, "Requests inserted."),
        "selected": Column(Unit.COUNT, "selected", Show.ALWAYS, "Times it became active."),
        "dispatched": Column(Unit.COUNT, "dispatched", Show.ALWAYS, "Requests dispatched."),
        "expired": Column(Unit.COUNT, "expired", Show.ALWAYS, "Times its turn ended."),
        "preempted": Column(Unit.COUNT, "preempted", Show.ALWAYS, "Of these, by another queue."),
        "expired_empty": Column(
            Unit.COUNT, "without dispatch", Show.ALWAYS, "Of these, before it dispatched anything."
        ),
        "preempts": Column(
            Unit.COUNT, "preempts", Show.WIDE, "Times it preempted another one (CFQ)."
        ),
    },
    "A queue of CFQ or BFQ; the 10,000 with most turns without a dispatch.",
    ("expired_empty", "device", "queue"),
)

DEVICES = TableSpec(
    "trace_devices",
    "Devices of the trace",
    {
        "device": _DEVICE,
        "bios": Column(Unit.COUNT, "bios", Show.ALWAYS, "Bios with data."),
        "requests": Column(Unit.COUNT, "requests", Show.ALWAYS, "Bios that were not merged."),
        "waiting": Column(Unit.COUNT, "in scheduler", Show.ALWAYS, "At the end of the trace."),
        "in_driver": Column(Unit.COUNT, "in driver", Show.ALWAYS, "At the end of the trace."),
        "requeued": Column(Unit.COUNT, "requeues", Show.WIDE, "Dispatches taken back."),
        "errors": Column(Unit.COUNT, "errors", Show.WIDE, "Bios completed with an error."),
        "bytes": Column(Unit.BYTES, "data", Show.WIDE, "Of all bios."),
        "longest": Column(Unit.SECONDS, "longest wait", Show.ALWAYS, "In the scheduler."),
    },
    "A device whose events are in the trace.",
    ("bios", "device"),
)

EVENTS = TableSpec(
    "trace_events",
    "Events by action",
    {
        "device": _DEVICE,
        "action": Column(Unit.TEXT, "action", Show.ALWAYS, "The letter that blkparse prints."),
        "events": Column(Unit.COUNT, "events", Show.ALWAYS, "Messages are not events."),
    },
    "An action on a device; up to 10,000 rows.",
    ("events", "device", "action"),
)

HISTOGRAM = TableSpec(
    "trace_histogram",
    "Waits in the scheduler by length",
    {
        "waited": Column(Unit.TEXT, "waited", Show.ALWAYS, "From the length before, up to this."),
        "sync_reads": Column(Unit.COUNT, "sync reads", Show.ALWAYS, "Requests."),
        "sync_writes": Column(Unit.COUNT, "sync writes", Show.ALWAYS, "Requests."),
        "async_writes": Column(Unit.COUNT, "async writes", Show.ALWAYS, "Requests."),
        "discards": Column(Unit.COUNT, "discards", Show.WIDE, "Requests."),
    },
    "Requests that waited up to a power of two of microseconds; those that still wait included.",
)

OVER_TIME = TableSpec(
    "trace_over_time",
    "Waits in the scheduler over time",
    {
        "time": Column(Unit.TEXT, "inserted at", Show.ALWAYS, "Start of a slice of the trace."),
        "task": _TASK,
        "requests": Column(Unit.COUNT, "requests", Show.ALWAYS, "Inserted in this slice."),
        "waited": Column(Unit.SECONDS, "waited", Show.ALWAYS, "Sum of their waits."),
        "longest": Column(Unit.SECONDS, "longest", Show.ALWAYS, "The longest wait."),
    },
    "Requests by when they were inserted; of the four tasks that waited longest, and others.",
)

TABLES = (PHASE_TABLE, TASKS, WAITS, QUEUES, DEVICES, EVENTS, HISTOGRAM, OVER_TIME)


def tables(figures: Figures) -> dict[str, Table]:
    """Return all tables by name."""
    rows = {
        "trace_phases": _phases(figures),
        "trace_tasks": _tasks(figures),
        "trace_waits": waits(figures),
        "trace_queues": _queues(figures),
        "trace_devices": _devices(figures),
        "trace_events": _events(figures),
        "trace_histogram": _histogram(figures),
        "trace_over_time": _over_time(figures),
    }
    return {spec.name: spec.of(rows[spec.name]) for spec in TABLES}


def _phases(figures: Figures) -> pd.DataFrame:
    devices = np.array([*figures.devices] or [0])
    group = figures.device * len(CLASSES) + figures.kind

    def of(phase: str) -> pd.DataFrame:
        frame = by_group(group, figures.phase(phase))
        number = frame["group"].to_numpy()
        names = [major_minor(int(devices[each // len(CLASSES)])) for each in number]
        kinds = [CLASSES[each % len(CLASSES)] for each in number]
        return frame.assign(phase=phase, device=names, operation=kinds)

    return pd.concat(side_by_side(of, PHASES), ignore_index=True)[[*PHASE_TABLE.columns]].head(
        MAX_ROWS
    )


def _tasks(figures: Figures) -> pd.DataFrame:
    index, names = figures.task
    frame = by_group(index * len(CLASSES) + figures.kind, figures.phase("I2D"))
    frame = frame.nlargest(MAX_ROWS, "longest")
    number = frame["group"].to_numpy()
    return frame.assign(
        task=pd.Series([names[each // len(CLASSES)] for each in number], frame.index, object),
        operation=pd.Series([CLASSES[each % len(CLASSES)] for each in number], frame.index, object),
    )


def longest(figures: Figures, count: int) -> Integers:
    """Return the requests that waited longest in the scheduler, the longest first."""
    waited = figures.wait
    count = min(count, int((waited >= 0).sum()))
    if not count:
        return np.zeros(0, np.int64)
    rows = np.argpartition(waited, len(waited) - count)[-count:]
    return rows[np.argsort(-waited[rows], kind="stable")]


def waits(figures: Figures, count: int = MAX_WAITS) -> pd.DataFrame:
    """Return the rows of the table of the longest waits."""
    bios, rows = figures.bios, longest(figures, count)
    index, names = figures.tasks(rows)
    served = figures.phase("D2C")[rows] / 1e9
    state = np.where(bios.issued[rows] == NEVER, "inserted", "dispatched")
    state[figures.is_requeued[rows]] = "requeued"
    state[bios.completed[rows] != NEVER] = "completed"
    kinds = [CLASSES[each] for each in figures.kind[rows].tolist()]
    tasks = [names[each] for each in index.tolist()]
    sectors = bios.sector[rows]
    return pd.DataFrame(
        {
            "task": pd.Series(tasks, dtype=object),
            "pid": bios.pid[rows].astype(np.int64),
            "device": pd.Series(
                [figures.devices[d] for d in bios.device[rows].tolist()], dtype=object
            ),
            "operation": pd.Series(kinds, dtype=object),
            "sector": sectors,
            "bytes": bios.bytes[rows],
            "inserted": figures.since[rows] / 1e9,
            "waited": figures.wait[rows] / 1e9,
            "served": np.where(served < 0, np.nan, served),
            "overtaken_by": figures.overtaken(rows),
            "state": pd.Series(state.tolist(), dtype=object),
            "label": pd.Series(
                [
                    f"{task} {kind} {sector}"
                    for task, kind, sector in zip(tasks, kinds, sectors.tolist(), strict=True)
                ],
                dtype=object,
            ),
        }
    )


def _queues(figures: Figures) -> pd.DataFrame:
    queues = sorted(figures.queues, key=lambda queue: -queue.expired_empty)[:MAX_ROWS]
    pid = np.array([queue.pid or 0 for queue in queues], np.int64)
    index, names = figures.trace.tasks(pid, np.full(len(pid), figures.end))
    rows = [
        (
            printable(queue.name),
            printable(names[which]) or "?" if queue.pid is not None else "(shared)",
            major_minor(queue.device),
            queue.is_sync,
            queue.inserted,
            queue.selected,
            queue.dispatched,
            queue.expired,
            queue.preempted,
            queue.expired_empty,
            queue.preempts,
        )
        for queue, which in zip(queues, index.tolist(), strict=True)
    ]
    return pd.DataFrame(rows, columns=[*QUEUES.columns]).astype({"preempts": "Int64"})


def _devices(figures: Figures) -> pd.DataFrame:
    bios = figures.bios
    code, count = figures.device, len(figures.devices)

    def total(values: Integers) -> Integers:
        if count == 1:
            return np.array([values.sum()])
        return np.bincount(code, values, count).astype(np.int64)

    waits = np.full(count, NEVER)
    if count == 1:
        waits[0] = figures.wait.max()
    else:
        np.maximum.at(waits, code, figures.wait)
    return pd.DataFrame(
        {
            "device": pd.Series([*figures.devices.values()], dtype=object),
            "bios": np.bincount(code, minlength=count),
            "requests": total(figures.is_request),
            "waiting": total(figures.is_waiting),
            "in_driver": total(figures.is_in_driver),
            "requeued": total(bios.requeues),
            "errors": total(bios.error != 0),
            "bytes": total(bios.bytes),
            "longest": np.where(waits == NEVER, np.nan, waits / 1e9),
        }
    )


def _events(figures: Figures) -> pd.DataFrame:
    rows = [
        (major_minor(device), LETTERS[action], count)
        for (device, action), count in sorted(figures.trace.counts.items())
    ]
    return pd.DataFrame(rows[:MAX_ROWS], columns=[*EVENTS.columns])


def _histogram(figures: Figures) -> pd.DataFrame:
    rows = np.flatnonzero(figures.wait >= 0)
    kind = figures.kind[rows]
    # Up to 1 us, 2 us, 4 us …
    bucket = np.ceil(np.log2(np.maximum(figures.wait[rows] / 1e3, 1))).astype(np.int64)
    counts = np.bincount(bucket * len(CLASSES) + kind, minlength=len(CLASSES))
    counts = np.append(counts, np.zeros(-len(counts) % len(CLASSES), np.int64))
    counts = counts.reshape(-1, len(CLASSES))
    used = np.flatnonzero(counts.any(axis=1))
    steps = np.arange(used[0], used[-1] + 1) if len(used) else used
    counts = counts[steps]
    return pd.DataFrame(
        {
            "waited": pd.Series([human_seconds(2.0**step / 1e6) for step in steps], dtype=object),
            "sync_reads": counts[:, SYNC_READ],
            "sync_writes": counts[:, SYNC_WRITE],
            "async_writes": counts[:, ASYNC_WRITE],
            "discards": counts[:, SYNC_WRITE + 1 :].sum(axis=1),
        }
    )


def _over_time(figures: Figures) -> pd.DataFrame:
    rows = np.flatnonzero(figures.wait >= 0)
    waited = figures.wait[rows]
    index, names = figures.task
    index = index[rows]
    total = np.bincount(index, waited, len(names))
    top = np.argsort(-total, kind="stable")[:MAX_TASKS]
    top = top[total[top] > 0]
    place = np.full(len(names), len(top))
    place[top] = np.arange(len(top))
    width = max(figures.end // MAX_STEPS, 1)
    step = np.minimum(figures.bios.inserted[rows] // width, MAX_STEPS - 1)
    labels = [*(names[each] for each in top.tolist()), OTHERS]
    # A requeued request may wait without an insertion in the trace.
    frame = by_group((step * len(labels) + place[index])[step >= 0], waited[step >= 0])
    frame = frame.assign(
        step=frame["group"] // len(labels),
        task=[labels[each] for each in frame["group"] % len(labels)],
    )
    # Slices without requests are steps of the scale, too.
    steps = range(MAX_STEPS if len(rows) else 0)
    frame = pd.DataFrame({"step": steps}, dtype=np.int64).merge(frame, how="left", on="step")
    return pd.DataFrame(
        {
            "time": [f"{each * width / 1e9:.3f} s" for each in frame["step"]],
            "task": frame["task"].fillna("-"),
            "requests": frame["count"].fillna(0).astype(np.int64),
            "waited": frame["total"].fillna(0.0),
            "longest": frame["longest"].fillna(0.0),
        }
    )
