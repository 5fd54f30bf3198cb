# SPDX-License-Identifier: LGPL-2.1-or-later
"""Deadlocks: who is in each, how it is known, and what ends it."""

from __future__ import annotations

from dataclasses import replace

from kcensus.analyses.waits.acts import holds, kills
from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.known import patch_of
from kcensus.analyses.waits.others import others
from kcensus.human import counted
from kcensus.kernel.waiting.cycles import Cycle
from kcensus.kernel.waiting.graph import EdgeKind
from kcensus.results import Danger, Figure, Finding, Severity, Unit

_MAX_DEADLOCKS = 8
"""That are findings of their own; tables have all."""
_MAX_TOLD = 8
"""Tasks of a cycle that a sentence names."""
_NO_WAY = (
    "no signal wakes up any of them, and no lock can be released from outside: only a restart of "
    "the machine ends it"
)
_LOOK = (
    "look at the stacks first (`--table stacks`): does the task that may hold the lock call a "
    "function that takes it? Only then a restart is needed"
)
_FOR_DEVELOPERS = (
    "for developers: `kcensus waits DUMP --table stacks --top 0`, and `kcensus capsule create DUMP "
    "case.capsule --redact names`"
)


def findings(figures: Figures) -> list[Finding]:
    """Return what to act on."""
    told = _told(figures)
    more = len(figures.cycles) - len(told)
    found = [_deadlock(figures, cycle) for cycle in told]
    if more:
        line = f"{counted(more, 'more cycle')} of tasks, some of them in one tangle with these"
        found[-1] = replace(found[-1], story=(*found[-1].story, line))
    return [*found, *others(figures)]


def _told(figures: Figures) -> list[Cycle]:
    """Return the cycles to tell of, the surest first: one of each tangle goes before others."""
    cycles = sorted(figures.cycles, key=lambda cycle: not figures.is_sure(cycle))
    first = {cycle.tangle: cycle for cycle in reversed(cycles)}
    order = sorted(cycles, key=lambda cycle: cycle is not first[cycle.tangle])
    told = {id(cycle) for cycle in order[:_MAX_DEADLOCKS]}
    return [cycle for cycle in figures.cycles if id(cycle) in told]


def _deadlock(figures: Figures, cycle: Cycle) -> Finding:
    graph = figures.graph
    tasks = [node for node in cycle.nodes if graph.is_task[node]]
    stuck = figures.waiters(cycle.nodes[0]) - set(tasks)
    ages = [int(figures.ages[node]) for node in (*tasks, *stuck)]
    oldest = max((age for age in ages if age >= 0), default=0) / 1e9
    is_sure = figures.is_sure(cycle)
    names = ", ".join(figures.name(node) for node in tasks[:_MAX_TOLD])
    more = f" and {len(tasks) - _MAX_TOLD} more" if len(tasks) > _MAX_TOLD else ""
    if len(tasks) == 1:
        who = f"{names} waits for itself"
    else:
        who = f"{len(tasks)} tasks wait for each other: {names}{more}"
    tail = f"; {counted(len(stuck), 'more task', plural='more tasks')} behind them" if stuck else ""
    is_program = figures.is_program((*tasks, *stuck))
    remedies = tuple(
        remedy for node in tasks for remedy in kills(figures, node, "that ends the cycle")
    )
    kind = "waits-deadlock" if is_sure else "waits-deadlock-possible"
    what = "deadlock of programs" if is_program else "deadlock"
    return Finding(
        id=f"{kind}:{min(figures.pid(node) for node in tasks)}",
        # Without a task in state D, it is a program that waits for itself, as it may do always.
        severity=Severity.CRITICAL if is_sure and not is_program else Severity.WARNING,
        danger=Danger.DEADLOCK,
        tasks=figures.pids((*tasks, *stuck)),
        title=f"{what if is_sure else f'possible {what}'}: {who}{tail}",
        evidence="; ".join(filter(None, (_reported(figures, tasks), _FOR_DEVELOPERS))),
        story=_story(figures, cycle),
        patch=patch_of([figures.functions(node) for node in tasks]),
        figures={
            "tasks": Figure(len(tasks)),
            "behind": Figure(len(stuck)),
            "oldest": Figure(oldest, Unit.SECONDS),
        },
        remedies=remedies,
        no_remedy="" if remedies else _NO_WAY if is_sure else _LOOK,
    )


def _reported(figures: Figures, tasks: list[int]) -> str:
    """Say how many of some tasks the hung task detector has reported."""
    count = sum(figures.pid(node) in figures.log[0] for node in tasks)
    which = "all of these" if count == len(tasks) else f"{count:,} of these {len(tasks):,}"
    return f"the kernel log reports {which} as hung" if count else ""


def _story(figures: Figures, cycle: Cycle) -> tuple[str, ...]:
    """Tell a cycle, a line per task: what it holds, and what it waits for since when."""
    graph, lines = figures.graph, []
    for at, node in enumerate(cycle.nodes):
        if not graph.is_task[node]:
            continue
        after = cycle.edges[at]
        held = (
            f"{holds(graph, figures, _held(figures, cycle, at - 1))}, "
            if len(cycle.nodes) > 1
            else ""
        )
        mode = f" ({graph.mode[after]})" if graph.mode[after] else ""
        asleep, function, entry = figures.asleep(node), figures.place(node), figures.entry(node)
        place = " of ".join(dict.fromkeys(name for name in (function, entry) if name))
        lines.append(
            f"{figures.name(node)} {held}waits for {figures.name(int(graph.target[after]))}{mode} "
            f"[{graph.evidence[after]}]"
            + (f" for {asleep}" if asleep else "")
            + (f", in {place}" if place else "")
            + (", until its timeout" if graph.is_timed[node] else "")
        )
    return tuple(lines)


def _held(figures: Figures, cycle: Cycle, at: int) -> int:
    """Return the edge that says how a task of a cycle keeps what leads to it.

    An edge from a process to its thread says less than the one that leads to the process.
    """
    edge = cycle.edges[at]
    return cycle.edges[at - 1] if figures.graph.edge[edge] is EdgeKind.THREAD else edge
