# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of a trace: requests that a scheduler held back, and a device that stalls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kcensus.analyses.iosched.degrees import (
    IN_DRIVER,
    IN_SCHEDULER,
    LOOK_AT_DEVICE,
    SWITCH_HANGS,
    SWITCH_RISK,
    Steps,
    severity,
    shortest,
    shortest_ns,
)
from kcensus.analyses.iosched.trace.figures import ASYNC_WRITE, CLASSES, Figures
from kcensus.analyses.iosched.trace.turns import lost_turns
from kcensus.human import counted, human_seconds
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.sources.blktrace.bios import NEVER
from kcensus.sources.blktrace.events import Integers, Mask, major_minor
from kcensus.sources.blktrace.queues import Queue
from kcensus.text import printable, task_name

_UNKNOWN = ((10.0, Severity.CRITICAL), (5.0, Severity.WARNING))
"""Least seconds, by severity, unless messages show CFQ or BFQ: mq-deadline lets writes wait for 5 s
by intention (write_expire), kyber and none have no expiry."""
_MIN_OVERTAKEN = 10
_AWAITED = "trace-requests-awaited"
_MAX_CANDIDATES = 1000
_MAX_DEVICES = 8
_MAX_HOLES = 32
_LATE = 10_000_000


def findings(figures: Figures) -> list[Finding]:
    """Return all findings: the most severe first, then the longest waits."""
    found = {}
    for device in _late(figures):
        main = sorted(_of_device(figures, device), key=_rank)
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
    second = shortest_ns(IN_SCHEDULER)
    waits = (figures.wait, figures.in_driver, figures.requeued, figures.without_request)
    rows = np.flatnonzero(np.logical_or.reduce([each >= second for each in waits]))
    found: list[int] = np.unique(figures.bios.device[rows]).tolist()
    return found


def _rank(finding: Finding) -> tuple[int, float]:
    seconds = finding.figures.get("held", finding.figures["waited"]).value
    assert isinstance(seconds, float)
    return -finding.severity, -seconds


def _of_device(figures: Figures, device: int) -> Iterator[Finding]:
    mine = figures.bios.device == device
    yield from _starved(figures, device)
    for kind in (_stuck, _idle, _requeued, _without_request):
        yield from kind(figures, device, mine)


def _starved(figures: Figures, device: int) -> Iterator[Finding]:
    queues = [queue for queue in figures.queues if queue.device == device]
    schedulers = {queue.scheduler for queue in queues}
    steps = IN_SCHEDULER if schedulers else _UNKNOWN
    least = shortest_ns(steps)
    mine = figures.bios.device == device
    rows = np.flatnonzero(mine & (figures.kind == ASYNC_WRITE) & (figures.wait >= least))
    held = figures.held(rows)
    rows, held = rows[held >= least], held[held >= least]
    place, meanwhile = _overtaken_most(figures, rows, held)
    seconds = float(held[place]) / 1e9 if meanwhile else 0.0
    how = severity(seconds, steps)
    if how is None:
        return
    row = int(rows[place])
    waited = float(figures.wait[row]) / 1e9
    silent = float(_silence(figures, device, rows[[place]])[0]) / 1e9
    name, lost = major_minor(device), lost_turns(figures, device)
    waits = figures.in_driver[mine & figures.is_in_driver]
    hangs = bool((waits >= shortest_ns(IN_DRIVER)).any())
    yield Finding(
        id=f"trace-async-starved:{name}",
        severity=how,
        danger=Danger.STALL,
        title=(
            f"{name}: later sync requests overtook {counted(len(rows), 'async write')} in the "
            f"scheduler, {'the longest ' * (len(rows) > 1)}for {human_seconds(seconds)}"
        ),
        evidence=". ".join(
            [
                _described(figures, row)
                + f"; {counted(meanwhile, 'sync request')} inserted later overtook this write",
                *_silent(silent),
                *_preempted(queues),
                *_unfixed(lost),
            ]
        ),
        figures={
            "waited": Figure(waited, Unit.SECONDS, "wait of the write"),
            "held": Figure(seconds, Unit.SECONDS, "wait while overtaken"),
            "sync_dispatches": Figure(meanwhile, Unit.COUNT, "later sync requests"),
            "starved": Figure(len(rows), Unit.COUNT, f"async writes over {shortest(steps):.0f} s"),
            "waiting": Figure(
                int(figures.is_waiting[rows].sum()), Unit.COUNT, "writes still waiting"
            ),
            **({} if lost is None else {"turns_lost": Figure(lost, Unit.COUNT, "turns lost")}),
        },
        remedies=() if hangs else (_remedy(device, schedulers),),
        no_remedy=f"{SWITCH_HANGS}. {LOOK_AT_DEVICE}" if hangs else "",
        patch="cfq-async-starvation" if lost else "",
    )


def _overtaken_most(figures: Figures, rows: Integers, held: Integers) -> tuple[int, int]:
    """Return the place and number of overtakers of the longest held request; 0, 0 if they are few.

    Requests with fewer than :data:`_MIN_OVERTAKEN` overtakers do not count.
    """
    order = np.argsort(-held, kind="stable")[:_MAX_CANDIDATES]
    overtaken = figures.overtaken(rows[order])
    enough = np.flatnonzero(overtaken >= _MIN_OVERTAKEN)
    return (int(order[enough[0]]), int(overtaken[enough[0]])) if len(enough) else (0, 0)


def _silence(figures: Figures, device: int, rows: Integers) -> Integers:
    begin = figures.bios.inserted[rows]
    return figures.silence(device, begin, begin + figures.wait[rows])


def _delayed(figures: Figures, device: int) -> Iterator[Finding]:
    least = shortest_ns(IN_SCHEDULER)
    mine = figures.is_sync & (figures.bios.device == device)
    rows = np.flatnonzero(mine & (figures.wait >= least))
    waits = _waits(rows, figures.wait[rows] - _silence(figures, device, rows), IN_SCHEDULER)
    if waits is None:
        return
    waited, name = float(figures.wait[waits.longest]) / 1e9, major_minor(device)
    yield Finding(
        id=f"trace-sync-delayed:{name}",
        severity=min(waits.severity, Severity.WARNING),
        title=f"{name}: {counted(len(waits.rows), 'sync request')} waited {waits.over} in the "
        "scheduler while others were dispatched",
        evidence=". ".join([_described(figures, waits.longest), *_silent(waited - waits.seconds)]),
        figures={
            "waited": Figure(waited, Unit.SECONDS, "wait of the request"),
            "delayed": Figure(len(waits.rows), label="sync requests over 1 s"),
        },
        no_remedy=(
            "The trace does not show the cause. Compare D2C (device) in `kcensus iosched --trace "
            "TRACE --table trace_phases` with the turns (weights and limits) in `kcensus iosched "
            "--trace TRACE --table trace_queues`"
        ),
    )


def _silent(seconds: float) -> Iterator[str]:
    """Yield a sentence about the part of a wait in which the device dispatched nothing."""
    if seconds >= 1:
        yield f"For {human_seconds(seconds)} of the wait, the device dispatched nothing"


def _preempted(queues: list[Queue]) -> Iterator[str]:
    """Yield a sentence about the asynchronous queue with most turns without a dispatch."""
    mine = [queue for queue in queues if not queue.is_sync and queue.preempted]
    if mine:
        worst = max(mine, key=lambda queue: (queue.expired_empty, queue.preempted))
        yield (
            f"{printable(worst.name)} was selected {counted(worst.selected, 'time')}, preempted "
            f"{counted(worst.preempted, 'time')}, and expired "
            f"{counted(worst.expired_empty, 'time')} without a dispatch"
        )


def _unfixed(lost: int | None) -> Iterator[str]:
    """Yield a sentence about the missing fix of CFQ, if messages prove lost turns."""
    if lost:
        yield (
            f"In {counted(lost, 'turn')}, an async queue dispatched nothing although one of its "
            "requests had waited for 250 ms: unless fifo_expire_async is above this default, the "
            "kernel lacks the fix of CFQ"
        )


def _remedy(device: int, schedulers: set[str]) -> Remedy:
    """Return the remedy; only the messages of a trace show the scheduler of the device."""
    path, hint = _directory(device)
    if not schedulers:
        return Remedy(
            effect=(
                "Show the scheduler and its tunables: the trace has no messages of CFQ or BFQ. "
                "With mq-deadline, lower values of write_expire and writes_starved dispatch writes "
                f"earlier{hint}"
            ),
            command=f"grep . {path}/scheduler {path}/iosched/*",
        )
    name = "deadline" if "cfq" in schedulers else "mq-deadline"
    return Remedy(
        effect=(
            f"Switch the disk to {name}; the command returns when its requests are done. {name} "
            f"serves writes older than write_expire (5 s) next{hint}"
        ),
        command=f"echo {name} > {path}/scheduler",
        risk=SWITCH_RISK,
        undo=f"echo {min(schedulers)} > {path}/scheduler",
        until="reboot",
    )


def _directory(device: int) -> tuple[str, str]:
    """Return the directory of a queue in sysfs, and a hint if it may be another one.

    A trace does not tell disks from partitions, which have the queue of their disk; numbers of SCSI
    disks do, and the first minor of a driver is a disk.
    """
    major, minor = device >> 20, device & 0xFFFFF
    path = f"/sys/dev/block/{major}:{minor}"
    # sd_major() in drivers/scsi/sd.c.
    if major == 8 or 65 <= major <= 71 or 128 <= major <= 135:
        return f"{path}/queue" if minor % 16 == 0 else f"{path}/../queue", ""
    hint = f"; for a partition, the directory is {path}/../queue"
    return f"{path}/queue", hint if minor else ""


@dataclass(frozen=True)
class _Waits:
    """The waits on a device that are long enough for a finding."""

    rows: Integers
    longest: int
    """Row of the longest wait."""
    seconds: float
    """Duration of the longest wait."""
    least: float
    severity: Severity

    @property
    def over(self) -> str:
        """Duration as words: that of a single wait, or the least and the longest."""
        longest = human_seconds(self.seconds)
        return longest if len(self.rows) == 1 else f"over {self.least:.0f} s (longest: {longest})"


def _waits(rows: Integers, time: Integers, steps: Steps) -> _Waits | None:
    """Return the waits at least as long as the shortest step; None without one.

    :param time: nanoseconds of each row
    """
    seconds = float(time.max(initial=0)) / 1e9
    how = severity(seconds, steps)
    if how is None:
        return None
    late, longest = rows[time >= shortest_ns(steps)], int(rows[np.argmax(time)])
    return _Waits(late, longest, seconds, shortest(steps), how)


def _stuck(figures: Figures, device: int, mine: Mask) -> Iterator[Finding]:
    waits = _waits(np.flatnonzero(mine), figures.in_driver[mine], IN_DRIVER)
    if waits is None:
        return
    starts, ends = figures.holes[device]
    silent = float((ends - starts).max(initial=0)) / 1e9
    left = int(figures.is_in_driver[waits.rows].sum())
    waiting = int((figures.is_waiting & mine).sum())
    name = major_minor(device)
    yield Finding(
        id=f"trace-requests-stuck:{name}",
        severity=waits.severity,
        danger=Danger.STALL,
        title=(
            f"{name}: the driver kept {counted(len(waits.rows), 'request')} for {waits.over}"
            + (f"; {left:,} had not completed at the end of the trace" if left else "")
        ),
        evidence=_described(figures, waits.longest)
        + (f". The device dispatched nothing for up to {human_seconds(silent)}" if silent else "")
        + (
            f". At the end of the trace, {counted(waiting, 'more request')} waited in the scheduler"
            if waiting
            else ""
        ),
        figures={
            "waited": Figure(waits.seconds, Unit.SECONDS, "longest in the driver"),
            "requests": Figure(len(waits.rows), label="requests over 5 s"),
            "left": Figure(left, label="requests in driver at end"),
            "silent": Figure(silent, Unit.SECONDS, "longest without a dispatch"),
            "waiting": Figure(waiting, label="in the scheduler at end"),
        },
        no_remedy=LOOK_AT_DEVICE,
    )


def _idle(figures: Figures, device: int, mine: Mask) -> Iterator[Finding]:
    seconds, rows = 0.0, np.zeros(0, np.int64)
    starts, ends = figures.holes[device]
    long = np.flatnonzero(ends - starts >= shortest_ns(IN_SCHEDULER))
    for place in long[np.argsort(starts[long] - ends[long])][:_MAX_HOLES].tolist():
        took, waiting = _unused(figures, mine, int(starts[place]), int(ends[place]))
        if took > seconds:
            seconds, rows = took, waiting
    how = severity(seconds, IN_SCHEDULER)
    if how is None:
        return
    name, dispatched = major_minor(device), figures.bios.dispatched[mine]
    # blktrace can leave out events (-a), and so can blkparse.
    unseen = bool((dispatched == NEVER).all())
    yield Finding(
        id=f"trace-requests-overdue:{name}",
        severity=min(how, Severity.WARNING) if unseen else how,
        danger=Danger.STALL,
        title=(
            f"{name}: nothing was dispatched for {human_seconds(seconds)} while "
            f"{counted(len(rows), 'request')} waited in the scheduler and the driver had none"
        ),
        evidence=_described(figures, int(rows[0]))
        + (
            ". The trace has no dispatch of this device: it may have been recorded without events D"
            if unseen
            else ". The queue was not run, or events are missing"
        ),
        figures={
            "waited": Figure(seconds, Unit.SECONDS, "longest without a dispatch"),
            "waiting": Figure(len(rows), label="requests that waited"),
        },
        no_remedy=(
            "Look for driver errors in the kernel log; on the running machine, growing counts in "
            f"/sys/dev/block/{name.replace(',', ':')}/stat show that requests complete"
        ),
    )


def _unused(figures: Figures, mine: Mask, start: int, end: int) -> tuple[float, Integers]:
    """Return how long requests waited for an empty driver in a time without a dispatch.

    :return: seconds, and the rows of the requests, the earliest first
    """
    bios = figures.bios
    gone = mine & figures.is_request & (bios.dispatched != NEVER) & (bios.dispatched <= start)
    gone &= (bios.issued <= start) & ~bios.is_lost & ~figures.is_requeued
    if (figures.is_in_driver & gone).any():
        return 0.0, np.zeros(0, np.int64)
    busy = max(int(bios.completed[gone].max(initial=start)), start)
    waits = mine & (bios.inserted != NEVER) & (bios.inserted < end)
    waits &= figures.is_waiting | (bios.dispatched >= end)
    rows = np.flatnonzero(waits)
    if not len(rows) or busy >= end:
        return 0.0, rows[:0]
    rows = rows[np.argsort(bios.inserted[rows], kind="stable")]
    return max(end - max(busy, int(bios.inserted[rows[0]])), 0) / 1e9, rows


def _requeued(figures: Figures, device: int, mine: Mask) -> Iterator[Finding]:
    waits = _waits(np.flatnonzero(mine), figures.requeued[mine], IN_SCHEDULER)
    if waits is None:
        return
    left = int(figures.is_requeued[waits.rows].sum())
    name = major_minor(device)
    yield Finding(
        id=f"trace-requests-requeued:{name}",
        severity=min(waits.severity, Severity.WARNING),
        danger=Danger.STALL,
        title=(
            f"{name}: {counted(len(waits.rows), 'requeued request')} waited {waits.over} to be "
            "dispatched again"
        ),
        evidence=_described(figures, waits.longest)
        + ". The driver or the device had no room for the requests; the scheduler is not the cause",
        figures={
            "waited": Figure(waits.seconds, Unit.SECONDS, "longest wait after a requeue"),
            "requests": Figure(len(waits.rows), label="requests over 1 s"),
            "left": Figure(left, label="requests still waiting"),
        },
        no_remedy=(
            "Look in the kernel log for errors of the device, and at the statistics of the "
            "storage: it was busy or out of resources"
        ),
    )


def _without_request(figures: Figures, device: int, mine: Mask) -> Iterator[Finding]:
    waits = _waits(np.flatnonzero(mine), figures.without_request[mine], IN_DRIVER)
    if waits is None:
        return
    left = int(figures.is_without_request[waits.rows].sum())
    name = major_minor(device)
    yield Finding(
        id=f"trace-requests-awaited:{name}",
        severity=waits.severity,
        danger=Danger.STALL,
        title=f"{name}: {counted(len(waits.rows), 'bio')} waited {waits.over} for a free request",
        evidence=_described(figures, waits.longest),
        figures={
            "waited": Figure(waits.seconds, Unit.SECONDS, "longest wait for a request"),
            "bios": Figure(len(waits.rows), label="bios over 5 s"),
            "left": Figure(left, label="bios still waiting"),
        },
        no_remedy=(
            "All requests or tags of the queue were in use. `kcensus iosched --trace TRACE --table "
            "trace_phases` shows where earlier requests waited: I2D in the scheduler, D2C in the "
            "device"
        ),
    )


def _described(figures: Figures, row: int) -> str:
    """Return a sentence about one request: task, operation, place and times."""
    bios = figures.bios
    index, names = figures.tasks(np.array([row]))
    # The time of queueing matters for a bio that waited for its request, or has none.
    is_late = bios.inserted[row] == NEVER or bios.inserted[row] - bios.queued[row] >= _LATE
    moments = [
        f"{word} at {int(times[row]) / 1e9:.6f} s"
        for word, times in (
            *([("queued", bios.queued)] if is_late else []),
            ("inserted", bios.inserted),
            ("dispatched", bios.dispatched),
            ("completed", bios.completed),
        )
        if times[row] != NEVER
    ]
    return (
        f"{task_name(names[int(index[0])], int(bios.pid[row]))}: "
        f"{CLASSES[int(figures.kind[row])]} of {int(bios.bytes[row]):,} bytes at sector "
        f"{int(bios.sector[row])}, {', '.join([*moments, *_end(figures, row)])}"
    )


def _end(figures: Figures, row: int) -> list[str]:
    """Return the last known state of a request that has not completed."""
    if figures.is_requeued[row]:
        return [f"requeued at {int(figures.bios.returned[row]) / 1e9:.6f} s, not dispatched again"]
    if figures.is_without_request[row]:
        return ["without a request until the end of the trace"]
    if figures.is_waiting[row]:
        return ["not dispatched until the end of the trace"]
    is_left = figures.is_in_driver[row]
    return ["not completed until the end of the trace"] if is_left else []
