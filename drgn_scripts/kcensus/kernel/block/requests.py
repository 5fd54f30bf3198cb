# SPDX-License-Identifier: LGPL-2.1-or-later
"""All allocated requests as columns: their operations and their progress."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import Gathered, gather, gather_arrays
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.rows import Addressed, rows_of
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.block.disks import BlockDevices, QueueKind, block_devices
from kcensus.kernel.block.hardware import HardwareQueues, hardware_queues, software_queues
from kcensus.kernel.block.operations import Operations
from kcensus.kernel.block.schedulers import scheduler_queues
from kcensus.kernel.block.schedulers.model import NEVER, fifos
from kcensus.kernel.block.single import single_requests
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel, once


class State(IntEnum):
    """Progress of a request."""

    ALLOCATED = 0
    """With a tag or memory, but on no list: being made, or in a task's plug."""
    INSERTED = 1
    """In the scheduler, in a software queue, or on a list for the driver."""
    DISPATCHED = 2
    """In the driver."""
    COMPLETED = 3
    """Finished by the driver; its completion runs, or is about to."""


class Place(IntEnum):
    """The list that a request is on."""

    NONE = 0
    SCHEDULER = 1
    """A queue of the scheduler."""
    SCHEDULER_DISPATCH = 2
    """The scheduler's list of requests to dispatch next."""
    SOFTWARE_QUEUE = 3
    """The queue of a CPU; only without a scheduler."""
    DISPATCH = 4
    """``blk_mq_hw_ctx.dispatch``, refused by the driver; or ``request_queue.queue_head``."""
    REQUEUE = 5
    """``request_queue.requeue_list``: returned by the driver."""
    FLUSH = 6
    """A list of requests that wait for a flush of the disk's cache."""
    TIMEOUT = 7
    """``request_queue.timeout_list`` of a legacy queue: in the driver, with a timer."""


@dataclass
class Requests(Addressed):
    """A row per request, disk by disk."""

    address: Words
    disk: Lanes
    """Row of the disk; ascending."""
    hardware_queue: Numbers
    """Row of the hardware queue, or -1."""
    operation: Numbers
    """See ``operations``."""
    is_sync: Mask
    flags: Words
    """``cmd_flags``."""
    priority_class: Numbers
    """0 none, 1 realtime, 2 best effort, 3 idle."""
    priority_level: Numbers
    sector: Numbers
    """First sector in the disk; -1 for none."""
    bytes: Numbers
    tag: Numbers
    """Tag in the driver; -1 before it has one."""
    sched_tag: Numbers
    """Tag of the scheduler; -1 without one."""
    state: npt.NDArray[np.int8]
    place: npt.NDArray[np.int8]
    queue: Numbers
    """Row in the queues of the disk's scheduler, or -1."""
    late_ns: Numbers
    """Nanoseconds past its scheduler's expiry; :data:`NEVER` without one."""
    allocated_ns: Words
    """Time of allocation, CLOCK_MONOTONIC; 0 if unknown."""
    dispatched_ns: Words
    """Time of dispatch to the driver; 0 before, and if unknown. Without statistics of the queue, it
    is the last start of the request's timer, to the tick."""
    is_at_latest: Mask
    """Whether the dispatch may have been earlier: the driver may restart a timer that expires."""
    inserted_ns: Words
    """Time of insertion, from the expiry, or else time of allocation."""
    partition: Numbers
    """Row of the partition or whole disk, or -1."""
    bio: Words
    """Address of its first bio; 0 for none."""
    last_bio: Words
    """Address of its last bio."""
    private: tuple[Words, Words]
    """``elv.priv`` of the scheduler, such as the queue of CFQ or BFQ."""
    operations: Operations
    now_ns: int
    """CLOCK_MONOTONIC at the moment of the dump, no earlier than any stamp of a request."""
    damage: Counter[str] = field(default_factory=Counter)
    """Numbers of inconsistencies: ``stray`` requests on a list that are not allocated,
    ``listed_twice``, ``torn`` lists, ``free_tags`` with a set bit but without a request, and
    unreadable ``pools``."""
    lacks: list[str] = field(default_factory=list)
    """Missing types or members, for lack of which requests are missing, too."""
    report: ScanReport = field(default_factory=ScanReport)
    faults: Faults = field(default_factory=Faults)

    @property
    def age_ns(self) -> Numbers:
        """Nanoseconds since each was allocated; -1 if unknown."""
        return _since(self.now_ns, self.allocated_ns)

    @property
    def waiting_ns(self) -> Numbers:
        """Nanoseconds since each was inserted; -1 if unknown."""
        return _since(self.now_ns, self.inserted_ns)

    @property
    def in_driver_ns(self) -> Numbers:
        """Nanoseconds since each was dispatched; -1 if not, or if unknown."""
        return _since(self.now_ns, self.dispatched_ns)


def _first_with(tags: Words, wanted: Words) -> Numbers:
    """Return the first hardware queue with each of the tags wanted, which have one."""
    order = np.argsort(tags, kind="stable")
    return order[np.searchsorted(tags[order], wanted)]


def _since(now: int, stamps: Words) -> Numbers:
    return np.where(stamps == 0, -1, (np.uint64(now) - stamps).view(np.int64))


@once
def requests(kernel: Kernel) -> Requests:
    """Return all allocated requests.

    :raises LookupError: the debug info lacks requests
    """
    return _Reader(kernel).read()


class _Reader:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.memory, self.prog = kernel.memory, kernel.prog
        self.devices: BlockDevices = block_devices(kernel)
        self.hardware: HardwareQueues = hardware_queues(kernel)
        self.operations = Operations(self.prog)
        self.faults, self.report = Faults(), ScanReport()
        self.damage: Counter[str] = Counter()
        self.lacks: list[str] = []
        self.lost = 0
        """Unreadable pointers from tags to requests."""
        type_ = self.type = self.prog.type("struct request")
        self.columns = layout(
            self.prog,
            type_,
            {"queue": "q", "flags": "cmd_flags", "sector": "__sector", "bytes": "__data_len"}
            | {"tag": "tag", "bio": "bio", "last_bio": "biotail", "part": "part"},
            # Since v4.18 (commit not verified), a request has a state and counts references; in
            # v4.16 and v4.17, the state is in gstate; before that, in atomic_flags.
            {
                "state": "state",
                "atomic_flags": "atomic_flags",
                "gstate": "gstate",
                "ref": ("ref.refs.counter", "ref.counter"),
            }
            | {"hctx": "mq_hctx", "sched_tag": "internal_tag", "ctx": "mq_ctx"}
            # Since Linux kernel commit 6975c1a486a4 ("block: remove the ioprio field from struct
            # request") (in v6.13), the priority is that of the first bio.
            | {"ioprio": "ioprio", "started": "start_time_ns", "dispatched": "io_start_time_ns"}
            | {"deadline": ("deadline", "__deadline"), "timeout": "timeout"}
            | {"old_start": "start_time", "private": "elv.priv[0]", "private_1": "elv.priv[1]"},
        )

    def read(self) -> Requests:
        address, hardware = self._tagged()
        try:
            single, lost = single_requests(self.kernel, self.report, self.faults)
        except LookupError as error:
            single, lost = address[:0], 0
            self.lacks.append(str(error))
        self.damage["pools"] += lost
        flush = self._flush_requests()
        address = np.concatenate([address, single, flush])
        hardware = np.concatenate([hardware, np.full(len(single) + len(flush), -1)])
        address, first = np.unique(address, return_index=True)
        hardware = hardware[first]
        if self.lacks or self.lost or self.hardware.damaged:
            address, hardware = self._with_listed(address, hardware)
        read = gather(self.memory, address, self.columns, self.faults)
        disk = self.devices.disk_rows(read["queue"])
        order = np.flatnonzero(read.readable & (disk >= 0))
        order = order[np.argsort(disk[order], kind="stable")]
        column = {name: values[order] for name, values in read.columns.items()}
        return self._requests(address[order], disk[order], hardware[order], column)

    def _requests(
        self, address: Words, disk: Lanes, hardware: Numbers, column: dict[str, npt.NDArray[Any]]
    ) -> Requests:
        count = len(address)
        zeros = np.zeros(count, np.uint64)
        if "hctx" in column:
            own = self.hardware.rows(column["hctx"])
            hardware = np.where(own >= 0, own, hardware)
        if len(self.hardware.disk):
            # Disks of one host share tags.
            hardware = np.where(self.hardware.disk[hardware] == disk, hardware, -1)
        flags = column["flags"]
        operation = self.operations.operation(flags)
        is_sync = self.operations.is_sync(flags)
        priority = self._priority(column)
        started = column.get("started", zeros).astype(np.uint64)
        if "old_start" in column:
            # Until v4.17 (commit not verified), the start is in jiffies, and start_time_ns, if
            # there is one, is of another clock.
            since = clock(self.kernel).since_jiffies(column["old_start"])
            started = (np.uint64(clock(self.kernel).ns) - since.view(np.uint64)).astype(np.uint64)
        dispatched = column.get("dispatched", zeros).astype(np.uint64)
        place, queue, late, waiting = self._places(address, disk)
        state = self._states(column, place, dispatched, disk)
        dispatched, at_latest = self._dispatched(
            column, zeros if "old_start" in column else dispatched, started
        )
        # A requeued request keeps the stamp of its first dispatch until the next.
        dispatched = np.where(state >= State.DISPATCHED, dispatched, np.uint64(0))
        at_latest = at_latest & (dispatched != 0)
        newest = int(max(started.max(initial=0), dispatched.max(initial=0)))
        now = clock(self.kernel).ns
        # The timekeeper is up to a tick late. A stamp far ahead is damage.
        now = newest if now < newest < now + 10**9 else now
        entered = np.uint64(clock(self.kernel).ns) - waiting.view(np.uint64)
        # Stamps in jiffies may be some ticks early.
        inserted = np.where(waiting == NEVER, started, np.maximum(entered, started))
        # A request cannot expire before its allocation: then, the stamp is damaged.
        tick = 1_000_000_000 // clock(self.kernel).hz
        age = np.where(started == 0, NEVER, (np.uint64(now) - started).view(np.int64))
        late = np.where((started != 0) & (late > age + 2 * tick), NEVER, late)
        return Requests(
            address=address,
            disk=disk,
            hardware_queue=hardware,
            operation=operation,
            is_sync=is_sync,
            flags=flags.astype(np.uint64),
            priority_class=priority >> 13,
            priority_level=priority & 7,
            sector=column["sector"].astype(np.int64),
            bytes=column["bytes"].astype(np.int64),
            tag=column["tag"].astype(np.int64),
            sched_tag=column.get("sched_tag", np.full(count, -1)).astype(np.int64),
            state=state,
            place=place,
            queue=queue,
            late_ns=late,
            allocated_ns=started,
            dispatched_ns=dispatched,
            is_at_latest=at_latest,
            inserted_ns=inserted,
            partition=self.devices.partitions.rows(column["part"]),
            bio=column["bio"],
            last_bio=column["last_bio"],
            private=(column.get("private", zeros), column.get("private_1", zeros)),
            operations=self.operations,
            now_ns=now,
            damage=+self.damage,
            lacks=self.lacks,
            report=self.report,
            faults=self.faults,
        )

    def _dispatched(
        self, column: dict[str, npt.NDArray[Any]], stamps: Words, allocated: Words
    ) -> tuple[Words, Mask]:
        """Return when requests were dispatched, by their timeout if it is not recorded.

        :return: also which may have been dispatched earlier
        """
        if "deadline" not in column or "timeout" not in column:
            return stamps, np.zeros(len(stamps), np.bool_)
        now = clock(self.kernel)
        # In v4.17 to v4.20, the lowest bit marks a request that has completed.
        deadline = column["deadline"].astype(np.uint64)
        if self.columns.fields["deadline"].path == "__deadline":
            deadline = deadline & ~np.uint64(1)
        timeout = column["timeout"].astype(np.uint64)
        since = now.since_jiffies(deadline - timeout)
        known = (deadline != 0) & (timeout != 0) & (since >= 0) & (since < now.ns) & (stamps == 0)
        timer = np.uint64(now.ns) - since.view(np.uint64)
        # The first timer ends no earlier than a timeout after the allocation, less a tick by which
        # either stamp may be early.
        tick = 1_000_000_000 // now.hz
        least = timeout.astype(np.float64) * tick - 2 * tick
        age = (timer - allocated).view(np.int64)
        is_at_latest = known & ((allocated == 0) | (age >= least))
        return np.where(known, timer, stamps), is_at_latest

    def _priority(self, column: dict[str, npt.NDArray[Any]]) -> Numbers:
        if "ioprio" in column:
            return column["ioprio"].astype(np.int64)
        members = layout(self.prog, "struct bio", ["bi_ioprio"])
        read = gather(self.memory, column["bio"], members, Faults())
        return read["bi_ioprio"].astype(np.int64)

    def _tagged(self) -> tuple[Words, Numbers]:
        """Return the requests with a tag in use, and the row of a hardware queue with the tag."""
        sets, hardware = self.hardware.tag_sets, self.hardware
        row, tag = sets.bit_row, sets.bit_tag
        word = word_dtype(self.prog)
        place = tag.astype(np.uint64) * np.uint64(word.itemsize)

        def pointer(arrays: Words, rows: Mask) -> Words:
            found = np.zeros(len(row), np.uint64)
            places = arrays[row[rows]] + place[rows]
            values, readable = gather_arrays(self.memory, places, 1, word, self.faults)
            found[rows] = values[:, 0]
            self.lost += int((~readable).sum())
            return found

        of_row = sets.address[row]
        driver, scheduler = np.isin(of_row, hardware.tags), np.isin(of_row, hardware.sched_tags)
        in_bounds = tag < sets.depth[row]
        current = pointer(sets.rqs, driver & in_bounds & (sets.rqs[row] != 0))
        static = pointer(sets.static_rqs, in_bounds & (sets.static_rqs[row] != 0))
        known = gather(self.memory, static, self.columns, Faults())
        # A tag of the scheduler belongs to its preallocated request.
        of_own = scheduler & self._has_tag(known, "sched_tag", tag)
        # A tag of the driver belongs to the last request with it: one of a scheduler, or the
        # preallocated one. Without a scheduler, it does before the dispatch, too.
        elevators = np.array([disk.scheduler_data for disk in self.devices.disks] or [0], np.uint64)
        disk = self.devices.disk_rows(known["queue"])
        is_plain = (disk >= 0) & (elevators[disk] == 0)
        of_static = driver & self._has_tag(known, "tag", tag) & is_plain
        last = gather(self.memory, current, self.columns, Faults())
        of_last = driver & self._has_tag(last, "tag", tag)
        # The request of a tag may have been freed, and its memory reused by another queue.
        if "hctx" in self.columns:
            ours = hardware.rows(last["hctx"])
            of_last &= (ours >= 0) & (hardware.tags[ours] == of_row)
            ours = hardware.rows(known["hctx"])
            of_static &= (ours >= 0) & (hardware.tags[ours] == of_row)
            of_own &= (ours >= 0) & (hardware.sched_tags[ours] == of_row)
        is_foreign = driver & self._has_tag(last, "tag", tag) & self._is_foreign(last, row)
        # A bit of a map shared by several tags belongs to the tags whose request has it.
        bit = (sets.first[row] << 32) | (tag & 0xFFFF_FFFF)
        has_request = of_own | of_static | of_last | is_foreign
        self.damage["free_tags"] += len(np.setdiff1d(bit[driver | scheduler], bit[has_request]))
        kinds = [
            (hardware.sched_tags, static, of_own),
            (hardware.tags, static, of_static),
            (hardware.tags, current, of_last),
        ]
        queue = [_first_with(tags, of_row[rows]) for tags, _, rows in kinds]
        return np.concatenate([found[rows] for _, found, rows in kinds]), np.concatenate(queue)

    def _is_foreign(self, found: Gathered, row: Lanes) -> Mask:
        """Return which requests are of a queue that shares the tags but has no disk: a tape's."""
        if "hctx" not in self.columns:
            return np.zeros(len(row), np.bool_)
        columns = layout(self.prog, "struct blk_mq_hw_ctx", ["queue", "tags"])
        rows = np.flatnonzero(found.readable & (self.devices.disk_rows(found["queue"]) < 0))
        hardware = gather(self.memory, found["hctx"][rows], columns, Faults())
        is_foreign = np.zeros(len(row), np.bool_)
        is_foreign[rows] = (
            hardware.readable
            & (hardware["queue"] == found["queue"][rows])
            & (hardware["tags"] == self.hardware.tag_sets.address[row[rows]])
        )
        return is_foreign

    def _has_tag(self, found: Gathered, name: str, tag: Numbers) -> Mask:
        """Return which requests are allocated and have the tag that leads to them."""
        if name not in self.columns:  # a multi-queue device before schedulers, as on RHEL 7
            return np.zeros(len(tag), np.bool_)
        fits: Mask = found.readable & (found[name].astype(np.int64) == tag)
        return fits & (found["ref"] != 0) if "ref" in self.columns else fits

    def _flush_queues(self) -> tuple[Lanes, Words]:
        """Return row of the disk and address of each ``struct blk_flush_queue``."""
        disk, address = self.hardware.disk, self.hardware.flush_queue
        single, queues = self.devices.of_kind(QueueKind.SINGLE)
        if len(single):
            # Before v3.19 (commit not verified), the queue has no struct for its flushes.
            members = layout(self.prog, "struct request_queue", {}, {"fq": "fq"})
            own = gather(self.memory, queues, members, self.faults).columns
            if "fq" in own:
                disk, address = np.append(disk, single), np.append(address, own["fq"])
        return disk[address != 0], address[address != 0]

    def _flush_requests(self) -> Words:
        """Return the requests that flush a disk's cache with the tag of another request."""
        members = ["flush_rq", "flush_pending_idx", "flush_running_idx"]
        if not len(self._flush_queues()[1]):
            return np.empty(0, np.uint64)
        columns = layout(self.prog, "struct blk_flush_queue", members)
        read = gather(self.memory, self._flush_queues()[1], columns, self.faults)
        runs = read["flush_pending_idx"] != read["flush_running_idx"]
        return np.setdiff1d(read["flush_rq"][runs], np.zeros(1, np.uint64))

    @cached_property
    def _lists(self) -> list[tuple[Place, str, Words]]:
        """Lists of requests outside of schedulers: place, link, heads; flushes come last."""
        queue = self.prog.type("struct request_queue")
        (_, multi), (_, single) = map(self.devices.of_kind, (QueueKind.MULTI, QueueKind.SINGLE))

        def at(base: Words, type_: drgn.Type, path: str) -> Words:
            return base + np.uint64(drgn.offsetof(type_, path))

        hardware = self.hardware.address
        context = self.prog.type("struct blk_mq_hw_ctx")
        _, software, lost = software_queues(self.memory, self.devices, self.faults)
        self.damage["torn"] += lost
        found = [
            (Place.SOFTWARE_QUEUE, "queuelist", software),
            (Place.DISPATCH, "queuelist", at(hardware, context, "dispatch")),
        ]
        if queue.has_member("requeue_list"):
            found.append((Place.REQUEUE, "queuelist", at(multi, queue, "requeue_list")))
        # Since Linux kernel commit 81ada09cc25e ("blk-flush: reuse rq queuelist in flush state
        # machine") (in v6.6), flushes use the same link as other lists, and flushes in the driver
        # are only counted.
        has_link = self.type.member("flush").type.has_member("list")
        link = "flush.list" if has_link else "queuelist"
        own = self._flush_queues()[1]
        flushes = []
        if len(own):
            flush = self.prog.type("struct blk_flush_queue")
            names = ["flush_queue[0]", "flush_queue[1]"]
            if flush.member("flush_data_in_flight").type.kind == drgn.TypeKind.STRUCT:
                names.append("flush_data_in_flight")
            flushes = [(Place.FLUSH, link, at(own, flush, name)) for name in names]
        if queue.has_member("flush_list"):
            found.append((Place.REQUEUE, "queuelist", at(multi, queue, "flush_list")))
        if len(single):
            found.append((Place.DISPATCH, "queuelist", at(single, queue, "queue_head")))
            found.append((Place.TIMEOUT, "timeout_list", at(single, queue, "timeout_list")))
        return found + flushes

    def _with_listed(self, address: Words, hardware: Numbers) -> tuple[Words, Numbers]:
        """Add requests on lists, for disks without a record of all allocated requests."""
        listed = [each.request for each in scheduler_queues(self.kernel)]
        listed += [each.dispatch for each in scheduler_queues(self.kernel)]
        listed += [fifos(self.kernel, at, Faults(), link).request for _, link, at in self._lists]
        more = np.setdiff1d(np.concatenate(listed), address)
        return np.append(address, more), np.append(hardware, np.full(len(more), -1))

    def _places(
        self, address: Words, disk: Lanes
    ) -> tuple[npt.NDArray[np.int8], Numbers, Numbers, Numbers]:
        """Return place, queue of the scheduler, lateness and wait of each request."""
        count = len(address)
        place, queue = np.zeros(count, np.int8), np.full(count, -1)
        late, waiting = np.full(count, NEVER), np.full(count, NEVER)
        order = np.argsort(address)

        def put(found: Words, where: Place) -> tuple[Numbers, Mask]:
            rows = rows_of(address, found, order)
            self.damage["stray"] += int((rows < 0).sum())
            self.damage["listed_twice"] += int((place[rows[rows >= 0]] != Place.NONE).sum())
            place[rows[rows >= 0]] = where
            return rows[rows >= 0], rows >= 0

        for own in scheduler_queues(self.kernel):
            rows, known = put(own.request, Place.SCHEDULER)
            queue[rows], late[rows] = own.row[known], own.late_ns[known]
            waiting[rows] = own.waiting_ns[known]
            put(own.dispatch, Place.SCHEDULER_DISPATCH)
            self.damage["torn"] += own.torn
        for where, link, heads in self._lists:
            lists = fifos(self.kernel, heads, self.faults, link)
            self.damage["torn"] += lists.torn
            listed = lists.request
            if link == "flush.list":
                # Requests with data to flush may be on other lists meanwhile.
                rows = rows_of(address, listed, order)
                listed = listed[(rows < 0) | (place[rows] == Place.NONE)]
            put(listed, where)
        return place, queue, late, waiting

    def _states(
        self, column: dict[str, npt.NDArray[Any]], place: npt.NDArray[np.int8],
        dispatched: Words, disk: Lanes,
    ) -> npt.NDArray[np.int8]:  # fmt: skip
        is_single = np.isin(disk, self.devices.of_kind(QueueKind.SINGLE)[0])
        started = np.zeros(len(place), np.bool_)
        completed = np.zeros(len(place), np.bool_)
        if "state" in column:
            # enum mq_rq_state: MQ_RQ_IDLE, MQ_RQ_IN_FLIGHT, MQ_RQ_COMPLETE.
            started, completed = column["state"] == 1, column["state"] == 2
        elif "gstate" in column:
            # The other bits are a generation.
            started, completed = column["gstate"] & 3 == 1, column["gstate"] & 3 == 2
        elif "atomic_flags" in column:
            # Before, REQ_ATOM_COMPLETE and REQ_ATOM_STARTED are bits 0 and 1.
            started = (column["atomic_flags"] & 2) != 0
            completed = started & ((column["atomic_flags"] & 1) != 0)
        # A legacy driver takes a request off the list, and notes the time.
        is_listed = place != Place.NONE
        timed = place == Place.TIMEOUT
        started = np.where(is_single, timed | (~is_listed & (dispatched != 0)), started)
        completed = np.where(is_single, False, completed)
        state = np.where(is_listed & ~timed, State.INSERTED, State.ALLOCATED).astype(np.int8)
        # The data of a flush is in the driver while its request is on a list of the flush.
        moving = started & ((place == Place.NONE) | (place == Place.FLUSH) | timed)
        state[moving] = State.DISPATCHED
        state[completed & ~is_listed] = State.COMPLETED
        return state
