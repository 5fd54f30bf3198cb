# SPDX-License-Identifier: LGPL-2.1-or-later
"""The default text output of blkparse.

A line is ``DEVICE CPU SEQUENCE TIME PID ACTION RWBS``, then the data of the action; see
``process_default()`` in blkparse_fmt.c of blktrace::

    8,0   11   206   81.092496118   804  I  WM 141698288 + 8 (   22911) [xfsaild/sda1]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from kcensus.sources.blktrace import events, messages
from kcensus.sources.blktrace.events import Act, Columns, Integers, Loss
from kcensus.sources.blktrace.parts import Part

_CHUNK = 1 << 18  # of a size that caches hold: larger ones take half as long again
_MAX_LINE = 1 << 16
_MIN_LINE = 16
"""Least bytes of a line: seven words, with two commas or points."""
_LINE = re.compile(
    rb"""
    ^\ *(\d{1,9},\d{1,9})\ +(\d{1,9})\ +(\d{1,15})  # device, CPU, sequence
    \ +(\d{1,9}\.\d{9})\ +(\d{1,9})               # time, pid
    (?:\ +[0-9a-f]+,[0-9a-f]+)?                    # cgroup, in newer blkparse
    \ +(?:
        m\ +\S+\ *(.*)                              # message
        # Some actions have a bracket at the end of the line, after a name or an error.
        | ([QGIMFSPXDRC](?=\ .*\]$)|UT?|[AB]|ABORT|DRV_DATA|ZONE_(?:UN)?PLUG|ZONE_MGMT)
          \ +(\S+)(?=\ |$)                          # RWBS
          # Sector, and length or rest of a split.
          (?:\ +(\d{1,16})\ +(?:[+/]\ +(\d{1,16})(?=\ |$)|(?=[\[(])) | (?=\ *(?:[\[(]|$)))
          [^\[\n]*(?:\[(.*)\])?.*                   # name of the task, or error
    )$
    | ^(.*[^ \t\n].*)$                              # anything else
    """,
    re.MULTILINE | re.VERBOSE,
)
_SUMMARY = re.compile(rb"(CPU ?\d+|Total) \(.*\):\s*$|Input file .* added\s*$")
"""First lines of blkparse's output before and after the events."""
_ACTIONS = {act.letters.encode(): int(act) for act in Act}
_NAMED = (Act.QUEUE, Act.GET_REQUEST, Act.INSERT, Act.BACK_MERGE, Act.FRONT_MERGE)
"""Actions of tasks that ask for I/O: their lines end with the task's name."""
_MAX_WORDS = 4096
"""Most devices, letters and errors to remember; a damaged file has others in each line."""
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
    return any(not line[-1] for line in _lines(head))


def _lines(data: bytes) -> list[tuple[bytes, ...]]:
    return _LINE.findall(data.replace(b"\r\n", b"\n"))


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
        lines = _lines(data)
        self._count_others([line[-1] for line in lines])
        said = [line for line in lines if line[1] and not line[6]]
        if said or any(line[-1] for line in lines):
            lines = [line for line in lines if line[6]]
        if not lines and not said:
            return
        device, cpu, sequence, time, pid, _, action, rwbs, sector, length, bracket, _ = (
            zip(*lines, strict=True) if lines else [()] * 12
        )
        columns = self._next(len(lines))
        columns["time"][:] = _numbers(time)
        columns["sector"][:] = _numbers(sector)
        sizes = _numbers(length)
        columns["bytes"][:] = np.minimum(sizes << 9, 0xFFFFFFFF)
        columns["pid"][:] = _numbers(pid)
        columns["device"][:] = [*map(_device, device)]
        columns["flags"][:] = [*map(_flags, rwbs)]
        columns["cpu"][:] = _numbers(cpu)
        columns["action"][:] = [*map(_ACTIONS.__getitem__, action)]
        is_end = columns["action"] == Act.COMPLETE
        columns["error"][:] = 0
        errors = [_error(bracket[row]) for row in np.flatnonzero(is_end).tolist()]
        columns["error"][is_end] = np.array(errors, np.int64).astype(np.int16)
        splits = columns["action"] == Act.SPLIT
        columns["bytes"][splits] = 0
        rests = {name: columns[name][splits] for name in ("time", "device", "sector")}
        rests["rest"] = sizes[splits].astype(np.uint64)
        self._add(columns, _numbers(sequence), self._said(said), rests, _names(columns, bracket))

    def _said(self, lines: Sequence[tuple[bytes, ...]]) -> Columns:
        device, _, _, time, _, said, *_ = zip(*lines, strict=True) if lines else [()] * 12
        length = np.array([*map(len, said)], np.int64)
        start = np.cumsum(length) - length
        text = np.frombuffer(b"".join(said) + bytes(messages.PADDING), np.uint8)
        numbers = np.array([*map(_device, device)], np.uint32)
        return self._messages(text, start, length, _numbers(time), numbers)

    def _count_others(self, others: Sequence[bytes]) -> None:
        """Count lines that are neither events, nor empty, nor of a summary.

        :param others: of each line, its text if it is not an event; a summary goes on until one is
        """
        count = 0
        if self._is_summary or any(others):
            for line in others:
                self._is_summary = bool(line) and (
                    self._is_summary or _SUMMARY.match(line) is not None
                )
                count += bool(line) and not self._is_summary
        if count:
            self.losses[Loss.UNKNOWN, self.name] += count


def _numbers(words: Sequence[bytes]) -> Integers:
    """Return decimal numbers, without their points; 0 for an empty word."""
    text = b" ".join([word or b"0" for word in words]).replace(b".", b"")
    return np.fromstring(text, np.int64, sep=" ") if words else np.zeros(0, np.int64)


@lru_cache(_MAX_WORDS)
def _device(word: bytes) -> int:
    major, minor = map(int, word.split(b","))
    return (major << 20 | minor) & 0xFFFFFFFF


def _names(columns: Columns, brackets: Sequence[bytes]) -> Columns:
    """Return the names of tasks, each pair of pid and name once."""
    rows = np.flatnonzero(np.isin(columns["action"], _NAMED))[::-1].tolist()
    pids = columns["pid"][rows].tolist()
    pairs = zip(pids, [brackets[row][:16] for row in rows], strict=True)
    first = {pair: row for pair, row in dict(zip(pairs, rows, strict=True)).items() if pair[1]}
    kept = [*first.values()]
    names = np.array([name for _, name in first], "S16")
    return {"time": columns["time"][kept], "pid": columns["pid"][kept], "name": names}


@lru_cache(_MAX_WORDS)
def _error(word: bytes) -> int:
    return int(word) if re.fullmatch(rb"-?\d{1,8}", word) else 0


@lru_cache(_MAX_WORDS)
def _flags(word: bytes) -> int:
    """Return the categories of RWBS letters; an F before the operation is a flush."""
    letters = word.decode("latin-1")
    operation = min((letters.find(each) for each in "DWRN" if each in letters), default=0)
    flags = events.FLUSH if "F" in letters[:operation] else 0
    flags |= events.FUA if "F" in letters[operation:] else 0
    for letter in letters:
        flags |= _FLAGS.get(letter, 0)
    return flags
