# SPDX-License-Identifier: LGPL-2.1-or-later
"""Thousands of tasks that a dump does not have, in its memory: copies of two that it has.

A part of them forms a chain: each waits for a mutex that the next one holds, the last one for that
of a task in state S. As many wait for a mutex of the first one; the rest sleeps in state S.
"""

from __future__ import annotations

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.pid import for_each_task

from kcensus.engine.memory import Words
from tests.sample.block.poked import Poked

_TASKS, _STACKS, _LOCKS = (0xFFFF_A000_0000_0000 + (step << 36) for step in range(3))
_PAGE, _TASK, _LOCK = 4096, 12288, 64
"""Bytes of each: a task takes three pages, whatever the structure needs."""
_FIRST_PID = 10_000
_Pages = npt.NDArray[np.uint64]
_WAITER, _SLEEPER = b"convoy-0", b"kdevtmpfs"


class Crowd:
    """The tasks, as pages of memory.

    :param count: of all tasks
    :param chain: how many of them wait for each other
    """

    def __init__(self, prog: drgn.Program, count: int, chain: int) -> None:
        assert count >= 2 * chain
        self.prog, self.count, self.chain = prog, count, chain
        self.size = int(prog["THREAD_SIZE"])
        number = np.arange(count, dtype=np.uint64)
        self.task = np.uint64(_TASKS) + number * np.uint64(_TASK)
        self.stack = np.uint64(_STACKS) + number * np.uint64(self.size)
        self.lock = np.uint64(_LOCKS) + number[: chain + 1] * np.uint64(_LOCK)
        self.tasks = np.zeros((count, _TASK // 8), np.uint64)
        self.stacks = np.zeros((count, _PAGE // 8), np.uint64)
        self.locks = np.zeros((chain + 1, _LOCK // 8), np.uint64)
        every = {task.comm.string_(): task for task in for_each_task(prog)}
        waiting = 2 * chain
        self._copy(every[_WAITER], slice(0, waiting))
        self._copy(every[_SLEEPER], slice(waiting, count))
        self._wait(every[_WAITER])
        self._link()
        self._serve()

    def _copy(self, task: drgn.Object, rows: slice) -> None:
        """Make tasks and their stacks copies of one, with their own addresses."""
        prog, old = self.prog, int(task.stack)
        top = old + self.size - _PAGE
        assert int(task.thread.sp) >= top
        own = np.frombuffer(prog.read(int(task), drgn.sizeof(task[0])).ljust(_TASK, b"\0"), "<u8")
        used = np.frombuffer(prog.read(top, _PAGE), "<u8")
        for pages, words in ((self.tasks[rows], own), (self.stacks[rows], used)):
            pages[:] = words
            # It has addresses of itself and of its stack in both.
            for start, size, new in (
                (int(task), _TASK, self.task[rows]),
                (old, self.size, self.stack[rows]),
            ):
                inside = (words >= start) & (words < start + size)
                pages[:, inside] = words[inside] - np.uint64(start) + new[:, None]

    def _set(self, pages: _Pages, offset: int, values: Words | int) -> None:
        pages[:, offset // 8] = values

    def _wait(self, task: drgn.Object) -> None:
        """Let the tasks of the chain, and as many behind it, wait for mutexes."""
        prog, chain = self.prog, self.chain
        mutex, waiter = prog.type("struct mutex"), prog.type("struct mutex_waiter")
        link = drgn.offsetof(waiter, "list")
        (place,) = self._waiters(task, drgn.offsetof(waiter, "task"))
        start = self.stack[: 2 * chain] + np.uint64(self.size - _PAGE + place)
        node = start + np.uint64(link)
        lock = np.concatenate([np.arange(chain), np.full(chain, chain)])
        # A ring for each lock: its waiters in the order of their numbers, and, until Linux kernel
        # commit 25500ba7e77c (in v7.1), a head in the lock.
        if mutex.has_member("wait_list"):
            head = np.uint64(drgn.offsetof(mutex, "wait_list"))
            first, last = self.lock[lock] + head, self.lock[lock] + head
            self._set(self.locks, int(head), node[: chain + 1])
            self._set(self.locks, int(head) + 8, np.append(node[:chain], node[-1]))
        else:
            first = np.append(node[:chain], np.full(chain, node[chain]))
            last = np.append(node[:chain], np.full(chain, node[-1]))
            self._set(self.locks, drgn.offsetof(mutex, "first_waiter"), start[: chain + 1])
            # No waiter leads to its lock: the task and its stack name it.
            old = np.uint64(task.blocked_on)
            for pages in (self.stacks[: 2 * chain], self.tasks[: 2 * chain]):
                np.copyto(pages, self.lock[lock][:, None], where=pages == old)
        after, before = first.copy(), last.copy()
        after[chain:-1], before[chain + 1 :] = node[chain + 1 :], node[chain:-1]
        at = (place + link) // 8
        self.stacks[: 2 * chain, at], self.stacks[: 2 * chain, at + 1] = after, before
        # Each mutex is the next task's, that at the end of the chain a sleeping one's, and the one
        # that the others wait for the first task's. MUTEX_FLAG_WAITERS is 1.
        owner = np.concatenate([self.task[1:chain], self.task[[-1, 0]]])
        self._set(self.locks, drgn.offsetof(mutex, "owner"), owner | np.uint64(1))

    def _waiters(self, task: drgn.Object, inside: int) -> list[int]:
        """Return where the waiters of a task are on the last page of its stack."""
        top = int(task.stack) + self.size - _PAGE
        words = np.frombuffer(self.prog.read(top, _PAGE), "<u8")
        found = []
        for row in np.flatnonzero(words == int(task)).tolist():
            at = 8 * row - inside
            following = int(words[at // 8])
            try:
                if self.prog.read_word(following + 8) == top + at:
                    found.append(at)
            except drgn.FaultError:
                continue
        return found

    def _link(self) -> None:
        """Put the tasks on the list of all, and give them numbers."""
        prog, poked = self.prog, Poked(self.prog)
        type_ = prog.type("struct task_struct")
        inside = drgn.offsetof(type_, "tasks")
        link = self.task + np.uint64(inside)
        head = prog["init_task"].tasks
        first, last = int(head.address_of_()), int(head.prev)
        self._set(self.tasks, inside, np.append(link[1:], np.uint64(first)))
        self._set(self.tasks, inside + 8, np.append(np.uint64(last), link[:-1]))
        poked.word(last, int(link[0]))
        poked.word(first + 8, int(link[-1]))
        pids = drgn.offsetof(type_, "pid")
        assert drgn.offsetof(type_, "tgid") == pids + 4
        self.tasks.view(np.uint32)[:, pids // 4] = _FIRST_PID + np.arange(self.count)
        self.tasks.view(np.uint32)[:, pids // 4 + 1] = _FIRST_PID + np.arange(self.count)

    def _serve(self) -> None:
        for start, pages in ((_TASKS, self.tasks), (_LOCKS, self.locks)):
            data = pages.tobytes()
            data = data.ljust(-(-len(data) // _PAGE) * _PAGE, b"\0")

            def read(
                address: int, count: int, offset: int, is_physical: bool, data: bytes = data
            ) -> bytes:
                return data[offset : offset + count]

            self.prog.add_memory_segment(start, len(data), read)
        used = self.stacks.data.cast("B")

        def read_stack(address: int, count: int, offset: int, is_physical: bool) -> bytes:
            stack, within = divmod(offset, self.size)
            within -= self.size - _PAGE  # the last page is in use
            if within < 0 or within + count > _PAGE:
                raise drgn.FaultError("not in the dump", address)
            return bytes(used[stack * _PAGE + within :][:count])

        self.prog.add_memory_segment(_STACKS, self.count * self.size, read_stack)
