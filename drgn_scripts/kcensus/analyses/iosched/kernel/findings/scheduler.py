# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about schedulers that starve requests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kcensus.analyses.iosched.degrees import (
    IN_SCHEDULER,
    LEGACY_SWITCH_RISK,
    LEGACY_UNTIL,
    SILENT,
    SWITCH_HANGS,
    SWITCH_RISK,
    severity,
)
from kcensus.analyses.iosched.kernel.costs import lacking_patch
from kcensus.analyses.iosched.kernel.figures import Figures, Queue, Verdict
from kcensus.analyses.iosched.kernel.tasks import behind
from kcensus.human import counted, human_seconds
from kcensus.kernel.block.disks import Disk, QueueKind
from kcensus.kernel.block.reported import log_advice
from kcensus.kernel.tasks.tasks import tasks
from kcensus.results import Danger, Figure, Finding, Remedy, Unit
from kcensus.text import printable, task_name

_BY_CLASS = (
    ". All later requests have a higher I/O class, and the scheduler serves higher classes first"
)
_RUN = 4
"""Least number of PIDs in a row to write as a range."""
_MAX_PIDS = 64
"""Most PIDs in one command."""
_LOWER_CLASSES = (
    "Lower the I/O class of the tasks served first (ionice), and where it was set "
    "(IOSchedulingClass= of a unit, ionice in a script): `kcensus iosched TARGET --table "
    "request_owners` lists the tasks, or their cgroups"
)
_FIND_CLASS = Remedy(
    effect="Find where the class was set, and set another one there: processes that are started "
    "later get class realtime again. A program may also set it itself (ioprio_set)",
    command="grep -rsE 'IOSchedulingClass|ionice' /etc/systemd /run/systemd /usr/lib/systemd "
    "/etc/cron* /var/spool/cron /etc/rc.local /usr/local/bin /usr/local/sbin",
)
_NO_NAME = (
    "Write another scheduler to /sys/block/DISK/queue/scheduler; the name of the disk is damaged "
    "in memory, so no command can be given"
)
_DEFAULT, _MANY_TIMES = 2, 20
"""Default of writes_starved of the deadline schedulers, and what starves writes."""
_SAME = "The remedy above serves these requests, too"
_CFQ = (
    ". Memory does not show whether the kernel has the fix cfq-async-starvation. Kernels with the "
    "fix starve requests like this, too: it acts only after CFQ has selected the queue"
)


def starved(figures: Figures, row: int) -> Iterator[Finding]:
    """Yield the findings about starved async and sync requests; the less severe is a part."""
    disk = figures.disks[row]
    found = [
        queue
        for queue in figures.queues_by_disk[row]
        if queue.verdict is Verdict.STARVED and not figures.is_idle_class(queue)
    ]
    kinds = {
        kind: [queue for queue in found if figures.is_async(queue) == (kind == "async")]
        for kind in ("async", "sync")
    }
    worst = {
        kind: max(each, key=lambda queue: queue.served_ns) for kind, each in kinds.items() if each
    }
    degrees = {
        kind: how
        for kind, queue in worst.items()
        if (how := severity(queue.served_ns / 1e9, IN_SCHEDULER)) is not None
    }
    name, lead = printable(disk.name), ""
    scheduler, silent = printable(disk.scheduler), figures.silent_ns(row) / 1e9
    offered: tuple[Remedy, ...] = ()
    # If both are equally severe, the order of the dictionary stays.
    for kind, how in sorted(degrees.items(), key=lambda each: -each[1]):
        first = worst[kind]
        served, overdue = first.served_ns / 1e9, sum(queue.overdue for queue in kinds[kind])
        expiry, label = figures.expiry_ns(first) / 1e9, printable(figures.label(first))
        times = figures.times(first)
        times = round(times) if times >= 10 else round(times, 1)
        held = np.concatenate([queue.requests for queue in kinds[kind]])
        sleepers = behind(figures, held)
        remedies = _remedies(figures, first, silent)
        advice = "" if remedies else _advice(figures, first, silent)
        if remedies and remedies == offered:
            remedies, advice = (), _SAME
        yield Finding(
            id=f"requests-starved:{name}-{kind}",
            severity=how,
            danger=Danger.STALL,
            title=(
                f"{name}: {scheduler} starves {kind} requests: later ones go first for "
                f"{human_seconds(served)} after their expiry of {human_seconds(expiry)}; "
                f"{overdue:,} {'is' if overdue == 1 else 'are'} overdue"
            ),
            tasks=sleepers.pids,
            # The tasks that wait for the disk without a known request, too.
            covers=frozenset({f"waits-io:{name}"}),
            evidence=_evidence(figures, first, label)
            + (
                f". The newest request in the driver was dispatched {human_seconds(silent)} ago"
                if silent >= 1
                else ""
            )
            + (f". Tasks behind the {kind} requests: {sleepers.names}" if sleepers.pids else "")
            + (_CFQ if disk.scheduler == "cfq" and kind == "async" else ""),
            figures={
                "overdue": Figure(overdue),
                "sleepers": Figure(len(sleepers.pids)),
                "served": Figure(served, Unit.SECONDS),
                "times_expiry": Figure(times, Unit.NONE),
                "expiry": Figure(expiry, Unit.SECONDS),
                "served_since": Figure(len(first.overtakers)),
                "late": Figure(first.late_ns / 1e9, Unit.SECONDS),
                "silent": Figure(silent, Unit.SECONDS),
            },
            remedies=remedies,
            no_remedy=advice,
            part_of=lead,
            patch=lacking_patch(figures, first),
        )
        lead, offered = lead or f"requests-starved:{name}-{kind}", offered or remedies


def _evidence(figures: Figures, queue: Queue, label: str) -> str:
    requests, since = figures.requests, len(queue.overtakers)
    is_write = requests.operations.is_write(requests.operation[queue.requests])
    writes, reads = int(np.count_nonzero(is_write)), int(np.count_nonzero(~is_write))
    counts = [counted(count, noun) for count, noun in ((writes, "write"), (reads, "read")) if count]
    served = human_seconds(queue.served_ns / 1e9)
    starved = _writes_starved(figures, queue)
    return (
        f"The {_described(figures, queue, label)} holds {' and '.join(counts)}. "
        f"{counted(since, 'later request')} of other queues {'is' if since == 1 else 'are'} in the "
        f"driver; the last was dispatched {served} after the first request of {label} had expired"
        + (_BY_CLASS if figures.is_by_class(queue) else "")
        + (f". writes_starved is {starved:,} (default {_DEFAULT})" if starved else "")
    )


def _writes_starved(figures: Figures, queue: Queue) -> int:
    """Return how often reads go before a queue of writes, if that is much more than usual."""
    value = figures.schedulers[queue.disk].tunables.get("writes_starved", 0)
    is_write = figures.requests.operations.is_write(figures.requests.operation[queue.requests])
    return value if value >= _MANY_TIMES and is_write.any() else 0


def _described(figures: Figures, queue: Queue, label: str) -> str:
    """Return a queue by its label, with the task that it belongs to; async ones are shared."""
    pid = int(figures.schedulers[queue.disk].pid[queue.row])
    if figures.is_async(queue):
        # CFQ and BFQ name it after the task that happened to make it.
        return f"{'shared ' * (pid > 0)}queue {label}"
    every = tasks(figures.kernel)
    names = [every.comm[row] for row in np.flatnonzero(every.pid == pid).tolist() if pid > 0]
    return f"queue {label}" + (f" of {task_name(names[0], pid)}" if names else "")


def _is_plain(name: str) -> bool:
    """Return whether a name from memory can be pasted into a command unquoted."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None


def _remedies(figures: Figures, queue: Queue, silent: float) -> tuple[Remedy, ...]:
    """Return the remedies for the starvation of a queue.

    :param silent: seconds without a dispatch; switching the scheduler would hang as long
    """
    if figures.is_by_class(queue):
        lowered = tuple(_delayed(remedy, silent) for remedy in _classes(figures, queue))
        return (*lowered, _FIND_CLASS) if lowered else ()
    name = figures.disks[queue.disk].name
    if (value := _writes_starved(figures, queue)) and _is_plain(name):
        place = f"/sys/block/{name}/queue/iosched/writes_starved"
        served = (
            Remedy(
                effect=f"Serve writes after {_DEFAULT} batches of reads, as by default",
                command=f"echo {_DEFAULT} > {place}",
                risk="reads wait longer",
                undo=f"echo {value} > {place}",
                until="reboot",
            ),
        )
        return tuple(_delayed(remedy, silent) for remedy in served)
    return () if silent >= SILENT else switches(figures.disks[queue.disk])


def _delayed(remedy: Remedy, silent: float) -> Remedy:
    """Say that a remedy comes after the one for the device, if that does not answer."""
    if silent < SILENT:
        return remedy
    when = f"Once the device answers (nothing was dispatched for {human_seconds(silent)})"
    return replace(remedy, effect=f"{when}, {remedy.effect[0].lower()}{remedy.effect[1:]}")


def _advice(figures: Figures, queue: Queue, silent: float) -> str:
    """Return the next step where no command can be given.

    :param silent: seconds without a dispatch
    """
    if figures.is_by_class(queue):
        return _LOWER_CLASSES
    if silent < SILENT:
        return _NO_NAME
    return f"{SWITCH_HANGS}. {log_advice(figures.kernel, figures.disks[queue.disk], silent)}"


def _classes(figures: Figures, queue: Queue) -> tuple[Remedy, ...]:
    """Return the command that gives a queue's I/O class to all tasks served before it."""
    if (figures.ranks(queue.requests) != 1).any():
        return ()
    rows = figures.rows(queue.disk)
    # Requests of these tasks in the driver overtook it; those in the scheduler will.
    rows = rows[figures.ranks(rows) < 1]
    # Bios of other tasks may have been merged into a request.
    known, waiters = figures.inserted_by[rows], figures.own_waiters(rows)
    pids = np.unique(np.concatenate((known, waiters)))
    if (known <= 0).any() or len(pids) > _MAX_PIDS:
        return ()
    tasks = _words(pids.tolist())
    levels = np.unique(figures.requests.priority_level[rows])
    return (
        Remedy(
            command=f"ionice -t -c best-effort -p {tasks}",
            effect="Lower the I/O class of the tasks served first from realtime to best-effort, "
            "the class of the starved queue",
            risk="the I/O of these tasks waits longer; -t passes over tasks that have ended, whose "
            "numbers may belong to others by now",
            undo=f"ionice -t -c realtime -n {levels[0]} -p {tasks}" if len(levels) == 1 else "",
            until="the tasks change their class, or exit",
        ),
    )


def _words(pids: list[int]) -> str:
    """Return ascending PIDs as words of a shell, long runs of them as ``$(seq FIRST LAST)``."""
    runs: list[list[int]] = []
    for pid in pids:
        if runs and pid == runs[-1][-1] + 1:
            runs[-1].append(pid)
        else:
            runs.append([pid])
    return " ".join(
        f"$(seq {run[0]} {run[-1]})" if len(run) >= _RUN else " ".join(map(str, run))
        for run in runs
    )


def switches(disk: Disk) -> tuple[Remedy, ...]:
    """Return the switch to a scheduler that bounds overtaking, or has no queues.

    Empty for a disk whose name may differ from its directory, or is unsafe in a shell.
    """
    # sysfs has "!" in the place of "/".
    name = disk.name.replace("/", "!")
    if not _is_plain(name.replace("!", "")):
        return ()
    file = shlex.quote(f"/sys/block/{name}/queue/scheduler")
    is_legacy = disk.kind == QueueKind.SINGLE
    other = "deadline" if is_legacy else "mq-deadline"
    if disk.scheduler == other:
        other = "none" if disk.kind == QueueKind.MULTI else "noop"
    return (
        Remedy(
            command=f"echo {other} > {file}",
            effect=f"Switch the disk to {other}; the command returns when its requests are done",
            risk=LEGACY_SWITCH_RISK if is_legacy else SWITCH_RISK,
            undo=f"echo {disk.scheduler} > {file}" if _is_plain(disk.scheduler) else "",
            until=LEGACY_UNTIL.format(other) if is_legacy else "reboot",
        ),
    )
