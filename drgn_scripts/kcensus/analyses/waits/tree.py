# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tree of who waits for whom: below each cycle and each root, the tasks behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kcensus.analyses.waits.figures import Figures
from kcensus.human import human_seconds
from kcensus.kernel.waiting.graph import LOCKS, EdgeKind, NodeKind

_MAX_DEPTH = 16
"""Levels that are drawn: of a longer chain, the number of tasks behind tells enough."""
_MAX_ROWS = 1 << 12
_MAX_BRANCHES = 32
"""Drawn of those that wait for the same."""
_MAX_LEAVES = 4
"""Drawn of these, if nothing waits for them: of 200 tasks behind one lock."""


@dataclass(frozen=True)
class Row:
    """A line of the tree."""

    depth: int
    guide: str
    """Lines that lead to it."""
    node: int
    """-1 for a heading, and for branches that are not drawn."""
    text: str
    behind: int = 0
    """Tasks that wait for it, also through others."""


def rows(figures: Figures) -> list[Row]:
    """Return the lines of the tree: cycles first, then roots, those with most tasks first."""
    drawn: list[Row] = []
    seen: set[int] = set()
    for line in _trees(figures, seen):
        if len(drawn) >= _MAX_ROWS:
            drawn.append(Row(0, "", -1, "… and more: the tables tasks and objects have all"))
            break
        drawn.append(line)
    return drawn


def _trees(figures: Figures, seen: set[int]) -> Iterator[Row]:
    for number, cycle in enumerate(figures.cycles, 1):
        # The table of cycles has its nodes: here is who else waits for them.
        seen |= set(cycle.nodes)
        inside = [
            node
            for node in cycle.nodes
            if not _is_passed(figures, node) and _waiting(figures, node, seen)
        ]
        if inside:
            what = f"cycle {number} ({cycle.strength.name.lower()})"
            stuck = figures.waiters(*cycle.nodes)
            yield Row(0, "", -1, what, len(stuck))
        for at, node in enumerate(inside):
            yield from _branch(figures, node, 1, "", at == len(inside) - 1, seen, is_first=True)
    for node in figures.roots:
        if node in seen or not figures.behind.tasks[node]:
            continue
        first, *rest = _branch(figures, node, 0, "", True, seen, is_first=True)
        yield first if rest else replace(first, text=f"{first.text}; who waits is above")
        yield from rest


def _is_passed(figures: Figures, node: int) -> bool:
    """Return whether a node only leads on to threads."""
    return figures.graph.kind[node] is NodeKind.PROCESS


def _branch(
    figures: Figures,
    node: int,
    depth: int,
    lines: str,
    is_last: bool,
    seen: set[int],
    *,
    is_first: bool = False,
) -> Iterator[Row]:
    """Yield a node and those that wait for it, without recursion into long chains."""
    stack: list[tuple[int, int, str, bool, str]] = [(node, depth, lines, is_last, "")]
    while stack:
        at, level, before, last, text = stack.pop()
        guide = "" if not level else before + ("└─ " if last else "├─ ")
        if at < 0:
            yield Row(level, guide, -1, text)
            continue
        if at in seen and not (is_first and at == node):
            continue
        seen.add(at)
        behind = int(figures.behind.tasks[at])
        yield Row(level, guide, at, figures.name(at) + _role(figures, at), behind)
        waiting = _waiting(figures, at, seen)
        further = before + ("" if not level else "   " if last else "│  ")
        if level >= _MAX_DEPTH and waiting:
            more = int(figures.behind.tasks[at])
            stack.append((-1, level + 1, further, True, f"… {more:,} more tasks"))
            continue
        # Those with tasks behind them come first.
        busy = sum(bool(figures.behind.tasks[each]) for each in waiting)
        shown = waiting[: min(max(busy, _MAX_LEAVES), _MAX_BRANCHES)]
        rest = waiting[len(shown) :]
        if len(rest) == 1:
            shown, rest = waiting, []
        if rest:
            stack.append((-1, level + 1, further, True, _more(figures, rest)))
        for place, each in reversed(list(enumerate(shown))):
            stack.append((each, level + 1, further, place == len(shown) - 1 and not rest, ""))


def _more(figures: Figures, nodes: list[int]) -> str:
    """Return how many nodes are not drawn, and for how long they have waited."""
    ages = sorted(int(figures.ages[node]) for node in nodes if figures.asleep(node))
    if not ages:
        return f"… {len(nodes):,} more wait for it"
    least, most = (human_seconds(age / 1e9) for age in (ages[0], ages[-1]))
    span = least if least == most else f"{least} to {most}"
    return f"… {len(nodes):,} more wait for it, for {span}"


def _waiting(figures: Figures, node: int, seen: set[int]) -> list[int]:
    """Return what waits for a node, not drawn yet; those with most tasks behind them first."""
    graph, found = figures.graph.sure, dict[int, None]()
    todo = [int(graph.source[edge]) for edge in graph.preceding[node]]
    while todo:
        each = todo.pop()
        if each in seen or each in found:
            continue
        if _is_passed(figures, each):
            todo += [int(graph.source[edge]) for edge in graph.preceding[each]]
        else:
            found[each] = None
    return sorted(
        found, key=lambda each: (-int(figures.behind.tasks[each]), -_age(figures, each), each)
    )


def _age(figures: Figures, node: int) -> int:
    """Return how long a task has slept, or the first of those behind an object."""
    oldest = int(figures.behind.oldest[node])
    is_object = not figures.graph.is_task[node]
    return int(figures.ages[oldest if is_object and oldest >= 0 else node])


def _role(figures: Figures, node: int) -> str:
    """Return what a task does, or who holds an object."""
    graph = figures.graph.sure
    if graph.kind[node] is not NodeKind.TASK:
        modes = [graph.mode[edge] for edge in graph.following[node] if graph.mode[edge]]
        if not graph.following[node]:
            is_futex = graph.kind[node] is NodeKind.FUTEX
            is_held = graph.kind[node] in LOCKS or (is_futex and figures.graph.following[node])
            return ": holder unknown" if is_held else ""
        is_lock = any(graph.edge[edge] is EdgeKind.HELD for edge in graph.following[node])
        return f" (held: {modes[0]})" if modes and is_lock else ""
    state, asleep, function = figures.state(node), figures.asleep(node), figures.place(node)
    parts = [state, f"for {asleep}" if asleep else "", f"in {function}" if function else ""]
    told = " ".join(part for part in parts if part)
    return f": {told}" if told else ""
