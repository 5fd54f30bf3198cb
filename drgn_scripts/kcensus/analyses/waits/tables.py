# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of tasks, of what they wait for, and of the graph."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.tree import rows
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.symbols import described
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec

_MAX_HOLDERS = 4
"""Holders of a lock that a cell names."""

_PID = Column(Unit.NONE, "PID", Show.ALWAYS, "Of the thread; 0 for what is not a task.")
_CYCLE = Column(Unit.NONE, "cycle", Show.ALWAYS, "Number of the cycle it is in; 0 for none.")
_BEHIND = Column(
    Unit.COUNT, "tasks behind", Show.ALWAYS, "Tasks that wait for it, also through others."
)
_STRENGTH = Column(
    Unit.TEXT,
    "link",
    Show.ALWAYS,
    "proven: a pointer says so; derived: it follows from functions or from who could act; "
    "possible: a hint.",
)
_EVIDENCE = Column(Unit.TEXT, "known by", help="Member, or code, that says so.")
_MODE = Column(Unit.TEXT, "mode", help="read or write, where the lock tells these apart.")
_KIND = Column(Unit.TEXT, "kind", Show.ALWAYS, "Such as task, mutex, rwsem, pipe or page.")

CYCLES = TableSpec(
    "cycles",
    "Cycles",
    {
        "cycle": Column(Unit.NONE, "cycle", Show.ALWAYS, "Its number."),
        "task": Column(Unit.TEXT, "task", Show.ALWAYS, "Name of the thread."),
        "pid": _PID,
        "entry": Column(
            Unit.TEXT, "came by", Show.WIDE, "System call, or function of the kernel thread."
        ),
        "asleep": Column(Unit.SECONDS, "asleep", Show.ALWAYS, "For how long; empty if unknown."),
        "function": Column(Unit.TEXT, "sleeps in", Show.WIDE, "Function that it waits in."),
        "waits_for": Column(Unit.TEXT, "waits for", Show.ALWAYS, "What it waits for."),
        "mode": _MODE,
        "held_by": Column(
            Unit.TEXT, "held by", Show.ALWAYS, "The next task of the cycle, which holds that."
        ),
        "strength": _STRENGTH,
        "evidence": Column(
            Unit.TEXT, "known by", help="Members, or code, that prove the wait and the holder."
        ),
        "object": Column(Unit.ADDRESS, "object", Show.DATA, "Address of what it waits for."),
        "object_type": Column(Unit.TEXT, "type", Show.DATA, "Its C type; empty if unknown."),
        "address": Column(
            Unit.ADDRESS, "address", Show.DATA, "Of the task.", type="struct task_struct"
        ),
    },
    "A task of a cycle; the next row is the task that it waits for, the last one waits for the "
    "first.",
)

TREE = TableSpec(
    "tree",
    "Who waits for whom",
    {
        "line": Column(
            Unit.TEXT,
            "and below, its waiters",
            Show.ALWAYS,
            "Task or object, indented.",
            is_drawn=True,
        ),
        "behind": _BEHIND,
        "depth": Column(Unit.NONE, "depth", Show.DATA, "Level of the line."),
        "node": Column(Unit.NONE, "node", Show.DATA, "Row in the table nodes; -1 for none."),
    },
    "A task or an object; below it, what waits for it.",
)

TASKS = TableSpec(
    "tasks",
    "Tasks that wait",
    {
        "pid": _PID,
        "comm": Column(Unit.TEXT, "task", Show.ALWAYS, "Name of the thread."),
        "state": Column(Unit.TEXT, "state", Show.ALWAYS, "D, S, runnable, running or other."),
        "asleep": Column(Unit.SECONDS, "asleep", Show.ALWAYS, "For how long; empty if unknown."),
        "entry": Column(
            Unit.TEXT, "came by", Show.WIDE, "System call, or function of the kernel thread."
        ),
        "function": Column(Unit.TEXT, "sleeps in", Show.ALWAYS, "Function that it waits in."),
        "waits_for": Column(Unit.TEXT, "waits for", Show.ALWAYS, "Empty if that is unknown."),
        "held_by": Column(Unit.TEXT, "held by", Show.ALWAYS, "Who holds that."),
        "behind": _BEHIND,
        "cycle": _CYCLE,
        "mode": _MODE,
        "evidence": _EVIDENCE,
        "reported": Column(
            Unit.SECONDS,
            "hung, by the log",
            help="Seconds that the hung task detector reported last; 0 if it did not.",
        ),
        "object": Column(Unit.ADDRESS, "object", Show.DATA, "What it waits for; 0 if unknown."),
        "object_type": Column(Unit.TEXT, "type", Show.DATA, "Its C type; empty if unknown."),
        "address": Column(
            Unit.ADDRESS, "address", Show.DATA, "Of the task.", type="struct task_struct"
        ),
    },
    "A task in state D, or that waits for a lock, or that others wait for.",
    ("asleep", "pid"),
)

OBJECTS = TableSpec(
    "objects",
    "What tasks wait for",
    {
        "kind": _KIND,
        "name": Column(Unit.TEXT, "object", Show.ALWAYS, "Its variable, or its address."),
        "held_by": Column(Unit.TEXT, "held by", Show.ALWAYS, "Tasks; empty if unknown."),
        "mode": _MODE,
        "strength": _STRENGTH,
        "waiters": Column(Unit.COUNT, "waiters", Show.ALWAYS, "Tasks that wait for it itself."),
        "behind": _BEHIND,
        "oldest": Column(
            Unit.SECONDS, "oldest wait", Show.ALWAYS, "Of the tasks behind it; empty if unknown."
        ),
        "cycle": _CYCLE,
        "readers": Column(Unit.COUNT, "readers", help="Readers that hold it, by its own count."),
        "evidence": _EVIDENCE,
        "object_type": Column(Unit.TEXT, "type", Show.DATA, "Its C type; empty if unknown."),
        "object": Column(Unit.ADDRESS, "address", Show.DATA, "Of the object."),
    },
    "A lock or another object that tasks wait for.",
    ("behind", "kind", "name"),
)

NODES = TableSpec(
    "nodes",
    "Nodes of the graph",
    {
        "node": Column(Unit.NONE, "node", Show.ALWAYS, "Number of the node, from 0 on."),
        "kind": _KIND,
        "name": Column(Unit.TEXT, "name", Show.ALWAYS, "Name and PID, variable, or address."),
        "pid": _PID,
        "behind": _BEHIND,
        "cycle": _CYCLE,
        "object_type": Column(Unit.TEXT, "type", Show.DATA, "C type; empty if unknown."),
        "object": Column(Unit.ADDRESS, "address", Show.DATA, "Of the object."),
    },
    "A node of the graph.",
    detail=True,
)

EDGES = TableSpec(
    "edges",
    "Edges of the graph",
    {
        "source": Column(Unit.NONE, "from", Show.ALWAYS, "Number of the node that waits."),
        "target": Column(Unit.NONE, "to", Show.ALWAYS, "Number of the node that it waits for."),
        "kind": Column(Unit.TEXT, "kind", Show.ALWAYS, "Such as waits for, held by or run by."),
        "mode": _MODE,
        "strength": _STRENGTH,
        "evidence": _EVIDENCE,
        "function": Column(Unit.TEXT, "function", help="On the stack; empty for none."),
        "place": Column(
            Unit.TEXT, "place", Show.DATA, "Address of this member; empty where there is none."
        ),
    },
    "An edge of the graph: it leads from what waits to what it waits for.",
    detail=True,
)

STACKS = TableSpec(
    "stacks",
    "Stacks of tasks in cycles, and of those that others wait for",
    {
        "task": Column(Unit.TEXT, "task", Show.ALWAYS, "Name of the thread."),
        "pid": _PID,
        "state": Column(Unit.TEXT, "state", Show.WIDE, "D, S, runnable, running or other."),
        "cycle": _CYCLE,
        "frame": Column(Unit.NONE, "frame", Show.ALWAYS, "0 is the innermost function."),
        "function": Column(
            Unit.TEXT, "function", Show.ALWAYS, "With its module; inlined ones are not shown."
        ),
        "place": Column(Unit.TEXT, "address", Show.WIDE, "Where the function goes on."),
        "address": Column(
            Unit.ADDRESS, "task_struct", Show.DATA, "Of the task.", type="struct task_struct"
        ),
    },
    "A frame of a kernel stack; that of a task on a CPU needs the registers of the CPU, which some "
    "dumps have, and no capsule.",
    detail=True,
)

TABLES = (CYCLES, TREE, TASKS, OBJECTS, STACKS, NODES, EDGES)


def tables(figures: Figures) -> dict[str, Table]:
    """Make all tables."""
    return {
        "cycles": CYCLES.of(_frame(CYCLES, _cycles(figures))),
        "tree": _tree(figures),
        "tasks": TASKS.of(_frame(TASKS, _tasks(figures))),
        "objects": OBJECTS.of(_frame(OBJECTS, _objects(figures))),
        "stacks": STACKS.of(_frame(STACKS, _stacks(figures))),
        "nodes": NODES.of(_frame(NODES, _nodes(figures))),
        "edges": EDGES.of(_frame(EDGES, _edges(figures))),
    }


def _frame(spec: TableSpec, rows_: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows_, columns=list(spec.columns))
    for name, column in spec.columns.items():
        if column.unit is Unit.ADDRESS:
            frame[name] = frame[name].astype("uint64")
    return frame


def _type(figures: Figures, node: int) -> str:
    key = figures.graph.kind[node], int(figures.graph.address[node])
    return figures.waiting.types.get(key, "")


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
                {
                    "cycle": number,
                    "task": figures.comm(node),
                    "pid": figures.pid(node),
                    "entry": figures.entry(node),
                    "asleep": _seconds(figures, node),
                    "function": figures.place(node),
                    "waits_for": figures.name(after),
                    "mode": graph.mode[edges[0]],
                    "held_by": figures.name(cycle.nodes[end]),
                    "strength": _name(min(int(graph.strength[edge]) for edge in edges)),
                    "evidence": "; ".join(dict.fromkeys(graph.evidence[edge] for edge in edges)),
                    "object": 0 if is_direct else int(graph.address[after]),
                    "object_type": _type(figures, after),
                    "address": int(graph.address[node]),
                }
            )
    return found


def _tree(figures: Figures) -> Table:
    lines = rows(figures)
    return TREE.of(
        pd.DataFrame(
            {
                "line": [f"{line.guide}{line.text}" for line in lines],
                "behind": [line.behind for line in lines],
                "depth": [line.depth for line in lines],
                "node": [line.node for line in lines],
            }
        )
    )


def _seconds(figures: Figures, node: int) -> float:
    age = int(figures.ages[node])
    return age / 1e9 if age >= 0 else math.nan


def _name(strength: int) -> str:
    return Strength(strength).name.lower()


def _tasks(figures: Figures) -> list[dict[str, Any]]:
    graph, (hung, _) = figures.graph, figures.log
    found = []
    for node in figures.task_nodes:
        waits = [e for e in graph.following[node] if graph.edge[e] is EdgeKind.WAITS]
        target = int(graph.target[waits[0]]) if waits else -1
        pid = figures.pid(node)
        found.append(
            {
                "pid": pid,
                "comm": figures.comm(node),
                "state": figures.state(node),
                "asleep": _seconds(figures, node),
                "entry": figures.entry(node),
                "function": figures.place(node),
                "waits_for": figures.name(target) if waits else "",
                "held_by": _holders(figures, target) if waits else "",
                "behind": int(figures.behind.tasks[node]),
                "cycle": figures.cycle_of.get(node, 0),
                "mode": graph.mode[waits[0]] if waits else "",
                "evidence": graph.evidence[waits[0]] if waits else "",
                "reported": float(hung.get(pid, 0)),
                "object": int(graph.address[target]) if waits else 0,
                "object_type": _type(figures, target) if waits else "",
                "address": int(graph.address[node]),
            }
        )
    return found


def _holders(figures: Figures, node: int) -> str:
    """Return who holds an object; of a process, its threads are not named."""
    graph = figures.graph
    names = [figures.name(int(graph.target[edge])) for edge in graph.following[node]]
    names = [name.removeprefix("process ") for name in names]
    more = len(names) - _MAX_HOLDERS
    return ", ".join(names[:_MAX_HOLDERS]) + (f" and {more:,} more" if more > 0 else "")


def _objects(figures: Figures) -> list[dict[str, Any]]:
    graph, found = figures.graph, []
    for node in range(len(graph)):
        if graph.kind[node] in (NodeKind.TASK, NodeKind.PROCESS) or not graph.preceding[node]:
            continue
        held = graph.following[node]
        oldest = int(figures.behind.oldest[node])
        found.append(
            {
                "kind": graph.kind[node].value,
                "name": figures.object_name(node),
                "held_by": _holders(figures, node),
                "mode": next((graph.mode[edge] for edge in held if graph.mode[edge]), ""),
                "strength": _name(min(int(graph.strength[edge]) for edge in held)) if held else "",
                "waiters": sum(graph.edge[e] is EdgeKind.WAITS for e in graph.preceding[node]),
                "behind": int(figures.behind.tasks[node]),
                "oldest": _seconds(figures, oldest) if oldest >= 0 else math.nan,
                "cycle": figures.cycle_of.get(node, 0),
                "readers": figures.waiting.readers.get(int(graph.address[node]), 0),
                "evidence": "; ".join(dict.fromkeys(graph.evidence[edge] for edge in held)),
                "object_type": _type(figures, node),
                "object": int(graph.address[node]),
            }
        )
    return found


def _stacks(figures: Figures) -> list[dict[str, Any]]:
    return [
        {
            "task": figures.comm(node),
            "pid": figures.pid(node),
            "state": figures.state(node),
            "cycle": figures.cycle_of.get(node, 0),
            "frame": at,
            "function": described(name, module),
            "place": f"0x{place:x}",
            "address": int(figures.graph.address[node]),
        }
        for node in figures.stacks_shown
        for at, (place, name, module) in enumerate(figures.frames(node))
    ]


def _nodes(figures: Figures) -> list[dict[str, Any]]:
    graph = figures.graph
    return [
        {
            "node": node,
            "kind": graph.kind[node].value,
            "name": figures.name(node) if graph.is_task[node] else figures.object_name(node),
            "pid": figures.pid(node),
            "behind": int(figures.behind.tasks[node]),
            "cycle": figures.cycle_of.get(node, 0),
            "object_type": "struct task_struct" if graph.is_task[node] else _type(figures, node),
            "object": int(graph.address[node]),
        }
        for node in range(len(graph))
    ]


def _edges(figures: Figures) -> list[dict[str, Any]]:
    graph = figures.graph
    return [
        {
            "source": int(graph.source[edge]),
            "target": int(graph.target[edge]),
            "kind": graph.edge[edge].value,
            "mode": graph.mode[edge],
            "strength": _name(int(graph.strength[edge])),
            "evidence": graph.evidence[edge],
            "function": graph.frame[edge],
            "place": f"0x{int(graph.place[edge]):x}" if graph.place[edge] else "",
        }
        for edge in range(len(graph.source))
    ]
