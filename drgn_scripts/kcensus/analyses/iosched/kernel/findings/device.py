# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about the driver and the queue of a disk: stuck, overdue or excluded requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kcensus.analyses.iosched.degrees import IN_DRIVER, IN_SCHEDULER, SILENT, severity, shortest
from kcensus.analyses.iosched.kernel.figures import Figures, Verdict
from kcensus.analyses.iosched.kernel.tasks import STEPS, behind
from kcensus.human import counted, human_seconds
from kcensus.kernel.block.reported import log_advice, log_evidence
from kcensus.kernel.block.requests import State
from kcensus.kernel.block.stacks import mounted_on
from kcensus.results import Danger, Figure, Finding, Severity, Unit
from kcensus.text import printable

_SLOW = ((30.0, Severity.WARNING), (5.0, Severity.NOTICE))
"""Least seconds past its expiry of a request that waits in its turn, by severity."""
_ENTRIES = ("blk_queue_enter", "__bio_queue_enter", "blk_mq_freeze_queue_wait")
"""Functions of tasks that wait to enter a queue, or for all requests to leave it."""
_FROZEN = (
    "The freeze completes with the remaining requests: `kcensus iosched TARGET --table requests "
    "--top 0` lists them"
)
_QUIESCED = "The driver quiesces its queues during a reset or suspend"
_CHANGING = (
    "Look again in a few seconds: a freeze lasts only for the moment in which the scheduler or "
    "limits of the queue change"
)


def stuck(figures: Figures, row: int) -> Iterator[Finding]:
    """Yield a finding if the driver does not finish requests."""
    since, by_age = _in_driver(figures, row)
    rows, longest = figures.rows(row), float(since.max(initial=-1))
    how = severity(longest, IN_DRIVER)
    if how is None:
        return
    late = rows[since >= shortest(IN_DRIVER)]
    name, count = printable(figures.disks[row].name), int(np.count_nonzero(since >= 0))
    silent, waiting = figures.silent_ns(row) / 1e9, _waiting(figures, row)
    below = [
        each for each in sorted(figures.stacks.bottom(row) - {row}) if _is_stuck(figures, each)
    ]
    cause = (
        f"{printable(figures.disks[below[0]].name)}, below {name}, does not complete its requests"
        if below
        else "The device or its path does not complete them"
    )
    sleepers = behind(figures, late)
    # All requests, and tasks without one, wait for a device that does not answer.
    waiters = behind(figures, rows).pids | figures.tag_waiters(row).pids if silent >= SILENT else ()
    mounted = mounted_on(figures.kernel, row)
    pids = sleepers.pids.union(waiters)
    log = log_evidence(figures.kernel, figures.disks[row].name, pids)
    yield Finding(
        id=f"requests-stuck:{name}",
        severity=max(how, severity(figures.longest_wait(pids), STEPS) or how),
        danger=Danger.STALL,
        tasks=pids,
        title=f"{name}{f' ({mounted})' * bool(mounted)}: {counted(count, 'request')} "
        f"{'is' if count == 1 else 'are'} in the driver, for up to {human_seconds(longest)}; "
        f"the last was dispatched {human_seconds(silent)} ago",
        evidence=cause
        + (
            ". The driver restarted their timers, so the time counts from allocation"
            if by_age
            else ""
        )
        + (f". {waiting:,} more requests wait to be dispatched" if waiting else "")
        + (f". Tasks behind the requests in the driver: {sleepers.names}" if sleepers.pids else "")
        + (f". In addition, {log}" if log else ""),
        figures={
            "requests": Figure(count),
            "longest": Figure(longest, Unit.SECONDS),
            "silent": Figure(silent, Unit.SECONDS),
            "waiting": Figure(waiting),
            "sleepers": Figure(len(sleepers.pids)),
        },
        no_remedy=log_advice(figures.kernel, figures.disks[row], longest),
        part_of=f"requests-stuck:{printable(figures.disks[below[0]].name)}" if below else "",
    )


def _in_driver(figures: Figures, row: int) -> tuple[npt.NDArray[np.float64], bool]:
    """Return the time that each request of a disk has been in the driver, seconds.

    The time is -1 for other requests, and for commands of drivers, which may take hours.

    :return: the times, and whether one of them is the age of the request: its timer may have been
        restarted, so it has been in the driver since the restart or longer. Progress of other
        requests shows whether it waited for the driver instead
    """
    rows, requests = figures.rows(row), figures.requests
    since = np.where(requests.in_driver_ns[rows] >= 0, requests.in_driver_ns[rows] / 1e9, -1.0)
    since[~requests.operations.is_accounted(requests.operation[rows])] = -1
    restarted = requests.is_at_latest[rows] & (since >= 0)
    least = shortest(IN_DRIVER)
    if ((since >= 0) & (since < least) & ~restarted).any():
        return since, False
    by_age = np.where(restarted, requests.age_ns[rows] / 1e9, since)
    return by_age, bool((restarted & (by_age >= least) & (by_age > since)).any())


def _is_stuck(figures: Figures, row: int) -> bool:
    return severity(float(_in_driver(figures, row)[0].max(initial=-1)), IN_DRIVER) is not None


def _waiting(figures: Figures, row: int) -> int:
    return int(np.count_nonzero(figures.requests.state[figures.rows(row)] == State.INSERTED))


def overdue(figures: Figures, row: int) -> Iterator[Finding]:
    """Yield a finding if requests wait although the driver is empty, or behind a slow device."""
    disk, requests, rows = figures.disks[row], figures.requests, figures.rows(row)
    inserted = rows[requests.state[rows] == State.INSERTED]
    if not len(inserted):
        return
    queues = figures.queues_by_disk[row]
    late = max((queue.late_ns for queue in queues), default=0) / 1e9
    is_empty = figures.is_empty(row)
    if is_empty:
        longest = int(requests.waiting_ns[inserted].max()) / 1e9
        how = severity(longest, IN_SCHEDULER)
    else:
        if _is_stuck(figures, row) or any(each.verdict is Verdict.STARVED for each in queues):
            return
        longest, how = late, severity(late, _SLOW)
    if how is None:
        return
    name, scheduler = printable(disk.name), printable(disk.scheduler)
    place = "without a scheduler" if scheduler == "none" else f"in {scheduler}"
    held = figures.hardware.is_stopped[figures.hardware.disk == row]
    stopped, past = int(np.count_nonzero(held)), int(np.count_nonzero(requests.late_ns[rows] > 0))
    sleepers = behind(figures, inserted)
    if is_empty:
        title = (
            f"{name}: {counted(len(inserted), 'request', 'wait')} {place} for up to "
            f"{human_seconds(longest)}, and the driver has none"
        )
        evidence = (
            "Either the queue is not run, or the driver has completed all requests dispatched since"
        )
    else:
        are = "request is past its" if past == 1 else "requests are past their"
        title = f"{name}: {past:,} {are} expiry, by up to {human_seconds(late)}"
        evidence = f"{scheduler} let no request overtake them: the device is slower than the load"
    yield Finding(
        id=f"requests-overdue:{name}",
        severity=how,
        danger=Danger.STALL,
        tasks=sleepers.pids,
        title=title,
        evidence=evidence
        + (f". Hardware queues stopped by the driver: {stopped:,}" if stopped else "")
        + (f". Tasks behind these requests: {sleepers.names}" if sleepers.pids else ""),
        figures={
            "waiting": Figure(len(inserted)),
            "longest": Figure(longest, Unit.SECONDS),
            "overdue": Figure(past),
            "stopped": Figure(stopped),
            "sleepers": Figure(len(sleepers.pids)),
        },
        no_remedy=(
            f"{log_advice(figures.kernel, disk, longest)}. On the running machine, growing counts "
            f"in /sys/block/{name}/stat show that requests complete"
        )
        if is_empty
        else "Reduce the load; `iostat -xd 2 5` shows how busy the device is",
    )


def frozen(figures: Figures, row: int) -> Iterator[Finding]:
    """Yield a finding if a queue lets no request in, or none out."""
    disk, left = figures.disks[row], len(figures.rows(row))
    if disk.freeze_depth <= 0 and (disk.quiesce_depth <= 0 or not left):
        return
    asleep = sum(function in _ENTRIES for function in figures.waits.function)
    name, rows = printable(disk.name), figures.rows(row)
    longest = float(figures.requests.age_ns[rows].max(initial=0)) / 1e9
    what = "frozen" if disk.freeze_depth > 0 else "quiesced"
    effect = "no request can enter" if disk.freeze_depth > 0 else "nothing is dispatched"
    yield Finding(
        id=f"queue-frozen:{name}",
        severity=Severity.WARNING if left or asleep else Severity.INFO,
        danger=Danger.STALL,
        title=f"{name}: the queue is {what} with {counted(left, 'request')} left; {effect}",
        evidence=f"{counted(asleep, 'task')} in state D {'waits' if asleep == 1 else 'wait'} to "
        "enter a queue, or for a freeze to complete",
        figures={
            "freeze_depth": Figure(disk.freeze_depth),
            "quiesce_depth": Figure(disk.quiesce_depth),
            "requests": Figure(left),
            "sleepers": Figure(asleep),
        },
        no_remedy=_CHANGING
        if not left
        else _FROZEN
        if disk.freeze_depth > 0
        else f"{_QUIESCED}. {log_advice(figures.kernel, figures.disks[row], longest)}",
    )


def exhausted(figures: Figures, row: int) -> Iterator[Finding]:
    """Yield a finding if the driver has no free tag and requests wait for one."""
    queues, tags = figures.exhausted(row)
    waiting = _waiting(figures, row)
    if not queues or not waiting:
        return
    name = printable(figures.disks[row].name)
    count = int(np.count_nonzero(figures.hardware.disk == row))
    where = "" if queues == count else f" in {queues:,} of {count:,} hardware queues"
    is_stuck = _is_stuck(figures, row)
    silent = human_seconds(figures.silent_ns(row) / 1e9)
    waiters = figures.tag_waiters(row)
    yield Finding(
        id=f"tags-exhausted:{name}",
        severity=(not is_stuck and severity(waiters.longest, STEPS)) or Severity.INFO,
        tasks=waiters.pids,
        title=f"{name}: all {tags:,} tags of the driver{where} are in use, and {waiting:,} "
        "requests wait",
        evidence=f"The newest request in the driver was dispatched {silent} ago"
        if is_stuck
        else "The driver holds as many requests as it has tags",
        figures={"tags": Figure(tags), "waiting": Figure(waiting)},
        no_remedy="Requests free their tags when they complete: `kcensus iosched TARGET --table "
        "requests --top 0` shows how long each has been in the driver",
        part_of=f"requests-stuck:{name}" if is_stuck else "",
    )
