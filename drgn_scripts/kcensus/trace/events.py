# SPDX-License-Identifier: LGPL-2.1-or-later
"""The events of a trace as columns, and what of the trace was lost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

# enum blktrace_act in include/uapi/linux/blktrace_api.h: the low byte of the action.
QUEUE, BACK_MERGE, FRONT_MERGE, GET_REQUEST, SLEEP, REQUEUE, ISSUE, COMPLETE = range(1, 9)
PLUG, UNPLUG, UNPLUG_TIMER, INSERT, SPLIT, BOUNCE, REMAP, ABORT, DRIVER_DATA = range(9, 18)
# In version 8 of the format: of zoned devices.
ZONE_PLUG, ZONE_UNPLUG, ZONE_MANAGEMENT = range(18, 21)
LETTERS = {
    QUEUE: "Q",
    BACK_MERGE: "M",
    FRONT_MERGE: "F",
    GET_REQUEST: "G",
    SLEEP: "S",
    REQUEUE: "R",
    ISSUE: "D",
    COMPLETE: "C",
    PLUG: "P",
    UNPLUG: "U",
    UNPLUG_TIMER: "UT",
    INSERT: "I",
    SPLIT: "X",
    BOUNCE: "B",
    REMAP: "A",
    ABORT: "ABORT",
    DRIVER_DATA: "DRV_DATA",
    ZONE_PLUG: "ZONE_PLUG",
    ZONE_UNPLUG: "ZONE_UNPLUG",
    ZONE_MANAGEMENT: "ZONE_MGMT",
}
"""The letters that blkparse prints, by action."""

# enum blktrace_cat: the high half of the action.
WRITE, FLUSH, SYNC, PASSTHROUGH, NOTIFY = 1 << 1, 1 << 2, 1 << 3, 1 << 9, 1 << 10
AHEAD, META, DISCARD, FUA = 1 << 11, 1 << 12, 1 << 13, 1 << 15

EVENT = np.dtype(
    [
        ("time", "<i8"),
        ("sector", "<u8"),
        ("bytes", "<u4"),
        ("pid", "<u4"),
        ("device", "<u4"),
        ("flags", "<u2"),
        ("cpu", "<u2"),
        ("error", "<i2"),
        ("action", "u1"),
    ]
)
"""What is kept of an event: columns by name. The time is in nanoseconds, the device a dev_t of the
trace (20 bits of minor), the flags are categories such as :data:`SYNC`."""
MESSAGE = np.dtype([("time", "<i8"), ("device", "<u4"), ("queue", "<u4"), ("kind", "u1")])
"""What is kept of a message: the queue is an index to :attr:`Trace.queues`, the kind is one of
:mod:`kcensus.trace.messages`."""
REST = np.dtype([("time", "<i8"), ("device", "<u4"), ("sector", "<u8"), ("rest", "<u8")])
"""A split: where the bio began, and the sector at which the rest of it begins."""
NAME = np.dtype([("time", "<i8"), ("pid", "<u4"), ("name", "S16")])
"""A notification of a task's name."""

Columns: TypeAlias = dict[str, Integers]

BLOCK = 1 << 15
"""Rows of columns that are worked on at once: the caches hold them and what is made of them."""


class TraceError(Exception):
    """The trace cannot be read; the message is one sentence."""


@dataclass
class Losses:
    """What of a trace is not there or cannot be read; counts by name of the file."""

    skipped: Counter[str] = field(default_factory=Counter)
    """Events that the sequence numbers of the kernel skip."""
    cut: Counter[str] = field(default_factory=Counter)
    """Bytes of an event that the end of the file cuts."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Bytes that are not events."""
    unwritten: Counter[str] = field(default_factory=Counter)
    """Zeros behind the last event: blktrace was still writing when the file was copied."""
    abandoned: Counter[str] = field(default_factory=Counter)
    """Bytes behind so much damage that the rest of the file was not read."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Events with actions, or lines, that are not known."""
    displaced: int = 0
    """Events whose times are impossible."""
    missing: list[str] = field(default_factory=list)
    """Files of CPUs that had events, or whose files of other devices are there."""
    offline: list[str] = field(default_factory=list)
    """Other files of CPUs between those that are there: blktrace makes them for online CPUs."""
    early: Counter[str] = field(default_factory=Counter)
    """Milliseconds by which the file of a CPU ends before the others, which go on as before."""
    short: Counter[str] = field(default_factory=Counter)
    """Bytes that a file lacks, by the log of blktrace."""
    dropped: int | None = None
    """Events that blktrace says it dropped; None without its log. Nothing in the files shows them:
    the kernel numbers only what it writes."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why a file could not be read, by its name."""

    def add(self, other: Losses) -> None:
        """Add the losses of another file."""
        for name in ("skipped", "cut", "unreadable", "unwritten", "abandoned", "unknown"):
            counts = getattr(self, name)
            counts.update({file: count for file, count in getattr(other, name).items() if count})
        self.displaced += other.displaced
        self.missing += other.missing
        self.offline += other.offline
        self.failed |= other.failed


@dataclass
class Trace:
    """All events of a trace."""

    events: Columns
    """Columns of :data:`EVENT`, of which the rows in :attr:`spans` are events: those of each file
    in the order of the file. Times count from the first event."""
    spans: list[slice]
    """The rows of each file."""
    counts: Counter[tuple[int, int]]
    """Events by device and action."""
    messages: Columns
    """Columns of :data:`MESSAGE`, in order of their times."""
    splits: Columns
    """Columns of :data:`REST`."""
    names: Columns
    """Columns of :data:`NAME`, sorted by pid, then time."""
    queues: list[bytes]
    """Names of schedulers' queues, as their messages have them."""
    losses: Losses
    end: int = 0
    """Time of the last event or message."""
    ends: dict[int, int] = field(default_factory=dict)
    """The same by device: that of the last event of all devices that were traced at that time."""
    start: float | None = None
    """Time of the first event in seconds since 1970, by the clock of the traced machine."""
    first_ns: int | None = None
    """CLOCK_MONOTONIC of the first event, which blktrace records; text does not have it."""

    def until(self, end: int) -> Trace:
        """Return the trace as it would be if it had ended earlier.

        :attr:`counts` are still those of all events.

        :param end: time in ns
        """
        if end >= self.end:
            return self
        kept = [self.events["time"][span] <= end for span in self.spans]
        events = {
            name: np.concatenate(
                [column[span][own] for span, own in zip(self.spans, kept, strict=True)]
            )
            for name, column in self.events.items()
        }
        ends = [0, *itertools.accumulate(int(own.sum()) for own in kept)]
        messages, splits, names = (
            {name: column[each["time"] <= end] for name, column in each.items()}
            for each in (self.messages, self.splits, self.names)
        )
        return replace(
            self,
            events=events,
            spans=[slice(*pair) for pair in itertools.pairwise(ends)],
            messages=messages,
            splits=splits,
            names=names,
            end=max(end, 0),
            ends={device: min(own, max(end, 0)) for device, own in self.ends.items()},
        )

    def __len__(self) -> int:
        return self.counts.total()

    def blocks(self) -> Iterator[slice]:
        """Yield the rows of all events, a block at a time."""
        for span in self.spans:
            for begin in range(span.start, span.stop, BLOCK):
                yield slice(begin, min(begin + BLOCK, span.stop))

    def column(self, name: str) -> Integers:
        """Return a column of all events, in the order of their times; shape (n,)."""
        time, values = (
            np.concatenate([self.events[each][span] for span in self.spans] or [np.zeros(0)])
            for each in ("time", name)
        )
        in_order: Integers = values[np.argsort(time, kind="stable")]
        return in_order

    def tasks(self, pid: Integers, time: Integers) -> tuple[Integers, list[bytes]]:
        """Return the names of tasks at given times.

        Where the first notification of a pid is later than a time, its name is the best guess.

        :return: an index for each pid, shape (n,), and the names by index; the first one is empty:
            no notification has it
        """
        names = self.names
        if not len(names["pid"]):
            return np.zeros(len(pid), np.int64), [b""]
        texts, code = np.unique(names["name"], return_inverse=True)
        known, start = np.unique(names["pid"], return_index=True)
        row = np.searchsorted(known, pid)
        row[row == len(known)] = 0
        place = start[row]
        if len(known) < len(names["pid"]):
            # The rank of a time among those of names, which may be before the first event.
            times = np.unique(names["time"])
            step = len(times) + 1
            keys = np.searchsorted(known, names["pid"]) * step
            keys += np.searchsorted(times, names["time"], side="right")
            wanted = row * step + np.searchsorted(times, time, side="right")
            place = np.maximum(np.searchsorted(keys, wanted, side="right") - 1, place)
        index = code[place] + 1
        index[known[row] != pid] = 0
        return index, [b"", *(bytes(text) for text in texts)]


def major_minor(device: int) -> str:
    """Return the device of a trace as ``8,0``."""
    return f"{device >> 20},{device & 0xFFFFF}"


def empty(dtype: np.dtype[Any]) -> Columns:
    """Return columns without rows."""
    return {name: np.zeros(0, dtype[name]) for name in dtype.names or ()}


def joined(parts: list[Columns], dtype: np.dtype[Any]) -> Columns:
    """Return columns with the rows of all parts; the parts lose their columns."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: np.concatenate([part.pop(name) for part in parts] or [np.zeros(0, dtype[name])])
        for name in dtype.names or ()
    }


def counted(device: Integers, action: npt.NDArray[np.uint8]) -> Counter[tuple[int, int]]:
    """Return the number of events by device and action."""
    counts: Counter[tuple[int, int]] = Counter()
    known, code = device[:1], action.astype(np.int64)
    if not bool((device == known).all()):
        known, inverse = np.unique(device, return_inverse=True)
        code += inverse * 256
    for number, count in enumerate(np.bincount(code).tolist()):
        if count:
            counts[int(known[number >> 8]), number & 0xFF] = count
    return counts


def sorted_by_time(columns: Columns) -> Columns:
    """Sort columns by time; equal times keep their order."""
    time = columns["time"]
    if not len(time) or bool((time[1:] >= time[:-1]).all()):
        return columns
    order = np.argsort(time, kind="stable")  # timsort: the parts are sorted already
    return {name: np.take(columns.pop(name), order, mode="clip") for name in list(columns)}
