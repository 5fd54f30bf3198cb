# SPDX-License-Identifier: LGPL-2.1-or-later
"""The default text output of blkparse.

A line is ``DEVICE CPU SEQUENCE TIME PID ACTION RWBS``, then the data of the action; see
``process_default()`` in blkparse_fmt.c of blktrace::

    8,0   11   206   81.092496118   804  I  WM 141698288 + 8 (   22911) [xfsaild/sda1]

Numbers are read eight digits at a time, all lines together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.sources.blktrace import events, messages
from kcensus.sources.blktrace.events import (
    Act,
    Columns,
    Integers,
    Loss,
    Mask,
)
from kcensus.sources.blktrace.parts import Part

_CHUNK = 4 << 20
_MAX_LINE = 1 << 16
_MIN_LINE = 16
"""Least bytes of a line: seven words, with two commas or points."""
_PAD = 16
_LINE = re.compile(
    rb"(?m)^ *\d+,\d+ +\d+ +\d+ +\d+\.\d{9} +\d+ +([0-9a-f]+,[0-9a-f]+ +)?[A-Zm][A-Z]? "
)
_SUMMARY = re.compile(rb"(CPU ?\d+|Total) \(.*\):\s*$|Input file .* added\s*$", re.MULTILINE)
"""First lines of blkparse's output before and after the events."""
_MAX_OTHERS = 10_000
"""Most lines of a chunk, other than events, that may be of a summary."""
_ACTIONS = {messages.word(act.letters.encode()): act for act in Act}
_MESSAGE = messages.word(b"m")
_NAMED = (Act.QUEUE, Act.GET_REQUEST, Act.INSERT, Act.BACK_MERGE, Act.FRONT_MERGE)
"""Actions of tasks that ask for I/O: their lines end with the task's name."""
_BRACKETED = (*_NAMED, Act.SLEEP, Act.PLUG, Act.SPLIT, Act.ISSUE, Act.REQUEUE, Act.COMPLETE)
"""Actions with a bracket at the end of the line, after a name or an error."""
_BEHIND_SECTOR = b"+/[("
"""First bytes of the word after a sector."""
_FLAGS = {
    "W": events.WRITE,
    "D": events.DISCARD | events.WRITE,
    "A": events.AHEAD,
    "S": events.SYNC,
    "M": events.META,
}
_ZEROS = np.uint64(0x3030303030303030)
_U8 = np.uint64(8)


def capacity(size: int) -> int:
    """Return the most events in a file of some bytes."""
    return size // _MIN_LINE + 1


def is_text(head: bytes) -> bool:
    """Return whether a file with this begin is the output of blkparse."""
    return _LINE.search(head) is not None


def read(
    path: Path, room: Columns, size: int, advance: Callable[[int], None] = lambda amount: None
) -> Part:
    """Read one file, as :func:`.binary.read` does."""
    reader = _Reader(path.name, room)
    with path.open("rb") as file:
        rest = b""
        while data := file.read(min(_CHUNK, size)):
            size -= len(data)
            advance(len(data))
            data = rest + data
            cut = data.rfind(b"\n") + 1
            rest = data[cut:]
            if len(rest) > _MAX_LINE:
                reader.losses[Loss.UNREADABLE, path.name] += len(rest)
                rest = b""
            reader.chunk(data[:cut])
        if rest:
            reader.end(rest)
    return reader.whole()


class _Reader(Part):
    _is_summary = False

    def end(self, line: bytes) -> None:
        """Take the last line if it is whole: its line break may be all that is missing."""
        if line.rstrip().endswith(b"]") or b" m " in line or self._is_summary:
            self.chunk(line + b"\n")
        else:
            self.losses[Loss.CUT, self.name] += len(line)

    def chunk(self, data: bytes) -> None:
        """Read whole lines."""
        if not data:
            return
        data = data.replace(b"\r\n", b"\n")
        text = np.frombuffer(bytes(_PAD) + data + bytes(messages.PADDING), np.uint8)
        end = np.flatnonzero(text[: _PAD + len(data)] == ord("\n"))
        start = np.append(_PAD, end[:-1] + 1)
        lines = _Lines(text, start, end)
        good = lines.is_event
        self._count_others(data, start - _PAD, good, lines)
        said = np.flatnonzero(good & lines.is_message)
        time, device = (lines.columns[name][said] for name in ("time", "device"))
        begin = lines.token(7, said)
        length = np.maximum(lines.end[said] - begin, 0)
        rows = np.flatnonzero(good & ~lines.is_message)
        columns = self._next(len(rows))
        for name, column in columns.items():
            column[:] = lines.columns[name][rows]
        splits = columns["action"] == Act.SPLIT
        columns["bytes"][splits] = 0
        rests = {name: columns[name][splits] for name in ("time", "device", "sector")}
        rests["rest"] = lines.length[rows[splits]].astype(np.uint64)
        messages_ = self._messages(text, begin, length, time, device)
        self._add(columns, lines.sequence[rows], messages_, rests, lines.names(rows))

    def _count_others(self, data: bytes, start: Integers, good: Mask, lines: _Lines) -> None:
        """Count lines that are neither events, nor empty, nor of the summary."""
        has_bytes = lines.has_tokens
        if b"\0" in data:
            zeros = np.flatnonzero(lines.text == 0)
            before = np.searchsorted(zeros, start + _PAD)
            has_bytes = has_bytes | (np.searchsorted(zeros, lines.end) > before)
        bad = np.flatnonzero(~good & has_bytes)
        begins = bad[:_MAX_OTHERS]
        is_first = [_SUMMARY.match(data, at) is not None for at in start[begins].tolist()]
        # A summary goes on until the next event.
        latest = np.full(len(good), -1)
        if self._is_summary and len(latest):
            latest[0] = 0
        latest[begins[is_first]] = begins[is_first]
        event = np.where(good, np.arange(len(good)), -1)
        is_summary = np.maximum.accumulate(latest) > np.maximum.accumulate(event)
        self._is_summary = bool(is_summary[-1]) if len(good) else self._is_summary
        if count := int((~is_summary[bad]).sum()):
            self.losses[Loss.UNKNOWN, self.name] += count


class _Lines:
    """The lines of a chunk, cut into words; all arrays have a row per line."""

    def __init__(self, text: npt.NDArray[np.uint8], start: Integers, end: Integers) -> None:
        self.text, self.end = text, end
        is_space = (text == ord(" ")) | (text == ord("\n")) | (text == ord("\t")) | (text == 0)
        is_begin = ~is_space
        is_begin[1:] &= is_space[:-1]
        is_end = is_space.copy()
        is_end[1:] &= ~is_space[:-1]
        is_end[0] = False
        self._begins, self._ends = np.flatnonzero(is_begin), np.flatnonzero(is_end)
        self._first = np.searchsorted(self._begins, start)
        self._tokens = np.searchsorted(self._begins, end) - self._first
        self.has_tokens = self._tokens > 0
        self._words: npt.NDArray[np.uint64] = np.ndarray(
            (len(text) - 7,), "<u8", text, strides=(1,)
        )
        every = np.arange(len(start))
        self.is_event = self._tokens >= 7
        comma = self._within(self._split(0, ord(",")))
        major, minor = self._number(self._begin(0), comma), self._number(comma + 1, self._stop(0))
        cpu, self.sequence = self._whole(1), self._whole(2)
        point = self._within(self._split(3, ord(".")))
        seconds = self._number(self._begin(3), point)
        nanoseconds = self._number(point + 1, self._stop(3))
        pid = self._whole(4)
        # Newer blkparse prints the cgroup of an event before its action: two numbers and a comma.
        has_cgroup = (self._tokens >= 8) & (self._split(5, ord(",")) < self._stop(5))
        self._first = self._first + has_cgroup
        self._tokens = self._tokens - has_cgroup
        action = self._letters(5)
        self.is_message = action == np.uint64(_MESSAGE)
        known = np.zeros(len(start), np.uint8)
        for letters, number in _ACTIONS.items():
            known[action == np.uint64(letters)] = number
        self.is_event &= (known > 0) | self.is_message
        last = self.text[self._stop(0, self._tokens - 1) - 1]
        self.is_event &= ~np.isin(known, _BRACKETED) | (last == ord("]"))
        has_sector = (self._tokens >= 8) & self._is_digit(7) & ~self.is_message
        has_length = has_sector & (self._tokens >= 10)
        behind = self.text[self._begin(8)]
        self.is_event &= ~has_sector | np.isin(behind, [*_BEHIND_SECTOR])
        good = self.is_event.copy()
        sector = self._number(self._begin(7), self._stop(7), has_sector)
        self.length = self._number(self._begin(9), self._stop(9), has_length & self._is_digit(9))
        self.is_event &= good
        self.columns: Columns = {
            "time": seconds * 1_000_000_000 + nanoseconds,
            "sector": sector.astype(np.uint64),
            "bytes": np.minimum(self.length << 9, 0xFFFFFFFF).astype(np.uint32),
            "pid": pid.astype(np.uint32),
            "device": ((major << 20) | minor).astype(np.uint32),
            "flags": self._flags(),
            "cpu": cpu.astype(np.uint16),
            "error": self._errors(known == Act.COMPLETE, every),
            "action": known,
        }

    def token(self, number: int, rows: Integers) -> Integers:
        """Return the begins of a word of some lines; the ends of lines that lack it."""
        begin = self._begins[np.minimum(self._first[rows] + number, len(self._begins) - 1)]
        lines_end: Integers = self.end[rows]
        return np.minimum(begin, lines_end)

    def names(self, rows: Integers) -> Columns:
        """Return the names of tasks in some lines, each pair of pid and name once."""
        rows = rows[np.isin(self.columns["action"][rows], _NAMED)]
        begin, stop = self._bracket(rows)
        rows, begin, stop = (each[stop > begin] for each in (rows, begin, stop))
        wide = np.arange(16) < (stop - begin)[:, None]
        name = self.text[begin[:, None] + np.arange(16)] * wide
        halves = np.ascontiguousarray(name).view("<u8")
        pid = self.columns["pid"][rows]
        keys = pd.DataFrame({"pid": pid, "a": halves[:, 0], "b": halves[:, 1]})
        kept = np.flatnonzero(~keys.duplicated().to_numpy())
        return {
            "time": self.columns["time"][rows[kept]],
            "pid": pid[kept],
            "name": name[kept].view("S16").ravel(),
        }

    def _bracket(self, rows: Integers) -> tuple[Integers, Integers]:
        """Return begins and ends of the text in brackets at the end of lines."""
        is_open = self.text[self._begins] == ord("[")
        opens = self._begins[is_open]
        after = self.token(7, rows)
        place = np.searchsorted(opens, after)
        found = place < len(opens)
        begin = (
            np.where(found, opens[np.minimum(place, len(opens) - 1)], 0)
            if len(opens)
            else (np.zeros(len(rows), np.int64))
        )
        stop = self.end[rows] - 1
        good = (begin >= after) & (begin < stop) & (self.text[stop] == ord("]"))
        return np.where(good, begin + 1, 0), np.where(good, stop, 0)

    def _begin(self, number: int) -> Integers:
        return self._begins[np.minimum(self._first + number, len(self._begins) - 1)]

    def _stop(self, number: int, more: Integers | int = 0) -> Integers:
        place = np.maximum(self._first + number + more, 0)
        stop: Integers = self._ends[np.minimum(place, len(self._ends) - 1)]
        return stop

    def _is_digit(self, number: int) -> Mask:
        digit = self.text[self._begin(number)]
        return (digit >= ord("0")) & (digit <= ord("9"))

    def _split(self, number: int, mark: int) -> Integers:
        """Return the place of the first ``mark`` in a word; anywhere after a word without one."""
        places = np.flatnonzero(self.text == mark)
        places = np.append(places, len(self.text))
        return places[np.searchsorted(places, self._begin(number))]

    def _within(self, place: Integers) -> Integers:
        """Return places in their lines; lines without one are not events."""
        self.is_event &= place < self.end
        return np.minimum(place, self.end)

    def _whole(self, number: int) -> Integers:
        return self._number(self._begin(number), self._stop(number))

    def _number(self, begin: Integers, stop: Integers, wanted: Mask | None = None) -> Integers:
        """Return decimal numbers; lines in which one is not a number of up to 16 digits are bad."""
        mine = self.is_event if wanted is None else wanted & self.is_event
        width = stop - begin
        good = (width > 0) & (width <= 16)
        low, is_low = self._digits(stop, np.clip(width, 0, 8))
        high, is_high = self._digits(stop - 8, np.clip(width - 8, 0, 8))
        self.is_event &= ~mine | (good & is_low & is_high)
        number = high.astype(np.int64) * 100_000_000 + low.astype(np.int64)
        return np.where(mine & good, number, 0)

    def _digits(self, stop: Integers, width: Integers) -> tuple[Integers, Mask]:
        """Return the number of up to eight digits before ``stop``, and whether they are digits."""
        if not width.any():
            return np.zeros(len(width), np.uint64), np.ones(len(width), np.bool_)
        word = self._words[np.clip(stop - 8, 0, len(self._words) - 1)]
        shift = (_U8 - width.astype(np.uint64)) * _U8
        mask = np.where(width > 0, ~np.uint64(0) << np.minimum(shift, np.uint64(63)), 0)
        mask = mask.astype(np.uint64)
        word = ((word & mask) | (_ZEROS & ~mask)) ^ _ZEROS
        good = (
            (word | (word + np.uint64(0x0606060606060606))) & np.uint64(0xF0F0F0F0F0F0F0F0)
        ) == 0
        # Pairs of digits, then of pairs, then of fours; the first digit is in the lowest byte.
        word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
        word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
        word = (word * np.uint64(10_000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
        return word, good

    def _letters(self, number: int) -> npt.NDArray[np.uint64]:
        begin = self._begin(number)
        width = np.minimum(self._stop(number) - begin, 8).astype(np.uint64)
        word = self._words[np.minimum(begin, len(self._words) - 1)]
        letters: npt.NDArray[np.uint64] = word & (
            ~np.uint64(0) >> np.minimum((_U8 - width) * _U8, np.uint64(63))
        )
        return letters

    def _flags(self) -> npt.NDArray[np.uint16]:
        code, unique = pd.factorize(self._letters(6))
        flags = [_flags_of(int(word)) for word in unique[:4096]]
        table = np.zeros(max(len(unique), 1), np.uint16)
        table[: len(flags)] = flags
        return table[code]

    def _errors(self, is_completion: Mask, every: Integers) -> npt.NDArray[np.int16]:
        error = np.zeros(len(every), np.int64)
        rows = np.flatnonzero(is_completion & self.is_event)
        begin, stop = self._bracket(rows)
        is_negative = self.text[begin] == ord("-")
        begin = begin + is_negative
        # Errors are rare: the usual [0] needs no parsing.
        odd = np.flatnonzero((stop > begin) & ((stop - begin > 1) | (self.text[begin] != ord("0"))))
        for row in odd[:100_000].tolist():
            word = self.text[begin[row] : stop[row]].tobytes()
            value = int(word) if word.isdigit() and len(word) < 9 else 0
            error[rows[row]] = -value if is_negative[row] else value
        return error.astype(np.int16)


def _flags_of(word: int) -> int:
    """Return the categories of RWBS letters; an F before the operation is a flush."""
    letters = word.to_bytes(8, "little").rstrip(b"\0").decode("latin-1")
    operation = min((letters.find(each) for each in "DWRN" if each in letters), default=0)
    flags = events.FLUSH if "F" in letters[:operation] else 0
    flags |= events.FUA if "F" in letters[operation:] else 0
    for letter in letters:
        flags |= _FLAGS.get(letter, 0)
    return flags
