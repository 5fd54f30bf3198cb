# SPDX-License-Identifier: LGPL-2.1-or-later
"""The events of a trace as columns, and its losses."""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]


class Act(enum.IntEnum):
    """Actions of events, the low byte: enum blktrace_act in include/uapi/linux/blktrace_api.h."""

    letters: str
    """Letters of blkparse."""

    QUEUE = 1, "Q"
    BACK_MERGE = 2, "M"
    FRONT_MERGE = 3, "F"
    GET_REQUEST = 4, "G"
    SLEEP = 5, "S"
    REQUEUE = 6, "R"
    ISSUE = 7, "D"
    COMPLETE = 8, "C"
    PLUG = 9, "P"
    UNPLUG = 10, "U"
    UNPLUG_TIMER = 11, "UT"
    INSERT = 12, "I"
    SPLIT = 13, "X"
    BOUNCE = 14, "B"
    REMAP = 15, "A"
    ABORT = 16, "ABORT"
    DRIVER_DATA = 17, "DRV_DATA"
    # In version 8 of the format: of zoned devices.
    ZONE_PLUG = 18, "ZONE_PLUG"
    ZONE_UNPLUG = 19, "ZONE_UNPLUG"
    ZONE_MANAGEMENT = 20, "ZONE_MGMT"

    def __new__(cls, value: int, letters: str = "") -> Act:
        act = int.__new__(cls, value)
        act._value_, act.letters = value, letters
        return act


MERGES = (Act.BACK_MERGE, Act.FRONT_MERGE)

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
"""Columns of events. The time is in nanoseconds, the device a dev_t of the
trace (20 bits of minor), the flags are categories such as :data:`SYNC`."""
MESSAGE = np.dtype([("time", "<i8"), ("device", "<u4"), ("queue", "<u4"), ("kind", "u1")])
"""Columns of messages: the queue is an index to :attr:`Trace.queues`, the kind is one of
:mod:`kcensus.sources.blktrace.messages`."""
REST = np.dtype([("time", "<i8"), ("device", "<u4"), ("sector", "<u8"), ("rest", "<u8")])
"""A split: the begin of the bio, and the begin of its rest."""
NAME = np.dtype([("time", "<i8"), ("pid", "<u4"), ("name", "S16")])
"""A notification of a task's name."""

Columns: TypeAlias = dict[str, Integers]

BLOCK = 1 << 15
"""Rows of columns to work on at a time: the caches hold them and the results."""


class TraceError(Exception):
    """The trace cannot be read; the message is one sentence."""


class Loss(enum.Enum):
    """Kinds of losses of a trace: the counted unit, and the reason."""

    SKIPPED = "events", "gaps in the kernel's sequence numbers"
    DROPPED = "events", "blktrace dropped them, by its log: its buffers were full"
    FILES = "files", "missing, unreadable, or shorter than those of other CPUs"
    CUT = "bytes", "cut or zero at the end: blktrace was still writing, or the copy is not whole"
    DAMAGED = "bytes", "not events"
    UNKNOWN = "records", "unknown actions or formats"
    DISPLACED = "records", "times minutes away from neighbouring events"


class Losses(Counter[tuple[Loss, str]]):
    """Amounts by kind of loss and name of the file.

    :attr:`Loss.DROPPED` needs the log of blktrace: nothing in the files shows these events, as the
    kernel numbers only events that it writes.
    """

    def of(self, kind: Loss) -> dict[str, int]:
        """Return the amounts of one kind by name of the file, the largest first."""
        return {name: count for (each, name), count in self.most_common() if each is kind and count}


@dataclass
class Trace:
    """All events of a trace."""

    events: Columns
    """Columns of :data:`EVENT`; the rows in :attr:`spans` are events, each file's in their order.
    Times count from the first event."""
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
    """Names of schedulers' queues in their messages."""
    losses: Losses
    end: int = 0
    """Time of the last event or message."""
    ends: dict[int, int] = field(default_factory=dict)
    """End of the trace by device: the last event of all devices traced at that time."""
    start: float | None = None
    """Time of the first event in seconds since 1970, by the clock of the traced machine."""
    first_ns: int | None = None
    """CLOCK_MONOTONIC of the first event, recorded by blktrace; text does not have it."""
    offline: int = 0
    """CPUs without a file, as they were offline."""

    def until(self, end: int) -> Trace:
        """Return the trace as if it had ended earlier.

        :attr:`counts` still count all events.

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
        return values[np.argsort(time, kind="stable")]

    def tasks(self, pid: Integers, time: Integers) -> tuple[Integers, list[bytes]]:
        """Return the names of tasks at given times.

        If the first notification of a pid is later than a time, its name is the best guess.

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
            # The rank of a time among the times of names, which may be before the first event.
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
