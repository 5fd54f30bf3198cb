# SPDX-License-Identifier: LGPL-2.1-or-later
"""Phrases about a task: what it keeps from others, and what it does itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.figures.tasks import State
from kcensus.analyses.waits.findings.told import MAX_TOLD
from kcensus.human import counted, human_seconds, listed
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import untyped_below
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import MISSING
from kcensus.kernel.waiting.finders.cpus.occupied import THROTTLED
from kcensus.kernel.waiting.finders.cpus.spinning import SPINLOCK
from kcensus.kernel.waiting.graph import THREAD, NodeKind
from kcensus.text import task_name

_POLICIES = {1: "FIFO", 2: "RR"}
"""SCHED_FIFO and SCHED_RR."""


def holds(figures: Figures, edge: int) -> str:
    """Return a phrase about an edge, such as ``holds mutex X [proven: mutex.owner]``.

    :param edge: edge from an object to its holder, or to the holder's process
    """
    graph = figures.graph
    strength = Strength(int(graph.strength[edge])).name.lower()
    mode = f" ({graph.mode[edge]})" if graph.mode[edge] else ""
    name = figures.names.of(int(graph.source[edge]))
    return f"{graph.edge[edge].verb} {name}{mode} [{strength}: {graph.evidence[edge]}]"


def kept(figures: Figures, task: int) -> str:
    """Return a phrase about all that a task keeps from others."""
    held = dict.fromkeys(holds(figures, edge) for edge in edges_of_waiters(figures, task))
    return listed([*held], MAX_TOLD)


def edges_of_waiters(figures: Figures, task: int) -> list[int]:
    """Return the edges that lead from waiters to a task, its process or its CPU."""
    graph, found = figures.graph, list[int]()
    for edge in graph.preceding[task]:
        if not graph.is_sure[edge]:
            continue
        before = [each for each in graph.preceding[int(graph.source[edge])] if graph.is_sure[each]]
        # The edge to a process says more than the edge from the process to its thread.
        found += [] if graph.edge[edge] is THREAD else [edge]
        found += before if graph.edge[edge] is THREAD or graph.edge[edge].is_context else []
    return found


def objects_of(figures: Figures, task: int) -> list[int]:
    """Return the objects that a task keeps from others, as :func:`kept` names them."""
    graph = figures.graph
    edges = edges_of_waiters(figures, task)[:MAX_TOLD]
    return [int(graph.source[edge]) for edge in edges]


def does(figures: Figures, task: int) -> str:
    """Return a phrase about the state of a task, and the nodes that it waits for."""
    state, function = figures.tasks.state(task), figures.tasks.place(task)
    asleep = figures.tasks.asleep(task)
    if state is State.RUNNABLE:
        return f"is runnable{_instead(figures, task)}"
    if state is State.RUNNING:
        return runs(figures, task)
    if state in (State.STOPPED, State.FROZEN):
        return f"is {state.value}"
    sleeps = "sleeps" + (f" in {function}" if function else "") + (f" for {asleep}" * bool(asleep))
    objects = [figures.names.of(node) for node in awaited(figures, task)]
    return f"{sleeps}, and waits for {', which waits for '.join(objects)}" if objects else sleeps


def runs(figures: Figures, task: int) -> str:
    """Return a phrase about a task that runs: its CPU, its function, and the lock it spins for."""
    tasks, function = figures.tasks, figures.tasks.place(task)
    words = f"runs on CPU {figures.waiting.tasks.cpu[int(figures.task_rows[task])]}"
    if tasks.in_program(task):
        return f"{words} in its program"
    if function:
        entry = tasks.entry(task)
        words += (
            f" in {function}"
            + " or a function that it calls" * tasks.is_at_vector(task)
            + (f", entered by {entry}" if entry not in ("", function) else "")
        )
    is_vague = not function or tasks.is_at_vector(task)
    if is_vague and (seen := figures.log.seen.get(tasks.pid(task))) is not None:
        ago = figures.waiting.tasks.now_ns / 1e9 - seen[0]
        words += f"; the log has it in {seen[1]}, {human_seconds(max(ago, 0.0))} before"
    lock, holders = spins_for(figures, task)
    hint = f", possibly held by {listed(holders, 2)}" if holders else ""
    if not lock and tasks.spins_unknown(int(figures.task_rows[task])):
        lock = "an unknown spinlock"
    return f"{words}, and spins for {lock}{hint}" if lock else words


def spins_for(figures: Figures, task: int) -> tuple[str, list[str]]:
    """Return the lock that a running task spins for, and possible holders; empty if none."""
    graph = figures.graph
    for edge in graph.following[task]:
        lock = int(graph.target[edge])
        if graph.kind[lock] is not SPINLOCK:
            continue
        ends = [figures.names.of(int(graph.target[each])) for each in graph.following[lock]]
        return figures.names.of(lock), ends
    return "", []


def awaited(figures: Figures, task: int) -> list[int]:
    """Return the nodes that a task waits for, each the first that the one before waits for."""
    graph, found, node = figures.graph.sure, list[int](), task
    while graph.following[node] and len(found) < MAX_TOLD:
        is_told = graph.kind[node].tells_device
        node = int(graph.target[graph.following[node][0]])
        if node in (task, *found) or (is_told and graph.kind[node].is_device):
            break
        found.append(node)
    return found


def _instead(figures: Figures, task: int) -> str:
    """Return why a runnable task does not run, as a phrase; empty if unknown."""
    tasks, row = figures.waiting.tasks, int(figures.task_rows[task])
    level = priority(figures, task)
    words = f" on CPU {tasks.cpu[row]}" + f" with priority {level}" * bool(level)
    runs = np.flatnonzero(tasks.is_on_cpu & (tasks.cpu == tasks.cpu[row])).tolist()
    if is_throttled(figures, task):
        return (
            f"{words}; the kernel throttles real-time tasks there at the moment "
            "(sched_rt_runtime_us), so the CPU may look idle"
        )
    if not runs:
        return words * bool(level)
    return f"{words}, which runs {task_name(tasks.comm[runs[0]], tasks.pid[runs[0]])}"


def priority(figures: Figures, task: int) -> str:
    """Return the real-time priority of a task, such as ``FIFO 50``; empty for other tasks."""
    policy, level = figures.tasks.real_time(task) or (0, 0)
    return f"{_POLICIES[policy]} {level}" if policy in _POLICIES else ""


def is_throttled(figures: Figures, task: int) -> bool:
    """Return whether a task does not run as real-time tasks are throttled on its CPU."""
    graph = figures.graph
    edges = (edge for edge in graph.preceding[task] if graph.edge[edge] is THROTTLED)
    return any("rt_throttled" in graph.evidence[edge] for edge in edges)


def places_above(figures: Figures, nodes: Sequence[int], title: str = "") -> list[str]:
    """Return phrases about the devices that wait for nodes, such as ``loop0 is on file /image``.

    :param title: sentence before them; a device that it names is left out
    """
    graph = figures.graph
    above = np.flatnonzero(graph.sure.reached(nodes, back=True)).tolist()
    # The request of a device may wait for a node without the whole device doing so.
    of_requests = (int(graph.target[edge]) for node in above for edge in graph.following[node])
    devices = [
        node
        for node in dict.fromkeys((*above, *of_requests))
        if graph.kind[node].is_device and figures.behind.tasks[node]
    ]
    places = {figures.names.object(node): figures.names.place(node) for node in devices}
    told = set(title.replace(",", " ").split())
    words = [
        f"{name} is {place}" for name, place in sorted(places.items()) if place and name not in told
    ]
    more = len(words) - MAX_TOLD
    return words[:MAX_TOLD] + ([f"{more:,} more devices are stacked"] if more > 0 else [])


def states(figures: Figures, tasks: set[int], devices: list[int]) -> Iterator[str]:
    """Yield the number of requests of the devices that tasks wait for, by their states, and of
    these tasks.

    Requests of devices above are on the way there.
    """
    graph, known_states = figures.graph.sure, figures.waiting.states
    known: dict[NodeKind, dict[str, list[int]]] = {}
    for node in np.flatnonzero(graph.reached(tasks)).tolist():
        ends = {int(graph.target[edge]) for edge in graph.following[node]}
        state = known_states.get((graph.kind[node], int(graph.address[node])))
        if state is not None and not ends.isdisjoint(devices):
            known.setdefault(graph.kind[node], {}).setdefault(state, []).append(node)
    if not known:
        return
    found = [node for own in known.values() for nodes in own.values() for node in nodes]
    waiters = len(figures.waiters(*found) & tasks)
    its = "its" if len(devices) == 1 else "their"
    words = listed(
        [
            f"{sum(map(len, own.values())):,} of {its} {kind.value}s {_in_states(own)}"
            for kind, own in known.items()
        ]
    )
    yield f"{counted(waiters, 'task', 'wait')} for {words}"
    if rest := len(tasks) - waiters:
        yield f"{counted(rest, 'task', 'wait')} for the device without a known request"


def _in_states(nodes: Mapping[str, Sequence[int]]) -> str:
    if len(nodes) == 1:
        return next(iter(nodes))
    return f"({', '.join(f'{len(each):,} {state}' for state, each in nodes.items())})"


def untyped(figures: Figures, tasks: Sequence[int], devices: Sequence[int] = ()) -> list[str]:
    """Return the modules without types on the stacks of tasks, and those that serve devices."""
    untyped, found = figures.kernel.untyped_modules, set[str]()
    if not untyped:
        return []
    with suppress(*MISSING):
        rows = {disk.address: row for row, disk in enumerate(block_devices(figures.kernel).disks)}
        for device in devices:
            row = rows.get(int(figures.graph.address[device]), -1)
            found |= {*untyped_below(figures.kernel, row)} if row >= 0 else set()
    return sorted(
        found | {module for each in tasks for _, _, module in figures.tasks.frames(each)} & untyped
    )
