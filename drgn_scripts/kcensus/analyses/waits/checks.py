# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel itself counts of tasks that wait, and what could not be read of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.gaps import reasons, scan_gaps
from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.tasks import NOLOAD, UNINTERRUPTIBLE, run_queue_sums
from kcensus.kernel.waiting.graph import EdgeKind, Graph, NodeKind
from kcensus.results import Check, Gap, Gauge, Unit, nonzero_gaps

_NAMED = (NodeKind.MUTEX, NodeKind.RWSEM, NodeKind.SEMAPHORE)
"""Locks whose owner the hung task detector names."""


def checks(figures: Figures) -> list[Check]:
    """Hold tasks against the counters of the scheduler of CPUs, and owners against the log."""
    tasks = figures.waiting.tasks
    blocked = (tasks.state & np.uint64(UNINTERRUPTIBLE)) != 0
    # task_contributes_to_load() leaves both out.
    blocked &= ((tasks.state & np.uint64(NOLOAD)) == 0) & ~tasks.is_frozen
    # The scheduler counts a task when it leaves the run queue.
    blocked &= ~tasks.is_on_cpu & ~tasks.is_queued
    made = [
        Check("tasks", len(tasks), tasks.counted, Unit.COUNT, "nr_threads"),
        Check(
            "tasks in state D",
            int(blocked.sum()),
            run_queue_sums(figures.kernel, ["nr_uninterruptible"]).get("nr_uninterruptible"),
            Unit.COUNT,
            "rq.nr_uninterruptible",
        ),
    ]
    same, named = _owners(figures)
    if named:
        source = "hung task detector in the kernel log"
        made.append(Check("owners of locks", same, named, Unit.COUNT, source))
    return made


def _owners(figures: Figures) -> tuple[int, int]:
    """Return how many owners that the log names are ours, and how many it names.

    What it says of other tasks than those that have slept since before it, both the one that waits
    and the owner, may have changed.
    """
    graph, (_, owners) = figures.graph, figures.log
    tasks = figures.waiting.tasks
    rows = dict(zip(tasks.pid.tolist(), range(len(tasks)), strict=True))
    same = named = 0
    for node in figures.task_nodes:
        seconds, owner = owners.get(figures.pid(node), (0.0, 0))
        waits = [e for e in graph.following[node] if graph.edge[e] is EdgeKind.WAITS]
        if owner not in rows or not waits:
            continue
        object_ = _lock(graph, int(graph.target[waits[0]]))
        both = np.array([rows[owner], int(figures.task_rows[node])])
        age = tasks.off_cpu_ns[both]
        is_old = tasks.is_asleep[both] & (age >= 0)
        is_old &= tasks.now_ns - age <= int(seconds * 1e9)
        if object_ < 0 or not is_old.all():
            continue
        named += 1
        held = graph.following[object_]
        same += owner in {figures.pid(int(graph.target[edge])) for edge in held}
    return same, named


def _lock(graph: Graph, node: int) -> int:
    """Return the lock that a node is, or whose queue it is, or -1."""
    if graph.kind[node] is not NodeKind.RWSEM_QUEUE:
        return node if graph.kind[node] in _NAMED else -1
    same = np.flatnonzero(graph.address == graph.address[node]).tolist()
    return next((each for each in same if graph.kind[each] is NodeKind.RWSEM), -1)


_GAUGES = {
    "nr_uninterruptible": "tasks in state D",
    "nr_iowait": "tasks waiting for I/O",
    "nr_running": "runnable tasks",
}


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the number of tasks, and what the run queues of all CPUs count of them."""
    with contextlib.suppress(*DAMAGED):
        threads = int(kernel.prog["nr_threads"])
        yield Gauge("nr_threads", threads, label="tasks", source="nr_threads")
    counts = run_queue_sums(kernel, _GAUGES)
    for name, value in counts.items():
        yield Gauge(name, value, label=_GAUGES[name], source=f"rq.{name}")


def gaps(figures: Figures) -> list[Gap]:
    """Return what could not be said about tasks."""
    waiting, tasks = figures.waiting, figures.waiting.tasks
    waits = waiting.waits
    faults = [waits.faults, tasks.faults, waiting.faults]
    blocked = tasks.is_blocked[tasks.rows(waits.task)]
    is_cut = int(np.count_nonzero(waits.stacks.is_cut))
    of_interest = np.array(
        [kind in (WaitKind.LOCK, WaitKind.PIPE) for kind in waits.kind], np.bool_
    )
    lost = int(np.count_nonzero(of_interest & ~blocked & (waiting.objects == 0)))
    own = nonzero_gaps(
        *(
            Gap("waits of tasks", what, 1, "edges that it shows are missing")
            for what in waiting.missing
        ),
        Gap(
            "waits of tasks",
            f"what {figures.undetermined:,} of {figures.blocked:,} tasks in state D wait for could "
            "not be determined",
            figures.undetermined,
            "cycles through these tasks are missing",
        ),
        Gap(
            "cycles with tasks that ran",
            "their waits were read at different times, in each of two looks",
            figures.cycles_unsteady,
            "these cycles are left out: each may be a deadlock, or no cycle at any moment",
        ),
        Gap(
            "holders of locks",
            "neither the lock nor a stack names them",
            figures.unheld,
            "cycles through these locks are missing",
        ),
        Gap(
            "waits of tasks",
            "the lock or pipe of tasks in state S could not be determined",
            lost,
            "cycles through these tasks are missing",
        ),
        Gap(
            "tasks",
            "named as holders, but not on the list of tasks",
            _unlisted(figures),
            "they have exited, or the list is torn: what they wait for is unknown",
        ),
        Gap(
            "requests and bios",
            "torn, or contradict their tags",
            waiting.lost_requests,
            "tasks that wait for their I/O have no request",
        ),
        Gap(
            "files of pipes",
            "not open in any process that was read",
            waiting.unseen_ends,
            "who has them may still read or write",
        ),
        Gap(
            "waits of tasks",
            "lists of waiters contradict the stack",
            waits.contradicted,
            "these tasks may wait for something else",
        ),
        Gap(
            "stacks of tasks",
            "unreadable or cut",
            0 if "stacks of tasks" in waiting.missing else is_cut,
            "what these tasks wait for may be unknown",
        ),
        Gap(
            "functions",
            "their code is not in the dump",
            waiting.unreadable_code,
            "locks that only code shows to be held have no holder",
        ),
        Gap(
            "lists of waiters",
            "torn",
            waits.torn + waiting.torn,
            "waiters behind the damage are missing",
        ),
        Gap("lists of tasks", "torn or unreadable", tasks.damaged, "their tasks are missing"),
        Gap(
            "futexes",
            "memory of programs is not in the dump",
            waiting.unread_futexes,
            "who holds these futexes is unknown",
        ),
        Gap(
            "clocks of CPUs",
            "impossible",
            tasks.bad_clocks,
            "tasks of these CPUs may have slept for less",
        ),
        Gap(
            "pages with tasks and what they wait for",
            reasons(*faults),
            sum(each.total() for each in faults),
            "edges that are on them are missing",
        ),
    )
    return own + scan_gaps(figures.kernel.slab_map, waits.report, "XFS buffers")


def _unlisted(figures: Figures) -> int:
    """Return how many tasks a lock or a work item names that are not on the list of tasks.

    The last reader of an rwsem stays noted when it has left, and may be gone.
    """
    graph = figures.graph
    return sum(
        int(figures.task_rows[node]) < 0
        and any(int(graph.strength[edge]) > Strength.POSSIBLE for edge in graph.preceding[node])
        for node in figures.task_nodes
    )
