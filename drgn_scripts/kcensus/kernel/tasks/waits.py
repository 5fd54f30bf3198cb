# SPDX-License-Identifier: LGPL-2.1-or-later
"""What each task in state D waits for: which object, since when, and what proves it.

The object comes from pointers, in this order: the lists of waiters that objects keep (XFS buffers,
logs, the hashed wait queues), the list that the task is on by its own stack, the direct I/O that
names the task, and ``task.blocker``. Without a pointer, the functions on the stack show the kind of
wait, and the object stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather, plausible
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.slabs import ScanReport, UnsupportedAllocator
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.hardware import disks_of_maps, maps_of_queues
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.locking.wait_tables import bit_waiters
from kcensus.kernel.locking.waiters import entry_link, queues_type
from kcensus.kernel.tasks.direct_io import direct_io
from kcensus.kernel.tasks.functions import (
    ON_TIMERS,
    WaitKind,
    entered_by,
    kind_of,
    lock_type,
    waits_in,
)
from kcensus.kernel.tasks.places import Places, places_of_devices, places_of_inodes
from kcensus.kernel.tasks.queued import Queued, Shape, queued, stack_words
from kcensus.kernel.tasks.rings import locks_of_rings
from kcensus.kernel.tasks.stacks import Stacks, stacks, unknown_stacks
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.xfs.buffers import buffer_waiters, buffers
from kcensus.kernel.xfs.mounts import log_waiters, mounts

Numbers = npt.NDArray[np.int64]

_BLOCKER_TYPES = ("struct mutex", "struct semaphore", "struct rw_semaphore", "struct rw_semaphore")
"""By the lowest bits of ``task.blocker``; the last one is that of a writer."""
_RWSEM = "struct rw_semaphore"
_LIKE_A_LOCK = "rq_qos_wait"
"""Its ``struct rq_qos_wait_data`` has the task where waiters for a lock have it."""
_PIPE = "struct pipe_inode_info"
_PERCPU = "struct percpu_rw_semaphore"
_QUEUE_OWNERS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    # Since v5.5 (commit not verified), readers and writers have a queue each.
    "pipe_read": ((_PIPE, ("rd_wait", "wait")),),
    "anon_pipe_read": ((_PIPE, ("rd_wait", "wait")),),
    "pipe_write": ((_PIPE, ("wr_wait", "wait")),),
    "anon_pipe_write": ((_PIPE, ("wr_wait", "wait")),),
    "pipe_wait": ((_PIPE, ("wait",)),),
    # Since Linux kernel commit 7f26482a872c ("locking/percpu-rwsem: Remove the embedded rwsem") (in
    # v5.7).
    "percpu_rwsem_wait": ((_PERCPU, ("waiters",)),),
    # From v4.8 to v4.10 (commits not verified), the queue is called `writer`.
    "percpu_down_write": ((_PERCPU, ("write_waitq", "writer")),),
    "request_wait_answer": (("struct fuse_req", ("waitq",)),),
    "wait_transaction_locked": (("struct journal_s", ("j_wait_transaction_locked",)),),
    "jbd2_log_wait_commit": (("struct journal_s", ("j_wait_done_commit",)),),
    "add_transaction_credits": (("struct journal_s", ("j_wait_transaction_locked",)),),
}
"""What a wait queue is a member of, by the function that waits on it: types and members."""
_MAX_REQUEST_LISTS = 2
"""Directions of a legacy queue: asynchronous and synchronous."""
_TAGS = "struct sbitmap_queue"
"""What a task waits for that needs a tag."""


@dataclass(frozen=True)
class Waits:
    """Tasks in state D as columns, in the order of :func:`tasks`."""

    task: Words
    """``struct task_struct *``."""
    pid: Numbers
    comm: list[str]
    """Not safe to print."""
    function: list[str]
    """The function that the task waits in; empty if its stack is unreadable."""
    entry: list[str]
    """The system call that it came by, or the function of its thread or work item."""
    kind: list[WaitKind]
    object: Words
    """What it waits for; 0 without a pointer. Its type is in :attr:`type`."""
    type: list[str]
    """C type of the object, such as ``struct xfs_buf``."""
    evidence: list[str]
    """The member that proves the object, or ``frame FUNCTION``: then only the kind is known."""
    holder: Words
    """The task that holds the object; 0 without a pointer."""
    device: Numbers
    """``dev_t`` as the kernel packs it, 12 bits of major and 20 of minor; -1 if unknown."""
    disk: Words
    """``struct gendisk *`` of that device; 0 if unknown."""
    sector: Numbers
    """First 512-byte sector on the *disk*; -1 if unknown."""
    sectors: Numbers
    """Length in sectors; 0 if unknown."""
    inode: Words
    """Of the file that the folio or direct I/O belongs to; 0 if none."""
    offset: Numbers
    """Position in this file, bytes; -1 if unknown."""
    since_ns: Numbers
    """Age of the wait, nanoseconds: :attr:`Tasks.off_cpu_ns`, which says how exact it is. A task
    that woke up and went on waiting counts from then; -1 if unknown."""
    stacks: Stacks
    """Of the tasks, in the same order."""
    contradicted: int = 0
    """Tasks whose own stack shows them on another list than the object's."""
    missing: list[str] = field(default_factory=list)
    """What could not be looked at for lack of debug info, such as ``XFS``."""
    torn: int = 0
    """Lists of waiters that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)
    report: ScanReport = field(default_factory=ScanReport)
    """Of the slabs with XFS buffers."""

    def __len__(self) -> int:
        return len(self.task)

    @property
    def is_proven(self) -> Mask:
        """Which objects a pointer in the kernel proves."""
        return np.asarray(self.object != 0)

    @property
    def undetermined(self) -> int:
        """How many tasks wait for an object that could not be determined: those that sleep on a
        timer wait for none."""
        timed = np.array([function in ON_TIMERS for function in self.function], np.bool_)
        return int(np.count_nonzero(~self.is_proven & ~timed))


@once
def waits(kernel: Kernel) -> Waits:
    """Return what every task in state D waits for.

    :raises LookupError: the debug info lacks tasks
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    return _Reader(kernel, np.flatnonzero(tasks(kernel).is_blocked)).read()


@once
def sleeps(kernel: Kernel) -> Waits:
    """Return the same of every task that sleeps, in state D or S.

    :raises LookupError: the debug info lacks tasks
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    return _Reader(kernel, np.flatnonzero(tasks(kernel).is_asleep)).read()


@dataclass(frozen=True)
class _Facts:
    """What the functions on a stack say."""

    function: str
    entry: str
    kind: WaitKind
    lock: str
    """C type of the lock that the task waits for; empty for none."""
    is_completion: bool

    @classmethod
    def of(cls, functions: tuple[str, ...]) -> _Facts:
        return cls(
            function=waits_in(functions),
            entry=entered_by(functions),
            kind=kind_of(functions),
            lock=lock_type(functions),
            is_completion=_is_completion(functions),
        )


class _Reader:
    def __init__(self, kernel: Kernel, rows: Numbers) -> None:
        self.kernel, self.known, self.faults = kernel, tasks(kernel), Faults()
        self.report = ScanReport()
        self.rows = rows
        self.links: Queued | None = None
        count = len(self.rows)
        self.missing: list[str] = []
        try:
            self.stacks = stacks(
                kernel, self.known.stack[self.rows], self.known.sp[self.rows], self.faults
            )
        except LookupError:
            # Lists of waiters prove objects without them.
            self.missing.append("stacks of tasks")
            self.stacks = unknown_stacks(count)
        # Tasks behind one disk have few different stacks.
        known: dict[tuple[str, ...], _Facts] = {}
        self.facts: list[_Facts] = []
        for row in range(count):
            functions = tuple(self.stacks.functions(row))
            if functions not in known:
                known[functions] = _Facts.of(functions)
            self.facts.append(known[functions])
        self.kind = [each.kind for each in self.facts]
        self.type = [""] * count
        self.evidence = [""] * count
        self.object, self.holder, self.disk, self.inode = (
            np.zeros(count, np.uint64) for _ in range(4)
        )
        self.device, self.sector, self.offset = (np.full(count, -1) for _ in range(3))
        self.sectors = np.zeros(count, np.int64)
        self.torn = self.contradicted = 0

    def read(self) -> Waits:
        for what, look in (
            ("XFS buffers", self._buffers),
            ("XFS logs", self._logs),
            ("wait queues of pages and bits", self._bits),
            ("wait queues and locks", self._queued),
            ("percpu_rw_semaphore", self._writers),
            ("direct I/O", self._direct),
            ("task.blocker", self._blockers),
            ("rings of waiters", self._rings),
            ("disks of tags", self._tags),
        ):
            try:
                look()
            except (LookupError, UnsupportedAllocator):
                self.missing.append(what)
            except drgn.FaultError as error:
                self.faults.note(error)
                self.missing.append(what)
        for row in np.flatnonzero(self.object == 0).tolist():
            function = self.facts[row].function
            self.evidence[row] = f"frame {function}" if function else ""
        known, rows = self.known, self.rows
        return Waits(
            task=known.address[rows],
            pid=known.pid[rows],
            comm=[known.comm[row] for row in rows.tolist()],
            function=[each.function for each in self.facts],
            entry=[each.entry for each in self.facts],
            kind=self.kind,
            object=self.object,
            type=self.type,
            evidence=self.evidence,
            holder=self.holder,
            device=self.device,
            disk=self.disk,
            sector=self.sector,
            sectors=self.sectors,
            inode=self.inode,
            offset=self.offset,
            since_ns=known.off_cpu_ns[rows],
            stacks=self.stacks,
            contradicted=self.contradicted,
            missing=self.missing,
            torn=self.torn,
            faults=self.faults,
            report=self.report,
        )

    def _note_objects(
        self,
        lane: Numbers,
        object_: Words,
        kind: WaitKind,
        type_: str | list[str],
        evidence: str | list[str],
    ) -> None:
        """Note the objects of tasks whose object is not known yet."""
        types = type_ if isinstance(type_, list) else [type_] * len(lane)
        proofs = evidence if isinstance(evidence, list) else [evidence] * len(lane)
        # What is no address of the kernel was read from a damaged waiter.
        sound = plausible(object_.astype(np.uint64), 1)
        for row, address, is_sound, name, proof in zip(
            lane.tolist(), object_.tolist(), sound.tolist(), types, proofs, strict=True
        ):
            if is_sound and not self.object[row]:
                self.object[row], self.kind[row] = address, kind
                self.type[row], self.evidence[row] = name, proof

    def _lanes(self, task: Words) -> tuple[Numbers, Numbers]:
        """Return which of some waiters are tasks in state D, and the lanes of these.

        Others were just woken up, are called back instead of woken, or sleep interruptibly.
        """
        lane = np.full(len(self.known), -1)
        lane[self.rows] = np.arange(len(self.rows))
        row = self.known.rows(task)
        at = (
            np.where(row >= 0, lane[np.maximum(row, 0)], -1) if len(lane) else np.full(len(row), -1)
        )
        kept = np.flatnonzero(at >= 0)
        return kept, at[kept]

    # The lists of waiters that objects keep

    def _buffers(self) -> None:
        waiting, known = buffer_waiters(self.kernel), buffers(self.kernel)
        kept, lane = self._lanes(waiting.task)
        row = waiting.buffer[kept]
        proof = [f"xfs_buf.{waiting.member[index]}" for index in kept.tolist()]
        self._note_objects(lane, known.address[row], WaitKind.XFS_BUF, "struct xfs_buf", proof)
        self.torn += waiting.torn
        self.faults += waiting.faults + known.faults
        self.report.add(known.report)
        self._describe_buffers()

    def _describe_buffers(self) -> None:
        """Note holder, device and sectors of the buffers that tasks wait for."""
        known = buffers(self.kernel)
        row = known.rows(self.object)
        lane = np.flatnonzero(row >= 0)
        row = row[lane]
        self.holder[lane] = known.holder[row]
        self.device[lane] = known.device[row]
        self._place(lane, places_of_devices(self.kernel, known.bdev[row], self.faults))
        start = self.sector[lane]
        placed = (start >= 0) & (known.block[row] >= 0)
        self.sector[lane] = np.where(placed, start + known.block[row], -1)
        self.sectors[lane] = known.blocks[row]

    def _logs(self) -> None:
        waiting, known = log_waiters(self.kernel), mounts(self.kernel)
        kept, lane = self._lanes(waiting.task)
        members = [waiting.member[index] for index in kept.tolist()]
        types = [f"struct {_object_type(member)}" for member in members]
        self._note_objects(lane, waiting.object[kept], WaitKind.LOG, types, members)
        self.torn += waiting.torn + known.damaged
        self.faults += waiting.faults + known.faults
        # A task on another object's list, too, is at that one's place.
        noted = self.object[lane] == waiting.object[kept]
        lane, row = lane[noted], waiting.mount[kept][noted]
        self.device[lane] = known.log_device[row]
        self._place(lane, places_of_devices(self.kernel, known.log_bdev[row], self.faults))
        self.sector[lane] = -1

    def _bits(self) -> None:
        waiting = bit_waiters(self.kernel)
        self.missing += waiting.missing
        kept, lane = self._lanes(waiting.task)
        is_page = waiting.is_page[kept]
        for mask, kind, type_ in (
            (is_page, WaitKind.FOLIO, _page_type(self.kernel.prog)),
            (~is_page, WaitKind.BIT, "unsigned long"),
        ):
            some = np.flatnonzero(mask)
            proof = [waiting.table[index] for index in kept[some].tolist()]
            self._note_objects(lane[some], waiting.object[kept[some]], kind, type_, proof)
        self.torn += waiting.torn
        self.faults += waiting.faults
        pages = lane[is_page]
        pages = pages[self.object[pages] == waiting.object[kept[is_page]]]
        members = {"mapping": "mapping", "index": ("index", "__folio_index")}
        page = layout(self.kernel.prog, _page_type(self.kernel.prog), members)
        read = gather(self.kernel.memory, self.object[pages], page, self.faults)
        # The lowest bits say whether it is anonymous memory, or movable.
        has_file = (read["mapping"] != 0) & ((read["mapping"] & np.uint64(3)) == 0)
        host = layout(self.kernel.prog, "struct address_space", ["host"])
        where = np.where(has_file, read["mapping"], np.uint64(0))
        inode = gather(self.kernel.memory, where, host, self.faults)["host"]
        size = int(self.kernel.prog["PAGE_SIZE"])
        position = read["index"].astype(np.int64) * size
        self._place_files(pages, inode, np.where(inode != 0, position, -1))

    # What the stacks show

    def _queued(self) -> None:
        links = self.links = queued(self.kernel, self.known, self.rows)
        self.torn += links.torn
        self.faults += links.faults
        bitmaps, tag_proof = self._bitmaps(links)
        for index, lane in enumerate(links.lane.tolist()):
            if self.object[lane]:
                continue
            resolve = self._resolver(links, index, int(bitmaps[index]))
            if resolve is None:
                continue
            object_, kind, type_, proof = resolve
            proof = proof or tag_proof
            self._note_objects(np.array([lane]), np.array([object_], np.uint64), kind, type_, proof)
        if "XFS buffers" not in self.missing:
            self._compare(links)

    def _resolver(
        self, links: Queued, index: int, bitmap: int
    ) -> tuple[int, WaitKind, str, str] | None:
        """Return the object that a list of waiters belongs to, its kind, type and the proof.

        :return: without the proof for a bitmap
        :param bitmap: of tags that the task waits for, or 0
        """
        lane, head = int(links.lane[index]), int(links.head[index])
        if not head:
            return None
        prog, facts = self.kernel.prog, self.facts[lane]
        function, kind, lock = facts.function, facts.kind, facts.lock
        shape, is_completion = links.shape[index], facts.is_completion
        low = int(self.known.stack[self.rows[lane]])
        on_own_stack = low <= head < low + self.stacks.size
        # What an earlier wait left on the stack may still look like a list, if the head was there.
        if (shape is Shape.SIMPLE or on_own_stack) and not is_completion:
            return None
        if shape is Shape.LOCK and not lock and function != _LIKE_A_LOCK:
            return None
        if shape is Shape.LOCK and lock:
            # Since v7.1, and with PREEMPT_RT, locks have no such list: this is none of theirs.
            if not prog.type(lock).has_member("wait_list"):
                return None
            start = head - drgn.offsetof(prog.type(lock), "wait_list")
            return start, kind, lock, f"{lock.removeprefix('struct ')}.wait_list"
        if shape is Shape.SIMPLE:
            inside = drgn.offsetof(prog.type("struct completion"), "wait.task_list")
            return head - inside, kind, "struct completion", "completion.wait"
        queue = head - _queue_head(prog)
        if function == "get_request":
            legacy = self._request_queue(queue)
            if legacy:
                return legacy, WaitKind.TAG, "struct request_queue", "request_list.wait"
        if bitmap:
            return bitmap, WaitKind.TAG, _TAGS, ""
        if is_completion:
            inside = drgn.offsetof(prog.type("struct completion"), "wait")
            return queue - inside, kind, "struct completion", "completion.wait"
        owner = self._queue_owner(function, queue)
        if owner is not None:
            address, type_, member = owner
            return address, kind, type_, f"{type_.removeprefix('struct ')}.{member}"
        if kind in (WaitKind.FOLIO, WaitKind.BIT):
            # Many pages and words share a queue of a table: it is not what the task waits for.
            return None
        return queue, kind, queues_type(prog).type_name(), "wait_queue_entry.entry"

    def _queue_owner(self, function: str, queue: int) -> tuple[int, str, str] | None:
        """Return address, type and member of what a queue is in, by the function that waits."""
        for type_, members in _QUEUE_OWNERS.get(function, ()):
            try:
                whole = self.kernel.prog.type(type_)
            except LookupError:
                self.missing += [] if type_ in self.missing else [type_]
                continue
            for member in members:
                if whole.has_member(member):
                    return queue - drgn.offsetof(whole, member), type_, member
        return None

    def _request_queue(self, queue: int) -> int:
        """Return the legacy request queue that a wait queue of requests belongs to, or 0."""
        try:
            members = layout(self.kernel.prog, "struct request_list", ["q"])
            type_ = self.kernel.prog.type("struct request_list")
            for direction in range(_MAX_REQUEST_LISTS):
                start = queue - drgn.offsetof(type_, f"wait[{direction}]")
                read = gather(
                    self.kernel.memory, np.array([start], np.uint64), members, self.faults
                )
                owner = int(read["q"][0])
                # The queue's own list is a member of it, others belong to its cgroups.
                if owner and start == owner + drgn.offsetof(
                    self.kernel.prog.type("struct request_queue"), "root_rl"
                ):
                    return owner
        except LookupError:
            return 0
        return 0

    def _bitmaps(self, links: Queued) -> tuple[Words, str]:
        """Return the bitmap of tags that the task at each link waits for, or 0, and the proof."""
        bitmaps = np.zeros(len(links.lane), np.uint64)
        facts = [self.facts[lane] for lane in links.lane.tolist()]
        # Legacy queues have lists of requests instead.
        is_tag = [
            shape is Shape.QUEUE and each.kind is WaitKind.TAG and each.function != "get_request"
            for shape, each in zip(links.shape, facts, strict=True)
        ]
        some = np.flatnonzero((links.head != 0) & np.array(is_tag, np.bool_))
        if not len(some):
            return bitmaps, ""
        queue = links.head[some] - np.uint64(_queue_head(self.kernel.prog))
        # Since v5.0 (commit not verified), a waiter names its bitmap.
        try:
            bitmaps[some] = self._named_bitmaps(links.node[some], queue)
        except LookupError:
            try:
                bitmaps[some] = maps_of_queues(self.kernel, queue)
            except LookupError:
                return bitmaps, ""
            return bitmaps, "sbitmap_queue.ws"
        return bitmaps, "sbq_wait.sbq"

    def _named_bitmaps(self, node: Words, queue: Words) -> Words:
        """Return the bitmap that each ``struct sbq_wait`` on some wait queues names, or 0.

        :raises LookupError: the debug info lacks a type
        """
        prog, memory = self.kernel.prog, self.kernel.memory
        wait = prog.type("struct sbq_wait")
        inside = entry_link(prog) + drgn.offsetof(wait, "wait")
        members = layout(prog, wait, ["sbq"])
        bitmap = layout(prog, _TAGS, ["ws"])
        state = drgn.sizeof(prog.type("struct sbq_wait_state"))
        owner = gather(memory, node - np.uint64(inside), members, self.faults)["sbq"]
        first = gather(memory, owner, bitmap, self.faults)["ws"]
        # SBQ_WAIT_QUEUES is 8.
        holds = (owner != 0) & (queue >= first) & (queue - first < np.uint64(8 * state))
        named: Words = np.where(holds, owner, np.uint64(0))
        return named

    def _tags(self) -> None:
        """Note the disks whose tags tasks wait for."""
        lane = np.flatnonzero(np.array(self.type, np.str_) == _TAGS)
        if not len(lane):
            return
        devices = block_devices(self.kernel)
        row = disks_of_maps(self.kernel, self.object[lane])
        lane, row = lane[row >= 0], row[row >= 0]
        self.disk[lane] = [devices.disks[each].address for each in row.tolist()]
        self.device[lane] = [devices.disks[each].number for each in row.tolist()]

    def _compare(self, links: Queued) -> None:
        """Count the tasks whose stack contradicts the lists of XFS buffers."""
        known = buffers(self.kernel)
        if not len(known):
            return
        size = np.uint64(drgn.sizeof(self.kernel.prog.type("struct xfs_buf")))
        for lane in np.flatnonzero(known.rows(self.object) >= 0).tolist():
            first, last = np.searchsorted(links.lane, [lane, lane + 1])
            heads = links.head[first:last]
            heads = heads[heads != 0]
            inside = (heads >= self.object[lane]) & (heads < self.object[lane] + size)
            self.contradicted += int(len(heads) > 0 and not inside.any())

    def _direct(self) -> None:
        waiting = np.array(
            [
                row
                for row, facts in enumerate(self.facts)
                if not self.object[row] and facts.kind is WaitKind.REQUEST
            ],
            np.int64,
        )
        if not len(waiting):
            return
        kernel, known = self.kernel, self.known
        own = self._stacks_of(waiting)
        found = direct_io(kernel, known, self.rows[waiting], own)
        self.faults += found.faults
        lane = waiting[found.lane]
        types = [f"struct {_object_type(member)}" for member in found.member]
        self._note_objects(lane, found.object, WaitKind.REQUEST, types, found.member)
        noted = self.object[lane] == found.object
        self._place_files(lane[noted], found.inode[noted], found.offset[noted])

    def _stacks_of(self, lanes: Numbers) -> Stacks:
        every = self.stacks
        wanted = np.isin(every.lane, lanes)
        return Stacks(
            lane=np.searchsorted(lanes, every.lane[wanted]),
            pc=every.pc[wanted],
            sp=every.sp[wanted],
            is_cut=every.is_cut[lanes],
            names=every.names,
            size=every.size,
        )

    def _writers(self) -> None:
        """Note the percpu_rw_semaphores whose writer waits for the readers to leave.

        The semaphore names the writer, and the function that waits has its address on the stack.
        """
        waiting = [
            row
            for row, facts in enumerate(self.facts)
            if facts.function == "percpu_down_write" and not self.object[row]
        ]
        if not waiting:
            return
        type_ = "struct percpu_rw_semaphore"
        # Since v4.13 (commit not verified), the writer is a struct rcuwait.
        # Since Linux kernel commit 7f26482a872c ("locking/percpu-rwsem: Remove the embedded rwsem")
        # (in v5.7), `block` says that there is one.
        optional = {"block": ("block.counter", "readers_block")}
        members = layout(self.kernel.prog, type_, {"task": "writer.task"}, optional)
        rows = np.array(waiting, np.int64)
        for some, _, words in stack_words(
            self.kernel.memory, self.known, self.rows[rows], self.stacks.size, self.faults
        ):
            lane, column = np.nonzero(words >= np.uint64(1 << 63))
            candidate = words[lane, column]
            read = gather(self.kernel.memory, candidate, members, Faults())
            owner = self.rows[rows[some[lane]]]
            task, low = self.known.address[owner], self.known.stack[owner]
            # The stack has the address of the task, too, and addresses of itself.
            elsewhere = (candidate < low) | (candidate >= low + np.uint64(self.stacks.size))
            blocks = read.columns.get("block", np.ones(len(candidate))) != 0
            named = np.flatnonzero(read.readable & (read["task"] == task) & elsewhere & blocks)
            self._note_objects(
                rows[some[lane[named]]],
                candidate[named],
                WaitKind.LOCK,
                type_,
                "percpu_rw_semaphore.writer",
            )

    def _blockers(self) -> None:
        self._mutexes()
        self._rt_mutexes()
        self._rt_writers()
        blocker = self.known.blocker[self.rows]
        lane = np.flatnonzero((blocker != 0) & (self.object == 0))
        address = blocker[lane] & ~np.uint64(3)
        types = [_BLOCKER_TYPES[int(bits)] for bits in blocker[lane] & np.uint64(3)]
        for row, each, type_ in zip(lane.tolist(), address, types, strict=True):
            self._note_objects(
                np.array([row]), np.array([each]), self.kind[row], type_, "task.blocker"
            )

    def _mutexes(self) -> None:
        lock = self.known.blocked_on[self.rows]
        lane = np.flatnonzero((lock != 0) & (self.object == 0))
        kind, type_ = WaitKind.LOCK, "struct mutex"
        self._note_objects(lane, lock[lane], kind, type_, "task.blocked_on")

    def _rt_mutexes(self) -> None:
        waiter = self.known.pi_blocked_on[self.rows]
        lane = np.flatnonzero((waiter != 0) & (self.object == 0))
        if not len(lane):
            return
        members = layout(self.kernel.prog, "struct rt_mutex_waiter", ["task", "lock"])
        read = gather(self.kernel.memory, waiter[lane], members, self.faults)
        named = read.readable & (read["task"] == self.known.address[self.rows[lane]])
        # Since v5.15 (commit not verified), it is the base of a lock: struct rt_mutex_base.
        member = self.kernel.prog.type("struct rt_mutex_waiter").member("lock").type.type
        kind, proof, lock = WaitKind.LOCK, "task.pi_blocked_on", read["lock"]
        inside = _rt_mutex_inside(self.kernel.prog)
        is_rwsem = np.array([self.facts[row].lock == _RWSEM for row in lane.tolist()], np.bool_)
        is_rwsem &= inside >= 0
        self._note_objects(
            lane[named & ~is_rwsem], lock[named & ~is_rwsem], kind, member.type_name(), proof
        )
        rwsem = lock[named & is_rwsem] - np.uint64(max(inside, 0))
        self._note_objects(lane[named & is_rwsem], rwsem, kind, _RWSEM, proof)

    def _rt_writers(self) -> None:
        """Note that writers wait for readers to leave, which only the rwsem on their stack tells.

        They own its rt_mutex, so that they wait for none, and nothing names the readers.
        """
        is_writer = any(
            facts.lock == _RWSEM and not self.object[row] for row, facts in enumerate(self.facts)
        )
        if is_writer and _rt_mutex_inside(self.kernel.prog) >= 0:
            self.missing.append("readers of rwsems with PREEMPT_RT")

    def _rings(self) -> None:
        lock = {
            row: facts.lock
            for row, facts in enumerate(self.facts)
            if facts.lock and not self.object[row]
        }
        if not lock or self.links is None:
            return
        found = locks_of_rings(
            self.kernel, self.known, self.rows, self.links, lock, self.stacks.size
        )
        for row, address in found.items():
            proof = f"{lock[row].removeprefix('struct ')}.first_waiter"
            self._note_objects(
                np.array([row]), np.array([address], np.uint64), self.kind[row], lock[row], proof
            )

    # Where objects are

    def _place(self, lane: Numbers, places: Places) -> None:
        self.disk[lane], self.sector[lane] = places.disk, places.start

    def _place_files(self, lane: Numbers, inode: Words, offset: Numbers) -> None:
        self.inode[lane], self.offset[lane] = inode, offset
        places = places_of_inodes(self.kernel, inode, self.faults)
        self.device[lane], self.disk[lane] = places.device, places.disk


def _is_completion(functions: Iterable[str]) -> bool:
    """Return whether the functions on a stack wait for a completion."""
    names = [name.strip("_") for name in functions]
    return any(name.startswith(("wait_for_completion", "wait_for_common")) for name in names)


def _object_type(member: str) -> str:
    """Return the type of an object by the member that proves it."""
    name, _, rest = member.partition(".")
    return "xlog_ticket" if rest in ("l_reserve_head", "l_write_head") else name


def _rt_mutex_inside(prog: drgn.Program) -> int:
    """Return where an rwsem has its rt_mutex with PREEMPT_RT, and -1 in other kernels."""
    try:
        return int(drgn.offsetof(prog.type(_RWSEM), "rwbase.rtmutex"))
    except LookupError:
        return -1


def _page_type(prog: drgn.Program) -> str:
    # Since Linux kernel commit 7b230db3b8d3 ("mm: Introduce struct folio") (in v5.16).
    try:
        prog.type("struct folio")
    except LookupError:
        return "struct page"
    return "struct folio"


def _queue_head(prog: drgn.Program) -> int:
    head = layout(prog, queues_type(prog), {"next": ("head.next", "task_list.next")})
    return head.fields["next"].offset
