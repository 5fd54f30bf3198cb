# SPDX-License-Identifier: LGPL-2.1-or-later
"""The content of one file of a trace, read chunk by chunk."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from kcensus.sources.blktrace import messages
from kcensus.sources.blktrace.events import (
    MESSAGE,
    NAME,
    REST,
    Columns,
    Integers,
    Loss,
    Losses,
    Mask,
    counted,
    joined,
)

_MAX_SKIP = 1 << 31


class Part:
    """The content of one file, to which readers add."""

    def __init__(self, name: str, room: Columns) -> None:
        """Begin a file.

        :param room: columns of :data:`~.events.EVENT` to fill
        """
        self.name, self.losses = name, Losses()
        self.counts: Counter[tuple[int, int]] = Counter()
        """Events by device and action."""
        self.queues: dict[bytes, int] = {b"": 0}
        """Numbers of the queues with messages."""
        self.clock: tuple[int, float] | None = None
        """A time of the trace, and the same moment in seconds since 1970."""
        self.begin = 0
        """Row of the first event in the columns of the trace."""
        self.events = room
        self._count = 0
        self._last: dict[int, int] = {}
        """The number of the last event by device and CPU."""
        self._others: list[tuple[Columns, Columns, Columns]] = []

    def whole(self) -> Part:
        """Join the parts read so far."""
        self.events = {name: column[: self._count] for name, column in self.events.items()}
        others = [[*group] for group in zip(*self._others, strict=True)] or [[], [], []]
        kinds = (MESSAGE, REST, NAME)
        self.messages, self.splits, self.names = map(joined, others, kinds)
        return self

    @property
    def cpus(self) -> set[int]:
        """CPUs of the events."""
        return {key & 0xFFFF for key in self._last}

    def keep(self, kept: Mask) -> int:
        """Keep some of the events only; return the number of others."""
        lost = np.flatnonzero(~kept)
        if len(lost):
            self.counts -= counted(self.events["device"][lost], self.events["action"][lost])
            count = len(kept) - len(lost)
            for name, column in self.events.items():
                column[:count] = column[kept]
                self.events[name] = column[:count]
        return len(lost)

    def _next(self, count: int) -> Columns:
        """Return the columns of the next events, to be filled."""
        begin, self._count = self._count, self._count + count
        return {name: column[begin : self._count] for name, column in self.events.items()}

    def _add(self, columns: Columns, sequence: Integers, *others: Columns) -> None:
        """Count events, and keep other records.

        :param sequence: numbers of the events, shape (n,)
        :param others: columns of :data:`MESSAGE`, :data:`REST` and :data:`NAME`
        """
        self.counts += counted(columns["device"], columns["action"])
        if skipped := self._skipped(columns, sequence):
            self.losses[Loss.SKIPPED, self.name] += skipped
        said, rests, names = others
        self._others.append((said, rests, names))

    def _messages(
        self,
        text: npt.NDArray[np.uint8],
        start: Integers,
        length: Integers,
        time: Integers,
        device: Integers,
    ) -> Columns:
        """Return columns of messages; see :func:`messages.parse`."""
        code, names, kinds = messages.parse(text, start, length)
        number = [self.queues.setdefault(name, len(self.queues)) for name in names]
        queue = np.array(number, np.uint32)[code]
        return {"time": time, "device": device, "queue": queue, "kind": kinds}

    def _skipped(self, columns: Columns, sequence: Integers) -> int:
        """Return the number of events that the kernel's numbers skip, per device and CPU."""
        if not len(sequence):
            return 0
        device, cpu = columns["device"], columns["cpu"]
        key = int(device[0]) << 16 | int(cpu[0])
        if (
            int(sequence[0]) == self._last.get(key, int(sequence[0]) - 1) + 1
            and bool((sequence[1:] - sequence[:-1] == 1).all())
            and bool((device == device[0]).all())
            and bool((cpu == cpu[0]).all())
        ):
            self._last[key] = int(sequence[-1])
            return 0
        sequence = sequence.astype(np.int64)
        stream = columns["device"].astype(np.int64) << 16 | columns["cpu"]
        if not bool((stream[1:] == stream[:-1]).all()):
            order = np.argsort(stream, kind="stable")
            stream, sequence = stream[order], sequence[order]
        step = np.diff(sequence, prepend=sequence[:1])
        first = np.flatnonzero(np.diff(stream, prepend=-1))
        last = np.append(first[1:], len(stream)) - 1
        for begin, end in zip(first.tolist(), last.tolist(), strict=False):
            key = int(stream[begin])
            step[begin] = sequence[begin] - self._last.get(key, int(sequence[begin]) - 1)
            self._last[key] = int(sequence[end])
        # Backwards: the trace was started again, or the number overflowed.
        return int((step[(step > 1) & (step < _MAX_SKIP)] - 1).sum())
