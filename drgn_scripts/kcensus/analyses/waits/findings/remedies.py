# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remedies that end a wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.waiting.finders.events.core_dumps import DUMPING
from kcensus.results import Remedy
from kcensus.text import task_name


def restart(figures: Figures) -> str:
    """Return what to do where only a restart ends a wait; a dump need not be taken again."""
    return "Take a dump and restart the machine" if figures.kernel.live else "Restart the machine"


def kills(figures: Figures, node: int, effect: str) -> Iterator[Remedy]:
    """Yield the remedies that end a task's wait: a fatal signal, or the end of its object.

    :param effect: purpose of the end, such as ``end the cycle``
    """
    graph, waiting = figures.graph, figures.waiting
    objects = [int(graph.target[edge]) for edge in graph.following[node]]
    if any(graph.kind[each].ignores_signals for each in objects):
        for each in objects:
            kind, address = graph.kind[each], int(graph.address[each])
            for finder in waiting.finders:
                for remedy in finder.remedies(kind, address, figures.names.of(node)):
                    yield replace(remedy, effect=f"{remedy.effect} to {effect}")
    elif figures.tasks.is_killable(node):
        is_dumping = not DUMPING.isdisjoint(map(plain, figures.tasks.functions(node)))
        name, pid = figures.names.of(node), figures.tasks.pid(node)
        process, tgid = figures.tasks.process(node)
        # A fatal signal to a thread ends its whole process.
        what = f"process {task_name(process, tgid)} of thread {name}" if tgid != pid else name
        yield Remedy(
            effect=f"Kill {what} to {effect} (signals wake it up)",
            command=f"kill -KILL {tgid}",
            risk="its work is lost" + (", and its core dump is cut short" * is_dumping),
        )


def go_on(figures: Figures, node: int) -> Remedy:
    """Return the remedy for a stopped task."""
    return Remedy(
        effect=f"Continue {figures.names.of(node)}, unless a debugger has stopped it",
        command=f"kill -CONT {figures.tasks.pid(node)}",
    )


def thaw(figures: Figures, node: int) -> Remedy:
    """Return the remedy for a task frozen by the freezer of cgroup v1."""
    group = f"$(sed -n 's/^[0-9]*:[^:]*freezer[^:]*://p' /proc/{figures.tasks.pid(node)}/cgroup)"
    return Remedy(
        effect=f"Thaw the cgroup of {figures.names.of(node)}, unless suspend has frozen it",
        command=f'echo THAWED > "/sys/fs/cgroup/freezer{group}/freezer.state"',
        risk="all tasks of a paused container continue",
    )
