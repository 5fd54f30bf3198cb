# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks of the graph: their states, stacks, and response to signals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from enum import Enum
from functools import cached_property

import drgn
import numpy as np
from drgn.helpers.linux.slab import slab_object_info

from kcensus.engine.memory import Mask, Numbers
from kcensus.human import human_seconds
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import ABSENT
from kcensus.kernel.symbols import described, symbols_of
from kcensus.kernel.tasks.functions import entered_by, plain
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.tasks import TRAPS
from kcensus.kernel.waiting.cycles import Behind
from kcensus.kernel.waiting.finders.stopped.tracers import TRACES
from kcensus.kernel.waiting.frames import (
    has_dwarf,
    interrupted_in,
    is_at_vector,
    runnable_stacks,
    running_frames,
    runs_in,
    runs_program,
    spins,
    staying,
)
from kcensus.kernel.waiting.reader import Waiting
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable

_MAX_RUNNABLE = 1 << 10
"""Most runnable tasks to unwind, by number of tasks behind them."""
_TASK_CACHE = b"task_struct"
_EXITKILL = 1 << 23
"""PT_EXITKILL in ``task.ptrace``."""
_MAX_RT_PRIO = 100
_INTERRUPTIBLE, _UNINTERRUPTIBLE, _WAKEKILL = 1, 2, 0x180
"""Bits of a task's state. Since Linux kernel commit 8ef9925b02c2 ("sched/debug: Add explicit
TASK_PARKED printing") (in v4.14), TASK_WAKEKILL is 0x100; before, 0x80. No task in state D has the
bit of the other version."""


class State(Enum):
    """State of a task."""

    RUNNING = "running"
    RUNNABLE = "runnable"
    BLOCKED = "D"
    SLEEPING = "S"
    STOPPED = "stopped"
    FROZEN = "frozen"
    EXITED = "exited"
    OTHER = "other"
    UNKNOWN = ""


class TaskNodes:
    """The nodes that are tasks.

    :param rows: row of each node among all tasks, or -1
    :param ages: nanoseconds that the task of each node has waited, or -1
    :param is_least: whether each may have waited for longer
    """

    def __init__(
        self,
        kernel: Kernel,
        waiting: Waiting,
        behind: Behind,
        rows: Numbers,
        ages: Numbers,
        is_least: Mask,
    ) -> None:
        self._kernel, self._waiting, self._graph = kernel, waiting, waiting.graph
        self._behind, self._rows, self._ages, self._is_least = behind, rows, ages, is_least
        self._processes: dict[int, int] = {}
        self._frames: dict[int, list[tuple[int, str, str]]] = {}

    def pid(self, node: int) -> int:
        """Return the PID of a task; 0 for another node, or a task on no list."""
        row = int(self._rows[node])
        return int(self._waiting.tasks.pid[row]) if row >= 0 else 0

    def pids(self, nodes: Iterable[int]) -> frozenset[int]:
        """Return the PIDs of tasks that are on a list."""
        return frozenset(pid for node in nodes if (pid := self.pid(node)))

    def comm(self, node: int) -> str:
        """Return the name of a task; printable."""
        row = int(self._rows[node])
        return printable(self._waiting.tasks.comm[row]) if row >= 0 else ""

    def function(self, node: int) -> str:
        """Return the function in which a task sleeps, runs or was interrupted, without module."""
        row = self._waiting.row(node)
        if row >= 0:
            return printable(self._waiting.waits.function[row])
        frames = [(pc, name) for pc, name, _ in self._frames_of(node)]
        names = [name for _, name in frames]
        function = (runs_in if self.is_running(node) else interrupted_in)(names)
        return printable(staying(self._kernel, frames, function))

    def is_at_vector(self, node: int) -> bool:
        """Return whether a task may be in a function that :meth:`function` calls."""
        return self.is_running(node) and is_at_vector(self.functions(node))

    def place(self, node: int) -> str:
        """Return the function in which a task is, with its module, as the kernel prints it."""
        return self._described(node, self.function(node))

    @cached_property
    def _exited(self) -> set[int]:
        """Nodes of exited tasks: on no list, at the address of an object of the task cache.

        A torn pointer leads to any other address.
        """
        gone = set()
        for node in np.flatnonzero(self._graph.is_task & (self._rows < 0)).tolist():
            address = int(self._graph.address[node])
            try:
                known = slab_object_info(self._kernel.prog, address)
            except (*ABSENT, NotRecorded, ValueError, OverflowError):
                continue
            if known is None or known.address != address:
                continue
            # The slot may have another task by now: objects of a cache are used again.
            with contextlib.suppress(drgn.FaultError):
                gone |= {node} if known.slab_cache.name.string_() == _TASK_CACHE else set()
        return gone

    def module(self, node: int) -> str:
        """Return the module of the function in which a task is; empty for the kernel itself."""
        own = self.function(node)
        names = (module for _, name, module in self.frames(node) if plain(name) == own)
        return next(names, "")

    def entry(self, node: int) -> str:
        """Return the way of a task into the kernel: a system call, or a function with module."""
        return self._described(node, printable(entered_by(self.functions(node))))

    @cached_property
    def _runnable(self) -> tuple[Stacks, dict[int, int]]:
        """Stacks of runnable tasks without a CPU, and the row of each node in them."""
        rows, tasks = self._rows, self._waiting.tasks
        nodes = [
            node
            for node in np.flatnonzero(self._graph.is_task).tolist()
            if rows[node] >= 0
            and self._waiting.row(node) < 0
            and not tasks.is_on_cpu[rows[node]]
            and not tasks.has_exited[rows[node]]
        ]
        nodes = sorted(nodes, key=lambda node: -int(self._behind.tasks[node]))[:_MAX_RUNNABLE]
        found = runnable_stacks(self._kernel, tasks, rows[np.array(nodes, np.int64)])
        return found, {node: row for row, node in enumerate(nodes)}

    def _stack(self, node: int) -> tuple[Stacks, int]:
        """Return the stacks with a task's stack, and its row among them, or -1."""
        row = self._waiting.row(node)
        if row >= 0:
            return self._waiting.waits.stacks, row
        found, rows = self._runnable
        return found, rows.get(node, -1)

    def functions(self, node: int) -> list[str]:
        """Return the functions on the stack of a task, the innermost first; empty if unknown."""
        stacks, row = self._stack(node)
        return stacks.functions(row) if row >= 0 else [name for _, name, _ in self._running(node)]

    def is_running(self, node: int) -> bool:
        """Return whether a task is on a CPU."""
        row = int(self._rows[node])
        return row >= 0 and bool(self._waiting.tasks.is_on_cpu[row])

    def _running(self, node: int) -> list[tuple[int, str, str]]:
        """Return address, function and module of the frames of a task on a CPU."""
        if not self.is_running(node):
            return []
        if node not in self._frames:
            symbols = symbols_of(self._kernel)
            running = running_frames(self._kernel, int(self._graph.address[node]))
            self._frames[node] = [(pc, *symbols(inside)) for pc, inside in running]
        return self._frames[node]

    def spins_unknown(self, row: int) -> bool:
        """Return whether a task spins for a spinlock that only debug info could tell.

        :param row: of the task, among all tasks
        """
        tasks = self._waiting.tasks
        if row < 0 or not tasks.is_on_cpu[row] or has_dwarf(self._kernel):
            return False
        return spins(self._kernel, int(tasks.address[row]))

    def in_program(self, node: int) -> bool:
        """Return whether a task runs in its program, not in the kernel."""
        return self.is_running(node) and runs_program(self._kernel, int(self._graph.address[node]))

    def real_time(self, node: int) -> tuple[int, int] | None:
        """Return policy and priority of a real-time task, as chrt has them; None for others."""
        task = drgn.Object(
            self._kernel.prog, "struct task_struct", address=int(self._graph.address[node])
        )
        try:
            policy, level = int(task.policy), int(task.rt_priority)
        except (*ABSENT, NotRecorded, AttributeError):
            return None
        # The highest one is that of the kernel's own threads that move tasks between CPUs.
        return (policy, level) if 0 < level < _MAX_RT_PRIO - 1 else None

    def _described(self, node: int, function: str) -> str:
        stacks, row = self._stack(node)
        for _, name, module in self._running(node) if row < 0 else ():
            if module and plain(name) == function:
                return described(function, printable(module))
        if row < 0 or not stacks.modules:
            return function
        for pc in stacks.pc[stacks.frames(row)].tolist():
            if pc in stacks.modules and plain(stacks.names[pc]) == function:
                return described(function, printable(stacks.modules[pc]))
        return function

    def frames(self, node: int) -> list[tuple[int, str, str]]:
        """Return address, function and module of the frames of a task, the innermost first."""
        frames = self._frames_of(node)
        return [(pc, printable(name), printable(module)) for pc, name, module in frames]

    def _frames_of(self, node: int) -> list[tuple[int, str, str]]:
        found, row = self._stack(node)
        if row < 0:
            return self._running(node)
        places = found.pc[found.frames(row)].tolist()
        return [(pc, found.names[pc], found.modules.get(pc, "")) for pc in places]

    def state(self, node: int) -> State:
        """Return the state of a task."""
        row, tasks = int(self._rows[node]), self._waiting.tasks
        if row < 0:
            return State.EXITED if node in self._exited else State.UNKNOWN
        is_waking = np.broadcast_to(tasks.is_waking, len(tasks))[row]
        known = (
            (tasks.has_exited[row], State.EXITED),
            (tasks.is_on_cpu[row], State.RUNNING),
            (tasks.is_stopped[row], State.STOPPED),
            (np.broadcast_to(tasks.is_frozen, len(tasks))[row], State.FROZEN),
            (self._is_trapped(node, row), State.FROZEN),
            (tasks.is_blocked[row], State.BLOCKED),
            (tasks.is_asleep[row], State.SLEEPING),
            (not tasks.state[row] or is_waking, State.RUNNABLE),
        )
        return next((state for holds, state in known if holds), State.OTHER)

    def _is_trapped(self, node: int, row: int) -> bool:
        """Return whether the freezer of cgroup v2 has stopped a task."""
        tasks = self._waiting.tasks
        is_trapped = np.broadcast_to(tasks.is_trapped, len(tasks))[row] & tasks.is_asleep[row]
        return bool(is_trapped) and self.function(node) in TRAPS

    def asleep(self, node: int) -> str:
        """Return the duration of a task's sleep as text; empty if it is awake, or if unknown."""
        age = int(self._ages[node])
        return (
            f"{'at least ' * bool(self._is_least[node])}{human_seconds(age / 1e9)}"
            if age >= 0 and self.state(node) in (State.BLOCKED, State.SLEEPING)
            else ""
        )

    def traced(self, node: int) -> list[int]:
        """Return the tasks that a debugger has stopped."""
        edges = self._graph.preceding[node]
        return [int(self._graph.source[e]) for e in edges if self._graph.edge[e] is TRACES]

    def ends_with_tracer(self, node: int) -> bool:
        """Return whether the end of a debugger kills a task that it traces."""
        task = drgn.Object(
            self._kernel.prog, "struct task_struct", address=int(self._graph.address[node])
        )
        with contextlib.suppress(*ABSENT, NotRecorded, ValueError):
            return bool(int(task.ptrace) & _EXITKILL)
        return False

    def is_halted(self, node: int) -> bool:
        """Return whether a task is stopped or frozen, or has stopped others as a debugger."""
        return self.state(node) in (State.STOPPED, State.FROZEN) or bool(self.traced(node))

    def is_program(self, nodes: Iterable[int]) -> bool:
        """Return whether no task is in state D: a program waits for itself."""
        return not any(self.state(node) is State.BLOCKED for node in nodes)

    def process(self, node: int) -> tuple[str, int]:
        """Return name and PID of a task's process; those of the task if unknown."""
        pid = self.tgid(node)
        rows = np.flatnonzero(self._waiting.tasks.pid == pid)
        comm = printable(self._waiting.tasks.comm[int(rows[0])]) if len(rows) else self.comm(node)
        return comm, pid

    def has_other_process(self, node: int, waiters: Iterable[int]) -> bool:
        """Return whether a waiter would survive the kill of a task's process."""
        own = self.tgid(node)
        return any(self.tgid(each) != own for each in waiters)

    def tgid(self, node: int) -> int:
        """Return the PID of a task's process, or that of the task if unknown."""
        address = int(self._graph.address[node])
        if address not in self._processes:
            task = drgn.Object(self._kernel.prog, "struct task_struct", address=address)
            try:
                self._processes[address] = int(task.tgid)
            except (*ABSENT, NotRecorded, ValueError):
                self._processes[address] = self.pid(node)
        return self._processes[address]

    def is_killable(self, node: int) -> bool:
        """Return whether SIGKILL wakes up a task: it sleeps interruptibly, or killably.

        No signal ends init.
        """
        row, tasks = int(self._rows[node]), self._waiting.tasks
        if row < 0 or tasks.is_kthread[row] or tasks.is_on_cpu[row] or self.tgid(node) == 1:
            return False
        state = int(tasks.state[row])
        return bool(state & _INTERRUPTIBLE or (state & _UNINTERRUPTIBLE and state & _WAKEKILL))
