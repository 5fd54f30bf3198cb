# SPDX-License-Identifier: LGPL-2.1-or-later
"""The queues of an I/O scheduler, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.rows import Addressed
from kcensus.kernel.block.disks import Disk
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.lists import list_members

_MAX_REQUESTS = 1 << 20
"""Requests of one scheduler."""
NEVER = np.iinfo(np.int64).min
"""Lateness of a request without expiry."""
_MAX_TIME = 100 * 365 * 24 * 3600 * 10**9
READ, WRITE = 0, 1
_QUEUE_TYPES = {"bfq": "struct bfq_queue", "cfq": "struct cfq_queue"}


@dataclass
class SchedulerQueues(Addressed):
    """The queues of the scheduler of one disk as columns, and the requests in them."""

    scheduler: str
    address: Words
    """Address of ``struct cfq_queue``, ``struct bfq_queue``, or the head of the list."""
    label: list[str]
    """Names as in the scheduler's own traces, such as ``cfq1618SN``."""
    is_sync: Numbers
    """1 for synchronous requests, 0 for asynchronous ones, -1 for both."""
    pid: Numbers
    """PID of the task of the queue; 0 for none, -1 for several."""
    counted: Numbers
    """Requests in the queue by the scheduler's own count; -1 without one."""
    dispatched: Numbers
    """Requests of the queue in the driver by the scheduler's own count; -1 without one."""
    is_in_service: Mask
    expiry_ns: Numbers
    """Expiry of a request in the queue, nanoseconds; -1 without one."""
    row: Numbers
    """Row of the queue of each request; ascending."""
    request: Words
    """Addresses of the requests, each queue in the order of its list."""
    late_ns: Numbers
    """Nanoseconds of each request past its expiry: negative before, :data:`NEVER` without one."""
    dispatch: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    """Requests on the scheduler's list of requests to dispatch next."""
    tunables: dict[str, int] = field(default_factory=dict)
    """Tunables by their names in sysfs, in its units."""
    inside: dict[str, int] = field(default_factory=dict)
    """Requests in the scheduler by its own count, by the member with the count."""
    direction: Numbers | None = None
    """:data:`READ` or :data:`WRITE` by queue, if queues have a direction."""
    lacks: str = ""
    """Missing types or members, so that the queues are unknown."""
    torn: int = 0
    """Lists and trees that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)

    @property
    def type(self) -> str:
        """C type of the structs at ``address``."""
        return _QUEUE_TYPES.get(self.scheduler, "struct list_head")

    @property
    def lengths(self) -> Numbers:
        """Number of requests in each queue."""
        return np.bincount(self.row, minlength=len(self)).astype(np.int64)

    @property
    def waiting_ns(self) -> Numbers:
        """Nanoseconds of each request in its queue; :data:`NEVER` if unknown."""
        expiry = self.expiry_ns[self.row]
        return np.where(self.late_ns == NEVER, NEVER, self.late_ns + expiry)


def plain_lists(
    scheduler: str, heads: Words, labels: list[str], row: Numbers, request: Words, **columns: Any
) -> SchedulerQueues:
    """Return queues that are lists: without a task or counters, and by default without expiry.

    :param columns: other attributes of :class:`SchedulerQueues`
    """
    none = np.full(len(heads), -1)
    defaults: dict[str, Any] = {
        **dict.fromkeys(("is_sync", "counted", "dispatched", "expiry_ns"), none),
        "pid": np.zeros(len(heads), np.int64),
        "is_in_service": np.zeros(len(heads), np.bool_),
        "late_ns": np.full(len(row), NEVER),
    }
    return SchedulerQueues(
        scheduler, heads, labels, row=row, request=request, **(defaults | columns)
    )


def unknown(scheduler: str, lacks: str = "") -> SchedulerQueues:
    """Return no queues: the debug info lacks something, or the scheduler has none."""
    words = np.empty(0, np.uint64)
    return plain_lists(scheduler, words, [], np.empty(0, np.int64), words, lacks=lacks)


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
        """Return the queues that name this scheduler, with their members; count others as torn.

        :param members: ``data`` is the pointer to the private data
        """
        read = self.gather(addresses, type_name, members)
        known = read.readable & (read["data"] == np.uint64(self.disk.scheduler_data))
        self.torn += int((~known).sum())
        return addresses[known], {name: values[known] for name, values in read.columns.items()}

    def task_queues(
        self,
        type_name: str,
        address: Words,
        column: Mapping[str, npt.NDArray[Any]],
        is_sync: Numbers,
        labels: list[str],
        in_service: str,
        expire: Sequence[str],
        **more: Any,
    ) -> SchedulerQueues:
        """Return queues of tasks, each with a list of requests.

        :param column: ``pid``, ``queued[0]``, ``queued[1]`` and ``dispatched`` of the queues
        :param in_service: member of the data that points to the queue in service
        :param expire: members with the expiry of asynchronous and synchronous requests: in
            nanoseconds if they have 64 bits, else in jiffies, as the times of requests are
        :param more: other attributes of :class:`SchedulerQueues`
        """
        fifo = np.uint64(drgn.offsetof(self.prog.type(type_name), "fifo"))
        lists = fifos(self.kernel, address + fifo, self.faults)
        expiry = np.array([self.time_ns(name) for name in expire])
        return SchedulerQueues(
            self.disk.scheduler,
            address,
            labels,
            is_sync,
            column["pid"].astype(np.int64),
            column["queued[0]"].astype(np.int64) + column["queued[1]"],
            column["dispatched"].astype(np.int64),
            address == np.uint64(self[in_service]),
            expiry[is_sync],
            lists.row,
            lists.request,
            lateness(self.kernel, lists, in_jiffies=self.size(expire[0]) < 8),
            torn=self.torn + lists.torn,
            faults=self.faults,
            **more,
        )

    def tunables(self, names: Mapping[str, tuple[str, str]]) -> dict[str, int]:
        """Return tunables by their names in sysfs.

        :param names: member and unit of each: ``""`` for none, or two units separated by ``/``:
            that of the member (``ns``, ``jiffies``, ``time``: nanoseconds in 64 bits, else
            jiffies), and that in sysfs (``ms``, ``us``)
        """
        values: dict[str, int] = {}
        for name, (member, unit) in names.items():
            if member in self:
                stored, _, shown = unit.partition("/")
                value = self.time_ns(member, stored) if unit else self[member]
                values[name] = value // {"ms": 1_000_000, "us": 1_000, "": 1}[shown]
        return values

    def time_ns(self, member: str, unit: str = "time") -> int:
        """Return a duration in nanoseconds; at most a century if it is damaged."""
        value = self[member]
        # Since Linux kernel commit 9a7f38c42c2b ("cfq-iosched: Convert from jiffies to
        # nanoseconds") (in v4.8), the times of CFQ are nanoseconds in 64 bits.
        if unit == "jiffies" or (unit == "time" and self.size(member) < 8):
            value *= 1_000_000_000 // clock(self.kernel).hz
        return min(max(value, 0), _MAX_TIME)


@dataclass(frozen=True)
class Fifos:
    """Requests on lists, list by list."""

    row: Numbers
    request: Words
    fifo_time: Words
    is_known: Mask
    """Whether ``fifo_time`` could be read."""
    torn: int


def fifos(kernel: Kernel, heads: Words, faults: Faults, link: str = "queuelist") -> Fifos:
    """Return the requests on lists.

    :param heads: addresses of ``list_head``; 0 for none
    :param link: member of ``struct request`` in the lists
    """
    prog = kernel.prog
    wanted = np.flatnonzero(heads)
    lanes, nodes, torn = list_members(
        kernel.memory, heads[wanted], faults, limit=_MAX_REQUESTS, verify=not kernel.live
    )
    type_ = prog.type("struct request")
    request = nodes - np.uint64(drgn.offsetof(type_, link))
    # The last node of a torn list may be anything; a request has a queue.
    columns = layout(prog, type_, {"queue": "q"}, {"time": "fifo_time"})
    read = gather(kernel.memory, request, columns, faults)
    real = read.readable & (read["queue"] != 0)
    time = read.columns.get("time", np.zeros(len(request), np.uint64)).astype(np.uint64)
    is_known = real & (time != 0)
    return Fifos(wanted[lanes][real], request[real], time[real], is_known[real], len(torn))


def lateness(kernel: Kernel, lists: Fifos, *, in_jiffies: bool) -> Numbers:
    """Return the nanoseconds of requests past their ``fifo_time``.

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

    :raises LookupError: the kernel lacks the flag
    """
    return np.asarray((flags.astype(np.uint64) & np.uint64(1 << names[name])) != 0)
