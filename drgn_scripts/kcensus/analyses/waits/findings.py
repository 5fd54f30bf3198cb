# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the graph of waits means, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.known import patch_of
from kcensus.human import human_seconds
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.cycles import Cycle
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import printable

_MAX_ROOTS = 3
"""Roots that are findings: those with most tasks behind them."""
_MAX_TOLD = 8
"""Tasks of a cycle that a sentence names."""
_OLD, _VERY_OLD = 10.0, 120.0
"""Seconds from which on a wait is worth a look, and those of the hung task detector."""
_MANY = 10
"""Tasks behind one."""


def findings(figures: Figures) -> list[Finding]:
    """Return what to act on."""
    return [
        *(_deadlock(figures, cycle) for cycle in figures.cycles),
        *_behind(figures),
    ]


def _deadlock(figures: Figures, cycle: Cycle) -> Finding:
    graph = figures.graph
    tasks = [node for node in cycle.nodes if graph.is_task[node]]
    stuck = figures.waiters(cycle.nodes[0]) - set(tasks)
    ages = [int(figures.ages[node]) for node in (*tasks, *stuck)]
    oldest = max((age for age in ages if age >= 0), default=0) / 1e9
    is_sure = cycle.strength >= Strength.DERIVED
    names = ", ".join(figures.name(node) for node in tasks[:_MAX_TOLD])
    more = f" and {len(tasks) - _MAX_TOLD} more" if len(tasks) > _MAX_TOLD else ""
    if len(tasks) == 1:
        who = f"{names} waits for itself"
    else:
        who = f"{len(tasks)} tasks wait for each other: {names}{more}"
    tail = f"; {len(stuck):,} more tasks are stuck behind" if stuck else ""
    kind = "waits-deadlock" if is_sure else "waits-deadlock-possible"
    return Finding(
        id=f"{kind}:{min(figures.pid(node) for node in tasks)}",
        severity=Severity.CRITICAL if is_sure else Severity.WARNING,
        danger=Danger.DEADLOCK,
        title=f"{'deadlock' if is_sure else 'possible deadlock'}: {who}{tail}",
        evidence=_story(figures, cycle),
        patch=patch_of([_functions(figures, node) for node in tasks]),
        figures={
            "tasks": Figure(len(tasks)),
            "behind": Figure(len(stuck)),
            "oldest": Figure(oldest, Unit.SECONDS),
        },
        remedies=tuple(_kills(figures, tasks)),
        no_remedy="" if any(True for _ in _kills(figures, tasks)) else _no_way(figures, tasks),
    )


def _functions(figures: Figures, node: int) -> list[str]:
    row = figures.waiting.row(node)
    return figures.waiting.waits.stacks.functions(row) if row >= 0 else []


def _story(figures: Figures, cycle: Cycle) -> str:
    """Tell a cycle: who holds what since when, and waits for what."""
    graph, sentences = figures.graph, []
    count = len(cycle.nodes)
    for at, node in enumerate(cycle.nodes):
        if not graph.is_task[node]:
            continue
        before, after = cycle.edges[at - 1], cycle.edges[at]
        function = figures.function(node)
        entry = figures.entry(node)
        where = f" ({', '.join(dict.fromkeys(x for x in (entry, function) if x))})"
        holds = _holds(figures, before) if count > 1 else ""
        since = figures.since(node)
        waits = f"waits for {figures.name(int(graph.target[after]))}"
        waits += f" to {graph.mode[after]}" if graph.mode[after] else ""
        waits += f" since {since}" if since else ""
        sentences.append(
            f"{figures.name(node)}{where if where != ' ()' else ''} {holds}{waits}"
            f" [{graph.evidence[after]}]"
        )
    return "; ".join(sentences)


def _holds(figures: Figures, edge: int) -> str:
    """Tell how a task keeps what leads to it."""
    graph = figures.graph
    source, kind = int(graph.source[edge]), graph.edge[edge]
    strength = Strength(int(graph.strength[edge])).name.lower()
    proof = f" [{strength}: {graph.evidence[edge]}]"
    name = figures.name(source)
    if kind is EdgeKind.THREAD:
        return "has the other end of the pipe open and "
    if kind is EdgeKind.QUEUED:
        return f"is before it{proof}, "
    if kind is EdgeKind.REFERENCED:
        return f"has a reference of {name}{proof}, "
    if kind is EdgeKind.RUN_BY:
        return f"runs {name}{proof}, "
    if kind is EdgeKind.HELD_UP:
        return f"is inside of a read-side section and holds up {name}{proof}, "
    if kind is EdgeKind.RUNS:
        return f"runs on {name}{proof}, "
    if kind is EdgeKind.COMPLETED_BY:
        return f"is to complete {name}{proof}, "
    mode = f" ({graph.mode[edge]})" if graph.mode[edge] else ""
    return f"holds {name}{mode}{proof}, "


def _kills(figures: Figures, tasks: list[int]) -> Iterator[Remedy]:
    """Yield that a task of a cycle can be killed: one that sleeps interruptibly."""
    for node in tasks:
        row = int(figures.task_rows[node])
        if row < 0 or figures.state(node) != "S" or figures.waiting.tasks.is_kthread[row]:
            continue
        yield Remedy(
            effect=f"Kill {figures.name(node)}, which sleeps interruptibly: that ends the cycle",
            command=f"kill -KILL {figures.pid(node)}",
            risk="its work is lost; a core dump that it writes is cut",
        )


def _no_way(figures: Figures, tasks: list[int]) -> str:
    return (
        "tasks in state D cannot be killed, and no lock can be released from outside: only a "
        "restart of the machine ends it; take a dump first (sysrq-c)"
    )


def _severity(count: int, seconds: float) -> Severity:
    is_old = seconds >= _OLD and (count >= _MANY or seconds >= _VERY_OLD)
    return Severity.WARNING if is_old else Severity.NOTICE


def _oldest(figures: Figures, node: int) -> float:
    """Return the seconds that the first of the tasks behind a node has waited."""
    oldest = int(figures.behind.oldest[node])
    return max(int(figures.ages[oldest]) / 1e9, 0.0) if oldest >= 0 else 0.0


def _behind(figures: Figures) -> Iterator[Finding]:
    """Yield what many tasks wait for, or some for long, where it is no cycle."""
    told = 0
    for node in figures.roots:
        if figures.graph.kind[node] is NodeKind.FREEZER:
            yield _frozen(figures, node)
            continue
        subject = _subject(figures, node)
        if subject is None or told >= _MAX_ROOTS or _is_helper(figures, subject):
            continue
        count, seconds = int(figures.behind.tasks[subject]), _oldest(figures, subject)
        if count < 2 or (count < _MANY and seconds < _OLD):
            continue
        told += 1
        severity = _severity(count, seconds)
        yield Finding(
            id=f"waits-behind:{figures.pid(subject)}",
            severity=severity,
            danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
            title=(
                f"{count:,} tasks wait for {figures.name(subject)}, the first of them for "
                f"{human_seconds(seconds)}"
            ),
            evidence=_does(figures, subject),
            figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
            no_remedy=_no_remedy(figures, subject),
        )


def _subject(figures: Figures, root: int) -> int | None:
    """Return the task that others wait for: a root, or the only one that waits for it.

    Tasks behind one request, or one buffer, wait for I/O as they should.
    """
    graph, node, seen = figures.graph, root, {root}
    while not graph.is_task[node]:
        waiters = {int(graph.source[edge]) for edge in graph.preceding[node]}
        if len(waiters) != 1 or waiters & seen:
            return None
        node = waiters.pop()
        seen.add(node)
    return node


def _no_remedy(figures: Figures, node: int) -> str:
    """Say what to look at, where nothing helps."""
    graph = figures.graph
    kinds = {graph.edge[edge] for edge in graph.preceding[node]}
    if kinds & {EdgeKind.HELD_UP, EdgeKind.RUNS}:
        return (
            "a read-side section of RCU ends only where its task leaves it: look at the stack of "
            "that task (sysrq-l, or crash's bt) for a loop without cond_resched(), and at its CPU "
            "for a thread of a higher priority that does not let it run"
        )
    return (
        "nothing can take a lock away: find out why its owner does not go on; "
        "`kcensus iosched` says what its I/O waits for"
    )


def _is_helper(figures: Figures, node: int) -> bool:
    """Return whether a thread sleeps on a timer, and others keep all that it serves: xfsaild."""
    graph = figures.graph
    return figures.function(node) in ON_TIMERS and all(
        graph.edge[edge] is EdgeKind.SERVED and len(graph.following[int(graph.source[edge])]) > 1
        for edge in graph.preceding[node]
    )


def _frozen(figures: Figures, node: int) -> Finding:
    """Return that a file system is frozen, and tasks wait for the thaw."""
    blocks = super_blocks(figures.kernel)
    address = int(figures.graph.address[node])
    row = blocks.address.tolist().index(address)
    mount = printable(blocks.mount[row]) if blocks.mount[row] else ""
    count, seconds = int(figures.behind.tasks[node]), _oldest(figures, node)
    is_plain = mount and mount == blocks.mount[row]
    return Finding(
        id=f"waits-frozen:{mount or hex(address)}",
        severity=_severity(count, seconds),
        danger=Danger.STALL,
        title=(
            f"{count:,} tasks wait for the frozen file system on {mount or 'no mount point'}, the "
            f"first of them for {human_seconds(seconds)}"
        ),
        evidence="super_block.s_writers.frozen is set: who writes waits until it is thawed",
        figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
        remedies=(
            Remedy(
                effect="Thaw the file system, if what froze it (a snapshot, a backup) is gone",
                command=f"fsfreeze --unfreeze {shlex.quote(mount)}",
                risk="a snapshot that is being taken is not consistent",
            ),
        )
        if is_plain
        else (),
        no_remedy="" if is_plain else "its mount point is unknown, so it cannot be thawed by name",
    )


def _does(figures: Figures, node: int) -> str:
    """Say what a task does that others wait for."""
    graph = figures.graph
    state, function, since = figures.state(node), figures.function(node), figures.since(node)
    holds = _keeps(figures, node)
    if state in ("running", "runnable"):
        return f"{holds}, and is {state}{_instead(figures, node) if state == 'runnable' else ''}"
    sleeps = f"sleeps in {function}" if function else "sleeps"
    objects = [figures.name(int(graph.target[edge])) for edge in graph.following[node]]
    what = f" for {objects[0]}" if objects else ""
    return f"{holds}, and {sleeps}{what}" + (f" since {since}" if since else "")


def _instead(figures: Figures, node: int) -> str:
    """Say what the CPU of a task runs that wants to run."""
    tasks, row = figures.waiting.tasks, int(figures.task_rows[node])
    runs = np.flatnonzero(tasks.is_on_cpu & (tasks.cpu == tasks.cpu[row])).tolist()
    if not runs:
        return ""
    name = f"{printable(tasks.comm[runs[0]])} (PID {tasks.pid[runs[0]]})"
    return f" on CPU {tasks.cpu[row]}, which runs {name}"


def _keeps(figures: Figures, node: int) -> str:
    """Say what a task keeps from others."""
    graph, said = figures.graph, dict[str, list[str]]()
    for edge in graph.preceding[node]:
        source = int(graph.source[edge])
        if graph.edge[edge] is EdgeKind.HELD_UP:
            said.setdefault("it holds up", []).append(figures.name(source))
        elif graph.edge[edge] is EdgeKind.RUNS:
            periods = [figures.name(int(graph.source[up])) for up in graph.preceding[source]]
            said.setdefault(f"on {figures.name(source)}, it holds up", []).extend(periods)
        elif graph.edge[edge] is EdgeKind.SERVED:
            said.setdefault("it serves", []).append(figures.name(source))
        else:
            said.setdefault("it holds", []).append(figures.name(source))
    return "; ".join(f"{verb} {', '.join(names[:_MAX_TOLD])}" for verb, names in said.items())
