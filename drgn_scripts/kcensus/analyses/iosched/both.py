# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel's memory and a trace of the same machine: the requests that both show."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.sleepers import Sleepers
from kcensus.analyses.iosched.kernel.tables import names_of, state_name
from kcensus.analyses.iosched.trace.figures import Figures as Traced
from kcensus.kernel.block.requests import State
from kcensus.results import Figure, Finding, Unit
from kcensus.results.tables import Column, Show, Table, TableSpec
from kcensus.text import printable
from kcensus.trace.bios import NEVER
from kcensus.trace.events import major_minor

Counts = npt.NDArray[np.int64]
_MIN_PAIRS = 2
"""Equal sectors of one disk are frequent: of the log, or of a super block."""
_SAME_NS = 20_000_000
"""How far the two times of one request may differ: ticks of 10 ms, and the way between events."""

REQUESTS_TRACED = TableSpec(
    "requests_traced",
    "Requests in memory and in the trace",
    {
        "disk": Column(Unit.TEXT, "disk", Show.ALWAYS, "Name of the disk."),
        "task": Column(Unit.TEXT, "queued by", Show.ALWAYS, "Task that queued it, by the trace."),
        "pid": Column(Unit.NONE, "PID", Show.ALWAYS, "Of that task."),
        "kind": Column(Unit.TEXT, "kind", Show.ALWAYS, "sync or async, as the kernel sees it."),
        "state": Column(Unit.TEXT, "state", Show.ALWAYS, "How far it is, by memory."),
        "waiting": Column(
            Unit.SECONDS, "waiting", Show.ALWAYS, "By memory, until the dump; 0 once dispatched."
        ),
        "overtaken_by": Column(
            Unit.COUNT,
            "overtaken by",
            Show.ALWAYS,
            "Synchronous requests of the disk that were dispatched while it waited, by the trace.",
        ),
        "sleepers": Column(
            Unit.COUNT, "sleepers", Show.ALWAYS, "Tasks in state D that wait for it."
        ),
        "sector": Column(Unit.NONE, "sector", Show.ALWAYS, "First sector in the disk."),
        "inserted": Column(
            Unit.SECONDS, "inserted at", help="Time in the trace; -1 if it has not that event."
        ),
        "address": Column(
            Unit.ADDRESS, "request", Show.DATA, "struct request pointer.", type="struct request"
        ),
    },
    "A request of the dump that the trace shows, too.",
    ("waiting", "disk", "sector"),
)


@dataclass(frozen=True)
class Pairs:
    """Requests in memory, and the bios of the trace that began them."""

    request: Counts
    """Rows of the requests."""
    bio: Counts
    """Rows of the bios."""
    offset_ns: int
    """CLOCK_MONOTONIC of the moment from which the trace counts."""


def pairs(figures: Figures, traced: Traced) -> Pairs:
    """Find the requests of memory in a trace: by disk, sector, and the time of their allocation.

    blktrace stamps events with CLOCK_MONOTONIC, and a trace counts from its first one: where that
    is follows from all candidates together.
    """
    requests, bios = figures.requests, traced.bios
    numbers = np.array([disk.number for disk in figures.disks] or [0], np.int64)
    live = np.flatnonzero((requests.sector >= 0) & (requests.allocated_ns > 0))
    began = np.flatnonzero(traced.is_request & ~bios.is_lost & (bios.got != NEVER))
    inside = pd.DataFrame(
        {
            "device": numbers[requests.disk[live]],
            "sector": requests.sector[live].astype(np.int64),
            "request": live,
        }
    )
    outside = pd.DataFrame(
        {
            "device": bios.device[began].astype(np.int64),
            "sector": bios.sector[began].astype(np.int64),
            "bio": began,
            "got": bios.got[began],
        }
    )
    # A trace that goes on after the dump has later bios at the same sectors.
    outside = outside[np.isin(outside["sector"], inside["sector"])]
    found = inside.merge(outside, on=["device", "sector"])
    differences = requests.allocated_ns[found["request"].to_numpy()].astype(np.int64)
    found["difference"] = differences - found["got"].to_numpy()
    found = found.sort_values("difference", kind="stable")
    offset = _most_frequent(found["difference"].to_numpy())
    same = found[(found["difference"] - offset).abs() <= _SAME_NS].drop_duplicates("request")
    # A trace of another time has the same sectors, at any distance.
    if len(same) < max(_MIN_PAIRS, found["request"].nunique() // 2 + 1):
        same, offset = same[:0], 0
    same = same.sort_values("request")
    return Pairs(same["request"].to_numpy(), same["bio"].to_numpy(), offset)


def _most_frequent(differences: Counts) -> int:
    """Return the middle of the span of time that has most of some sorted differences; or 0."""
    if not len(differences):
        return 0
    count = np.searchsorted(differences, differences + _SAME_NS, side="right")
    first = int(np.argmax(count - np.arange(len(count))))
    return int(np.median(differences[first : count[first]]))


def table(figures: Figures, sleepers: Sleepers, traced: Traced, both: Pairs) -> Table:
    """Make the table of requests in memory and in the trace."""
    requests, row = figures.requests, both.request
    task, names = traced.tasks(both.bio)
    is_gone = requests.state[row] >= State.DISPATCHED
    inserted = traced.bios.inserted[both.bio]
    behind = np.bincount(sleepers.joins.request, minlength=len(requests))
    return REQUESTS_TRACED.of(
        pd.DataFrame(
            {
                "disk": names_of(requests.disk[row], lambda each: figures.disks[each].name),
                "task": np.array(names, np.object_)[task],
                "pid": traced.bios.pid[both.bio],
                "kind": np.where(requests.is_sync[row], "sync", "async"),
                "state": names_of(requests.state[row], state_name),
                "waiting": np.where(is_gone, 0, np.maximum(requests.waiting_ns[row], 0)) / 1e9,
                "overtaken_by": _overtaken(figures, traced, both),
                "sleepers": behind[row],
                "sector": requests.sector[row],
                "inserted": np.where(inserted == NEVER, -1.0, inserted / 1e9),
                "address": requests.address[row],
            },
            columns=[*REQUESTS_TRACED.columns],
        )
    )


def _overtaken(figures: Figures, traced: Traced, both: Pairs) -> Counts:
    """Return how many synchronous requests were dispatched until the dump while each waited."""
    bios, requests = traced.bios, figures.requests
    begin = traced.since[both.bio]
    end = np.minimum(requests.now_ns - both.offset_ns, begin + traced.wait[both.bio])
    counts = np.zeros(len(begin), np.int64)
    for device in np.unique(bios.device[both.bio]).tolist():
        own = (bios.device[both.bio] == device) & (begin != NEVER)
        times = traced.sync_dispatches[device]
        since = np.searchsorted(times, begin[own], side="right")
        counts[own] = np.maximum(np.searchsorted(times, end[own]) - since, 0)
    return counts


def summary(both: Pairs) -> dict[str, Figure]:
    """Return how many requests memory and trace have in common."""
    return {"requests_traced": Figure(len(both.request), Unit.COUNT, "requests in the trace, too")}


def folded(figures: Figures, inside: list[Finding], traced: list[Finding]) -> list[Finding]:
    """Return the findings of both, those of a trace under what memory says of the same disk."""
    ids = {finding.id for finding in inside}
    main = {"trace-async-starved": "async", "trace-sync-delayed": "sync"}
    disks = {
        major_minor(disk.number): printable(disk.name) for disk in figures.disks if disk.number
    }
    findings = [*inside]
    for finding in traced:
        device = finding.id.partition(":")[2]
        parent = f"requests-starved:{disks.get(device, '')}-{main.get(finding.kind, '')}"
        findings.append(replace(finding, part_of=parent) if parent in ids else finding)
    return findings
