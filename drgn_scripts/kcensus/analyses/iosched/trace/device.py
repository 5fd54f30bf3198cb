# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of a trace that are not the scheduler's: a device that stalls, and what waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kcensus.analyses.iosched.degrees import (
    IN_DRIVER,
    IN_SCHEDULER,
    Steps,
    severity,
    shortest,
    shortest_ns,
)
from kcensus.analyses.iosched.trace.figures import Figures
from kcensus.analyses.iosched.trace.sentences import described, over
from kcensus.human import counted, human_seconds
from kcensus.results import Danger, Figure, Finding, Severity, Unit
from kcensus.trace.bios import NEVER
from kcensus.trace.events import Integers, Mask, major_minor

_MAX_HOLES = 32


def stalls(figures: Figures, device: int) -> Iterator[Finding]:
    """Yield the findings about a device."""
    mine: Mask = figures.bios.device == device
    yield from _stuck(figures, device, mine)
    yield from _idle(figures, device, mine)
    yield from _requeued(figures, device, mine)
    yield from _without_request(figures, device, mine)


def is_stuck(figures: Figures, device: int) -> bool:
    """Return whether the driver has requests at the end that it does not finish."""
    mine = (figures.bios.device == device) & figures.is_in_driver
    return bool((figures.in_driver[mine] >= shortest_ns(IN_DRIVER)).any())


@dataclass(frozen=True)
class _Waits:
    """The waits of a device that are long enough for a finding."""

    rows: Integers
    longest: int
    """Row of the longest."""
    seconds: float
    """How long that is."""
    severity: Severity


def _waits(time: Integers, mine: Mask, steps: Steps) -> _Waits | None:
    """Return the waits that are at least as long as the shortest step; None without one.

    :param time: of all bios, nanoseconds
    """
    rows = np.flatnonzero(mine & (time >= shortest_ns(steps)))
    if not len(rows):
        return None
    longest = int(rows[np.argmax(time[rows])])
    seconds = float(time[longest]) / 1e9
    how = severity(seconds, steps)
    assert how is not None
    return _Waits(rows, longest, seconds, how)


def _stuck(figures: Figures, device: int, mine: Mask) -> Iterator[Finding]:
    """Yield that the driver took long to finish requests."""
    waits = _waits(figures.in_driver, mine, IN_DRIVER)
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
            f"{name}: {counted(len(waits.rows), 'request')} took the driver "
            + over(len(waits.rows), shortest(IN_DRIVER), waits.seconds)
            + (f"; {left:,} had not completed at the end" if left else "")
        ),
        evidence=described(figures, waits.longest)
        + (f". The device dispatched nothing for up to {human_seconds(silent)}" if silent else "")
        + (f"; at the end, {waiting:,} more waited in the scheduler" if waiting else ""),
        figures={
            "waited": Figure(waits.seconds, Unit.SECONDS, "longest in the driver"),
            "requests": Figure(len(waits.rows), Unit.COUNT, "requests over 5 s"),
            "left": Figure(left, Unit.COUNT, "of these, in driver at end"),
            "silent": Figure(silent, Unit.SECONDS, "longest without a dispatch"),
            "waiting": Figure(waiting, Unit.COUNT, "in the scheduler at end"),
        },
        no_remedy="Find out from the kernel log and the storage why the device did not answer",
    )


def _idle(figures: Figures, device: int, mine: Mask) -> Iterator[Finding]:
    """Yield that requests waited in the scheduler while the driver had none."""
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
        evidence=described(figures, int(rows[0]))
        + (
            ". The trace has no dispatch of this device: it may have been recorded or printed "
            "without these events"
            if unseen
            else ". The queue was not run, or events are missing"
        ),
        figures={
            "waited": Figure(seconds, Unit.SECONDS, "longest without a dispatch"),
            "waiting": Figure(len(rows), Unit.COUNT, "requests that waited"),
        },
        no_remedy=(
            "See the kernel log for errors of the driver, and whether requests complete: "
            f"/sys/dev/block/{name.replace(',', ':')}/stat"
        ),
    )


def _unused(figures: Figures, mine: Mask, start: int, end: int) -> tuple[float, Integers]:
    """Return how long requests waited for an empty driver in a time without a dispatch.

    :return: seconds, and the rows of the requests, the first of them first
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
    """Yield that requests which the driver took back waited for their next dispatch."""
    waits = _waits(figures.requeued, mine, IN_SCHEDULER)
    if waits is None:
        return
    left = int(figures.is_requeued[waits.rows].sum())
    name = major_minor(device)
    yield Finding(
        id=f"trace-requests-requeued:{name}",
        severity=min(waits.severity, Severity.WARNING),
        danger=Danger.STALL,
        title=(
            f"{name}: {counted(len(waits.rows), 'request')} that the driver gave back waited "
            f"{over(len(waits.rows), shortest(IN_SCHEDULER), waits.seconds)} until dispatched again"
        ),
        evidence=described(figures, waits.longest)
        + ". The driver or the device had no room for them: they are not in the hands of the "
        "scheduler",
        figures={
            "waited": Figure(waits.seconds, Unit.SECONDS, "longest wait after a requeue"),
            "requests": Figure(len(waits.rows), Unit.COUNT, "requests over 1 s"),
            "left": Figure(left, Unit.COUNT, "of these, still waiting"),
        },
        no_remedy="Find out from the kernel log and the storage why the device was busy",
    )


def _without_request(figures: Figures, device: int, mine: Mask) -> Iterator[Finding]:
    """Yield that bios waited for a free request."""
    waits = _waits(figures.without_request, mine, IN_DRIVER)
    if waits is None:
        return
    left = int(figures.is_without_request[waits.rows].sum())
    name = major_minor(device)
    yield Finding(
        id=f"trace-requests-awaited:{name}",
        severity=waits.severity,
        danger=Danger.STALL,
        title=(
            f"{name}: {counted(len(waits.rows), 'bio')} waited "
            f"{over(len(waits.rows), shortest(IN_DRIVER), waits.seconds)} for a free request"
        ),
        evidence=described(figures, waits.longest),
        figures={
            "waited": Figure(waits.seconds, Unit.SECONDS, "longest wait for a request"),
            "bios": Figure(len(waits.rows), Unit.COUNT, "bios over 5 s"),
            "left": Figure(left, Unit.COUNT, "of these, still waiting"),
        },
        no_remedy=(
            "All requests or tags of the queue were in use: see what the requests before them "
            "waited for (I2D, D2C)"
        ),
    )
