# SPDX-License-Identifier: LGPL-2.1-or-later
"""Deadlocks: their tasks, evidence and remedies."""

from __future__ import annotations

from dataclasses import replace

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.known import patch_of
from kcensus.analyses.waits.findings.remedies import kills, restart
from kcensus.analyses.waits.findings.told import MAX_TOLD, Told
from kcensus.analyses.waits.findings.words import holds
from kcensus.human import counted, human_seconds, listed
from kcensus.kernel.waiting.cycles import Cycle
from kcensus.kernel.waiting.graph import THREAD
from kcensus.results import Danger, Figure, Finding, Severity, Unit

_MAX_DEADLOCKS = 8
"""Deadlocks with a finding; tables have all."""
_NO_WAY = "no signal wakes these tasks, and no lock can be released from outside"
_LOOK = (
    "Check the stacks first: `kcensus waits TARGET --table stacks --top 0`. Restart the machine "
    "only if the possible holder has called a function that takes the lock"
)
_FOR_DEVELOPERS = "for developers: `kcensus waits TARGET --table stacks --top 0`"
_RECORD = ", and `kcensus capsule create TARGET case.capsule --redact names`"


def deadlocks(figures: Figures) -> list[Told]:
    """Return the findings about cycles; the last one counts the others."""
    cycles = _told(figures)
    more = len(figures.cycles) - len(cycles)
    found = [Told(_deadlock(figures, cycle), cycle.nodes) for cycle in cycles]
    if more:
        line = (
            f"{counted(more, 'more cycle')}, some with the same tasks: `kcensus waits TARGET "
            "--table cycles` lists all"
        )
        last = found[-1].finding
        found[-1] = replace(found[-1], finding=replace(last, story=(*last.story, line)))
    return found


def _told(figures: Figures) -> list[Cycle]:
    """Return the cycles with a finding: one per tangle before further ones, sure ones first."""
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
    names = listed([figures.names.of(node) for node in tasks], MAX_TOLD)
    if len(tasks) == 1:
        who = f"{names} waits for itself"
    else:
        since = f", the longest for {human_seconds(oldest)}" if oldest else ""
        who = f"{len(tasks)} tasks wait for each other{since}: {names}"
    tail = f"; {counted(len(stuck), 'more task', plural='more tasks')} behind them" if stuck else ""
    is_program = figures.tasks.is_program((*tasks, *stuck))
    ends = [remedy for node in tasks for remedy in kills(figures, node, "end the cycle")]
    # The end of one thread is that of all threads of its process.
    remedies = tuple({remedy.command or remedy.effect: remedy for remedy in ends[::-1]}.values())
    remedies = remedies[::-1]
    kind = "waits-deadlock" if is_sure else "waits-deadlock-possible"
    what = "deadlock of programs" if is_program else "deadlock"
    developers = _FOR_DEVELOPERS + ("" if figures.kernel.is_capsule else _RECORD)
    return Finding(
        id=f"{kind}:{min(figures.tasks.pid(node) for node in tasks)}",
        # Without a task in state D, a program waits for itself, and may always do so.
        severity=Severity.CRITICAL if is_sure and not is_program else Severity.WARNING,
        danger=Danger.DEADLOCK,
        tasks=figures.tasks.pids((*tasks, *stuck)),
        title=f"{what if is_sure else f'possible {what}'}: {who}{tail}",
        evidence="; ".join(filter(None, (_reported(figures, tasks), developers))),
        story=_story(figures, cycle),
        patch=patch_of([figures.tasks.functions(node) for node in tasks]),
        figures={
            "tasks": Figure(len(tasks)),
            "behind": Figure(len(stuck)),
            "oldest": Figure(oldest, Unit.SECONDS),
        },
        remedies=remedies,
        no_remedy="" if remedies else f"{restart(figures)}: {_NO_WAY}" if is_sure else _LOOK,
    )


def _reported(figures: Figures, tasks: list[int]) -> str:
    count = sum(figures.tasks.pid(node) in figures.hung for node in tasks)
    which = "all of these" if count == len(tasks) else f"{count:,} of these {len(tasks):,}"
    return f"the kernel log reports {which} tasks as hung" if count else ""


def _story(figures: Figures, cycle: Cycle) -> tuple[str, ...]:
    graph, lines = figures.graph, []
    for at, node in enumerate(cycle.nodes):
        if not graph.is_task[node]:
            continue
        after = cycle.edges[at]
        edge = _held(figures, cycle, at - 1)
        held = f"{holds(figures, edge)}, " if len(cycle.nodes) > 1 else ""
        mode = f" ({graph.mode[after]})" if graph.mode[after] else ""
        target = figures.names.of(int(graph.target[after]))
        asleep = figures.tasks.asleep(node)
        function, entry = figures.tasks.place(node), figures.tasks.entry(node)
        place = ", entered by ".join(dict.fromkeys(name for name in (function, entry) if name))
        lines.append(
            f"{figures.names.of(node)} {held}waits for {target}{mode} "
            f"[{graph.evidence[after]}]"
            + (f" for {asleep}" if asleep else "")
            + (f", in {place}" if place else "")
            + (", until its timeout" if graph.is_timed[node] else "")
        )
    return tuple(lines)


def _held(figures: Figures, cycle: Cycle, at: int) -> int:
    """Return the edge with the evidence of a task's hold on its predecessor in a cycle.

    The edge to a process says more than the edge from the process to its thread.
    """
    edge = cycle.edges[at]
    return cycle.edges[at - 1] if figures.graph.edge[edge] is THREAD else edge
