# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks named by members of tasks, and by the rings of their waiters."""

from __future__ import annotations

from itertools import chain

import drgn
import numpy as np

from kcensus.engine.gather import gather, plausible, plausible_range
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Guess, Mask, Numbers, Words
from kcensus.engine.tags import untagged
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import RT_OWNER, RT_WRITER
from kcensus.kernel.tasks.functions import RW_LOCK, WaitKind
from kcensus.kernel.tasks.tasks import INTERRUPTIBLE, Tasks
from kcensus.kernel.waiting.objects.queued import Queued, Shape, picked_words
from kcensus.kernel.waiting.objects.reading import Reading

_BLOCKER_TYPES = ("struct mutex", "struct semaphore", "struct rw_semaphore", "struct rw_semaphore")
"""Lock types by the lowest bits of ``task.blocker``; the last one is for a writer."""
_RWSEM = "struct rw_semaphore"
_RT_MUTEXES = {"struct mutex": "rtmutex", _RWSEM: "rwbase.rtmutex", RW_LOCK: "rtmutex"}
"""Members of locks that are an rt_mutex with PREEMPT_RT."""
RT_DRAINING = {
    _RWSEM: "rw_semaphore.rwbase.rtmutex.owner",
    RW_LOCK: "rwlock_t.rwbase.rtmutex.owner",
}
"""Evidence that a writer has the rt_mutex of an rwsem or rwlock, and waits for the readers to
leave."""
_MAX_WAITERS = 1 << 16
"""Most waiters in a ring."""
_WAITERS = {
    "struct mutex": "struct mutex_waiter",
    "struct rw_semaphore": "struct rwsem_waiter",
    "struct semaphore": "struct semaphore_waiter",
}


def percpu_writers(reading: Reading) -> None:
    """Note the percpu_rw_semaphores of writers that wait for readers to leave.

    The semaphore names the writer, and the waiting function has its address on the stack.
    """
    waiting = [
        row
        for row, facts in enumerate(reading.facts)
        if facts.function == "percpu_down_write" and not reading.object[row]
    ]
    if not waiting:
        return
    type_, kernel, known = "struct percpu_rw_semaphore", reading.kernel, reading.known
    # Since v4.11 (commit not verified), the writer is a struct rcuwait. Since Linux kernel commit
    # 7f26482a872c ("locking/percpu-rwsem: Remove the embedded rwsem") (in v5.7), `block` marks its
    # presence.
    optional = {"block": ("block.counter", "readers_block")}
    members = layout(kernel.prog, type_, {"task": "writer.task"}, optional)
    lanes, size = np.array(waiting, np.int64), reading.stacks.size
    rows = reading.rows[lanes]
    for index, candidate, _ in picked_words(kernel.memory, known, rows, size, reading.faults):
        read = gather(kernel.memory, candidate, members, Guess())
        task, low = known.address[rows[index]], known.stack[rows[index]]
        # The stack has the address of the task, too, and addresses of itself.
        elsewhere = (candidate < low) | (candidate >= low + np.uint64(size))
        blocks = read.columns.get("block", np.ones(len(candidate))) != 0
        named = np.flatnonzero(read.readable & (read["task"] == task) & elsewhere & blocks)
        lane, proof = lanes[index[named]], "percpu_rw_semaphore.writer"
        reading.note(lane, candidate[named], WaitKind.LOCK, type_, proof)


def blockers(reading: Reading) -> None:
    """Note the locks named by members of tasks."""
    _mutexes(reading)
    _rt_mutexes(reading)
    _rt_owners(reading)
    blocker = untagged(reading.known.blocker[reading.rows], reading.kernel.memory.tag)
    lane = np.flatnonzero((blocker != 0) & (reading.object == 0))
    address = blocker[lane] & ~np.uint64(3)
    types = [_BLOCKER_TYPES[int(bits)] for bits in blocker[lane] & np.uint64(3)]
    for row, each, type_ in zip(lane.tolist(), address, types, strict=True):
        reading.note(np.array([row]), np.array([each]), reading.kind[row], type_, "task.blocker")


def _mutexes(reading: Reading) -> None:
    lock = reading.known.blocked_on[reading.rows]
    lane = np.flatnonzero((lock != 0) & (reading.object == 0))
    kind, type_ = WaitKind.LOCK, "struct mutex"
    reading.note(lane, lock[lane], kind, type_, "task.blocked_on")


def _rt_mutexes(reading: Reading) -> None:
    waiter = reading.known.pi_blocked_on[reading.rows]
    lane = np.flatnonzero((waiter != 0) & (reading.object == 0))
    if not len(lane):
        return
    members = layout(reading.kernel.prog, "struct rt_mutex_waiter", ["task", "lock"])
    read = gather(reading.kernel.memory, waiter[lane], members, reading.faults)
    named = read.readable & (read["task"] == reading.known.address[reading.rows[lane]])
    # Since Linux kernel commit 830e6acc8a1c ("locking/rtmutex: Split out the inner parts of 'struct
    # rtmutex'") (in v5.15), it is a struct rt_mutex_base, the base of a lock.
    member = reading.kernel.prog.type("struct rt_mutex_waiter").member("lock").type.type
    kind, proof, lock = WaitKind.LOCK, "task.pi_blocked_on", read["lock"]
    of_lock = np.array([reading.facts[row].lock for row in lane.tolist()], object)
    # With PREEMPT_RT, mutexes, rwsems and rwlocks have an rt_mutex.
    for type_, path in _RT_MUTEXES.items():
        inside = _rt_mutex_inside(reading.kernel.prog, type_, path)
        is_one = named & (of_lock == type_) & (inside >= 0)
        reading.note(lane[is_one], lock[is_one] - np.uint64(max(inside, 0)), kind, type_, proof)
    # What is noted stays.
    reading.note(lane[named], lock[named], kind, member.type_name(), proof)


def _rt_owners(reading: Reading) -> None:
    """Note the locks of PREEMPT_RT whose rt_mutex their own waiter owns.

    A writer that waits for readers to leave owns that of its lock, and no member names the lock.
    A task that takes a lock twice is stopped for good, in state S. Both have the address of the
    lock or of its rt_mutex on the stack.
    """
    for type_, path in _RT_MUTEXES.items():
        waiting = [
            row
            for row, facts in enumerate(reading.facts)
            if facts.lock == type_ and not reading.object[row]
        ]
        inside = _rt_mutex_inside(reading.kernel.prog, type_, path) if waiting else -1
        if inside < 0:
            continue
        lanes = np.array(waiting, np.int64)
        state = reading.known.state[reading.rows[lanes]]
        is_stopped = (state & np.uint64(INTERRUPTIBLE)) != 0
        _note_owned(reading, type_, lanes[is_stopped], f"{type_.removeprefix('struct ')}.{path}")
        if type_ in RT_DRAINING:
            _note_owned(reading, type_, lanes[~is_stopped], RT_DRAINING[type_], is_draining=True)


def _note_owned(
    reading: Reading, type_: str, lanes: Numbers, proof: str, *, is_draining: bool = False
) -> None:
    """Note the only lock that a task owns and has on its stack.

    :param is_draining: whether it must be a lock with readers that its writer waits for
    """
    kernel, known, found = reading.kernel, reading.known, dict[int, set[int]]()
    path, size, rows = _RT_MUTEXES[type_], reading.stacks.size, reading.rows[lanes]
    inside = np.uint64(_rt_mutex_inside(kernel.prog, type_, path))
    readers = {"readers": ("rwbase.readers.counter", "readers.counter")} if is_draining else {}
    # Other objects have the address of a task there, too.
    waiters = {"root": f"{path}.waiters.rb_root.rb_node", "first": f"{path}.waiters.rb_leftmost"}
    members = layout(kernel.prog, type_, {"owner": f"{path}.owner", **readers}, waiters)
    for index, word, _ in picked_words(kernel.memory, known, rows, size, reading.faults):
        for start in (word, word - inside):
            read = gather(kernel.memory, start, members, Guess())
            is_own = read.readable & (read["owner"] & RT_OWNER == known.address[rows[index]])
            if "root" in read.columns and "first" in read.columns:
                is_own &= (read["root"] != 0) == (read["first"] != 0)
                is_own &= (read["root"] == 0) | (read["owner"] & ~RT_OWNER != 0)
            if is_draining:
                # It has taken the bias of readers away, and has not got its own.
                count = read["readers"].astype(np.int64) & 0xFFFFFFFF
                is_own &= (count > 0) & (count < RT_WRITER)
            for lane, lock in zip(
                lanes[index[is_own]].tolist(), start[is_own].tolist(), strict=True
            ):
                found.setdefault(lane, set()).add(lock)
    for lane, locks in found.items():
        if len(locks) == 1:
            lock = np.array([*locks], np.uint64)
            reading.note(np.array([lane]), lock, WaitKind.LOCK, type_, proof)


def rings(reading: Reading) -> None:
    """Note the locks of tasks on a ring of waiters."""
    lock = {
        row: facts.lock
        for row, facts in enumerate(reading.facts)
        if facts.lock and not reading.object[row]
    }
    if not lock or reading.links is None:
        return
    found = locks_of_rings(
        reading.kernel, reading.known, reading.rows, reading.links, lock, reading.stacks.size
    )
    for row, address in found.items():
        proof = f"{lock[row].removeprefix('struct ')}.first_waiter"
        reading.note(
            np.array([row]), np.array([address], np.uint64), reading.kind[row], lock[row], proof
        )


def _rt_mutex_inside(prog: drgn.Program, type_: str, path: str) -> int:
    """Return the offset of the rt_mutex in a lock with PREEMPT_RT, or -1 in other kernels."""
    try:
        return int(drgn.offsetof(prog.type(type_), path))
    except LookupError:
        return -1


def locks_of_rings(
    kernel: Kernel, known: Tasks, rows: Numbers, links: Queued, lock: dict[int, str], size: int
) -> dict[int, int]:
    """Return the locks with a ring of waiters without a head, by index in ``rows``: since v7.1.

    The lock points to its first waiter, but no waiter to the lock. So the lock is looked for on the
    stack of the waiting task, and in its address space, whose lock may be the object.

    :param rows: of the tasks
    :param links: the lists of waiters with these tasks
    :param lock: C type of the lock that a task waits for, by its index
    :param size: bytes of a stack
    :raises LookupError: the debug info lacks a type
    """
    nodes: dict[int, list[int]] = {lane: [] for lane in lock}
    for lane, node, shape in zip(
        links.lane.tolist(), links.node.tolist(), links.shape, strict=True
    ):
        if lane in nodes and shape is Shape.LOCK:
            nodes[lane].append(node)
    found: dict[int, int] = {}
    for name in sorted(set(lock.values())):
        # Since Linux kernel commits 25500ba7e77c, b9bdd4b68404 and 1ea4b473504b (in v7.1).
        if kernel.prog.type(name).has_member("first_waiter"):
            lanes = [lane for lane in nodes if lock[lane] == name]
            own = _Rings(kernel, [nodes[lane] for lane in lanes])
            locks = _locks(kernel, known, rows[lanes], name, size, own)
            found |= {lanes[task]: address for task, address in locks.items()}
    return found


class _Rings:
    """The rings of some tasks, each walked once.

    :param nodes: by task, the nodes on its stack
    """

    def __init__(self, kernel: Kernel, nodes: list[list[int]]) -> None:
        self._memory, self._places = kernel.memory, plausible_range(kernel.memory, 8)
        self._after: dict[int, int] = {}
        self._number: dict[int, int] = {}
        self._torn: dict[int, Words] = {}
        """Nodes that a task's own nodes lead to without a way back, by task."""
        pairs = []
        for task, own in enumerate(nodes):
            for node in own:
                if node not in self._number:
                    way, is_ring = self._walk(node)
                    if not is_ring:
                        known = self._torn.get(task, np.empty(0, np.uint64))
                        self._torn[task] = np.union1d(known, np.array(way, np.uint64))
                        continue
                    self._number |= dict.fromkeys(way, node)
                pairs.append((task, self._number[node]))
        number = {node: index for index, node in enumerate(sorted({ring for _, ring in pairs}))}
        self._count = len(number)
        self._nodes = np.array(sorted(self._number), np.uint64)
        numbers = [number[self._number[node]] for node in self._nodes.tolist()]
        self._numbers = np.array(numbers, np.int64)
        codes = {task * self._count + number[ring] for task, ring in pairs}
        self._codes = np.array(sorted(codes), np.int64)

    def _walk(self, start: int) -> tuple[list[int], bool]:
        """Return the nodes after a node, and whether they lead back to it."""
        way, seen, node = list[int](), set[int](), start
        # A null pointer in a torn ring would be the first waiter of all free locks.
        while node not in seen and node in self._places and len(way) < _MAX_WAITERS:
            way.append(node)
            seen.add(node)
            if node not in self._after:
                try:
                    self._after[node] = self._memory.word(node)
                except drgn.FaultError:
                    self._after[node] = 0
            node = self._after[node]
        return way, node == start and bool(way)

    def have(self, task: Numbers, node: Words) -> Mask:
        """Return which nodes are in a ring with a node of the task."""
        place = np.minimum(np.searchsorted(self._nodes, node), max(len(self._nodes) - 1, 0))
        found = np.zeros(len(node), np.bool_)
        if len(self._nodes):
            code = task * self._count + self._numbers[place]
            found = (self._nodes[place] == node) & np.isin(code, self._codes)
        for torn, way in self._torn.items():
            found |= (task == torn) & np.isin(node, way)
        return found


def _locks(
    kernel: Kernel, known: Tasks, rows: Numbers, name: str, size: int, rings: _Rings
) -> dict[int, int]:
    """Return the lock of each task with exactly one candidate in a ring with its waiter."""
    prog, memory = kernel.prog, kernel.memory
    waiter = prog.type(_WAITERS[name])
    link = np.uint64(drgn.offsetof(waiter, "list"))
    members, of_waiter = layout(prog, name, ["first_waiter"]), layout(prog, waiter, ["task"])
    of_task = layout(prog, "struct task_struct", ["mm"])
    mm = gather(memory, known.address[rows], of_task, Faults())["mm"]
    lock = np.uint64(drgn.offsetof(prog.type("struct mm_struct"), "mmap_lock"))
    has_memory = np.flatnonzero(mm)
    words = picked_words(memory, known, rows, size, Faults())
    locks: dict[int, set[int]] = {}
    for task, address, _ in chain(words, [(has_memory, mm[has_memory] + lock, mm)]):
        first = gather(memory, address, members, Guess())["first_waiter"]
        some = np.flatnonzero(plausible(memory, first, 8))
        task, address, first = task[some], address[some], first[some]
        owner = gather(memory, first, of_waiter, Guess())["task"]
        low = known.stack[rows[task]]
        top = low + np.uint64(size)
        # A single waiter is a ring by itself, which looks like an empty list.
        alone = (first >= low) & (first < top) & (owner == known.address[rows[task]])
        # The stack has the address of the waiter, too.
        elsewhere = (address < low) | (address >= top)
        kept = (rings.have(task, first + link) | alone) & elsewhere
        for each, found in zip(task[kept].tolist(), address[kept].tolist(), strict=True):
            locks.setdefault(each, set()).add(found)
    return {task: min(found) for task, found in locks.items() if len(found) == 1}
