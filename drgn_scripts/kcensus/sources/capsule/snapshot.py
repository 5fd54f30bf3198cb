# SPDX-License-Identifier: LGPL-2.1-or-later
"""A running kernel's memory as it was at the first read of each page.

All readers get the same bytes, however long they take, and a capsule gets them, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.sources.faults import REASONS, reason

_UNKNOWN, _KEPT, _FAULTS = 0, 1, 2
"""States of page frames; a fault is the last, plus its place in ``REASONS``."""
_MAX_RUN = 1024
"""Pages to read at once."""


class Snapshot:
    """Keeps pages in a file, at their physical addresses: a sparse one.

    :param prog: reads the running kernel
    :param file: descriptor of an empty file without a name, which ends with its last descriptor
    :param max_bytes: most bytes to keep. Further pages are read from the running kernel each time
    """

    def __init__(self, prog: drgn.Program, file: int, max_bytes: int) -> None:
        self._prog, self._file = prog, file
        self._page_size = int(prog["PAGE_SIZE"])
        self._left = max_bytes // self._page_size
        self._states = np.zeros(int(prog["max_pfn"]) + 1, np.uint8)
        self.is_full = False
        """Whether pages were left out, so that memory is no longer that of the first read."""

    def read(self, address: int, count: int) -> bytes:
        """Return physical memory.

        :raises drgn.FaultError: it cannot be read
        """
        size = self._page_size
        first, last = address // size, (address + count - 1) // size
        if last >= len(self._states):
            return bytes(self._prog.read(address, count, physical=True))
        states = self._states[first : last + 1]
        if (states == _UNKNOWN).any():
            for start, end in _runs(states == _UNKNOWN):
                self._keep(first + start, end - start)
        if (states == _KEPT).all():
            return os.pread(self._file, count, address)
        for frame in (first + np.flatnonzero(states >= _FAULTS)).tolist():
            raise drgn.FaultError(
                REASONS[self._states[frame] - _FAULTS], max(frame * size, address)
            )
        return bytes(self._prog.read(address, count, physical=True))

    def has_room(self, size: int, share: float = 0.5) -> bool:
        """Return whether bytes fit into a share of the room that is left."""
        return size <= share * self._left * self._page_size

    def take(self, frames: npt.NDArray[np.int64], share: float = 0.5) -> bool:
        """Keep pages at once, so that they are of one moment; return whether there was room.

        :param frames: ascending, each once
        :param share: most of the room that they may take
        """
        frames = frames[(frames >= 0) & (frames < len(self._states))]
        frames = frames[self._states[frames] == _UNKNOWN]
        if not self.has_room(len(frames) * self._page_size, share):
            return False
        for run in np.split(frames, np.flatnonzero(np.diff(frames) != 1) + 1):
            for start in range(0, len(run), _MAX_RUN):
                self._keep(int(run[start]), len(run[start : start + _MAX_RUN]))
        return True

    def _keep(self, frame: int, count: int) -> None:
        """Read pages and keep them; by halves, down to those that cannot be read."""
        if count > self._left:
            self.is_full = True
            return
        try:
            data = self._prog.read(frame * self._page_size, count * self._page_size, True)
        except (drgn.FaultError, ValueError) as error:
            if count == 1:
                self._states[frame] = _FAULTS + REASONS.index(reason(error))
                return
            self._keep(frame, count // 2)
            self._keep(frame + count // 2, count - count // 2)
            return
        try:
            written = os.pwrite(self._file, data, frame * self._page_size)
        except OSError:  # the disk is full
            written = 0
        if written == len(data):
            self._states[frame : frame + count] = _KEPT
            self._left -= count
        else:
            self.is_full, self._left = True, 0


def _runs(wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the first row of each run of wanted ones, and the row behind it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
