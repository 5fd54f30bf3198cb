# SPDX-License-Identifier: LGPL-2.1-or-later
"""Choose the nodes to show: cycles, then roots, and below each the tasks behind it.

The nodes of findings, and all nodes on their ways to a root, are shown in any case; others share
a bounded number of lines. Below each node, one line counts the waiters without a line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.told import Told
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.cycles import Cycle
from kcensus.kernel.waiting.graph import PROCESS

_MAX_LINES, _MAX_TREE = 60, 20
"""Most lines of all trees, with the steps of rings, and of one; nodes of findings may exceed it."""
_MAX_DEPTH = 6
_MAX_BUSY, _MAX_LEAVES = 6, 4
"""Most lines below one: with tasks behind them, and without."""
_MAX_ALONE = 3
"""Most trees with one task only."""
_MAX_RINGS, MAX_STEPS = 40, 24
"""Most steps of all rings, to leave lines for the tasks behind them, and of one ring."""
_MAX_WAY = 16
"""Most nodes on the way from a node in a finding's evidence; titles have no such limit."""
PROVEN = int(Strength.PROVEN)
Waiters = dict[int, tuple[int, int]]
"""Nodes, each with its edge and the strength of the way along it."""


@dataclass(frozen=True)
class Level:
    """The nodes next to each other below a node, or at the top of a tree."""

    shown: list[int]
    """Nodes with a line."""
    rest: Waiters = field(default_factory=dict)
    """Nodes that one line counts."""


@dataclass(frozen=True)
class Chosen:
    """A tree of chosen nodes: of a cycle, of a root, or of tasks with an unknown object."""

    top: Level
    root: int = -1
    number: int = 0
    """Number of the cycle, from 1 on; 0 for other trees."""
    cycle: Cycle | None = None


class Choice:
    """The chosen trees, the waiters of each of their nodes, and what has no tree."""

    def __init__(self, figures: Figures, told: Sequence[Told]) -> None:
        self._figures, self._graph = figures, figures.graph
        titles = {node for each in told for node in each.nodes}
        further = {node for each in told for node in each.further}
        self.named = titles | further
        """Nodes that findings name."""
        self._wanted = self._way(titles)
        for node in further - titles:
            way = self._way({node})
            self._wanted |= way if len(way) <= _MAX_WAY else set()
        self._left = _MAX_LINES
        self.seen = set[int]()
        """Nodes with a line, or in a shown cycle."""
        self.below: dict[int, Level] = {}
        """The waiters of each node with a line."""
        self.how: Waiters = {}
        """The edge of each node with a line to the one above."""
        self._pids = frozenset[int]().union(*(each.finding.tasks for each in told))
        self.cycles = self._of_cycles()
        self.hidden = len(figures.cycles) - len(self.cycles)
        """Number of cycles without a tree."""
        self.roots, unshown = self._of_roots()
        numbers = {tree.number for tree in self.cycles}
        hidden = [c for number, c in enumerate(figures.cycles, 1) if number not in numbers]
        self.elsewhere = [*(node for cycle in hidden for node in cycle.nodes), *unshown]
        """Nodes of cycles and roots without a tree."""

    # Trees

    def _way(self, nodes: set[int]) -> set[int]:
        return set(np.flatnonzero(self._graph.sure.reached(nodes)).tolist())

    def _of_cycles(self) -> list[Chosen]:
        """Choose cycles, those of findings first, then the other waiters of their nodes."""
        chosen, size = [], 0
        pairs = [*enumerate(self._figures.cycles, 1)]
        for number, cycle in sorted(pairs, key=lambda pair: self.named.isdisjoint(pair[1].nodes)):
            steps = min(len(cycle.nodes), MAX_STEPS)
            if size + steps <= _MAX_RINGS or not self.named.isdisjoint(cycle.nodes):
                chosen.append((number, cycle))
                size += steps
                self.seen.update(cycle.nodes)
        self._left -= size
        return [self._of_cycle(*pair) for pair in sorted(chosen, key=lambda pair: pair[0])]

    def _of_cycle(self, number: int, cycle: Cycle) -> Chosen:
        # The table of cycles has their nodes; these lines are their other waiters.
        inside = [
            node
            for node in cycle.nodes
            if not self.is_passed(node) and not self.seen.issuperset(self.waiters(node))
        ]
        top = self._tree(dict.fromkeys(inside, (-1, PROVEN)), set(inside))
        return Chosen(top, number=number, cycle=cycle)

    def _of_roots(self) -> tuple[list[Chosen], list[int]]:
        """Return the trees of roots, and the roots without a tree."""
        chosen, others, alone = [], [], 0
        for root in self._figures.roots:
            behind = int(self._figures.behind.tasks[root])
            if root in self.seen or not behind:
                continue
            alone += behind == 1
            if root in self._wanted or (self._left >= 2 and (behind > 1 or alone <= _MAX_ALONE)):
                self._left -= 1
                chosen.append(Chosen(self._tree({root: (-1, PROVEN)}, {root}), root))
            else:
                others.append(root)
        return chosen, others

    def unknown(self, known: set[int]) -> Iterator[Chosen]:
        """Yield the tree of the tasks of findings that are not known yet.

        :param known: nodes with a line, or counted by one
        """
        nodes = [
            node
            for node in self._figures.task_nodes
            if node not in known and self._figures.tasks.pid(node) in self._pids
        ]
        nodes.sort(key=lambda node: (-int(self._figures.ages[node]), node))
        if nodes:
            yield Chosen(self._tree(dict.fromkeys(nodes, (-1, PROVEN)), self._few(nodes)))

    # Waiters

    def is_passed(self, node: int) -> bool:
        """Return whether a node only leads on to threads: a process."""
        return self._graph.kind[node] is PROCESS

    def waiters(self, node: int) -> Waiters:
        """Return the waiters of a node, those with most tasks behind them first."""
        found = self._graph.waiters(node, self.is_passed)
        return {each: found[each] for each in sorted(found, key=self._order)}

    def _order(self, node: int) -> tuple[int, int, int]:
        behind = self._figures.behind
        # For an object, the longest sleep of a task behind it.
        oldest = int(behind.oldest[node])
        sleeper = oldest if oldest >= 0 and not self._graph.is_task[node] else node
        return -int(behind.tasks[node]), -int(self._figures.ages[sleeper]), node

    def members(self, nodes: Iterable[int], known: set[int]) -> list[int]:
        """Return some nodes and all behind them, except known ones; empty without a task.

        :param known: gets the members
        """
        seen = self._graph.sure.reached(nodes, back=True, but=known)
        found = [node for node in np.flatnonzero(seen).tolist() if not self.is_passed(node)]
        known.update(found)
        return found if self._graph.is_task[found].any() else []

    # Levels

    def _tree(self, tops: Waiters, few: set[int]) -> Level:
        """Choose the nodes of a tree that get lines, level by level; return the first level.

        :param tops: the candidates of the first level
        :param few: candidates that get a line in any case
        """
        room = max(min(self._left, _MAX_TREE), 0)  # rings of cycles may have taken more
        self._left -= room
        top = self._level(tops, few)
        todo = deque(top.shown)
        depths = dict.fromkeys(todo, 1)
        while todo:
            node = todo.popleft()
            waiters = {n: how for n, how in self.waiters(node).items() if n not in self.seen}
            chosen = self._few(waiters) if depths[node] <= _MAX_DEPTH else set()
            fitting = set(islice((each for each in waiters if each in chosen), room))
            level = self.below[node] = self._level(waiters, fitting)
            room = max(room - len(level.shown), 0)
            depths |= dict.fromkeys(level.shown, depths[node] + 1)
            todo += level.shown
        self._left += room
        return top

    def _level(self, nodes: Waiters, few: set[int]) -> Level:
        """Divide nodes into a few, with those of findings, and the rest."""
        shown = [node for node in nodes if node in few or node in self._wanted]
        self.seen.update(shown)
        self.how |= {node: nodes[node] for node in shown}
        known = set(shown)
        return Level(shown, {node: how for node, how in nodes.items() if node not in known})

    def _few(self, nodes: Iterable[int]) -> set[int]:
        """Return a few nodes with tasks behind them, and a few without."""
        found, behind, is_task = set[int](), self._figures.behind.tasks, self._graph.is_task
        told = [node for node in nodes if behind[node] or is_task[node]]
        # An I/O with one waiter tells no more than a task without a waiter.
        busy = {node for node in told if behind[node] > (not is_task[node])}
        for most, own in (
            (_MAX_BUSY, [node for node in told if node in busy]),
            (_MAX_LEAVES, [node for node in told if node not in busy]),
        ):
            # A line for one counted node takes as much room as that node.
            found |= {*(own if len(own) == most + 1 else own[:most])}
        return found
