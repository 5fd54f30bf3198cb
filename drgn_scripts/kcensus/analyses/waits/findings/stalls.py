# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stalls without a deadlock: behind a task, a lock without a known holder, or I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

import numpy as np

from kcensus.analyses.remedies import with_types_first
from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.figures.tasks import State
from kcensus.analyses.waits.findings.busy import lockup, loops, release, starves
from kcensus.analyses.waits.findings.known import patch_behind
from kcensus.analyses.waits.findings.remedies import go_on, kills, let_go, restart, served, thaw
from kcensus.analyses.waits.findings.told import MAX_TOLD, Told, severity, stall, tasks_have
from kcensus.analyses.waits.findings.words import (
    awaited,
    does,
    kept,
    objects_of,
    places_above,
    states,
    untyped,
)
from kcensus.human import human_seconds, listed
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.reported import log_evidence
from kcensus.kernel.block.stacks import mounted_on
from kcensus.kernel.names import MISSING
from kcensus.kernel.waiting.finder import LOOK_AT_STACKS, Finder, Stall, danger
from kcensus.kernel.waiting.finders.io.devices import DISK
from kcensus.kernel.waiting.finders.io.requests import REQUEST
from kcensus.kernel.waiting.graph import TASK
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.results.severity import LATE
from kcensus.text import printable

_LOOK = (
    "Check what the task is doing: `kcensus waits TARGET --table stacks --top 0`; its locks cannot "
    "be released from outside"
)
_MAX_DEVICES = 3
"""Most findings about devices, by number of tasks; the last one is about all others."""
_MAX_STACKS = 64
"""Most tasks behind one to match with published deadlocks."""


def behind(figures: Figures, subjects: list[int], of_devices: Collection[str] = ()) -> Told:
    """Return the finding about tasks that wait for one task, or for each of several.

    :param of_devices: ids of the findings about devices
    """
    waits = stall(figures, subjects[0])
    how = severity(waits.count, waits.seconds) or Severity.NOTICE
    if figures.tasks.is_halted(subjects[0]) or served(figures, subjects[0]):
        how = max(how, waits.severity())
    waiters = figures.waiters(*subjects)
    if figures.tasks.is_program({*subjects, *waiters}):
        # Threads of a pool wait for each other until they get work.
        how = min(how, Severity.NOTICE)
    shown = subjects[:MAX_TOLD]
    lockups = {node: words for node in shown if (words := lockup(figures, node))}
    how = max(how, Severity.WARNING) if lockups else how
    names = [figures.names.of(node) for node in subjects]
    told = [
        "; ".join(
            filter(
                None, [kept(figures, node), f"the task {does(figures, node)}", lockups.get(node)]
            )
        )
        for node in shown
    ]
    # Threads of one process have the same command.
    found = [remedy for node in shown for remedy in _remedies(figures, node, waiters)]
    first = {each.command: each for each in reversed(found)}
    remedies = [each for each in found if each is first[each.command]]
    nearest = sorted(
        figures.waiters(subjects[0]), key=lambda node: (-int(figures.behind.tasks[node]), node)
    )
    cause = _cause(figures, _devices(figures, subjects, is_sure=True), of_devices)
    finding = Finding(
        id=f"waits-behind:{figures.tasks.pid(subjects[0])}",
        severity=how,
        danger=danger(how),
        tasks=figures.tasks.pids({*subjects, *waiters}),
        title=waits.title(listed(names, MAX_TOLD)),
        evidence="" if len(names) > 1 else f"{names[0]} {told[0]}",
        story=tuple(f"{name} {what}" for name, what in zip(names, told, strict=False))
        if len(names) > 1
        else (),
        figures=waits.figures,
        remedies=tuple(remedies),
        no_remedy="" if remedies or cause in of_devices else _no_remedy(figures, subjects[0]),
        patch=patch_behind(
            figures.tasks.functions(subjects[0]),
            [figures.tasks.functions(node) for node in nearest[:_MAX_STACKS]],
        ),
        part_of=cause,
    )
    # The sentences name what each task keeps, and what it waits for.
    named = [n for each in shown for n in (*objects_of(figures, each), *awaited(figures, each))]
    return Told(finding, shown, named)


def _remedies(figures: Figures, node: int, waiters: set[int]) -> Iterator[Remedy]:
    if figures.tasks.traced(node):
        yield from let_go(figures, node)
        return
    if figures.tasks.state(node) is State.STOPPED:
        yield go_on(figures, node)
    if figures.tasks.state(node) is State.FROZEN:
        yield thaw(figures, node)
    if figures.tasks.is_running(node) or starves(figures, node):
        yield from release(figures, node)
    if figures.tasks.has_other_process(node, waiters):
        yield from kills(figures, node, "release its locks and other objects")


def _no_remedy(figures: Figures, node: int) -> str:
    """Return the advice of the nearest edge or device, in the absence of a remedy."""
    graph = figures.graph.sure
    edges = [graph.edge[edge].advice for edge in graph.preceding[node]]
    reached = np.flatnonzero(graph.reached([node])).tolist()
    ends = [graph.kind[each].advice for each in reached if graph.kind[each].is_device]
    advice = next(filter(None, [*edges, *ends]), "")
    if figures.tasks.is_running(node):
        return ". ".join(filter(None, [advice, loops(figures, node)]))
    return advice or _LOOK


def exited(figures: Figures, subject: int) -> Told:
    """Return the finding about tasks that wait for one that has exited."""
    waits = stall(figures, subject)
    is_sure = not figures.kernel.live and not figures.waiting.tasks.damaged
    is_program = figures.tasks.is_program(figures.waiters(subject))
    oopses, address = figures.log.oopses, int(figures.graph.address[subject])
    if figures.tasks.pid(subject):
        name = f"{figures.names.of(subject)}, which has exited"
    elif oopses:
        # An oops kills its task with all that it holds; the memory of the task is used again.
        one = "" if len(oopses) == 1 else "one of "
        name = f"an exited task, probably {one}{listed(oopses, MAX_TOLD)}, killed by an oops"
    else:
        name = figures.names.of(subject)
    what = "Restart the program" if is_program else restart(figures)
    finding = Finding(
        id=f"waits-exited:{address:x}",
        severity=Severity.CRITICAL if is_sure and not is_program else Severity.WARNING,
        danger=Danger.STALL,
        tasks=waits.tasks,
        title=waits.title(name),
        evidence=f"the dead task (0x{address:x}) {kept(figures, subject)}"
        + (f"; the log has an oops of {listed(oopses, MAX_TOLD)}" * bool(oopses)),
        figures=waits.figures,
        no_remedy=f"{what}: a dead task releases nothing",
    )
    return Told(finding, [subject], objects_of(figures, subject))


def unheld(figures: Figures, node: int, of_devices: Collection[str] = ()) -> Told:
    """Return the finding about tasks that wait for an object without a known holder or waker.

    :param of_devices: ids of the findings about devices
    """
    waits, graph = stall(figures, node), figures.graph
    how = severity(waits.count, waits.seconds) or Severity.NOTICE
    kind, address = graph.kind[node], int(graph.address[node])
    readers = figures.waiting.readers.get(address, 0)
    ends = [int(graph.target[edge]) for edge in graph.following[node]][:MAX_TOLD]
    proofs = [graph.evidence[edge] for edge in graph.following[node]]
    hints = [
        f"possible holder: {figures.names.of(end)} [{proof}]"
        for end, proof in zip(ends, proofs, strict=False)
    ]
    if readers > 0:
        hints.insert(0, f"the lock counts its readers ({readers:,}) without naming them")
    is_one = len(ends) == 1 and graph.kind[ends[0]] is TASK
    is_who = f"probably {figures.names.of(ends[0])}" if is_one else "unknown"
    search = (
        "Search the stacks of all tasks for the address of the lock (in crash: `search -t "
        f"{address:x}`), and for functions that take such a lock"
    )
    finding = Finding(
        id=f"waits-unheld:{address:x}",
        severity=how,
        danger=danger(how),
        tasks=waits.tasks,
        is_generic=True,
        title=f"{waits.title(figures.names.of(node))}; the "
        f"{'holder' if kind.is_lock or ends else 'waker'} is {is_who}",
        evidence="; ".join(hints[:MAX_TOLD]),
        figures=waits.figures,
        no_remedy=kind.advice or (_LOOK if is_one else search if kind.is_lock else LOOK_AT_STACKS),
        part_of=_cause(figures, _devices(figures, [node]), of_devices),
    )
    first = figures.first_tasks(node)[:MAX_TOLD]
    return Told(with_types_first(finding, untyped(figures, first)), [node], ends, first)


def for_devices(figures: Figures, roots: list[int], tasks: set[int]) -> Iterator[Told]:
    """Yield the findings about tasks that wait for the I/O of devices, one for each.

    A task that waits for several is in the finding of the one with most tasks.

    :param roots: the devices, or objects that may wait for them
    """
    by_devices: dict[tuple[int, ...], list[int]] = {}
    for targets, some in _by_targets(figures, roots).items():
        found = some if some == [*targets] else _devices(figures, some)
        by_devices.setdefault(tuple(found), []).extend(some)
    behind_all = {devices: figures.waiters(*some) & tasks for devices, some in by_devices.items()}
    groups = sorted(behind_all.items(), key=lambda item: (-len(item[1]), item[0]))
    rest = groups[_MAX_DEVICES - 1 :]
    if len(rest) > 1:
        # All others together.
        others = tuple(dict.fromkeys(node for nodes, _ in rest for node in nodes))
        groups[_MAX_DEVICES - 1 :] = [(others, set[int]().union(*(own for _, own in rest)))]
    seen: set[int] = set()
    for devices, own in groups:
        if told := _for_device(figures, [*devices], own - seen):
            yield told
        seen |= own


def _by_targets(figures: Figures, roots: list[int]) -> dict[tuple[int, ...], list[int]]:
    """Return the roots by what they may wait for; a device is its own target."""
    graph = figures.graph
    groups: dict[tuple[int, ...], list[int]] = {}
    for root in roots:
        ends = {int(graph.target[edge]) for edge in graph.following[root]}
        is_device = graph.kind[root].is_device
        groups.setdefault((root,) if is_device else tuple(sorted(ends)), []).append(root)
    return groups


def _for_device(figures: Figures, devices: list[int], tasks: set[int]) -> Told | None:
    """Return the finding about a device; its numbers are those of all tasks behind it.

    :param tasks: those that no other finding is about
    """
    longest = max(tasks, key=lambda node: (int(figures.ages[node]), -node), default=-1)
    seconds = max(int(figures.ages[longest]) / 1e9, 0.0) if longest >= 0 else 0.0
    is_least = longest >= 0 and bool(figures.is_least[longest])
    how = severity(len(tasks), seconds)
    if how is None or seconds < LATE:
        return None
    every = tasks | figures.waiters(*devices)
    waits = Stall(figures.tasks.pids(every), len(every), seconds, is_least)
    names = listed([figures.names.object(node) for node in devices], MAX_TOLD)
    late = {node for node in tasks if figures.ages[node] >= LATE * 1e9}
    place = figures.tasks.place(longest)
    graph = figures.graph
    kinds = dict.fromkeys(graph.kind[node] for node in devices)
    if any(graph.kind[node] is REQUEST for node in np.flatnonzero(graph.reached([*tasks]))):
        kinds = {DISK: None}
    finding = Finding(
        id=f"waits-io:{_joined(figures, devices)}",
        evidence="; ".join(
            [
                f"longest wait: {figures.names.of(longest)}{f' in {place}' if place else ''}",
                *states(figures, every, devices),
                *_stacked(figures, devices),
                *_hints(figures, tasks),
                *_reported(figures, devices),
                *figures.names.programs(tasks),
            ]
        ),
        severity=how,
        danger=danger(how),
        # Short waits are usual: a finding about the long ones explains all of it.
        tasks=figures.tasks.pids(late),
        is_generic=True,
        part_of=_stuck(figures, devices),
        title=waits.title(f"I/O{f' of {names}' if names else ''}{_mounted(figures, devices)}"),
        figures=waits.figures,
        no_remedy=next(filter(None, (kind.advice for kind in kinds)), LOOK_AT_STACKS),
    )
    finding = with_types_first(finding, untyped(figures, [longest], devices))
    return Told(finding, devices, [longest])


def _mounted(figures: Figures, devices: list[int]) -> str:
    """Return where the file systems of a device are mounted, in brackets; empty if unknown."""
    words = ""
    with suppress(*MISSING):
        disks = [each.address for each in block_devices(figures.kernel).disks]
        own = [int(figures.graph.address[device]) for device in devices]
        if len(own) == 1 and own[0] in disks:
            words = mounted_on(figures.kernel, disks.index(own[0]))
    return f" ({words})" * bool(words)


def _joined(figures: Figures, devices: list[int]) -> str:
    names = [figures.names.object(node) for node in devices] or ["unknown"]
    rest = len(names) - _MAX_DEVICES
    return ":".join(names[:_MAX_DEVICES]) + f":+{rest}" * (rest > 0)


def _cause(figures: Figures, devices: list[int], of_devices: Collection[str]) -> str:
    """Return the id of the finding about the devices, or else of the one that does not answer."""
    if not devices:
        return ""
    own = f"waits-io:{_joined(figures, devices)}"
    if own in of_devices:
        return own
    # A flusher may write to one of several devices that are told of together.
    names = {figures.names.object(node) for node in devices}
    shared = (each for each in of_devices if names <= {*each.split(":")[1:]})
    return next(shared, _stuck(figures, devices))


def _stuck(figures: Figures, devices: list[int]) -> str:
    """Return the id of the finding that the only device does not answer, if there is one."""
    return f"requests-stuck:{figures.names.object(devices[0])}" if len(devices) == 1 else ""


def _devices(figures: Figures, roots: list[int], *, is_sure: bool = False) -> list[int]:
    """Return the devices that objects wait for in the end, without those below them, by name.

    :param is_sure: whether possible edges lead to none
    """
    graph = figures.graph.sure if is_sure else figures.graph
    reached = [node for node in np.flatnonzero(graph.reached(roots)) if graph.kind[node].is_device]

    def is_last(node: int) -> bool:
        ends = np.flatnonzero(figures.graph.sure.reached([node])).tolist()
        return all(end == node or not graph.kind[end].is_device for end in ends)

    awaited_ones = [
        int(node)
        for node in reached
        if any(graph.edge[edge].is_wait for edge in graph.preceding[node])
    ]
    return sorted(filter(is_last, awaited_ones), key=figures.names.object)


def _stacked(figures: Figures, devices: list[int]) -> Iterator[str]:
    """Yield what devices, and those above them, are stacked on."""
    yield from places_above(figures, devices)


def _hints(figures: Figures, tasks: set[int]) -> Iterator[str]:
    """Yield sentences of finders about objects between tasks and devices."""
    graph, shown = figures.graph.sure, 0
    finders = [finder for finder in figures.waiting.finders if type(finder).hint is not Finder.hint]
    for node in np.flatnonzero(graph.reached(tasks)).tolist() if finders else ():
        kind, address = graph.kind[node], int(graph.address[node])
        for finder in finders:
            text = ""
            with suppress(*MISSING):
                text = finder.hint(kind, address) if kind in finder.kinds else ""
            if text and shown < MAX_TOLD:
                shown += 1
                yield printable(text)


def _reported(figures: Figures, devices: list[int]) -> Iterator[str]:
    """Yield phrases about the messages of the log on devices."""
    for node in devices:
        name = figures.waiting.names.get(
            (figures.graph.kind[node], int(figures.graph.address[node]))
        )
        if name and (text := log_evidence(figures.kernel, name, ())):
            yield text


def alone(figures: Figures, tasks: list[int]) -> Iterator[Told]:
    """Yield the finding about tasks that have been in state D for long, for an unknown reason.

    :param tasks: those that slept longest first
    """
    if not tasks:
        return
    longest, shown = int(figures.ages[tasks[0]]) / 1e9, tasks[:MAX_TOLD]
    finding = Finding(
        id="waits-alone",
        severity=Severity.WARNING,
        danger=Danger.STALL,
        tasks=figures.tasks.pids(tasks),
        title=f"{tasks_have(len(tasks))} been in state D for "
        f"{'up to ' * (len(tasks) > 1)}{human_seconds(longest)}, for an unknown reason",
        story=tuple(f"{figures.names.of(node)}: {does(figures, node)}" for node in shown),
        figures={"tasks": Figure(len(tasks)), "longest": Figure(longest, Unit.SECONDS)},
        no_remedy=LOOK_AT_STACKS,
    )
    finding = with_types_first(finding, untyped(figures, shown))
    yield Told(finding, [], [n for each in shown for n in (each, *awaited(figures, each))])
