# SPDX-License-Identifier: LGPL-2.1-or-later
"""Match a kernel's memory with a trace of the same machine, by their common requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.tables import names_of, state_name
from kcensus.analyses.iosched.trace.figures import Figures as Traced
from kcensus.engine.memory import Floats, Numbers
from kcensus.human import listed
from kcensus.kernel.block.requests import State
from kcensus.results import Finding, Gap, Machine
from kcensus.results.tables import (
    ALWAYS,
    COUNT,
    NONE,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    TableSpec,
    address,
)
from kcensus.sources.blktrace.bios import NEVER
from kcensus.sources.blktrace.events import Trace, major_minor
from kcensus.text import printable

_MIN_PAIRS = 2
"""Least number of common requests; fewer equal sectors may be chance, as of a log."""
_SAME_NS = 20_000_000
"""Largest difference of the two times of one request: ticks of 10 ms, and time between events."""
_SAME_BOOT_SECONDS = 60
"""Largest difference of the boot times by two wall clocks, which may be set in between."""
_MAX_NAMED = 1000
"""Requests with a list of the tasks that overtook them."""
_MAX_OVERTAKERS = 3
_PARENTS = {
    "trace-async-starved": ("requests-starved:{}-async", "requests-stuck:{}"),
    "trace-sync-delayed": ("requests-starved:{}-sync", "requests-stuck:{}"),
    "trace-requests-stuck": ("requests-stuck:{}",),
    "trace-requests-overdue": ("requests-overdue:{}", "requests-stuck:{}"),
    "trace-requests-awaited": ("tags-exhausted:{}", "requests-stuck:{}"),
}
"""Ids of findings about memory with the same cause, by kind of the trace's finding."""


@dataclass(frozen=True)
class Pairs:
    """Rows of requests in memory, and of the trace's bios that began them."""

    request: Numbers
    bio: Numbers
    offset_ns: int
    """CLOCK_MONOTONIC of the moment from which the trace counts; 0 without pairs."""

    def __len__(self) -> int:
        return len(self.request)


def traced_until(figures: Figures, traced: Traced) -> tuple[Traced, Pairs]:
    """Cut the trace at the moment of the dump; return the trace, and the requests found in both.

    Memory does not show waits that go on after the dump.
    """
    both = pairs(figures, traced)
    if not len(both):
        return traced, both
    until = traced.trace.until(figures.requests.now_ns - both.offset_ns)
    if until is traced.trace:
        return traced, both
    traced = Traced(until)
    return traced, pairs(figures, traced, both.offset_ns)


def pairs(figures: Figures, traced: Traced, offset_ns: int | None = None) -> Pairs:
    """Find requests of memory in a trace, by disk, sector, and time of allocation.

    blktrace stamps events with CLOCK_MONOTONIC; text counts from its first event, and the offset is
    estimated from all candidates together.

    :param offset_ns: CLOCK_MONOTONIC of the moment from which the trace counts, where it is known
    """
    candidates = _candidates(figures, traced)
    found = _near(candidates[:0], 0)
    offset = traced.trace.first_ns if offset_ns is None else offset_ns
    if offset is not None:
        found = _near(candidates, offset)
        if 2 * found["request"].nunique() < _covered(figures, traced, offset):
            found = candidates[:0].assign(distance=[])  # equal sectors and times by chance
    if not len(found) and offset_ns is None:
        offset = _offset(candidates)
        found = found if offset is None else _near(candidates, offset)
    # One to one, the nearest first.
    found = found.sort_values("distance", kind="stable")
    found = found.drop_duplicates("request").drop_duplicates("bio").sort_values("request")
    request, bio = (found[name].to_numpy(np.int64) for name in ("request", "bio"))
    return Pairs(request, bio, offset if offset is not None and len(found) else 0)


def _candidates(figures: Figures, traced: Traced) -> pd.DataFrame:
    """Return requests and bios at the same sector, and the ``difference`` of their times, ns."""
    requests, bios = figures.requests, traced.bios
    numbers = np.array([disk.number for disk in figures.disks] or [0], np.int64)
    live = np.flatnonzero((requests.sector >= 0) & (requests.allocated_ns > 0))
    inside = pd.DataFrame(
        {
            "device": numbers[requests.disk[live]],
            "sector": requests.sector[live].astype(np.int64),
            "request": live,
        }
    )
    began = np.flatnonzero(traced.is_request & (bios.got != NEVER))
    # A request begins at the sector of its first bio, also if that bio was merged to its front.
    front = np.flatnonzero((bios.merged != NEVER) & np.isin(bios.sector, inside["sector"]))
    ends = bios.sector + (bios.bytes >> 9)
    merged = pd.DataFrame(
        {"device": bios.device[front], "at": ends[front], "sector": bios.sector[front]}
    ).merge(
        pd.DataFrame({"device": bios.device[began], "at": bios.sector[began], "bio": began}),
        on=["device", "at"],
    )
    own = pd.DataFrame({"device": bios.device[began], "sector": bios.sector[began], "bio": began})
    outside = pd.concat([own, merged[["device", "sector", "bio"]]], ignore_index=True)
    outside = outside.astype(np.int64).drop_duplicates()
    found = inside.merge(outside, on=["device", "sector"])
    allocated = requests.allocated_ns[found["request"].to_numpy(np.int64)].astype(np.int64)
    found["difference"] = allocated - bios.got[found["bio"].to_numpy(np.int64)]
    return found


def _near(candidates: pd.DataFrame, offset_ns: int) -> pd.DataFrame:
    """Return the candidates whose times agree if the trace counts from ``offset_ns``."""
    distance = (candidates["difference"] - offset_ns).abs()
    return candidates.assign(distance=distance)[distance <= _SAME_NS]


def _covered(figures: Figures, traced: Traced, offset_ns: int) -> int:
    """Return the number of requests in memory that began while the trace saw others begin.

    A trace of the same machine shows them, too.
    """
    got = traced.bios.got[traced.is_request & (traced.bios.got != NEVER)]
    if not len(got):
        return 0
    requests = figures.requests
    numbers = np.array([disk.number for disk in figures.disks] or [0], np.int64)
    began = requests.allocated_ns.astype(np.int64) - offset_ns
    shown = (began >= got.min()) & (began <= got.max()) & (requests.sector >= 0)
    shown &= np.isin(numbers[requests.disk], np.unique(traced.bios.device))
    return int(np.count_nonzero(shown))


def _offset(candidates: pd.DataFrame) -> int | None:
    """Return the moment from which the trace counts; None where no moment fits most requests."""
    if not len(candidates):
        return None
    order = candidates.sort_values("difference")
    difference = order["difference"].to_numpy(np.int64)
    count = order["request"].nunique()
    # A trace of another time has the same sectors, but its differences vary.
    ends = np.searchsorted(difference, difference + _SAME_NS, side="right")
    best = int(np.argmax(ends - np.arange(len(ends))))
    window = order.iloc[best : int(ends[best])]
    if window["request"].nunique() < max(_MIN_PAIRS, count // 2 + 1):
        return None
    return int(np.median(window["difference"]))


@dataclass(frozen=True)
class Both:
    """Memory, a trace, and their common requests."""

    figures: Figures
    traced: Traced
    pairs: Pairs

    def of_requests(self, values: Any) -> Any:
        """Return values of the requests in memory for the common ones."""
        return values[self.pairs.request]

    @property
    def waiting(self) -> Floats:
        """Wait in memory; 0 once dispatched."""
        requests = self.figures.requests
        is_gone = self.of_requests(requests.state) >= State.DISPATCHED
        waiting = np.maximum(self.of_requests(requests.waiting_ns), 0)
        return np.where(is_gone, 0, waiting) / 1e9

    @property
    def task(self) -> list[str]:
        task, names = self.traced.tasks(self.pairs.bio)
        return [names[each] for each in task.tolist()]

    @property
    def inserted(self) -> Floats:
        inserted = self.traced.bios.inserted[self.pairs.bio]
        return np.where(inserted == NEVER, np.nan, inserted / 1e9)

    @cached_property
    def overtaken(self) -> tuple[Numbers, list[str]]:
        return _overtaken(self.traced, self.pairs, self.waiting)


def _overtaken(traced: Traced, both: Pairs, waiting: Floats) -> tuple[Numbers, list[str]]:
    """Return the number of requests that overtook each request, and the tasks that queued most.

    Overtakers are sync requests that were inserted later and dispatched earlier.
    """
    counts, names = np.zeros(len(both), np.int64), [""] * len(both)
    waited = np.flatnonzero(traced.wait[both.bio] != NEVER)
    counts[waited] = traced.overtaken(both.bio[waited])
    for place in np.argsort(-waiting, kind="stable")[:_MAX_NAMED].tolist():
        if counts[place]:
            names[place] = _named(traced, traced.overtakers(int(both.bio[place])))
    return counts, names


def _named(traced: Traced, rows: Numbers) -> str:
    task, names = traced.tasks(rows)
    counts = Counter(zip(task.tolist(), traced.bios.pid[rows].tolist(), strict=True))
    pids: dict[str, list[int]] = {}
    by_name: Counter[str] = Counter()
    for (number, pid), count in counts.most_common():
        by_name[names[number]] += count
        pids.setdefault(names[number], []).append(pid)
    return ", ".join(
        f"{name} {count:,} (PID {listed([*map(str, pids[name])], 1)})"
        for name, count in by_name.most_common(_MAX_OVERTAKERS)
    )


def _disks(both: Both) -> Any:
    disks = both.figures.disks
    return names_of(both.of_requests(both.figures.requests.disk), lambda row: disks[row].name)


def _sleepers(both: Both) -> Any:
    figures = both.figures
    return both.of_requests(np.bincount(figures.joins.request, minlength=len(figures.requests)))


REQUESTS_TRACED = TableSpec("requests_traced", "Requests in memory and in the trace", {
    "disk": Column(TEXT, "", ALWAYS, "Name of the disk.", _disks),
    "task": Column(TEXT, "queued by", ALWAYS, "Task that queued it, by the trace."),
    "pid": Column(NONE, "PID", ALWAYS, "PID of the task.",
        lambda of: of.traced.bios.pid[of.pairs.bio]),
    "kind": Column(TEXT, "", ALWAYS, "sync or async, as the kernel sees it.",
        lambda of: np.where(of.of_requests(of.figures.requests.is_sync), "sync", "async")),
    "state": Column(TEXT, "", ALWAYS, "State in memory.",
        lambda of: names_of(of.of_requests(of.figures.requests.state), state_name)),
    "waiting": Column(SECONDS, "", ALWAYS, "Wait in memory; 0 once dispatched."),
    "overtaken_by": Column(COUNT, "", ALWAYS,
        "Sync requests of the disk dispatched while it waited, by the trace.",
        lambda of: of.overtaken[0]),
    "overtakers": Column(TEXT, "overtaken mostly by", ALWAYS,
        "Tasks that queued most of the overtaking requests, with counts.",
        lambda of: of.overtaken[1]),
    "sleepers": Column(COUNT, "", ALWAYS, "Tasks in state D that wait for it.", _sleepers),
    "sector": Column(NONE, "", WIDE, "First sector in the disk.",
        lambda of: of.of_requests(of.figures.requests.sector)),
    "inserted": Column(SECONDS, "inserted at", help="Time in the trace, if it has the event."),
    "address": address("struct request",
        get=lambda of: of.of_requests(of.figures.requests.address)),
}, "A request that is in both dump and trace.", ("waiting", "disk", "sector"))  # fmt: skip


def gaps(figures: Figures, machine: Machine, traced: Traced, both: Pairs) -> Iterator[Gap]:
    """Yield a gap if memory and trace are, or may be, of different machines or times."""
    effect = "findings of the trace and of memory are listed separately"
    if not len(both):
        why = _another_boot(machine, traced.trace)
        yield Gap(
            "requests of memory and trace",
            why or "no request in common: the trace may be of another time or machine",
            max(len(figures.requests), 1),
            effect,
        )
        return
    known = {disk.number for disk in figures.disks}
    other = [name for device, name in traced.devices.items() if device not in known]
    if other:
        yield Gap(
            "devices of the trace",
            f"memory has no disk {listed(other, 4)}: a partition, or removed",
            len(other),
            effect,
        )


def _another_boot(machine: Machine, trace: Trace) -> str:
    """Return why a trace comes from another boot or machine; empty if the clocks agree."""
    if machine.time is None or machine.uptime_seconds is None:
        return ""
    if trace.start is None or trace.first_ns is None:
        return ""
    began = machine.time - machine.uptime_seconds
    apart = abs(trace.start - trace.first_ns / 1e9 - began)
    if apart <= _SAME_BOOT_SECONDS:
        return ""
    return f"the trace comes from another boot or machine: boot times differ by {apart:,.0f} s"


def folded(
    figures: Figures, inside: list[Finding], traced: list[Finding], both: Pairs
) -> list[Finding]:
    """Return all findings; those of a trace go under the memory's findings about the same disk.

    Without a common request, nothing shows that trace and memory are of the same machine.
    """
    if not len(both):
        return [*inside, *traced]
    ids = {finding.id for finding in inside}
    disks = {
        major_minor(disk.number): printable(disk.name) for disk in figures.disks if disk.number
    }
    findings = [*inside]
    for finding in traced:
        device = finding.id.partition(":")[2]
        disk = disks.get(device)
        if disk is None:
            findings.append(finding)
            continue
        named = replace(finding, title=finding.title.replace(f"{device}:", f"{disk}:", 1))
        parents = [each.format(disk) for each in _PARENTS.get(finding.kind, ())]
        parent = next((each for each in parents if each in ids), "")
        if parent:
            # Memory has the better remedy: it knows the disk's scheduler and its tunables.
            named = replace(named, part_of=parent, remedies=(), no_remedy="")
        findings.append(named)
    return findings
