# SPDX-License-Identifier: LGPL-2.1-or-later
"""What of the graph a picture shows: cycles, who is stuck behind them, and the largest trees.

It is made from the tables, so that a saved result has it, too. Of equal waiters, a few have boxes;
the others are counted in one. What is only possible is drawn in cycles, and as a lead to who may
hold a lock that has no known holder.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcensus.human import counted, human_seconds
from kcensus.kernel.waiting.graph import LOCKS, NodeKind
from kcensus.results import Result
from kcensus.results.graphs import Box, Link, Panel, Picture, Row, Shape, Step

_MAX_BOXES = 60
_MAX_RING_BOXES = 40
"""Boxes of all rings, so that some are left for who is stuck behind them."""
_MAX_STEPS = 24
"""Boxes of one ring."""
_MAX_TREE = 20
"""Boxes of one tree."""
_MAX_DEPTH = 6
_MAX_BRANCHES, _MAX_LEAVES, _MAX_AGAIN, _MAX_LEADS = 6, 3, 2, 3
"""Boxes below one: those with waiters, those without, those that are drawn elsewhere, and those
that may hold it."""
_MAX_ALONE = 3
"""Trees with one task only."""
_TASK, _PROCESS = NodeKind.TASK.value, NodeKind.PROCESS.value
_LOCKS = {kind.value for kind in LOCKS}
_POSSIBLE = "possible"
_STRENGTHS = (_POSSIBLE, "derived", "proven")
_LENGTHS = {"proven": 10, "derived": 11, _POSSIBLE: 30}
_FOREVER = 1e10
"""Seconds, more than any kernel has run."""
_NODES = ("node", "kind", "name", "behind", "cycle", "object_type", "object")
_EDGES = ("source", "target", "kind", "mode", "strength", "evidence", "function", "place")
_TASKS = ("address", "state", "asleep", "function")
_OBJECTS = ("kind", "object", "oldest")
_CYCLES = ("cycle", "address")


def picture(result: Result) -> Picture:
    """Return the picture of a result; empty where there is nothing to draw.

    Another version of kcensus may have saved the result, without these tables or columns.
    """
    nodes, edges = _records(result, "nodes", _NODES), _records(result, "edges", _EDGES)
    if not nodes:
        return Picture()
    tasks, cycles = _records(result, "tasks", _TASKS), _records(result, "cycles", _CYCLES)
    objects = _records(result, "objects", _OBJECTS)
    oldest = {(row["kind"], str(row["object"])): _seconds(row["oldest"]) for row in objects}
    graph = _Graph(nodes, edges, {str(row["address"]): row for row in tasks}, oldest)
    return _Selection(graph, _rings(graph, cycles)).picture()


def _records(result: Result, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    table = result.tables.get(name)
    if table is None or not {*columns} <= {*table.frame.columns}:
        return []
    parts = {column: table.frame[column].tolist() for column in columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*parts.values(), strict=True)]


def _number(value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]  # of a saved result
    except (TypeError, ValueError, OverflowError):
        return -1


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < _FOREVER else -1.0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class _Node:
    box: Box
    kind: str
    behind: int
    """Tasks that wait for it, also through others."""
    asleep: float
    """Seconds that a task has slept, or the first of the tasks behind an object; -1 if unknown."""


class _Graph:
    """The graph in the tables: processes, which only lead on to their threads, are passed."""

    def __init__(
        self,
        nodes: list[dict[str, Any]],
        edges: list[dict[str, Any]],
        tasks: dict[str, dict[str, Any]],
        oldest: dict[tuple[str, str], float],
    ) -> None:
        held = {_number(edge["source"]) for edge in edges}
        self.nodes = {_number(row["node"]): _node(row, tasks, oldest, held) for row in nodes}
        self.tasks = {
            str(row["object"]): _number(row["node"]) for row in nodes if row["kind"] == _TASK
        }
        self._before: defaultdict[int, list[tuple[int, Link]]] = defaultdict(list)
        """What surely waits for each node."""
        self._after: defaultdict[int, list[tuple[int, Link]]] = defaultdict(list)
        for edge in edges:
            source, target = _number(edge["source"]), _number(edge["target"])
            if source in self.nodes and target in self.nodes:
                link = _link(edge)
                if link.strength != _POSSIBLE:
                    self._before[target].append((source, link))
                self._after[source].append((target, link))

    def is_task(self, node: int) -> bool:
        return self.nodes[node].box.shape is Shape.TASK

    def is_waiting(self, node: int) -> bool:
        return self.is_task(node) and bool(self._after[node])

    def is_passed(self, node: int) -> bool:
        return self.nodes[node].kind == _PROCESS and bool(self._after[node])

    def waiters(self, node: int) -> list[tuple[int, Link]]:
        """Return what waits for a node: those with most tasks behind them first.

        What it holds that no task waits for is left out.
        """
        found: dict[int, Link] = {}
        todo = deque(self._before[node])
        passed = set[int]()
        while todo:
            source, link = todo.popleft()
            if not self.is_passed(source):
                found.setdefault(source, link)
            elif source not in passed:
                passed.add(source)
                todo += [(before, _joined(way, link)) for before, way in self._before[source]]
        kept = [pair for pair in found.items() if self.is_task(pair[0]) or self._has_tasks(pair[0])]
        return sorted(kept, key=lambda pair: self.order(pair[0]))

    def _has_tasks(self, node: int) -> bool:
        return self.nodes[node].behind > 0

    def order(self, node: int) -> tuple[int, float, int]:
        """Return what nodes are sorted by."""
        known = self.nodes[node]
        return -known.behind, -known.asleep, node

    def leads(self, node: int) -> list[tuple[int, Link]]:
        """Return what a node possibly waits for."""
        found = [(after, link) for after, link in self._after[node] if link.strength == _POSSIBLE]
        return sorted(found, key=lambda pair: self.order(pair[0]))

    def stuck(self, nodes: Iterable[int]) -> int:
        """Return how many tasks surely wait for any of these nodes, also through others."""
        starts = {*nodes}
        seen, todo = set(starts), [*starts]
        while todo:
            for before, _ in self._before[todo.pop()]:
                if before not in seen:
                    seen.add(before)
                    todo.append(before)
        return sum(map(self.is_task, seen - starts))

    def roots(self) -> list[int]:
        """Return what surely waits for nothing, but has waiters."""
        ends = [
            node
            for node, known in self.nodes.items()
            if self._has_tasks(node)
            and not known.box.cycle
            and all(link.strength == _POSSIBLE for _, link in self._after[node])
        ]
        return sorted(ends, key=self.order)

    def way(self, start: int, end: int, inside: set[int]) -> list[tuple[int, Link]]:
        """Return the way between two tasks of a cycle: each node but the end, and its link.

        Of several ways, one of strong edges goes before a shorter one, as in the cycle itself.
        """
        queue = [(0, 0, start, list[tuple[int, Link]]())]
        done, count = set[int](), 0
        while queue:
            length, _, node, path = heapq.heappop(queue)
            if path and node == end:
                return path
            if path and (node in done or node not in inside or self.is_task(node)):
                continue
            done.add(node)
            for after, link in self._after[node]:
                count += 1
                step = [*path, (node, link)]
                heapq.heappush(queue, (length + _LENGTHS[link.strength], count, after, step))
        return []


def _node(
    row: dict[str, Any],
    tasks: dict[str, dict[str, Any]],
    oldest: dict[tuple[str, str], float],
    held: set[int],
) -> _Node:
    kind, name, address = _text(row["kind"]), _text(row["name"]), row["object"]
    where = f"0x{address:x}" if isinstance(address, int) and address else ""
    tip = " ".join(filter(None, (_text(row["object_type"]), where)))
    cycle = max(_number(row["cycle"]), 0)
    number, behind = _number(row["node"]), max(_number(row["behind"]), 0)
    if kind != _TASK:
        name += ", holder unknown" if kind in _LOCKS and number not in held else ""
        box = Box(number, kind, name, Shape.OBJECT, tip, cycle)
        return _Node(box, kind, behind, oldest.get((kind, str(address)), -1.0))
    task = tasks.get(str(address), {})
    state, function = _text(task.get("state")), _text(task.get("function"))
    asleep = _seconds(task.get("asleep")) if state in ("D", "S") else -1.0
    parts = [state, f"for {human_seconds(asleep)}" if asleep >= 0 else ""]
    parts += [f"in {function}" if function else ""]
    note = " ".join(filter(None, parts))
    return _Node(Box(number, name, note, Shape.TASK, tip, cycle), kind, behind, asleep)


def _link(edge: dict[str, Any]) -> Link:
    kind, mode = _text(edge["kind"]), _text(edge["mode"])
    evidence, strength = _text(edge["evidence"]), _text(edge["strength"])
    function, place = _text(edge["function"]), _text(edge["place"])
    tip = ", ".join(filter(None, (f"in {function}" if function else "", place)))
    words = f"{kind} ({mode})" if mode else kind
    return Link(words, strength if strength in _STRENGTHS else _POSSIBLE, evidence, tip)


def _joined(first: Link, second: Link) -> Link:
    """Return the link through a node that is passed: it is as strong as its weaker part."""
    return replace(first, strength=_weakest((first, second)))


def _weakest(links: Iterable[Link]) -> str:
    return min((link.strength for link in links), key=_STRENGTHS.index)


_Ring = list[tuple[int, Link]]
"""The nodes of a cycle in the order of waiting, with the link from each to the next one."""


def _rings(graph: _Graph, rows: list[dict[str, Any]]) -> list[_Ring]:
    """Return the cycles in a table, whose rows are the tasks in the order of waiting."""
    tasks: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        tasks[_number(row["cycle"])].append(graph.tasks.get(str(row["address"]), -1))
    inside: defaultdict[int, set[int]] = defaultdict(set)
    for node, known in graph.nodes.items():
        inside[known.box.cycle].add(node)
    rings = []
    for number, members in tasks.items():
        pairs = zip(members, members[1:] + members[:1], strict=True)
        ways = [graph.way(start, end, inside[number]) for start, end in pairs]
        if all(ways):
            rings.append([step for way in ways for step in way])
    return rings


class _Selection:
    """What is drawn, in the making."""

    def __init__(self, graph: _Graph, rings: list[_Ring]) -> None:
        self._graph, self._rings = graph, rings
        self._left = _MAX_BOXES
        self._drawn: set[int] = set()
        self._counted: set[int] = set()
        """Nodes that are counted in boxes of several."""
        self._edges = set[tuple[int, int]]()
        """Edges of rings."""
        self._groups = self._omitted = 0

    def picture(self) -> Picture:
        """Return the picture."""
        steps: list[tuple[Step, ...]] = []
        for ring in self._rings:
            if sum(map(len, steps)) + min(len(ring), _MAX_STEPS) > _MAX_RING_BOXES:
                break
            steps.append(self._steps(ring))
        self._left -= sum(map(len, steps))
        panels = [
            self._around(ring, drawn) for ring, drawn in zip(self._rings, steps, strict=False)
        ]
        alone = 0
        for root in self._graph.roots():
            if self._left < 2 or not self._is_new(root):
                continue
            waiters = [node for node, _ in self._graph.waiters(root)]
            if not any(map(self._is_new, waiters)) and not (
                self._graph.is_task(root) and self._drawn & {*waiters}
            ):
                continue
            alone += self._nodes[root].behind < 2
            if alone <= _MAX_ALONE:
                panels.append(self._from(root))
        return Picture(tuple(panels), self._note(len(self._rings) - len(steps)))

    def _is_new(self, node: int) -> bool:
        return node not in self._drawn and node not in self._counted

    @property
    def _nodes(self) -> dict[int, _Node]:
        return self._graph.nodes

    def _steps(self, ring: _Ring) -> tuple[Step, ...]:
        """Return the boxes of a ring; of a long one, the last ones are counted in one."""
        inside = [node for node, _ in ring]
        self._edges |= set(zip(inside, inside[1:] + inside[:1], strict=True))
        shown = [(node, link) for node, link in ring if not self._graph.is_passed(node)]
        self._edges |= {
            (before, after)
            for (before, _), (after, _) in zip(shown, shown[1:] + shown[:1], strict=True)
        }
        rest = shown[_MAX_STEPS - 1 :] if len(shown) > _MAX_STEPS else []
        kept = shown[: len(shown) - len(rest)]
        self._drawn |= {node for node, _ in kept}
        self._counted |= {node for node, _ in rest}
        steps = [Step(self._nodes[node].box, link) for node, link in kept]
        if rest:
            count = sum(self._graph.is_task(node) for node, _ in rest)
            steps.append(Step(self._several(count, "of this cycle"), rest[-1][1]))
        return tuple(steps)

    def _several(self, count: int, note: str) -> Box:
        self._groups += 1
        return Box(-self._groups, counted(count, "more task"), note, Shape.MORE)

    def _around(self, ring: _Ring, steps: tuple[Step, ...]) -> Panel:
        """Return the panel of a cycle, and of those that are stuck behind it."""
        tasks = [node for node, _ in ring if self._graph.is_task(node)]
        stuck = self._graph.stuck(node for node, _ in ring)
        strength = _weakest(link for _, link in ring)
        what = "possible deadlock" if strength == _POSSIBLE else f"deadlock ({strength})"
        who = f"{len(tasks):,} tasks wait for each other"
        title = f"Cycle {self._nodes[tasks[0]].box.cycle}, {what}: "
        title += who if len(tasks) > 1 else "a task waits for itself"
        title += f"; {stuck:,} more stuck behind" if stuck > 0 else ""
        starts = [step.box.node for step in steps if step.box.node >= 0]
        return Panel(title, steps, self._rows(starts))

    def _from(self, root: int) -> Panel:
        """Return the panel of a root, and of those that wait for it."""
        known = self._nodes[root]
        self._drawn.add(root)
        self._left -= 1
        called = known.box.name
        called += f" {known.box.note}" if known.box.shape is Shape.OBJECT else ""
        title = f"{counted(known.behind, 'task', 'wait')} for {called}"
        return Panel(title, (), self._rows([root]))

    def _rows(self, starts: list[int]) -> tuple[Row, ...]:
        """Return trees, selected in breadth: those close to their starts go first."""
        below: dict[int, list[Row]] = {}
        hidden: dict[int, list[tuple[int, Link]]] = {}
        room = min(self._left, _MAX_TREE)
        is_ring = len(starts) > 1 or self._nodes[starts[0]].box.cycle > 0
        queue = deque((start, 0) for start in starts)
        while queue:
            node, depth = queue.popleft()
            waiters = [
                (each, link)
                for each, link in self._graph.waiters(node)
                if (each, node) not in self._edges and each not in self._counted
            ]
            new = [(each, link) for each, link in waiters if each not in self._drawn]
            old = [(each, link) for each, link in waiters if each in self._drawn]
            shown, hidden[node] = self._selected(new, room if depth < _MAX_DEPTH else 0)
            again = old[: min(_MAX_AGAIN, max(room - len(shown), 0))]
            leads = [] if is_ring or depth else self._graph.leads(node)[:_MAX_LEADS]
            self._omitted += len(old) - len(again)
            room -= len(shown) + len(again) + len(leads)
            self._left -= len(shown) + len(again) + len(leads)
            self._drawn |= {each for each, _ in shown}
            queue += [(each, depth + 1) for each, _ in shown]
            below[node] = [
                *(Row(self._nodes[each].box, 1, link, True, is_lead=True) for each, link in leads),
                *(Row(self._nodes[each].box, depth + 1, link) for each, link in shown),
                *(Row(self._nodes[each].box, depth + 1, link, True) for each, link in again),
            ]
        rows: list[Row] = []
        for start in starts:
            drawn = self._tree(Row(self._nodes[start].box, 0, None, is_ring), below, hidden)
            rows += drawn if len(drawn) > 1 or not is_ring else []
        return tuple(rows)

    def _selected(
        self, new: list[tuple[int, Link]], room: int
    ) -> tuple[list[tuple[int, Link]], list[tuple[int, Link]]]:
        """Return which waiters have boxes, and which are counted in one."""
        # An I/O that one task waits for says as much as a task that none waits for.
        alone = {
            node for node, _ in new if self._nodes[node].behind <= (not self._graph.is_task(node))
        }
        busy = [pair for pair in new if pair[0] not in alone]
        leaves = [pair for pair in new if pair[0] in alone]
        if len(busy) > _MAX_BRANCHES + 1:
            del busy[_MAX_BRANCHES:]
        if len(leaves) > _MAX_LEAVES + 1:
            del leaves[_MAX_LEAVES:]
        shown = [*busy, *leaves][: max(room, 0)]
        chosen = {node for node, _ in shown}
        return shown, [pair for pair in new if pair[0] not in chosen]

    def _tree(
        self,
        top: Row,
        below: dict[int, list[Row]],
        hidden: dict[int, list[tuple[int, Link]]],
    ) -> list[Row]:
        """Return a tree from the top down, with boxes for those that have none."""
        rows, stack = [], [top]
        while stack:
            row = stack.pop()
            rows.append(row)
            node = row.box.node
            if node < 0 or (row.is_again and row.depth):
                continue
            stack += self._counts(row.depth + 1, hidden.get(node, []))
            stack += reversed(below.get(node, []))
        return rows

    def _counts(self, depth: int, hidden: list[tuple[int, Link]]) -> list[Row]:
        """Return the box of the tasks that have none, as far as none has counted them."""
        members, todo = set[int](), [node for node, _ in hidden]
        while todo:
            node = todo.pop()
            if not self._is_new(node):
                continue
            self._counted.add(node)
            members.add(node)
            todo += [each for each, _ in self._graph.waiters(node)]
        tasks = [node for node in members if self._graph.is_task(node)]
        if not tasks:
            return []
        oldest = max(self._nodes[node].asleep for node in tasks)
        note = f"the first of them for {human_seconds(oldest)}" if oldest >= 0 else ""
        is_direct = all(self._graph.is_task(node) for node, _ in hidden)
        strength = _weakest(link for _, link in hidden)
        link = Link("wait for" if is_direct else "wait behind", strength)
        return [Row(self._several(len(tasks), note), depth, link)]

    def _note(self, cycles: int) -> str:
        """Return what is left out."""
        rest = sum(self._graph.is_waiting(node) and self._is_new(node) for node in self._nodes)
        parts = [f"cycles: {cycles:,}"] if cycles else []
        parts += [f"tasks that wait: {rest:,}"] if rest else []
        parts += [f"edges between boxes: {self._omitted:,}"] if self._omitted else []
        return f"Not drawn: {'; '.join(parts)}. The tables have all." if parts else ""
