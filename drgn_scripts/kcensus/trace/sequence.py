# SPDX-License-Identifier: LGPL-2.1-or-later
"""Events that are missing by their numbers: the kernel counts them per device and CPU."""

from __future__ import annotations

import numpy as np

from kcensus.trace.events import Columns, Integers

_MAX_SKIP = 1 << 31


class Sequences:
    """Checks the numbers of the events of one file, chunk by chunk."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    @property
    def cpus(self) -> set[int]:
        """The CPUs of all events."""
        return {key & 0xFFFF for key in self._last}

    def skipped(self, columns: Columns, sequence: Integers) -> int:
        """Return how many events the numbers of a chunk skip.

        :param columns: of the events, with device and CPU
        :param sequence: their numbers, shape (n,)
        """
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
