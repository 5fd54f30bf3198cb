# SPDX-License-Identifier: LGPL-2.1-or-later
"""Selection of nodes to show: below each cycle and each root, the tasks behind it.

The selection is made once: the table ``tree`` has its lines, and pictures draw the same lines.
Below each node, one line counts the other waiters. A node in the title of a finding has a line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.human import counted, human_seconds
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.cycles import Cycle
from kcensus.kernel.waiting.graph import HELD, PROCESS
from kcensus.results import Finding

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
_POSSIBLE, _PROVEN = int(Strength.POSSIBLE), int(Strength.PROVEN)
_Waiters = dict[int, tuple[int, int]]
"""Nodes, each with its edge and the strength of the way along it."""


@dataclass(frozen=True)
class Line:
    """A node; the next lines that are deeper hold its waiters."""

    depth: int
    node: int
    """-1 for a heading, and for a line that counts nodes."""
    text: str
    behind: int = 0
    """Tasks that wait for the node, directly or through others."""
    edge: int = -1
    """Row of the edge to the node above; -1 for none."""
    strength: int = _PROVEN
    """:class:`Strength` of the way to the node above."""
    counted: tuple[int, ...] = ()
    """Nodes without a line of their own that this line counts."""
    guide: str = ""
    """Characters of the branches that lead to the line."""


@dataclass(frozen=True)
class Tree:
    """The lines below a cycle, below a root, or of tasks with an unknown object."""

    lines: tuple[Line, ...]
    number: int = 0
    """Number of the cycle, from 1 on; 0 for other trees."""
    cycle: Cycle | None = None


@dataclass(frozen=True)
class Selection:
    """The trees to show: cycles, then roots, then further tasks."""

    trees: tuple[Tree, ...]
    ways: Ways
    named: set[int]
    """Nodes that findings name."""
    hidden: int
    """Number of omitted cycles."""

    @property
    def lines(self) -> list[Line]:
        return [line for tree in self.trees for line in tree.lines]


class Ways:
    """The waiters of nodes by derived and proven edges; processes are passed on to threads."""

    def __init__(self, figures: Figures) -> None:
        graph = figures.graph
        self._figures, self._graph = figures, graph
        self._source, self._strength = graph.source.tolist(), graph.strength.tolist()

    def is_passed(self, node: int) -> bool:
        """Return whether a node only leads on to threads: a process."""
        return self._graph.kind[node] is PROCESS

    def waiters(self, node: int) -> _Waiters:
        """Return the waiters of a node, each with its edge and the strength of its way.

        Waiters with most tasks behind them come first.
        """
        found: _Waiters = {}
        todo = deque((edge, _PROVEN) for edge in self._graph.preceding[node])
        passed = set[int]()
        while todo:
            edge, strength = todo.popleft()
            source, strength = self._source[edge], min(strength, self._strength[edge])
            if strength <= _POSSIBLE or source in passed:
                continue
            if self.is_passed(source):
                passed.add(source)
                todo += [(before, strength) for before in self._graph.preceding[source]]
            else:
                found.setdefault(source, (edge, strength))
        return {each: found[each] for each in sorted(found, key=self._order)}

    def _order(self, node: int) -> tuple[int, int, int]:
        behind = self._figures.behind
        # For an object, the longest sleep of a task behind it.
        oldest = int(behind.oldest[node])
        sleeper = oldest if oldest >= 0 and not self._graph.is_task[node] else node
        return -int(behind.tasks[node]), -int(self._figures.ages[sleeper]), node

    def behind(self, nodes: Iterable[int], known: set[int]) -> list[int]:
        """Return nodes and their direct and indirect waiters, except ``known`` ones.

        The result is added to ``known``.
        """
        found, todo = [], [*nodes]
        while todo:
            node = todo.pop()
            if node not in known:
                known.add(node)
                found.append(node)
                todo += self.waiters(node)
        return found


def selection(figures: Figures, findings: Sequence[Finding] = ()) -> Selection:
    """Return the selection of nodes to show.

    :param findings: the findings whose nodes and tasks to include
    """
    return _Selector(figures, findings).selection()


class _Selector:
    """Chooses the nodes with lines, then makes the lines.

    The key of a tree is its root; negative for a cycle, and for tasks with an unknown object.
    """

    def __init__(self, figures: Figures, findings: Sequence[Finding]) -> None:
        self.figures, self.graph, self.ways = figures, figures.graph, Ways(figures)
        self.findings = findings
        titles = self._named(finding.title for finding in findings)
        told = self._named(text for each in findings for text in (each.evidence, *each.story))
        self.named = titles | told
        self.wanted = self._way(titles)
        for node in told - titles:
            way = self._way({node})
            self.wanted |= way if len(way) <= _MAX_WAY else set()
        self.left = _MAX_LINES
        self.seen = set[int]()
        """Nodes with a line, or in a shown cycle."""
        self.below: dict[int, list[int]] = {}
        self.how: _Waiters = {}
        self.rest: dict[int, _Waiters] = {}
        """Waiters without a line, by node or key of the tree."""

    def _named(self, texts: Iterable[str]) -> set[int]:
        told, names = " | ".join(texts), self.figures.names
        return {
            node
            for node, is_task in enumerate(self.graph.is_task.tolist() if told else ())
            if (names.of(node) if is_task else names.object(node)) in told
        }

    def _way(self, nodes: set[int]) -> set[int]:
        return set(np.flatnonzero(self.graph.sure.reached(nodes)).tolist())

    def selection(self) -> Selection:
        cycles = {-number: cycle for number, cycle in enumerate(self.figures.cycles, 1)}
        rings = self._rings(cycles)
        others = [node for key in cycles if key not in rings for node in cycles[key].nodes]
        for key in rings:
            nodes = cycles[key].nodes
            # The table of cycles has their nodes; these lines are their other waiters.
            inside = [
                node
                for node in nodes
                if not self.ways.is_passed(node)
                and not self.seen.issuperset(self.ways.waiters(node))
            ]
            self._choose(key, dict.fromkeys(inside, (-1, _PROVEN)), set(inside))
        roots, alone = [], 0
        for root in self.figures.roots:
            behind = int(self.figures.behind.tasks[root])
            if root in self.seen or not behind:
                continue
            alone += behind == 1
            if root in self.wanted or (self.left >= 2 and (behind > 1 or alone <= _MAX_ALONE)):
                self.left -= 1
                self._choose(root, {root: (-1, _PROVEN)}, {root})
                roots.append(root)
            else:
                others.append(root)
        known = set(self.seen)
        trees = [Tree(self._lines(key, known), -key, cycles[key]) for key in rings]
        trees += [Tree(self._lines(root, known)) for root in roots]
        if members := self._members(others, known):
            trees.append(Tree((self._count(members, "elsewhere"),)))
        trees += self._unknown(known)
        return Selection(tuple(trees), self.ways, self.named, len(cycles) - len(rings))

    def _rings(self, cycles: dict[int, Cycle]) -> list[int]:
        """Return the keys of the cycles to show, and subtract their steps from the lines left."""
        found, size = [], 0
        for key in sorted(cycles, key=lambda key: (self.named.isdisjoint(cycles[key].nodes), -key)):
            nodes = cycles[key].nodes
            steps = min(len(nodes), MAX_STEPS)
            if size + steps <= _MAX_RINGS or not self.named.isdisjoint(nodes):
                found.append(key)
                size += steps
                self.seen.update(nodes)
        self.left -= size
        return sorted(found, reverse=True)

    def _unknown(self, known: set[int]) -> Iterator[Tree]:
        """Yield the tree of the findings' tasks that no line has or counts."""
        pids = frozenset[int]().union(*(finding.tasks for finding in self.findings))
        nodes = [
            node
            for node in self.figures.task_nodes
            if node not in known and self.figures.tasks.pid(node) in pids
        ]
        nodes.sort(key=lambda node: (-int(self.figures.ages[node]), node))
        if nodes:
            key = -len(self.figures.cycles) - 1
            self._choose(key, dict.fromkeys(nodes, (-1, _PROVEN)), self._few(nodes))
            yield Tree(self._lines(key, known | self.seen))

    # Choosing

    def _choose(self, key: int, tops: _Waiters, few: set[int]) -> None:
        """Choose the nodes of a tree that get lines, level by level.

        :param tops: the candidates of the first level
        :param few: candidates that get a line in any case
        """
        room = min(self.left, _MAX_TREE)
        self.left -= room
        todo = deque(self._take(key, tops, few | self.wanted))
        depths = dict.fromkeys(todo, 1)
        while todo:
            node = todo.popleft()
            waiters = {n: how for n, how in self.ways.waiters(node).items() if n not in self.seen}
            few = self._few(waiters) if depths[node] <= _MAX_DEPTH else set()
            few = set(islice((each for each in waiters if each in few), room))
            below = self._take(node, waiters, few | self.wanted)
            room = max(room - len(below), 0)
            depths |= dict.fromkeys(below, depths[node] + 1)
            todo += below
        self.left += room

    def _take(self, key: int, waiters: _Waiters, wanted: set[int]) -> list[int]:
        taken = [node for node in waiters if node in wanted]
        self.seen.update(taken)
        self.how |= {node: waiters[node] for node in taken}
        self.below[key] = taken
        self.rest[key] = {node: how for node, how in waiters.items() if node not in wanted}
        return taken

    def _few(self, nodes: Iterable[int]) -> set[int]:
        """Return a few nodes with tasks behind them, and a few without."""
        found, behind, is_task = set[int](), self.figures.behind.tasks, self.graph.is_task
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

    # Lines

    def _lines(self, key: int, known: set[int]) -> tuple[Line, ...]:
        """Return the lines of a tree.

        :param known: nodes with a line, or counted by one; gets newly counted nodes
        """
        found: list[Line] = []
        todo: list[tuple[int, int, int, str, str]] = []

        def push(above: int, depth: int, guide: str) -> None:
            nodes = [*self.below.get(above, ())]
            members = self._members(self.rest.get(above, ()), known)
            if members:
                counts[above] = members
                nodes.append(-1)
            for place, node in reversed([*enumerate(nodes)]):
                last = place == len(nodes) - 1
                own, further = ("└─ ", "   ") if last else ("├─ ", "│  ")
                todo.append((node, above, depth, guide + own, guide + further))

        counts: dict[int, list[int]] = {}
        if key >= 0:
            todo.append((key, -1, 0, "", ""))
        else:
            found.append(self._heading(key))
            push(key, 1, "")
        while todo:
            node, above, depth, own, further = todo.pop()
            if node < 0:
                weakest = min(strength for _, strength in self.rest[above].values())
                line = self._count(counts[above])
                found.append(replace(line, depth=depth, guide=own, strength=weakest))
                continue
            text = self.figures.names.of(node) + role(self.figures, node)
            edge, strength = self.how[node]
            behind = int(self.figures.behind.tasks[node])
            found.append(Line(depth, node, text, behind, edge, strength, guide=own))
            push(node, depth + 1, further)
        if key >= 0 and len(found) == 1:
            found[0] = replace(found[0], text=f"{found[0].text}; its waiters are above")
        return tuple(found) if key >= 0 or len(found) > 1 else ()

    def _heading(self, key: int) -> Line:
        if -key > len(self.figures.cycles):
            count = len(self.below[key]) + len(self.rest[key])
            return Line(0, -1, f"{counted(count, 'task', 'wait')} for an unknown object")
        cycle = self.figures.cycles[-key - 1]
        behind = len(self.figures.waiters(*cycle.nodes))
        return Line(0, -1, f"cycle {-key} ({cycle.strength.name.lower()})", behind)

    def _members(self, nodes: Iterable[int], known: set[int]) -> list[int]:
        """Return nodes and their waiters, except ``known`` ones; empty if none is a task."""
        members = self.ways.behind(nodes, known)
        return members if self.graph.is_task[members].any() else []

    def _count(self, members: list[int], where: str = "") -> Line:
        name, note = several(self.figures, members)
        text = ", ".join(part for part in (f"… {name}", where, note) if part)
        return Line(0, -1, text, counted=tuple(sorted(members)))


def several(figures: Figures, nodes: Iterable[int]) -> tuple[str, str]:
    """Return the number of tasks among nodes, and their longest sleep, as texts."""
    tasks = [node for node in nodes if figures.graph.is_task[node]]
    oldest = max((int(figures.ages[node]) for node in tasks), default=-1)
    since = f"{'the longest ' * (len(tasks) > 1)}for {human_seconds(oldest / 1e9)}"
    return counted(len(tasks), "more task"), since if oldest >= 0 else ""


def is_unheld(figures: Figures, node: int) -> bool:
    """Return whether a node is a lock whose holder is unknown."""
    graph = figures.graph
    if graph.sure.following[node]:
        return False
    kind = graph.kind[node]
    return kind.is_lock or (kind.is_event and bool(graph.following[node]))


def activity(figures: Figures, node: int) -> str:
    """Return the state, sleep and function of a task as text."""
    asleep, function = figures.tasks.asleep(node), figures.tasks.place(node)
    state = figures.tasks.state(node).value
    parts = [state, f"for {asleep}" if asleep else "", f"in {function}" if function else ""]
    return " ".join(part for part in parts if part)


def role(figures: Figures, node: int) -> str:
    """Return the text after the name of a node: the activity of a task, or the mode of a lock."""
    graph = figures.graph.sure
    if graph.is_task[node]:
        told = activity(figures, node)
        return f": {told}" if told else ""
    if is_unheld(figures, node):
        return ": holder unknown"
    held = graph.following[node]
    modes = [graph.mode[edge] for edge in held if graph.mode[edge]]
    is_lock = any(graph.edge[edge] is HELD for edge in held)
    return f" (held: {modes[0]})" if modes and is_lock else ""
