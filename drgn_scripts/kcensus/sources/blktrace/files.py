# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the files of a trace, and merge their events by time."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kcensus.progress import Progress, SilentProgress
from kcensus.sources.blktrace import binary, text
from kcensus.sources.blktrace.events import (
    BLOCK,
    EVENT,
    MESSAGE,
    NAME,
    REST,
    Columns,
    Integers,
    Loss,
    Losses,
    Mask,
    Trace,
    TraceError,
    joined,
    sorted_by_time,
)
from kcensus.sources.blktrace.parts import Part
from kcensus.sources.blktrace.threads import workers
from kcensus.text import printable

_MAX_FILES = 1 << 13
"""CPUs times devices."""
_HEAD = 1 << 16
_MAX_TIME = (1 << 21) * 1_000_000_000
"""Most nanoseconds between two events of a trace; more (24 days) are damage."""
_MAX_JUMP = 60 * 1_000_000_000
"""Most nanoseconds between an event of a CPU and both of its neighbors."""
_MAX_PAUSE = 86_400 * 1_000_000_000
"""Most nanoseconds between the first or last event of a file and the next one."""
_MIN_EARLY = 1_000_000_000
"""Least nanoseconds from the end of a file to the end of others if it is cut, not idle."""
_MIN_STEADY = 100
"""Least events of a file from which its CPU can be called busy all the time."""
_MAX_LOG = 1 << 16
_LOG_CPU = re.compile(rb"^ *CPU +(\d{1,6}): +(\d{1,18}) events, +(\d{1,12}) KiB data", re.MULTILINE)
_LOG_TOTAL = re.compile(rb"^ *Total: +\d{1,18} events \(dropped (\d{1,18})\)", re.MULTILINE)
"""Lines of the log of blktrace."""
_CPU = re.compile(r"(?P<prefix>.*)\.blktrace\.(?P<cpu>\d{1,6})")


_OTHERS = (
    (b"\x7fELF", "is an ELF file: pass a memory dump as TARGET"),
    (b"KDUMP   ", "is a memory dump: pass it as TARGET"),
    (b"makedumpfile", "is a memory dump: pass it as TARGET"),
    (b"\x1f\x8b", "is compressed: unpack it first (gunzip)"),
    (b"\xfd7zXZ\0", "is compressed: unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "is compressed: unpack it first (unzstd)"),
    (b"BZh", "is compressed: unpack it first (bunzip2)"),
)
"""First bytes of files that are no traces, but may contain bytes similar to events."""


class _Stopped(Exception):
    """Another thread has failed, or the user pressed Ctrl-C."""


def read_trace(name: str, progress: Progress | None = None) -> Trace:
    """Read a trace.

    :param name: PREFIX of files PREFIX.blktrace.0, .1 …, one of these files, a directory with such
        files of one or more devices, a file with the binary output of ``blktrace -o -`` or
        ``blkparse -d``, or the text output of blkparse
    :raises TraceError: the trace does not exist, or nothing in it can be read
    """
    paths = _files(name)
    losses = Losses()
    files = [*_with_bytes(paths, losses)]
    room = {
        name: np.empty(sum(file.capacity for file in files), EVENT[name])
        for name in EVENT.names or ()
    }
    total = sum(file.size for file in files)
    with (progress or SilentProgress()).step("reading the trace", total) as step:
        parts = _read_each(files, room, losses, step.advance)
    if not parts and (failed := losses.of(Loss.FILES)):
        raise TraceError(f"the trace cannot be read: {printable(next(iter(failed)))}")
    for part in parts:
        losses.update(part.losses)
    if not any(len(part.events["time"]) + len(part.messages["time"]) for part in parts):
        if all(_is_empty(path) for path in paths) and not losses.of(Loss.DAMAGED):
            raise TraceError(
                f"'{printable(name)}' is a trace without events: the disk had no I/O while "
                "blktrace ran"
            )
        raise TraceError(
            f"'{printable(name)}' holds no events of blktrace; give the prefix of its files, such "
            "as sda for sda.blktrace.0, or a file with the output of blkparse"
        )
    for part in parts:
        losses[Loss.DISPLACED, part.name] += _without_displaced(part)
    offline = _note_missing(paths, parts, losses)
    offline -= _note_log(paths, losses)
    earliest = _earliest(parts, losses)
    trace = _merged(room, parts, losses)
    trace.offline = len(offline)
    return trace if earliest is None else trace.until(trace.end - earliest)


def _note_log(paths: Sequence[Path], losses: Losses) -> set[str]:
    """Note the losses in the log of blktrace, if it is beside the files of one device.

    A log of other files does not fit their sizes.

    :return: names of missing files
    """
    names = [_CPU.fullmatch(path.name) for path in paths]
    missing: set[str] = set()
    if not paths or len({match["prefix"] if match else "" for match in names}) > 1:
        return missing
    sizes = {
        int(match["cpu"]): path.stat().st_size
        for match, path in zip(names, paths, strict=True)
        if match
    }
    prefix = names[0]["prefix"] if names[0] else ""
    for path in sorted(paths[0].parent.iterdir())[:_MAX_FILES] if sizes else ():
        try:
            if not path.is_file() or not 0 < path.stat().st_size < _MAX_LOG:
                continue
            said = path.read_bytes()
        except OSError:
            continue
        total, cpus = _LOG_TOTAL.findall(said), _LOG_CPU.findall(said)
        kib = {int(cpu): int(size) for cpu, count, size in cpus if int(count)}
        if len(total) != 1 or any(size >> 10 > kib.get(cpu, 0) for cpu, size in sizes.items()):
            continue
        losses[Loss.DROPPED, path.name] = int(total[0])
        for cpu, wanted in kib.items():
            name = f"{prefix}.blktrace.{cpu}"
            if cpu not in sizes:
                losses[Loss.FILES, f"{name} is missing"] = 1
                missing.add(name)
            elif (lacks := wanted - 1 - (sizes[cpu] >> 10)) > 0:
                losses[Loss.CUT, name] += lacks << 10
        break
    return missing


def _earliest(parts: Sequence[Part], losses: Losses) -> int | None:
    """Note the files that end while other CPUs' files go on as before.

    A CPU may also be idle: then it was so before, or others do less, too.

    :return: ns from the first such end to the end of the trace, None if all files are whole
    """
    groups: dict[str, list[Part]] = {}
    for part in parts:
        if (match := _CPU.fullmatch(part.name)) and len(part.events["time"]):
            groups.setdefault(match["prefix"], []).append(part)
    found = []
    for group in groups.values():
        times = [part.events["time"] for part in group]
        begin, end = _bounds(group)
        for part, time in zip(group, times, strict=True):
            last = int(time.max())
            pause = end - last
            if pause < _MIN_EARLY or len(time) < _MIN_STEADY or last == begin:
                continue
            others = [each for each in times if each is not time]
            after = sum(int((each > last).sum()) for each in others) / pause
            before = sum(int((each <= last).sum()) for each in others) / (last - begin)
            if after >= before / 4 and int(np.diff(np.sort(time)).max()) * 4 <= pause:
                losses[Loss.FILES, f"{part.name} ends {pause / 1e9:.1f} s before"] = 1
                found.append(pause)
    return max(found) if found and len(groups) == 1 else None


def _files(name: str) -> list[Path]:
    """Return the files of a trace.

    :raises TraceError: there are none
    """
    given = Path(name)
    try:
        if given.is_file():
            match = _CPU.fullmatch(given.name)
            return _of_prefix(given.parent, match["prefix"]) if match else [given]
        paths = _of_prefix(given) if given.is_dir() else _of_prefix(given.parent, given.name)
    except OSError as error:
        raise TraceError(f"'{printable(name)}' cannot be read: {error.strerror}") from None
    if not paths and given.exists() and not given.is_dir():
        raise TraceError(
            f"'{printable(name)}' is not a regular file: write the output of blkparse to a file "
            "first"
        )
    if not paths:
        where = f"in '{printable(name)}'" if given.is_dir() else f"'{printable(name)}.blktrace.0'"
        raise TraceError(
            f"there is no trace {where}: give the prefix of blktrace's files, such as sda for "
            "sda.blktrace.0, or a file with the output of blkparse"
        )
    if len(paths) > _MAX_FILES:
        raise TraceError(f"'{printable(name)}' has {len(paths):,} files; at most {_MAX_FILES:,}")
    return paths


def _is_empty(path: Path) -> bool:
    """Return whether a file of blktrace has no bytes, or no event at its begin."""
    with path.open("rb") as file:
        head = file.read(4)
    is_named = _CPU.fullmatch(path.name) is not None
    return binary.format_of(head) is not None if head else is_named


def _of_prefix(directory: Path, prefix: str | None = None) -> list[Path]:
    if not directory.is_dir():
        return []
    found = []
    for entry in os.scandir(directory):
        match = _CPU.fullmatch(entry.name)
        if match and prefix in (None, match["prefix"]) and entry.is_file():
            found.append((match["prefix"], int(match["cpu"]), Path(entry.path)))
    return [path for _, _, path in sorted(found)]


def _note_missing(paths: Sequence[Path], parts: Sequence[Part], losses: Losses) -> set[str]:
    """Note missing files of CPUs: blktrace writes one for each online CPU.

    :return: names of files that offline CPUs do not have
    """
    cpus: dict[str, set[int]] = {}
    for path in paths:
        if match := _CPU.fullmatch(path.name):
            cpus.setdefault(match["prefix"], set()).add(int(match["cpu"]))
    was_online = {cpu for known in cpus.values() for cpu in known}
    for part in parts:
        was_online |= part.cpus
    offline = set()
    for prefix, known in cpus.items():
        for cpu in range(min(max(known), _MAX_FILES)):
            name = f"{prefix}.blktrace.{cpu}"
            if cpu in was_online - known:
                losses[Loss.FILES, f"{name} is missing"] = 1
            elif cpu not in known:
                offline.add(name)
    return offline


def _without_displaced(part: Part) -> int:
    """Take events with damaged times out of a part; return their number.

    The times of a device ascend on a CPU: an event minutes before or after both of its neighbors is
    damaged, and so is a first or last event a day away from the others.
    """
    events = part.events
    time = events["time"]
    if len(time) < 2:
        return 0
    if not any(
        np.ptp(time[begin : begin + BLOCK + 1]) > _MAX_JUMP for begin in range(0, len(time), BLOCK)
    ):
        return 0
    step = np.diff(time)
    jumps = np.flatnonzero((step > _MAX_JUMP) | (step < -_MAX_JUMP))
    if not len(jumps):
        return 0
    stream = events["device"].astype(np.int64) << 16 | events["cpu"]
    is_jump = np.zeros(len(time) + 1, np.int8)  # of the step before an event
    is_jump[jumps + 1] = np.sign(step[jumps])
    is_jump[jumps[stream[jumps] != stream[jumps + 1]] + 1] = 0
    is_bad = is_jump[:-1] * is_jump[1:] < 0
    # The event after a damaged one is back in time: in a row of such steps, every other one is bad.
    rows = np.flatnonzero(is_bad)
    begin = np.maximum.accumulate(np.where(np.diff(rows, prepend=-2) > 1, rows, 0))
    is_bad[rows[(rows - begin) % 2 == 1]] = False
    is_bad[0] |= is_jump[1] < 0 and not is_bad[1]
    is_bad[0] |= step[0] > _MAX_PAUSE
    is_bad[-1] |= step[-1] > _MAX_PAUSE and is_jump[-2] > 0
    return part.keep(~is_bad)


@dataclass(frozen=True)
class _File:
    path: Path
    size: int
    is_text: bool

    @property
    def capacity(self) -> int:
        """Most events of the file."""
        return text.capacity(self.size) if self.is_text else binary.capacity(self.size)


def _with_bytes(paths: Sequence[Path], losses: Losses) -> Iterator[_File]:
    """Yield the files that are not empty; unreadable ones become losses."""
    for path in paths:
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD)
            for magic, what in _OTHERS:
                if head.startswith(magic):
                    raise TraceError(f"'{printable(str(path))}' {what}")
            if head:
                yield _File(path, path.stat().st_size, text.is_text(head))
        except OSError as error:
            losses[Loss.FILES, _failed(path, error)] = 1


def _failed(path: Path, error: OSError) -> str:
    return f"{path.name}: {error.strerror or error}"


def _read_each(
    files: Sequence[_File], room: Columns, losses: Losses, advance: Callable[[int], None]
) -> list[Part]:
    stopped = threading.Event()
    begins = [0, *itertools.accumulate(file.capacity for file in files)]

    def advance_on(amount: int) -> None:
        advance(amount)
        if stopped.is_set():
            raise _Stopped

    def read(file: _File, begin: int) -> Part | None:
        mine = {name: column[begin : begin + file.capacity] for name, column in room.items()}
        try:
            reads = text.read if file.is_text else binary.read
            part = reads(file.path, mine, file.size, advance_on)
        except OSError as error:
            losses[Loss.FILES, _failed(file.path, error)] = 1
            return None
        part.begin = begin
        return part

    with ThreadPoolExecutor(workers(len(files))) as pool:
        try:
            parts = [*pool.map(read, files, begins)]
        except BaseException:  # Ctrl-C, above all: the pool waits for its threads
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [part for part in parts if part is not None]


def _merged(room: Columns, parts: Sequence[Part], losses: Losses) -> Trace:
    queues: dict[bytes, int] = {b"": 0}
    for part in parts:
        number = [queues.setdefault(name, len(queues)) for name in part.queues]
        part.messages["queue"] = np.array(number, np.uint32)[part.messages["queue"]]
    messages = sorted_by_time(joined([part.messages for part in parts], MESSAGE))
    splits = sorted_by_time(joined([part.splits for part in parts], REST))
    names = _sorted_names(joined([part.names for part in parts], NAME))
    moments = _bounds(parts)
    if moments and len(messages["time"]):
        near = (messages["time"] > moments[0] - _MAX_PAUSE) & (
            messages["time"] < moments[1] + _MAX_PAUSE
        )
        losses[Loss.DISPLACED, ""] += int((~near).sum())
        messages = {name: column[near] for name, column in messages.items()}
    moments += messages["time"][[0, -1]].tolist() if len(messages["time"]) else []
    if max(moments) - min(moments) > _MAX_TIME:
        # The events and messages around the middle one are the trace.
        times = np.concatenate([part.events["time"] for part in parts])
        longest = np.sort(max(times, messages["time"], key=len))
        middle = int(longest[len(longest) // 2])
        for part in parts:
            losses[Loss.DISPLACED, part.name] += part.keep(_is_around(middle, part.events["time"]))
        losses[Loss.DISPLACED, ""] += int((~_is_around(middle, messages["time"])).sum())
        messages, splits, names = (
            {name: column[_is_around(middle, each["time"])] for name, column in each.items()}
            for each in (messages, splits, names)
        )
        moments = _bounds(parts)
        moments += messages["time"][[0, -1]].tolist() if len(messages["time"]) else []
    first = min(moments)
    for columns in (*(part.events for part in parts), messages, splits, names):
        columns["time"] -= first
    clock = next((part.clock for part in parts if part.clock is not None), None)
    return Trace(
        room,
        [slice(part.begin, part.begin + len(part.events["time"])) for part in parts],
        sum((part.counts for part in parts), Counter()),
        messages,
        splits,
        names,
        [*queues],
        losses,
        end=max(moments) - first,
        ends=_ends(parts, messages),
        start=None if clock is None else clock[1] + (first - clock[0]) / 1e9,
        first_ns=None if clock is None else first,
    )


def _ends(parts: Sequence[Part], messages: Columns) -> dict[int, int]:
    """Return the end of the trace by device: traces in one directory may be of other times.

    A device that does not answer has no events, unlike others traced with it.
    """
    spans: dict[int, tuple[int, int]] = {}
    for columns in (*(part.events for part in parts), messages):
        device, time = columns["device"], columns["time"]
        if not len(device):
            continue
        if (device == device[0]).all():
            known, first, last = device[:1], time.min(keepdims=True), time.max(keepdims=True)
        else:
            known, code = np.unique(device, return_inverse=True)
            first = np.full(len(known), np.iinfo(np.int64).max)
            last = np.full(len(known), np.iinfo(np.int64).min)
            np.minimum.at(first, code, time)
            np.maximum.at(last, code, time)
        for number, begin, end in zip(known.tolist(), first.tolist(), last.tolist(), strict=True):
            old = spans.get(number, (begin, end))
            spans[number] = min(begin, old[0]), max(end, old[1])
    ends: dict[int, int] = {}
    together: list[int] = []
    until = -1
    for number, (begin, end) in sorted(spans.items(), key=lambda each: each[1]):
        together = [*together, number] if begin <= until else [number]
        until = max(until, end)
        ends |= dict.fromkeys(together, until)
    return ends


def _bounds(parts: Sequence[Part]) -> list[int]:
    times = [part.events["time"] for part in parts if len(part.events["time"])]
    ends = [int(end) for time in times for end in (time.min(), time.max())]
    return [min(ends), max(ends)] if ends else []


def _is_around(middle: int, time: Integers) -> Mask:
    """Return which times are possible, given the time of another event."""
    return (time > middle - _MAX_TIME // 2) & (time < middle + _MAX_TIME // 2)


def _sorted_names(names: Columns) -> Columns:
    """Return names of tasks by pid, then time, each change of a name once."""
    order = np.lexsort((names["time"], names["pid"]))
    names = {key: column[order] for key, column in names.items()}
    if not len(order):
        return names
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (np.diff(names["pid"].astype(np.int64)) != 0) | (
        names["name"][1:] != names["name"][:-1]
    )
    return {key: column[is_new] for key, column in names.items()}
