# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare waiting tasks with the kernel's own counters; list what was unreadable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.gaps import shared_gaps, wait_gaps
from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import DAMAGED, MISSING
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.tasks import NOLOAD, UNINTERRUPTIBLE, run_queue_sums
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import WAITS, Graph
from kcensus.results import Check, Gap, Gauge, Unit, nonzero_gaps


def checks(figures: Figures) -> list[Check]:
    """Compare tasks with the counters of run queues, and owners of locks with the log."""
    tasks = figures.waiting.tasks
    blocked = (tasks.state & np.uint64(UNINTERRUPTIBLE)) != 0
    # task_contributes_to_load() leaves out both flags.
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
    """Return the number of owners in the log equal to those of the graph, and of all that count.

    A waiter counts if it and the owner have slept since before the message: others may have
    changed.
    """
    graph, owners = figures.graph, figures.log.owners
    tasks = figures.waiting.tasks
    rows = dict(zip(tasks.pid.tolist(), range(len(tasks)), strict=True))
    same = named = 0
    for node in figures.task_nodes:
        seconds, owner = owners.get(figures.tasks.pid(node), (0.0, 0))
        waits = [e for e in graph.following[node] if graph.edge[e] is WAITS]
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
        same += owner in {figures.tasks.pid(int(graph.target[edge])) for edge in held}
    return same, named


def _lock(graph: Graph, node: int) -> int:
    """Return the lock of a node, which is the lock or the queue for it, or -1.

    Only locks with an owner in the messages of the hung task detector count.
    """
    kind = graph.kind[node]
    if kind.queue_of is not None:
        return graph.index.get((kind.queue_of, int(graph.address[node])), -1)
    return node if kind.is_in_log else -1


_GAUGES = {
    "nr_uninterruptible": "tasks in state D",
    "nr_iowait": "tasks waiting for I/O",
    "nr_running": "runnable tasks",
}


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the number of tasks, and the sums of the counters of all run queues."""
    with contextlib.suppress(*DAMAGED):
        threads = int(kernel.prog["nr_threads"])
        yield Gauge("nr_threads", threads, label="tasks", source="nr_threads")
    counts = run_queue_sums(kernel, _GAUGES)
    for name, value in counts.items():
        yield Gauge(name, value, label=_GAUGES[name], source=f"rq.{name}")


def gaps(figures: Figures) -> list[Gap]:
    """Return the unreadable or undetermined parts of the graph."""
    waiting, tasks = figures.waiting, figures.waiting.tasks
    waits, undetermined = waiting.waits, waiting.blocked.undetermined
    blocked = tasks.is_blocked[tasks.rows(waits.task)]
    of_interest = np.array(
        [kind in (WaitKind.LOCK, WaitKind.PIPE) for kind in waits.kind], np.bool_
    )
    lost = int(np.count_nonzero(of_interest & ~blocked & ~waits.is_proven))
    own = nonzero_gaps(
        Gap(
            "waits of tasks",
            f"the object of {undetermined:,} of {figures.blocked:,} tasks in state D is "
            "undetermined",
            undetermined,
            "cycles through these tasks are missing",
        ),
        Gap(
            "cycles of tasks that ran during the read",
            "the waits were read at different times, in two attempts",
            figures.cycles_unsteady,
            "the cycles are left out: run kcensus again to see whether they persist",
        ),
        Gap(
            "holders of locks",
            "neither the lock nor a stack names the holder",
            figures.unheld,
            "cycles through these locks are missing",
        ),
        Gap(
            "waits of tasks",
            "the lock or pipe of tasks in state S is undetermined",
            lost,
            "cycles through these tasks are missing",
        ),
        Gap(
            "tasks",
            "named as holders, but not on the list of tasks",
            _unlisted(figures),
            "these tasks have exited, or the list is torn; their own waits are unknown",
        ),
        *(gap for finder in waiting.finders for gap in _gaps_of(finder, waiting.graph)),
        Gap(
            "functions",
            "the code is not in the dump",
            waiting.unreadable_code,
            "holders known from code alone are missing",
        ),
    )
    return own + shared_gaps(figures.kernel) + wait_gaps(figures.kernel, waiting, waits)


def _unlisted(figures: Figures) -> int:
    """Return the number of holders and waiters that are missing from the list of tasks.

    The last reader of an rwsem stays noted after its release, and may have exited.
    """
    graph = figures.graph
    return sum(
        int(figures.task_rows[node]) < 0
        and any(int(graph.strength[edge]) > Strength.POSSIBLE for edge in graph.preceding[node])
        for node in figures.task_nodes
    )


def _gaps_of(finder: Finder, graph: Graph) -> list[Gap]:
    """Return the gaps of a finder; its subject is one already if it cannot tell them."""
    try:
        return [*finder.gaps(graph)]
    except MISSING:
        return []
