# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that sleep behind I/O: their table, their names, and the finding about long waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from kcensus.analyses.iosched.degrees import severity, shortest_ns
from kcensus.analyses.iosched.kernel.figures import Counts, Figures
from kcensus.human import counted, human_seconds, listed
from kcensus.kernel.block.requests import State
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.tasks.tasks import tasks
from kcensus.results import Danger, Figure, Finding, Severity
from kcensus.results.tables import (
    ADDRESS,
    ALWAYS,
    DATA,
    NONE,
    SECONDS,
    TEXT,
    Column,
    TableSpec,
    address,
)
from kcensus.text import printable, task_name

_MAX_NAMED = 3
"""Groups of tasks in a sentence, and PIDs per group."""
_STEPS = ((120.0, Severity.WARNING), (10.0, Severity.NOTICE))
"""Least seconds in state D, by severity: hung_task_timeout_secs, and a delay noticed by users."""


def _sleepers(figures: Figures) -> dict[str, npt.ArrayLike]:
    waits, joins, requests = figures.waits, figures.joins, figures.requests
    every = tasks(figures.kernel)
    chosen, join = figures.awaited
    names = np.array([*(disk.name for disk in figures.disks), ""], np.object_)
    is_known, is_proven = join >= 0, np.append(joins.is_proven, np.False_)[join]
    return {
        "pid": waits.pid,
        "comm": waits.comm,
        "entry": waits.entry,
        "function": waits.function,
        "since": np.where(waits.since_ns < 0, -1.0, waits.since_ns / 1e9),
        "kind": [each.value for each in waits.kind],
        "disk": np.where(
            is_known, names[np.append(requests.disk, -1)[chosen]], disk_names(figures)
        ),
        "request": [_progress(figures, row) for row in chosen.tolist()],
        "link": np.where(is_proven, "proven", np.where(is_known, "likely", "")),
        "object_by": waits.evidence,
        "linked_by": [[*joins.evidence, ""][row] for row in join.tolist()],
        "holder": np.append(every.pid, 0)[every.rows(waits.holder)],
        "sector": waits.sector,
        "object_type": waits.type,
        "object": waits.object,
        "request_address": np.append(requests.address, np.uint64(0))[chosen],
        "address": waits.task,
    }


def disk_names(figures: Figures) -> list[str]:
    """Return the name of the disk that each task waits for; empty if unknown."""
    waits = figures.waits
    names = {disk.address: disk.name for disk in figures.disks}
    # Tasks can wait in a legacy queue, which has no pointer to its disk.
    names |= {disk.queue: disk.name for disk in figures.disks if disk.queue}
    numbers = {disk.number: disk.name for disk in figures.disks}
    disks = np.where(waits.disk == 0, waits.object, waits.disk).tolist()
    return [
        names.get(disk) or numbers.get(device, "")
        for disk, device in zip(disks, waits.device.tolist(), strict=True)
    ]


def _progress(figures: Figures, row: int) -> str:
    """Return the state and age of a request, not safe to print; empty without a request."""
    if row < 0:
        return ""
    requests = figures.requests
    state = State(int(requests.state[row]))
    if state is State.INSERTED:
        queue, disk = int(requests.queue[row]), int(requests.disk[row])
        waiting = human_seconds(int(requests.waiting_ns[row]) / 1e9)
        label = figures.schedulers[disk].label[queue] if queue >= 0 else ""
        return f"{waiting} in {label}" if label else f"inserted, {waiting}"
    if state is State.DISPATCHED:
        return f"{human_seconds(int(requests.in_driver_ns[row]) / 1e9)} in the driver"
    return state.name.lower()


SLEEPERS = TableSpec(
    "sleepers",
    "Tasks in state D",
    {
        "pid": Column(NONE, "PID", ALWAYS, "ID of the thread."),
        "comm": Column(TEXT, "task", ALWAYS, "Name of the thread."),
        "entry": Column(TEXT, "entry", ALWAYS, "System call, or function of the kernel thread."),
        "function": Column(TEXT, "sleeps in", ALWAYS, "Function in which the task sleeps."),
        "since": Column(
            SECONDS, "since", ALWAYS, "Time since it left its CPU; -1 if unknown.", unknown=(-1,)
        ),
        "kind": Column(TEXT, "waits for", ALWAYS, "Kind of the awaited object."),
        "disk": Column(TEXT, "disk", ALWAYS, "Disk of the object, if known."),
        "request": Column(
            TEXT,
            "request",
            ALWAYS,
            "Request that must complete first: state, age and queue.",
        ),
        "link": Column(
            TEXT,
            "link",
            ALWAYS,
            "proven: pointers lead from the request to the task; likely: the sectors match.",
        ),
        "object_by": Column(TEXT, "known by", help="Member or stack frame that proves the object."),
        "linked_by": Column(TEXT, "linked by", help="Member that leads to the request."),
        "holder": Column(NONE, "held by", help="PID of the holder; 0 if unknown.", unknown=(0,)),
        "sector": Column(
            NONE, "sector", help="Sector of the object; -1 if unknown.", unknown=(-1,)
        ),
        "object_type": Column(TEXT, "type", DATA, "C type of the object."),
        "object": Column(ADDRESS, "object", DATA, "Address of the object; 0 if unknown."),
        "request_address": address(
            "struct request", "struct request", "The request; 0 if none is known."
        ),
        "address": address("struct task_struct", "address", "Address of the task."),
    },
    "A task in state D.",
    ("since", "pid"),
    rows=_sleepers,
)


def blocked(figures: Figures) -> Iterator[Finding]:
    """Yield a finding about tasks in state D that wait for no known request."""
    waits = figures.waits
    linked = np.isin(np.arange(len(waits)), figures.joins.wait)
    timed = np.array([function in ON_TIMERS for function in waits.function], np.bool_)
    rows = np.flatnonzero(~linked & ~timed & (waits.since_ns >= shortest_ns(_STEPS)))
    longest = int(waits.since_ns[rows].max(initial=0)) / 1e9
    how = severity(longest, _STEPS)
    if how is None:
        return
    disks = disk_names(figures)
    causes = Counter((waits.kind[row], printable(disks[row])) for row in rows.tolist())
    what = ", ".join(
        f"{kind.words}{f' of {disk}' if disk else ''} ({count:,})"
        for (kind, disk), count in causes.most_common()
    )
    function, count = Counter(waits.function[row] for row in rows.tolist()).most_common(1)[0]
    where = f" in {printable(function)}," if function and 2 * count > len(rows) else ""
    where = f"{' most of them' if where and len(rows) > 1 else ''}{where}"
    span = f"{'up to ' if len(rows) > 1 else ''}{human_seconds(longest)}"
    have = "has" if len(rows) == 1 else "have"
    subject = f"{counted(len(rows), 'task')} {have} been in state D for {span}"
    yield Finding(
        id="tasks-blocked",
        tasks=frozenset(waits.pid[rows].tolist()),
        is_generic=True,
        severity=how,
        danger=Danger.STALL,
        title=f"{subject},{where} not waiting for any known request",
        evidence=f"Waiting for: {what}. Longest: {_named(figures, rows, set(rows.tolist()))}",
        figures={"sleepers": Figure(len(rows)), "longest": Figure(longest, SECONDS)},
        no_remedy="The functions on the stacks name the driver or file system: `kcensus waits "
        "TARGET --table stacks`",
    )


def named_behind(figures: Figures, requests: Counts) -> tuple[int, str]:
    """Return the number of tasks that sleep behind some requests, and their names."""
    joins = figures.joins
    is_behind = np.isin(joins.request, requests)
    rows, proven = joins.wait[is_behind], joins.wait[is_behind & joins.is_proven]
    rows = np.unique(rows)
    return len(rows), _named(figures, rows, set(proven.tolist())) if len(rows) else ""


def _named(figures: Figures, rows: Counts, proven: Collection[int]) -> str:
    """Name the longest sleeping tasks, grouped by task name, function and proof.

    :param proven: rows of the tasks that a pointer leads to; others are marked "likely"
    """
    waits, groups = figures.waits, defaultdict(list)
    rows = rows[np.argsort(-waits.since_ns[rows], kind="stable")]
    for row in rows.tolist():
        groups[waits.comm[row], waits.function[row], row not in proven].append(row)
    words = []
    for (comm, function, is_likely), own in [*groups.items()][:_MAX_NAMED]:
        pids = listed([str(waits.pid[row]) for row in own], _MAX_NAMED)
        longest = human_seconds(max(int(waits.since_ns[own[0]]), 0) / 1e9)
        words.append(
            f"{task_name(comm, pids)} in {printable(function) or 'an unknown function'} for "
            f"{'up to ' if len(own) > 1 else ''}{longest}{' (likely)' if is_likely else ''}"
        )
    rest = sum(map(len, [*groups.values()][_MAX_NAMED:]))
    return "; ".join(words) + (f"; and {rest:,} more" if rest else "")
