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
from kcensus.charts import ChartSpec
from kcensus.human import human_seconds
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    NONE,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    TableSpec,
)
from kcensus.sources.blktrace.bios import NEVER
from kcensus.sources.blktrace.events import Act, Integers, major_minor
from kcensus.sources.blktrace.threads import side_by_side

_MAX_WAITS = 1000
MAX_ROWS = 10_000
_MAX_GROUPS = 1 << 20

_DEVICE = Column(TEXT, "device", ALWAYS, "Major and minor number of the disk.")
_CLASS = Column(TEXT, "operation", ALWAYS, "Read, write or discard; synchronous or asynchronous.")
_TASK = Column(TEXT, "task", ALWAYS, "Task that queued the bio; ? if unknown.")
_PERCENTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
_STATISTICS = {
    "count": Column(COUNT, "count", ALWAYS, "Bios with both ends of the phase."),
    "average": Column(SECONDS, "average", ALWAYS, "Mean."),
    "median": Column(SECONDS, "median", ALWAYS, "Half take at most this long."),
    "p90": Column(SECONDS, "90 %", WIDE, "90 % take at most this long."),
    "p99": Column(SECONDS, "99 %", ALWAYS, "99 % take at most this long."),
    "longest": Column(SECONDS, "longest", ALWAYS, "Maximum."),
}


def _by_group(group: Integers, nanoseconds: Integers) -> pd.DataFrame:
    """Return a row for each group: its number, count, and :data:`_STATISTICS` in seconds.

    A percentile is the smallest duration that is not exceeded by at least such a share.

    :param group: small numbers >= 0, shape (n,)
    :param nanoseconds: shape (n,); negative ones do not count
    """
    chosen = np.flatnonzero(nanoseconds >= 0)
    groups, values = group, nanoseconds
    if len(chosen) < len(nanoseconds):
        groups, values = group[chosen], nanoseconds[chosen]
    count = np.bincount(groups)
    present = np.flatnonzero(count)
    count = count[present]
    first = np.cumsum(count) - count
    bits = int(values.max(initial=0)).bit_length()
    if int(groups.max(initial=0)).bit_length() + bits < 64:
        words = groups.astype(np.int64) << bits
        words |= values
        words.sort()  # vectorised
        base = present << bits
    else:
        words = values[np.lexsort((values, groups))]
        base = np.zeros_like(present)
    # Sums of words overflow, and so do the subtracted bases: the differences are exact.
    total = np.add.reduceat(words, first) if len(first) else np.zeros(0, np.int64)
    total -= base * count
    frame = {"group": present, "count": count, "average": total / count / 1e9}
    for name, share in _PERCENTILES.items():
        # Rounded, as 0.99 * 100 is a little more than 99.
        place = np.ceil(np.round(share * count, 6)).astype(np.int64) - 1
        frame[name] = (words[first + place] - base) / 1e9
    frame["longest"] = (words[first + count - 1] - base) / 1e9
    frame["total"] = total / 1e9
    return pd.DataFrame(frame)


def _phases(figures: Figures) -> pd.DataFrame:
    devices = np.array([*figures.devices] or [0])
    group = figures.device * len(CLASSES) + figures.kind

    def of(phase: str) -> pd.DataFrame:
        frame = _by_group(group, figures.phase(phase))
        number = frame["group"].to_numpy()
        names = [major_minor(int(devices[each // len(CLASSES)])) for each in number]
        kinds = [CLASSES[each % len(CLASSES)] for each in number]
        return frame.assign(phase=phase, device=names, operation=kinds)

    return pd.concat(side_by_side(of, PHASES), ignore_index=True).head(MAX_ROWS)


PHASE_TABLE = TableSpec(
    "trace_phases",
    "Time from event to event",
    {
        "phase": Column(
            TEXT,
            "phase",
            ALWAYS,
            "Name in btt: from and to Queued, Got a request, Inserted into the scheduler, "
            "Merged, Dispatched, Completed.",
        ),
        "device": _DEVICE,
        "operation": _CLASS,
        **_STATISTICS,
    },
    "A phase of the bios of one device and operation.",
    rows=_phases,
)

_WORST = {
    "pid": Column(NONE, "PID", WIDE, "PID of that task."),
    "sector": Column(NONE, "sector", WIDE, "First sector of the request."),
    "bytes": Column(BYTES, "size", WIDE, "Size of the first bio."),
    "inserted": Column(SECONDS, "inserted at", DATA, "Time since the first event."),
    "served": Column(SECONDS, "in driver", WIDE, "Time since the last dispatch."),
    "requeued": Column(
        SECONDS,
        "requeued",
        DATA,
        "Time from the first dispatch to the last, or since the requeue.",
    ),
    "overtaken_by": Column(
        COUNT, "overtaken by", ALWAYS, "Sync requests inserted later and dispatched earlier."
    ),
    "state": Column(TEXT, "state at end", ALWAYS, "inserted, requeued, dispatched or completed."),
    "label": Column(TEXT, "name", DATA, "Task, operation, and sector or device."),
}


def _of_worst(figures: Figures, rows: Integers, *, with_sector: bool) -> pd.DataFrame:
    """Return the columns of tables about single requests.

    :param with_sector: whether labels need the sector to be unique
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
            "task": tasks,
            "pid": bios.pid[rows].astype(np.int64),
            "device": devices,
            "operation": kinds,
            "sector": sectors,
            "bytes": bios.bytes[rows],
            "inserted": figures.bios.inserted[rows] / 1e9,
            "served": _seconds(figures.in_driver[rows]),
            "requeued": _seconds(figures.requeued[rows]),
            "overtaken_by": figures.overtaken(rows),
            "state": state,
            "label": labels,
        }
    )


def _seconds(nanoseconds: Integers) -> npt.NDArray[np.float64]:
    return np.where(nanoseconds < 0, np.nan, nanoseconds / 1e9)


def _tasks(figures: Figures) -> pd.DataFrame:
    wait, (index, names) = figures.wait, figures.task
    count = len(CLASSES)
    group: Integers = (figures.device * len(names) + index) * count + figures.kind
    if int(group.max(initial=0)) >= _MAX_GROUPS:
        group = np.unique(group, return_inverse=True)[1]
    frame = _by_group(group, wait)
    # The first of the longest requests of each group.
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


TASKS = TableSpec(
    "trace_tasks",
    "Waits in the scheduler by task",
    {
        "task": _TASK,
        "device": _DEVICE,
        "operation": _CLASS,
        **{
            name: replace(column, show=WIDE) if name in ("average", "median", "p99") else column
            for name, column in _STATISTICS.items()
        },
        "total": Column(SECONDS, "total", DATA, "Sum of the waits."),
        "waiting": Column(COUNT, "still wait", ALWAYS, "Requests at the end of the trace."),
        **_WORST,
    },
    "Inserted requests of one task name, device and operation, with the longest wait; up to 10,000 "
    "rows.",
    ("longest", "task", "operation", "device"),
    rows=_tasks,
)


def _waits(figures: Figures) -> pd.DataFrame:
    rows = np.flatnonzero(figures.wait >= 0)
    if len(rows) > _MAX_WAITS:
        rows = rows[np.argpartition(-figures.wait[rows], _MAX_WAITS)[:_MAX_WAITS]]
    return _of_worst(figures, rows, with_sector=True).assign(waited=figures.wait[rows] / 1e9)


WAITS = TableSpec(
    "trace_waits",
    "Longest waits in the scheduler",
    {
        "task": _TASK,
        "device": _DEVICE,
        "operation": _CLASS,
        "waited": Column(SECONDS, "waited", ALWAYS, "Until dispatched, or the end of the trace."),
        **_WORST,
    },
    "A request: the 1,000 longest waits from insertion to first dispatch.",
    ("waited", "device", "sector"),
    rows=_waits,
)


def _queues(figures: Figures) -> list[dict[str, object]]:
    queues = sorted(figures.queues, key=lambda queue: -queue.expired_empty)[:MAX_ROWS]
    pid = np.array([queue.pid or 0 for queue in queues], np.int64)
    waits = _by_queue(figures) if queues else {}
    index, names = figures.trace.tasks(pid, np.full(len(pid), figures.end))
    return [
        vars(queue)
        | {
            "queue": _text(queue.name),
            "task": _text(names[which]) or "?" if queue.pid is not None else "(shared)",
            "device": major_minor(queue.device),
            "longest": waits.get((queue.device, queue.pid or -1, queue.is_sync), np.nan),
            "sync": queue.is_sync,
        }
        for queue, which in zip(queues, index.tolist(), strict=True)
    ]


def _by_queue(figures: Figures) -> dict[tuple[int, int, bool], float]:
    """Return the longest wait of requests, seconds, by device, PID of the submitter, and sync."""
    bios, rows = figures.bios, np.flatnonzero(figures.wait >= 0)
    keys = {"device": bios.device[rows], "pid": bios.pid[rows], "sync": figures.is_sync[rows]}
    frame = pd.DataFrame({**keys, "wait": figures.wait[rows]})
    longest = frame.groupby([*keys], sort=False)["wait"].max() / 1e9
    return dict(zip(longest.index.tolist(), longest.tolist(), strict=True))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


QUEUES = TableSpec(
    "trace_queues",
    "Queues of the scheduler by its messages",
    {
        "queue": Column(TEXT, "queue", ALWAYS, "Name by CFQ or BFQ: PID, S or A."),
        "task": Column(TEXT, "task", ALWAYS, "Last name of that PID in the trace."),
        "device": _DEVICE,
        "longest": Column(SECONDS, "longest wait", ALWAYS, "Of requests of this PID and kind."),
        "sync": Column(NONE, "sync", WIDE, "Whether the queue is for synchronous requests."),
        "inserted": Column(COUNT, "inserted", WIDE, "Requests inserted."),
        "selected": Column(COUNT, "selected", ALWAYS, "Times the queue became active."),
        "dispatched": Column(COUNT, "dispatched", ALWAYS, "Requests dispatched."),
        "expired": Column(COUNT, "expired", ALWAYS, "Times a turn ended."),
        "preempted": Column(COUNT, "preempted", ALWAYS, "Turns ended by another queue."),
        "expired_empty": Column(COUNT, "without dispatch", ALWAYS, "Turns without a dispatch."),
        "preempts": Column(COUNT, "preempts", WIDE, "Times the queue preempted another one (CFQ)."),
    },
    "A queue of CFQ or BFQ; the 10,000 with most turns without a dispatch.",
    ("longest", "device", "queue"),
    rows=_queues,
)


def _devices(figures: Figures) -> dict[str, npt.ArrayLike]:
    bios = figures.bios
    code, count = figures.device, len(figures.devices)

    def total(values: Integers) -> Integers:
        return np.bincount(code, values, count).astype(np.int64)

    def worst(nanoseconds: Integers) -> npt.NDArray[np.float64]:
        longest = np.full(count, NEVER)
        np.maximum.at(longest, code, nanoseconds)
        return _seconds(longest)

    return {
        "device": [*figures.devices.values()],
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


DEVICES = TableSpec(
    "trace_devices",
    "Devices of the trace",
    {
        "device": _DEVICE,
        "bios": Column(COUNT, "bios", ALWAYS, "Bios with data."),
        "requests": Column(COUNT, "requests", ALWAYS, "Bios with a request of their own."),
        "waiting": Column(COUNT, "in scheduler", ALWAYS, "Requests at the end of the trace."),
        "in_driver": Column(COUNT, "in driver", ALWAYS, "Requests at the end of the trace."),
        "without_request": Column(COUNT, "without request", WIDE, "Bios at the end of the trace."),
        "requeued": Column(COUNT, "requeues", WIDE, "Dispatches taken back."),
        "errors": Column(COUNT, "errors", WIDE, "Bios completed with an error."),
        "bytes": Column(BYTES, "data", WIDE, "Bytes of all bios."),
        "longest": Column(SECONDS, "longest wait", ALWAYS, "Wait in the scheduler."),
        "longest_in_driver": Column(
            SECONDS, "longest in driver", ALWAYS, "From dispatch to completion."
        ),
    },
    "A device whose events are in the trace.",
    ("bios", "device"),
    rows=_devices,
)


def _events(figures: Figures) -> list[dict[str, object]]:
    return [
        {"device": major_minor(device), "action": Act(action).letters, "events": count}
        for (device, action), count in sorted(figures.trace.counts.items())[:MAX_ROWS]
    ]


EVENTS = TableSpec(
    "trace_events",
    "Events by action",
    {
        "device": _DEVICE,
        "action": Column(TEXT, "action", ALWAYS, "The letter that blkparse prints."),
        "events": Column(COUNT, "events", ALWAYS, "Messages are not events."),
    },
    "An action on a device; up to 10,000 rows.",
    ("events", "device", "action"),
    rows=_events,
)


def _histogram(figures: Figures) -> dict[str, npt.ArrayLike]:
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
    return {
        "waited": [f"up to {human_seconds(2.0**step / 1e6)}" for step in steps],
        "sync_reads": counts[:, SYNC_READ],
        "sync_writes": counts[:, SYNC_WRITE],
        "async_writes": counts[:, ASYNC_WRITE],
        "discards": counts[:, SYNC_WRITE + 1 :].sum(axis=1),
    }


HISTOGRAM = TableSpec(
    "trace_histogram",
    "Waits in the scheduler by length",
    {
        "waited": Column(TEXT, "waited", ALWAYS, "Longest wait of the row; above the row before."),
        "sync_reads": Column(COUNT, "sync reads", ALWAYS, "Requests."),
        "sync_writes": Column(COUNT, "sync writes", ALWAYS, "Requests."),
        "async_writes": Column(COUNT, "async writes", ALWAYS, "Requests."),
        "discards": Column(COUNT, "discards", WIDE, "Requests."),
    },
    "Requests by wait, in powers of two microseconds, including requests that still wait.",
    rows=_histogram,
)

_TIME = Column(TEXT, "from", ALWAYS, "Start of a slice of the trace.")
OVER_TIME = TableSpec(
    "trace_over_time",
    "Requests in the scheduler over time",
    {
        "time": _TIME,
        "task": _TASK,
        "waiting": Column(COUNT, "in scheduler", ALWAYS, "Requests at once, average of the slice."),
        "inserted": Column(COUNT, "inserted", ALWAYS, "Requests, in this slice."),
        "dispatched": Column(COUNT, "dispatched", ALWAYS, "Requests, in this slice."),
    },
    "A slice of the trace and a task: the four with the longest total wait, and others.",
    rows=over_time,
)

SLICES = TableSpec(
    "trace_slices",
    "Longest waits in the scheduler over time",
    {
        "time": _TIME,
        "longest": Column(SECONDS, "longest", ALWAYS, "Until dispatch, or the end of the slice."),
        "task": _TASK,
        "device": _DEVICE,
        "operation": _CLASS,
    },
    "A slice of the trace, with the longest wait in it.",
    rows=slices,
)

TABLES = (PHASE_TABLE, TASKS, WAITS, QUEUES, DEVICES, EVENTS, HISTOGRAM, OVER_TIME, SLICES)

CHARTS = (
    ChartSpec(
        "trace_over_time",
        "trace_over_time",
        "Requests in the scheduler by task",
        ("waiting",),
        "time",
        is_ordered=True,
        parts="task",
        measure="requests in the scheduler, average of each slice",
    ),
    ChartSpec(
        "trace_longest_over_time",
        "trace_slices",
        "Longest wait in the scheduler over time",
        ("longest",),
        "time",
        is_ordered=True,
        measure="longest wait so far of a request in the slice",
    ),
    ChartSpec(
        "trace_histogram",
        "trace_histogram",
        "Waits in the scheduler by length",
        ("sync_reads", "sync_writes", "async_writes", "discards"),
        "waited",
        is_ordered=True,
        measure="requests with such a wait",
    ),
    ChartSpec(
        "trace_timeline",
        "trace_tasks",
        "Longest wait of each task and operation",
        ("longest", "served"),
        "label",
        offset="inserted",
        first_color=1,
        measure="time of the trace",
    ),
)
