# SPDX-License-Identifier: LGPL-2.1-or-later
"""The requests of one kernel, and the starved queues of its schedulers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from kcensus.analyses.iosched.kernel.sleepers import requests_of
from kcensus.engine.gather import plausible
from kcensus.engine.memory import Mask, Numbers
from kcensus.kernel.block.bios import bios, group_paths
from kcensus.kernel.block.disks import QueueKind, block_devices
from kcensus.kernel.block.hardware import hardware_queues
from kcensus.kernel.block.requests import State, requests
from kcensus.kernel.block.schedulers import scheduler_queues
from kcensus.kernel.block.schedulers.model import NEVER
from kcensus.kernel.block.stacks import stacks
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.vfs.files import file_paths
from kcensus.kernel.waiting.joined import Joins, joined
from kcensus.kernel.waiting.reader import Waiting, waiting
from kcensus.kernel.waiting.waits import Waits

_RANKS = np.array([1, 0, 1, 2])
"""Ranks of the I/O classes none, realtime, best effort and idle."""


class Verdict(Enum):
    """Cause of a request being past the expiry of its scheduler."""

    NONE = ""
    """No request is past its expiry."""
    STARVED = "starved"
    """Requests of other queues that came later were dispatched after the expiry."""
    DEVICE = "device"
    """No later request of another queue was dispatched from the driver's present ones; or the queue
    belongs to one task, and each other queue may have had one turn since."""
    OVERDUE = "overdue"
    """The driver has no request, so the dispatches since the expiry are unknown."""


@dataclass(frozen=True)
class Queue:
    """A queue of a scheduler that holds requests."""

    disk: int
    row: int
    """Row in the queues of the disk's scheduler."""
    requests: Numbers
    """Rows of the queue's requests, in the order of dispatch."""
    late_ns: int
    """Nanoseconds since the earliest expiry in the queue; :data:`NEVER` without expiry."""
    overdue: int
    """Requests past their expiry."""
    overtakers: Numbers
    """Rows of requests of other queues, now in the driver, that were allocated after the first
    request was inserted, and dispatched after it had expired."""
    served_ns: int
    """Nanoseconds from the earliest expiry to the last dispatch of an overtaker; 0 without one."""
    verdict: Verdict


class TagWaiters(NamedTuple):
    """Tasks that wait for a free request."""

    pids: frozenset[int]
    longest: float
    """Seconds; 0 for none."""


class Figures:
    """The block devices of a kernel, their requests, and the tasks behind them.

    :raises LookupError: the debug info lacks block devices, requests or tasks
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.devices = block_devices(kernel)
        self.disks = self.devices.disks
        self.hardware = hardware_queues(kernel)
        self.requests = requests(kernel)
        self.schedulers = scheduler_queues(kernel)
        self.bios = bios(kernel)
        self.stacks = stacks(kernel)
        self.clock = clock(kernel)
        self.waiting: Waiting = waiting(kernel)
        found = joined(kernel)
        self.joins: Joins = replace(
            requests_of(self.waiting, self.requests), dropped=found.dropped, faults=found.faults
        )
        self.waits: Waits = self.waiting.blocked
        """Tasks in state D."""

    def _own_requests(self, waits: Waits) -> tuple[Numbers, Numbers]:
        """Return the rows of tasks and of their own requests, proven by a pointer."""
        is_own = np.array([kind is WaitKind.REQUEST for kind in waits.kind], np.bool_)
        pairs = np.flatnonzero(self.joins.is_proven & np.append(is_own, np.False_)[self.joins.wait])
        return self.joins.wait[pairs], self.joins.request[pairs]

    def own_waiters(self, rows: Numbers) -> Numbers:
        """Return the PIDs of the tasks in state D whose own bios are in some requests."""
        wait, request = self._own_requests(self.waits)
        return self.waits.pid[wait[np.isin(request, rows)]]

    @cached_property
    def awaited(self) -> tuple[Numbers, Numbers]:
        """The request that delays each task most, and the row of its join; -1 without one.

        Proven requests go before likely ones, undispatched before those in the driver, old before
        new.
        """
        requests, joins = self.requests, self.joins
        inserted = requests.state[joins.request] == State.INSERTED
        age = requests.waiting_ns[joins.request] + requests.in_driver_ns[joins.request]
        order = np.lexsort((age, inserted, joins.is_proven))
        best = np.full(len(self.waits), -1)
        best[joins.wait[order]] = order  # the last join of each wait stays
        return np.append(joins.request, -1)[best], best

    def tag_waiters(self, disk: int) -> TagWaiters:
        """Return the tasks in state D that wait for a free request of a disk."""
        is_tag = np.array([kind is WaitKind.TAG for kind in self.waits.kind], np.bool_)
        rows = np.flatnonzero(is_tag & (self.waits.disk == np.uint64(self.disks[disk].address)))
        return TagWaiters(frozenset(self.waits.pid[rows].tolist()), self._longest(rows))

    def longest_wait(self, pids: Collection[int]) -> float:
        """Return the longest wait of some tasks in state D, seconds; 0 for none."""
        return self._longest(np.flatnonzero(np.isin(self.waits.pid, [*pids])))

    def _longest(self, rows: Numbers) -> float:
        """Return the longest of some waits, seconds; 0 for none."""
        return int(self.waits.since_ns[rows].max(initial=0)) / 1e9

    @cached_property
    def inserted_by(self) -> Numbers:
        """PID of the task that inserted each request; 0 if unknown, -1 for a queue of several.

        Bios of other tasks may have been merged into it since.
        """
        requests = self.requests
        found = np.zeros(len(requests), np.int64)
        for disk, scheduler in enumerate(self.schedulers):
            rows = self.rows(disk)
            queue = requests.queue[rows]
            order = np.argsort(scheduler.address)
            for pointers in requests.private if len(scheduler) else ():
                # CFQ and BFQ keep the former queue of a request in the driver.
                place = order[
                    np.searchsorted(scheduler.address, pointers[rows], sorter=order) % len(order)
                ]
                is_named = (pointers[rows] != 0) & (scheduler.address[place] == pointers[rows])
                queue = np.where((queue < 0) & is_named, place, queue)
            found[rows] = np.append(scheduler.pid, 0)[queue]
        wait, request = self._own_requests(self.waits)
        direct = found[request] <= 0
        found[request[direct]] = self.waits.pid[wait[direct]]
        return found

    @cached_property
    def with_requests(self) -> list[int]:
        """Rows of the disks that have a queue of requests."""
        return [row for row, disk in enumerate(self.disks) if disk.kind != QueueKind.BIO]

    def rows(self, disk: int) -> Numbers:
        """Return the rows of the requests of a disk."""
        low, high = np.searchsorted(self.requests.disk, [disk, disk + 1])
        return np.arange(low, high)

    def in_state(self, state: State) -> Mask:
        """Return which requests are in a state."""
        found: Mask = self.requests.state == state
        return found

    @cached_property
    def queues_by_disk(self) -> list[list[Queue]]:
        """Queues of schedulers with requests, by the row of their disk."""
        return [
            [self._queue(disk, row) for row in np.unique(scheduler.row).tolist()]
            for disk, scheduler in enumerate(self.schedulers)
        ]

    @property
    def queues(self) -> list[Queue]:
        """Queues of schedulers with requests, of all disks."""
        return [*chain.from_iterable(self.queues_by_disk)]

    def _queue(self, disk: int, row: int) -> Queue:
        scheduler = self.schedulers[disk]
        # Addresses on a damaged list that are no requests prove nothing.
        first, end = np.searchsorted(scheduler.row, [row, row + 1])
        rows = self.requests.rows(scheduler.request[first:end])
        rows = rows[rows >= 0]
        late = self.requests.late_ns[rows]
        worst = int(late.max(initial=NEVER))
        if worst <= 0:
            return Queue(disk, row, rows, worst, 0, rows[:0], 0, Verdict.NONE)
        due = self.clock.ns - worst
        inserted = due - max(int(scheduler.expiry_ns[row]), 0)
        others = self._later_of_others(disk, row, inserted)
        stamps = self.requests.dispatched_ns[others]
        others = others[stamps > due]
        served = int(stamps.max(initial=due)) - due
        unproven = Verdict.DEVICE if len(self._dispatched[disk]) else Verdict.OVERDUE
        # Expiry has a resolution of one tick, and so may the time of a dispatch.
        fair = max(2 * 1_000_000_000 // self.clock.hz, self._round_ns(disk, row))
        verdict = Verdict.STARVED if served > fair else unproven
        overdue = int(np.count_nonzero(late > 0))
        return Queue(disk, row, rows, worst, overdue, others, served, verdict)

    def _round_ns(self, disk: int, row: int) -> int:
        """Return the time until a queue of one task has its turn again, nanoseconds.

        BFQ and CFQ serve such queues in turn, each for up to a time slice. Asynchronous queues take
        turns, too, but their expiry makes them independent of the round.
        """
        scheduler = self.schedulers[disk]
        if scheduler.direction is not None or scheduler.is_sync[row] == 0:
            return 0
        tunables = scheduler.tunables
        slice_ms = tunables.get("timeout_sync", 0) or tunables.get("slice_sync", 0)
        return len(np.unique(scheduler.row)) * slice_ms * 1_000_000

    def silent_ns(self, disk: int) -> int:
        """Return the nanoseconds since a request in the driver was dispatched; 0 if there is none.

        Where the driver holds all tags, nothing was dispatched since.
        """
        stamps = self.requests.dispatched_ns[self._dispatched[disk]]
        return max(self.clock.ns - int(stamps.max()), 0) if len(stamps) else 0

    def is_empty(self, disk: int) -> bool:
        """Return whether the driver has no request of a disk."""
        return not len(self._dispatched[disk])

    def is_idle_class(self, queue: Queue) -> bool:
        """Return whether all requests of a queue are of the idle class, which others overtake."""
        return len(queue.requests) > 0 and bool((self.ranks(queue.requests) == 2).all())

    def _later_of_others(self, disk: int, row: int, after: int) -> Numbers:
        """Return the rows of later requests of other queues that are in the driver.

        BFQ notes its last dispatch, but that may have been from the same queue.

        :param after: CLOCK_MONOTONIC, earliest time of allocation
        """
        rows = self._scheduled[disk]
        is_later = self.requests.allocated_ns[rows].astype(np.int64) > after
        return rows[is_later & ~self._is_own(disk, row, rows)]

    def ranks(self, rows: Numbers) -> Numbers:
        """Return the ranks of the I/O classes of requests: lower ranks are served first."""
        found: Numbers = _RANKS[self.requests.priority_class[rows] & 3]
        return found

    def is_by_class(self, queue: Queue) -> bool:
        """Return whether all overtakers of a queue were of a higher I/O class."""
        lowest = self.ranks(queue.overtakers).max(initial=0)
        return len(queue.overtakers) > 0 and bool(lowest < self.ranks(queue.requests).min())

    @cached_property
    def _dispatched(self) -> list[Numbers]:
        is_gone = self.requests.dispatched_ns != 0
        return [rows[is_gone[rows]] for rows in map(self.rows, range(len(self.disks)))]

    @cached_property
    def _scheduled(self) -> list[Numbers]:
        """Rows of dispatched requests that came from the scheduler at a known time, by disk."""
        requests, found = self.requests, []
        for disk, rows in zip(self.disks, self._dispatched, strict=True):
            operations = requests.operations
            taken = operations.is_scheduled(requests.operation[rows], requests.flags[rows])
            if disk.kind == QueueKind.MULTI:
                taken &= requests.sched_tag[rows] >= 0
            found.append(rows[taken & ~requests.is_at_latest[rows]])
        return found

    def _is_own(self, disk: int, row: int, rows: Numbers) -> Mask:
        """Return which of the dispatched requests in ``rows`` come from a queue."""
        scheduler = self.schedulers[disk]
        if scheduler.direction is not None:
            way = int(scheduler.direction[row])
            operation = self.requests.operation[rows]
            same = self.requests.operations.is_write(operation) == bool(way)
            if len(scheduler) > 2:  # by priority, too: realtime, best effort (and none), idle
                same &= self.ranks(rows) == row // 2
            own: Mask = same
            return own
        # CFQ and BFQ: a request names its queue.
        (first, second), address = self.requests.private, scheduler.address[row]
        named: Mask = (first[rows] == address) | (second[rows] == address)
        return named

    def label(self, queue: Queue) -> str:
        return self.schedulers[queue.disk].label[queue.row]

    def expiry_ns(self, queue: Queue) -> int:
        """Return the expiry of requests in a queue, nanoseconds after insertion."""
        return int(self.schedulers[queue.disk].expiry_ns[queue.row])

    def times(self, queue: Queue) -> float:
        """Return the time that a queue was overtaken, divided by its expiry; 0 if it was not."""
        expiry = self.expiry_ns(queue)
        return queue.served_ns / expiry if queue.served_ns > 0 and expiry > 0 else 0.0

    def is_async(self, queue: Queue) -> bool:
        """Return whether a queue is for asynchronous requests, or has mostly such requests."""
        is_sync = int(self.schedulers[queue.disk].is_sync[queue.row])
        if is_sync >= 0:
            return is_sync == 0
        return bool(
            np.count_nonzero(self.requests.is_sync[queue.requests]) * 2 < len(queue.requests)
        )

    @cached_property
    def first_bio(self) -> Numbers:
        """Row of the first bio of each request, or -1."""
        first = np.full(len(self.requests), -1)
        rows, index = np.unique(self.bios.request, return_index=True)
        first[rows] = index
        return first

    @cached_property
    def owners(self) -> list[str]:
        """Function that ends the first bio of each request; empty if unknown."""
        names = [*self.bios.end_names(), ""]
        return [names[row] for row in self.first_bio.tolist()]

    @cached_property
    def groups(self) -> list[str]:
        """Path of the cgroup charged for each request's first bio; not safe to print."""
        groups = [*self.bios.group.tolist(), 0]
        return [self._paths.get(groups[row], "") for row in self.first_bio.tolist()]

    @cached_property
    def _paths(self) -> dict[int, str]:
        return group_paths(self.kernel, self.bios.group)

    @property
    def groups_unknown(self) -> int:
        """Cgroups charged for bios whose path could not be read."""
        return len({*self.bios.group.tolist()} - {0} - self._paths.keys())

    @cached_property
    def files(self) -> list[str]:
        """Path of the file that caches the first page of each request; not safe to print."""
        bios = self.bios
        first = np.full(len(bios) + 1, -1)
        rows, index = np.unique(bios.page_bio, return_index=True)
        first[rows] = index
        inodes = np.append(bios.inode, np.uint64(0))[first[self.first_bio]]
        # Direct I/O of memory that is shared or mapped: the page is the buffer.
        direct = [name.startswith("blkdev_bio_end_io") or "dio" in name for name in self.owners]
        # A page of no file has other words in place of its mapping.
        inodes[np.array(direct, np.bool_) | ~plausible(self.kernel.memory, inodes, 1)] = 0
        paths = file_paths(self.kernel, inodes, bios.faults)
        return [paths.get(inode, "") for inode in inodes.tolist()]

    def exhausted(self, disk: int) -> tuple[int, int]:
        """Return the number of a disk's hardware queues without a free tag, and of their tags.

        Reserved tags are not for requests of file systems.
        """
        hardware, tags = self.hardware, self.hardware.tag_sets
        sets = tags.rows(hardware.tags[hardware.disk == disk])
        sets = sets[sets >= 0]
        depth = (tags.depth - tags.reserved)[sets]
        is_ordinary = tags.bit_tag >= tags.reserved[tags.bit_row]
        used = np.bincount(tags.bit_row[is_ordinary], minlength=len(tags.address))[sets]
        is_full = (depth > 0) & (used >= depth)
        full = np.unique(sets[is_full])
        return int(is_full.sum()), int((tags.depth - tags.reserved)[full].sum())

    def tags(self, disk: int) -> tuple[int, int]:
        """Return the numbers of driver tags: those in use, and all."""
        hardware = self.hardware
        sets = np.unique(hardware.tag_sets.rows(hardware.tags[hardware.disk == disk]))
        sets = sets[sets >= 0]
        return int(hardware.tag_sets.used[sets].sum()), int(hardware.tag_sets.depth[sets].sum())
