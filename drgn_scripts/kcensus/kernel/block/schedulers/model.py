# SPDX-License-Identifier: LGPL-2.1-or-later
"""The queues of an I/O scheduler, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.kernel.block.disks import Disk
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.lists import list_members

MAX_REQUESTS = 1 << 20
"""Of one scheduler."""
NEVER = np.iinfo(np.int64).min
"""Lateness of a request without expiry."""
_MAX_TIME = 100 * 365 * 24 * 3600 * 10**9
READ, WRITE = 0, 1
_QUEUE_TYPES = {"bfq": "struct bfq_queue", "cfq": "struct cfq_queue"}

Counts = npt.NDArray[np.int64]


@dataclass
class SchedulerQueues:
    """The queues of the scheduler of one disk as columns, and the requests in them."""

    scheduler: str
    address: Words
    """Of ``struct cfq_queue``, ``struct bfq_queue``, or of the head of the list."""
    label: list[str]
    """As the scheduler's own traces call them, such as ``cfq1618SN``."""
    is_sync: Counts
    """1 for synchronous requests, 0 for asynchronous ones, -1 for both."""
    pid: Counts
    """Of the task that the queue was made for; 0 where it is not for a task, -1 for several."""
    counted: Counts
    """Requests in the queue by the scheduler's own count; -1 where it does not count."""
    dispatched: Counts
    """Requests of the queue in the driver by the scheduler's own count; -1 where it does not."""
    is_in_service: Mask
    expiry_ns: Counts
    """How long a request of the queue may wait, -1 for ever."""
    row: Counts
    """Row of the queue of each request; ascending."""
    request: Words
    """Addresses of the requests, each queue in the order of its list."""
    late_ns: Counts
    """How far each request is past its expiry: negative before, :data:`NEVER` without one."""
    dispatch: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    """Requests on the scheduler's list of requests that go to the driver next."""
    tunables: dict[str, int] = field(default_factory=dict)
    """By their names in sysfs, in its units."""
    inside: dict[str, int] = field(default_factory=dict)
    """Requests in the scheduler by its own count, by the member that has it."""
    direction: Counts | None = None
    """:data:`READ` or :data:`WRITE`, where each queue is for one of them."""
    lacks: str = ""
    """What the debug info lacks, so that the queues are unknown."""
    torn: int = 0
    """Lists and trees that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)

    def __len__(self) -> int:
        return len(self.address)

    @property
    def type(self) -> str:
        """C type of what is at ``address``."""
        return _QUEUE_TYPES.get(self.scheduler, "struct list_head")

    @property
    def lengths(self) -> Counts:
        """Number of requests in each queue."""
        return np.bincount(self.row, minlength=len(self)).astype(np.int64)

    @property
    def waiting_ns(self) -> Counts:
        """How long each request has been in its queue; :data:`NEVER` where that is unknown."""
        expiry = self.expiry_ns[self.row]
        return np.where(self.late_ns == NEVER, NEVER, self.late_ns + expiry)


def unknown(scheduler: str, lacks: str = "") -> SchedulerQueues:
    """Return no queues: the debug info lacks something, or the scheduler has none."""
    words, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
    mask = np.empty(0, np.bool_)
    return SchedulerQueues(
        scheduler, words, [], counts, counts, counts, counts, mask, counts, counts, words, counts,
        lacks=lacks,
    )  # fmt: skip


class Data:
    """The private data of a scheduler, read at once.

    :raises LookupError: the debug info lacks a member
    :raises drgn.FaultError: the data is unreadable
    """

    def __init__(
        self,
        kernel: Kernel,
        disk: Disk,
        type_: drgn.Type,
        members: Mapping[str, Path],
        optional: Mapping[str, Path] | None = None,
    ) -> None:
        self.kernel, self.memory, self.prog = kernel, kernel.memory, kernel.prog
        self.disk = disk
        self.type = type_
        self.faults = Faults()
        self.torn = 0
        self.layout = layout(self.prog, type_, members, optional)
        read = gather(
            self.memory, np.array([disk.scheduler_data], np.uint64), self.layout, self.faults
        )
        if not read.readable[0]:
            raise drgn.FaultError("the data of the scheduler is unreadable", disk.scheduler_data)
        self.values = {name: column[0] for name, column in read.columns.items()}

    def __getitem__(self, name: str) -> int:
        return int(self.values[name])

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def at(self, path: str) -> int:
        """Return the address of a member."""
        return self.disk.scheduler_data + int(drgn.offsetof(self.type, path))

    def size(self, name: str) -> int:
        """Return the size of a member, bytes."""
        return int(self.layout.fields[name].dtype.itemsize)

    def gather(self, addresses: Words, type_name: str, *args: Mapping[str, Path]) -> Gathered:
        """Read members of other objects."""
        return gather(self.memory, addresses, layout(self.prog, type_name, *args), self.faults)

    def queues(
        self, addresses: Words, type_name: str, members: Mapping[str, Path]
    ) -> tuple[Words, dict[str, npt.NDArray[Any]]]:
        """Return the queues that name this scheduler, and members of them; others are torn.

        :param members: ``data`` is the pointer to the private data
        """
        read = self.gather(addresses, type_name, members)
        known = read.readable & (read["data"] == np.uint64(self.disk.scheduler_data))
        self.torn += int((~known).sum())
        return addresses[known], {name: values[known] for name, values in read.columns.items()}

    def tunables(self, names: Mapping[str, tuple[str, str]]) -> dict[str, int]:
        """Return tunables by their names in sysfs.

        :param names: member and unit of each: ``""`` for none, or what ``/`` separates: the unit of
            the member (``ns``, ``jiffies``, ``time``: nanoseconds in 64 bits, else jiffies), and
            that in sysfs (``ms``, ``us``)
        """
        return {
            name: self._in_sysfs(member, unit)
            for name, (member, unit) in names.items()
            if member in self
        }

    def _in_sysfs(self, member: str, unit: str) -> int:
        if not unit:
            return self[member]
        stored, shown = unit.split("/")
        return self.time_ns(member, stored) // {"ms": 1_000_000, "us": 1_000}[shown]

    def time_ns(self, member: str, unit: str = "time") -> int:
        """Return a duration in nanoseconds; at most a century, where it is damaged."""
        return min(max(self._time_ns(member, unit), 0), _MAX_TIME)

    def _time_ns(self, member: str, unit: str) -> int:
        # Since v4.8 (commit not verified), the times of CFQ are nanoseconds in 64 bits.
        if unit == "jiffies" or (unit == "time" and self.size(member) < 8):
            return self[member] * (1_000_000_000 // clock(self.kernel).hz)
        return self[member]


@dataclass(frozen=True)
class Fifos:
    """Requests on lists, list by list."""

    row: Counts
    request: Words
    fifo_time: Words
    is_known: Mask
    """Whether ``fifo_time`` could be read."""
    torn: int


def fifos(kernel: Kernel, heads: Words, faults: Faults, link: str = "queuelist") -> Fifos:
    """Return the requests on lists.

    :param heads: addresses of ``list_head``; 0 for none
    :param link: member of ``struct request`` that the lists link
    """
    prog = kernel.prog
    wanted = np.flatnonzero(heads)
    lanes, nodes, torn = list_members(
        kernel.memory, heads[wanted], faults, limit=MAX_REQUESTS, verify=not kernel.live
    )
    type_ = prog.type("struct request")
    request = nodes - np.uint64(drgn.offsetof(type_, link))
    # The last node of a torn list may be anything; it is a request if it has a queue.
    columns = layout(prog, type_, {"queue": "q"}, {"time": "fifo_time"})
    read = gather(kernel.memory, request, columns, faults)
    real = read.readable & (read["queue"] != 0)
    time = read.columns.get("time", np.zeros(len(request), np.uint64)).astype(np.uint64)
    is_known = real & (time != 0)
    return Fifos(wanted[lanes][real], request[real], time[real], is_known[real], len(torn))


def lateness(kernel: Kernel, lists: Fifos, *, in_jiffies: bool) -> Counts:
    """Return how far requests are past their ``fifo_time``, nanoseconds.

    A request that expired before the machine was started has a damaged stamp.
    """
    now = clock(kernel)
    late = now.since_jiffies(lists.fifo_time) if in_jiffies else now.since(lists.fifo_time)
    return np.where(lists.is_known & (late < now.ns), late, NEVER)


def flag_names(prog: drgn.Program, type_name: str, prefix: str) -> dict[str, int]:
    """Return the bits of an enumeration of flags, by name in lower case without its prefix."""
    enumerators = prog.type(type_name).enumerators or ()
    return {each.name.removeprefix(prefix).lower(): each.value for each in enumerators}


def has_flag(flags: npt.NDArray[Any], names: Mapping[str, int], name: str) -> Mask:
    """Return where a flag is set.

    :raises LookupError: there is no such flag
    """
    found: Mask = (flags.astype(np.uint64) & np.uint64(1 << names[name])) != 0
    return found
