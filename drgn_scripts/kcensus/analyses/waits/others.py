# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tasks wait for that is no deadlock: a task, a freeze, a lock without a known holder, I/O."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.waits.acts import go_on, holds, kills, thaw
from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.known import patch_behind
from kcensus.human import counted, human_seconds
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import printable

_MAX_FINDINGS = 3
"""Of a kind: those with most tasks behind them."""
_MAX_SUBJECTS = 32
"""Tasks that others wait for that are compared: those with most tasks behind them."""
_MAX_STACKS = 64
"""Tasks behind one whose stacks are held against those of published deadlocks."""
_MAX_TOLD = 8
"""Objects that a sentence names."""
_SHORT, _OLD, _VERY_OLD = 1.0, 10.0, 120.0
"""Seconds from which on it is worth a look that many wait, or some; and those of the hung task
detector."""
_MANY = 10
"""Tasks behind one."""
_BY_DEVICES = frozenset(
    {
        NodeKind.DISK,
        NodeKind.REQUEST,
        NodeKind.IO,
        NodeKind.TAGS,
        NodeKind.BUFFER_IO,
        NodeKind.LOG,
        NodeKind.LOG_SPACE,
    }
)
"""What a device ends: tasks behind it wait for I/O as they should, but for long if it is sick."""


def others(figures: Figures) -> Iterator[Finding]:
    """Yield what many tasks wait for, or some for long, where it is no cycle."""
    graph = figures.graph.sure
    # Cycles of one large tangle share it.
    tangles = {id(cycle.tangle): cycle.tangle for cycle in figures.cycles}
    told = {node for tangle in tangles.values() for node in tangle}
    told |= figures.waiters(*told)
    devices, subjects, unheld = [], [], []
    for root in figures.roots:
        if graph.kind[root] is NodeKind.FREEZER:
            yield _frozen(figures, root)
            told |= figures.waiters(root)
        elif graph.kind[root] in _BY_DEVICES or _may_be_io(figures, root):
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
        if figures.state(node) == "exited"
        or (_degree(figures, node) is not None and not _is_helper(figures, node))
    ]
    groups: dict[frozenset[int], list[int]] = {}
    for node in [each for each in notable if figures.behind.tasks[each]][:_MAX_SUBJECTS]:
        kind = figures.state(node) == "exited" and node
        groups.setdefault(frozenset({*figures.waiters(node), -1 - kind}), []).append(node)
    for waiters, nodes in list(groups.items())[:_MAX_FINDINGS]:
        is_dead = figures.state(nodes[0]) == "exited"
        yield _dead(figures, nodes[0]) if is_dead else _behind(figures, nodes)
        told |= {*waiters, *nodes}
    for node in [each for each in unheld if _degree(figures, each) is not None][:_MAX_FINDINGS]:
        yield _unheld(figures, node)
        told |= figures.waiters(node)
    for_devices = figures.waiters(*devices) - told
    yield from _devices(figures, devices, for_devices)
    yield from _alone(figures, told | for_devices)


def _may_be_io(figures: Figures, node: int) -> bool:
    """Return whether a page waits for a request, if only possibly; else a task has locked it."""
    graph = figures.graph
    return graph.kind[node] is NodeKind.PAGE and bool(graph.following[node])


def _is_event(figures: Figures, node: int) -> bool:
    """Return whether a node is a futex that is no lock, as far as is known.

    Idle threads of a program wait for it, as they should.
    """
    is_futex = figures.graph.kind[node] is NodeKind.FUTEX
    return is_futex and not figures.graph.following[node]


def _to_blame(figures: Figures, nodes: list[int]) -> list[int]:
    """Return the tasks behind a device that have most of the tasks behind them to themselves.

    Where many tasks hold a part of what others need, such as space in a log, the device is late.
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
    """Return whether a thread sleeps on a timer, and others keep all that it serves: xfsaild."""
    graph = figures.graph.sure
    return figures.function(node) in ON_TIMERS and all(
        graph.edge[edge] is EdgeKind.SERVED and len(graph.following[int(graph.source[edge])]) > 1
        for edge in graph.preceding[node]
    )


def _degree(figures: Figures, node: int) -> Severity | None:
    """Return how bad it is that tasks wait for a node; None for what is usual."""
    return _severity(int(figures.behind.tasks[node]), _oldest(figures, node))


def _severity(count: int, seconds: float) -> Severity | None:
    """Return how bad it is that tasks wait; None for what is usual.

    :param seconds: -1 if unknown
    """
    if seconds < 0:
        return Severity.NOTICE if count >= _MANY else None
    if seconds >= _VERY_OLD or (seconds >= _OLD and count >= _MANY):
        return Severity.WARNING
    is_notable = (count >= _MANY and seconds >= _SHORT) or (count > 1 and seconds >= _OLD)
    return Severity.NOTICE if is_notable else None


def _oldest(figures: Figures, node: int) -> float:
    """Return the seconds that the first of the tasks behind a node has waited; -1 if unknown."""
    oldest = int(figures.behind.oldest[node])
    age = int(figures.ages[oldest]) if oldest >= 0 else -1
    return age / 1e9 if age >= 0 else -1.0


def _wait(count: int, seconds: float, what: str) -> str:
    """Say how many tasks wait for what, and since when."""
    start = f"{counted(count, 'task', 'wait')} for {what}, "
    if seconds < 0:
        return f"{start}since when is unknown"
    return f"{start}{'' if count == 1 else 'the first of them '}for {human_seconds(seconds)}"


def _behind(figures: Figures, subjects: list[int]) -> Finding:
    """Return that tasks wait for one task, or for each of several, and what these do."""
    count, seconds = int(figures.behind.tasks[subjects[0]]), _oldest(figures, subjects[0])
    severity = _severity(count, seconds) or Severity.NOTICE
    waiters = figures.waiters(*subjects)
    if figures.is_program({*subjects, *waiters}):
        # Threads of a pool wait for each other until there is work for them.
        severity = min(severity, Severity.NOTICE)
    names_told = [figures.name(node) for node in subjects[:_MAX_TOLD]]
    names = list(names_told)
    if len(subjects) > _MAX_TOLD:
        names.append(f"{len(subjects) - _MAX_TOLD:,} more")
    last = f" and {names.pop()}" if len(names) > 1 else ""
    told = [f"{_kept(figures, node)}; it {_does(figures, node)}" for node in subjects[:_MAX_TOLD]]
    remedies = [
        remedy
        for node in subjects[:_MAX_TOLD]
        for remedy in (
            *([go_on(figures, node)] if figures.state(node) == "stopped" else []),
            *([thaw(figures, node)] if figures.state(node) == "frozen" else []),
            *(
                kills(figures, node, "what it keeps is free")
                if figures.has_other_process(node, waiters)
                else ()
            ),
        )
    ]
    return Finding(
        id=f"waits-behind:{figures.pid(subjects[0])}",
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        tasks=figures.pids({*subjects, *waiters}),
        title=_wait(count, seconds, f"{', '.join(names)}{last}"),
        evidence="" if last else f"it {told[0]}",
        story=tuple(f"{name} {what}" for name, what in zip(names_told, told, strict=True))
        if last
        else (),
        figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
        remedies=tuple(remedies),
        no_remedy="" if remedies else _no_remedy(figures, subjects[0]),
        patch=patch_behind(
            figures.functions(subjects[0]),
            [figures.functions(node) for node in _nearest(figures, subjects[0])],
        ),
    )


def _nearest(figures: Figures, node: int) -> list[int]:
    """Return the tasks behind a task that have most tasks behind them."""
    waiters = figures.waiters(node)
    return sorted(waiters, key=lambda each: (-int(figures.behind.tasks[each]), each))[:_MAX_STACKS]


def _no_remedy(figures: Figures, node: int) -> str:
    """Say what to look at, where nothing helps."""
    graph = figures.graph.sure
    kinds = {graph.edge[edge] for edge in graph.preceding[node]}
    if kinds & {EdgeKind.HELD_UP, EdgeKind.RUNS}:
        return (
            "a read-side section of RCU ends only where its task leaves it: look at the stack of "
            "that task (sysrq-l, or crash's bt) for a loop without cond_resched(), and at its CPU "
            "for a thread of a higher priority that does not let it run"
        )
    if any(figures.graph.kind[each] is NodeKind.DISK for each in _leads_to(figures, node)):
        return "`kcensus iosched` says whether the scheduler or the device is late"
    return "nothing can take that from it: find out why it does not go on"


def _leads_to(figures: Figures, node: int) -> list[int]:
    """Return all that a task waits for, also through others."""
    found: list[int] = np.flatnonzero(figures.graph.sure.reached([node])).tolist()
    return found


def _dead(figures: Figures, subject: int) -> Finding:
    """Return that a task has exited, and still holds what others wait for."""
    count, seconds = int(figures.behind.tasks[subject]), _oldest(figures, subject)
    is_sure = not figures.kernel.live and not figures.waiting.tasks.damaged
    is_program = figures.is_program(figures.waiters(subject))
    oopses = ", ".join(figures.oopses[:_MAX_TOLD])
    name = figures.name(subject) + (", which has exited" if figures.pid(subject) else "")
    return Finding(
        id=f"waits-exited:{figures.graph.address[subject]:x}",
        severity=Severity.CRITICAL if is_sure and not is_program else Severity.WARNING,
        danger=Danger.DEADLOCK,
        tasks=figures.pids(figures.waiters(subject)),
        title=_wait(count, seconds, name),
        evidence=f"it {_kept(figures, subject)}"
        + (f"; the log has an oops of {oopses}" * bool(oopses)),
        figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
        no_remedy="what a dead task holds stays held: only a restart of "
        f"{'the program' if is_program else 'the machine'} ends it",
    )


def _kept(figures: Figures, subject: int) -> str:
    """Say what a task keeps others from."""
    graph = figures.graph.sure
    ways = [way for edge in graph.preceding[subject] for way in _way(figures, edge)]
    said = list(dict.fromkeys(holds(graph, figures, edge) for edge in ways))
    more = f", and {len(said) - _MAX_TOLD:,} more" if len(said) > _MAX_TOLD else ""
    return f"{', '.join(said[:_MAX_TOLD])}{more}"


def _way(figures: Figures, edge: int) -> list[int]:
    """Return the edges that tell what others wait for: the edge to a task, its process, its CPU."""
    graph = figures.graph.sure
    if graph.edge[edge] is EdgeKind.THREAD:
        return graph.preceding[int(graph.source[edge])]
    if graph.edge[edge] is EdgeKind.RUNS:
        return [edge, *graph.preceding[int(graph.source[edge])]]
    return [edge]


def _unheld(figures: Figures, node: int) -> Finding:
    """Return that tasks wait for an object, and nothing says who holds it."""
    count, seconds = int(figures.behind.tasks[node]), _oldest(figures, node)
    severity = _severity(count, seconds) or Severity.NOTICE
    address = int(figures.graph.address[node])
    readers = figures.waiting.readers.get(address, 0)
    graph = figures.graph
    hints = [
        f"{figures.name(int(graph.target[edge]))} may hold it [{graph.evidence[edge]}]"
        for edge in graph.following[node]
    ]
    if readers > 0:
        hints.insert(0, f"it counts readers ({readers:,}), and does not name them")
    return Finding(
        id=f"waits-unheld:{address:x}",
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        tasks=figures.pids(figures.waiters(node)),
        title=f"{_wait(count, seconds, figures.name(node))}; who holds it is unknown",
        evidence="; ".join(hints[:_MAX_TOLD]),
        figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
        no_remedy=(
            "the program knows who has it: look at its threads with a debugger (gdb, gcore)"
            if graph.kind[node] is NodeKind.FUTEX
            else f"look for its address 0x{address:x} on the stacks of all tasks, such as with "
            f"`crash> search -t {address:x}`, and for functions on them that take such a lock"
        ),
    )


def _devices(figures: Figures, nodes: list[int], tasks: set[int]) -> Iterator[Finding]:
    """Yield that tasks wait for I/O for long."""
    ages = [int(figures.ages[node]) for node in tasks]
    count, seconds = len(tasks), max(max(ages, default=0) / 1e9, 0.0)
    severity = _severity(count, seconds)
    if severity is None or seconds < _OLD:
        return
    # What is only possible leads to the disk, too.
    graph = figures.graph
    reached = graph.reached(nodes)
    disks = [node for node in np.flatnonzero(reached) if graph.kind[node] is NodeKind.DISK]
    names = sorted(figures.object_name(int(node)) for node in disks)
    more = f" and {len(names) - _MAX_TOLD:,} more" if len(names) > _MAX_TOLD else ""
    where = f" of {', '.join(names[:_MAX_TOLD])}{more}" if names else ""
    longest = max(tasks, key=lambda node: (int(figures.ages[node]), -node))
    place = figures.place(longest)
    requests = [
        figures.object_name(int(node))
        for node in np.flatnonzero(graph.sure.reached(tasks))
        if graph.kind[node] is NodeKind.REQUEST
    ]
    states = Counter(name.rpartition(", ")[2] for name in requests if ", " in name)
    waited = [f"{counted(count, 'request')} {state}" for state, count in states.most_common()]
    yield Finding(
        id="waits-io",
        evidence="; ".join(
            [f"longest: {figures.name(longest)}{f' in {place}' if place else ''}", *waited]
        ),
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        tasks=figures.pids(tasks),
        title=_wait(count, seconds, f"I/O{where}"),
        figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
        no_remedy="`kcensus iosched` says whether the scheduler or the device is late",
    )


def _alone(figures: Figures, told: set[int]) -> Iterator[Finding]:
    """Yield that tasks have been in state D for as long as the hung task detector reports."""
    tasks = figures.waiting.tasks
    found = []
    for node in figures.task_nodes:
        row = int(figures.task_rows[node])
        is_late = row >= 0 and int(figures.ages[node]) >= _VERY_OLD * 1e9
        if not is_late or not tasks.is_blocked[row] or node in told:
            continue
        if figures.function(node) not in ON_TIMERS:
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
        tasks=figures.pids(found),
        title=(
            f"{count:,} {'task has' if count == 1 else 'tasks have'} been in state D for "
            f"{'' if count == 1 else 'up to '}{human_seconds(longest)}, and what keeps "
            f"{'it' if count == 1 else 'them'} is unknown"
        ),
        story=tuple(f"{figures.name(node)}: {_does(figures, node)}" for node in found[:_MAX_TOLD]),
        figures={"tasks": Figure(count), "longest": Figure(longest, Unit.SECONDS)},
        no_remedy=(
            "what is to wake them up is not known: the functions they sleep in say which driver or "
            "file system is to"
        ),
    )


def _frozen(figures: Figures, node: int) -> Finding:
    """Return that a file system is frozen, and tasks wait for the thaw."""
    blocks = super_blocks(figures.kernel)
    address = int(figures.graph.address[node])
    row = blocks.address.tolist().index(address)
    mount = printable(blocks.mount[row]) if blocks.mount[row] else ""
    count, seconds = int(figures.behind.tasks[node]), _oldest(figures, node)
    severity = Severity.NOTICE if seconds >= _SHORT else Severity.INFO
    severity = Severity.WARNING if seconds >= _OLD else severity
    is_plain = mount and mount == blocks.mount[row]
    return Finding(
        id=f"waits-frozen:{mount or hex(address)}",
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        tasks=figures.pids(figures.waiters(node)),
        title=_wait(count, seconds, f"the frozen file system on {mount or 'no mount point'}"),
        evidence="super_block.s_writers.frozen is set: who writes waits until it is thawed",
        figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
        remedies=(
            Remedy(
                effect="Thaw the file system, if what froze it (a snapshot, a backup) is gone",
                command=f"fsfreeze --unfreeze {shlex.quote(mount)}",
                risk="a snapshot that is being taken is not consistent",
            ),
        )
        if is_plain
        else (),
        no_remedy="" if is_plain else "its mount point is unknown, so it cannot be thawed by name",
    )


def _does(figures: Figures, node: int) -> str:
    """Say what a task does: it runs, or sleeps in which function, and for what."""
    graph = figures.graph
    state, function, asleep = figures.state(node), figures.place(node), figures.asleep(node)
    if state == "runnable":
        return f"is runnable{_instead(figures, node)}"
    if state in ("running", "stopped", "frozen"):
        return f"is {state}"
    sleeps = "sleeps" + (f" in {function}" if function else "") + (f" for {asleep}" * bool(asleep))
    objects: list[str] = []
    graph = graph.sure
    seen = {node}
    while graph.following[node] and len(objects) < _MAX_TOLD:
        node = int(graph.target[graph.following[node][0]])
        # The name of a request has that of its disk.
        if node in seen or (objects and graph.kind[node] is NodeKind.DISK):
            break
        seen.add(node)
        objects.append(figures.name(node))
    return f"{sleeps}, and waits for {', which waits for '.join(objects)}" if objects else sleeps


def _instead(figures: Figures, node: int) -> str:
    """Say what the CPU of a task runs that wants to run."""
    tasks, row = figures.waiting.tasks, int(figures.task_rows[node])
    runs = np.flatnonzero(tasks.is_on_cpu & (tasks.cpu == tasks.cpu[row])).tolist()
    if not runs:
        return ""
    name = f"{printable(tasks.comm[runs[0]])} (PID {tasks.pid[runs[0]]})"
    return f" on CPU {tasks.cpu[row]}, which runs {name}"
