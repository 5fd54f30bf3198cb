# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holders of the futexes that threads wait for.

A waiting thread has a ``struct futex_q`` on its stack, whose key names the word in the memory of
its process. Only the program knows the meaning of the word: two conventions are known, and a word
is read only if the value that the thread passed to the kernel fits one of them, and never for a
capsule:

* FUTEX_WAITERS and the thread ID of the owner: robust mutexes, and all that follow futex(2);
* 2, and the thread ID of the owner two words later: the other mutexes of the GNU C library.

Processes share a word by mapping a file, each at an address of its own: a waiter has that among the
registers of its system call, and an owner must have mapped the file, too.

Mutexes with priority inheritance have an rt_mutex in the kernel, which names its owner.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

import drgn
import numpy as np
from drgn.helpers.linux.mm import access_remote_vm, for_each_vma, vma_find

from kcensus.engine.layout import Path
from kcensus.engine.memory import Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import DAMAGED, decode_array
from kcensus.kernel.tasks.registers import UNKNOWN, arguments
from kcensus.kernel.vfs.files import file_paths
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders.locks.locks import RT_MUTEX
from kcensus.kernel.waiting.graph import HELD, TASK, Graph, NodeKind
from kcensus.kernel.waiting.objects.queued import own_mentions
from kcensus.results import Gap
from kcensus.sources.capsule import is_assembled
from kcensus.text import task_name

FUTEX = NodeKind(
    "futex",
    ("struct futex_q",),
    is_event=True,
    shows_sleepers=True,
    advice="Attach gdb to the program, or read its core (gcore): the memory of the program names "
    "the holder",
)
_WAITS = frozenset({"futex_wait_queue_me", "futex_wait_queue", "futex_do_wait"})
"""Functions that sleep until a futex is woken."""
_Q, _PI_STATE = "struct futex_q", "struct futex_pi_state"
_IS_FILE = np.uint64(1)
"""FUT_OFF_INODE: the word is identified by its file, and the key has no address."""
_FLAGS = np.uint64(3)
"""FUT_OFF_INODE and FUT_OFF_MMSHARED, in the lowest bits of the offset."""
_WAITERS = 1 << 31
_TID = (1 << 30) - 1
"""FUTEX_TID_MASK."""
_CONTENDED = 2
"""``pthread_mutex_t.__lock`` of the GNU C library while threads wait for it."""
_MUTEX = struct.Struct("=IIiIi")
"""``pthread_mutex_t`` of programs of 64 bits: __lock, __count, __owner, __nusers and __kind."""
_MAX_KIND = 0x3FF
"""Bits of ``pthread_mutex_t.__kind``: type, robustness, protocol and elision."""
_DAMAGED = (*DAMAGED, NotImplementedError)
"""Raised for a damaged memory map, with an unknown type of a node."""
_MAX_NAMED = 1 << 8
"""Most files with futexes to name."""
_MAX_AREAS = 1 << 16
"""Most areas of a memory map to search for a file: vm.max_map_count by default."""
_MAX_LEVEL = 32
"""MAX_PID_NS_LEVEL."""
_MAX_WORDS = 1 << 14
"""Most words of programs to read."""


class Futexes(Finder):
    """Finds the futexes that threads wait for, and their holders."""

    about = "futexes"
    kinds = (FUTEX,)
    unread = 0
    """Words that may name an owner, but are missing from the dump."""
    unqueued = 0
    """Waiters without a ``struct futex_q`` on their stack."""

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self._namespaces: dict[int, int] = {}
        """PID namespace of tasks."""
        self._mapped: dict[int, set[int]] = {}
        """Numbers of the files in a memory map, by ``struct mm_struct *``."""

    def of_interest(self, graph: Graph) -> Iterable[int]:
        """Return the futexes with a known holder: most others are no locks."""
        return [node for node in super().of_interest(graph) if graph.following[node]]

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield waiters of unknown futexes, and words of owners that are missing from the dump."""
        yield Gap(
            "futexes",
            "the stack of a waiter has no queued struct futex_q",
            self.unqueued,
            "the futexes of these threads are unknown",
        )
        yield Gap(
            "futexes",
            "memory of programs is not in the dump",
            self.unread,
            "futexes of these programs have no known holder",
        )

    def note(self) -> None:
        """Note futexes, and the threads that hold them.

        :raises LookupError: the debug info lacks a type
        """
        self._rt_mutexes()
        lanes = self._lanes(_WAITS, None)
        if not len(lanes):
            return
        asleep = len(lanes)
        lanes, queued, read = self._queued(lanes)
        self.unqueued += asleep - len(lanes)
        key = np.rec.fromarrays([read["ptr"], read["word"], read["offset"]])
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        # One waiter of a futex is its node for all of them.
        node = np.full(len(first), np.uint64((1 << 64) - 1))
        np.minimum.at(node, group, queued)
        for lane, each in zip(lanes.tolist(), node[group].tolist(), strict=True):
            self._note(lane, each, _Q, "futex_q.key")
        offset = read["offset"].astype(np.uint64)
        address = read["word"] + (offset & ~_FLAGS)
        is_file = (offset & _IS_FILE) != 0
        address[is_file] = self._mapped_at(lanes[is_file], offset[is_file] & ~_FLAGS)
        leaders = self._leaders(lanes)
        paths = self._paths(lanes, address, first[is_file[first]])
        for row in first.tolist():
            where = f"0x{int(address[row]):x}"
            where = f"in {paths.get(row, 'a file')}" if is_file[row] else where
            name = FUTEX, int(node[group[row]])
            self.names[name] = f"{where} of {leaders[row]}"
        is_known = address != 0
        files = np.where(is_file, read["ptr"], np.uint64(0))[is_known]
        self._owners(lanes[is_known], address[is_known], node[group][is_known], files)

    # Identity of a futex

    def _queued(self, lanes: Numbers) -> tuple[Numbers, Words, dict[str, Words]]:
        """Return the waiting tasks, their ``struct futex_q`` and its key.

        It names the task, and is linked with other waiters, which tells it from other places on the
        stack with the address of the task.
        """
        members = {
            "ptr": "key.both.ptr",
            "word": "key.both.word",
            "offset": "key.both.offset",
            "next": "list.node_list.next",
            "lock": "lock_ptr",
        }
        memory, rows, size = self.kernel.memory, self.rows[lanes], self.waits.stacks.size
        index, mention = own_mentions(memory, self.known, rows, size, self.faults)
        place = mention - self._offset(_Q, "task")
        read = self._read(_Q, place, members, is_guess=True)
        before = self._read("struct list_head", read["next"], ["prev"], is_guess=True)
        link = place + self._offset(_Q, "list.node_list.next")
        sound = read.readable & before.readable & (before["prev"] == link)
        sound &= (read["lock"] != 0) & (read["ptr"] != 0)
        # The key of a private futex has the memory map; other keys have numbers for it, or for a
        # file.
        own = self._member("struct task_struct", "mm", self.waits.task[lanes[index]])
        sound &= ((read["offset"].astype(np.uint64) & _FLAGS) != 0) | (read["ptr"] == own)
        row = np.flatnonzero(sound)
        # A former wait may leave a similar structure on the stack.
        _, first, count = np.unique(index[row], return_index=True, return_counts=True)
        row = row[first[count == 1]]
        key = {name: read[name][row].astype(np.uint64) for name in ("ptr", "word", "offset")}
        return lanes[index[row]], place[row], key

    def _mapped_at(self, lanes: Numbers, within: Words) -> Words:
        """Return the address that each task passed to futex(2); 0 if that cannot be of its word.

        :param within: offset of the word in its page
        """
        address = self._arguments(lanes, 0)
        page = np.uint64(self.kernel.memory.page_size - 1)
        return np.where((address != UNKNOWN) & (address & page == within), address, np.uint64(0))

    def _paths(self, lanes: Numbers, address: Words, rows: Numbers) -> dict[int, str]:
        """Return the path of the file that each task of some rows has mapped at an address."""
        if is_assembled(self.kernel.prog):
            return {}
        type_, inodes = self.kernel.prog.type("struct task_struct"), np.zeros(len(lanes), np.uint64)
        for row in rows[:_MAX_NAMED].tolist():
            task = drgn.Object(self.kernel.prog, type_, address=int(self.waits.task[lanes[row]]))
            with suppress(*_DAMAGED):
                area = vma_find(task.mm, int(address[row]))
                if area and area.vm_file:
                    inodes[row] = int(area.vm_file.f_inode)
        paths = file_paths(self.kernel, inodes, self.faults) if inodes.any() else {}
        found = enumerate(inodes.tolist())
        return {row: paths[inode] for row, inode in found if inode in paths}

    def _leaders(self, lanes: Numbers) -> list[str]:
        leaders = self._member("struct task_struct", "group_leader", self.waits.task[lanes])
        names = self._read("struct task_struct", leaders, ["comm", "pid"])
        return [
            task_name(decode_array(comm), pid)
            for comm, pid in zip(names["comm"].tolist(), names["pid"].tolist(), strict=True)
        ]

    def _rt_mutexes(self) -> None:
        """Name the rt_mutexes that belong to futexes."""
        lanes = self._having(frozenset({"futex_lock_pi", "futex_wait_requeue_pi"}))
        is_lock = [self.type[lane].startswith("struct rt_mutex") for lane in lanes.tolist()]
        lanes = lanes[np.array(is_lock, np.bool_)]
        if not len(lanes):
            return
        state = self.object[lanes] - self._offset(_PI_STATE, "pi_mutex")
        members = {"word": "key.both.word", "offset": "key.both.offset"}
        read = self._read(_PI_STATE, state, members)
        leaders = self._leaders(lanes)
        for index, lane in enumerate(lanes.tolist()):
            offset = int(read["offset"][index])
            is_file = bool(offset & int(_IS_FILE))
            where = (
                f"0x{int(read['word'][index]) + (offset & ~3):x}" if not is_file else "in a file"
            )
            name = RT_MUTEX, int(self.object[lane])
            self.names[name] = f"of futex {where} of {leaders[index]}"

    # Holders

    def _owners(self, lanes: Numbers, address: Words, node: Words, files: Words) -> None:
        """Add the threads named by words of programs.

        :param files: number or inode of the file with each word, as keys have it; 0 for none
        """
        value = self._passed(lanes)
        asked = np.flatnonzero((value == _CONTENDED) | ((value & _WAITERS) != 0))
        # All waiters of a futex have the same word.
        _, one = np.unique(node[asked], return_index=True)
        asked = asked[one][:_MAX_WORDS]
        if not len(asked):
            return
        if is_assembled(self.kernel.prog):
            # A capsule has whole pages, and a page of a program holds more than this word.
            self.unread = len(asked)
            return
        threads = self._threads(self.waits.task[lanes[asked]], is_any=bool(files[asked].any()))
        type_ = self.kernel.prog.type("struct task_struct")
        for row in asked.tolist():
            task = drgn.Object(self.kernel.prog, type_, address=int(self.waits.task[lanes[row]]))
            try:
                mm = task.mm.read_()
                (word,) = struct.unpack("=I", access_remote_vm(mm, int(address[row]), 4))
                tid, strength, evidence = word & _TID, Strength.DERIVED, "word of the futex"
                if word == _CONTENDED:
                    tid = self._mutex(mm, int(address[row]))
                    strength, evidence = Strength.POSSIBLE, "pthread_mutex_t.__owner"
                elif not word & _WAITERS:
                    tid = 0
            except (drgn.FaultError, ValueError):
                self.unread += 1
                continue
            if file := int(files[row]):
                owner = self._sharing(threads, task, tid, file)
            else:
                owner = threads.get((int(task.tgid), tid), 0)
            if not owner:
                continue
            source, target = (FUTEX, node[[row]]), (TASK, np.array([owner], np.uint64))
            place = address[[row]]
            self.build.edges(HELD, source, target, evidence, strength=strength, place=place)

    def _sharing(
        self, threads: dict[tuple[int, int], int], task: drgn.Object, tid: int, file: int
    ) -> int:
        """Return the thread with an ID in the namespace of a task, if it maps a file, else 0."""
        space = self._namespaces.get(int(task.address_of_()), 0)
        owner = threads.get((space, tid), 0)
        if not space or not owner:
            return 0
        with suppress(*_DAMAGED):
            other = drgn.Object(self.kernel.prog, "struct task_struct *", value=owner)
            memory = int(other.mm)
            if memory not in self._mapped:
                self._mapped[memory] = set()
                for area in islice(for_each_vma(other.mm.read_()), _MAX_AREAS):
                    if area.vm_file:
                        self._mapped[memory].add(_number(area.vm_file.f_inode))
            return owner if file in self._mapped[memory] else 0
        return 0

    def _mutex(self, mm: drgn.Object, address: int) -> int:
        """Return the owner's thread ID of a mutex of the GNU C library; 0 for any other word."""
        lock, _, owner, users, kind = _MUTEX.unpack(access_remote_vm(mm, address, _MUTEX.size))
        is_mutex = lock == _CONTENDED and 0 < users <= _TID and 0 <= kind <= _MAX_KIND
        return owner if is_mutex and 0 < owner <= _TID else 0

    def _passed(self, lanes: Numbers) -> Numbers:
        """Return the value that each task passed to futex(2) as expected; -1 if unknown."""
        values = self._arguments(lanes, 2)
        return np.where(values == UNKNOWN, -1, values.astype(np.int64) & 0xFFFF_FFFF)

    def _arguments(self, lanes: Numbers, number: int) -> Words:
        """Return an argument of the system call of each task; UNKNOWN where unknown."""
        return arguments(self.kernel, self.known.stack[self.rows[lanes]], number, self.faults)

    def _threads(self, of: Words, *, is_any: bool) -> dict[tuple[int, int], int]:
        """Return threads by the ID of their process, or the address of their namespace, and their
        own ID in that namespace.

        :param of: tasks whose processes are wanted
        :param is_any: whether all threads are wanted, by namespace
        """
        # Since Linux kernel commit 2c4704756cab ("pids: Move the pgrp and session pid pointers from
        # task_struct to signal_struct") (in v4.19), a task has thread_pid instead of links.
        members: dict[str, Path] = {"tgid": "tgid", "pid": ("thread_pid", "pids[0].pid")}
        read = self._read("struct task_struct", self.known.address, members)
        own = self._member("struct task_struct", "tgid", of)
        is_own = np.isin(read["tgid"], own)
        rows = np.flatnonzero(is_own | is_any)
        pid = read["pid"][rows]
        found = self._read("struct pid", pid, ["level"], is_guess=True)
        sound = found.readable & (found["level"] <= _MAX_LEVEL)
        self.draft.torn += int(np.count_nonzero(~sound & is_own[rows]))
        rows, pid, level = rows[sound], pid[sound], found["level"][sound]
        stride = np.uint64(drgn.sizeof(self.kernel.prog.type("struct upid")))
        upid = pid + self._offset("struct pid", "numbers") + level.astype(np.uint64) * stride
        names = self._read("struct upid", upid, ["nr", "ns"])
        number, space = names["nr"].tolist(), names["ns"].tolist()
        tasks, process = self.known.address[rows].tolist(), read["tgid"][rows].tolist()
        self._namespaces |= dict(zip(tasks, space, strict=True))
        threads = dict(zip(zip(process, number, strict=True), tasks, strict=True))
        if is_any:
            threads |= dict(zip(zip(space, number, strict=True), tasks, strict=True))
        return threads


def _number(inode: drgn.Object) -> int:
    """Return what the key of a futex has of the inode of its file.

    Since Linux kernel commit 8019ad13ef7f ("futex: Fix inode life-time issue") (in v5.6), inodes
    have numbers for that; until then, their address.
    """
    if inode.prog_.type("struct inode").has_member("i_sequence"):
        return int(inode.i_sequence.counter)
    return int(inode)


FINDER = Futexes
