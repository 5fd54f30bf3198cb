# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stalls without a deadlock: behind a task, a freeze, a lock without a known holder, I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.waits.acts import go_on, holds, kills, thaw
from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.figures.tasks import State
from kcensus.analyses.waits.known import patch_behind
from kcensus.human import human_seconds
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.waiting.finder import Finder, Stall
from kcensus.kernel.waiting.finders.io.requests import DISK, REQUEST
from kcensus.kernel.waiting.graph import SERVED, THREAD
from kcensus.results import Danger, Figure, Finding, Severity, Unit
from kcensus.text import task_name

_LOOK = (
    "Check what the task is doing: `kcensus waits TARGET --table stacks`; its locks cannot be "
    "released from outside"
)
_MAX_FINDINGS = 3
"""Most findings of a kind, by number of tasks behind."""
_MAX_SUBJECTS = 32
"""Most awaited tasks to compare, by number of tasks behind."""
_MAX_STACKS = 64
"""Most tasks behind one to match with published deadlocks."""
_MAX_TOLD = 8
"""Most objects in a sentence."""
_SHORT, _OLD, _VERY_OLD = 1.0, 10.0, 120.0
"""Least seconds of a notable wait of many tasks, of a few tasks, and of the hung task detector."""
_MANY = 10
"""Least number of tasks that are many."""


def others(figures: Figures) -> Iterator[Finding]:
    """Yield the findings about long waits, or waits of many tasks, outside of cycles."""
    graph = figures.graph.sure
    # Cycles of one large tangle share its set.
    tangles = {id(cycle.tangle): cycle.tangle for cycle in figures.cycles}
    told = {node for tangle in tangles.values() for node in tangle}
    told |= figures.waiters(*told)
    devices, subjects, unheld = [], [], []
    for root in figures.roots:
        if own := list(_own(figures, root)):
            yield from own
            told |= figures.waiters(root)
        elif graph.kind[root].is_io or _may_be_io(figures, root):
            devices.append(root)
            subjects += _to_blame(figures, figures.first_tasks(root))
        elif graph.is_task[root]:
            subjects.append(root)
        elif len(graph.preceding[root]) == 1 or _is_event(figures, root):
            subjects += figures.first_tasks(root)
        else:
            unheld.append(root)
    notable = [
        node
        for node in dict.fromkeys(subjects)
        if figures.tasks.state(node) is State.EXITED
        or (_degree(figures, node) is not None and not _is_helper(figures, node))
    ]
    groups: dict[frozenset[int], list[int]] = {}
    for node in [each for each in notable if figures.behind.tasks[each]][:_MAX_SUBJECTS]:
        # Each exited task is a finding of its own.
        dead = {-1 - node} if figures.tasks.state(node) is State.EXITED else set()
        groups.setdefault(frozenset(figures.waiters(node) | dead), []).append(node)
    for waiters, nodes in list(groups.items())[:_MAX_FINDINGS]:
        is_dead = figures.tasks.state(nodes[0]) is State.EXITED
        yield _dead(figures, nodes[0]) if is_dead else _behind(figures, nodes)
        told |= {*(each for each in waiters if each >= 0), *nodes}
    for node in [each for each in unheld if _degree(figures, each) is not None][:_MAX_FINDINGS]:
        yield _unheld(figures, node)
        told |= figures.waiters(node)
    for_devices = figures.waiters(*devices) - told
    yield from _devices(figures, devices, for_devices)
    yield from _alone(figures, told | for_devices)


def _may_be_io(figures: Figures, node: int) -> bool:
    """Return whether an object that no task holds may wait for a request."""
    graph = figures.graph
    ends = [graph.kind[int(graph.target[edge])] for edge in graph.following[node]]
    return not graph.kind[node].is_lock and any(kind.is_io for kind in ends)


def _is_event(figures: Figures, node: int) -> bool:
    """Return whether a node is an event for idle threads of a program, which is normal."""
    return figures.graph.kind[node].is_event and not figures.graph.following[node]


def _to_blame(figures: Figures, nodes: list[int]) -> list[int]:
    """Return the tasks behind a device that alone delay most of their waiters.

    If many tasks hold a part of the same resource, such as space in a log, the device is late.
    """
    notable = [node for node in nodes if _degree(figures, node) is not None][:_MAX_SUBJECTS]
    behind = {node: figures.waiters(node) for node in notable}
    counts = Counter(task for tasks in behind.values() for task in tasks)
    return [
        node
        for node, tasks in behind.items()
        if 2 * sum(counts[task] == 1 for task in tasks) >= len(tasks) > 0
    ]


def _is_helper(figures: Figures, node: int) -> bool:
    """Return whether a thread sleeps on a timer, and its clients have other holders: xfsaild."""
    graph = figures.graph.sure
    return figures.tasks.function(node) in ON_TIMERS and all(
        graph.edge[edge] is SERVED and len(graph.following[int(graph.source[edge])]) > 1
        for edge in graph.preceding[node]
    )


def _degree(figures: Figures, node: int) -> Severity | None:
    """Return the severity of the waits for a node; None if they are usual."""
    return _severity(int(figures.behind.tasks[node]), _oldest(figures, node))


def _severity(count: int, seconds: float) -> Severity | None:
    """Return the severity of the waits of ``count`` tasks; None if they are usual.

    :param seconds: longest wait; -1 if unknown
    """
    if seconds < 0:
        return Severity.NOTICE if count >= _MANY else None
    if seconds >= _VERY_OLD or (seconds >= _OLD and count >= _MANY):
        return Severity.WARNING
    is_notable = (count >= _MANY and seconds >= _SHORT) or (count > 1 and seconds >= _OLD)
    return Severity.NOTICE if is_notable else None


def _oldest(figures: Figures, node: int) -> float:
    """Return the longest wait for a node, seconds; -1 if unknown."""
    oldest = int(figures.behind.oldest[node])
    age = int(figures.ages[oldest]) if oldest >= 0 else -1
    return age / 1e9 if age >= 0 else -1.0


def _stall(figures: Figures, *nodes: int) -> Stall:
    """Return the tasks behind any of the nodes, with the count and age of the first node."""
    count, seconds = int(figures.behind.tasks[nodes[0]]), _oldest(figures, nodes[0])
    return Stall(figures.tasks.pids(figures.waiters(*nodes)), count, seconds)


def _own(figures: Figures, node: int) -> Iterator[Finding]:
    kind, address = figures.graph.kind[node], int(figures.graph.address[node])
    for finder in figures.waiting.finders:
        if kind not in finder.kinds or type(finder).finding is Finder.finding:
            continue  # counting the tasks behind each root takes long
        found = finder.finding(kind, address, _stall(figures, node))
        if found is not None:
            yield found


def _behind(figures: Figures, subjects: list[int]) -> Finding:
    """Return the finding about tasks that wait for one task, or for each of several."""
    stall = _stall(figures, subjects[0])
    severity = _severity(stall.count, stall.seconds) or Severity.NOTICE
    waiters = figures.waiters(*subjects)
    nearest = sorted(
        figures.waiters(subjects[0]), key=lambda node: (-int(figures.behind.tasks[node]), node)
    )
    if figures.tasks.is_program({*subjects, *waiters}):
        # Threads of a pool wait for each other until they get work.
        severity = min(severity, Severity.NOTICE)
    names_told = [figures.names.of(node) for node in subjects[:_MAX_TOLD]]
    more = len(subjects) - _MAX_TOLD
    names = [*names_told, *([f"{more:,} more"] if more > 0 else [])]
    last = f" and {names.pop()}" if len(names) > 1 else ""
    told = [
        f"{_kept(figures, node)}; the task {_does(figures, node)}" for node in subjects[:_MAX_TOLD]
    ]
    remedies = [
        remedy
        for node in subjects[:_MAX_TOLD]
        for remedy in (
            *([go_on(figures, node)] if figures.tasks.state(node) is State.STOPPED else []),
            *([thaw(figures, node)] if figures.tasks.state(node) is State.FROZEN else []),
            *(
                kills(figures, node, "release its locks and other objects")
                if figures.tasks.has_other_process(node, waiters)
                else ()
            ),
        )
    ]
    return Finding(
        id=f"waits-behind:{figures.tasks.pid(subjects[0])}",
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        tasks=figures.tasks.pids({*subjects, *waiters}),
        title=stall.title(f"{', '.join(names)}{last}"),
        evidence="" if last else f"{names_told[0]} {told[0]}",
        story=tuple(f"{name} {what}" for name, what in zip(names_told, told, strict=True))
        if last
        else (),
        figures=stall.figures,
        remedies=tuple(remedies),
        no_remedy="" if remedies else _no_remedy(figures, subjects[0]),
        patch=patch_behind(
            figures.tasks.functions(subjects[0]),
            [figures.tasks.functions(node) for node in nearest[:_MAX_STACKS]],
        ),
    )


def _no_remedy(figures: Figures, node: int) -> str:
    """Return the advice in the absence of a remedy."""
    graph = figures.graph.sure
    edges = [graph.edge[edge].advice for edge in graph.preceding[node]]
    reached = np.flatnonzero(graph.reached([node])).tolist()
    ends = [DISK.advice for each in reached if graph.kind[each] is DISK]
    return next(filter(None, [*edges, *ends]), _LOOK)


def _dead(figures: Figures, subject: int) -> Finding:
    stall = _stall(figures, subject)
    is_sure = not figures.kernel.live and not figures.waiting.tasks.damaged
    is_program = figures.tasks.is_program(figures.waiters(subject))
    oopses = ", ".join(figures.log.oopses[:_MAX_TOLD])
    name = figures.names.of(subject) + (", which has exited" if figures.tasks.pid(subject) else "")
    return Finding(
        id=f"waits-exited:{figures.graph.address[subject]:x}",
        severity=Severity.CRITICAL if is_sure and not is_program else Severity.WARNING,
        danger=Danger.DEADLOCK,
        tasks=stall.tasks,
        title=stall.title(name),
        evidence=f"the dead task {_kept(figures, subject)}"
        + (f"; the log has an oops of {oopses}" * bool(oopses)),
        figures=stall.figures,
        no_remedy=("Restart the program" if is_program else "Take a dump and restart the machine")
        + ": a dead task releases nothing",
    )


def _kept(figures: Figures, subject: int) -> str:
    graph = figures.graph.sure
    ways = [way for edge in graph.preceding[subject] for way in _way(figures, edge)]
    said = list(dict.fromkeys(holds(graph, figures, edge) for edge in ways))
    more = f", and {len(said) - _MAX_TOLD:,} more" if len(said) > _MAX_TOLD else ""
    return f"{', '.join(said[:_MAX_TOLD])}{more}"


def _way(figures: Figures, edge: int) -> list[int]:
    """Return the edges that lead from waiters to a task, its process or its CPU."""
    graph = figures.graph.sure
    if graph.edge[edge] is THREAD:
        return graph.preceding[int(graph.source[edge])]
    if graph.edge[edge].is_context:
        return [edge, *graph.preceding[int(graph.source[edge])]]
    return [edge]


def _unheld(figures: Figures, node: int) -> Finding:
    stall = _stall(figures, node)
    severity = _severity(stall.count, stall.seconds) or Severity.NOTICE
    address = int(figures.graph.address[node])
    readers = figures.waiting.readers.get(address, 0)
    graph, is_lock = figures.graph, figures.graph.kind[node].is_lock
    hints = [
        f"possible holder: {figures.names.of(int(graph.target[edge]))} [{graph.evidence[edge]}]"
        for edge in graph.following[node]
    ]
    if readers > 0:
        hints.insert(0, f"the lock counts its readers ({readers:,}) without naming them")
    return Finding(
        id=f"waits-unheld:{address:x}",
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        tasks=stall.tasks,
        title=f"{stall.title(figures.names.of(node))}; the {'holder' if is_lock else 'waker'} is "
        "unknown",
        evidence="; ".join(hints[:_MAX_TOLD]),
        figures=stall.figures,
        no_remedy=graph.kind[node].advice
        or (
            "Search the stacks of all tasks for the address of the lock (in crash: `search -t "
            f"{address:x}`), and for functions that take such a lock"
            if is_lock
            else "The functions on the stacks of the waiters name the driver or file system: "
            "`kcensus waits TARGET --table stacks`"
        ),
    )


def _devices(figures: Figures, nodes: list[int], tasks: set[int]) -> Iterator[Finding]:
    ages = [int(figures.ages[node]) for node in tasks]
    stall = Stall(figures.tasks.pids(tasks), len(tasks), max(max(ages, default=0) / 1e9, 0.0))
    severity = _severity(stall.count, stall.seconds)
    if severity is None or stall.seconds < _OLD:
        return
    # Possible edges lead to the disk, too.
    graph = figures.graph
    reached = graph.reached(nodes)
    disks = [node for node in np.flatnonzero(reached) if graph.kind[node] is DISK]
    names = sorted(figures.names.object(int(node)) for node in disks)
    more = f" and {len(names) - _MAX_TOLD:,} more" if len(names) > _MAX_TOLD else ""
    where = f" of {', '.join(names[:_MAX_TOLD])}{more}" if names else ""
    longest = max(tasks, key=lambda node: (int(figures.ages[node]), -node))
    place = figures.tasks.place(longest)
    requests = [
        figures.names.object(int(node))
        for node in np.flatnonzero(graph.sure.reached(tasks))
        if graph.kind[node] is REQUEST
    ]
    states = Counter(name.rpartition(", ")[2] for name in requests if ", " in name)
    waited = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    yield Finding(
        id="waits-io",
        evidence=f"longest wait: {figures.names.of(longest)}{f' in {place}' if place else ''}"
        + (f"; awaited requests: {waited}" if waited else ""),
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        tasks=stall.tasks,
        title=stall.title(f"I/O{where}"),
        figures=stall.figures,
        no_remedy=DISK.advice,
    )


def _alone(figures: Figures, told: set[int]) -> Iterator[Finding]:
    tasks = figures.waiting.tasks
    found = []
    for node in figures.task_nodes:
        row = int(figures.task_rows[node])
        is_late = row >= 0 and int(figures.ages[node]) >= _VERY_OLD * 1e9
        if not is_late or not tasks.is_blocked[row] or node in told:
            continue
        if figures.tasks.function(node) not in ON_TIMERS:
            found.append(node)
    if not found:
        return
    found.sort(key=lambda node: (-int(figures.ages[node]), node))
    longest = int(figures.ages[found[0]]) / 1e9
    count = len(found)
    yield Finding(
        id="waits-alone",
        severity=Severity.WARNING,
        danger=Danger.STALL,
        tasks=figures.tasks.pids(found),
        title=(
            f"{count:,} {'task has' if count == 1 else 'tasks have'} been in state D for "
            f"{'' if count == 1 else 'up to '}{human_seconds(longest)}, for an unknown reason"
        ),
        story=tuple(
            f"{figures.names.of(node)}: {_does(figures, node)}" for node in found[:_MAX_TOLD]
        ),
        figures={"tasks": Figure(count), "longest": Figure(longest, Unit.SECONDS)},
        no_remedy=(
            "Their waker is unknown; the functions on their stacks name the driver or file system: "
            "`kcensus waits TARGET --table stacks`"
        ),
    )


def _does(figures: Figures, node: int) -> str:
    graph = figures.graph
    state, function = figures.tasks.state(node), figures.tasks.place(node)
    asleep = figures.tasks.asleep(node)
    if state is State.RUNNABLE:
        return f"is runnable{_instead(figures, node)}"
    if state in (State.RUNNING, State.STOPPED, State.FROZEN):
        return f"is {state.value}"
    sleeps = "sleeps" + (f" in {function}" if function else "") + (f" for {asleep}" * bool(asleep))
    objects: list[str] = []
    graph = graph.sure
    seen = {node}
    while graph.following[node] and len(objects) < _MAX_TOLD:
        node = int(graph.target[graph.following[node][0]])
        # The name of a request includes its disk.
        if node in seen or (objects and graph.kind[node] is DISK):
            break
        seen.add(node)
        objects.append(figures.names.of(node))
    return f"{sleeps}, and waits for {', which waits for '.join(objects)}" if objects else sleeps


def _instead(figures: Figures, node: int) -> str:
    tasks, row = figures.waiting.tasks, int(figures.task_rows[node])
    runs = np.flatnonzero(tasks.is_on_cpu & (tasks.cpu == tasks.cpu[row])).tolist()
    if not runs:
        return ""
    name = task_name(tasks.comm[runs[0]], tasks.pid[runs[0]])
    return f" on CPU {tasks.cpu[row]}, which runs {name}"
