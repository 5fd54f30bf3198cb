# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that run: their lockups, and what takes their CPU from them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.told import MAX_TOLD, Told, degree, stall
from kcensus.analyses.waits.findings.words import kept, objects_of, runs
from kcensus.human import human_seconds, listed
from kcensus.kernel.waiting.finder import danger
from kcensus.kernel.waiting.finders.cpus.occupied import RUNS, STARVED, THROTTLED
from kcensus.kernel.waiting.graph import TASK
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import task_name

_POLICIES = {1: "-f", 2: "-r"}
"""SCHED_FIFO and SCHED_RR: options of chrt."""
_NO_INTERRUPTS = (
    "The CPU takes no interrupts: neither a signal nor the scheduler reaches its task. A function "
    "on its stack has disabled them; restart the machine"
)
_MAX_LOCKUPS = 3
"""Most findings about CPUs, by the length of their lockups."""


def locked_up(figures: Figures) -> dict[int, float]:
    """Return for how long tasks have occupied their CPU, seconds, by row among all tasks.

    Those of lockups in the log that have not left the CPU since.
    """
    tasks, now = figures.waiting.tasks, figures.waiting.tasks.now_ns / 1e9
    found = {}
    for pid, (stamp, seconds) in figures.log.lockups.items():
        for row in np.flatnonzero((tasks.pid == pid) & tasks.is_on_cpu).tolist():
            if now - int(tasks.arrived_ns[row]) / 1e9 <= stamp:
                found[row] = seconds + max(now - stamp, 0.0)
    return found


def lockup(figures: Figures, node: int) -> str:
    """Return a phrase about the lockup of a task that runs; empty without one."""
    seconds = locked_up(figures).get(int(figures.task_rows[node]))
    if seconds is None:
        return ""
    kind = _kind(figures, figures.tasks.pid(node))
    return f"the kernel log reports it as a {kind}, of {human_seconds(seconds)} by now"


def _kind(figures: Figures, pid: int) -> str:
    return "hard lockup" if pid in figures.log.hard else "soft lockup"


def release(figures: Figures, node: int) -> Iterator[Remedy]:
    """Yield the remedies that take the CPU from a task that runs, or is throttled there."""
    name, pid = figures.names.of(node), figures.tasks.pid(node)
    if pid in figures.log.hard and lockup(figures, node):
        return
    if starves(figures, node) and (priority := figures.tasks.real_time(node)) is not None:
        policy, level = priority
        option = _POLICIES.get(policy)
        yield Remedy(
            effect=f"Take the real-time priority from {name}, so that others get the CPU",
            command=f"chrt -o -p 0 {pid}",
            risk="it may miss its deadlines; without effect on a loop in the kernel that does not "
            "allow preemption",
            undo=f"chrt {option} -p {level} {pid}" if option else "",
        )
    if figures.tasks.in_program(node) and figures.tasks.process(node)[1] > 1:
        owner, process = figures.tasks.process(node)
        yield Remedy(
            effect=f"Kill {task_name(owner, process)}, which runs in its program",
            command=f"kill -KILL {process}",
            risk="its work is lost",
        )


def starves(figures: Figures, node: int) -> bool:
    """Return whether a task keeps its CPU from others."""
    graph, occupies = figures.graph.sure, (RUNS, THROTTLED)
    edges = graph.preceding[node]
    cpus = [int(graph.source[edge]) for edge in edges if graph.edge[edge] in occupies]
    return any(graph.edge[edge] is STARVED for cpu in cpus for edge in graph.preceding[cpu])


def loops(figures: Figures, node: int) -> str:
    """Return what to do about a task that runs and is not to be killed.

    :param node: -1 for a task of no node
    """
    function = figures.tasks.function(node) if node >= 0 else ""
    module = figures.tasks.module(node) if function else ""
    start = f"Ask the vendor of the module {module} about" if module else "Search known bugs for"
    place = function or "the functions on its stack"
    if function and figures.tasks.is_at_vector(node):
        place += ", or in a function that it calls, such as that of a spinlock"
    return (
        f"{start} a loop in {place} (`kcensus waits TARGET "
        "--table stacks --top 0` has the stack). No signal ends a loop in the kernel: if the task "
        "does not get on, restart the machine"
    )


def stacks_of_cpus(figures: Figures) -> str:
    """Return the command for the stacks of all CPUs."""
    return "`echo l > /proc/sysrq-trigger; dmesg`" if figures.kernel.live else "crash's `bt -a`"


def spinlock(figures: Figures, node: int) -> Told:
    """Return the finding about a spinlock that running tasks spin for."""
    waits, name = stall(figures, node), figures.names.of(node)
    spinners = figures.first_tasks(node)[:MAX_TOLD]
    ends = [int(figures.graph.target[edge]) for edge in figures.graph.following[node]]
    holders = listed([figures.names.of(end) for end in ends], MAX_TOLD)
    story = []
    for each in (*spinners, *ends[:MAX_TOLD]):
        held = kept(figures, each) if each in spinners else ""
        parts = [f"{figures.names.of(each)} {runs(figures, each)}", held, lockup(figures, each)]
        story.append("; ".join(filter(None, parts)))
    is_stuck = any(lockup(figures, each) for each in (*spinners, *ends))
    how = degree(figures, node) or Severity.NOTICE
    how = max(how, Severity.WARNING) if is_stuck else how
    finding = Finding(
        id=f"waits-spinlock:{int(figures.graph.address[node]):x}",
        severity=how,
        danger=danger(how),
        tasks=waits.tasks,
        title=f"{waits.title(name)}; "
        + (f"it may be held by {holders}" if holders else "its holder is unknown"),
        story=tuple(story),
        figures=waits.figures,
        part_of=f"waits-behind:{figures.tasks.pid(ends[0])}" if len(ends) == 1 else "",
        no_remedy=f"Look at {holders} first: only the holder of the lock can release it"
        if holders
        else "Find the task that holds it, which runs, too: compare the functions of all CPUs "
        f"({stacks_of_cpus(figures)})",
    )
    return Told(finding, [node, *spinners], ends)


def unknown_spinlock(figures: Figures, node: int) -> Told:
    """Return the finding about a task that others wait for, and that spins for an unknown lock."""
    waits = stall(figures, node)
    words = lockup(figures, node)
    how = degree(figures, node) or Severity.NOTICE
    how = max(how, Severity.WARNING) if words else how
    story = (f"{figures.names.of(node)} {runs(figures, node)}", kept(figures, node), words)
    finding = Finding(
        id=f"waits-spinning:{figures.tasks.pid(node)}",
        severity=how,
        danger=danger(how),
        tasks=waits.tasks | figures.tasks.pids([node]),
        title=f"{waits.title(figures.names.of(node))}; it spins for an unknown spinlock",
        evidence="; ".join(filter(None, story)),
        figures=waits.figures,
        no_remedy=_find_holder(figures),
    )
    return Told(finding, [node], objects_of(figures, node))


def _find_holder(figures: Figures) -> str:
    """Return what to do about a task that spins for an unknown lock."""
    return (
        "Pass the vmlinux with -s: its debug info tells the lock, and the tasks that may hold it. "
        "Without it, compare the functions of all CPUs: the holder runs, too "
        f"({stacks_of_cpus(figures)})"
    )


def stuck(figures: Figures, told: set[int]) -> Iterator[Told]:
    """Yield the findings about lockups of tasks that no other finding is about.

    :param told: nodes of tasks in other findings
    """
    tasks, index = figures.waiting.tasks, figures.graph.index
    order = sorted(locked_up(figures).items(), key=lambda item: -item[1])
    for row, seconds in order[:_MAX_LOCKUPS]:
        node = index.get((TASK, int(tasks.address[row])), -1)
        if node in told:
            continue
        cpu, pid = int(tasks.cpu[row]), int(tasks.pid[row])
        advice = _NO_INTERRUPTS if pid in figures.log.hard else loops(figures, node)
        is_spinning = figures.tasks.spins_unknown(row)
        advice = _find_holder(figures) if is_spinning else advice
        remedies = tuple(release(figures, node)) if node >= 0 and not is_spinning else ()
        name = task_name(tasks.comm[row], pid)
        finding = Finding(
            id=f"waits-cpu:{cpu}",
            severity=Severity.WARNING,
            danger=Danger.STALL,
            tasks=frozenset({pid}),
            title=f"CPU {cpu} is stuck for {human_seconds(seconds)}: {name} does not leave it"
            + ", and spins for an unknown spinlock" * is_spinning,
            evidence=f"the kernel log reports a {_kind(figures, pid)}, and the task still runs "
            "there" + (f"; it {runs(figures, node)}" if node >= 0 else _seen(figures, row)),
            figures={"seconds": Figure(seconds, Unit.SECONDS)},
            remedies=remedies,
            no_remedy="" if remedies else advice,
        )
        yield Told(finding, [node] if node >= 0 else [])


def _seen(figures: Figures, row: int) -> str:
    seen = figures.log.seen.get(int(figures.waiting.tasks.pid[row]))
    return f"; the log has it in {seen[1]}" if seen else ""
