# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tasks wait for that is no deadlock: a task, a freeze, a lock without a known holder, I/O."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

from kcensus.analyses.waits.acts import holds, kill
from kcensus.analyses.waits.figures import Figures
from kcensus.human import human_seconds
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import printable

_MAX_ROOTS = 3
"""Roots of a kind that are findings: those with most tasks behind them."""
_MAX_TOLD = 8
"""Objects that a sentence names."""
_OLD, _VERY_OLD = 10.0, 120.0
"""Seconds from which on a wait is worth a look, and those of the hung task detector."""
_MANY = 10
"""Tasks behind one."""
_BY_DEVICES = frozenset(
    {NodeKind.REQUEST, NodeKind.IO, NodeKind.TAGS, NodeKind.BUFFER_IO, NodeKind.PAGE}
)
"""What a device ends: tasks behind it wait for I/O as they should, but for long if it is sick."""


def others(figures: Figures) -> Iterator[Finding]:
    """Yield what many tasks wait for, or some for long, where it is no cycle."""
    told = {node for cycle in figures.cycles for node in figures.waiters(cycle.nodes[0])}
    told |= {node for cycle in figures.cycles for node in cycle.nodes}
    count = Counter[str]()
    devices = []
    for node in figures.roots:
        if figures.graph.kind[node] is NodeKind.FREEZER:
            yield _frozen(figures, node)
            told |= figures.waiters(node)
            continue
        subject = _subject(figures, node)
        is_alone = subject is None or not figures.behind.tasks[subject]
        if is_alone and figures.graph.kind[node] in _BY_DEVICES:
            devices.append(node)
            continue
        finding = _unheld(figures, node) if subject is None else _behind(figures, subject)
        if finding is not None and count[finding.kind] < _MAX_ROOTS:
            count[finding.kind] += 1
            yield finding
            told |= figures.waiters(node)
    waiting = figures.waiters(*devices)
    yield from _devices(figures, devices, waiting)
    yield from _alone(figures, told | waiting)


def _severity(count: int, seconds: float) -> Severity | None:
    """Return how bad it is that tasks wait; None for what is usual."""
    if seconds >= _VERY_OLD or (seconds >= _OLD and count >= _MANY):
        return Severity.WARNING
    is_notable = count >= _MANY or (count > 1 and seconds >= _OLD)
    return Severity.NOTICE if is_notable else None


def _oldest(figures: Figures, node: int) -> float:
    """Return the seconds that the first of the tasks behind a node has waited."""
    oldest = int(figures.behind.oldest[node])
    return max(int(figures.ages[oldest]) / 1e9, 0.0) if oldest >= 0 else 0.0


def _tasks(count: int) -> str:
    return f"{count:,} task waits" if count == 1 else f"{count:,} tasks wait"


def _first(count: int, seconds: float) -> str:
    return (
        f"for {human_seconds(seconds)}"
        if count == 1
        else f"the first of them for {human_seconds(seconds)}"
    )


def _subject(figures: Figures, root: int) -> int | None:
    """Return the task that others wait for: a root, or the only one that waits for it.

    Tasks behind one request, or one buffer, wait for I/O as they should.
    """
    graph, node, seen = figures.graph, root, {root}
    while not graph.is_task[node]:
        waiters = {int(graph.source[edge]) for edge in graph.preceding[node]}
        if len(waiters) != 1 or waiters & seen:
            return None
        node = waiters.pop()
        seen.add(node)
    return node


def _behind(figures: Figures, subject: int) -> Finding | None:
    """Return that tasks wait for one task, and what it does; None where that is usual."""
    count, seconds = int(figures.behind.tasks[subject]), _oldest(figures, subject)
    severity = _severity(count, seconds)
    if severity is None or not count:
        return None
    graph = figures.graph
    ways = [_way(figures, edge) for edge in graph.preceding[subject]]
    kept = [holds(figures, edge) for edge in dict.fromkeys(edge for way in ways for edge in way)]
    more = f", and {len(kept) - _MAX_TOLD:,} more" if len(kept) > _MAX_TOLD else ""
    is_killable = figures.is_killable(subject)
    return Finding(
        id=f"waits-behind:{figures.pid(subject)}",
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        title=f"{_tasks(count)} for {figures.name(subject)}, {_first(count, seconds)}",
        evidence=f"it {', '.join(kept[:_MAX_TOLD])}{more}; it {_does(figures, subject)}",
        figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
        remedies=(kill(figures, subject, "what it keeps is free again"),) if is_killable else (),
        no_remedy=""
        if is_killable
        else "nothing can take that from it: find out why it does not go on (`kcensus explain "
        "waits-behind`)",
    )


def _way(figures: Figures, edge: int) -> list[int]:
    """Return the edges that tell what others wait for: the edge to a task, or to its process."""
    if figures.graph.edge[edge] is not EdgeKind.THREAD:
        return [edge]
    return figures.graph.preceding[int(figures.graph.source[edge])]


def _unheld(figures: Figures, node: int) -> Finding | None:
    """Return that tasks wait for an object, and nothing says who holds it."""
    count, seconds = int(figures.behind.tasks[node]), _oldest(figures, node)
    severity = _severity(count, seconds)
    if severity is None:
        return None
    address = int(figures.graph.address[node])
    readers = figures.waiting.readers.get(address, 0)
    return Finding(
        id=f"waits-unheld:{address:x}",
        severity=severity,
        danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
        title=f"{_tasks(count)} for {figures.name(node)}, {_first(count, seconds)}; who holds it "
        "is unknown",
        evidence=f"it counts readers ({readers:,}), and does not name them" if readers > 0 else "",
        figures={"tasks": Figure(count), "oldest": Figure(seconds, Unit.SECONDS)},
        no_remedy=(
            f"look for its address 0x{address:x} on the stacks of all tasks, such as with "
            f"`crash> search -t {address:x}`, and for functions on them that take such a lock"
        ),
    )


def _devices(figures: Figures, nodes: list[int], tasks: set[int]) -> Iterator[Finding]:
    """Yield that tasks wait for I/O for long."""
    ages = [int(figures.ages[node]) for node in tasks]
    seconds = max(max(ages, default=0) / 1e9, 0.0)
    severity = _severity(len(tasks), seconds)
    if severity is None or seconds < _OLD:
        return
    first = max(nodes, key=lambda node: (_oldest(figures, node), -node))
    yield Finding(
        id="waits-io",
        severity=Severity.NOTICE,
        title=(
            f"{_tasks(len(tasks))} for I/O, {_first(len(tasks), seconds)}: {figures.name(first)}"
        ),
        evidence=f"they wait, also through others, for {len(nodes):,} pages, buffers or requests",
        figures={
            "tasks": Figure(len(tasks)),
            "oldest": Figure(seconds, Unit.SECONDS),
            "objects": Figure(len(nodes)),
        },
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
        title=(
            f"{count:,} {'task has' if count == 1 else 'tasks have'} been in state D for "
            f"{'' if count == 1 else 'up to '}{human_seconds(longest)}, behind no other task"
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
    is_plain = mount and mount == blocks.mount[row]
    return Finding(
        id=f"waits-frozen:{mount or hex(address)}",
        severity=_severity(count, seconds) or Severity.NOTICE,
        danger=Danger.STALL,
        title=(
            f"{_tasks(count)} for the frozen file system on {mount or 'no mount point'}, "
            f"{_first(count, seconds)}"
        ),
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
    state, function, asleep = figures.state(node), figures.function(node), figures.asleep(node)
    if state in ("running", "runnable"):
        return f"is {state}"
    sleeps = "sleeps" + (f" in {function}" if function else "") + (f" for {asleep}" * bool(asleep))
    objects: list[str] = []
    seen = {node}
    while graph.following[node] and len(objects) < _MAX_TOLD:
        node = int(graph.target[graph.following[node][0]])
        if node in seen:
            break
        seen.add(node)
        objects.append(figures.name(node))
    return f"{sleeps}, and waits for {', which waits for '.join(objects)}" if objects else sleeps
