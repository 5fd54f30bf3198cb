# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tasks do to each other, in words, and the one thing to do about it: a signal."""

from __future__ import annotations

from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.graph import EdgeKind
from kcensus.results import Remedy

_HOLDING = {
    EdgeKind.OTHER_END: "has the other end open of",
    EdgeKind.SERVED: "is to serve",
    EdgeKind.QUEUED: "is ahead in the",
    EdgeKind.REFERENCED: "has a reference of",
    EdgeKind.RUN_BY: "runs",
    EdgeKind.COMPLETED_BY: "is to complete",
}
"""Verbs for how a task keeps others from going on; of a lock, it holds it."""


def holds(figures: Figures, edge: int) -> str:
    """Say how a task keeps others from going on, such as ``holds mutex X [proven: mutex.owner]``.

    :param edge: that leads from what others wait for to the task, or to its process
    """
    graph = figures.graph
    strength = Strength(int(graph.strength[edge])).name.lower()
    mode = f" ({graph.mode[edge]})" if graph.mode[edge] else ""
    verb = _HOLDING.get(graph.edge[edge], "holds")
    name = figures.name(int(graph.source[edge]))
    return f"{verb} {name}{mode} [{strength}: {graph.evidence[edge]}]"


def kill(figures: Figures, node: int, effect: str) -> Remedy:
    """Return that a task can be killed.

    :param effect: what follows from that
    """
    return Remedy(
        effect=f"Kill {figures.name(node)}, which a signal wakes up: {effect}",
        command=f"kill -KILL {figures.pid(node)}",
        risk="its work is lost; a core dump that it writes is cut",
    )
