# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that sleep behind I/O: their table, their names, and the finding about long waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kcensus.analyses.iosched.degrees import severity, shortest_ns
from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.sleepers import behind_tasks, disk_names, holders
from kcensus.analyses.remedies import with_types_first
from kcensus.engine.memory import Numbers
from kcensus.human import counted, human_seconds, listed
from kcensus.kernel.block.requests import State
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finder import LOOK_AT_STACKS
from kcensus.results import Danger, Figure, Finding, Severity
from kcensus.results.severity import HUNG, LATE
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
STEPS = ((HUNG, Severity.WARNING), (LATE, Severity.NOTICE))
"""Least seconds in state D, by severity."""


def _disks(figures: Figures) -> npt.NDArray[np.str_]:
    """Return the disk of each task's request, or else of its object."""
    names = np.array([*(disk.name for disk in figures.disks), ""], np.object_)
    request, join = figures.awaited
    known = names[np.append(figures.requests.disk, -1)[request]]
    return np.where(join >= 0, known, disk_names(figures.waiting, figures.disks))


def _links(figures: Figures) -> npt.NDArray[np.str_]:
    _, join = figures.awaited
    is_proven = np.append(figures.joins.is_proven, np.False_)[join]
    return np.where(is_proven, "proven", np.where(join >= 0, "likely", ""))


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


SLEEPERS = TableSpec("sleepers", "Tasks in state D", {
    "pid": Column(NONE, "PID", ALWAYS, "ID of the thread.", "waits.pid"),
    "comm": Column(TEXT, "task", ALWAYS, "Name of the thread.", "waits.comm"),
    "function": Column(TEXT, "sleeps in", ALWAYS, "Function in which the task sleeps.",
        "waits.function"),
    "since": Column(SECONDS, "", ALWAYS, "Time since it began to wait; -1 if unknown.",
        lambda f: np.where(f.waits.since_ns < 0, -1.0, f.waits.since_ns / 1e9), unknown=(-1,)),
    "kind": Column(TEXT, "waits for", ALWAYS, "Kind of the awaited object.",
        lambda f: [each.value for each in f.waits.kind]),
    "disk": Column(TEXT, "", ALWAYS, "Disk of the object, if known.", _disks),
    "request": Column(TEXT, "", ALWAYS,
        "Request that must complete first: state, age and queue.",
        lambda f: [_progress(f, row) for row in f.awaited[0].tolist()]),
    "holder": Column(NONE, "held by", ALWAYS, "PID of the holder; 0 if unknown.",
        lambda f: holders(f.waiting), unknown=(0,)),
    "link": Column(TEXT,
        help="proven: pointers lead from the request to the task; likely: the sectors match.",
        get=_links),
    "entry": Column(TEXT, help="System call, or function of the kernel thread.",
        get="waits.entry"),
    "object_by": Column(TEXT, "known by", help="Member or stack frame that proves the object.",
        get="waits.evidence"),
    "linked_by": Column(TEXT, help="Member that leads to the request.",
        get=lambda f: [[*f.joins.evidence, ""][row] for row in f.awaited[1].tolist()]),
    "sector": Column(NONE, help="Sector of the object; -1 if unknown.", get="waits.sector",
        unknown=(-1,)),
    "object_type": Column(TEXT, "type", DATA, "C type of the object.", "waits.type"),
    "object": Column(ADDRESS, "", DATA, "Address of the object; 0 if unknown.", "waits.object"),
    "request_address": address("struct request", "struct request",
        "The request; 0 if none is known.",
        lambda f: np.append(f.requests.address, np.uint64(0))[f.awaited[0]]),
    "address": address("struct task_struct", "address", "Address of the task.", "waits.task"),
}, "A task in state D.", ("since", "pid"))  # fmt: skip


def blocked(figures: Figures, ids: Collection[str] = ()) -> Iterator[Finding]:
    """Yield a finding about tasks in state D that wait for no known request.

    :param ids: of other findings, which may have the cause
    """
    waits = figures.waits
    linked = np.isin(np.arange(len(waits)), figures.joins.wait)
    rows = np.flatnonzero(~linked & ~waits.is_timed & (waits.since_ns >= shortest_ns(STEPS)))
    longest = int(waits.since_ns[rows].max(initial=0)) / 1e9
    how = severity(longest, STEPS)
    if how is None:
        return
    disks = disk_names(figures.waiting, figures.disks)
    causes = Counter((waits.kind[row], disks[row]) for row in rows.tolist())
    what = ", ".join(
        f"{kind.words}{f' of {printable(disk)}' if disk else ''} ({count:,})"
        for (kind, disk), count in causes.most_common()
    )
    stacked = "".join(f". {each}" for each in _stacked(figures, {disk for _, disk in causes}))
    function, count = Counter(waits.function[row] for row in rows.tolist()).most_common(1)[0]
    where = f" in {printable(function)}," if function and 2 * count > len(rows) else ""
    where = f"{' most of them' if where and len(rows) > 1 else ''}{where}"
    span = f"{'up to ' if len(rows) > 1 else ''}{human_seconds(longest)}"
    have = "has" if len(rows) == 1 else "have"
    subject = f"{counted(len(rows), 'task')} {have} been in state D for {span}"
    # Tasks that all wait for a tag of one disk wait because there is none.
    (kind, disk), most = causes.most_common(1)[0]
    cause = f"tags-exhausted:{printable(disk)}"
    is_tag = kind is WaitKind.TAG and most == len(rows) and cause in ids
    indirect = behind_tasks(figures.waiting, rows)
    behind_them = (
        f". {counted(len(indirect), 'task')} of these {'waits' if len(indirect) == 1 else 'wait'} "
        f"for a task that waits for a request: {_named(figures, indirect, set(indirect.tolist()))}"
        if len(indirect)
        else ""
    )
    request = "a request themselves" if len(indirect) else "any known request"
    if len(rows) == 1:
        request = request.replace("themselves", "itself")
    finding = Finding(
        id="tasks-blocked",
        tasks=frozenset(waits.pid[rows].tolist()),
        is_generic=True,
        is_vague=True,
        severity=how,
        danger=Danger.STALL,
        title=f"{subject},{where} not waiting for {request}",
        evidence=f"Waiting for: {what}{stacked}. "
        f"Longest: {_named(figures, rows, set(rows.tolist()))}{behind_them}",
        figures={"sleepers": Figure(len(rows)), "longest": Figure(longest, SECONDS)},
        no_remedy=LOOK_AT_STACKS,
        part_of=cause if is_tag else "",
    )
    if untyped := figures.kernel.untyped_modules:
        on_stacks = {name for row in rows.tolist() for name in waits.stacks.modules_of(row)}
        finding = with_types_first(finding, sorted(on_stacks & untyped))
    yield finding


def _stacked(figures: Figures, names: Collection[str]) -> Iterator[str]:
    """Yield what disks with some names are stacked on."""
    for row, disk in enumerate(figures.disks):
        lower = [printable(figures.disks[each].name) for each in figures.stacks.lower(row)]
        if disk.name in names and lower:
            yield f"{printable(disk.name)} is stacked on {listed(lower)}"


class Sleepers(NamedTuple):
    """Tasks in state D behind some requests."""

    pids: frozenset[int]
    names: str
    """The names of those that sleep longest."""


def behind(figures: Figures, requests: Numbers) -> Sleepers:
    """Return the tasks that sleep behind some requests."""
    joins = figures.joins
    is_behind = np.isin(joins.request, requests)
    rows, proven = joins.wait[is_behind], joins.wait[is_behind & joins.is_proven]
    rows = np.unique(rows)
    names = _named(figures, rows, set(proven.tolist())) if len(rows) else ""
    return Sleepers(
        frozenset(figures.waits.pid[rows].tolist()) if len(rows) else frozenset(), names
    )


def _named(figures: Figures, rows: Numbers, proven: Collection[int]) -> str:
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
