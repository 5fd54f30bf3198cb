# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which stalls outside of cycles make a finding: each waiting task is in one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.figures.tasks import State
from kcensus.analyses.waits.findings.alike import merged
from kcensus.analyses.waits.findings.between import passages
from kcensus.analyses.waits.findings.busy import spinlock, stuck, unknown_spinlock
from kcensus.analyses.waits.findings.remedies import mounts
from kcensus.analyses.waits.findings.stalls import alone, behind, exited, for_devices, unheld
from kcensus.analyses.waits.findings.told import MAX_TOLD, Told, degree, stall, together
from kcensus.analyses.waits.findings.words import kept, places_above
from kcensus.kernel.names import MISSING
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.cpus.spinning import SPINLOCK
from kcensus.kernel.waiting.graph import SERVED, WAITS
from kcensus.results import Severity
from kcensus.results.severity import HUNG

_MAX_FINDINGS = 3
"""Most findings of a kind, by number of tasks behind."""
_MAX_OWN = 8
"""Most findings of a kind that finders make: each has a remedy of its own."""
_HALTED = State.STOPPED, State.FROZEN
_MAX_SUBJECTS = 32
"""Most awaited tasks to compare, by number of tasks behind."""


def stalls(figures: Figures) -> Iterator[Told]:
    """Yield the findings about long waits, or waits of many tasks, outside of cycles."""
    roots = _sorted(figures)
    yield from _largest(merged(roots.own))
    own = (node for told in roots.own for node in told.nodes)
    told = _of_cycles(figures) | figures.waiters(*own)
    in_io = figures.waiters(*roots.devices) - told
    of_devices = list(for_devices(figures, roots.devices, in_io))
    yield from of_devices
    yield from passages(figures, of_devices)
    known = {told.finding.id for told in of_devices}
    groups = _groups(figures, roots.tasks)
    # One command continues or thaws each stopped or frozen task.
    others = [each for each in groups[_MAX_FINDINGS:] if figures.tasks.state(each[0]) in _HALTED]
    for subjects in [*groups[:_MAX_FINDINGS], *others[: _MAX_OWN - _MAX_FINDINGS]]:
        if figures.tasks.state(subjects[0]) is State.EXITED:
            yield exited(figures, subjects[0])
        elif _spins(figures, subjects[0]):
            yield unknown_spinlock(figures, subjects[0])
        else:
            yield behind(figures, subjects, known)
        told |= {*subjects, *figures.waiters(*subjects)}
    for node in roots.spinlocks[:_MAX_FINDINGS]:
        yield spinlock(figures, node)
        told |= figures.waiters(node)
    late = [node for node in roots.unheld if degree(figures, node) is not None]
    for node in late[:_MAX_FINDINGS]:
        yield unheld(figures, node, known)
        told |= figures.waiters(node)
    yield from alone(figures, _hung(figures, told | in_io))
    yield from stuck(figures, told)


def _largest(own: list[Told]) -> Iterator[Told]:
    """Yield the findings of finders about most tasks, some of each kind."""
    shown: Counter[str] = Counter()
    for told in sorted(own, key=lambda told: -len(told.finding.tasks)):
        kind = told.finding.id.partition(":")[0]
        shown[kind] += 1
        if shown[kind] <= _MAX_OWN:
            yield told


@dataclass
class _Roots:
    """The roots of the graph, by the question that a finding about them answers."""

    own: list[Told] = field(default_factory=list)
    """Findings that a finder makes itself: the subject has its own words and remedy."""
    devices: list[int] = field(default_factory=list)
    """I/O: which device is late, and in which state are its requests?"""
    tasks: list[int] = field(default_factory=list)
    """What does the task that all others wait for?"""
    spinlocks: list[int] = field(default_factory=list)
    """Which CPUs spin, and which task may hold the lock?"""
    unheld: list[int] = field(default_factory=list)
    """Who holds the lock, or must wake up the waiters?"""


def _sorted(figures: Figures) -> _Roots:
    graph, roots, done = figures.graph.sure, _Roots(), set[int]()
    for root in figures.roots:
        if root in done:
            continue
        if own := list(_own(figures, root)):
            roots.own += own
            done.update(node for told in own for node in told.nodes)
        elif graph.kind[root].is_io or _may_be_io(figures, root):
            roots.devices.append(root)
            roots.tasks += _to_blame(figures, figures.first_tasks(root))
        elif graph.is_task[root]:
            roots.tasks.append(root)
        elif graph.kind[root] is SPINLOCK:
            roots.spinlocks.append(root)
        elif len(graph.preceding[root]) == 1 or (
            # Idle threads of a program wait for an event, which is normal.
            figures.graph.kind[root].is_event and not figures.graph.following[root]
        ):
            roots.tasks += figures.first_tasks(root)
        else:
            roots.unheld.append(root)
    return roots


def _own(figures: Figures, node: int) -> Iterator[Told]:
    kind, address = figures.graph.kind[node], int(figures.graph.address[node])
    for finder in figures.waiting.finders:
        if kind not in finder.kinds or type(finder).finding is Finder.finding:
            continue  # counting the tasks behind each root takes long
        try:
            alike = [(kind, each) for each in finder.alike(kind, address)]
            nodes = [figures.graph.index[each] for each in alike if each in figures.graph.index]
            nodes = [each for each in nodes if each == node or each in figures.roots]
            found = finder.finding(kind, address, together(figures, nodes))
        except MISSING:
            continue  # the usual finding says less
        if found is not None:
            story = found.story or tuple(line for each in nodes for line in _kept_by(figures, each))
            places = places_above(figures, nodes, found.title)
            evidence = "; ".join(filter(None, (found.evidence, *places)))
            remedies = found.remedies
            if not found.no_remedy:
                remedies += tuple(each for own in nodes for each in mounts(figures, own))
            yield Told(replace(found, story=story, evidence=evidence, remedies=remedies), nodes)


def _kept_by(figures: Figures, node: int) -> Iterator[str]:
    """Yield what the tasks that a node stops keep from others."""
    graph = figures.graph
    edges = [edge for edge in graph.preceding[node] if graph.edge[edge] is not WAITS]
    sources = [int(graph.source[edge]) for edge in edges if graph.is_task[graph.source[edge]]]
    keeping = [task for task in sources if figures.behind.tasks[task]]
    for task in keeping[:MAX_TOLD]:
        yield f"{figures.names.of(task)} {kept(figures, task)}"


def _may_be_io(figures: Figures, node: int) -> bool:
    """Return whether an object that no task holds may wait for a request."""
    graph = figures.graph
    ends = [graph.kind[int(graph.target[edge])] for edge in graph.following[node]]
    return not graph.kind[node].is_lock and any(kind.is_io for kind in ends)


def _to_blame(figures: Figures, nodes: list[int]) -> list[int]:
    """Return the tasks behind a device that alone delay most of their waiters.

    If many tasks hold a part of the same resource, such as space in a log, the device is late. So
    it is if a task only does the work of others, such as a flusher.
    """
    notable = [
        node
        for node in nodes
        if degree(figures, node) is not None and not _passes_on(figures, node)
    ][:_MAX_SUBJECTS]
    waiters = {node: figures.waiters(node) for node in notable}
    counts = Counter(task for tasks in waiters.values() for task in tasks)
    return [
        node
        for node, tasks in waiters.items()
        if 2 * sum(counts[task] == 1 for task in tasks) >= len(tasks) > 0
    ]


def _passes_on(figures: Figures, node: int) -> bool:
    """Return whether a task only does the work of its waiters, or passes on their I/O."""
    graph = figures.graph.sure
    return all(
        graph.edge[edge].is_passage or graph.kind[int(graph.source[edge])].is_passed_on
        for edge in graph.preceding[node]
    )


def _groups(figures: Figures, tasks: list[int]) -> list[list[int]]:
    """Return the awaited tasks to tell of: those with the same waiters together."""
    notable = [
        node
        for node in dict.fromkeys(tasks)
        if figures.behind.tasks[node]
        and (
            figures.tasks.state(node) is State.EXITED
            or (figures.tasks.is_halted(node) and stall(figures, node).severity() > Severity.INFO)
            or (degree(figures, node) is not None and not _is_helper(figures, node))
        )
    ]
    groups: dict[frozenset[int], list[int]] = {}
    for node in notable[:_MAX_SUBJECTS]:
        # Each task that has exited, or spins, is a finding of its own.
        is_own = figures.tasks.state(node) is State.EXITED or _spins(figures, node)
        own = {-1 - node} if is_own else set()
        groups.setdefault(frozenset(figures.waiters(node) | own), []).append(node)
    # Tasks in state D first: programs may wait for each other on purpose.
    is_program = {
        waiters: figures.tasks.is_program(n for n in waiters if n >= 0) for waiters in groups
    }
    # Then those that may be the cause of others: a task that spins waits itself.
    order = sorted(groups, key=lambda each: (is_program[each], _spins(figures, groups[each][0])))
    return [groups[waiters] for waiters in order]


def _spins(figures: Figures, node: int) -> bool:
    """Return whether a task spins for an unknown lock."""
    return figures.tasks.spins_unknown(int(figures.task_rows[node]))


def _is_helper(figures: Figures, node: int) -> bool:
    """Return whether a thread sleeps on a timer, and its clients have other holders: xfsaild."""
    graph = figures.graph.sure
    return figures.tasks.function(node) in ON_TIMERS and all(
        graph.edge[edge] is SERVED and len(graph.following[int(graph.source[edge])]) > 1
        for edge in graph.preceding[node]
    )


def _of_cycles(figures: Figures) -> set[int]:
    """Return the nodes of cycles, and the tasks behind them."""
    # Cycles of one large tangle share its tuple.
    tangles = {id(cycle.tangle): cycle.tangle for cycle in figures.cycles}
    inside = {node for tangle in tangles.values() for node in tangle}
    return inside | figures.waiters(*inside)


def _hung(figures: Figures, told: set[int]) -> list[int]:
    """Return the tasks in no finding that have been in state D for longest, and not on a timer."""
    tasks = figures.waiting.tasks
    found = [
        node
        for node in figures.task_nodes
        if int(figures.ages[node]) >= HUNG * 1e9
        and tasks.is_blocked[figures.task_rows[node]]
        and node not in told
        and figures.tasks.function(node) not in ON_TIMERS
    ]
    return sorted(found, key=lambda node: (-int(figures.ages[node]), node))
