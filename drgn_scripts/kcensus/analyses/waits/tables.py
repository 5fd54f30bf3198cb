# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of tasks, of the objects of their waits, and of the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.picture import picture
from kcensus.analyses.waits.selection import selection
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.symbols import described
from kcensus.kernel.waiting.graph import PROCESS, TASK, WAITS
from kcensus.results import Finding
from kcensus.results.graphs import PICTURE, picture_table
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
)

_MAX_HOLDERS = 4
"""Most holders of a lock in a cell."""

_PID = Column(NONE, "PID", ALWAYS, "Thread ID; 0 for objects.", unknown=(0,))
_CYCLE = Column(NONE, "cycle", ALWAYS, "Number of the cycle; 0 for none.", unknown=(0,))
_BEHIND = Column(COUNT, "tasks behind", ALWAYS, "Direct and indirect waiters.")
_STRENGTH = Column(
    TEXT,
    "link",
    ALWAYS,
    "proven: by a pointer; derived: from functions on stacks, or open files; possible: a hint.",
)
_EVIDENCE = Column(TEXT, "known by", help="Member or code that proves the edge.")
_MODE = Column(TEXT, "mode", help="read or write, if the lock has both.")
_KIND = Column(TEXT, "kind", ALWAYS, "Such as task, mutex, rwsem, pipe or page.")

CYCLES = TableSpec(
    "cycles",
    "Cycles",
    {
        "cycle": Column(NONE, "cycle", ALWAYS, "Number of the cycle."),
        "task": Column(TEXT, "task", ALWAYS, "Name of the thread."),
        "pid": _PID,
        "entry": Column(TEXT, "entry", WIDE, "System call, or function of the kernel thread."),
        "asleep": Column(SECONDS, "asleep", ALWAYS, "Time asleep; empty if unknown."),
        "function": Column(TEXT, "sleeps in", WIDE, "Function in which the task sleeps."),
        "waits_for": Column(TEXT, "waits for", ALWAYS, "Awaited object."),
        "mode": _MODE,
        "held_by": Column(TEXT, "held by", ALWAYS, "The holder: the next task."),
        "strength": _STRENGTH,
        "evidence": replace(_EVIDENCE, help="Members, or code, that prove wait and holder."),
        "object": Column(ADDRESS, "object", DATA, "Address of the object."),
        "object_type": Column(TEXT, "type", DATA, "C type; empty if unknown."),
        "address": address("struct task_struct", "address", "Address of the task."),
    },
    "A task of a cycle; it waits for the task in the next row, the last task for the first.",
)

TREE = TableSpec(
    "tree",
    "Who waits for whom",
    {
        "line": Column(
            TEXT,
            "task or object, waiters below",
            ALWAYS,
            "Task or object, indented.",
            get=lambda line: line.guide + line.text,
            is_drawn=True,
        ),
        "behind": _BEHIND,
        "depth": Column(NONE, "depth", DATA, "Level of the line."),
        "node": Column(NONE, "node", DATA, "Row in the table nodes; -1 for none."),
    },
    "A task or an object, with its waiters below.",
)

TASKS = TableSpec(
    "tasks",
    "Waiting tasks",
    {
        "pid": _PID,
        "comm": Column(TEXT, "task", ALWAYS, "Name of the thread."),
        "state": Column(TEXT, "state", ALWAYS, "D, S, runnable, running or other."),
        "asleep": Column(SECONDS, "asleep", ALWAYS, "Time asleep; empty if unknown."),
        "entry": Column(TEXT, "entry", WIDE, "System call, or function of the kernel thread."),
        "function": Column(TEXT, "sleeps in", ALWAYS, "Function in which the task sleeps."),
        "waits_for": Column(TEXT, "waits for", ALWAYS, "Object; empty if unknown."),
        "held_by": Column(TEXT, "held by", ALWAYS, "Holder of the object."),
        "behind": _BEHIND,
        "cycle": _CYCLE,
        "mode": _MODE,
        "evidence": _EVIDENCE,
        "reported": Column(
            SECONDS, "hung, by the log", help="Time in the message; 0 without one.", unknown=(0,)
        ),
        "object": Column(ADDRESS, "object", DATA, "Address; 0 if unknown."),
        "object_type": Column(TEXT, "type", DATA, "C type; empty if unknown."),
        "address": address("struct task_struct", "address", "Address of the task."),
    },
    "A task that is in state D, waits for a lock, or has waiters.",
    ("asleep", "pid"),
)

OBJECTS = TableSpec(
    "objects",
    "Objects that tasks wait for",
    {
        "kind": _KIND,
        "name": Column(TEXT, "object", ALWAYS, "Variable, or address."),
        "held_by": Column(TEXT, "held by", ALWAYS, "Holders; empty if unknown."),
        "mode": _MODE,
        "strength": _STRENGTH,
        "waiters": Column(COUNT, "waiters", ALWAYS, "Direct waiters."),
        "behind": _BEHIND,
        "oldest": Column(
            SECONDS, "oldest wait", ALWAYS, "Longest wait of the tasks behind, if known."
        ),
        "cycle": _CYCLE,
        "readers": Column(COUNT, "readers", help="Readers by the lock's count.", unknown=(0,)),
        "evidence": _EVIDENCE,
        "object_type": Column(TEXT, "type", DATA, "C type; empty if unknown."),
        "object": Column(ADDRESS, "address", DATA, "Address of the object."),
    },
    "A lock or another object that tasks wait for.",
    ("behind", "kind", "name"),
)

NODES = TableSpec(
    "nodes",
    "Nodes of the graph",
    {
        "node": Column(NONE, "node", ALWAYS, "Number of the node, from 0 on."),
        "kind": _KIND,
        "name": Column(TEXT, "name", ALWAYS, "Name and PID, variable, or address."),
        "pid": _PID,
        "behind": _BEHIND,
        "cycle": _CYCLE,
        "object_type": Column(TEXT, "type", DATA, "C type; empty if unknown."),
        "object": Column(ADDRESS, "address", DATA, "Address of the object."),
    },
    "A node of the graph.",
    detail=True,
)

EDGES = TableSpec(
    "edges",
    "Edges of the graph",
    {
        "source": Column(NONE, "from", ALWAYS, "Number of the node that waits."),
        "target": Column(NONE, "to", ALWAYS, "Number of the node it waits for."),
        "kind": Column(
            TEXT,
            "kind",
            ALWAYS,
            "Such as waits for, held by or run by.",
            get=lambda graph: [edge.value for edge in graph.edge],
        ),
        "mode": _MODE,
        "strength": replace(_STRENGTH, get=lambda graph: list(map(_name, graph.strength.tolist()))),
        "evidence": _EVIDENCE,
        "function": Column(TEXT, "function", help="On the stack; empty for none.", get="frame"),
        "place": Column(
            TEXT,
            "place",
            DATA,
            "Address of the member; empty if none.",
            get=lambda graph: [f"0x{place:x}" if place else "" for place in graph.place.tolist()],
        ),
    },
    "An edge of the graph, from a waiter to its object, or from an object to a holder.",
    detail=True,
)

STACKS = TableSpec(
    "stacks",
    "Stacks of tasks in cycles, with waiters, or named by findings",
    {
        "task": Column(TEXT, "task", ALWAYS, "Name of the thread."),
        "pid": _PID,
        "state": Column(TEXT, "state", WIDE, "D, S, runnable, running or other."),
        "cycle": _CYCLE,
        "frame": Column(NONE, "frame", ALWAYS, "0 is the innermost function."),
        "function": Column(TEXT, "function", ALWAYS, "With its module; not inlined."),
        "place": Column(TEXT, "address", WIDE, "Return address."),
        "address": address("struct task_struct", help_="Address of the task."),
    },
    "A frame of a kernel stack; a task on a CPU needs CPU registers, which some dumps have and no "
    "capsule.",
    detail=True,
)

TABLES = (CYCLES, TREE, TASKS, OBJECTS, STACKS, NODES, EDGES, PICTURE)


def tables(figures: Figures, findings: Sequence[Finding] = ()) -> dict[str, Table]:
    """Make all tables.

    :param findings: the findings with tasks to show
    """
    chosen = selection(figures, findings)
    return {
        "cycles": CYCLES.of(_cycles(figures)),
        "tree": TREE.of(chosen.lines),
        "tasks": TASKS.of(_tasks(figures)),
        "objects": OBJECTS.of(_objects(figures)),
        "stacks": STACKS.of(_stacks(figures, chosen.named)),
        "nodes": NODES.of([_node(figures, node) for node in range(len(figures.graph))]),
        "edges": EDGES.of(figures.graph),
        "picture": picture_table(picture(figures, chosen)),
    }


def _type(figures: Figures, node: int) -> str:
    key = figures.graph.kind[node], int(figures.graph.address[node])
    return figures.waiting.types.get(key, "")


def _node(figures: Figures, node: int) -> dict[str, Any]:
    """Return the common cells of rows about a node."""
    graph, is_task = figures.graph, bool(figures.graph.is_task[node])
    place = int(graph.address[node])
    return {
        "node": node,
        "kind": graph.kind[node].value,
        "name": figures.names.of(node) if is_task else figures.names.object(node),
        "pid": figures.tasks.pid(node),
        "behind": int(figures.behind.tasks[node]),
        "cycle": figures.cycle_of.get(node, 0),
        "object_type": "struct task_struct" if is_task else _type(figures, node),
        "object": place,
        "address": place,
    }


def _task(figures: Figures, node: int) -> dict[str, Any]:
    """Return the common cells of rows about a task."""
    return _node(figures, node) | {
        "comm": figures.tasks.comm(node),
        "task": figures.tasks.comm(node),
        "state": figures.tasks.state(node).value,
        "asleep": _seconds(figures, node),
        "entry": figures.tasks.entry(node),
        "function": figures.tasks.place(node),
    }


def _cycles(figures: Figures) -> list[dict[str, Any]]:
    graph, found = figures.graph, []
    for number, cycle in enumerate(figures.cycles, 1):
        tasks = [at for at, node in enumerate(cycle.nodes) if graph.is_task[node]]
        for place, at in enumerate(tasks):
            # From this task on to the next one of the cycle.
            end = tasks[(place + 1) % len(tasks)]
            steps = [at]
            while (steps[-1] + 1) % len(cycle.nodes) != end:
                steps.append((steps[-1] + 1) % len(cycle.nodes))
            edges = [cycle.edges[step] for step in steps]
            node, after = cycle.nodes[at], cycle.nodes[(at + 1) % len(cycle.nodes)]
            is_direct = graph.is_task[after]
            found.append(
                _task(figures, node)
                | {
                    "cycle": number,
                    "waits_for": figures.names.of(after),
                    "mode": graph.mode[edges[0]],
                    "held_by": figures.names.of(cycle.nodes[end]),
                    "strength": _name(min(int(graph.strength[edge]) for edge in edges)),
                    "evidence": "; ".join(dict.fromkeys(graph.evidence[edge] for edge in edges)),
                    "object": 0 if is_direct else int(graph.address[after]),
                    "object_type": _type(figures, after),
                }
            )
    return found


def _seconds(figures: Figures, node: int) -> float:
    age = int(figures.ages[node])
    return age / 1e9 if age >= 0 else math.nan


def _name(strength: int) -> str:
    return Strength(strength).name.lower()


def _tasks(figures: Figures) -> list[dict[str, Any]]:
    graph, hung = figures.graph, figures.log.hung
    found = []
    for node in figures.task_nodes:
        waits = [e for e in graph.following[node] if graph.edge[e] is WAITS]
        target = int(graph.target[waits[0]]) if waits else -1
        found.append(
            _task(figures, node)
            | {
                "waits_for": figures.names.of(target) if waits else "",
                "held_by": _holders(figures, target) if waits else "",
                "mode": graph.mode[waits[0]] if waits else "",
                "evidence": graph.evidence[waits[0]] if waits else "",
                "reported": float(hung.get(figures.tasks.pid(node), 0)),
                "object": int(graph.address[target]) if waits else 0,
                "object_type": _type(figures, target) if waits else "",
            }
        )
    return found


def _holders(figures: Figures, node: int) -> str:
    """Return the holders of an object as text; threads of a process are left out."""
    graph = figures.graph
    names = [figures.names.of(int(graph.target[edge])) for edge in graph.following[node]]
    names = [name.removeprefix("process ") for name in names]
    more = len(names) - _MAX_HOLDERS
    return ", ".join(names[:_MAX_HOLDERS]) + (f" and {more:,} more" if more > 0 else "")


def _objects(figures: Figures) -> list[dict[str, Any]]:
    graph, found = figures.graph, []
    for node in range(len(graph)):
        if graph.kind[node] in (TASK, PROCESS) or not graph.preceding[node]:
            continue
        held = graph.following[node]
        oldest = int(figures.behind.oldest[node])
        found.append(
            _node(figures, node)
            | {
                "held_by": _holders(figures, node),
                "mode": next((graph.mode[edge] for edge in held if graph.mode[edge]), ""),
                "strength": _name(min(int(graph.strength[edge]) for edge in held)) if held else "",
                "waiters": sum(graph.edge[e] is WAITS for e in graph.preceding[node]),
                "oldest": _seconds(figures, oldest) if oldest >= 0 else math.nan,
                "readers": figures.waiting.readers.get(int(graph.address[node]), 0),
                "evidence": "; ".join(dict.fromkeys(graph.evidence[edge] for edge in held)),
            }
        )
    return found


def _stacks(figures: Figures, named: set[int]) -> list[dict[str, Any]]:
    """Return the rows of stacks.

    :param named: nodes that findings name
    """
    tasks = [node for node in sorted(named) if figures.graph.is_task[node]]
    return [
        _task(figures, node)
        | {"frame": at, "function": described(name, module), "place": f"0x{place:x}"}
        for node in dict.fromkeys((*figures.stacks_shown, *tasks))
        for at, (place, name, module) in enumerate(figures.tasks.frames(node))
    ]
