# SPDX-License-Identifier: LGPL-2.1-or-later
"""The selection of nodes to show, as lines: below each cycle and each root, the tasks behind it.

The selection is made once: the table ``tree`` has its lines, and pictures draw the same lines. A
node of a finding has a line; see :mod:`.choosing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kcensus.analyses.waits.choosing import MAX_STEPS, PROVEN, Choice, Chosen, Level
from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.told import Told
from kcensus.human import counted, human_seconds
from kcensus.kernel.waiting.cycles import Cycle
from kcensus.kernel.waiting.graph import HELD

_MAX_AGAIN, _MAX_LEADS = 2, 3
"""Most nodes beside one: waiters with a line elsewhere, and possible holders."""


@dataclass(frozen=True)
class Way:
    """A node beside a line, and the edge between both."""

    node: int
    edge: int
    strength: int


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
    strength: int = PROVEN
    """:class:`Strength` of the way to the node above."""
    counted: tuple[int, ...] = ()
    """Nodes without a line of their own that this line counts."""
    guide: str = ""
    """Characters of the branches that lead to the line."""
    leads: tuple[Way, ...] = ()
    """Possible holders of the top of a tree, or what a device is stacked on."""
    again: tuple[Way, ...] = ()
    """Waiters with a line elsewhere."""


@dataclass(frozen=True)
class Tree:
    """The lines below a cycle, below a root, or of tasks with an unknown object."""

    lines: tuple[Line, ...]
    number: int = 0
    """Number of the cycle, from 1 on; 0 for other trees."""
    cycle: Cycle | None = None
    ring: tuple[tuple[int, int], ...] = ()
    """Nodes of the cycle, without processes, each with its edge to the next one."""
    rest: tuple[int, ...] = ()
    """Further nodes of a long cycle."""
    last: int = -1
    """Edge of the last of these nodes."""

    @property
    def top(self) -> int:
        """Depth of the first nodes."""
        return next((line.depth for line in self.lines if line.node >= 0), 0)


@dataclass(frozen=True)
class Selection:
    """The trees to show: cycles, then roots, then further tasks."""

    trees: tuple[Tree, ...]
    hidden: int
    """Number of omitted cycles."""
    omitted: int
    """Number of waiters with a line elsewhere that :attr:`Line.again` lacks."""

    @property
    def lines(self) -> list[Line]:
        return [line for tree in self.trees for line in tree.lines]


def selection(figures: Figures, told: Sequence[Told] = ()) -> Selection:
    """Return the selection of nodes to show.

    :param told: the findings whose nodes and tasks to include
    """
    choice = Choice(figures, told)
    writer, known = _Writer(figures, choice), set(choice.seen)
    trees = [writer.tree(chosen, known) for chosen in (*choice.cycles, *choice.roots)]
    if members := choice.members(choice.elsewhere, known):
        trees.append(Tree((writer.count(members, "elsewhere"),)))
    trees += [writer.tree(chosen, known | choice.seen) for chosen in choice.unknown(known)]
    return writer.connected(trees)


class _Writer:
    """Makes the lines of chosen trees."""

    def __init__(self, figures: Figures, choice: Choice) -> None:
        self._figures, self._graph, self._choice = figures, figures.graph, choice

    def tree(self, chosen: Chosen, known: set[int]) -> Tree:
        """Return the lines of a tree.

        :param known: nodes with a line, or counted by one; gets newly counted nodes
        """
        if chosen.cycle is not None:
            ring, rest = self._ring(chosen.cycle)
            behind = len(self._figures.waiters(*chosen.cycle.nodes))
            name = f"cycle {chosen.number} ({chosen.cycle.strength.name.lower()})"
            lines = [Line(0, -1, name, behind), *self._below(chosen.top, 1, "", known)]
            nodes, last = tuple(node for node, _ in rest), rest[-1][1] if rest else -1
            # Without further waiters, the table of cycles has all.
            shown = tuple(lines) if len(lines) > 1 else ()
            return Tree(shown, chosen.number, chosen.cycle, ring, nodes, last)
        if chosen.root < 0:
            count = len(chosen.top.shown) + len(chosen.top.rest)
            heading = f"{counted(count, 'task', 'wait')} for an unknown object"
            return Tree((Line(0, -1, heading), *self._below(chosen.top, 1, "", known)))
        lines = self._below(chosen.top, 0, "", known)
        if len(lines) == 1:
            lines = [replace(lines[0], text=f"{lines[0].text}; its waiters are above")]
        return Tree(tuple(lines))

    def _ring(self, cycle: Cycle) -> tuple[tuple[tuple[int, int], ...], list[tuple[int, int]]]:
        """Return the steps of a cycle that are shown, and the others."""
        pairs = zip(cycle.nodes, cycle.edges, strict=True)
        steps = [(node, edge) for node, edge in pairs if not self._choice.is_passed(node)]
        rest = steps[MAX_STEPS - 1 :] if len(steps) > MAX_STEPS else []
        return tuple(steps[: len(steps) - len(rest)]), rest

    def _below(self, level: Level, depth: int, guide: str, known: set[int]) -> list[Line]:
        """Return the lines of a level, each with those below it."""
        found: list[Line] = []
        todo = self._level(level, depth, guide, known)
        while todo:
            line, further = todo.pop()
            found.append(line)
            if line.node >= 0 and line.node in self._choice.below:
                todo += self._level(self._choice.below[line.node], line.depth + 1, further, known)
        return found

    def _level(
        self, level: Level, depth: int, guide: str, known: set[int]
    ) -> list[tuple[Line, str]]:
        """Return the lines of one level, the last first, each with the guide of those below."""
        lines = [self._line(node) for node in level.shown]
        if members := self._choice.members(level.rest, known):
            weakest = min(strength for _, strength in level.rest.values())
            lines.append(replace(self.count(members), strength=weakest))
        found = list[tuple[Line, str]]()
        for place, line in enumerate(lines):
            own, further = ("└─ ", "   ") if place == len(lines) - 1 else ("├─ ", "│  ")
            own, further = (guide + own, guide + further) if depth else ("", "")
            found.append((replace(line, depth=depth, guide=own), further))
        return found[::-1]

    def _line(self, node: int) -> Line:
        edge, strength = self._choice.how[node]
        text = self._figures.names.of(node) + role(self._figures, node)
        return Line(0, node, text, int(self._figures.behind.tasks[node]), edge, strength)

    def count(self, members: list[int], where: str = "") -> Line:
        """Return the line that counts nodes."""
        name, note = several(self._figures, members)
        text = ", ".join(part for part in (f"… {name}", where, note) if part)
        return Line(0, -1, text, counted=tuple(sorted(members)))

    def _leads(self, node: int) -> tuple[Way, ...]:
        """Return where an edge leads that is no sure wait."""
        graph = self._graph
        edges = [edge for edge in graph.following[node] if not graph.is_sure[edge]]
        edges.sort(key=lambda e: (-int(self._figures.behind.tasks[graph.target[e]]), e))
        return tuple(
            Way(int(graph.target[edge]), edge, int(graph.strength[edge]))
            for edge in edges[:_MAX_LEADS]
        )

    def _possible(self, node: int, leads: Sequence[Way]) -> str:
        """Return the names of the possible holders of an object; empty without any."""
        if not leads or not is_unheld(self._figures, node):
            return ""
        return f"; possibly {', '.join(self._figures.names.of(way.node) for way in leads)}"

    def connected(self, trees: Sequence[Tree]) -> Selection:
        """Add the waiters of each line that have a line elsewhere."""
        drawn = {line.node for tree in trees for line in tree.lines if line.node >= 0}
        drawn |= {node for tree in trees for node, _ in tree.ring}
        steps = {step for tree in trees if tree.cycle for step in self._steps(tree.cycle)}
        omitted, made = 0, []
        for tree in trees:
            lines = []
            for line in tree.lines:
                ways = self._again(line.node, drawn, steps) if line.node >= 0 else []
                is_top = line.node >= 0 and not tree.cycle and line.depth == tree.top
                leads = self._leads(line.node) if is_top else ()
                omitted += max(len(ways) - _MAX_AGAIN, 0)
                text = line.text + self._possible(line.node, leads)
                lines.append(replace(line, text=text, again=tuple(ways[:_MAX_AGAIN]), leads=leads))
            made.append(replace(tree, lines=tuple(lines)))
        return Selection(tuple(made), self._choice.hidden, omitted)

    def _steps(self, cycle: Cycle) -> set[tuple[int, int]]:
        """Return the pairs of nodes next to each other in a cycle, with and without processes."""
        shown = tuple(node for node in cycle.nodes if not self._choice.is_passed(node))
        return {
            step
            for nodes in (cycle.nodes, shown)
            for step in zip(nodes, (*nodes[1:], *nodes[:1]), strict=True)
        }

    def _again(self, node: int, drawn: set[int], steps: set[tuple[int, int]]) -> list[Way]:
        level = self._choice.below.get(node)
        own = {*level.shown} if level else set()
        return [
            Way(each, edge, strength)
            for each, (edge, strength) in self._choice.waiters(node).items()
            if each in drawn and each not in own and (each, node) not in steps
        ]


def several(figures: Figures, nodes: Iterable[int]) -> tuple[str, str]:
    """Return the number of tasks among nodes, or the name of the only one, and their longest sleep,
    as texts."""
    tasks = [node for node in nodes if figures.graph.is_task[node]]
    oldest = max((int(figures.ages[node]) for node in tasks), default=-1)
    since = f"{'the longest ' * (len(tasks) > 1)}for {human_seconds(oldest / 1e9)}"
    name = figures.names.of(tasks[0]) if len(tasks) == 1 else counted(len(tasks), "more task")
    return name, since if oldest >= 0 else ""


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
    """Return the text after the name of a node: what it does, how it is held, or where it is."""
    graph = figures.graph.sure
    if graph.is_task[node]:
        told = activity(figures, node)
        return f": {told}" if told else ""
    if is_unheld(figures, node):
        return ": holder unknown"
    if place := figures.names.place(node):
        return f" ({place})"
    held = graph.following[node]
    modes = [graph.mode[edge] for edge in held if graph.mode[edge]]
    is_lock = any(graph.edge[edge] is HELD for edge in held)
    return f" (held: {modes[0]})" if modes and is_lock else ""
