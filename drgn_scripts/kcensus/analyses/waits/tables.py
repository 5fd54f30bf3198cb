# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of tasks, of the objects of their waits, and of the graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.told import Told
from kcensus.analyses.waits.picture import picture
from kcensus.analyses.waits.selection import Selection, selection
from kcensus.human import listed
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.symbols import described
from kcensus.kernel.waiting.graph import PROCESS, TASK, WAITS, NodeKind
from kcensus.results.graphs import PICTURE, Picture
from kcensus.results.tables import (
    ADDRESS,
    ALWAYS,
    COUNT,
    DATA,
    NONE,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    Table,
    TableSpec,
    address,
    make_tables,
)

_MAX_HOLDERS = 4
"""Most holders of a lock in a cell."""


@dataclass(frozen=True)
class _Shown:
    """The graph, and what of it is shown."""

    figures: Figures
    chosen: Selection
    named: set[int]
    """Nodes that findings name, or whose stacks say more."""

    @property
    def picture(self) -> Picture:
        return picture(self.figures, self.chosen)


@dataclass(frozen=True)
class _Node:
    """A row about a node."""

    figures: Figures
    node: int

    @property
    def kind(self) -> NodeKind:
        return self.figures.graph.kind[self.node]

    @property
    def is_task(self) -> bool:
        return bool(self.figures.graph.is_task[self.node])

    @property
    def name(self) -> str:
        names = self.figures.names
        return names.of(self.node) if self.is_task else names.object(self.node)

    @property
    def address(self) -> int:
        return int(self.figures.graph.address[self.node])

    @property
    def object_type(self) -> str:
        """C type of an object; empty if unknown."""
        return self.figures.waiting.types.get((self.kind, self.address), "")

    @property
    def asleep(self) -> float:
        age = int(self.figures.ages[self.node])
        return age / 1e9 if age >= 0 else math.nan

    @property
    def edges(self) -> Sequence[int]:
        """Edges to the holders of an object."""
        return self.figures.graph.following[self.node]

    @property
    def holders(self) -> str:
        """The holders as text; threads of a process are left out."""
        graph, names = self.figures.graph, self.figures.names
        found = [names.of(int(graph.target[edge])).removeprefix("process ") for edge in self.edges]
        return listed(found, _MAX_HOLDERS)

    @property
    def mode(self) -> str:
        mode = self.figures.graph.mode
        return next((mode[edge] for edge in self.edges if mode[edge]), "")

    @property
    def strength(self) -> str:
        """The least of the edges; empty without any."""
        strengths = [int(self.figures.graph.strength[edge]) for edge in self.edges]
        return _name(min(strengths)) if strengths else ""

    @property
    def evidence(self) -> str:
        return "; ".join(dict.fromkeys(self.figures.graph.evidence[edge] for edge in self.edges))


@dataclass(frozen=True)
class _Wait(_Node):
    """A task, and the edges to the object of its wait, or on to the next task of a cycle."""

    edges: Sequence[int] = ()
    cycle: int = 0

    @property
    def mode(self) -> str:
        return self.figures.graph.mode[self.edges[0]] if self.edges else ""

    @property
    def target(self) -> _Node | None:
        if not self.edges:
            return None
        return _Node(self.figures, int(self.figures.graph.target[self.edges[0]]))

    @property
    def next(self) -> int:
        """The node at the end of the edges."""
        return int(self.figures.graph.target[self.edges[-1]])


@dataclass(frozen=True)
class _Frame(_Node):
    """A frame of the stack of a task."""

    frame: int
    place: int
    function: str


_PID = Column(NONE, "PID", ALWAYS, "Thread ID; 0 for objects.",
    lambda row: row.figures.tasks.pid(row.node), unknown=(0,))  # fmt: skip
_COMM = Column(TEXT, "task", ALWAYS, "Name of the thread.",
    lambda row: row.figures.tasks.comm(row.node))  # fmt: skip
_STATE = Column(TEXT, "state", ALWAYS, "D, S, runnable, running or other.",
    lambda row: row.figures.tasks.state(row.node).value)  # fmt: skip
_ASLEEP = Column(SECONDS, "asleep", ALWAYS, "Time since it began to wait; empty if unknown.")
_ENTRY = Column(TEXT, "entry", WIDE, "System call, or function of the kernel thread.",
    lambda row: row.figures.tasks.entry(row.node))  # fmt: skip
_FUNCTION = Column(TEXT, "sleeps in", WIDE, "Function in which the task sleeps.",
    lambda row: row.figures.tasks.place(row.node))  # fmt: skip
_WAITS_FOR = Column(TEXT, "waits for", ALWAYS, "Awaited object.",
    lambda row: row.figures.names.of(row.target.node) if row.target else "")  # fmt: skip
_CYCLE = Column(NONE, "cycle", ALWAYS, "Number of the cycle; 0 for none.",
    lambda row: row.figures.cycle_of.get(row.node, 0), unknown=(0,))  # fmt: skip
_BEHIND = Column(COUNT, "tasks behind", ALWAYS, "Direct and indirect waiters.",
    lambda row: int(row.figures.behind.tasks[row.node]))  # fmt: skip
_STRENGTH = Column(TEXT, "link", ALWAYS,
    "proven: by a pointer; derived: from functions on stacks, or open files; "
    "possible: a hint.")  # fmt: skip
_EVIDENCE = Column(TEXT, "known by", WIDE, "Member or code that proves the edge.")
_MODE = Column(TEXT, "mode", WIDE, "read or write, if the lock has both.")
_KIND = Column(TEXT, "kind", ALWAYS, "Such as task, mutex, rwsem, pipe or page.", "kind.value")
_TYPE = Column(TEXT, "type", DATA, "C type; empty if unknown.", "object_type")
_OBJECT_TYPE = replace(_TYPE, get=lambda row: row.target.object_type if row.target else "")
_TASK = address("struct task_struct", "address", "Address of the task.")


def _name(strength: int) -> str:
    return Strength(strength).name.lower()


def _cycles(shown: _Shown) -> Iterator[_Wait]:
    is_task = shown.figures.graph.is_task
    for number, cycle in enumerate(shown.figures.cycles, 1):
        tasks = [at for at, node in enumerate(cycle.nodes) if is_task[node]]
        for at, end in zip(tasks, [*tasks[1:], tasks[0] + len(cycle.nodes)], strict=True):
            edges = [cycle.edges[step % len(cycle.nodes)] for step in range(at, end)]
            yield _Wait(shown.figures, cycle.nodes[at], edges, number)


CYCLES = TableSpec("cycles", "Cycles", {
    "cycle": Column(NONE, "", ALWAYS, "Number of the cycle."),
    "task": _COMM,
    "pid": _PID,
    "entry": _ENTRY,
    "asleep": _ASLEEP,
    "function": _FUNCTION,
    "waits_for": _WAITS_FOR,
    "mode": _MODE,
    "held_by": Column(TEXT, "", ALWAYS, "The holder: the next task.",
        lambda row: row.figures.names.of(row.next)),
    "strength": _STRENGTH,
    "evidence": replace(_EVIDENCE, help="Members, or code, that prove wait and holder."),
    "object": Column(ADDRESS, "", DATA, "Address of the object.",
        lambda row: 0 if row.target.is_task else row.target.address),
    "object_type": _OBJECT_TYPE,
    "address": _TASK,
}, "A task of a cycle; it waits for the task in the next row, the last task for the first.",
    rows=lambda shown: [*_cycles(shown)])  # fmt: skip

TREE = TableSpec("tree", "Who waits for whom", {
    "line": Column(TEXT, "task or object, waiters below", ALWAYS, "Task or object, indented.",
        lambda line: line.guide + line.text, is_drawn=True),
    "behind": replace(_BEHIND, get="behind"),
    "depth": Column(NONE, "", DATA, "Level of the line."),
    "node": Column(NONE, "", DATA, "Row in the table nodes; -1 for none."),
}, "A task or an object, with its waiters below.", rows="chosen.lines")  # fmt: skip


def _tasks(shown: _Shown) -> list[_Wait]:
    figures, graph = shown.figures, shown.figures.graph

    def waits(node: int) -> list[int]:
        return [edge for edge in graph.following[node] if graph.edge[edge] is WAITS][:1]

    return [_Wait(figures, node, waits(node)) for node in figures.task_nodes]


TASKS = TableSpec("tasks", "Waiting tasks", {
    "pid": _PID,
    "comm": _COMM,
    "state": _STATE,
    "asleep": _ASLEEP,
    "entry": _ENTRY,
    "function": replace(_FUNCTION, show=ALWAYS),
    "waits_for": replace(_WAITS_FOR, help="Object; empty if unknown."),
    "held_by": Column(TEXT, "", ALWAYS, "Holder of the object.",
        lambda row: row.target.holders if row.target else ""),
    "behind": _BEHIND,
    "cycle": _CYCLE,
    "mode": _MODE,
    "evidence": _EVIDENCE,
    "reported": Column(SECONDS, "hung, by the log", WIDE, "0 if it has run since.",
        lambda row: float(row.figures.hung.get(row.figures.tasks.pid(row.node), 0)),
        unknown=(0,)),
    "object": Column(ADDRESS, "", DATA, "Address; 0 if unknown.",
        lambda row: row.target.address if row.target else 0),
    "object_type": _OBJECT_TYPE,
    "address": _TASK,
}, "A task that is in state D, waits for a lock, or has waiters.", ("asleep", "pid"),
    rows=_tasks)  # fmt: skip


def _objects(shown: _Shown) -> list[_Node]:
    graph = shown.figures.graph
    return [
        _Node(shown.figures, node)
        for node in range(len(graph))
        if graph.kind[node] not in (TASK, PROCESS) and graph.preceding[node]
    ]


def _waiters(row: _Node) -> int:
    graph = row.figures.graph
    return sum(graph.edge[edge] is WAITS for edge in graph.preceding[row.node])


def _oldest(row: _Node) -> float:
    oldest = int(row.figures.behind.oldest[row.node])
    return _Node(row.figures, oldest).asleep if oldest >= 0 else math.nan


OBJECTS = TableSpec("objects", "Objects that tasks wait for", {
    "kind": _KIND,
    "name": Column(TEXT, "object", ALWAYS, "Variable, or address."),
    "held_by": Column(TEXT, "", ALWAYS, "Holders; empty if unknown.", "holders"),
    "mode": _MODE,
    "strength": _STRENGTH,
    "waiters": Column(COUNT, "", ALWAYS, "Direct waiters.", _waiters),
    "behind": _BEHIND,
    "oldest": Column(SECONDS, "oldest wait", ALWAYS, "Longest wait of the tasks behind, if known.",
        _oldest),
    "cycle": _CYCLE,
    "readers": Column(COUNT, "", WIDE, "Readers by the lock's count.",
        lambda row: row.figures.waiting.readers.get(row.address, 0), unknown=(0,)),
    "evidence": _EVIDENCE,
    "object_type": _TYPE,
    "object": Column(ADDRESS, "address", DATA, "Address of the object.", "address"),
}, "A lock or another object that tasks wait for.", ("behind", "kind", "name"),
    rows=_objects)  # fmt: skip

NODES = TableSpec("nodes", "Nodes of the graph", {
    "node": Column(NONE, "", ALWAYS, "Number of the node, from 0 on."),
    "kind": _KIND,
    "name": Column(TEXT, "", ALWAYS, "Name and PID, variable, or address."),
    "pid": _PID,
    "behind": _BEHIND,
    "cycle": _CYCLE,
    "object_type": Column(TEXT, "type", DATA, "C type; empty if unknown.",
        lambda row: "struct task_struct" if row.is_task else row.object_type),
    "object": Column(ADDRESS, "address", DATA, "Address of the object.", "address"),
}, "A node of the graph.", detail=True,
    rows=lambda shown: [
        _Node(shown.figures, node) for node in range(len(shown.figures.graph))])  # fmt: skip

EDGES = TableSpec("edges", "Edges of the graph", {
    "source": Column(NONE, "from", ALWAYS, "Number of the node that waits."),
    "target": Column(NONE, "to", ALWAYS, "Number of the node it waits for."),
    "kind": Column(TEXT, "", ALWAYS, "Such as waits for, held by or run by.",
        lambda graph: [edge.value for edge in graph.edge]),
    "mode": _MODE,
    "strength": replace(_STRENGTH, get=lambda graph: list(map(_name, graph.strength.tolist()))),
    "evidence": _EVIDENCE,
    "function": Column(TEXT, "", WIDE, "On the stack; empty for none.", "frame"),
    "place": Column(TEXT, "", DATA, "Address of the member; empty if none.",
        lambda graph: [f"0x{place:x}" if place else "" for place in graph.place.tolist()]),
}, "An edge of the graph, from a waiter to its object, or from an object to a holder.", detail=True,
    rows="figures.graph")  # fmt: skip


def _stacks(shown: _Shown) -> list[_Frame]:
    figures = shown.figures
    tasks = [node for node in sorted(shown.named) if figures.graph.is_task[node]]
    return [
        _Frame(figures, node, at, place, described(name, module))
        for node in dict.fromkeys((*figures.stacks_shown, *tasks))
        for at, (place, name, module) in enumerate(figures.tasks.frames(node))
    ]


STACKS = TableSpec("stacks", "Stacks of tasks in cycles, with waiters, or named by findings", {
    "task": _COMM,
    "pid": _PID,
    "state": replace(_STATE, show=WIDE),
    "cycle": _CYCLE,
    "frame": Column(NONE, "", ALWAYS, "0 is the innermost function."),
    "function": Column(TEXT, "", ALWAYS, "With its module; not inlined."),
    "place": Column(TEXT, "address", WIDE, "Return address.", lambda row: f"0x{row.place:x}"),
    "address": replace(_TASK, label="task_struct"),
}, "A frame of a kernel stack; a task on a CPU needs CPU registers, which some dumps have and no "
    "capsule.", detail=True, rows=_stacks)  # fmt: skip


@dataclass(frozen=True)
class _Function:
    """A function in which tasks sleep without a known object."""

    function: str
    state: str
    tasks: int
    oldest: float
    example: str


def _functions(shown: _Shown) -> list[_Function]:
    figures, graph = shown.figures, shown.figures.graph
    groups: dict[tuple[str, str], list[int]] = {}
    for node in figures.task_nodes:
        if figures.waiting.row(node) >= 0 and not graph.following[node]:
            key = figures.tasks.place(node), figures.tasks.state(node).value
            groups.setdefault(key, []).append(node)
    return [
        _Function(function, state, len(nodes), oldest.asleep, oldest.name)
        for (function, state), nodes in groups.items()
        for oldest in [_Node(figures, max(nodes, key=lambda node: int(figures.ages[node])))]
    ]


FUNCTIONS = TableSpec("functions", "Functions of tasks that wait for an unknown object", {
    "function": Column(TEXT, "sleeps in", ALWAYS, "Function in which the tasks sleep."),
    "state": Column(TEXT, "", ALWAYS, "D, S or other."),
    "tasks": Column(COUNT, "", ALWAYS, "Tasks."),
    "oldest": Column(SECONDS, "longest", ALWAYS, "Longest sleep of them, if known."),
    "example": Column(TEXT, "task", ALWAYS, "The task with the longest sleep."),
}, "A function in which tasks sleep whose object is unknown.", ("tasks", "oldest", "function"),
    rows=_functions)  # fmt: skip

TABLES = (CYCLES, TREE, TASKS, OBJECTS, FUNCTIONS, STACKS, NODES, EDGES, PICTURE)


def tables(figures: Figures, told: Sequence[Told] = ()) -> dict[str, Table]:
    """Make all tables.

    :param told: the findings with nodes to show
    """
    named = {n for each in told for n in (*each.nodes, *each.further, *each.asleep)}
    return make_tables(TABLES, _Shown(figures, selection(figures, told), named))
