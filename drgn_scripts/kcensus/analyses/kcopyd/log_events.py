# SPDX-License-Identifier: LGPL-2.1-or-later
"""Events in a kernel log: stalled workqueues, hung tasks, out of memory.

The messages are those of Linux 3.10 to 7.3. A line with the start of a message that does not match
(cut, or of another kernel) is only counted.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kcensus.analyses import AnalysisError
from kcensus.kernel.log import Line, is_lost
from kcensus.text import printable


@dataclass(frozen=True)
class Event:
    """An event; values missing in the message are None."""

    time: float | None
    """Seconds since boot."""
    event: str
    pool: int | None = None
    cpus: str | None = None
    workqueue: str | None = None
    function: str | None = None
    module: str | None = None
    pid: int | None = None
    comm: str | None = None
    seconds: float | None = None
    """Seconds for which a task or a CPU has been hung, stuck or running."""
    used_bytes: int | None = None
    total_bytes: int | None = None
    """All slots of a slab cache, in bytes."""
    count: int | None = None
    """Number of equal items, of active items, of workers, or of pages of slabs."""
    detail: str | None = None


@dataclass
class LogEvents:
    """The events of a log."""

    events: list[Event] = field(default_factory=list)
    lines: int = 0
    unknown: int = 0
    """Lines that start like a message but do not match."""
    lost: int = 0
    """Records on pages of zeros (without time and text, or with a text of NUL bytes), or damaged in
    another way."""
    damage: str = "all zero"
    """What is wrong with the lost ones."""

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of some kinds."""
        return [event for event in self.events if event.event in kinds]


_POOL = r"cpus=(?P<cpus>\S+)(?!\S)(?: node=-?\d+)?(?: flags=0x[0-9a-f]+)?(?: nice=-?\d+)?"

_WORKQUEUE = re.compile(r"workqueue (?P<workqueue>.+): flags=0x[0-9a-f]+$")
_PWQ = re.compile(rf"pwq (?P<pool>\d+): {_POOL}.* active=(?P<count>\d+)(?P<detail>/\d+)?")
_POOL_LINE = re.compile(
    rf"pool (?P<pool>\d+): {_POOL}.* hung=(?P<seconds>\d+)s workers=(?P<count>\d+)(?P<detail>.*)$"
)
_ITEMS = re.compile(r"(?P<state>in-flight|pending|delayed|inactive): ?(?P<items>.*)$")
_ITEM = re.compile(
    r"(?:(?P<pid>\d+)(\(RESCUER\))?:)?(?:(?P<count>\d+)\*)?"
    r"(?P<function>[^\s,:\[\]]+)(?: \[(?P<module>[\w-]+)\])?(?P<detail> BAR\(\d+\))?"
    r"(?: for (?P<seconds>\d+)s)?$"
)
_SIZE = re.compile(r"(\d{1,15})KB")
_TASK = r"(?P<comm>.{0,63}):(?P<pid>\d+)"
_SINGLE = {
    "lockup": re.compile(
        r"BUG: workqueue lockup - pool (?:(?P<pool>\d+): )?"
        rf"{_POOL}.* stuck for (?P<seconds>\d+)s!"
    ),
    "hung task": re.compile(
        rf"INFO: task {_TASK} (?P<detail>blocked|blocked in I/O wait) "
        r"for more than (?P<seconds>\d+) seconds"
    ),
    "soft lockup": re.compile(
        r"(?:watchdog: )?BUG: soft lockup - "
        rf"CPU#(?P<cpus>\d+) stuck for (?P<seconds>\d+)s! \[{_TASK}\]"
    ),
    "cpu hog": re.compile(
        r"workqueue: (?P<function>\S+)(?: \[(?P<module>[\w-]+)\])? "
        r"hogged CPU for >\d+us (?P<count>\d+) times"
    ),
    "oom": re.compile(r"(?P<comm>.{1,63}) invoked oom-killer: (?P<detail>gfp_mask=.*)$"),
    "oom kill": re.compile(
        r"(?:Out of memory: |Memory cgroup out of memory: )?Kill(?:ed)? process (?P<pid>\d+),? "
        r"\((?P<comm>.{0,63}?)\)(?P<detail>.*)$"
    ),
    "slab pages": re.compile(r"slab_reclaimable:\d+ slab_unreclaimable:(?P<count>\d+)"),
}
"""Messages of one line, by kind of event."""

_STARTS = (
    "BUG: workqueue lockup",
    "BUG: soft lockup",
    "watchdog: BUG: soft lockup",
    "INFO: task ",
    "Out of memory: ",
    "Memory cgroup out of memory: ",
    "Killed process ",
)
"""Starts of the messages in ``_SINGLE``."""
_IN_BLOCK = ("workqueue ", "pwq ", "pool ", "in-flight", "pending", "delayed", "inactive")
"""Starts of the lines of a block of busy workqueues."""
_BLOCK = "Showing busy workqueues and worker pools:"
_SLABS = "Unreclaimable slab info:"
_NO_PWQ = Event(None, "queue")
_STAMP = re.compile(
    r"^(?:<\d+>)?(?:.{0,120}? kernel: )?\s*\[\s*(\d{1,12}\.\d{1,9})\]\s?(?:\[\s*[TC]\d+\]\s?)?"
)
_KERNEL_LINE = re.compile(r"^\[|\[ *\d+\.\d+\]|\bkernel: |Linux version ")
"""Marks of lines of ``dmesg``, with any kind of time stamp, and of the journal."""
_MAX_DIGITS = 18
"""Digits that fit 64 bits."""
_MAX_BYTES = 256 << 20
_ENDLESS = "/proc/kmsg", "/dev/kmsg"
"""Files that wait for the next message."""
_SAMPLE_BYTES = 64 << 10
_MAX_BINARY = 0.3
"""Share of unprintable characters in the sample: a log may hold a few pages of zeros after a
crash."""


def parse(lines: Iterable[Line]) -> LogEvents:
    """Return the events of a log."""
    log, parser = LogEvents(), _Parser()
    for time, text in lines:
        log.lines += 1
        log.lost += is_lost(text)
        for event in parser.events(time, text.strip()):
            if event:
                log.events.append(event)
            else:
                log.unknown += 1
    return log


class _Parser:
    """Parse lines in order; the event of a cut or unknown message is None."""

    def __init__(self) -> None:
        self.block = ""
        """Kind of the block around the next line: ``busy``, ``slabs`` or none."""
        self.workqueue: str | None = None
        self.pwq = _NO_PWQ

    def events(self, time: float | None, text: str) -> Sequence[Event | None]:
        """Return the events of the next line, stripped of blanks."""
        if text.startswith(_BLOCK):
            self.block, self.workqueue, self.pwq = "busy", None, _NO_PWQ
            return ()
        if text.startswith(_SLABS):
            self.block = "slabs"
            return ()
        events: Sequence[Event | None] | None = None
        if self.block:
            events = (self._busy if self.block == "busy" else self._slab)(time, text)
        if events is not None:
            return events
        for kind, pattern in _SINGLE.items():
            if match := pattern.match(text):
                return (_event(time, kind, match),)
        return (None,) if text.startswith(_STARTS) else ()

    def _busy(self, time: float | None, text: str) -> Sequence[Event | None] | None:
        """Return the events of a line of busy workqueues, or None for any other line."""
        if match := _WORKQUEUE.match(text):
            self.workqueue, self.pwq = match["workqueue"], _NO_PWQ
            return ()
        if match := _PWQ.match(text):
            self.pwq = replace(_event(time, "queue", match), workqueue=self.workqueue)
            return (self.pwq,)
        if match := _POOL_LINE.match(text):
            return (_event(time, "pool", match),)
        if (match := _ITEMS.match(text)) and match["items"]:
            return [self._item(time, match["state"], each) for each in match["items"].split(",")]
        # The block has no last line, and other messages may come in between.
        return (None,) if text.startswith(_IN_BLOCK) else None

    def _item(self, time: float | None, state: str, text: str) -> Event | None:
        match = _ITEM.match(text.strip())
        if not match:
            return None
        event = _event(time, state, match)
        return replace(
            event,
            pool=self.pwq.pool,
            cpus=self.pwq.cpus,
            workqueue=self.workqueue,
            count=event.count or 1,
            detail="rescuer" if match[2] else event.detail,
        )

    def _slab(self, time: float | None, text: str) -> Sequence[Event | None] | None:
        """Return the events of a line of unreclaimable slabs, or None for any other line."""
        words = text.rsplit(None, 2)
        used, total = map(_SIZE.fullmatch, words[1:]) if len(words) == 3 else (None, None)
        if used and total:
            in_use, size = int(used[1]) << 10, int(total[1]) << 10
            return (Event(time, "slab", used_bytes=in_use, total_bytes=size, detail=words[0]),)
        # The heading, or the ellipsis of an excerpt.
        if re.match(r"Name\s+Used\s+Total", text) or set(text) == {"."}:
            return ()
        if re.search(r"\d(K|KB)?$", text) and len(text.split()) in (2, 3) and "KB" in text:
            return (None,)
        self.block = ""
        return None


def _event(time: float | None, kind: str, match: re.Match[str]) -> Event:
    """Return the event with the named groups of a match."""
    values: dict[str, Any] = match.groupdict()
    for name in values.keys() & {"pool", "pid", "seconds", "count"}:
        digits = values[name] or ""
        values[name] = int(digits) if 0 < len(digits) <= _MAX_DIGITS else None
    values["detail"] = (values.get("detail") or "").strip(" ,/") or None
    return Event(time, kind, **values)


def lines(text: Iterable[str]) -> Iterator[Line]:
    """Yield the time stamp and the rest of each line of a log as ``dmesg`` prints it."""
    for line in text:
        stamp = _STAMP.match(line)
        line = (line[stamp.end() :] if stamp else line).rstrip("\r\n")
        yield float(stamp[1]) if stamp else None, printable(line)


def log_file(path: str) -> Iterator[Line]:
    """Yield the lines of a file, or raise AnalysisError if it is not a readable log."""
    if str(Path(path).resolve()) in _ENDLESS:
        raise AnalysisError(f"--log: '{path}' has no end; pass the output of dmesg")
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise AnalysisError(f"--log: cannot read '{path}': {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise AnalysisError(
            f"--log: {path} is larger than {_MAX_BYTES >> 20} MiB; "
            "pass an excerpt around the time of the problem"
        )
    sample = raw[:_SAMPLE_BYTES].decode(errors="replace")
    binary = sum(not char.isprintable() and not char.isspace() for char in sample)
    if binary + sample.count("\ufffd") > len(sample) * _MAX_BINARY:
        raise AnalysisError(f"--log: '{path}' is not a text file; pass the output of dmesg")
    text = [line.decode(errors="backslashreplace") for line in io.BytesIO(raw)]
    made = list(lines(text))
    if text and not any(map(_KERNEL_LINE.search, text)) and not parse(made).events:
        raise AnalysisError(
            f"--log: '{path}' is not a kernel log: no line has a time stamp or a known message; "
            "pass the output of dmesg"
        )
    return iter(made)
