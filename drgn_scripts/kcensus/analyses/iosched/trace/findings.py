# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of a trace: requests that a scheduler held back while it served others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kcensus.analyses.iosched.trace.figures import ASYNC_WRITE, CLASSES, Figures
from kcensus.analyses.iosched.trace.turns import lost_turns
from kcensus.human import human_seconds
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import printable
from kcensus.trace.bios import NEVER
from kcensus.trace.events import major_minor
from kcensus.trace.queues import Queue

_SEVERITIES = ((10.0, Severity.CRITICAL), (5.0, Severity.WARNING), (1.0, Severity.NOTICE))
"""Seconds from which on a wait is this severe. CFQ and BFQ expire asynchronous requests after
0.25 s, deadline writes after 5 s; a system call that waits for 10 s is a stall to any user."""
_MIN_OVERTAKEN = 10
"""With fewer synchronous requests dispatched meanwhile, the device was slow, not the scheduler."""
_MAX_DEVICES = 8


def findings(figures: Figures) -> list[Finding]:
    """Return what to act on: the devices with the longest waits first."""
    late = np.flatnonzero(figures.wait >= int(_SEVERITIES[-1][0] * 1e9))
    known, code = np.unique(figures.bios.device[late], return_inverse=True)
    longest = np.zeros(len(known), np.int64)
    np.maximum.at(longest, code, figures.wait[late])
    devices = known[np.argsort(-longest, kind="stable")].tolist()
    found: list[Finding] = []
    shown = 0
    for place, device in enumerate(devices):
        of_device = [*_starved(figures, device), *_stuck(figures, device)]
        found += of_device
        shown += bool(of_device)
        if shown == _MAX_DEVICES and (left := len(devices) - place - 1):
            more = Figure(left, Unit.COUNT, "more devices with waits over 1 s")
            found[0] = replace(found[0], figures={**found[0].figures, "more_devices": more})
            break
    return found


def _starved(figures: Figures, device: int) -> Iterator[Finding]:
    """Yield the finding that asynchronous writes waited while synchronous requests went first."""
    bios, waits = figures.bios, figures.wait
    mine = (figures.kind == ASYNC_WRITE) & (bios.device == device)
    rows = np.flatnonzero(mine & (waits >= int(_SEVERITIES[-1][0] * 1e9)))
    if not len(rows):
        return
    overtaken = figures.overtaken(rows)
    rows, overtaken = rows[overtaken >= _MIN_OVERTAKEN], overtaken[overtaken >= _MIN_OVERTAKEN]
    if not len(rows):
        return
    longest = int(np.argmax(waits[rows]))
    row, meanwhile = int(rows[longest]), int(overtaken[longest])
    seconds = float(waits[row]) / 1e9
    severity = next(each for least, each in _SEVERITIES if seconds >= least)
    name = major_minor(device)
    queues = [queue for queue in figures.queues if queue.device == device]
    schedulers = {queue.scheduler for queue in queues}
    lost = lost_turns(figures, device)
    yield Finding(
        id=f"trace-async-starved:{name}",
        severity=severity,
        danger=Danger.STALL,
        title=(
            f"{name}: an async write waited {human_seconds(seconds)} in the scheduler while "
            f"{meanwhile:,} sync requests were dispatched"
        ),
        evidence="; ".join([_described(figures, row), *_preempted(queues), *_unfixed(lost)]),
        figures={
            "waited": Figure(seconds, Unit.SECONDS, "longest wait"),
            "sync_dispatches": Figure(meanwhile, Unit.COUNT, "sync dispatches meanwhile"),
            "starved": Figure(len(rows), Unit.COUNT, "async writes over 1 s"),
            "waiting": Figure(
                int(figures.is_waiting[rows].sum()), Unit.COUNT, "of these, still waiting"
            ),
            **({} if lost is None else {"turns_lost": Figure(lost, Unit.COUNT, "turns lost")}),
        },
        remedies=(_remedy(device, schedulers),),
        patch="cfq-async-starvation" if lost else "",
    )


def _stuck(figures: Figures, device: int) -> Iterator[Finding]:
    """Yield the finding that synchronous requests waited long in the scheduler."""
    bios, waits = figures.bios, figures.wait
    mine = figures.is_sync & (bios.device == device)
    rows = np.flatnonzero(mine & (waits >= int(_SEVERITIES[-1][0] * 1e9)))
    if not len(rows):
        return
    row = int(rows[np.argmax(waits[rows])])
    seconds = float(waits[row]) / 1e9
    severity = next(each for least, each in _SEVERITIES if seconds >= least)
    name = major_minor(device)
    yield Finding(
        id=f"trace-sync-delayed:{name}",
        severity=min(severity, Severity.WARNING),
        title=(
            f"{name}: {len(rows):,} sync requests waited over 1 s in the scheduler, "
            f"one of them {human_seconds(seconds)}"
        ),
        evidence=_described(figures, row),
        figures={
            "waited": Figure(seconds, Unit.SECONDS, "longest wait"),
            "delayed": Figure(len(rows), Unit.COUNT, "sync requests over 1 s"),
        },
        no_remedy=(
            "the trace does not show whether a limit, the scheduler's weights or the device is "
            "the cause: compare D2C and the queues"
        ),
    )


def _described(figures: Figures, row: int) -> str:
    """Return what there is to know about one request."""
    bios, rows = figures.bios, np.array([row])
    index, names = figures.tasks(rows)
    kind = CLASSES[int(figures.kind[row])]
    end = NEVER if figures.is_waiting[row] else int(bios.dispatched[row])
    left = f"dispatched at {end / 1e9:.6f} s" if end != NEVER else "not dispatched until the end"
    since = int(figures.since[row])
    return (
        f"{names[int(index[0])]} (PID {int(bios.pid[row])}): {kind} of {int(bios.bytes[row]):,} "
        f"bytes at sector {int(bios.sector[row])}, inserted at {since / 1e9:.6f} "
        f"s, {left}"
    )


def _preempted(queues: list[Queue]) -> Iterator[str]:
    """Yield what messages say about the asynchronous queue that fared worst."""
    mine = [queue for queue in queues if not queue.is_sync and queue.preempted]
    if mine:
        worst = max(mine, key=lambda queue: (queue.expired_empty, queue.preempted))
        yield (
            f"{printable(worst.name)} was selected {worst.selected:,} times, preempted "
            f"{worst.preempted:,} times, and expired {worst.expired_empty:,} times without a "
            "dispatch"
        )


def _unfixed(lost: int | None) -> Iterator[str]:
    """Yield that the kernel lacks the fix of CFQ, where messages prove it."""
    if lost:
        yield (
            f"in {lost:,} turns, an async queue dispatched nothing although a request in it had "
            "expired: the kernel lacks the fix of CFQ"
        )


def _remedy(device: int, schedulers: set[str]) -> Remedy:
    """Return what to do; only the messages of a trace tell which scheduler the device has."""
    path, hint = _directory(device)
    if not schedulers:
        return Remedy(
            effect=(
                "Show the scheduler and its tunables; with mq-deadline, a lower write_expire or "
                f"writes_starved lets writes go earlier{hint}"
            ),
            command=f"grep . {path}/scheduler {path}/iosched/*",
        )
    name = "deadline" if "cfq" in schedulers else "mq-deadline"
    return Remedy(
        effect=(
            f"Switch to {name}, which dispatches a write that has expired (write_expire, 5 s){hint}"
        ),
        command=f"echo {name} > {path}/scheduler",
        risk="I/O priorities and the weights of cgroups have less effect or none",
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
