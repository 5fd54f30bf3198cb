# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the graph of who waits for whom from a kernel's memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import State, requests
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.locking.owners import (
    HANDED_OVER,
    LOCK_TYPES,
    Holders,
    Mode,
    Strength,
    holders,
)
from kcensus.kernel.tasks.call_sites import CallSites, Held
from kcensus.kernel.tasks.functions import WaitKind, plain
from kcensus.kernel.tasks.joined import RequestPlaces, joined
from kcensus.kernel.tasks.queued import stack_words
from kcensus.kernel.tasks.tasks import Tasks, tasks
from kcensus.kernel.tasks.waits import Waits, sleeps
from kcensus.kernel.timers.timed import timed
from kcensus.kernel.vfs.pipes import OpenFiles, open_files
from kcensus.kernel.waiting.finders.completers import completers
from kcensus.kernel.waiting.finders.finder import Finder
from kcensus.kernel.waiting.finders.futexes import Futexes
from kcensus.kernel.waiting.finders.logs import Logs
from kcensus.kernel.waiting.finders.rcu import GracePeriods
from kcensus.kernel.waiting.finders.special import Special
from kcensus.kernel.waiting.graph import Builder, EdgeKind, Graph, NodeKind
from kcensus.kernel.xfs.buffers import LOCK, buffers

Numbers = npt.NDArray[np.int64]
F = TypeVar("F", bound=Finder)

_KINDS = {
    "struct mutex": NodeKind.MUTEX,
    "struct rw_semaphore": NodeKind.RWSEM,
    "struct percpu_rw_semaphore": NodeKind.PERCPU_RWSEM,
    "struct rt_mutex": NodeKind.RT_MUTEX,
    "struct rt_mutex_base": NodeKind.RT_MUTEX,
    "struct semaphore": NodeKind.SEMAPHORE,
    "struct completion": NodeKind.COMPLETION,
    "struct page": NodeKind.PAGE,
    "struct folio": NodeKind.PAGE,
    "struct pipe_inode_info": NodeKind.PIPE,
    "struct work_struct": NodeKind.WORK,
    "struct core_state": NodeKind.COREDUMP,
    "struct vm_area_struct": NodeKind.AREA,
    "struct workqueue_struct": NodeKind.WORKQUEUE,
    "struct wq_flusher": NodeKind.WORKQUEUE,
    "struct journal_s": NodeKind.LOG,
    "struct xfs_buf": NodeKind.BUFFER,
    "struct fuse_req": NodeKind.FUSE,
    "struct rcu_state": NodeKind.GRACE_PERIOD,
    "struct rcu_node": NodeKind.GRACE_PERIOD,
    "struct futex_q": NodeKind.FUTEX,
    "struct transaction_s": NodeKind.TRANSACTION,
    "unsigned long": NodeKind.BIT,
    "struct wait_queue_head": NodeKind.QUEUE,
    "struct __wait_queue_head": NodeKind.QUEUE,
}
_BY_WAIT = {
    WaitKind.LOG: NodeKind.LOG,
    WaitKind.TAG: NodeKind.TAGS,
    WaitKind.REQUEST: NodeKind.IO,
}
_IN_IO = frozenset({WaitKind.REQUEST, WaitKind.FOLIO, WaitKind.BIT, WaitKind.XFS_BUF, WaitKind.LOG})
_STATES = {State.INSERTED: ", not dispatched", State.DISPATCHED: ", in the driver"}
_SECTOR = 512
_WHILE_NS = 5 * 10**9
_VARIABLES = (1 << 64) - (1 << 31)
"""From here on are the kernel's variables, and those of modules: what code names."""
_BUFFER_LOCK = f"xfs_buf.{LOCK}"
_DRAINING = ("percpu_rw_semaphore.writer", "percpu_rw_semaphore.write_waitq")
"""What says that a writer has the lock, and waits for the readers to leave."""
_RWSEM = "struct rw_semaphore"
_FAULTS = frozenset(
    {"do_user_addr_fault", "__do_page_fault", "do_page_fault", "__mm_populate"}
    | {"get_user_pages_unlocked"}
)
"""Functions that call others with the lock of their own address space, and take no other rwsem."""
_IDLE = frozenset(
    [
        "do_wait",
        "__do_wait",
        "do_poll",
        "do_sys_poll",
        "ep_poll",
        "do_epoll_wait",
        "do_select",
        "core_sys_select",
        "poll_schedule_timeout",
        "do_sigtimedwait",
        "sigsuspend",
        "do_nanosleep",
        "hrtimer_nanosleep",
        "sys_pause",
    ]
)
"""Functions in which processes wait for an event of any kind, or for a child."""
_UNNAMED = ("struct percpu_rw_semaphore", "struct rw_semaphore", "struct semaphore")
"""Locks that do not always say who holds them."""


@dataclass
class Waiting:
    """The graph of a kernel, and what it was made of."""

    graph: Graph
    waits: Waits
    """Of all sleeping tasks."""
    tasks: Tasks
    objects: Words
    """What each of them waits for; 0 where that could not be determined."""
    types: dict[tuple[NodeKind, int], str] = field(default_factory=dict)
    """C types of objects."""
    names: dict[tuple[NodeKind, int], str] = field(default_factory=dict)
    """Of objects that have any; not safe to print."""
    readers: dict[int, int] = field(default_factory=dict)
    """By lock: how many readers hold it."""
    connections: dict[int, int] = field(default_factory=dict)
    """By FUSE request: the number of its connection, as /sys/fs/fuse/connections names it."""
    missing: list[str] = field(default_factory=list)
    """What could not be looked at for lack of debug info."""
    unseen_ends: int = 0
    """Open files of pipes that are in no descriptor table: in flight, the kernel's, or lost."""
    lost_requests: int = 0
    """Requests of block devices and bios that are torn, or that contradict their tags."""
    unreadable_code: int = 0
    """Functions whose machine code is not in the dump."""
    unread_futexes: int = 0
    """Futexes whose owner the memory of their program may name, which is not in the dump."""
    torn: int = 0
    """Lists that could not be followed to their end, besides those of waiters."""
    faults: Faults = field(default_factory=Faults)

    def row(self, node: int) -> int:
        """Return the row of a node's task in the waits, or -1."""
        return self._rows.get(int(self.graph.address[node]), -1)

    def __post_init__(self) -> None:
        self._rows = {task: row for row, task in enumerate(self.waits.task.tolist())}


@once
def waiting(kernel: Kernel) -> Waiting:
    """Return who waits for whom.

    :raises LookupError: the debug info lacks tasks
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    return _Reader(kernel).read()


class _Reader:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.known, self.waits = kernel, tasks(kernel), sleeps(kernel)
        self.rows = self.known.rows(self.waits.task)
        self.build, self.faults = Builder(), Faults()
        self.object = self.waits.object.copy()
        self.type = list(self.waits.type)
        self.evidence = list(self.waits.evidence)
        self.types: dict[tuple[NodeKind, int], str] = {}
        self.names: dict[tuple[NodeKind, int], str] = {}
        self.readers: dict[int, int] = {}
        self.missing = list(self.waits.missing)
        self.missing += unread_code(kernel.prog.platform)
        self.sites = CallSites(kernel)
        self.timed = np.empty(0, np.uint64)
        """Tasks that a timer wakes up."""
        self.completers: dict[int, set[int] | None] = {}
        """By completion: where the functions begin that complete it."""
        self.blocked = self.known.is_blocked[self.rows]
        self.last_readers: dict[int, tuple[int, str, int]] = {}
        """By rwsem or semaphore: the task that came last to read it, or to take it; the member that
        says so, and its place."""
        self.behind_writers: set[int] = set()
        """Tasks that want to read what others read, too, behind a writer."""
        self.finders: list[Finder] = []
        self.unseen_ends: dict[int, int] = {}
        """By pipe: how many files of the other end are in no descriptor table."""
        self.lost_requests = 0
        self.frozen: set[int] = set()
        """Locks that a frozen file system keeps, not a task."""

    def read(self) -> Waiting:
        special, grace_periods = self._finder(Special), self._finder(GracePeriods)
        futexes, logs = self._finder(Futexes), self._finder(Logs)
        for what, work in (
            ("pages", self._pages),
            ("core dumps", special.core_dumps),
            ("children of vfork", special.children),
            ("work items", special.works),
            ("frozen file systems", lambda: self.frozen.update(special.frozen())),
            ("FUSE requests", special.fuse_requests),
            ("areas of memory maps", special.areas),
            ("journals", special.journals),
            ("transactions of journals", logs.journals),
            ("logs of XFS", logs.logs),
            ("grace periods of RCU", grace_periods.find),
            ("futexes", futexes.find),
            ("locks", self._locks),
            ("pipes", self._pipes),
            ("completions", self._completions),
        ):
            self._attempt(what, work)
        self._waits()
        self._buffers()
        self._attempt("requests", self._requests)
        self._attempt("tags", self._tags)
        self._attempt("timers", self._timers)
        graph = replace(self.build.graph(), timed=self.timed)
        graph = graph.part(self._of_interest(graph))
        pipes = [node for node, kind in enumerate(graph.kind) if kind is NodeKind.PIPE]
        return Waiting(
            graph=graph,
            waits=self.waits,
            tasks=self.known,
            objects=self.object,
            types=self.types,
            names=self.names,
            readers=self.readers,
            connections=special.connections,
            missing=self.missing,
            unseen_ends=sum(self.unseen_ends.get(int(graph.address[pipe]), 0) for pipe in pipes),
            lost_requests=self.lost_requests,
            unreadable_code=self.sites.unreadable,
            unread_futexes=futexes.unread,
            torn=sum(finder.torn for finder in self.finders),
            faults=self.faults,
        )

    def _timers(self) -> None:
        mask = timed(self.kernel, self.known, self.rows, self.waits, self.faults)
        self.timed = self.waits.task[mask]

    def _finder(self, kind: type[F]) -> F:
        """Return one that looks for what tasks wait for, and notes it here."""
        finder = kind(self.kernel, self.known, self.waits, self.rows, self.build, self.faults)
        finder.object, finder.type, finder.evidence = self.object, self.type, self.evidence
        finder.types, finder.names = self.types, self.names
        self.finders.append(finder)
        return finder

    def _attempt(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (LookupError, UnsupportedAllocator):
            self.missing.append(what)
        except drgn.FaultError as error:
            self.faults.note(error)
            self.missing.append(what)

    def _kind(self, lane: int) -> NodeKind:
        if lane in self.behind_writers:
            return NodeKind.RWSEM_QUEUE
        if self.evidence[lane] in _DRAINING:
            return NodeKind.PERCPU_READERS
        if self.type[lane] == "struct xfs_buf" and self.evidence[lane] != _BUFFER_LOCK:
            return NodeKind.BUFFER_IO
        if self.type[lane] == "struct xlog" and self.evidence[lane].endswith("_head"):
            return NodeKind.LOG_SPACE
        kind = _KINDS.get(self.type[lane])
        if kind in (None, NodeKind.QUEUE, NodeKind.COMPLETION, NodeKind.BIT):
            kind = _BY_WAIT.get(self.waits.kind[lane], kind)
        return kind or NodeKind.OTHER

    def _of_type(self, *types: str) -> Numbers:
        """Return the tasks that wait for objects of some types."""
        wanted = [type_ in types for type_ in self.type]
        return np.flatnonzero(np.array(wanted, np.bool_) & (self.object != 0))

    # From tasks to what they wait for

    def _waits(self) -> None:
        lanes = np.flatnonzero(self.object != 0)
        kinds = [self._kind(lane) for lane in lanes.tolist()]
        for lane, kind in zip(lanes.tolist(), kinds, strict=True):
            self.types.setdefault((kind, int(self.object[lane])), self.type[lane])
        self.build.edges(
            EdgeKind.WAITS,
            (NodeKind.TASK, self.waits.task[lanes]),
            (kinds, self.object[lanes]),
            strength=Strength.PROVEN,
            evidence=[self.evidence[lane] for lane in lanes.tolist()],
            mode=[self._mode(lane).value for lane in lanes.tolist()],
            frame=[self.waits.function[lane] for lane in lanes.tolist()],
        )
        # Tasks of which it is not known, too: who waits for them waits for that.
        self.build.nodes(NodeKind.TASK, self.waits.task[self.blocked])

    def _mode(self, lane: int) -> Mode:
        """Return how a task wants the lock that it waits for."""
        if self.type[lane] not in ("struct rw_semaphore", "struct percpu_rw_semaphore"):
            return Mode.NONE
        names = [plain(name) for name in self.waits.stacks.functions(lane)[:12]]
        for name in names:
            for word, mode in (("down_read", Mode.READ), ("down_write", Mode.WRITE)):
                if word in name:
                    return mode
        # An inlined percpu_down_read() calls __percpu_down_read(); the writer is a function.
        return Mode.READ if "percpu_rwsem_wait" in names else Mode.NONE

    # From locks to who holds them

    def _locks(self) -> None:
        unnamed: list[tuple[str, int, bool]] = []
        # What one type lacks is no reason to know nothing of the others.
        for type_ in sorted(LOCK_TYPES):
            self._attempt(f"owners of {type_}", partial(self._locks_of, type_, unnamed))
        if unnamed:
            self._by_code(unnamed)

    def _locks_of(self, type_: str, unnamed: list[tuple[str, int, bool]]) -> None:
        """Find who holds locks of a type, and note those that do not say it."""
        lanes = self._of_type(type_)
        if not len(lanes):
            return
        locks = np.unique(self.object[lanes])
        found = holders(self.kernel, type_, locks)
        self.faults += found.faults
        kind = _KINDS[type_]
        sure = found.strength == int(Strength.PROVEN)
        sure &= ~self._still_waits(found, locks)
        rows = np.flatnonzero(sure).tolist()
        self.build.edges(
            EdgeKind.HELD,
            (kind, locks[found.lock[sure]]),
            (NodeKind.TASK, found.task[sure]),
            strength=Strength.PROVEN,
            evidence=[found.evidence[row] for row in rows],
            mode=[found.mode[row].value for row in rows],
            place=found.place[sure],
        )
        for row in np.flatnonzero(found.strength < int(Strength.PROVEN)).tolist():
            hint = int(found.task[row]), found.evidence[row], int(found.place[row])
            self.last_readers[int(locks[found.lock[row]])] = hint
        self.readers |= {
            lock: count
            for lock, count in zip(locks.tolist(), found.readers.tolist(), strict=True)
            if count > 0
        }
        if type_ not in _UNNAMED:
            return
        if kind is NodeKind.RWSEM:
            self._queues(locks[~found.is_write & (found.readers > 0)])
        proven = np.zeros(len(locks), np.int64)
        np.add.at(proven, found.lock[sure], 1)
        for row, lock in enumerate(locks.tolist()):
            needs_readers = found.readers[row] > 0 and (
                not found.is_write[row] or type_ == "struct percpu_rw_semaphore"
            )
            if lock in self.frozen:
                continue
            if found.is_held[row] and (not proven[row] or needs_readers):
                unnamed.append((type_, lock, bool(found.is_write[row]) and not proven[row]))

    def _still_waits(self, found: Holders, locks: Words) -> Mask:
        """Return which holders are about to have their lock: it was given to them as they sleep."""
        waited = dict(zip(self.waits.task.tolist(), self.object.tolist(), strict=True))
        rows = zip(found.lock.tolist(), found.task.tolist(), found.evidence, strict=True)
        is_given: Mask = np.array(
            [
                proof == HANDED_OVER and waited.get(task) == int(locks[lock])
                for lock, task, proof in rows
            ],
            np.bool_,
        )
        return is_given

    def _queues(self, locks: Words) -> None:
        """Find the readers that wait behind writers, for locks that readers have.

        A writer that is behind them in the queue waits for the same readers as one before them, so
        that it makes no difference to cycles.
        """
        lanes = self._of_type("struct rw_semaphore")
        lanes = lanes[np.isin(self.object[lanes], locks)]
        modes = [self._mode(lane) for lane in lanes.tolist()]
        is_write = np.array([mode is Mode.WRITE for mode in modes], np.bool_)
        writers, readers = lanes[is_write], lanes[~is_write]
        readers = readers[np.isin(self.object[readers], self.object[writers])]
        self.behind_writers |= set(readers.tolist())
        writers = writers[np.isin(self.object[writers], self.object[readers])]
        self.build.edges(
            EdgeKind.QUEUED,
            (NodeKind.RWSEM_QUEUE, self.object[writers]),
            (NodeKind.TASK, self.waits.task[writers]),
            strength=Strength.PROVEN,
            evidence="rw_semaphore.wait_list",
            mode="write",
        )

    def _by_code(self, locks: list[tuple[str, int, bool]]) -> None:
        """Find who holds locks by the functions on stacks, and by addresses on stacks.

        :param locks: type, address, and whether it is a writer that is looked for
        """
        wanted = {
            (type_, lock): self._wanted_mode(type_, is_write) for type_, lock, is_write in locks
        }
        by_address = {lock: type_ for type_, lock in wanted}
        stacks = self.waits.stacks
        held = {pc: self.sites.held(pc, stacks.names[pc]) for pc in np.unique(stacks.pc).tolist()}
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]] = defaultdict(dict)
        computed: dict[int, list[tuple[str, Mode, str]]] = defaultdict(list)
        repeated: dict[int, list[tuple[str, Mode, str]]] = defaultdict(list)
        mapped: dict[int, str] = {}
        gone: dict[int, list[Held]] = defaultdict(list)
        interesting = np.array([pc for pc, each in held.items() if each], np.uint64)
        for frame in np.flatnonzero(np.isin(stacks.pc, interesting)).tolist():
            lane, pc = int(stacks.lane[frame]), int(stacks.pc[frame])
            name, inside = stacks.names[pc], [*gone[lane]]
            gone[lane] += [each for each in held[pc] if each.is_dropped]
            for each in held[pc]:
                key = each.type, each.object
                # What functions further inside have dropped, this one no longer has.
                is_left = not any(map(each.may_be, inside))
                is_sure = each.is_sure and is_left
                if plain(name) in _FAULTS and each.type == _RWSEM and each.is_taken and is_left:
                    mapped.setdefault(lane, name)
                # What it drops next may be what it waits for, further inside.
                if not each.is_taken and self.type[lane] == each.type:
                    continue
                if each.object == 0:
                    if is_sure:
                        known = repeated if each.is_taking else computed
                        known[lane].append((each.type, each.mode, name))
                elif key in wanted and each.mode in (wanted[key], Mode.NONE):
                    strength = Strength.DERIVED if is_sure else Strength.POSSIBLE
                    # It would wait for itself.
                    if self.object[lane] == each.object and not is_sure:
                        continue
                    self._better(found[key], lane, strength, f"code of {plain(name)}", name, 0)
        self._on_stacks(wanted, by_address, computed, found)
        self._of_memory(wanted, mapped, found)
        self._last(wanted, computed, repeated, found)
        self._last_holders(wanted, held, found)
        for (type_, lock), candidates in found.items():
            sure = [lane for lane, each in candidates.items() if each[0] is Strength.DERIVED]
            # There is only one writer, and readers are counted.
            is_read = wanted[type_, lock] is Mode.READ
            most = self.readers.get(lock, len(sure)) if is_read else 1
            for lane, (strength, evidence, code, place) in candidates.items():
                if strength is Strength.POSSIBLE and 0 < len(sure) <= most:
                    continue
                kind = _KINDS[type_]
                if is_read and kind is NodeKind.PERCPU_RWSEM:
                    kind = NodeKind.PERCPU_READERS
                weight = strength if len(sure) <= most else Strength.POSSIBLE
                self.build.edges(
                    EdgeKind.HELD,
                    (kind, np.array([lock], np.uint64)),
                    (NodeKind.TASK, self.waits.task[[lane]]),
                    strength=weight,
                    evidence=evidence,
                    mode=wanted[type_, lock].value,
                    place=np.array([place], np.uint64),
                    frame=plain(code),
                )

    def _of_memory(
        self,
        wanted: dict[tuple[str, int], Mode],
        mapped: dict[int, str],
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]],
    ) -> None:
        """Find the tasks that have read-locked their own address space.

        :param mapped: by task, the function that does
        """
        lanes = np.array(sorted(mapped), np.int64)
        # Since v5.8 (commit not verified), the lock has this name.
        prog = self.kernel.prog
        memory = prog.type("struct mm_struct")
        name = "mmap_lock" if memory.has_member("mmap_lock") else "mmap_sem"
        inside = np.uint64(drgn.offsetof(memory, name))
        mm = layout(prog, "struct task_struct", ["mm"])
        read = gather(self.kernel.memory, self.waits.task[lanes], mm, self.faults)
        for lane, address in zip(lanes.tolist(), (read["mm"] + inside).tolist(), strict=True):
            if (_RWSEM, address) in wanted and self.object[lane] != address:
                evidence = f"task.mm, and code of {plain(mapped[lane])}"
                self._better(
                    found[_RWSEM, address], lane, Strength.DERIVED, evidence, mapped[lane], 0
                )

    def _last(
        self,
        wanted: dict[tuple[str, int], Mode],
        computed: dict[int, list[tuple[str, Mode, str]]],
        repeated: dict[int, list[tuple[str, Mode, str]]],
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]],
    ) -> None:
        """Judge the last readers of rwsems: each stays noted when it leaves.

        One that came before it may still be inside, so that it is possible, no more, that the last
        one is, too; that a function on its stack has read-locked some rwsem says a little more. One
        that waits for the same rwsem has left it, or waits for itself: that is possible if it has
        slept for a while in a function that takes such locks twice.

        :param repeated: functions that take such a lock, and have taken one before
        """
        lanes = {task: lane for lane, task in enumerate(self.waits.task.tolist())}
        for lock, (task, evidence, place) in self.last_readers.items():
            lane = lanes.get(task, -1)
            if (_RWSEM, lock) not in wanted:
                continue
            if lane < 0:
                self.build.edges(
                    EdgeKind.HELD,
                    (NodeKind.RWSEM, np.array([lock], np.uint64)),
                    (NodeKind.TASK, np.array([task], np.uint64)),
                    strength=Strength.POSSIBLE,
                    evidence=evidence,
                    mode=Mode.READ.value,
                    place=np.array([place], np.uint64),
                )
                continue
            is_own = self.object[lane] == lock
            code = _taking((repeated if is_own else computed)[lane], _RWSEM, Mode.READ)
            if code:
                evidence += f", and code of {plain(code)}"
            if not is_own or (code and self.waits.since_ns[lane] >= _WHILE_NS):
                self._better(found[_RWSEM, lock], lane, Strength.POSSIBLE, evidence, code, place)

    def _last_holders(
        self,
        wanted: dict[tuple[str, int], Mode],
        held: dict[int, list[Held]],
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]],
    ) -> None:
        """Judge who took semaphores last: each stays noted when another task does up().

        One holds its semaphore that has a function on its stack that took it, and has not dropped
        it. A task that waits for the same one took it before only if its code names it.

        :param held: by return address, what functions hold
        """
        lanes = {task: lane for lane, task in enumerate(self.waits.task.tolist())}
        type_, stacks = "struct semaphore", self.waits.stacks
        for lock, (task, evidence, place) in self.last_readers.items():
            if (type_, lock) not in wanted:
                continue
            lane = lanes.get(task, -1)
            if lane < 0:
                self.build.edges(
                    EdgeKind.HELD,
                    (NodeKind.SEMAPHORE, np.array([lock], np.uint64)),
                    (NodeKind.TASK, np.array([task], np.uint64)),
                    strength=Strength.POSSIBLE,
                    evidence=evidence,
                    place=np.array([place], np.uint64),
                )
                continue
            objects = (lock,) if self.object[lane] == lock else (lock, 0)
            code = next(
                (
                    stacks.names[pc]
                    for pc in stacks.pc[stacks.frames(lane)].tolist()
                    for each in held.get(pc, ())
                    if each.type == type_ and each.is_taken and each.is_sure
                    if each.object in objects
                ),
                "",
            )
            proof = f"{evidence}, and code of {plain(code)}" if code else evidence
            strength = Strength.DERIVED if code else Strength.POSSIBLE
            if lane not in found[type_, lock] or strength >= found[type_, lock][lane][0]:
                found[type_, lock][lane] = strength, proof, code, place

    def _wanted_mode(self, type_: str, is_write: bool) -> Mode:
        if type_ == "struct semaphore":
            return Mode.NONE
        return Mode.WRITE if is_write else Mode.READ

    def _better(
        self,
        found: dict[int, tuple[Strength, str, str, int]],
        lane: int,
        strength: Strength,
        evidence: str,
        frame: str,
        place: int,
    ) -> None:
        if lane not in found or found[lane][0] < strength:
            found[lane] = strength, evidence, frame, place

    def _on_stacks(
        self,
        wanted: dict[tuple[str, int], Mode],
        by_address: dict[int, str],
        computed: dict[int, list[tuple[str, Mode, str]]],
        found: dict[tuple[str, int], dict[int, tuple[Strength, str, str, int]]],
    ) -> None:
        """Find the addresses of locks on stacks of tasks that do not wait for them."""
        for lane, address, place in self._mentions(np.array(list(by_address), np.uint64)):
            type_ = by_address[address]
            mode = wanted[type_, address]
            if self.object[lane] == address:
                continue
            name = _taking(computed[lane], type_, mode)
            evidence = f"on the stack, and code of {plain(name)}" if name else "on the stack"
            is_sure = bool(name)
            if type_ == _RWSEM:
                # There are many of them, and the one that the code has may be another one.
                is_last = self.last_readers.get(address, (0,))[0] == int(self.waits.task[lane])
                is_sure &= is_last
                evidence = f"last reader, {evidence}" if is_last else evidence
            strength = Strength.DERIVED if is_sure else Strength.POSSIBLE
            frame = name or self._frame_at(lane, place)
            self._better(found[type_, address], lane, strength, evidence, frame, place)

    def _mentions(self, addresses: Words) -> list[tuple[int, int, int]]:
        """Return where addresses are on stacks: task, address, and place; each once per task."""
        wanted, seen = np.sort(addresses), dict[tuple[int, int], int]()
        if not len(wanted) or not self.waits.stacks.size:
            return []
        for some, start, words in stack_words(
            self.kernel.memory, self.known, self.rows, self.waits.stacks.size, self.faults
        ):
            row, column = np.nonzero(np.isin(words, wanted))
            places = start[row] + np.uint64(8) * column.astype(np.uint64)
            for lane, address, place in zip(
                some[row].tolist(), words[row, column].tolist(), places.tolist(), strict=True
            ):
                seen.setdefault((lane, address), place)
        return [(lane, address, place) for (lane, address), place in seen.items()]

    def _frame_at(self, lane: int, place: int) -> str:
        """Return the function whose frame an address on a stack is in."""
        stacks = self.waits.stacks
        rows = stacks.frames(lane)
        inner = int(np.searchsorted(stacks.sp[rows], np.uint64(place), "right")) - 1
        names = stacks.functions(lane)
        return names[inner] if 0 <= inner < len(names) else ""

    # Pipes

    def _pipes(self) -> None:
        lanes = self._of_type("struct pipe_inode_info")
        if not len(lanes):
            return
        files = open_files(self.kernel)
        self.faults += files.faults
        reads = np.array(["read" in self.waits.function[lane] for lane in lanes.tolist()])
        # `pipe_wait` is called by both.
        for at, lane in enumerate(lanes.tolist()):
            if self.waits.function[lane] == "pipe_wait":
                reads[at] = "pipe_read" in map(plain, self.waits.stacks.functions(lane))
        for is_reader in (False, True):
            pipes = np.unique(self.object[lanes[reads == is_reader]])
            index, rows = files.of(pipes)
            ends = files.writes[rows] if is_reader else files.reads[rows]
            index, rows = index[ends], rows[ends]
            unseen = self._unseen(pipes, index, files.address[rows], is_reader=is_reader)
            waiters = lanes[reads == is_reader]
            # Where all threads of a process wait for the pipe, none of them is who they wait for.
            others = ~self._all_wait(files, waiters, pipes[index], files.files[rows])
            index, rows = index[others], rows[others]
            own = self._own(files, waiters, pipes[index], files.files[rows])
            is_idle = np.isin(files.files[rows], self._idle(files))
            # Alone, an idle one is who they wait for.
            is_likely = (unseen[index] > 0) | own | (is_idle & np.isin(index, index[~is_idle]))
            sure = np.where(is_likely, int(Strength.POSSIBLE), int(Strength.DERIVED))
            for kind, mask in ((EdgeKind.OTHER_END, ~is_idle), (EdgeKind.IDLE_END, is_idle)):
                some = rows[mask]
                self.build.edges(
                    kind,
                    (NodeKind.PIPE, pipes[index[mask]]),
                    (NodeKind.PROCESS, files.files[some]),
                    strength=sure[mask],
                    evidence=[f"file descriptor {files.descriptor[row]}" for row in some.tolist()],
                    mode="write" if is_reader else "read",
                    place=files.address[some],
                )
            processes = np.unique(files.files[rows])
            members = np.flatnonzero(np.isin(files.tables, processes))
            self.build.edges(
                EdgeKind.THREAD,
                (NodeKind.PROCESS, files.tables[members]),
                (NodeKind.TASK, self.known.address[members]),
                strength=Strength.PROVEN,
                evidence="task.files",
            )

    def _all_wait(self, files: OpenFiles, lanes: Numbers, pipes: Words, processes: Words) -> Mask:
        """Return which ends of pipes are in processes all threads of which wait for that pipe."""
        tables = files.tables[self.rows[lanes]].tolist()
        waiting = Counter(zip(self.object[lanes].tolist(), tables, strict=True))
        threads = Counter(files.tables.tolist())
        ends = zip(pipes.tolist(), processes.tolist(), strict=True)
        return np.array([waiting[end] == threads[end[1]] for end in ends], np.bool_)

    def _idle(self, files: OpenFiles) -> Words:
        """Return the descriptor tables of processes that sleep until an event, in all threads.

        A shell or a service manager that waits for its children has ends of their pipes open
        without any use for them.
        """
        is_idle = np.zeros(len(self.known), np.bool_)
        names = map(plain, self.waits.function)
        idle = [name.removeprefix("__x64_") in _IDLE for name in names]
        is_idle[self.rows[np.array(idle, np.bool_)]] = True
        idle_tables: Words = np.setdiff1d(files.tables[is_idle], files.tables[~is_idle])
        return idle_tables

    def _own(self, files: OpenFiles, lanes: Numbers, pipes: Words, processes: Words) -> Mask:
        """Return which ends of pipes are in the process of a thread that waits for that pipe.

        A thread that reads what others of its process write, waits for an event, and not for all
        of these.
        """
        tables = files.tables[self.rows[lanes]].tolist()
        waiting = {*zip(self.object[lanes].tolist(), tables, strict=True)}
        ends = zip(pipes.tolist(), processes.tolist(), strict=True)
        return np.array([end in waiting for end in ends], np.bool_)

    def _unseen(self, pipes: Words, pipe: Numbers, files: Words, *, is_reader: bool) -> Numbers:
        """Return how many files of each pipe's other end are missing, by the pipe's own count.

        :param pipe: row of the pipe that each of ``files`` is for
        :param is_reader: whether writers are what to count
        """
        name = "writers" if is_reader else "readers"
        members = layout(self.kernel.prog, "struct pipe_inode_info", {"count": name})
        count = gather(self.kernel.memory, pipes, members, self.faults)["count"].astype(np.int64)
        # A process and its children share files.
        seen = {*zip(pipe.tolist(), files.tolist(), strict=True)}
        np.subtract.at(count, np.array([row for row, _ in seen], np.int64), 1)
        unseen = np.maximum(count, 0)
        for address, missing in zip(pipes.tolist(), unseen.tolist(), strict=True):
            self.unseen_ends[address] = self.unseen_ends.get(address, 0) + missing
        return unseen

    # Pages

    def _pages(self) -> None:
        """Find who waits for the references of a page to go, and who has its address on the stack.

        wait_var_event() waits for a change of the page's own count.
        """
        prog = self.kernel.prog
        lanes = self._of_type("unsigned long")
        if not len(lanes):
            return
        page = prog.type("struct page")
        size = np.uint64(drgn.sizeof(page))
        inside = np.uint64(
            layout(prog, page, ["_refcount.counter"]).fields["_refcount.counter"].offset
        )
        first = np.uint64(int(prog["vmemmap"]))
        start = self.object[lanes] - inside
        is_count = (start >= first) & ((start - first) % size == 0)
        is_count &= start - first < np.uint64(1 << 46)
        for lane, address in zip(lanes[is_count].tolist(), start[is_count].tolist(), strict=True):
            self.object[lane], self.type[lane] = address, "struct page"
        pages = np.unique(start[is_count])
        waiters = set(lanes[is_count].tolist())
        for lane, address, place in self._mentions(pages):
            if lane in waiters:
                continue
            frame = plain(self._frame_at(lane, place))
            self.build.edges(
                EdgeKind.REFERENCED,
                (NodeKind.PAGE, np.array([address], np.uint64)),
                (NodeKind.TASK, self.waits.task[[lane]]),
                strength=Strength.DERIVED,
                evidence="on the stack",
                place=np.array([place], np.uint64),
                frame=frame,
            )

    # Completions

    def _completions(self) -> None:
        lanes = self._of_type("struct completion", "unsigned long")
        lanes = lanes[self.object[lanes] >= np.uint64(_VARIABLES)]
        if not len(lanes):
            return
        kinds = {int(self.object[lane]): self._kind(lane) for lane in lanes.tolist()}
        stacks = self.waits.stacks
        wanted = set(self.object[lanes].tolist())
        by_pc: dict[int, dict[int, bool]] = {}
        for pc in np.unique(stacks.pc).tolist():
            found = self.sites.completes(pc, stacks.names[pc])
            if wanted & set(found):
                by_pc[pc] = {each: found[each] for each in sorted(wanted & set(found))}
        for frame in np.flatnonzero(np.isin(stacks.pc, np.array(list(by_pc), np.uint64))).tolist():
            lane, pc = int(stacks.lane[frame]), int(stacks.pc[frame])
            # Who waits for it first, and completes it later, is not who completes it now.
            others = sorted(by_pc[pc].keys() - {int(self.object[lane])})
            name = plain(stacks.names[pc])
            is_only = [by_pc[pc][each] and self._is_only_completer(pc, each) for each in others]
            self.build.edges(
                EdgeKind.COMPLETED_BY,
                ([kinds[each] for each in others], np.array(others, np.uint64)),
                (NodeKind.TASK, np.repeat(self.waits.task[lane], len(others))),
                strength=np.where(is_only, int(Strength.DERIVED), int(Strength.POSSIBLE)),
                evidence=[f"{'only ' if each else ''}code of {name}" for each in is_only],
                frame=name,
            )

    def _is_only_completer(self, pc: int, object_: int) -> bool:
        """Return whether the function at ``pc`` is the only one that completes an object."""
        if object_ not in self.completers:
            self.completers[object_] = completers(self.kernel, self.sites, object_, pc)
        start = self.sites.start_of(pc)
        return start is not None and self.completers[object_] == {start}

    def _buffers(self) -> None:
        """Note who holds the locks of XFS's buffers.

        That is the task of the transaction that a buffer is in, and who waits for its I/O.
        """
        lanes = self._of_type("struct xfs_buf")
        is_lock = np.array([self.evidence[lane] == _BUFFER_LOCK for lane in lanes.tolist()])
        locked, others = lanes[is_lock.astype(np.bool_)], lanes[~is_lock.astype(np.bool_)]
        known = locked[self.waits.holder[locked] != 0]
        # What the semaphore notes may be the task that began its I/O, and went on.
        every = buffers(self.kernel) if len(known) else None
        row = every.rows(self.object[known]) if every is not None else known
        has_owner = every.has_transaction[row] if every is not None else known != 0
        others = others[np.isin(self.object[others], self.object[locked])]
        owned, noted = known[has_owner], known[~has_owner]
        for lanes, holder, strength, proof in (
            (owned, self.waits.holder[owned], Strength.PROVEN, "xfs_buf.b_transp"),
            (noted, self.waits.holder[noted], Strength.POSSIBLE, "xfs_buf.b_sema.last_holder"),
            (others, self.waits.task[others], Strength.DERIVED, "waits for its I/O"),
        ):
            self.build.edges(
                EdgeKind.HELD,
                (NodeKind.BUFFER, self.object[lanes]),
                (NodeKind.TASK, holder),
                strength=strength,
                evidence=proof,
            )

    def _tags(self) -> None:
        """Note the disks whose free requests tasks wait for."""
        is_tag = np.array([kind is WaitKind.TAG for kind in self.waits.kind], np.bool_)
        lanes = np.flatnonzero(is_tag & (self.object != 0) & (self.waits.disk != 0))
        if not len(lanes):
            return
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.TAGS, self.object[lanes]),
            (NodeKind.DISK, self.waits.disk[lanes]),
            strength=Strength.PROVEN,
            evidence="sbitmap_queue of its tags",
        )
        for disk in block_devices(self.kernel).disks:
            self._name(NodeKind.DISK, disk.address, "struct gendisk", disk.name)

    def _name(self, kind: NodeKind, address: int, type_: str, name: str) -> None:
        self.types[kind, address], self.names[kind, address] = type_, name

    def _requests(self) -> None:
        """Find the requests of block devices that have to complete first."""
        in_io = np.array([kind in _IN_IO for kind in self.waits.kind], np.bool_)
        if not (in_io & self.blocked).any():
            return
        found, disks = requests(self.kernel), block_devices(self.kernel).disks
        gendisks = np.array([disk.address for disk in disks] or [0], np.uint64)
        places = RequestPlaces(gendisks[found.disk], found.sector, found.bytes // _SECTOR)
        known = bios(self.kernel)
        joins = joined(self.kernel, self.waits, known, places)
        self.faults += joins.faults + found.faults + known.faults
        self.lost_requests = sum(found.damage.values()) + known.torn
        strength = np.where(joins.is_proven, int(Strength.PROVEN), int(Strength.POSSIBLE))
        address = found.address[joins.request]
        for has_object in (True, False):
            rows = np.flatnonzero((self.object[joins.wait] != 0) == has_object)
            lanes = joins.wait[rows]
            kinds = [self._kind(lane) for lane in lanes.tolist()]
            self.build.edges(
                EdgeKind.SERVED if has_object else EdgeKind.WAITS,
                (kinds, self.object[lanes])
                if has_object
                else (NodeKind.TASK, self.waits.task[lanes]),
                (NodeKind.REQUEST, address[rows]),
                strength=strength[rows],
                evidence=[joins.evidence[row] for row in rows.tolist()],
            )
        rows = np.unique(joins.request)
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.REQUEST, found.address[rows]),
            (NodeKind.DISK, gendisks[found.disk[rows]]),
            strength=Strength.PROVEN,
            evidence="request.q",
        )
        for row in rows.tolist():
            disk, sector = disks[int(found.disk[row])], int(found.sector[row])
            place = f"{disk.name} at sector {sector:,}" if sector >= 0 else disk.name
            name = f"{place}{_STATES.get(State(found.state[row]), '')}"
            self._name(NodeKind.REQUEST, int(found.address[row]), "struct request", name)
            self._name(NodeKind.DISK, disk.address, "struct gendisk", disk.name)

    # What to keep

    def _of_interest(self, graph: Graph) -> npt.NDArray[np.bool_]:
        """Return which nodes tasks in state D, behind locks or in a core dump belong to.

        Thousands of tasks sleep for the next event, which is what they are for.
        """
        dumps = [
            bool(
                {"do_coredump", "vfs_coredump"} & set(map(plain, self.waits.stacks.functions(lane)))
            )
            for lane in range(len(self.waits))
        ]
        wanted = self.blocked | np.array(dumps, np.bool_)
        blocked = set(self.waits.task[wanted].tolist())
        locks = {kind for type_, kind in _KINDS.items() if type_ in LOCK_TYPES} | {
            NodeKind.WORK,
            NodeKind.PERCPU_READERS,
        }
        held = np.zeros(len(graph), np.bool_)
        sources = np.flatnonzero(np.array([kind in locks for kind in graph.kind], np.bool_))
        held[sources] = True
        # Most futexes are not locks, or of no known kind.
        futexes = [
            node
            for node, kind in enumerate(graph.kind)
            if kind is NodeKind.FUTEX and graph.following[node]
        ]
        held[futexes] = True
        held |= np.array(
            [
                kind is NodeKind.TASK and address in blocked
                for kind, address in zip(graph.kind, graph.address.tolist(), strict=True)
            ],
            np.bool_,
        )
        down = graph.reached(np.flatnonzero(held).tolist())
        return down | graph.reached(np.flatnonzero(down).tolist(), back=True)


def unread_code(platform: drgn.Platform | None) -> list[str]:
    """Return what to say of machine code that :class:`CallSites` does not read."""
    if platform is None or platform.arch is drgn.Architecture.X86_64:
        return []
    return [f"machine code of {platform.arch.name.lower()}, which shows who holds locks"]


def _taking(computed: list[tuple[str, Mode, str]], type_: str, mode: Mode) -> str:
    """Return the innermost function of a stack that takes a lock of a type; empty for none."""
    return next((name for kind, how, name in computed if (kind, how) == (type_, mode)), "")
