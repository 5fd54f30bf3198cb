# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tree of who waits for whom: below each cycle and each root, the tasks behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.waiting.graph import LOCKS, EdgeKind, NodeKind

_MAX_DEPTH = 16
"""Levels that are drawn: of a longer chain, the number of tasks behind tells enough."""
_MAX_ROWS = 1 << 12
_MAX_BRANCHES = 32
"""Drawn of equal branches: 200 tasks behind one lock."""


@dataclass(frozen=True)
class Row:
    """A line of the tree."""

    depth: int
    guide: str
    """Lines that lead to it."""
    node: int
    """-1 for a heading, and for branches that are not drawn."""
    text: str


def rows(figures: Figures) -> list[Row]:
    """Return the lines of the tree: cycles first, then roots, those with most tasks first."""
    drawn: list[Row] = []
    seen: set[int] = set()
    for line in _trees(figures, seen):
        drawn.append(line)
        if len(drawn) >= _MAX_ROWS:
            break
    return drawn


def _trees(figures: Figures, seen: set[int]) -> Iterator[Row]:
    for number, cycle in enumerate(figures.cycles, 1):
        what = f"cycle {number} ({cycle.strength.name.lower()})"
        yield Row(0, "", -1, what)
        inside = [node for node in cycle.nodes if not _is_passed(figures, node)]
        seen |= set(cycle.nodes)
        for at, node in enumerate(inside):
            yield from _branch(figures, node, 1, "", at == len(inside) - 1, seen, is_first=True)
    for node in figures.roots:
        if node not in seen:
            yield from _branch(figures, node, 0, "", True, seen, is_first=True)


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
        yield Row(level, guide, at, figures.name(at) + _role(figures, at))
        waiting = _waiting(figures, at, seen)
        further = before + ("" if not level else "   " if last else "│  ")
        if level >= _MAX_DEPTH and waiting:
            more = int(figures.behind.tasks[at])
            stack.append((-1, level + 1, further, True, f"… {more:,} more tasks"))
            continue
        shown, rest = waiting[:_MAX_BRANCHES], waiting[_MAX_BRANCHES:]
        if rest:
            stack.append((-1, level + 1, further, True, f"… {len(rest):,} more that wait for it"))
        for place, each in reversed(list(enumerate(shown))):
            stack.append((each, level + 1, further, place == len(shown) - 1 and not rest, ""))


def _waiting(figures: Figures, node: int, seen: set[int]) -> list[int]:
    """Return what waits for a node, not drawn yet; those with most tasks behind them first."""
    graph, found = figures.graph, dict[int, None]()
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
        found, key=lambda each: (-int(figures.behind.tasks[each]), -int(figures.ages[each]), each)
    )


def _role(figures: Figures, node: int) -> str:
    """Return what a task does, or who holds an object."""
    graph = figures.graph
    if graph.kind[node] is not NodeKind.TASK:
        modes = [graph.mode[edge] for edge in graph.following[node] if graph.mode[edge]]
        if not graph.following[node]:
            return ": holder unknown" if graph.kind[node] in LOCKS else ""
        is_lock = any(graph.edge[edge] is EdgeKind.HELD for edge in graph.following[node])
        return f" (held: {modes[0]})" if modes and is_lock else ""
    state, since, function = figures.state(node), figures.since(node), figures.function(node)
    parts = [state, f"for {since}" if since else "", f"in {function}" if function else ""]
    told = " ".join(part for part in parts if part)
    return f": {told}" if told else ""
