# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remedies that end a wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.told import MAX_TOLD
from kcensus.analyses.waits.findings.words import objects_of
from kcensus.human import listed
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.tasks import TRACED
from kcensus.kernel.waiting.finders.events.core_dumps import DUMPING
from kcensus.results import Remedy
from kcensus.text import task_name

_MOUNTS = frozenset({"vfs_get_tree", "vfs_kern_mount", "mount_fs"})
"""Functions that make the super block of a new mount."""


def restart(figures: Figures) -> str:
    """Return what to do where only a restart ends a wait; a dump need not be taken again."""
    what = "Take a dump and restart the machine" if figures.kernel.live else "Restart the machine"
    return (
        f"{what}; if an orderly restart hangs in sync, `echo b > /proc/sysrq-trigger` restarts at "
        "once, and loses what is not on the disks yet"
    )


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
        what, pid = _victim(figures, node)
        ends, risk = served(figures, node), "its work is lost"
        if ends:
            effect = f"end {listed(ends, 2)}, which it serves"
            risk = (
                "programs there get errors until it is mounted again; what the server keeps is lost"
            )
        yield Remedy(
            effect=f"Kill {what} to {effect} (signals wake it up)",
            command=f"kill -KILL {pid}",
            risk=risk + (", and its core dump is cut short" * is_dumping),
        )


def _victim(figures: Figures, node: int) -> tuple[str, int]:
    """Return the process that a fatal signal to a task ends, as a phrase, and its PID."""
    name, pid = figures.names.of(node), figures.tasks.pid(node)
    process, tgid = figures.tasks.process(node)
    what = f"process {task_name(process, tgid)} of thread {name}" if tgid != pid else name
    return what, tgid


def mounts(figures: Figures, node: int) -> Iterator[Remedy]:
    """Yield the ends of the mounts in progress that wait for a node, where a signal wakes them."""
    waiters = sorted(figures.waiters(node), key=figures.tasks.pid)
    tasks = [each for each in waiters if not _MOUNTS.isdisjoint(figures.tasks.functions(each))]
    for task in [each for each in tasks if figures.tasks.is_killable(each)][:MAX_TOLD]:
        what, pid = _victim(figures, task)
        yield Remedy(
            effect=f"Or end the mount in progress: kill {what} (the signal wakes it up)",
            command=f"kill -KILL {pid}",
            risk="nothing is mounted yet, so that no data of it is lost; other work of the process "
            "is",
        )


def served(figures: Figures, node: int) -> list[str]:
    """Return what ends with a task, as it serves the objects that others wait for."""
    graph, found = figures.graph, dict[str, None]()
    for each in objects_of(figures, node):
        kind, address = graph.kind[each], int(graph.address[each])
        found |= {f.served(kind, address): None for f in figures.waiting.finders}
    return [name for name in found if name]


def go_on(figures: Figures, node: int) -> Remedy:
    """Return the remedy for a stopped task."""
    tasks, row = figures.waiting.tasks, int(figures.task_rows[node])
    is_traced = bool(tasks.state[row] & np.uint64(TRACED))
    why = "unless a debugger has stopped it" if is_traced else "which a signal has stopped"
    return Remedy(
        effect=f"Continue {figures.names.of(node)}, {why}",
        # A signal continues all threads of a process.
        command=f"kill -CONT {figures.tasks.tgid(node)}",
    )


def let_go(figures: Figures, node: int) -> Iterator[Remedy]:
    """Yield the remedy for a debugger and the tasks that it has stopped."""
    traced = figures.tasks.traced(node)
    if not traced:
        return
    pids = sorted({figures.tasks.tgid(each) for each in traced})
    names = listed([figures.names.of(each) for each in traced], MAX_TOLD)
    kills = any(figures.tasks.ends_with_tracer(each) for each in traced)
    yield Remedy(
        effect=f"Detach {figures.names.of(node)} from {names} (in gdb: detach), or end it and "
        "continue these",
        command=f"kill {figures.tasks.tgid(node)}; sleep 1; kill -CONT " + " ".join(map(str, pids)),
        risk="its end kills the tasks that it traces (PTRACE_O_EXITKILL)"
        if kills
        else "the state of the debugger is lost",
    )


def thaw(figures: Figures, node: int) -> Remedy:
    """Return the remedy for a task frozen by the freezer of cgroup v1."""
    group = f"$(sed -n 's/^[0-9]*:[^:]*freezer[^:]*://p' /proc/{figures.tasks.pid(node)}/cgroup)"
    return Remedy(
        effect=f"Thaw the cgroup of {figures.names.of(node)}, unless suspend has frozen it",
        command=f'echo THAWED > "/sys/fs/cgroup/freezer{group}/freezer.state"',
        risk="all tasks of a paused container continue",
    )
