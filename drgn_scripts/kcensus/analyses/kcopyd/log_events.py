# SPDX-License-Identifier: LGPL-2.1-or-later
"""Events in a kernel log: stalled workqueues, hung tasks, out of memory.

The messages are those of Linux 3.10 to 7.3. A line that starts like one of them but does not match
(cut, or of another kernel) is only counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pandas as pd

from kcensus.kernel.log import Line


@dataclass(frozen=True)
class Event:
    """An event; None for what its message does not show."""

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
    """How long it has been hung, stuck or running."""
    used_bytes: int | None = None
    total_bytes: int | None = None
    """Of a slab cache, like ``used_bytes``."""
    count: int | None = None
    """Equal items, active items of a workqueue, workers of a pool, or pages of slabs."""
    detail: str | None = None


@dataclass
class LogEvents:
    """The events of a log."""

    events: list[Event] = field(default_factory=list)
    lines: int = 0
    unknown: int = 0
    """Lines that start like a message but do not match."""

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of some kinds."""
        return [event for event in self.events if event.event in kinds]

    def frame(self) -> pd.DataFrame:
        """Return a row per event, in the order of the log."""
        names = list(Event.__dataclass_fields__)
        columns = {name: [getattr(event, name) for event in self.events] for name in names}
        frame = pd.DataFrame(columns, dtype=object)
        for name in ("pool", "pid", "used_bytes", "total_bytes", "count"):
            frame[name] = frame[name].astype("Int64")
        for name in ("time", "seconds"):
            frame[name] = frame[name].astype(float)
        return frame


_POOL = r"cpus=(?P<cpus>\S+)(?!\S)(?: node=-?\d+)?(?: flags=0x[0-9a-f]+)?(?: nice=-?\d+)?"

_LOCKUP = re.compile(
    rf"BUG: workqueue lockup - pool (?:(?P<pool>\d+): )?{_POOL}.* stuck for (?P<seconds>\d+)s!"
)
_WORKQUEUE = re.compile(r"workqueue (?P<workqueue>.+): flags=0x[0-9a-f]+$")
_PWQ = re.compile(rf"pwq (?P<pool>\d+): {_POOL}.* active=(?P<count>\d+)(?P<detail>/\d+)?")
_POOL_LINE = re.compile(
    rf"pool (?P<pool>\d+): {_POOL}.* hung=(?P<seconds>\d+)s workers=(?P<count>\d+)(?P<detail>.*)$"
)
_ITEMS = re.compile(r"(?P<state>in-flight|pending|delayed|inactive): ?(?P<items>.*)$")
_ITEM = re.compile(
    r"(?:(?P<pid>\d+)(?P<rescuer>\(RESCUER\))?:)?(?:(?P<count>\d+)\*)?"
    r"(?P<function>[^\s,:\[\]]+)(?: \[(?P<module>[\w-]+)\])?(?P<detail> BAR\(\d+\))?"
    r"(?: for (?P<seconds>\d+)s)?$"
)
_TASK = r"(?P<comm>.{0,63}):(?P<pid>\d+)"
_HUNG = re.compile(
    rf"INFO: task {_TASK} (?P<detail>blocked|blocked in I/O wait) "
    r"for more than (?P<seconds>\d+) seconds"
)
_SOFT = re.compile(
    rf"(?:watchdog: )?BUG: soft lockup - CPU#(?P<cpus>\d+) stuck for (?P<seconds>\d+)s! \[{_TASK}\]"
)
_HOG = re.compile(
    r"workqueue: (?P<function>\S+)(?: \[(?P<module>[\w-]+)\])? "
    r"hogged CPU for >\d+us (?P<count>\d+) times"
)
_OOM = re.compile(r"(?P<comm>.{1,63}) invoked oom-killer: (?P<detail>gfp_mask=.*)$")
_SLAB_PAGES = re.compile(r"slab_reclaimable:(?P<reclaimable>\d+) slab_unreclaimable:(?P<count>\d+)")
_SIZE = re.compile(r"(\d{1,15})KB")
_VICTIM = re.compile(
    r"(?:Out of memory: |Memory cgroup out of memory: )?Kill(?:ed)? process (?P<pid>\d+),? "
    r"\((?P<comm>.{0,63}?)\)(?P<detail>.*)$"
)
_SINGLE = {
    "lockup": _LOCKUP,
    "hung task": _HUNG,
    "soft lockup": _SOFT,
    "cpu hog": _HOG,
    "oom": _OOM,
    "oom kill": _VICTIM,
    "slab pages": _SLAB_PAGES,
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
"""Starts of these messages only."""
_IN_BLOCK = ("workqueue ", "pwq ", "pool ", "in-flight", "pending", "delayed", "inactive")
"""Starts of the lines of a block of busy workqueues."""
_BLOCK = "Showing busy workqueues and worker pools:"
_SLABS = "Unreclaimable slab info:"
_MAX_DIGITS = 18
"""Digits that fit 64 bits."""


def parse(lines: Iterable[Line]) -> LogEvents:
    """Return the events of a log."""
    parser = _Parser()
    for time, text in lines:
        parser.log.lines += 1
        parser.line(time, text.strip())
    return parser.log


class _Parser:
    def __init__(self) -> None:
        self.log = LogEvents()
        self.block = ""
        """The block of lines that the next one may belong to: ``busy``, ``slabs`` or none."""
        self.workqueue: str | None = None
        self.pwq: Event | None = None

    def line(self, time: float | None, text: str) -> None:
        """Parse the next line, stripped of blanks."""
        if text.startswith(_BLOCK):
            self.block, self.workqueue, self.pwq = "busy", None, None
            return
        if text.startswith(_SLABS):
            self.block = "slabs"
            return
        if (self.block == "busy" and self._busy(time, text)) or (
            self.block == "slabs" and self._slab(time, text)
        ):
            return
        if not self._single(time, text) and text.startswith(_STARTS):
            self.log.unknown += 1

    def _single(self, time: float | None, text: str) -> bool:
        for kind, pattern in _SINGLE.items():
            if match := pattern.match(text):
                self.log.events.append(_event(time, kind, match))
                return True
        return False

    def _busy(self, time: float | None, text: str) -> bool:
        """Parse a line of busy workqueues; return whether it is one."""
        if match := _WORKQUEUE.match(text):
            self.workqueue, self.pwq = match["workqueue"], None
        elif match := _PWQ.match(text):
            self.pwq = replace(_event(time, "queue", match), workqueue=self.workqueue)
            self.log.events.append(self.pwq)
        elif match := _POOL_LINE.match(text):
            self.log.events.append(_event(time, "pool", match))
        elif (match := _ITEMS.match(text)) and match["items"]:
            self._items(time, match["state"], match["items"])
        elif text.startswith(_IN_BLOCK):
            self.log.unknown += 1
        else:
            # The block has no last line, and other messages may come in between.
            return False
        return True

    def _items(self, time: float | None, state: str, items: str) -> None:
        pool = self.pwq.pool if self.pwq else None
        cpus = self.pwq.cpus if self.pwq else None
        for item in items.split(","):
            if match := _ITEM.match(item.strip()):
                event = _event(time, state, match)
                self.log.events.append(
                    replace(
                        event,
                        pool=pool,
                        cpus=cpus,
                        workqueue=self.workqueue,
                        count=event.count or 1,
                        detail="rescuer" if match["rescuer"] else event.detail,
                    )
                )
            else:
                self.log.unknown += 1

    def _slab(self, time: float | None, text: str) -> bool:
        """Parse a line of unreclaimable slabs; return whether it is one."""
        words = text.rsplit(None, 2)
        used, total = map(_SIZE.fullmatch, words[1:]) if len(words) == 3 else (None, None)
        if used and total:
            self.log.events.append(
                Event(
                    time,
                    "slab",
                    detail=words[0],
                    used_bytes=int(used[1]) << 10,
                    total_bytes=int(total[1]) << 10,
                )
            )
            return True
        if re.match(r"Name\s+Used\s+Total", text):
            return True
        if re.search(r"\d(K|KB)?$", text) and len(text.split()) in (2, 3) and "KB" in text:
            self.log.unknown += 1
            return True
        if set(text) == {"."}:
            # An excerpt with an ellipsis.
            return True
        self.block = ""
        return False


def _event(time: float | None, kind: str, match: re.Match[str]) -> Event:
    """Return the event that the named groups of a pattern describe."""
    groups = match.groupdict()

    def number(name: str) -> int | None:
        value = groups.get(name)
        return int(value) if value is not None and len(value) <= _MAX_DIGITS else None

    seconds = number("seconds")
    detail = (groups.get("detail") or "").strip(" ,/")
    return Event(
        time,
        kind,
        pool=number("pool"),
        cpus=groups.get("cpus"),
        function=groups.get("function"),
        module=groups.get("module"),
        pid=number("pid"),
        comm=groups.get("comm"),
        seconds=None if seconds is None else float(seconds),
        count=number("count"),
        detail=detail or None,
    )
