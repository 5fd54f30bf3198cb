# SPDX-License-Identifier: LGPL-2.1-or-later
"""The requests of one kernel, and which queues of schedulers are starved."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Mask, Words
from kcensus.kernel.block.bios import Bios, bios, group_paths
from kcensus.kernel.block.disks import Disk, QueueKind, block_devices
from kcensus.kernel.block.hardware import HardwareQueues, hardware_queues
from kcensus.kernel.block.requests import Requests, State, requests
from kcensus.kernel.block.schedulers import scheduler_queues
from kcensus.kernel.block.schedulers.model import NEVER, SchedulerQueues
from kcensus.kernel.block.stacks import Stacks, stacks
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.files import file_paths

Counts = npt.NDArray[np.int64]


class Verdict(Enum):
    """What it means that a request is past the expiry of its scheduler."""

    NONE = ""
    """No request is."""
    STARVED = "starved"
    """Requests of other queues were dispatched after it had expired."""
    DEVICE = "device"
    """None was: the driver has those that it had then, or others of the same queue."""
    OVERDUE = "overdue"
    """Nothing is in the driver, so that it is not known what was dispatched meanwhile."""


@dataclass(frozen=True)
class Queue:
    """A queue of a scheduler that holds requests."""

    disk: int
    row: int
    """In the queues of the disk's scheduler."""
    requests: Counts
    """Rows of its requests, in its order."""
    late_ns: int
    """How far the request that expired first is past that; :data:`NEVER` without expiry."""
    overdue: int
    """Requests past their expiry."""
    served_since: int
    """Requests of other queues in the driver that were dispatched after the first had expired."""
    served_ns: int
    """How long the first had been past its expiry when another queue was served last; 0 if none
    was."""
    verdict: Verdict


class Figures:
    """Everything that is read of a kernel's block devices."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.devices = block_devices(kernel)
        self.disks: tuple[Disk, ...] = self.devices.disks
        self.hardware: HardwareQueues = hardware_queues(kernel)
        self.requests: Requests = requests(kernel)
        self.schedulers: tuple[SchedulerQueues, ...] = scheduler_queues(kernel)
        self.bios: Bios = bios(kernel)
        self.stacks: Stacks = stacks(kernel)
        self.clock = clock(kernel)

    @cached_property
    def with_requests(self) -> list[int]:
        """Rows of the disks that have a queue of requests."""
        return [row for row, disk in enumerate(self.disks) if disk.kind != QueueKind.BIO]

    def rows(self, disk: int) -> Counts:
        """Return the rows of the requests of a disk."""
        low, high = np.searchsorted(self.requests.disk, [disk, disk + 1])
        return np.arange(low, high)

    def in_state(self, state: State) -> Mask:
        """Return which requests are in a state."""
        found: Mask = self.requests.state == state
        return found

    @cached_property
    def queues(self) -> list[Queue]:
        """Queues of schedulers with requests, disk by disk."""
        return [
            self._queue(disk, row)
            for disk, scheduler in enumerate(self.schedulers)
            for row in np.unique(scheduler.row).tolist()
        ]

    def _queue(self, disk: int, row: int) -> Queue:
        scheduler = self.schedulers[disk]
        inside = scheduler.row == row
        rows = self.requests.rows(scheduler.request[inside])
        late = scheduler.late_ns[inside]
        worst = int(late.max(initial=NEVER))
        if worst <= 0:
            return Queue(disk, row, rows[rows >= 0], worst, 0, 0, 0, Verdict.NONE)
        due = self.clock.ns - worst
        stamps = self._dispatched_by_others(disk, row)
        since = stamps[stamps > due]
        served = int(since.max(initial=due)) - due
        # BFQ notes when it dispatched last, whatever has become of that request since.
        last = scheduler.facts.get("last_dispatch", 0)
        if not self._is_own(disk, row, scheduler.address[row]).any():
            served = max(served, last - due) if due < last <= self.clock.ns else served
        is_busy = (self.requests.dispatched_ns[self.rows(disk)] != 0).any()
        unproven = Verdict.DEVICE if is_busy else Verdict.OVERDUE
        verdict = Verdict.STARVED if served else unproven
        overdue = int(np.count_nonzero(late > 0))
        return Queue(disk, row, rows[rows >= 0], worst, overdue, len(since), served, verdict)

    def _dispatched_by_others(self, disk: int, row: int) -> Words:
        """Return when the requests in the driver that are not of a queue were dispatched."""
        own = self._is_own(disk, row, self.schedulers[disk].address[row])
        rows = self.rows(disk)
        stamps = self.requests.dispatched_ns[rows]
        found: Words = stamps[(stamps != 0) & ~own]
        return found

    def _is_own(self, disk: int, row: int, address: np.uint64) -> Mask:
        """Return which requests of a disk that have been dispatched come from a queue."""
        rows, scheduler = self.rows(disk), self.schedulers[disk]
        gone = self.requests.dispatched_ns[rows] != 0
        if "direction" in scheduler.columns:
            way = int(scheduler.columns["direction"][row])
            operation = self.requests.operation[rows]
            same = self.requests.operations.is_write(operation) == bool(way)
            if len(scheduler) > 2:  # by priority, too: realtime, best effort (and none), idle
                level = np.array([1, 0, 1, 2])[self.requests.priority_class[rows] & 3]
                same &= level == row // 2
            own: Mask = gone & same
            return own
        # CFQ and BFQ: a request names its queue.
        first, second = self.requests.private
        named: Mask = gone & ((first[rows] == address) | (second[rows] == address))
        return named

    def label(self, queue: Queue) -> str:
        """Return the name of a queue."""
        return self.schedulers[queue.disk].label[queue.row]

    def expiry_ns(self, queue: Queue) -> int:
        """Return how long a request of a queue may wait."""
        return int(self.schedulers[queue.disk].expiry_ns[queue.row])

    def times(self, queue: Queue) -> float:
        """Return how many times its expiry the first request of a queue is late; 0 if it is not."""
        expiry = self.expiry_ns(queue)
        return queue.late_ns / expiry if queue.late_ns > 0 and expiry > 0 else 0.0

    def is_async(self, queue: Queue) -> bool:
        """Return whether most requests of a queue are asynchronous."""
        return bool(
            np.count_nonzero(self.requests.is_sync[queue.requests]) * 2 < len(queue.requests)
        )

    @cached_property
    def first_bio(self) -> Counts:
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
        """Path of the cgroup that each request's first bio is charged to; not safe to print."""
        groups = [*self.bios.group.tolist(), 0]
        return [self._paths.get(groups[row], "") for row in self.first_bio.tolist()]

    @cached_property
    def _paths(self) -> dict[int, str]:
        return group_paths(self.kernel, self.bios.group)

    @property
    def groups_unknown(self) -> int:
        """Cgroups that bios are charged to, and whose path could not be read."""
        return len({*self.bios.group.tolist()} - {0} - self._paths.keys())

    @cached_property
    def files(self) -> list[str]:
        """Path of the file whose page cache each request's first page is in; not safe to print."""
        bios = self.bios
        paths = file_paths(self.kernel, bios.inode, bios.faults)
        first = np.full(len(bios) + 1, -1)
        rows, index = np.unique(bios.page_bio, return_index=True)
        first[rows] = index
        inodes = [*bios.inode.tolist(), 0]
        return [paths.get(inodes[page], "") for page in first[self.first_bio].tolist()]

    def tags(self, disk: int) -> tuple[int, int]:
        """Return how many tags of the driver are in use, and how many there are."""
        hardware = self.hardware
        sets = np.unique(hardware.tag_sets.rows(hardware.tags[hardware.disk == disk]))
        sets = sets[sets >= 0]
        return int(hardware.tag_sets.used[sets].sum()), int(hardware.tag_sets.depth[sets].sum())
