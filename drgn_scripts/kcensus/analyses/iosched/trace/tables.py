# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of a trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.iosched.trace.figures import (
    ASYNC_WRITE,
    CLASSES,
    PHASES,
    SYNC_READ,
    SYNC_WRITE,
    Figures,
)
from kcensus.analyses.iosched.trace.slices import over_time, slices
from kcensus.analyses.iosched.trace.statistics import by_group
from kcensus.human import human_seconds
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec
from kcensus.trace.bios import NEVER
from kcensus.trace.events import LETTERS, Integers, major_minor
from kcensus.trace.threads import side_by_side

MAX_WAITS = 1000
MAX_ROWS = 10_000
_MAX_GROUPS = 1 << 20

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

_WORST = {
    "pid": Column(Unit.NONE, "PID", Show.WIDE, "Of the task that queued it."),
    "sector": Column(Unit.NONE, "sector", Show.WIDE, "Where the request began."),
    "bytes": Column(Unit.BYTES, "size", Show.WIDE, "Of the bio that began the request."),
    "inserted": Column(Unit.SECONDS, "inserted at", Show.DATA, "Since the first event."),
    "served": Column(
        Unit.SECONDS,
        "in driver",
        Show.WIDE,
        "From its last dispatch to completion, or the end; - if not dispatched.",
    ),
    "requeued": Column(
        Unit.SECONDS,
        "requeued",
        Show.DATA,
        "From its first dispatch to its last, or since the driver gave it back; - if it did not.",
    ),
    "overtaken_by": Column(
        Unit.COUNT,
        "overtaken by",
        Show.ALWAYS,
        "Sync requests that were inserted later and dispatched before it.",
    ),
    "state": Column(
        Unit.TEXT,
        "state at end",
        Show.ALWAYS,
        "inserted (still waits), requeued (given back, not dispatched again), dispatched, "
        "completed.",
    ),
    "label": Column(Unit.TEXT, "name", Show.DATA, "Task, operation, and where of several."),
}

TASKS = TableSpec(
    "trace_tasks",
    "Waits in the scheduler by task",
    {
        "task": _TASK,
        "device": _DEVICE,
        "operation": _CLASS,
        **{
            name: replace(column, show=Show.WIDE)
            if name in ("average", "median", "p99")
            else column
            for name, column in _STATISTICS.items()
        },
        "total": Column(Unit.SECONDS, "total", Show.DATA, "Sum of the waits."),
        "waiting": Column(Unit.COUNT, "still wait", Show.ALWAYS, "At the end of the trace."),
        **_WORST,
    },
    "Requests of tasks of one name, device and operation that were inserted, with the one that "
    "waited longest; up to 10,000 rows.",
    ("longest", "task", "operation", "device"),
)

WAITS = TableSpec(
    "trace_waits",
    "Longest waits in the scheduler",
    {
        "task": _TASK,
        "device": _DEVICE,
        "operation": _CLASS,
        "waited": Column(
            Unit.SECONDS, "waited", Show.ALWAYS, "Until dispatched, or the end of the trace."
        ),
        **_WORST,
    },
    "A request; the 1,000 that waited longest between insertion and first dispatch.",
    ("waited", "device", "sector"),
)

QUEUES = TableSpec(
    "trace_queues",
    "Queues of the scheduler by its messages",
    {
        "queue": Column(Unit.TEXT, "queue", Show.ALWAYS, "As CFQ or BFQ names it: PID, S or A."),
        "task": Column(Unit.TEXT, "task", Show.ALWAYS, "Last name of that PID in the trace."),
        "device": _DEVICE,
        "longest": Column(
            Unit.SECONDS,
            "longest wait",
            Show.ALWAYS,
            "In the scheduler: of requests, sync or async as the queue, that its PID queued.",
        ),
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
    "A queue of CFQ or BFQ; of more than 10,000, those with most turns without a dispatch.",
    ("longest", "device", "queue"),
)

DEVICES = TableSpec(
    "trace_devices",
    "Devices of the trace",
    {
        "device": _DEVICE,
        "bios": Column(Unit.COUNT, "bios", Show.ALWAYS, "Bios with data."),
        "requests": Column(Unit.COUNT, "requests", Show.ALWAYS, "Bios with one of their own."),
        "waiting": Column(Unit.COUNT, "in scheduler", Show.ALWAYS, "At the end of the trace."),
        "in_driver": Column(Unit.COUNT, "in driver", Show.ALWAYS, "At the end of the trace."),
        "without_request": Column(
            Unit.COUNT,
            "without request",
            Show.WIDE,
            "Bios that wait for a free request at the end of the trace.",
        ),
        "requeued": Column(Unit.COUNT, "requeues", Show.WIDE, "Dispatches taken back."),
        "errors": Column(Unit.COUNT, "errors", Show.WIDE, "Bios completed with an error."),
        "bytes": Column(Unit.BYTES, "data", Show.WIDE, "Of all bios."),
        "longest": Column(Unit.SECONDS, "longest wait", Show.ALWAYS, "In the scheduler."),
        "longest_in_driver": Column(
            Unit.SECONDS, "longest in driver", Show.ALWAYS, "From dispatch to completion."
        ),
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
        "waited": Column(
            Unit.TEXT, "waited", Show.ALWAYS, "Longer than the length before, up to this."
        ),
        "sync_reads": Column(Unit.COUNT, "sync reads", Show.ALWAYS, "Requests."),
        "sync_writes": Column(Unit.COUNT, "sync writes", Show.ALWAYS, "Requests."),
        "async_writes": Column(Unit.COUNT, "async writes", Show.ALWAYS, "Requests."),
        "discards": Column(Unit.COUNT, "discards", Show.WIDE, "Requests."),
    },
    "Requests that waited up to a power of two of microseconds; those that still wait included.",
)

_TIME = Column(Unit.TEXT, "from", Show.ALWAYS, "Start of a slice of the trace.")
OVER_TIME = TableSpec(
    "trace_over_time",
    "Requests in the scheduler over time",
    {
        "time": _TIME,
        "task": _TASK,
        "waiting": Column(
            Unit.COUNT, "in scheduler", Show.ALWAYS, "Requests at once, average of the slice."
        ),
        "inserted": Column(Unit.COUNT, "inserted", Show.ALWAYS, "Requests, in this slice."),
        "dispatched": Column(Unit.COUNT, "dispatched", Show.ALWAYS, "Requests, in this slice."),
    },
    "A slice of the trace and a task: the four whose requests waited longest in total, and others.",
)

SLICES = TableSpec(
    "trace_slices",
    "Longest waits in the scheduler over time",
    {
        "time": _TIME,
        "longest": Column(
            Unit.SECONDS,
            "longest",
            Show.ALWAYS,
            "Of a request in the scheduler: until its dispatch, or the end of the slice.",
        ),
        "task": _TASK,
        "device": _DEVICE,
        "operation": _CLASS,
    },
    "A slice of the trace, with the request that had waited longest in it.",
)

TABLES = (PHASE_TABLE, TASKS, WAITS, QUEUES, DEVICES, EVENTS, HISTOGRAM, OVER_TIME, SLICES)


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
        "trace_over_time": over_time(figures),
        "trace_slices": slices(figures),
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
    wait, (index, names) = figures.wait, figures.task
    count = len(CLASSES)
    group: Integers = (figures.device * len(names) + index) * count + figures.kind
    if int(group.max(initial=0)) >= _MAX_GROUPS:
        group = np.unique(group, return_inverse=True)[1]
    frame = by_group(group, wait)
    # The first of the longest of each group.
    numbers = frame["group"].to_numpy()
    longest = np.full(int(group.max(initial=0)) + 1, NEVER)
    longest[numbers] = np.round(frame["longest"].to_numpy() * 1e9)
    rows = np.flatnonzero((wait == longest[group]) & (wait >= 0))
    found, first = np.unique(group[rows], return_index=True)
    worst = rows[first[np.searchsorted(found, numbers)]]
    waiting = np.bincount(group[figures.is_waiting], minlength=len(longest))[numbers]
    frame = frame.assign(waiting=waiting, worst=worst).nlargest(MAX_ROWS, "longest")
    columns = _of_worst(figures, frame.pop("worst").to_numpy(), with_sector=False)
    return pd.concat([frame.reset_index(drop=True), columns], axis=1)


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
    rows = longest(figures, count)
    return _of_worst(figures, rows, with_sector=True).assign(waited=figures.wait[rows] / 1e9)


def _of_worst(figures: Figures, rows: Integers, *, with_sector: bool) -> pd.DataFrame:
    """Return the columns of tables about single requests.

    :param with_sector: whether labels need it, as several requests have the rest in common
    """
    bios = figures.bios
    index, names = figures.tasks(rows)
    state = np.where(bios.issued[rows] == NEVER, "inserted", "dispatched")
    state[figures.is_requeued[rows]] = "requeued"
    state[bios.completed[rows] != NEVER] = "completed"
    kinds = [CLASSES[each] for each in figures.kind[rows].tolist()]
    tasks = [names[each] for each in index.tolist()]
    devices = [figures.devices[each] for each in bios.device[rows].tolist()]
    sectors = bios.sector[rows]
    labels = [f"{task} {kind}" for task, kind in zip(tasks, kinds, strict=True)]
    for place, sector in enumerate(sectors.tolist()):
        labels[place] += f" {devices[place]}" if len(figures.devices) > 1 else ""
        labels[place] += f" {sector}" if with_sector else ""
    return pd.DataFrame(
        {
            "task": pd.Series(tasks, dtype=object),
            "pid": bios.pid[rows].astype(np.int64),
            "device": pd.Series(devices, dtype=object),
            "operation": pd.Series(kinds, dtype=object),
            "sector": sectors,
            "bytes": bios.bytes[rows],
            "inserted": figures.since[rows] / 1e9,
            "served": _seconds(figures.in_driver[rows]),
            "requeued": _seconds(figures.requeued[rows]),
            "overtaken_by": figures.overtaken(rows),
            "state": pd.Series(state.tolist(), dtype=object),
            "label": pd.Series(labels, dtype=object),
        }
    )


def _seconds(nanoseconds: Integers) -> npt.NDArray[np.float64]:
    seconds: npt.NDArray[np.float64] = np.where(nanoseconds < 0, np.nan, nanoseconds / 1e9)
    return seconds


def _queues(figures: Figures) -> pd.DataFrame:
    queues = sorted(figures.queues, key=lambda queue: -queue.expired_empty)[:MAX_ROWS]
    pid = np.array([queue.pid or 0 for queue in queues], np.int64)
    waits = _by_queue(figures) if queues else {}
    index, names = figures.trace.tasks(pid, np.full(len(pid), figures.end))
    rows = [
        (
            _text(queue.name),
            _text(names[which]) or "?" if queue.pid is not None else "(shared)",
            major_minor(queue.device),
            waits.get((queue.device, queue.pid or -1, queue.is_sync), np.nan),
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


def _by_queue(figures: Figures) -> dict[tuple[int, int, bool], float]:
    """Return the longest wait of requests by device, PID that queued them, and whether sync."""
    bios, rows = figures.bios, np.flatnonzero(figures.wait >= 0)
    keys = {"device": bios.device[rows], "pid": bios.pid[rows], "sync": figures.is_sync[rows]}
    frame = pd.DataFrame({**keys, "wait": figures.wait[rows]})
    longest = frame.groupby([*keys], sort=False)["wait"].max() / 1e9
    return dict(zip(longest.index.tolist(), longest.tolist(), strict=True))


def _text(raw: bytes) -> str:
    """Return a name as the trace has it, not safe to print."""
    return raw.decode("utf-8", "surrogateescape")


def _devices(figures: Figures) -> pd.DataFrame:
    bios = figures.bios
    code, count = figures.device, len(figures.devices)

    def total(values: Integers) -> Integers:
        if count == 1:
            return np.array([values.sum()])
        return np.bincount(code, values, count).astype(np.int64)

    def worst(nanoseconds: Integers) -> npt.NDArray[np.float64]:
        longest = np.full(count, NEVER)
        if count == 1:
            longest[0] = nanoseconds.max()
        else:
            np.maximum.at(longest, code, nanoseconds)
        return _seconds(longest)

    return pd.DataFrame(
        {
            "device": pd.Series([*figures.devices.values()], dtype=object),
            "bios": np.bincount(code, minlength=count),
            "requests": total(figures.is_request),
            "waiting": total(figures.is_waiting),
            "in_driver": total(figures.is_in_driver),
            "without_request": total(figures.is_without_request),
            "requeued": total(bios.requeues),
            "errors": total(bios.error != 0),
            "bytes": total(bios.bytes),
            "longest": worst(figures.wait),
            "longest_in_driver": worst(figures.in_driver),
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
            "waited": pd.Series(
                [f"up to {human_seconds(2.0**step / 1e6)}" for step in steps], dtype=object
            ),
            "sync_reads": counts[:, SYNC_READ],
            "sync_writes": counts[:, SYNC_WRITE],
            "async_writes": counts[:, ASYNC_WRITE],
            "discards": counts[:, SYNC_WRITE + 1 :].sum(axis=1),
        }
    )
