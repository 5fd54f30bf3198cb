# SPDX-License-Identifier: LGPL-2.1-or-later
"""The requests of one kernel, and which queues of schedulers are starved."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Mask
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
_RANKS = np.array([1, 0, 1, 2])
"""Of the I/O classes none, realtime, best effort and idle."""


class Verdict(Enum):
    """What it means that a request is past the expiry of its scheduler."""

    NONE = ""
    """No request is."""
    STARVED = "starved"
    """Requests that the scheduler got later were dispatched from other queues after it had
    expired."""
    DEVICE = "device"
    """None in the driver was: it has those that it had then, earlier ones, or others of the same
    queue. Or it is a queue of one task, and all others may have had one turn since."""
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
    overtakers: Counts
    """Rows of the requests of other queues in the driver that were allocated after the first was
    inserted, and dispatched after it had expired."""
    served_ns: int
    """How long the first had been past its expiry when the last of them was dispatched; 0 if there
    are none."""
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
    def queues_by_disk(self) -> list[list[Queue]]:
        """Queues of schedulers with requests, by the row of their disk."""
        return [
            [self._queue(disk, row) for row in np.unique(scheduler.row).tolist()]
            for disk, scheduler in enumerate(self.schedulers)
        ]

    @property
    def queues(self) -> list[Queue]:
        """The same of all disks."""
        return [*chain.from_iterable(self.queues_by_disk)]

    def _queue(self, disk: int, row: int) -> Queue:
        scheduler = self.schedulers[disk]
        # What a damaged list leads to besides proves nothing.
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
        # Expiry is to the tick, and so may be the time of a dispatch.
        fair = max(2 * 1_000_000_000 // self.clock.hz, self._round_ns(disk, row))
        verdict = Verdict.STARVED if served > fair else unproven
        overdue = int(np.count_nonzero(late > 0))
        return Queue(disk, row, rows, worst, overdue, others, served, verdict)

    def _round_ns(self, disk: int, row: int) -> int:
        """Return how long it takes until a queue of one task has its turn again, nanoseconds.

        BFQ and CFQ serve such queues in turn, each for up to a time slice. Asynchronous queues are
        in the round, too, but have an expiry so that they need not wait for it.
        """
        scheduler = self.schedulers[disk]
        if scheduler.direction is not None or scheduler.is_sync[row] == 0:
            return 0
        tunables = scheduler.tunables
        slice_ms = tunables.get("timeout_sync", 0) or tunables.get("slice_sync", 0)
        return len(np.unique(scheduler.row)) * slice_ms * 1_000_000

    def silent_ns(self, disk: int) -> int:
        """Return how long ago the last of the requests in the driver was dispatched; 0 if none is.

        Where the driver holds all tags, none was dispatched since.
        """
        stamps = self.requests.dispatched_ns[self._dispatched[disk]]
        return max(self.clock.ns - int(stamps.max()), 0) if len(stamps) else 0

    def is_empty(self, disk: int) -> bool:
        """Return whether the driver has no request of a disk."""
        return not len(self._dispatched[disk])

    def is_idle_class(self, queue: Queue) -> bool:
        """Return whether a queue has requests of the idle class only: others go first."""
        return len(queue.requests) > 0 and bool((self.ranks(queue.requests) == 2).all())

    def _later_of_others(self, disk: int, row: int, after: int) -> Counts:
        """Return the rows of the requests in the driver that others inserted later.

        BFQ notes when it dispatched last, but that may have been from the same queue.

        :param after: CLOCK_MONOTONIC after which they were allocated
        """
        rows = self._scheduled[disk]
        is_later = self.requests.allocated_ns[rows].astype(np.int64) > after
        found: Counts = rows[is_later & ~self._is_own(disk, row, rows)]
        return found

    def ranks(self, rows: Counts) -> Counts:
        """Return the ranks of the I/O classes of some requests: lower ones are served first."""
        found: Counts = _RANKS[self.requests.priority_class[rows] & 3]
        return found

    def is_by_class(self, queue: Queue) -> bool:
        """Return whether all that overtook a queue were of a higher I/O class."""
        lowest = self.ranks(queue.overtakers).max(initial=0)
        return len(queue.overtakers) > 0 and bool(lowest < self.ranks(queue.requests).min())

    @cached_property
    def _dispatched(self) -> list[Counts]:
        """Rows of the requests of each disk that have been dispatched."""
        is_gone = self.requests.dispatched_ns != 0
        return [rows[is_gone[rows]] for rows in map(self.rows, range(len(self.disks)))]

    @cached_property
    def _scheduled(self) -> list[Counts]:
        """Those of them that came from the scheduler, and were dispatched at a time that is
        known."""
        requests, found = self.requests, []
        for disk, rows in zip(self.disks, self._dispatched, strict=True):
            operations = requests.operations
            taken = operations.is_scheduled(requests.operation[rows], requests.flags[rows])
            if disk.kind == QueueKind.MULTI:
                taken &= requests.sched_tag[rows] >= 0
            found.append(rows[taken & ~requests.is_at_latest[rows]])
        return found

    def _is_own(self, disk: int, row: int, rows: Counts) -> Mask:
        """Return which of some dispatched requests of a disk come from a queue."""
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
        """Return the name of a queue."""
        return self.schedulers[queue.disk].label[queue.row]

    def expiry_ns(self, queue: Queue) -> int:
        """Return how long a request of a queue may wait."""
        return int(self.schedulers[queue.disk].expiry_ns[queue.row])

    def times(self, queue: Queue) -> float:
        """Return for how many times its expiry others overtook a queue; 0 if none did."""
        expiry = self.expiry_ns(queue)
        return queue.served_ns / expiry if queue.served_ns > 0 and expiry > 0 else 0.0

    def is_async(self, queue: Queue) -> bool:
        """Return whether a queue is for asynchronous requests, or else most of them are."""
        is_sync = int(self.schedulers[queue.disk].is_sync[queue.row])
        if is_sync >= 0:
            return is_sync == 0
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
        first = np.full(len(bios) + 1, -1)
        rows, index = np.unique(bios.page_bio, return_index=True)
        first[rows] = index
        inodes = np.append(bios.inode, np.uint64(0))[first[self.first_bio]]
        # Direct I/O of memory that is shared or mapped: the page is the buffer.
        direct = [name.startswith("blkdev_bio_end_io") or "dio" in name for name in self.owners]
        inodes[np.array(direct, np.bool_)] = 0
        paths = file_paths(self.kernel, inodes, bios.faults)
        return [paths.get(inode, "") for inode in inodes.tolist()]

    def exhausted(self, disk: int) -> tuple[int, int]:
        """Return how many hardware queues of a disk have no tag left, and the tags of these.

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
        """Return how many tags of the driver are in use, and how many there are."""
        hardware = self.hardware
        sets = np.unique(hardware.tag_sets.rows(hardware.tags[hardware.disk == disk]))
        sets = sets[sets >= 0]
        return int(hardware.tag_sets.used[sets].sum()), int(hardware.tag_sets.depth[sets].sum())
