# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of a trace: requests that a scheduler held back while later ones overtook them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kcensus.analyses.iosched.degrees import (
    IN_SCHEDULER,
    SWITCH_HANGS,
    SWITCH_RISK,
    severity,
    shortest,
    shortest_ns,
)
from kcensus.analyses.iosched.trace.device import is_stuck, stalls
from kcensus.analyses.iosched.trace.figures import ASYNC_WRITE, Figures
from kcensus.analyses.iosched.trace.sentences import described, over
from kcensus.analyses.iosched.trace.turns import lost_turns
from kcensus.human import counted, human_seconds
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import printable
from kcensus.trace.events import Integers, major_minor
from kcensus.trace.queues import Queue

_UNKNOWN = ((10.0, Severity.CRITICAL), (5.0, Severity.WARNING))
"""Seconds where no message shows CFQ or BFQ: mq-deadline lets writes wait for 5 s by intention
(write_expire), kyber and none have no expiry."""
_MIN_OVERTAKEN = 10
_AWAITED = "trace-requests-awaited"
_MAX_CANDIDATES = 1000
_MAX_DEVICES = 8


def findings(figures: Figures) -> list[Finding]:
    """Return what to act on: the most severe first, then the longest waits."""
    found = {}
    for device in _late(figures):
        main = sorted([*_starved(figures, device), *stalls(figures, device)], key=_rank)
        lead = next((each.id for each in main if each.kind != _AWAITED), "")
        of_device = [
            replace(each, part_of=lead) if each.kind == _AWAITED else each
            for each in [*main, *_delayed(figures, device)]
        ]
        if of_device:
            found[device] = of_device
    order = sorted(found, key=lambda device: min(map(_rank, found[device])))
    shown = [each for device in order[:_MAX_DEVICES] for each in found[device]]
    shown.sort(key=_rank)
    if len(order) > _MAX_DEVICES:
        more = Figure(len(order) - _MAX_DEVICES, Unit.COUNT, "more devices with findings")
        shown[0] = replace(shown[0], figures={**shown[0].figures, "more_devices": more})
    return shown


def _late(figures: Figures) -> list[int]:
    """Return the devices with waits that a finding may be about."""
    second = shortest_ns(IN_SCHEDULER)
    waits = (figures.wait, figures.in_driver, figures.requeued, figures.without_request)
    rows = np.flatnonzero(np.logical_or.reduce([each >= second for each in waits]))
    found: list[int] = np.unique(figures.bios.device[rows]).tolist()
    return found


def _rank(finding: Finding) -> tuple[int, float]:
    seconds = finding.figures.get("held", finding.figures["waited"]).value
    assert isinstance(seconds, float)
    return -finding.severity, -seconds


def _starved(figures: Figures, device: int) -> Iterator[Finding]:
    """Yield that later synchronous requests overtook asynchronous writes for long."""
    queues = [queue for queue in figures.queues if queue.device == device]
    schedulers = {queue.scheduler for queue in queues}
    steps = IN_SCHEDULER if schedulers else _UNKNOWN
    least = shortest_ns(steps)
    mine = (figures.kind == ASYNC_WRITE) & (figures.bios.device == device)
    rows = np.flatnonzero(mine & (figures.wait >= least))
    held = figures.held(rows)
    rows, held = rows[held >= least], held[held >= least]
    chosen = _overtaken_most(figures, rows, held)
    if chosen is None:
        return
    place, meanwhile = chosen
    row, seconds = int(rows[place]), float(held[place]) / 1e9
    waited = float(figures.wait[row]) / 1e9
    how = severity(seconds, steps)
    assert how is not None
    silent = float(_silence(figures, device, rows[[place]])[0]) / 1e9
    name, lost, hangs = major_minor(device), lost_turns(figures, device), is_stuck(figures, device)
    yield Finding(
        id=f"trace-async-starved:{name}",
        severity=how,
        danger=Danger.STALL,
        title=(
            f"{name}: {counted(len(rows), 'async write')} waited in the scheduler while later sync "
            f"requests overtook them, one for {human_seconds(seconds)}"
        ),
        evidence=". ".join(
            [
                described(figures, row)
                + f"; {counted(meanwhile, 'sync request')} inserted later went first",
                *_silent(silent),
                *_preempted(queues),
                *_unfixed(lost),
            ]
        ),
        figures={
            "waited": Figure(waited, Unit.SECONDS, "wait of that write"),
            "held": Figure(seconds, Unit.SECONDS, "of this, while overtaken"),
            "sync_dispatches": Figure(meanwhile, Unit.COUNT, "later requests that overtook"),
            "starved": Figure(len(rows), Unit.COUNT, f"async writes over {shortest(steps):.0f} s"),
            "waiting": Figure(
                int(figures.is_waiting[rows].sum()), Unit.COUNT, "of these, still waiting"
            ),
            **({} if lost is None else {"turns_lost": Figure(lost, Unit.COUNT, "turns lost")}),
        },
        remedies=() if hangs else (_remedy(device, schedulers),),
        no_remedy=SWITCH_HANGS if hangs else "",
        patch="cfq-async-starvation" if lost else "",
    )


def _overtaken_most(figures: Figures, rows: Integers, held: Integers) -> tuple[int, int] | None:
    """Return the place of the request that was held longest, and how many overtook it."""
    order = np.argsort(-held, kind="stable")[:_MAX_CANDIDATES]
    overtaken = figures.overtaken(rows[order])
    enough = np.flatnonzero(overtaken >= _MIN_OVERTAKEN)
    return (int(order[enough[0]]), int(overtaken[enough[0]])) if len(enough) else None


def _silence(figures: Figures, device: int, rows: Integers) -> Integers:
    """Return how long the device dispatched nothing while requests waited."""
    begin = figures.since[rows]
    return figures.silence(device, begin, begin + figures.wait[rows])


def _delayed(figures: Figures, device: int) -> Iterator[Finding]:
    """Yield that synchronous requests waited long while the device dispatched others."""
    least = shortest_ns(IN_SCHEDULER)
    mine = figures.is_sync & (figures.bios.device == device)
    rows = np.flatnonzero(mine & (figures.wait >= least))
    active = figures.wait[rows] - _silence(figures, device, rows)
    rows, active = rows[active >= least], active[active >= least]
    if not len(rows):
        return
    place = int(np.argmax(active))
    row, seconds = int(rows[place]), float(active[place]) / 1e9
    how = severity(seconds, IN_SCHEDULER)
    assert how is not None
    waited = float(figures.wait[row]) / 1e9
    name = major_minor(device)
    yield Finding(
        id=f"trace-sync-delayed:{name}",
        severity=min(how, Severity.WARNING),
        title=(
            f"{name}: {counted(len(rows), 'sync request')} waited "
            f"{over(len(rows), shortest(IN_SCHEDULER), seconds)} in the scheduler while others "
            "were dispatched"
        ),
        evidence=". ".join([described(figures, row), *_silent(waited - seconds)]),
        figures={
            "waited": Figure(waited, Unit.SECONDS, "wait of that request"),
            "delayed": Figure(len(rows), Unit.COUNT, "sync requests over 1 s"),
        },
        no_remedy=(
            "The trace does not show whether a limit, the scheduler's weights or the device is "
            "the cause: compare D2C and the queues"
        ),
    )


def _silent(seconds: float) -> Iterator[str]:
    """Yield how much of a wait is not the scheduler's."""
    if seconds >= 1:
        yield f"For {human_seconds(seconds)} of the wait, the device dispatched nothing"


def _preempted(queues: list[Queue]) -> Iterator[str]:
    """Yield what messages say about the asynchronous queue with most turns without a dispatch."""
    mine = [queue for queue in queues if not queue.is_sync and queue.preempted]
    if mine:
        worst = max(mine, key=lambda queue: (queue.expired_empty, queue.preempted))
        yield (
            f"{printable(worst.name)} was selected {counted(worst.selected, 'time')}, preempted "
            f"{counted(worst.preempted, 'time')}, and expired "
            f"{counted(worst.expired_empty, 'time')} without a dispatch"
        )


def _unfixed(lost: int | None) -> Iterator[str]:
    """Yield that the kernel lacks the fix of CFQ, where messages prove it."""
    if lost:
        yield (
            f"In {counted(lost, 'turn')}, an async queue dispatched nothing although a request in "
            "it had waited for 250 ms: unless fifo_expire_async is longer than this default, the "
            "kernel lacks the fix of CFQ"
        )


def _remedy(device: int, schedulers: set[str]) -> Remedy:
    """Return what to do; only the messages of a trace show which scheduler the device has."""
    path, hint = _directory(device)
    if not schedulers:
        return Remedy(
            effect=(
                "Shows the scheduler and its tunables: the trace has no messages of CFQ or BFQ. "
                "With mq-deadline, lower write_expire and writes_starved let writes go earlier"
                f"{hint}"
            ),
            command=f"grep . {path}/scheduler {path}/iosched/*",
        )
    name = "deadline" if "cfq" in schedulers else "mq-deadline"
    return Remedy(
        effect=(
            f"Switches the disk to {name}, which dispatches a write that has expired "
            f"(write_expire, 5 s), after all its requests are done{hint}"
        ),
        command=f"echo {name} > {path}/scheduler",
        risk=SWITCH_RISK,
        undo=f"echo {min(schedulers)} > {path}/scheduler",
        until="reboot",
    )


def _directory(device: int) -> tuple[str, str]:
    """Return the directory of a queue in sysfs, and what to say where it may be another one.

    A trace does not tell disks from partitions, which have the queue of their disk; numbers of
    SCSI disks do, and the first minor of a driver is a disk.
    """
    major, minor = device >> 20, device & 0xFFFFF
    path = f"/sys/dev/block/{major}:{minor}"
    # sd_major() in drivers/scsi/sd.c.
    if major == 8 or 65 <= major <= 71 or 128 <= major <= 135:
        return f"{path}/queue" if minor % 16 == 0 else f"{path}/../queue", ""
    hint = f"; if it is a partition, the directory is {path}/../queue"
    return f"{path}/queue", hint if minor else ""
