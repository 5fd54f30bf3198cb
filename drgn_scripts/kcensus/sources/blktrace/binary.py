# SPDX-License-Identifier: LGPL-2.1-or-later
"""The binary files of blktrace.

A file is a sequence of ``struct blk_io_trace`` (include/uapi/linux/blktrace_api.h), each followed
by a payload of ``pdu_len`` bytes. A magic number with the version begins each of them, in the byte
order of the traced machine. The places of the events follow from one another, so that a loop would
be needed to find them. Instead, the magic numbers are searched for, and each event must end where
the next one begins; only if it does not, the search goes on event by event.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.sources.blktrace.events import (
    MESSAGE,
    NAME,
    NOTIFY,
    Act,
    Columns,
    Integers,
    Loss,
    empty,
)
from kcensus.sources.blktrace.parts import Part

MAGIC = 0x65617400
_CHUNK = 1 << 20
"""Bytes to read at a time: few enough for the caches, with the results."""
_MIN_EVENT = 48
_MAX_EVENT = 64 + 0xFFFF
_MAX_BREAKS = 10_000
"""Most places per file without a next event in sequence; after them, the file is abandoned."""
_PROCESS, _TIMESTAMP, _MESSAGE = range(3)
"""enum blktrace_notify."""
_CGROUP = 1 << 8
"""__BLK_TN_CGROUP: the payload begins with the id of a cgroup."""


_BEGIN = [("magic", "u4"), ("sequence", "u4"), ("time", "u8"), ("sector", "u8"), ("bytes", "u4")]
_END = [("device", "u4"), ("cpu", "u4"), ("error", "i2"), ("length", "u2")]
# Since Linux kernel v6.19, "blktrace: add definitions for struct blk_io_trace2" (commit not
# verified), there is a version 8 with a 64-bit action, whose low half is the former action.
_LAYOUTS = {
    7: np.dtype([*_BEGIN, ("action", "u4"), ("pid", "u4"), *_END]),
    8: np.dtype([*_BEGIN, ("pid", "u4"), ("action", "u8"), *_END, ("reserved", "V12")]),
}


@dataclass(frozen=True)
class Format:
    """Byte order and version of a file."""

    order: str
    version: int

    @property
    def magic(self) -> bytes:
        """The first bytes of each event."""
        value = MAGIC | self.version
        return value.to_bytes(4, "little" if self.order == "<" else "big")

    @property
    def layout(self) -> np.dtype[Any]:
        """The fields of an event; ``length`` is that of its payload."""
        return _LAYOUTS[self.version].newbyteorder("<" if self.order == "<" else ">")


def format_of(head: bytes) -> Format | None:
    """Return the format of a file that begins with ``head``; None if it is not of blktrace."""
    for order, name in (("<", "little"), (">", "big")):
        value = int.from_bytes(head[:4], name)  # type: ignore[arg-type]
        if len(head) >= 4 and value & ~0xFF == MAGIC:
            return Format(order, value & 0xFF)
    return None


def capacity(size: int) -> int:
    """Return the most events in a file of some bytes.

    An event that does not end at the begin of the next one may share bytes with it.
    """
    return size // _MIN_EVENT + min(_MAX_BREAKS, size // 4) + 2


def read(
    path: Path, room: Columns, size: int, advance: Callable[[int], None] = lambda amount: None
) -> Part:
    """Read one file.

    :param room: columns of :data:`~.events.EVENT` for :func:`capacity` events
    :param size: bytes to read: the file may grow meanwhile
    :param advance: is called with the number of bytes read
    :raises OSError: the file cannot be read
    """
    reader = _Reader(path.name, room)
    # One buffer for all chunks: fresh memory for each costs more than the work on it.
    buffer = np.zeros(_CHUNK + 2 * _MAX_EVENT, np.uint8)
    filled = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer[filled : filled + min(_CHUNK, size)].data):
            size -= count
            filled += count
            used = reader.chunk(buffer, filled)
            buffer[: filled - used] = buffer[used:filled].copy()
            filled -= used
            advance(count)
            if reader.is_abandoned:
                reader.losses[Loss.DAMAGED, path.name] += _left(file)
                break
    reader.end(buffer, filled)
    return reader.whole()


def _left(file: RawIOBase) -> int:
    here = file.tell()
    return file.seek(0, os.SEEK_END) - here


class _Reader(Part):
    def __init__(self, name: str, room: Columns) -> None:
        super().__init__(name, room)
        self.is_abandoned = False
        self._format: Format | None = None
        self._breaks = 0
        self._has_odd_payloads = False
        self._is_end = False

    def chunk(self, buffer: npt.NDArray[np.uint8], size: int) -> int:
        """Read the whole events of a chunk; return the number of processed bytes.

        :param buffer: the chunk, and room for an event behind it
        """
        if self._format is None:
            head = buffer[:size].tobytes()
            self._format = format_of(head) or _first_format(head)
            if self._format is None:
                self.losses[Loss.DAMAGED, self.name] += max(size - 3, 0)
                return max(size - 3, 0)
            if self._format.version not in _LAYOUTS:
                why = f"version {self._format.version} of the format; 7 and 8 are known"
                self.losses[Loss.FILES, f"{self.name}: {why}"] = 1
                self.is_abandoned = True
                return size
        text = buffer[: size + _MAX_EVENT]
        text[size:] = 0
        place, used = self._places(text, size, self._format)
        if len(place):
            self._take(text, place, self._format)
        return used

    def end(self, buffer: npt.NDArray[np.uint8], size: int) -> None:
        """Read the rest at the end of the file, and count the bytes of an incomplete event."""
        used = 0
        if size and self._format is not None and not self.is_abandoned:
            self._is_end = True
            used = self.chunk(buffer, size)
        rest = buffer[used:size].tobytes()
        if rest and self._format is not None and rest[:4] == self._format.magic[: len(rest)]:
            self.losses[Loss.CUT, self.name] += len(rest)
        elif rest and not self.is_abandoned:
            loss = Loss.DAMAGED if any(rest) else Loss.CUT
            self.losses[loss, self.name] += len(rest)

    def _places(self, text: npt.NDArray[np.uint8], size: int, form: Format) -> tuple[Integers, int]:
        """Return the places of the whole events of a chunk, and the number of processed bytes."""
        magic = np.frombuffer(form.magic, "<u4")[0]
        if not self._has_odd_payloads:
            place = np.flatnonzero(text[: size & ~3].view("<u4") == magic) * 4
            after = self._ends(text, place, form)
            if len(place) and place[0] == 0 and bool((after[:-1] == place[1:]).all()):
                if size - 4 < after[-1] <= size:
                    return place, int(after[-1])
                if after[-1] > size:
                    return place[:-1], int(place[-1])
            # Payloads of messages are not whole words: events are anywhere from here on.
            self._has_odd_payloads = True
        shifted = [
            np.flatnonzero(text[shift : shift + ((size - shift) & ~3)].view("<u4") == magic) * 4
            + shift
            for shift in range(4)
        ]
        place = np.sort(np.concatenate(shifted))
        return self._chained(text, place, size, form)

    def _chained(
        self, text: npt.NDArray[np.uint8], place: Integers, size: int, form: Format
    ) -> tuple[Integers, int]:
        """Return the possible events that follow one another; see :meth:`_places`.

        Magic numbers inside of payloads are skipped. If an event does not end at the next one, the
        bytes between them are unreadable.
        """
        after = self._ends(text, place, form)
        is_break = np.ones(len(place), np.bool_)
        is_break[:-1] = after[:-1] != place[1:]
        breaks = np.flatnonzero(is_break)
        runs: list[Integers] = []
        row, done = 0, 0
        while row < len(place):
            self.losses[Loss.DAMAGED, self.name] += int(place[row]) - done
            stop = int(breaks[np.searchsorted(breaks, row)])
            done = int(after[stop])
            if done > size and not (self._is_end and stop + 1 < len(place)):
                runs.append(place[row:stop])  # the end of the last one is in the next chunk
                return np.concatenate(runs), int(place[stop])
            runs.append(place[row : stop + 1])
            if size - 4 < done <= size:  # where the next event begins, its magic number is cut
                return np.concatenate(runs), done
            following = int(np.searchsorted(place, done))
            if following < len(place) and place[following] == done and following > stop:
                row = following
                continue
            row = stop + 1
            if row < len(place):
                done = min(done, int(place[row]))
                self._breaks += 1
            if self._breaks > _MAX_BREAKS:
                self.is_abandoned = True
                self.losses[Loss.DAMAGED, self.name] += size - done
                return np.concatenate(runs), size
        tail = max(size - 3, done)  # an event may begin in the last three bytes
        # blktrace maps its files, and cuts them to their sizes when it ends.
        loss = Loss.DAMAGED if text[done:tail].any() else Loss.CUT
        self.losses[loss, self.name] += tail - done
        return np.concatenate(runs or [place]), tail

    def _ends(self, text: npt.NDArray[np.uint8], place: Integers, form: Format) -> Integers:
        fields, size = form.layout.fields, form.layout.itemsize
        assert fields is not None
        offset = fields["length"][1]
        if form.order == "<" and not self._has_odd_payloads:
            words = text[offset - 2 : len(text) & ~3].view("<u4")
            last = np.take(words, place >> 2, mode="clip")
            aligned: Integers = place + ((last >> 16) + np.uint32(size))
            return aligned
        length = _field(text, offset, f"{form.order}u2")[place]
        end: Integers = place + size + length
        return end

    def _take(self, text: npt.NDArray[np.uint8], place: Integers, form: Format) -> None:
        size = form.layout.itemsize
        every: npt.NDArray[Any] = np.ndarray(
            (len(text) - size + 1,), f"V{size}", text, strides=(1,)
        )
        # An event may be at any byte, for which NumPy has no fast path: to copy it whole takes as
        # long as to read one field of it there.
        copies = every[place]
        records = copies.view(form.layout)
        action = records["action"].astype(np.uint32)
        is_note = (action & (NOTIFY << 16)) != 0
        kind = action.astype(np.uint8)
        is_event = (kind > 0) & (kind <= Act.ZONE_MANAGEMENT) & ~is_note
        notes = np.flatnonzero(is_note)
        noted = copies[notes].view(form.layout)
        said, names = self._take_notes(text, place[notes], noted, form.order)
        if not is_event.all():
            if unknown := len(place) - int(is_event.sum()) - len(notes):
                self.losses[Loss.UNKNOWN, self.name] += unknown
            rows = np.flatnonzero(is_event)
            place, records, action = place[rows], copies[rows].view(form.layout), action[rows]
        columns = self._next(len(action))
        columns["action"][:] = action
        columns["flags"][:] = action >> np.uint32(16)
        for name in ("time", "sector", "bytes", "pid", "device", "cpu", "error"):
            columns[name][:] = records[name]
        splits = np.flatnonzero(columns["action"] == Act.SPLIT)
        # The payload ends with the data of the event; the id of a cgroup may be before it.
        splits = splits[records["length"][splits] >= 8]
        last = place[splits] + size + records["length"][splits] - 8
        rests = {name: columns[name][splits] for name in ("time", "device", "sector")}
        rests["rest"] = _field(text, 0, ">u8")[last].astype(np.uint64)
        self._add(columns, records["sequence"], said, rests, names)

    def _take_notes(
        self, text: npt.NDArray[np.uint8], place: Integers, records: Integers, order: str
    ) -> tuple[Columns, Columns]:
        if not len(place):
            return empty(MESSAGE), empty(NAME)
        action, time = records["action"].astype(np.uint32), records["time"].astype(np.int64)
        length = records["length"].astype(np.int64)
        skip = np.where(action & _CGROUP, np.minimum(length, 8), 0)
        start, length = place + records.itemsize + skip, length - skip
        kind = action & 0xFF
        rows = np.flatnonzero(kind == _MESSAGE)
        device = records["device"][rows].astype(np.uint32)
        said = self._messages(text, start[rows], length[rows], time[rows], device)
        rows = np.flatnonzero((kind == _PROCESS) & (length > 0))
        name = np.zeros((len(rows), 16), np.uint8)
        wide = np.arange(16) < length[rows][:, None]
        name[wide] = text[start[rows][:, None] + np.arange(16)][wide]
        tasks: Columns = {
            "time": time[rows],
            "pid": records["pid"][rows].astype(np.uint32),
            "name": _until_zero(name),
        }
        clocks = np.flatnonzero((kind == _TIMESTAMP) & (length >= 8))
        if len(clocks) and self.clock is None:
            first = clocks[0]
            seconds = int(_field(text, 0, f"{order}u4")[start[first]])
            nanoseconds = int(_field(text, 4, f"{order}u4")[start[first]])
            self.clock = int(time[first]), seconds + nanoseconds / 1e9
        return said, tasks


def _until_zero(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.bytes_]:
    ended = np.logical_or.accumulate(text == 0, axis=1)
    text[ended] = 0
    return text.view(f"S{text.shape[1]}").ravel()


def _field(text: npt.NDArray[np.uint8], offset: int, dtype: str) -> npt.NDArray[Any]:
    """Return a view with a number at each byte of ``text``, ``offset`` behind it."""
    count = len(text) - offset - np.dtype(dtype).itemsize + 1
    return np.ndarray((count,), dtype, text, offset=offset, strides=(1,))


def _first_format(data: bytes) -> Format | None:
    found = [
        (place, form)
        for form in (Format(order, version) for order in "<>" for version in _LAYOUTS)
        if (place := data.find(form.magic)) >= 0
    ]
    return min(found, key=lambda pair: pair[0])[1] if found else None
