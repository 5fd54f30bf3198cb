# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare requests with the counters of disks and schedulers; list what was unreadable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.gaps import other_scan_gaps, reasons, shared_gaps, stack_gaps, wait_gaps
from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.kernel.block.disks import QueueKind, in_flight
from kcensus.kernel.block.hardware import hardware_queues, tags_in_use
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.tasks.tasks import tasks
from kcensus.results import Check, Gap, Gauge, nonzero_gaps


def checks(figures: Figures) -> list[Check]:
    """Compare tasks, and the requests of each disk in use, with the kernel's counters."""
    later = _Counted(figures) if figures.kernel.live and figures.with_requests else None
    every = tasks(figures.kernel)
    return [
        *(check for disk in figures.with_requests for check in _of_disk(figures, disk, later)),
        Check("tasks", len(every), every.counted, source="nr_threads"),
    ]


class _Counted:
    def __init__(self, figures: Figures) -> None:
        self.tags = tags_in_use(figures.kernel)
        self.in_flight = [
            reads + writes if reads >= 0 else None
            for reads, writes in in_flight(figures.kernel).tolist()
        ]


def _of_disk(figures: Figures, row: int, later: _Counted | None) -> Iterator[Check]:
    disk, requests = figures.disks[row], figures.requests
    own, scheduler = figures.rows(row), figures.schedulers[row]
    if not len(own) and max(disk.counted_in_flight) <= 0:
        return
    reads, writes = disk.counted_in_flight
    # The kernel counts requests of file systems only: no flushes, no commands of drivers.
    accounted = requests.operations.is_accounted(requests.operation[own])
    ours = int(np.count_nonzero(accounted & (requests.partition[own] >= 0)))
    # Without requests, 0 proves nothing: some releases do not count, nor do disks with "iostats" 0.
    counter: int | None = reads + writes if reads >= 0 and (reads or writes) else None
    check = Check(f"{disk.name}: requests in flight", ours, counter, source="part0 in_flight")
    yield check.over(counter, later.in_flight[row]) if later else check
    for source, counter in scheduler.inside.items():
        inside = len(scheduler.request)
        yield Check(f"{disk.name}: in the scheduler", inside, counter, source=source)
    if disk.kind == QueueKind.MULTI:
        hardware = figures.hardware
        mine = hardware.disk == row
        tags = hardware.sched_tags if disk.scheduler_data else hardware.tags
        if np.isin(tags[~mine], tags[mine]).any():
            return  # disks of one host share them
        sets = np.unique(hardware.tag_sets.rows(tags[mine]))
        counter = int(hardware.tag_sets.used[sets[sets >= 0]].sum())
        has_tag = (requests.sched_tag if disk.scheduler_data else requests.tag)[own] >= 0
        # The flush of a disk borrows the tag of the first request that waits for the flush.
        is_flush = requests.operations.is_flush(requests.operation[own])
        ours = int(np.count_nonzero(~is_flush & has_tag))
        source = "blk_mq_hw_ctx." + ("sched_tags" if disk.scheduler_data else "tags")
        check = Check(f"{disk.name}: requests with a tag", ours, counter, source=source)
        yield check.over(counter, int(later.tags[sets[sets >= 0]].sum())) if later else check


def gauges(kernel: Kernel) -> Iterator[Gauge]:
    """Yield the numbers of requests in flight, and of requests with a tag, over all disks."""
    with contextlib.suppress(*DAMAGED):
        reads, writes = in_flight(kernel).clip(0).sum(axis=0).tolist()
        source = "part0 in_flight, all disks"
        yield Gauge("in_flight_reads", reads, label="reads in flight", source=f"{source}: reads")
        yield Gauge(
            "in_flight_writes", writes, label="writes in flight", source=f"{source}: writes"
        )
    with contextlib.suppress(*DAMAGED):
        hardware, used = hardware_queues(kernel), tags_in_use(kernel)
        # With a scheduler, a request has a scheduler tag before it gets a driver tag.
        tags = np.where(hardware.sched_tags != 0, hardware.sched_tags, hardware.tags)
        rows = np.unique(hardware.tag_sets.rows(tags))
        count, source = int(used[rows[rows >= 0]].sum()), "blk_mq_hw_ctx tags, all disks"
        yield Gauge("tags", count, label="requests with a tag", source=source)


def gaps(figures: Figures) -> list[Gap]:
    """Return the unreadable or inconsistent parts of disks and requests."""
    requests, damage = figures.requests, figures.requests.damage
    lacking: dict[str, int] = {}
    for disk, scheduler in zip(figures.disks, figures.schedulers, strict=True):
        if scheduler.lacks:
            what = f"{disk.scheduler}: {scheduler.lacks}"
            lacking[what] = lacking.get(what, 0) + 1
    faults = [requests.faults, figures.devices.faults, figures.hardware.faults]
    faults += [scheduler.faults for scheduler in figures.schedulers]
    faults.append(figures.bios.faults)
    return [
        *(
            Gap("schedulers of disks", what, count, "their queues and starved requests are unknown")
            for what, count in sorted(lacking.items())
        ),
        *(
            Gap("requests", lack, 1, "requests of legacy disks on no list are missing")
            for lack in requests.lacks
        ),
        *stack_gaps(figures.kernel, figures.stacks),
        *shared_gaps(figures.kernel),
        *nonzero_gaps(
            Gap(
                "hardware queues and their tags",
                "unreadable or torn",
                figures.hardware.damaged,
                "their requests are not counted",
            ),
            Gap(
                "lists and trees of requests",
                "torn or inconsistent",
                damage["torn"],
                "requests beyond the damage count as on no list",
            ),
            Gap(
                "bios of requests",
                "torn, or their pages or owners are unreadable",
                figures.bios.torn,
                "waiters and files of these requests are unknown",
            ),
            Gap(
                "requests on lists",
                "not allocated, or on two lists",
                damage["stray"] + damage["listed_twice"],
                "requests that are not allocated are not counted, and requests on two lists once",
            ),
            Gap(
                "tags",
                "in use, but without a request",
                damage["free_tags"],
                "a request was being allocated or freed, or is damaged",
            ),
            Gap(
                "requests",
                "with a tag that is not in use",
                _unused_tags(figures),
                "a request was being freed, or the numbers of tags in use are too low",
            ),
            Gap(
                "mempools of requests",
                "unreadable",
                damage["pools"],
                "spare requests may be counted as allocated",
            ),
            Gap(
                "cgroups of requests",
                "unreadable, or without debug info",
                figures.groups_unknown,
                "the cgroups of these requests are unknown",
            ),
            Gap(
                "pages with requests, bios and queues",
                reasons(*faults),
                sum(each.total() for each in faults),
                "objects on them are not counted or incomplete",
            ),
        ),
        *(
            other_scan_gaps(figures.kernel, requests.report, "requests")
            if any(disk.kind == QueueKind.SINGLE for disk in figures.disks)
            else ()
        ),
        *_of_tasks(figures),
    ]


def _unused_tags(figures: Figures) -> int:
    """Return the number of requests whose tag in the driver is free; 0 if these may have ended."""
    if figures.kernel.live:
        return 0
    requests, sets = figures.requests, figures.hardware.tag_sets
    row = np.append(sets.rows(figures.hardware.tags), -1)[requests.hardware_queue]
    # A flush borrows the tag of another request.
    is_flush = requests.operations.is_flush(requests.operation)
    held = np.flatnonzero((row >= 0) & (requests.tag >= 0) & ~is_flush)
    used = sets.first[sets.bit_row] << 32 | sets.bit_tag
    return int(np.isin(row[held] << 32 | requests.tag[held], used, invert=True).sum())


def _of_tasks(figures: Figures) -> list[Gap]:
    waits = figures.waits
    own = nonzero_gaps(
        Gap(
            "waits of tasks",
            "no pointer to the object was found",
            waits.undetermined,
            "the requests that these tasks in state D wait for are unknown",
        ),
        Gap(
            "requests of tasks",
            "too many of one object",
            figures.joins.dropped,
            "tasks in state D are shown behind some of their requests only",
        ),
    )
    return own + wait_gaps(figures.kernel, figures.waiting, waits, figures.joins.faults)
