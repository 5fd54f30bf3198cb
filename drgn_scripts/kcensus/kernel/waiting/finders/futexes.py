# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds the futexes that threads wait for.

A thread that waits has a ``struct futex_q`` on its stack, whose key names the word in the memory of
its process. What the word means is the business of the program: only two conventions are known, and
a word is read only where the value that the thread passed to the kernel fits one of them, and never
for a capsule:

* FUTEX_WAITERS and the thread ID of the owner: robust mutexes, and all that follow futex(2);
* 2, and the thread ID of the owner two words later: the other mutexes of the GNU C library.

Mutexes with priority inheritance have an rt_mutex in the kernel, which names its owner.
"""

from __future__ import annotations

import struct

import drgn
import numpy as np
from drgn.helpers.linux.mm import access_remote_vm

from kcensus.engine.gather import gather, gather_words
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import decode_array
from kcensus.kernel.tasks.queued import stack_words
from kcensus.kernel.waiting.finders.finder import Finder, Numbers
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.sources.capsule import is_assembled

_WAITS = frozenset({"futex_wait_queue_me", "futex_wait_queue", "futex_do_wait"})
"""Functions that sleep until a futex is woken."""
_Q, _PI_STATE = "struct futex_q", "struct futex_pi_state"
_IS_FILE = np.uint64(1)
"""FUT_OFF_INODE: the word is known by its file, and the key has no address."""
_FLAGS = np.uint64(3)
"""FUT_OFF_INODE and FUT_OFF_MMSHARED, in the lowest bits of the offset."""
_WAITERS = 1 << 31
_TID = (1 << 30) - 1
"""FUTEX_TID_MASK."""
_CONTENDED = 2
"""What ``pthread_mutex_t.__lock`` of the GNU C library is while threads wait for it."""
_MUTEX = struct.Struct("=IIiIi")
"""``pthread_mutex_t`` on x86-64: __lock, __count, __owner, __nusers and __kind."""
_MAX_KIND = 0x3FF
"""Of a ``pthread_mutex_t``: type, robustness, protocol and elision are lower bits."""
_PADDINGS = (0, 16)
"""Bytes above the registers on a stack, TOP_OF_KERNEL_STACK_PADDING: 16 with CONFIG_X86_FRED."""
_USER_SEGMENTS = (0x23, 0x33)
"""__USER32_CS and __USER_CS."""
_MAX_LEVEL = 32
"""MAX_PID_NS_LEVEL."""
_MAX_WORDS = 1 << 14
"""Words of programs to read."""


class Futexes(Finder):
    """Finds the futexes that threads wait for, and who holds them."""

    unread = 0
    """Words that may name an owner, and are not in the dump."""

    def find(self) -> None:
        """Note futexes, and the threads that hold them.

        :raises LookupError: the debug info lacks a type
        """
        self._rt_mutexes()
        lanes = self._lanes(_WAITS, None)
        if not len(lanes):
            return
        asleep = len(lanes)
        lanes, queued, read = self._queued(lanes)
        self.torn += asleep - len(lanes)
        key = np.rec.fromarrays([read["ptr"], read["word"], read["offset"]])
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        # One waiter of a futex speaks for all.
        node = np.full(len(first), np.uint64((1 << 64) - 1))
        np.minimum.at(node, group, queued)
        for lane, each in zip(lanes.tolist(), node[group].tolist(), strict=True):
            self._note(lane, each, _Q, "futex_q.key")
        offset = read["offset"].astype(np.uint64)
        address = read["word"] + (offset & ~_FLAGS)
        is_known = (offset & _IS_FILE) == 0
        leaders = self._leaders(lanes)
        for row in first.tolist():
            where = f"0x{int(address[row]):x}" if is_known[row] else "in a file"
            name = NodeKind.FUTEX, int(node[group[row]])
            self.names[name] = f"{where} of {leaders[row]}"
        self._owners(lanes[is_known], address[is_known], node[group][is_known])

    # Which futex

    def _queued(self, lanes: Numbers) -> tuple[Numbers, Words, dict[str, Words]]:
        """Return tasks that wait, their ``struct futex_q`` and its key.

        It has the task, and is linked with other waiters; the address of the task is on the stack
        at other places, too.
        """
        prog, memory = self.kernel.prog, self.kernel.memory
        inside = np.uint64(drgn.offsetof(prog.type(_Q), "task"))
        paths: dict[str, Path] = {
            "ptr": "key.both.ptr",
            "word": "key.both.word",
            "offset": "key.both.offset",
            "next": "list.node_list.next",
            "lock": "lock_ptr",
        }
        members = layout(prog, _Q, paths)
        link = np.uint64(members.fields["next"].offset)
        back = layout(prog, "struct list_head", ["prev"])
        of_task = layout(prog, "struct task_struct", ["mm"])
        found: list[tuple[Numbers, Words, dict[str, Words]]] = []
        rows, size = self.rows[lanes], self.waits.stacks.size
        for some, start, words in stack_words(memory, self.known, rows, size, self.faults):
            task = self.known.address[rows[some]]
            stack, column = np.nonzero(words == task[:, None])
            place = start[stack] + np.uint64(8) * column.astype(np.uint64) - inside
            read = gather(memory, place, members, Faults())
            before = gather(memory, read["next"], back, Faults())
            sound = read.readable & before.readable & (before["prev"] == place + link)
            sound &= (read["lock"] != 0) & (read["ptr"] != 0)
            # The key of a private one has the memory map; of others, numbers that stand for it, or
            # for a file.
            own = gather(memory, task[stack], of_task, self.faults)["mm"]
            is_shared = (read["offset"].astype(np.uint64) & _FLAGS) != 0
            sound &= is_shared | (read["ptr"] == own)
            columns = {name: read[name][sound] for name in ("ptr", "word", "offset")}
            found.append((lanes[some[stack[sound]]], place[sound], columns))
        lane = np.concatenate([part[0] for part in found] or [np.empty(0, np.int64)])
        # What an earlier wait left may look alike.
        _, index, count = np.unique(lane, return_index=True, return_counts=True)
        index = index[count == 1]
        empty = np.empty(0, np.uint64)
        place = np.concatenate([part[1] for part in found] or [empty])
        key = {
            name: np.concatenate([part[2][name].astype(np.uint64) for part in found] or [empty])
            for name in ("ptr", "word", "offset")
        }
        return lane[index], place[index], {name: each[index] for name, each in key.items()}

    def _leaders(self, lanes: Numbers) -> list[str]:
        """Return how the process of each task is called."""
        prog, memory = self.kernel.prog, self.kernel.memory
        leader = layout(prog, "struct task_struct", ["group_leader"])
        read = gather(memory, self.waits.task[lanes], leader, self.faults)
        members = layout(prog, "struct task_struct", ["comm", "pid"])
        names = gather(memory, read["group_leader"], members, self.faults)
        return [
            f"{decode_array(comm)} (PID {pid})"
            for comm, pid in zip(names["comm"].tolist(), names["pid"].tolist(), strict=True)
        ]

    def _rt_mutexes(self) -> None:
        """Name the rt_mutexes that belong to futexes."""
        lanes = self._having(frozenset({"futex_lock_pi", "futex_wait_requeue_pi"}))
        is_lock = [self.type[lane].startswith("struct rt_mutex") for lane in lanes.tolist()]
        lanes = lanes[np.array(is_lock, np.bool_)]
        if not len(lanes):
            return
        prog = self.kernel.prog
        state = self.object[lanes] - np.uint64(drgn.offsetof(prog.type(_PI_STATE), "pi_mutex"))
        paths: dict[str, Path] = {"word": "key.both.word", "offset": "key.both.offset"}
        members = layout(prog, _PI_STATE, paths)
        read = gather(self.kernel.memory, state, members, self.faults)
        leaders = self._leaders(lanes)
        for index, lane in enumerate(lanes.tolist()):
            offset = int(read["offset"][index])
            where = f"0x{int(read['word'][index]) + (offset & ~3):x}"
            name = NodeKind.RT_MUTEX, int(self.object[lane])
            self.names[name] = f"of futex {where} of {leaders[index]}"

    # Who holds it

    def _owners(self, lanes: Numbers, address: Words, node: Words) -> None:
        """Add the threads that the words of programs name."""
        value = self._passed(lanes)
        asked = np.flatnonzero((value == _CONTENDED) | ((value & _WAITERS) != 0))
        # The waiters of a futex ask the same.
        _, one = np.unique(node[asked], return_index=True)
        asked = asked[one][:_MAX_WORDS]
        if not len(asked):
            return
        if is_assembled(self.kernel.prog):
            # A capsule has whole pages: that of a program holds more than this word.
            self.unread = len(asked)
            return
        threads = self._threads(self.waits.task[lanes[asked]])
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
            owner = threads.get((int(task.tgid), tid), 0)
            if not owner:
                continue
            self.build.edges(
                EdgeKind.HELD,
                (NodeKind.FUTEX, node[[row]]),
                (NodeKind.TASK, np.array([owner], np.uint64)),
                strength=strength,
                evidence=evidence,
                place=address[[row]],
            )

    def _mutex(self, mm: drgn.Object, address: int) -> int:
        """Return the thread ID that a mutex of the GNU C library has; 0 if it is none."""
        lock, _, owner, users, kind = _MUTEX.unpack(access_remote_vm(mm, address, _MUTEX.size))
        is_mutex = lock == _CONTENDED and 0 < users <= _TID and 0 <= kind <= _MAX_KIND
        return owner if is_mutex and 0 < owner <= _TID else 0

    def _passed(self, lanes: Numbers) -> Numbers:
        """Return the value that each task passed to futex(2) as expected; -1 if unknown."""
        prog = self.kernel.prog
        registers = layout(prog, "struct pt_regs", {"value": "dx", "cs": "cs"})
        top = self.known.stack[self.rows[lanes]] + np.uint64(self.waits.stacks.size)
        values = np.full(len(lanes), -1)
        for padding in _PADDINGS:
            place = top - np.uint64(padding + registers.size)
            read = gather(self.kernel.memory, place, registers, self.faults)
            entered = read.readable & np.isin(read["cs"].astype(np.int64) & 0xFFFF, _USER_SEGMENTS)
            entered &= values < 0
            values[entered] = (read["value"][entered] & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        return values

    def _threads(self, of: Words) -> dict[tuple[int, int], int]:
        """Return the threads of some processes, by the ID of the process and their own ID.

        That is the one which the thread itself sees, in its namespace.

        :param of: tasks of these processes
        """
        prog, memory = self.kernel.prog, self.kernel.memory
        # Since v4.19 (commit not verified), a task has its pid without its links.
        paths: dict[str, Path] = {"tgid": "tgid", "pid": ("thread_pid", "pids[0].pid")}
        members = layout(prog, "struct task_struct", paths)
        read = gather(memory, self.known.address, members, self.faults)
        own = gather(memory, of, members, self.faults)
        rows = np.flatnonzero(np.isin(read["tgid"], own["tgid"]))
        pid = read["pid"][rows]
        found = gather(memory, pid, layout(prog, "struct pid", ["level"]), Faults())
        sound = found.readable & (found["level"] <= _MAX_LEVEL)
        self.torn += int(np.count_nonzero(~sound))
        rows, pid, level = rows[sound], pid[sound], found["level"][sound]
        type_ = prog.type("struct pid")
        inside = np.uint64(
            drgn.offsetof(type_, "numbers") + drgn.offsetof(prog.type("struct upid"), "nr")
        )
        stride = np.uint64(drgn.sizeof(prog.type("struct upid")))
        place = pid + inside + level.astype(np.uint64) * stride
        number, _ = gather_words(memory, place, np.dtype("<i4"), self.faults)
        return {
            (int(group), int(each)): int(task)
            for group, each, task in zip(
                read["tgid"][rows].tolist(),
                number.tolist(),
                self.known.address[rows].tolist(),
                strict=True,
            )
        }
