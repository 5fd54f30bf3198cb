# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings with the nodes that they are about, and the severity of waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcensus.analyses.waits.figures import Figures
from kcensus.human import counted
from kcensus.kernel.waiting.finder import Stall
from kcensus.results import Finding, Severity
from kcensus.results.severity import HUNG, LATE

MAX_TOLD = 8
"""Most objects or tasks in a sentence."""
_SHORT = 1.0
"""Least seconds of a notable wait of many tasks."""
_MANY = 10
"""Least number of tasks that are many."""


@dataclass(frozen=True)
class Told:
    """A finding, and the nodes that the selection shows because of it."""

    finding: Finding
    nodes: Sequence[int]
    """Nodes in its title."""
    further: Sequence[int] = ()
    """Nodes in its evidence."""
    asleep: Sequence[int] = ()
    """Tasks whose stacks say more."""


def severity(count: int, seconds: float) -> Severity | None:
    """Return the severity of the waits of ``count`` tasks; None if they are usual.

    :param seconds: longest wait; -1 if unknown
    """
    if seconds < 0:
        return Severity.NOTICE if count >= _MANY else None
    if seconds >= HUNG or (seconds >= LATE and count >= _MANY):
        return Severity.WARNING
    is_notable = (count >= _MANY and seconds >= _SHORT) or (count > 1 and seconds >= LATE)
    return Severity.NOTICE if is_notable else None


def degree(figures: Figures, node: int) -> Severity | None:
    """Return the severity of the waits for a node; None if they are usual.

    The kernel may report hung tasks earlier than usual (hung_task_timeout_secs).
    """
    own = severity(int(figures.behind.tasks[node]), _oldest(figures, node))
    return Severity.NOTICE if own is None and figures.awaited_by_hung[node] else own


def stall(figures: Figures, *nodes: int) -> Stall:
    """Return the tasks behind any of the nodes, with the count and age of the first node."""
    count, oldest = int(figures.behind.tasks[nodes[0]]), int(figures.behind.oldest[nodes[0]])
    tasks = figures.tasks.pids(figures.waiters(*nodes))
    is_least = oldest >= 0 and bool(figures.is_least[oldest])
    return Stall(tasks, count, _oldest(figures, nodes[0]), is_least)


def together(figures: Figures, nodes: Sequence[int]) -> Stall:
    """Return the tasks behind any of the nodes, with their number and the longest wait."""
    longest = max((stall(figures, node) for node in nodes), key=lambda each: each.seconds)
    if len(nodes) == 1:
        return longest
    tasks = figures.waiters(*nodes)
    return replace(longest, tasks=figures.tasks.pids(tasks), count=len(tasks))


def _oldest(figures: Figures, node: int) -> float:
    """Return the longest wait for a node, seconds; -1 if unknown."""
    oldest = int(figures.behind.oldest[node])
    age = int(figures.ages[oldest]) if oldest >= 0 else -1
    return age / 1e9 if age >= 0 else -1.0


def tasks_have(count: int) -> str:
    return f"{counted(count, 'task')} {'has' if count == 1 else 'have'}"
