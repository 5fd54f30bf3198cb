# SPDX-License-Identifier: LGPL-2.1-or-later
"""The picture of the selection: its lines as boxes, and cycles as rings.

Possible edges are drawn only in cycles, and as leads from the top of a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.selection import (
    Line,
    Selection,
    Tree,
    Way,
    activity,
    is_unheld,
    several,
)
from kcensus.human import counted
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.cycles import Cycle
from kcensus.results.graphs import Box, Link, Panel, Picture, Row, Shape, Step


def picture(figures: Figures, chosen: Selection) -> Picture:
    """Return the picture of the selection; empty if nothing waits."""
    return _Drawing(figures, chosen).picture()


class _Drawing:
    def __init__(self, figures: Figures, chosen: Selection) -> None:
        self._figures, self._graph, self._chosen = figures, figures.graph, chosen
        self._groups = 0

    def picture(self) -> Picture:
        rings = {tree.number: self._ring(tree) for tree in self._chosen.trees if tree.cycle}
        panels = [self._panel(tree, rings.get(tree.number, ())) for tree in self._chosen.trees]
        hidden, omitted = self._chosen.hidden, self._chosen.omitted
        parts = [f"cycles: {hidden:,}"] if hidden else []
        parts += [f"edges between boxes: {omitted:,}"] if omitted else []
        note = f"Not drawn: {'; '.join(parts)}. The tables have all." if parts else ""
        return Picture(tuple(panels), note)

    def _panel(self, tree: Tree, ring: tuple[Step, ...]) -> Panel:
        if tree.cycle:
            return Panel(
                self._title(tree.number, tree.cycle), ring, self._rows(tree.lines[1:], True)
            )
        first = tree.lines[0]
        if first.node < 0:
            return Panel(first.text, (), self._rows(tree.lines[not first.counted :]))
        title = f"{counted(first.behind, 'task', 'wait')} for {self._figures.names.of(first.node)}"
        return Panel(title, (), self._rows(tree.lines))

    # Rings

    def _ring(self, tree: Tree) -> tuple[Step, ...]:
        steps = [Step(self._box(node), self._link(edge)) for node, edge in tree.ring]
        if tree.rest:
            more = self._several([*tree.rest], "of this cycle")
            steps.append(Step(more, self._link(tree.last)))
        return tuple(steps)

    def _title(self, number: int, cycle: Cycle) -> str:
        tasks = sum(bool(self._graph.is_task[node]) for node in cycle.nodes)
        stuck = len(self._figures.waiters(*cycle.nodes))
        is_possible = cycle.strength <= Strength.POSSIBLE
        what = "possible deadlock" if is_possible else f"deadlock ({_name(cycle.strength)})"
        who = f"{tasks:,} tasks wait for each other" if tasks > 1 else "a task waits for itself"
        behind = f"; {counted(stuck, 'more task', 'wait')} behind the cycle" if stuck else ""
        return f"Cycle {number}, {what}: {who}{behind}"

    # Trees

    def _rows(self, lines: Sequence[Line], is_ring: bool = False) -> tuple[Row, ...]:
        """Return the rows of lines.

        :param is_ring: whether lines at the top are boxes of a ring, which are repeated
        """
        rows: list[Row] = []
        path: list[int] = []
        top = lines[0].depth if lines else 0
        for at in range(len(lines) + 1):
            depth = lines[at].depth - top if at < len(lines) else 0
            while len(path) > depth:
                again = lines[path.pop()].again
                rows += [self._beside(way, len(path) + 1) for way in again]
            if at == len(lines):
                break
            line = lines[at]
            link = self._link(line.edge, line.strength) if depth else None
            if line.counted:
                words = (
                    "wait for" if self._graph.is_task[list(line.counted)].all() else "wait behind"
                )
                link = Link(words, _name(line.strength)) if depth else None
                rows.append(Row(self._several(list(line.counted)), depth, link))
                continue
            rows.append(Row(self._box(line.node), depth, link, is_ring and not depth))
            rows += [self._beside(way, 1, is_lead=True) for way in line.leads]
            path.append(at)
        return tuple(rows)

    def _beside(self, way: Way, depth: int, *, is_lead: bool = False) -> Row:
        link = self._link(way.edge, way.strength)
        return Row(self._box(way.node), depth, link, True, is_lead=is_lead)

    # Boxes

    def _several(self, nodes: list[int], note: str = "") -> Box:
        self._groups += 1
        name, since = several(self._figures, nodes)
        return Box(-self._groups, name, note or since, Shape.MORE, counted=tuple(sorted(nodes)))

    def _box(self, node: int) -> Box:
        figures, graph = self._figures, self._graph
        address = int(graph.address[node])
        cycle = figures.cycle_of.get(node, 0)
        where = f"0x{address:x}" if address else ""
        if graph.is_task[node]:
            tip = f"struct task_struct {where}"
            note = activity(figures, node)
            return Box(node, figures.names.of(node), note, Shape.TASK, tip, cycle)
        type_ = figures.waiting.types.get((graph.kind[node], address), "")
        note = figures.names.object(node)
        note += ", holder unknown" if is_unheld(figures, node) else ""
        tip = f"{type_} {where}".strip()
        return Box(node, graph.kind[node].value, note, Shape.OBJECT, tip, cycle)

    def _link(self, edge: int, strength: int | None = None) -> Link:
        """Return the link of an edge.

        :param strength: strength of a way through other nodes, if the edge is part of one
        """
        graph = self._graph
        if edge < 0:
            return Link("", _name(Strength.PROVEN))
        mode, place = graph.mode[edge], int(graph.place[edge])
        words = graph.edge[edge].value + (f" ({mode})" if mode else "")
        function = graph.frame[edge]
        tip = ", ".join(
            filter(None, (f"in {function}" if function else "", f"0x{place:x}" if place else ""))
        )
        known = _name(graph.strength[edge] if strength is None else strength)
        return Link(words, known, graph.evidence[edge], tip)


def _name(strength: int) -> str:
    return Strength(int(strength)).name.lower()
