# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of a trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from kcensus.engine.memory import Mask
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
from kcensus.sources.blktrace.queues import Queue
from kcensus.sources.blktrace.threads import side_by_side

_MAX_WAITS = 1000
MAX_ROWS = 10_000
_MAX_GROUPS = 1 << 20

_DEVICE = Column(TEXT, "device", ALWAYS, "Major and minor number of the disk.")
_CLASS = Column(TEXT, "operation", ALWAYS, "Read, write or discard; synchronous or asynchronous.")
_TASK = Column(TEXT, "task", ALWAYS, "Task that queued the bio; ? if unknown.")
_STATISTICS = {
    "count": Column(COUNT, "", ALWAYS, "Bios with both ends of the phase.", "groups.count"),
    "average": Column(SECONDS, "", ALWAYS, "Mean.", "groups.average"),
    "median": Column(SECONDS, "", ALWAYS, "Half take at most this long.",
        lambda of: of.groups.within(0.5)),
    "p90": Column(SECONDS, "90 %", WIDE, "90 % take at most this long.",
        lambda of: of.groups.within(0.9)),
    "p99": Column(SECONDS, "99 %", ALWAYS, "99 % take at most this long.",
        lambda of: of.groups.within(0.99)),
    "longest": Column(SECONDS, "", ALWAYS, "Maximum.", lambda of: of.groups.within(1.0)),
}  # fmt: skip
_LESS = ("average", "median", "p99")
"""Statistics of tasks on wide screens only."""


@dataclass(frozen=True)
class _Groups:
    """Durations by group, shape (groups,)."""

    number: Integers
    """Of the group; ascending."""
    count: Integers
    sums: Integers
    """Nanoseconds."""
    words: Integers
    """Durations of one group after another, each ascending, plus the base of the group."""
    first: Integers
    """Index of the first duration in :attr:`words`."""
    base: Integers

    def __getitem__(self, rows: Integers) -> _Groups:
        return _Groups(
            self.number[rows],
            self.count[rows],
            self.sums[rows],
            self.words,
            self.first[rows],
            self.base[rows],
        )

    @property
    def average(self) -> npt.NDArray[np.float64]:
        return self.sums / self.count / 1e9

    def within(self, share: float) -> npt.NDArray[np.float64]:
        """Return the shortest seconds that at least such a share of durations does not exceed."""
        # Rounded, as 0.99 * 100 is a little more than 99.
        place = np.ceil(np.round(share * self.count, 6)).astype(np.int64) - 1
        return (self.words[self.first + place] - self.base) / 1e9


def _by_group(group: Integers, nanoseconds: Integers) -> _Groups:
    """Return the durations by group.

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
    return _Groups(present, count, total - base * count, words, first, base)


@dataclass(frozen=True)
class _Phase:
    """A phase of the bios, by device and operation."""

    name: str
    figures: Figures
    groups: _Groups

    @property
    def device(self) -> list[str]:
        devices = [*self.figures.devices]
        return [major_minor(devices[each // len(CLASSES)]) for each in self.groups.number.tolist()]

    @property
    def operation(self) -> list[str]:
        return [CLASSES[each % len(CLASSES)] for each in self.groups.number.tolist()]


def _phases(figures: Figures) -> pd.DataFrame:
    group = figures.device * len(CLASSES) + figures.kind

    def of(phase: str) -> pd.DataFrame:
        return PHASE_TABLE.frame(_Phase(phase, figures, _by_group(group, figures.phase(phase))))

    return pd.concat(side_by_side(of, PHASES), ignore_index=True).head(MAX_ROWS)


PHASE_TABLE = TableSpec("trace_phases", "Time from event to event", {
    "phase": Column(TEXT, "", ALWAYS,
        "Name in btt: from and to Queued, Got a request, Inserted into the scheduler, Merged, "
        "Dispatched, Completed.", lambda of: [of.name] * len(of.groups.number)),
    "device": _DEVICE,
    "operation": _CLASS,
    **_STATISTICS,
}, "A phase of the bios of one device and operation.", rows=_phases)  # fmt: skip

_WORST = {
    "pid": Column(NONE, "PID", WIDE, "PID of that task.",
        lambda of: of.figures.bios.pid[of.rows].astype(np.int64)),
    "sector": Column(NONE, "", WIDE, "First sector of the request.",
        lambda of: of.figures.bios.sector[of.rows]),
    "bytes": Column(BYTES, "size", WIDE, "Size of the first bio.",
        lambda of: of.figures.bios.bytes[of.rows]),
    "inserted": Column(SECONDS, "inserted at", DATA, "Time since the first event.",
        lambda of: of.figures.bios.inserted[of.rows] / 1e9),
    "served": Column(SECONDS, "in driver", WIDE, "Time since the last dispatch.",
        lambda of: _seconds(of.figures.in_driver[of.rows])),
    "requeued": Column(SECONDS, "", DATA,
        "Time from the first dispatch to the last, or since the requeue.",
        lambda of: _seconds(of.figures.requeued[of.rows])),
    "overtaken_by": Column(COUNT, "", ALWAYS,
        "Sync requests inserted later and dispatched earlier.",
        lambda of: of.figures.overtaken(of.rows)),
    "state": Column(TEXT, "state at end", ALWAYS, "inserted, requeued, dispatched or completed."),
    "label": Column(TEXT, "name", DATA, "Task, operation, and sector or device."),
}  # fmt: skip


@dataclass(frozen=True)
class _Requests:
    """Single requests."""

    figures: Figures
    rows: Integers
    with_sector: bool
    """Whether labels need the sector to be unique."""

    @property
    def task(self) -> list[str]:
        index, names = self.figures.tasks(self.rows)
        return [names[each] for each in index.tolist()]

    @property
    def device(self) -> list[str]:
        return [self.figures.devices[each] for each in self.figures.bios.device[self.rows].tolist()]

    @property
    def operation(self) -> list[str]:
        return [CLASSES[each] for each in self.figures.kind[self.rows].tolist()]

    @property
    def state(self) -> npt.NDArray[np.str_]:
        bios, rows = self.figures.bios, self.rows
        state = np.where(bios.issued[rows] == NEVER, "inserted", "dispatched")
        state[self.figures.is_requeued[rows]] = "requeued"
        state[bios.completed[rows] != NEVER] = "completed"
        return state

    @property
    def label(self) -> list[str]:
        parts: list[Iterable[object]] = [self.task, self.operation]
        parts += [self.device] if len(self.figures.devices) > 1 else []
        parts += [self.figures.bios.sector[self.rows].tolist()] if self.with_sector else []
        return [" ".join(map(str, words)) for words in zip(*parts, strict=True)]


def _seconds(nanoseconds: Integers) -> npt.NDArray[np.float64]:
    return np.where(nanoseconds < 0, np.nan, nanoseconds / 1e9)


@dataclass(frozen=True)
class _Tasks(_Requests):
    """The longest waiting request of each group of task, device and operation."""

    groups: _Groups
    waiting: Integers


def _tasks(figures: Figures) -> _Tasks:
    wait, (index, names) = figures.wait, figures.task
    count = len(CLASSES)
    group: Integers = (figures.device * len(names) + index) * count + figures.kind
    if int(group.max(initial=0)) >= _MAX_GROUPS:
        group = np.unique(group, return_inverse=True)[1]
    groups = _by_group(group, wait)
    groups = groups[np.argsort(-groups.within(1.0), kind="stable")[:MAX_ROWS]]
    # The first of the longest requests of each group.
    longest = np.full(int(group.max(initial=0)) + 1, NEVER)
    longest[groups.number] = np.round(groups.within(1.0) * 1e9)
    rows = np.flatnonzero((wait == longest[group]) & (wait >= 0))
    found, first = np.unique(group[rows], return_index=True)
    worst = rows[first[np.searchsorted(found, groups.number)]]
    waiting = np.bincount(group[figures.is_waiting], minlength=len(longest))[groups.number]
    return _Tasks(figures, worst, False, groups, waiting)


TASKS = TableSpec("trace_tasks", "Waits in the scheduler by task", {
    "task": _TASK,
    "device": _DEVICE,
    "operation": _CLASS,
    **_STATISTICS | {name: replace(_STATISTICS[name], show=WIDE) for name in _LESS},
    "total": Column(SECONDS, "", DATA, "Sum of the waits.", lambda of: of.groups.sums / 1e9),
    "waiting": Column(COUNT, "still wait", ALWAYS, "Requests at the end of the trace."),
    **_WORST,
}, "Inserted requests of one task name, device and operation, with the longest wait; up to 10,000 "
    "rows.", ("longest", "task", "operation", "device"), rows=_tasks)  # fmt: skip


def _waits(figures: Figures) -> _Requests:
    rows = np.flatnonzero(figures.wait >= 0)
    if len(rows) > _MAX_WAITS:
        rows = rows[np.argpartition(-figures.wait[rows], _MAX_WAITS)[:_MAX_WAITS]]
    return _Requests(figures, rows, True)


WAITS = TableSpec("trace_waits", "Longest waits in the scheduler", {
    "task": _TASK,
    "device": _DEVICE,
    "operation": _CLASS,
    "waited": Column(SECONDS, "", ALWAYS, "Until dispatched, or the end of the trace.",
        lambda of: of.figures.wait[of.rows] / 1e9),
    **_WORST,
}, "A request: the 1,000 longest waits from insertion to first dispatch.",
    ("waited", "device", "sector"), rows=_waits)  # fmt: skip


class _Queue(NamedTuple):
    queue: Queue
    task: str
    longest: float


def _queues(figures: Figures) -> list[_Queue]:
    queues = sorted(figures.queues, key=lambda queue: -queue.expired_empty)[:MAX_ROWS]
    pid = np.array([queue.pid or 0 for queue in queues], np.int64)
    waits = _by_queue(figures) if queues else {}
    index, names = figures.trace.tasks(pid, np.full(len(pid), figures.end))
    return [
        _Queue(
            queue,
            _text(names[which]) or "?" if queue.pid is not None else "(shared)",
            waits.get((queue.device, queue.pid or -1, queue.is_sync), np.nan),
        )
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


QUEUES = TableSpec("trace_queues", "Queues of the scheduler by its messages", {
    "queue": Column(TEXT, "", ALWAYS, "Name by CFQ or BFQ: PID, S or A.",
        lambda row: _text(row.queue.name)),
    "task": Column(TEXT, "", ALWAYS, "Last name of that PID in the trace."),
    "device": replace(_DEVICE, get=lambda row: major_minor(row.queue.device)),
    "longest": Column(SECONDS, "longest wait", ALWAYS, "Of requests of this PID and kind."),
    "sync": Column(NONE, "", WIDE, "Whether the queue is for synchronous requests.",
        "queue.is_sync"),
    "inserted": Column(COUNT, "", WIDE, "Requests inserted.", "queue.inserted"),
    "selected": Column(COUNT, "", ALWAYS, "Times the queue became active.", "queue.selected"),
    "dispatched": Column(COUNT, "", ALWAYS, "Requests dispatched.", "queue.dispatched"),
    "expired": Column(COUNT, "", ALWAYS, "Times a turn ended.", "queue.expired"),
    "preempted": Column(COUNT, "", ALWAYS, "Turns ended by another queue.", "queue.preempted"),
    "expired_empty": Column(COUNT, "without dispatch", ALWAYS, "Turns without a dispatch.",
        "queue.expired_empty"),
    "preempts": Column(COUNT, "", WIDE, "Times the queue preempted another one (CFQ).",
        "queue.preempts"),
}, "A queue of CFQ or BFQ; the 10,000 with most turns without a dispatch.",
    ("longest", "device", "queue"), rows=_queues)  # fmt: skip


def _total(figures: Figures, values: Integers | Mask) -> Integers:
    """Add up values of bios by device."""
    return np.bincount(figures.device, values, len(figures.devices)).astype(np.int64)


def _longest(figures: Figures, nanoseconds: Integers) -> npt.NDArray[np.float64]:
    longest = np.full(len(figures.devices), NEVER)
    np.maximum.at(longest, figures.device, nanoseconds)
    return _seconds(longest)


DEVICES = TableSpec("trace_devices", "Devices of the trace", {
    "device": replace(_DEVICE, get=lambda f: [*f.devices.values()]),
    "bios": Column(COUNT, "", ALWAYS, "Bios with data.",
        lambda f: np.bincount(f.device, minlength=len(f.devices))),
    "requests": Column(COUNT, "", ALWAYS, "Bios with a request of their own.",
        lambda f: _total(f, f.is_request)),
    "waiting": Column(COUNT, "in scheduler", ALWAYS, "Requests at the end of the trace.",
        lambda f: _total(f, f.is_waiting)),
    "in_driver": Column(COUNT, "", ALWAYS, "Requests at the end of the trace.",
        lambda f: _total(f, f.is_in_driver)),
    "without_request": Column(COUNT, "", WIDE, "Bios at the end of the trace.",
        lambda f: _total(f, f.is_without_request)),
    "requeued": Column(COUNT, "requeues", WIDE, "Dispatches taken back.",
        lambda f: _total(f, f.bios.requeues)),
    "errors": Column(COUNT, "", WIDE, "Bios completed with an error.",
        lambda f: _total(f, f.bios.error != 0)),
    "bytes": Column(BYTES, "data", WIDE, "Bytes of all bios.", lambda f: _total(f, f.bios.bytes)),
    "longest": Column(SECONDS, "longest wait", ALWAYS, "Wait in the scheduler.",
        lambda f: _longest(f, f.wait)),
    "longest_in_driver": Column(SECONDS, "", ALWAYS, "From dispatch to completion.",
        lambda f: _longest(f, f.in_driver)),
}, "A device whose events are in the trace.", ("bios", "device"))  # fmt: skip

EVENTS = TableSpec("trace_events", "Events by action", {
    "device": replace(_DEVICE, get=lambda row: major_minor(row[0][0])),
    "action": Column(TEXT, "", ALWAYS, "The letter that blkparse prints.",
        lambda row: Act(row[0][1]).letters),
    "events": Column(COUNT, "", ALWAYS, "Messages are not events.", lambda row: row[1]),
}, "An action on a device; up to 10,000 rows.", ("events", "device", "action"),
    rows=lambda f: sorted(f.trace.counts.items())[:MAX_ROWS])  # fmt: skip


@dataclass(frozen=True)
class _Histogram:
    """Requests by wait."""

    steps: Integers
    """Binary logarithms of microseconds."""
    counts: Integers
    """Shape (steps, classes)."""


def _histogram(figures: Figures) -> _Histogram:
    rows = np.flatnonzero(figures.wait >= 0)
    kind = figures.kind[rows]
    # Up to 1 us, 2 us, 4 us …
    bucket = np.ceil(np.log2(np.maximum(figures.wait[rows] / 1e3, 1))).astype(np.int64)
    counts = np.bincount(bucket * len(CLASSES) + kind, minlength=len(CLASSES))
    counts = np.append(counts, np.zeros(-len(counts) % len(CLASSES), np.int64))
    counts = counts.reshape(-1, len(CLASSES))
    used = np.flatnonzero(counts.any(axis=1))
    steps = np.arange(used[0], used[-1] + 1) if len(used) else used
    return _Histogram(steps, counts[steps])


HISTOGRAM = TableSpec("trace_histogram", "Waits in the scheduler by length", {
    "waited": Column(TEXT, "", ALWAYS, "Longest wait of the row; above the row before.",
        lambda of: [f"up to {human_seconds(2.0**step / 1e6)}" for step in of.steps]),
    "sync_reads": Column(COUNT, "", ALWAYS, "Requests.", lambda of: of.counts[:, SYNC_READ]),
    "sync_writes": Column(COUNT, "", ALWAYS, "Requests.", lambda of: of.counts[:, SYNC_WRITE]),
    "async_writes": Column(COUNT, "", ALWAYS, "Requests.", lambda of: of.counts[:, ASYNC_WRITE]),
    "discards": Column(COUNT, "", WIDE, "Requests.",
        lambda of: of.counts[:, SYNC_WRITE + 1 :].sum(axis=1)),
}, "Requests by wait, in powers of two microseconds, including requests that still wait.",
    rows=_histogram)  # fmt: skip

_TIME = Column(TEXT, "from", ALWAYS, "Start of a slice of the trace.")
OVER_TIME = TableSpec("trace_over_time", "Requests in the scheduler over time", {
    "time": _TIME,
    "task": _TASK,
    "waiting": Column(COUNT, "in scheduler", ALWAYS, "Requests at once, average of the slice."),
    "inserted": Column(COUNT, "", ALWAYS, "Requests, in this slice."),
    "dispatched": Column(COUNT, "", ALWAYS, "Requests, in this slice."),
}, "A slice of the trace and a task: the four with the longest total wait, and others.",
    rows=over_time)  # fmt: skip

SLICES = TableSpec("trace_slices", "Longest waits in the scheduler over time", {
    "time": _TIME,
    "longest": Column(SECONDS, "", ALWAYS, "Until dispatch, or the end of the slice."),
    "task": _TASK,
    "device": _DEVICE,
    "operation": _CLASS,
}, "A slice of the trace, with the longest wait in it.", rows=slices)  # fmt: skip

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
