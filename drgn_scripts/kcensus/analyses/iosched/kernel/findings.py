# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the requests of a kernel mean, and what to do about them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.iosched.kernel.costs import lacking_patch
from kcensus.analyses.iosched.kernel.figures import Figures, Queue, Verdict
from kcensus.analyses.iosched.kernel.sleepers import Sleepers
from kcensus.analyses.iosched.kernel.tasks import sentence
from kcensus.human import human_seconds
from kcensus.kernel.block.disks import Disk, QueueKind
from kcensus.kernel.block.requests import State
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import printable

_SEVERITIES = ((10.0, Severity.CRITICAL), (5.0, Severity.WARNING), (1.0, Severity.NOTICE))
"""Seconds past its expiry from which on a request is starved this much."""
_CFQ = (
    ". Whether the kernel has the fix cfq-async-starvation, memory does not show: with it, too, a "
    "queue waits until CFQ selects it"
)
_STUCK = 30.0
"""Seconds in the driver: the time after which most drivers abort a request."""


def findings(figures: Figures, sleepers: Sleepers) -> list[Finding]:
    """Return what to act on."""
    return [
        finding
        for row in figures.with_requests
        for finding in (
            *_starved(figures, sleepers, row),
            *_stuck(figures, sleepers, row),
            *_frozen(figures, row),
            *_exhausted(figures, row),
        )
    ]


def _severity(queue: Queue) -> Severity | None:
    seconds = queue.served_ns / 1e9
    return next((each for least, each in _SEVERITIES if seconds >= least), None)


def _starved(figures: Figures, sleepers: Sleepers, row: int) -> Iterator[Finding]:
    """Yield that asynchronous requests are starved, and as a part of that, synchronous ones."""
    own = [
        queue
        for queue in figures.queues
        if queue.disk == row and queue.verdict is Verdict.STARVED and _severity(queue)
    ]
    severities = [severity for queue in own if (severity := _severity(queue))]
    name, lead = printable(figures.disks[row].name), ""
    for kind in ("async", "sync"):
        queues = [queue for queue in own if figures.is_async(queue) == (kind == "async")]
        if not queues:
            continue
        worst = max(queues, key=lambda queue: queue.served_ns)
        late, expiry = worst.late_ns / 1e9, figures.expiry_ns(worst) / 1e9
        overdue = sum(queue.overdue for queue in queues)
        label, scheduler = printable(figures.label(worst)), printable(figures.disks[row].scheduler)
        behind = np.concatenate([queue.requests for queue in queues])
        tasks = len(sleepers.behind(behind))
        remedies = () if lead else _remedies(figures.disks[row])
        yield Finding(
            id=f"requests-starved:{name}-{kind}",
            # What leads is as severe as its parts.
            severity=(_severity(worst) if lead else None) or max(severities),
            danger=Danger.STALL,
            title=(
                f"{name}: {scheduler} starves {kind} requests: {overdue:,} past their expiry, the "
                f"first by {human_seconds(late)} ({figures.times(worst):,.0f} times "
                f"{human_seconds(expiry)})"
            ),
            evidence=_evidence(figures, worst, label, sentence(figures, sleepers, behind))
            + (_CFQ if scheduler == "cfq" and kind == "async" else ""),
            figures={
                "overdue": Figure(overdue),
                "sleepers": Figure(tasks),
                "late": Figure(late, Unit.SECONDS),
                "times_expiry": Figure(round(figures.times(worst), 1), Unit.NONE),
                "served": Figure(worst.served_ns / 1e9, Unit.SECONDS),
                "served_since": Figure(worst.served_since),
            },
            remedies=remedies,
            no_remedy="" if lead or remedies else "The name of the disk is damaged",
            part_of=lead,
            patch=lacking_patch(figures, worst),
        )
        lead = lead or f"requests-starved:{name}-{kind}"


def _evidence(figures: Figures, queue: Queue, label: str, behind: str) -> str:
    requests = figures.requests
    write = requests.operations.is_write(requests.operation[queue.requests])
    counts = f"{int(np.count_nonzero(write)):,} writes and {int(np.count_nonzero(~write)):,} reads"
    served = human_seconds(queue.served_ns / 1e9)
    since = queue.served_since
    others = f", among them {since:,} that are in the driver" if since else ""
    return (
        f"The queue {label} holds {counts}; later ones of others were dispatched until {served} "
        f"after the expiry of its first{others}"
        + (f". Behind them sleep {behind}" if behind else "")
    )


def _is_plain(name: str) -> bool:
    """Return whether a name from memory is the same in a command."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None


def _remedies(disk: Disk) -> tuple[Remedy, ...]:
    """Return schedulers that bound how many others overtake a request, or have no queues.

    None for a disk whose name may not be that of its directory, or may be anything for a shell.
    """
    # In sysfs, "!" is in the place of "/".
    name = disk.name.replace("/", "!")
    if not _is_plain(name.replace("!", "")):
        return ()
    file = shlex.quote(f"/sys/block/{name}/queue/scheduler")
    other = "deadline" if disk.kind == QueueKind.SINGLE else "mq-deadline"
    if disk.scheduler == other:
        other = "none" if disk.kind == QueueKind.MULTI else "noop"
    return (
        Remedy(
            command=f"echo {other} > {file}",
            effect=f"Switches the disk to {other}, after all its requests are done",
            risk="New requests wait until then; weights and limits of the old one no longer apply",
            undo=f"echo {disk.scheduler} > {file}" if _is_plain(disk.scheduler) else "",
            until="reboot",
        ),
    )


def _stuck(figures: Figures, sleepers: Sleepers, row: int) -> Iterator[Finding]:
    """Yield that the driver does not finish requests."""
    rows = figures.rows(row)
    requests = figures.requests
    since = requests.in_driver_ns[rows] / 1e9
    # Where the timer may have been started again, a request is in the driver since its allocation
    # at the earliest. That it waited for the driver instead is seen where others came and went.
    restarted = requests.is_at_latest[rows]
    if not ((since >= 0) & (since < _STUCK) & ~restarted).any():
        since = np.where(restarted, requests.age_ns[rows] / 1e9, since)
    stuck = since >= _STUCK
    if not stuck.any():
        return
    name, longest, count = printable(figures.disks[row].name), float(since.max()), int(stuck.sum())
    by_age = bool((restarted & stuck & (since > requests.in_driver_ns[rows] / 1e9)).any())
    behind = sentence(figures, sleepers, rows[stuck])
    yield Finding(
        id=f"requests-stuck:{name}",
        severity=Severity.WARNING,
        danger=Danger.STALL,
        title=f"{name}: {count:,} requests have been in the driver for up to "
        f"{human_seconds(longest)}",
        evidence="They were dispatched and have not completed: the device or its path is the cause"
        + (". Timers were started again, so that the time is since allocation" if by_age else "")
        + (f". Behind them sleep {behind}" if behind else ""),
        figures={
            "requests": Figure(count),
            "longest": Figure(longest, Unit.SECONDS),
            "sleepers": Figure(len(sleepers.behind(rows[stuck]))),
        },
        no_remedy="Find out from the kernel log and the storage why the device does not answer",
    )


def _frozen(figures: Figures, row: int) -> Iterator[Finding]:
    """Yield that a queue lets nothing in, or nothing out."""
    disk, waiting = figures.disks[row], len(figures.rows(row))
    name = printable(disk.name)
    if disk.freeze_depth <= 0 and (disk.quiesce_depth <= 0 or not waiting):
        return
    what = "frozen" if disk.freeze_depth > 0 else "quiesced"
    effect = "no request can enter it" if disk.freeze_depth > 0 else "nothing is dispatched from it"
    yield Finding(
        id=f"queue-frozen:{name}",
        severity=Severity.WARNING,
        danger=Danger.STALL,
        title=f"{name}: its queue is {what}, so that {effect}; {waiting:,} requests are left",
        figures={
            "freeze_depth": Figure(disk.freeze_depth),
            "quiesce_depth": Figure(disk.quiesce_depth),
            "requests": Figure(waiting),
        },
        no_remedy="Who froze it is not recorded; it ends when the requests that are left complete",
    )


def _exhausted(figures: Figures, row: int) -> Iterator[Finding]:
    """Yield that the driver has no tag left while requests wait for one."""
    queues, tags = figures.exhausted(row)
    rows = figures.rows(row)
    waiting = int(np.count_nonzero(figures.requests.state[rows] == State.INSERTED))
    if not queues or not waiting:
        return
    name = printable(figures.disks[row].name)
    count = int(np.count_nonzero(figures.hardware.disk == row))
    where = "" if queues == count else f" in {queues:,} of {count:,} hardware queues"
    yield Finding(
        id=f"tags-exhausted:{name}",
        severity=Severity.INFO,
        title=f"{name}: all {tags:,} tags of the driver{where} are in use, and {waiting:,} "
        "requests wait",
        evidence="The device is busy with as many requests as it takes at once",
        figures={"tags": Figure(tags), "waiting": Figure(waiting)},
        no_remedy="It is normal under load; the device is slow if requests stay in the driver",
    )
