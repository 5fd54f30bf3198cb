# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tasks do to each other, in words, and what ends it from outside."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.waiting.graph import EdgeKind, Graph, NodeKind
from kcensus.results import Remedy

_HOLDING = {
    EdgeKind.OTHER_END: "has the other end open of",
    EdgeKind.IDLE_END: "has the other end open, too, of",
    EdgeKind.SERVED: "is to serve",
    EdgeKind.QUEUED: "is ahead in the",
    EdgeKind.REFERENCED: "has a reference of",
    EdgeKind.RUN_BY: "runs",
    EdgeKind.COMPLETED_BY: "is to complete",
    EdgeKind.HELD_UP: "holds up",
    EdgeKind.RUNS: "runs on",
}
"""Verbs for how a task keeps others from going on; of a lock, it holds it."""


_ABORT = "/sys/fs/fuse/connections/{}/abort"


def holds(graph: Graph, figures: Figures, edge: int) -> str:
    """Say how a task keeps others from going on, such as ``holds mutex X [proven: mutex.owner]``.

    :param edge: that leads from what others wait for to the task, or to its process
    """
    strength = Strength(int(graph.strength[edge])).name.lower()
    mode = f" ({graph.mode[edge]})" if graph.mode[edge] else ""
    verb = _HOLDING.get(graph.edge[edge], "holds")
    name = figures.name(int(graph.source[edge]))
    return f"{verb} {name}{mode} [{strength}: {graph.evidence[edge]}]"


def kills(figures: Figures, node: int, effect: str) -> Iterator[Remedy]:
    """Yield what makes a task return: a fatal signal, or the end of what it waits for.

    :param effect: what follows from that
    """
    graph = figures.graph
    objects = [int(graph.target[edge]) for edge in graph.following[node]]
    requests = [each for each in objects if graph.kind[each] is NodeKind.FUSE]
    if not requests:
        if figures.is_killable(node):
            is_dumping = not {"do_coredump", "vfs_coredump"}.isdisjoint(
                map(plain, figures.functions(node))
            )
            yield Remedy(
                effect=f"Kill {figures.name(node)}, which a signal wakes up: {effect}",
                command=f"kill -KILL {figures.pid(node)}",
                risk="its work is lost"
                + (", and the core dump that it writes is cut" * is_dumping),
            )
        return
    # A request that its server has read is waited for whatever signals come.
    number = figures.waiting.connections.get(int(graph.address[requests[0]]), -1)
    if number >= 0:
        yield Remedy(
            effect=f"Abort FUSE connection {number}, whose request {figures.name(node)} waits for: "
            f"{effect}",
            command=f"echo 1 > {_ABORT.format(number)}",
            risk="all that use its mount get errors until it is mounted again",
        )


def go_on(figures: Figures, node: int) -> Remedy:
    """Return that a stopped task can go on."""
    return Remedy(
        effect=f"Let {figures.name(node)} go on, unless a debugger has stopped it",
        command=f"kill -CONT {figures.pid(node)}",
    )


def thaw(figures: Figures, node: int) -> Remedy:
    """Return that the freezer of cgroup v1 can let a frozen task go on."""
    group = f"$(sed -n 's/^[0-9]*:[^:]*freezer[^:]*://p' /proc/{figures.pid(node)}/cgroup)"
    return Remedy(
        effect=f"Thaw the cgroup of {figures.name(node)}, unless suspend has frozen it",
        command=f'echo THAWED > "/sys/fs/cgroup/freezer{group}/freezer.state"',
        risk="all tasks of a container that was paused go on",
    )
