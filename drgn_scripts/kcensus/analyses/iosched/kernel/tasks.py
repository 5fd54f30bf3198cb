# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of tasks that sleep behind I/O, and what it means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.sleepers import Sleepers
from kcensus.human import human_seconds
from kcensus.kernel.block.requests import State
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.tasks import tasks
from kcensus.results import Bound, Check, Figure, Gap, Unit, nonzero_gaps
from kcensus.results.tables import Column, Show, Table, TableSpec
from kcensus.text import printable

Counts = npt.NDArray[np.int64]
_MAX_NAMED = 3
"""Groups of tasks that a sentence names, and PIDs of each."""

SLEEPERS = TableSpec(
    "sleepers",
    "Tasks in state D",
    {
        "pid": Column(Unit.NONE, "PID", Show.ALWAYS, "Of the thread."),
        "comm": Column(Unit.TEXT, "task", Show.ALWAYS, "Name of the thread."),
        "entry": Column(
            Unit.TEXT, "came by", Show.ALWAYS, "System call, or function of the kernel thread."
        ),
        "function": Column(Unit.TEXT, "sleeps in", Show.ALWAYS, "Function that it waits in."),
        "since": Column(
            Unit.SECONDS, "since", Show.ALWAYS, "Since it was last on a CPU; -1 if unknown."
        ),
        "kind": Column(Unit.TEXT, "waits for", Show.ALWAYS, "Kind of what it waits for."),
        "disk": Column(Unit.TEXT, "disk", Show.ALWAYS, "Disk of what it waits for, if known."),
        "request": Column(
            Unit.TEXT,
            "request",
            Show.ALWAYS,
            "State and age of the request that has to complete first, and the queue that it is in.",
        ),
        "link": Column(
            Unit.TEXT,
            "link",
            Show.ALWAYS,
            "proven: pointers lead from the request to the task; likely: the sectors are the same.",
        ),
        "object_by": Column(
            Unit.TEXT, "known by", help="Member that proves what it waits for, or its stack frame."
        ),
        "linked_by": Column(Unit.TEXT, "linked by", help="Member that leads to the request."),
        "holder": Column(Unit.NONE, "held by", help="PID of the task that holds it; 0 if unknown."),
        "sector": Column(Unit.NONE, "sector", help="Of what it waits for; -1 if unknown."),
        "object_type": Column(Unit.TEXT, "type", Show.DATA, "C type of what it waits for."),
        "object": Column(Unit.ADDRESS, "object", Show.DATA, "What it waits for; 0 if unknown."),
        "request_address": Column(
            Unit.ADDRESS,
            "struct request",
            Show.DATA,
            "The request; 0 if none is known.",
            type="struct request",
        ),
        "address": Column(
            Unit.ADDRESS, "address", Show.DATA, "Of the task.", type="struct task_struct"
        ),
    },
    "A task in state D.",
    ("since", "pid"),
)


def table(figures: Figures, sleepers: Sleepers) -> Table:
    """Make the table of tasks in state D."""
    waits, joins, requests = sleepers.waits, sleepers.joins, figures.requests
    every = tasks(figures.kernel)
    chosen, join = sleepers.request_of(figures)
    holders = every.rows(waits.holder)
    pids = np.append(every.pid, 0)[holders]
    shown = [
        figures.disks[int(requests.disk[row])].name if row >= 0 else name
        for row, name in zip(chosen.tolist(), disk_names(figures, sleepers), strict=True)
    ]
    proofs = [joins.evidence[row] if row >= 0 else "" for row in join.tolist()]
    proven = [bool(joins.is_proven[row]) if row >= 0 else False for row in join.tolist()]
    links = [
        ("proven" if is_proven else "likely") if proof else ""
        for proof, is_proven in zip(proofs, proven, strict=True)
    ]
    return SLEEPERS.of(
        pd.DataFrame(
            {
                "pid": waits.pid,
                "comm": waits.comm,
                "entry": waits.entry,
                "function": waits.function,
                "since": np.where(waits.since_ns < 0, -1.0, waits.since_ns / 1e9),
                "kind": [each.value for each in waits.kind],
                "disk": shown,
                "request": [_progress(figures, row) for row in chosen.tolist()],
                "link": links,
                "object_by": waits.evidence,
                "linked_by": proofs,
                "holder": pids,
                "sector": waits.sector,
                "object_type": waits.type,
                "object": waits.object,
                "request_address": np.append(requests.address, np.uint64(0))[chosen],
                "address": waits.task,
            }
        )
    )


def disk_names(figures: Figures, sleepers: Sleepers) -> list[str]:
    """Return the name of the disk of what each task waits for; empty if unknown."""
    waits = sleepers.waits
    names = {disk.address: disk.name for disk in figures.disks}
    # A legacy queue, in which tasks wait for a request, has no pointer to its disk.
    names |= {disk.queue: disk.name for disk in figures.disks if disk.queue}
    numbers = {disk.number: disk.name for disk in figures.disks}
    disks = np.where(waits.disk == 0, waits.object, waits.disk).tolist()
    return [
        names.get(disk) or numbers.get(device, "")
        for disk, device in zip(disks, waits.device.tolist(), strict=True)
    ]


def _progress(figures: Figures, row: int) -> str:
    """Return how far a request is, with a label that is not safe to print; nothing without one."""
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


def summary(sleepers: Sleepers) -> dict[str, Figure]:
    """Return how many tasks sleep, and for what."""
    waits, joins = sleepers.waits, sleepers.joins
    linked, proven = np.unique(joins.wait), np.unique(joins.wait[joins.is_proven])
    in_buffers = sum(kind is WaitKind.XFS_BUF for kind in waits.kind)
    bound = Bound.AT_LEAST if waits.torn or waits.missing else Bound.EXACT
    longest = int(waits.since_ns.max(initial=0)) / 1e9
    return {
        "sleepers": Figure(len(waits), Unit.COUNT, "tasks in state D"),
        "longest_sleep": Figure(longest, Unit.SECONDS, "longest in state D"),
        "sleepers_behind_requests": Figure(
            len(linked), Unit.COUNT, "tasks behind a request", bound
        ),
        "sleepers_proven": Figure(len(proven), Unit.COUNT, "proven by pointers", bound),
        "sleepers_xfs_buf": Figure(in_buffers, Unit.COUNT, "tasks behind an XFS buffer"),
        "sleepers_undetermined": Figure(
            waits.undetermined, Unit.COUNT, "tasks, object undetermined"
        ),
    }


def checks(figures: Figures) -> list[Check]:
    """Hold tasks against the counters of the scheduler of CPUs."""
    every = tasks(figures.kernel)
    return [Check("tasks", len(every), every.counted, source="nr_threads")]


def gaps(figures: Figures, sleepers: Sleepers) -> list[Gap]:
    """Return what could not be said about tasks."""
    waits, every = sleepers.waits, tasks(figures.kernel)
    faults = [waits.faults, every.faults, sleepers.joins.faults]
    own = nonzero_gaps(
        *(
            Gap("waits of tasks", what, 1, "what it proves about tasks in state D is unknown")
            for what in waits.missing
        ),
        Gap(
            "waits of tasks",
            "no pointer to the object found",
            waits.undetermined,
            "it is not known which request these tasks in state D wait for",
        ),
        Gap(
            "waits of tasks",
            "lists of waiters contradict the stack",
            waits.contradicted,
            "these tasks in state D may wait for something else",
        ),
        Gap(
            "stacks of tasks",
            "unreadable or cut",
            0 if "stacks of tasks" in waits.missing else int(np.count_nonzero(waits.stacks.is_cut)),
            "where these tasks in state D sleep, or how they got there, is unknown",
        ),
        Gap(
            "requests of tasks",
            "too many of one object",
            sleepers.joins.dropped,
            "tasks in state D are shown behind a part of their requests",
        ),
        Gap("lists of waiters", "torn", waits.torn, "waiters behind the damage are missing"),
        Gap("lists of tasks", "torn or unreadable", every.damaged, "their tasks are missing"),
        Gap(
            "clocks of CPUs",
            "impossible",
            every.bad_clocks,
            "tasks in state D of these CPUs may have been off their CPU for less",
        ),
        Gap(
            "pages with tasks and what they wait for",
            reasons(*faults),
            sum(each.total() for each in faults),
            "what is on them is unknown",
        ),
    )
    return own + scan_gaps(figures.kernel.slab_map, waits.report, "XFS buffers")


def named_behind(sleepers: Sleepers, requests: Counts) -> tuple[int, str]:
    """Return how many tasks sleep behind some requests, and their names; empty if none does."""
    rows = sleepers.behind(requests)
    if not len(rows):
        return 0, ""
    joins = sleepers.joins
    proven = set(joins.wait[joins.is_proven & np.isin(joins.request, requests)].tolist())
    return len(rows), named(sleepers, rows, proven)


def named(sleepers: Sleepers, rows: Counts, proven: Collection[int] | None = None) -> str:
    """Name the tasks that sleep longest, those of one name and function together.

    :param rows: of the tasks, at least one
    :param proven: those that a pointer leads to; all, if not given
    """
    waits, groups = sleepers.waits, defaultdict(list)
    rows = rows[np.argsort(-waits.since_ns[rows], kind="stable")]
    for row in rows.tolist():
        is_likely = proven is not None and row not in proven
        groups[waits.comm[row], waits.function[row], is_likely].append(row)
    words = []
    for (comm, function, is_likely), own in [*groups.items()][:_MAX_NAMED]:
        pids = ", ".join(str(waits.pid[row]) for row in own[:_MAX_NAMED])
        pids += f" and {len(own) - _MAX_NAMED:,} more" if len(own) > _MAX_NAMED else ""
        longest = human_seconds(max(int(waits.since_ns[own[0]]), 0) / 1e9)
        words.append(
            f"{printable(comm)} (PID {pids}) in {printable(function) or 'an unknown function'} for "
            f"{'up to ' if len(own) > 1 else ''}{longest}{' (likely)' if is_likely else ''}"
        )
    rest = sum(map(len, [*groups.values()][_MAX_NAMED:]))
    return "; ".join(words) + (f"; and {rest:,} more" if rest else "")
