# SPDX-License-Identifier: LGPL-2.1-or-later
"""The default text output of blkparse.

A line is ``DEVICE CPU SEQUENCE TIME PID ACTION RWBS``, then the data of the action; see
``process_default()`` in blkparse_fmt.c of blktrace::

    8,0   11   206   81.092496118   804  I  WM 141698288 + 8 (   22911) [xfsaild/sda1]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from kcensus.sources.blktrace import events, messages
from kcensus.sources.blktrace.events import MERGES, Act, Columns, Integers, Loss, Mask
from kcensus.sources.blktrace.parts import Part

_CHUNK = 1 << 20  # of a size that caches hold
_MAX_LINE = 1 << 16
_MIN_LINE = 16
"""Least bytes of a line: seven words, with two commas or points."""
_SUMMARY = re.compile(rb"(CPU ?\d+|Total) \(.*\):\s*$|Input file .* added\s*$")
"""First lines of blkparse's output before and after the events."""
_MESSAGE = 0xFF
_ACTIONS = {act.letters.encode(): int(act) for act in Act} | {b"m": _MESSAGE}
_IS_BRACKETED = np.isin(range(256), [_ACTIONS[each] for each in b"Q G I M F S P X D R C".split()])
"""Whether lines of an action end with a bracket, after a name or an error."""
_IS_NAMED = np.isin(range(256), [Act.QUEUE, Act.GET_REQUEST, Act.INSERT, *MERGES])
"""Whether lines of an action, of tasks that ask for I/O, end with the task's name."""
_NO_CONTROLS = bytes(0x7F if byte < 32 and byte not in b"\t\n\r" else byte for byte in range(256))
"""Damage is no space between words, and no word has NUL, with which short ones are filled."""
_MASKS = (np.uint64(1) << np.arange(0, 72, 8, dtype=np.uint64)) - np.uint64(1)
"""Of the first bytes of eight, by their number."""
_FLAGS = {
    "W": events.WRITE,
    "D": events.DISCARD | events.WRITE,
    "A": events.AHEAD,
    "S": events.SYNC,
    "M": events.META,
}


def capacity(size: int) -> int:
    """Return the most events in a file of some bytes."""
    return size // _MIN_LINE + 1


def is_text(head: bytes) -> bool:
    """Return whether a file with this begin is the output of blkparse."""
    return len(_Lines(head + b"\n").action) > 0


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
                reader.losses[Loss.DAMAGED, path.name] += len(rest)
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
        lines = _Lines(data)
        self._count_others(lines.others())
        is_said = lines.action == _MESSAGE
        said = np.flatnonzero(is_said)
        rows = np.flatnonzero(~is_said) if len(said) else slice(None)
        begin = np.minimum(lines.begin(7), lines.end)
        length, time, device = lines.end - begin, lines.time, lines.device
        messages_ = (each[said] for each in (begin, length, time, device))
        columns = self._next(len(is_said) - len(said))
        for name in columns.keys() - {"bytes", "error"}:
            columns[name][:] = getattr(lines, name)[rows]
        is_split, length = columns["action"] == Act.SPLIT, lines.length[rows]
        columns["bytes"][:] = np.minimum(np.where(is_split, 0, length) << 9, 0xFFFFFFFF)
        columns["error"][:] = lines.errors()[rows]
        rests = {name: columns[name][is_split] for name in ("time", "device", "sector")}
        rests["rest"] = length[is_split].astype(np.uint64)
        said_ = self._messages(lines.text, *messages_)
        self._add(columns, lines.sequence[rows], said_, rests, lines.names())

    def _count_others(self, others: Iterable[bytes]) -> None:
        """Count lines that are neither events nor of a summary, which goes on until the next one.

        :param others: the text of each line; empty for events
        """
        count = 0
        for line in others:
            self._is_summary = bool(line) and (self._is_summary or bool(_SUMMARY.match(line)))
            count += bool(line) and not self._is_summary
        if count:
            self.losses[Loss.UNKNOWN, self.name] += count


class _Lines:
    """The events and messages among lines; columns have a row for each.

    Words are between spaces; what is said of a word that a line lacks is meaningless.
    """

    def __init__(self, data: bytes) -> None:
        data = data.translate(_NO_CONTROLS)
        self.text = text = np.frombuffer(b"\n" + data + bytes(messages.PADDING), np.uint8)
        is_space = text <= ord(" ")
        edges = np.flatnonzero(is_space[1 : len(data) + 1] != is_space[: len(data)]) + 1
        edges = np.append(edges, np.full(32, len(data)))  # of words that the last line lacks
        self._begins, self._ends = edges[::2], edges[1::2]
        self._breaks = np.flatnonzero(text == ord("\n"))
        self._is_strange = text - np.uint8(ord("0")) > 9
        self._strange = np.cumsum(self._is_strange, dtype=np.int32)
        self._commas = np.append(np.flatnonzero(text == ord(",")), len(text))
        first = np.searchsorted(self._begins, self._breaks)
        self._words = np.diff(first)
        line = np.flatnonzero(self._words >= 7)
        self._first, words = first[line], self._words[line]
        end = self._ends[self._first + words - 1]
        five = self._first[:, None] + np.arange(5)
        begin, stop = self._begins[five], self._ends[five]
        strange, width = self._strange[stop - 1] - self._strange[begin - 1], stop - begin
        good = ((strange == (1, 0, 0, 1, 0)) & (width <= (19, 9, 15, 19, 9))).all(axis=1)
        comma = self._comma(0)
        left, right = comma - begin[:, 0], stop[:, 0] - comma
        good &= (left > 0) & (left < 10) & (right > 1) & (right < 11)
        good &= (width[:, 3] > 10) & (text[stop[:, 3] - 10] == ord("."))
        begin, stop = begin[:, 0], stop[:, 4]
        # The cgroup, in newer blkparse: two numbers and a comma.
        has_cgroup = self._comma(5) < self._stop(5)
        self._first, words = self._first + has_cgroup, words - has_cgroup
        action = self._looked_up(self.begin(5), self._stop(5), _ACTIONS.get)
        is_closed = ~_IS_BRACKETED[action] | (text[end - 1] == ord("]"))
        good &= (words >= 7) & (action > 0) & is_closed
        has_length = (words > 9) & self._is_any(8, "+/") & (self._stop(8) - self.begin(8) == 1)
        has_length &= self._is_number(9, 16)
        has_sector = (words > 8) & self._is_number(7, 16) & (has_length | self._is_any(8, "[("))
        has_sector &= action != _MESSAGE
        good &= has_sector | self._is_any(7, "[(") | (words == 7) | (action == _MESSAGE)
        self._first, self._line, self.end, self.action, begin, stop, has_sector, has_length = (
            each[good]
            for each in (self._first, line, end, action, begin, stop, has_sector, has_length)
        )
        self._find_numbers(begin, stop, has_sector, has_length & has_sector)
        self.flags = self._looked_up(self.begin(6), self._stop(6), _flags)
        # What is in brackets at the end of lines.
        opens = np.append(np.flatnonzero(text == ord("[")), len(data))
        begin = opens[np.searchsorted(opens[:-1], self._stop(6))] + 1
        self.brackets = np.minimum(begin, self.end), self.end - 1

    def others(self) -> Iterator[bytes]:
        """Return the text of lines with words that are neither; an empty one for others."""
        rows = np.flatnonzero(self._words)
        is_other = np.isin(rows, self._line, invert=True)
        # The first one after others is enough.
        some = is_other | np.diff(is_other, prepend=True)
        for row, mine in zip(rows[some].tolist(), is_other[some].tolist(), strict=True):
            yield self.text[self._breaks[row] + 1 : self._breaks[row + 1]].tobytes() * mine

    def names(self) -> Columns:
        """Return the names of tasks, each pair of pid and name once."""
        begin, stop = self.brackets
        rows = np.flatnonzero(_IS_NAMED[self.action] & (begin < stop))
        begin, width = begin[rows], (stop - begin)[rows]
        halves = self._eight(begin, width), self._eight(begin + 8, np.maximum(width - 8, 0))
        pairs = np.stack((self.pid[rows].astype(np.uint64), *halves), axis=1)
        # Most lines are about the same task as the one before.
        kept = np.flatnonzero((np.diff(pairs, axis=0, prepend=~pairs[:1]) != 0).any(axis=1))
        kept = kept[~pd.DataFrame(pairs[kept]).duplicated().to_numpy()]
        rows, name = rows[kept], np.ascontiguousarray(pairs[kept, 1:]).view("S16").ravel()
        return {"time": self.time[rows], "pid": self.pid[rows], "name": name}

    def errors(self) -> Integers:
        """Return the errors of completed requests."""
        errors = np.zeros(len(self.action), np.int64)
        begin, stop = self.brackets
        mine = (self.action == Act.COMPLETE) & (begin < stop)
        errors[mine] = self._looked_up(begin[mine], stop[mine], _error)
        return errors

    def begin(self, number: int) -> Integers:
        """Return where words begin."""
        return self._begins[self._first + number]

    def _stop(self, number: int) -> Integers:
        return self._ends[self._first + number]

    def _comma(self, number: int) -> Integers:
        """Return the place of the first comma after the begin of words."""
        return self._commas[np.searchsorted(self._commas, self.begin(number))]

    def _is_any(self, number: int, of: str) -> Mask:
        """Return whether words begin with one of two characters."""
        first = self.text[self.begin(number)]
        is_any: Mask = (first == ord(of[0])) | (first == ord(of[1]))
        return is_any

    def _is_number(self, number: int, most: int) -> Mask:
        """Return whether words are up to ``most`` digits."""
        begin, stop = self.begin(number), self._stop(number)
        is_number: Mask = self._strange[stop - 1] == self._strange[begin - 1]
        return is_number & (stop - begin <= most)

    def _find_numbers(self, begin: Integers, stop: Integers, *has: Mask) -> None:
        """Make columns of decimal numbers: between places, and of the words 7 and 9 if any."""
        edge = np.zeros(len(self.text), np.int8)
        edge[begin], edge[stop] = 1, -1
        for number, mine in zip((7, 9), has, strict=True):
            edge[self.begin(number)[mine]], edge[self._stop(number)[mine]] = 1, -1
        # Sums of four bytes, and a maximum, take a quarter of the time of one byte, and where().
        is_digit = (np.cumsum(edge, dtype=np.int32) > 0) & ~self._is_strange
        text = np.maximum(self.text * is_digit, np.uint8(ord(" "))).tobytes()
        numbers = np.fromstring(text, np.int64, sep=" ")
        count = 7 + has[0].astype(np.int64) + has[1]
        first = np.cumsum(count) - count
        major, minor, self.cpu, self.sequence, seconds, fraction, self.pid = (
            numbers[first + place] for place in range(7)
        )
        self.time = seconds * 1_000_000_000 + fraction
        self.device = ((major << 20 | minor) & 0xFFFFFFFF).astype(np.uint32)
        numbers = np.append(numbers, (0, 0))
        self.sector, self.length = numbers[first + 7] * has[0], numbers[first + 8] * has[1]

    def _eight(self, begin: Integers, width: Integers) -> Integers:
        """Return up to eight bytes as numbers, the first byte lowest."""
        every = np.ndarray((len(self.text) - 7,), "<u8", self.text, strides=(1,))
        eight: Integers = every[begin] & _MASKS[np.minimum(width, 8)]
        return eight

    def _looked_up(
        self, begin: Integers, stop: Integers, of: Callable[[bytes], int | None]
    ) -> Integers:
        """Call a function once for each different text between places."""
        width = stop - begin
        code, different = pd.factorize(self._eight(begin, width))
        found = [of(each.tobytes().rstrip(b"\0")) or 0 for each in different]
        numbers = np.array(found, np.int64)[code]
        for row in np.flatnonzero(width > 8).tolist():
            numbers[row] = of(self.text[begin[row] : stop[row]].tobytes()) or 0
        return numbers


def _error(word: bytes) -> int:
    return int(word) if re.fullmatch(rb"-?\d{1,8}", word) else 0


def _flags(word: bytes) -> int:
    """Return the categories of RWBS letters; an F before the operation is a flush."""
    letters = word.decode("latin-1")
    operation = min((letters.find(each) for each in "DWRN" if each in letters), default=0)
    flags = events.FLUSH if "F" in letters[:operation] else 0
    flags |= events.FUA if "F" in letters[operation:] else 0
    for letter in letters:
        flags |= _FLAGS.get(letter, 0)
    return flags
