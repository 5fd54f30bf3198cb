# SPDX-License-Identifier: LGPL-2.1-or-later
"""The graph of waits, its cycles, and names for its nodes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.slab import slab_object_info

from kcensus.human import human_seconds
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.identities import (
    lock_names,
    page_names,
    worker_names,
    workqueue_names,
)
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.log import Line, records
from kcensus.kernel.names import ABSENT
from kcensus.kernel.symbols import described, symbols_of
from kcensus.kernel.tasks.functions import ON_TIMERS, entered_by, plain
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.tasks import switches, tasks
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.cycles import Behind, Cycle, behind, cycles, roots
from kcensus.kernel.waiting.frames import interrupted_in, runnable_stacks, running_frames
from kcensus.kernel.waiting.graph import LOCKS, Graph, NodeKind
from kcensus.kernel.waiting.reader import Waiting, waiting
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable

Numbers = npt.NDArray[np.int64]

_MAX_NAMED = 1 << 10
"""Objects whose symbols are looked up: those with most tasks behind them."""
_TASK_CACHE = b"task_struct"
_CODE = (1 << 64) - (1 << 31)
"""From here on are the kernel's variables, and those of modules, on x86-64."""
_MAX_MODULES = 1 << 31
"""Modules of other architectures are that far below the kernel at most."""
_MAX_IDENTIFIED = 64
"""Objects of which it is looked up what they belong to: those with most tasks behind them."""
_LOCKS_OF_OBJECTS = LOCKS | {NodeKind.RWSEM_QUEUE}
_MAX_STACKS = 32
"""Tasks whose stacks are shown."""
_LONG_NS = 10**9
_TICK_NS = 10**7
"""Tasks have slept equally long if their ages differ by less: the clocks of CPUs do, too."""
_STOPPED = 4 | 8
"""__TASK_STOPPED and __TASK_TRACED: by a signal, or by a debugger."""
_INTERRUPTIBLE, _UNINTERRUPTIBLE, _WAKEKILL = 1, 2, 0x180
"""Bits of a task's state. Since Linux kernel commit 8ef9925b02c2 ("sched/debug: Add explicit
TASK_PARKED printing") (in v4.14), TASK_WAKEKILL is 0x100; before, 0x80. Where it is one of them, no
task in state D has the other."""
_OOPS = re.compile(r"kernel BUG at|BUG: |Oops: |general protection fault")
_VICTIM = re.compile(r"\bPID: (\d+) Comm: (.*?) (?:Not tainted|Tainted|Kdump)")
_AFTER_OOPS = 8
"""Lines in which its task is named."""
_HUNG = re.compile(r"INFO: task (.*):(\d+) blocked(?: in I/O wait)? for more than (\d+) seconds")
_BLOCKER = re.compile(
    r"INFO: task .*:(\d+)(?: is| <\w+>)? blocked on an? \S+ likely (?:owned|last held) by task "
    r".*:(\d+)(?: <(\w+)>)?"
)
"""Since v6.15 (commit not verified): a mutex, a semaphore or an rwsem; of this, who wants it, and
who has it, is a reader or a writer."""


class _Switches:
    """Which tasks of a running kernel run while it is read.

    What such a task waits for and holds was read at different times, and is no part of a deadlock.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.tasks = tasks(kernel).address
        self.before = switches(kernel, self.tasks)

    def ran(self) -> set[int]:
        """Return the addresses of the tasks that have run since, or cannot be read."""
        moved = (switches(self.kernel, self.tasks) != self.before).any(axis=1)
        moved |= (self.before == 0).all(axis=1)
        return set(self.tasks[moved].tolist())


class Figures:
    """What was read, and what follows from it."""

    def __init__(self, kernel: Kernel) -> None:
        found = self._look(kernel)
        if self.cycles_unsteady:
            # Tasks of a deadlock may wake up for a moment, but hardly in both looks.
            found = self._look(kernel.renewed())
        with kernel.progress.step("following waits", 0):
            self.cycles: list[Cycle] = [self._turned(cycle) for cycle in found]
            # A guess at who holds a lock is a lead, and no reason to accuse a task.
            self.behind: Behind = behind(self.graph.sure, self.ages)

    def _look(self, kernel: Kernel) -> list[Cycle]:
        """Read who waits for whom, and return the cycles whose tasks slept meanwhile."""
        self.kernel = kernel
        before = _Switches(kernel) if kernel.live else None
        self.waiting: Waiting = waiting(kernel)
        self.graph: Graph = self.waiting.graph
        with kernel.progress.step("looking for cycles", 0):
            found = cycles(self.graph)
        ran = before.ran() if before is not None and found else set()
        steady = [each for each in found if ran.isdisjoint(self._addresses(each))]
        self.cycles_unsteady = len(found) - len(steady)
        """Cycles of a running kernel with tasks that ran while they were read."""
        return steady

    def _addresses(self, cycle: Cycle) -> set[int]:
        """Return the tasks of a cycle."""
        return {int(self.graph.address[node]) for node in cycle.nodes if self.graph.is_task[node]}

    def _turned(self, cycle: Cycle) -> Cycle:
        """Return a cycle that begins with the task that has slept longest, then the lowest PID.

        So two dumps of one hang read alike.
        """
        tasks = [at for at, node in enumerate(cycle.nodes) if self.graph.is_task[node]]
        ages = {at: int(self.ages[cycle.nodes[at]]) // _TICK_NS for at in tasks}
        first = min(tasks, key=lambda at: (-ages[at], self.pid(cycle.nodes[at])), default=0)
        return replace(
            cycle,
            nodes=cycle.nodes[first:] + cycle.nodes[:first],
            edges=cycle.edges[first:] + cycle.edges[:first],
        )

    @cached_property
    def task_rows(self) -> Numbers:
        """Row of each node's task among all tasks, or -1."""
        rows = self.waiting.tasks.rows(self.graph.address)
        return np.where(self.graph.is_task, rows, -1)

    @cached_property
    def task_nodes(self) -> list[int]:
        """Nodes that are tasks."""
        return np.flatnonzero(self.graph.is_task).tolist()

    @cached_property
    def ages(self) -> Numbers:
        """Per node, nanoseconds since its task went to sleep; -1 for others, and if unknown."""
        rows = self.task_rows
        ages = np.append(self.waiting.tasks.off_cpu_ns, -1)[rows]
        return np.where(rows >= 0, ages, -1)

    @cached_property
    def blocked(self) -> int:
        """How many tasks are in state D."""
        return int(self.waiting.tasks.is_blocked.sum())

    @cached_property
    def longest(self) -> float:
        """Seconds that the first of these has slept."""
        tasks = self.waiting.tasks
        return int(tasks.off_cpu_ns[tasks.is_blocked].max(initial=0)) / 1e9

    @cached_property
    def undetermined(self) -> int:
        """How many tasks in state D wait for an object that could not be determined."""
        waits, tasks = self.waiting.waits, self.waiting.tasks
        blocked = set(tasks.address[tasks.is_blocked].tolist())
        return sum(
            task in blocked and not object_ and function not in ON_TIMERS
            for task, object_, function in zip(
                waits.task.tolist(), self.waiting.objects.tolist(), waits.function, strict=True
            )
        )

    def is_sure(self, cycle: Cycle) -> bool:
        """Return whether a cycle is a deadlock, and no coincidence of tasks that sleep shortly."""
        # A running kernel goes on while it is read: what was true one after the other may never
        # have been true together.
        if cycle.strength >= Strength.PROVEN and not self.kernel.live:
            return True
        ages = [int(self.ages[node]) for node in cycle.nodes if self.graph.is_task[node]]
        # -1: unknown.
        is_old = all(age < 0 or age >= _LONG_NS for age in ages)
        return cycle.strength >= Strength.DERIVED and is_old

    @cached_property
    def unheld(self) -> int:
        """How many locks tasks have waited for, for a second or more, without a known holder.

        Those for which they wait less are let go all the time, by tasks that run.
        """
        graph, count = self.graph, 0
        for node, kind in enumerate(graph.kind):
            oldest = int(self.behind.oldest[node])
            if kind not in LOCKS or oldest < 0 or 0 <= int(self.ages[oldest]) < _LONG_NS:
                continue
            holders = sum(
                int(graph.strength[edge]) > Strength.POSSIBLE for edge in graph.following[node]
            )
            count += not holders or holders < self.waiting.readers.get(int(graph.address[node]), 0)
        return count

    @cached_property
    def roots(self) -> list[int]:
        """Nodes that tasks wait for without end of a cycle, those with most tasks first."""
        known = roots(self.graph.sure, self.cycles)
        return sorted(known, key=lambda node: (-int(self.behind.tasks[node]), node))

    @cached_property
    def cycle_of(self) -> dict[int, int]:
        """Number of the cycle, from 1 on, that each of its nodes is in."""
        return {
            node: number
            for number, cycle in reversed(list(enumerate(self.cycles, 1)))
            for node in cycle.nodes
        }

    def waiters(self, *nodes: int) -> set[int]:
        """Return the tasks that surely wait for any of these nodes, also through others."""
        seen = self.graph.sure.reached(nodes, back=True)
        return set(np.flatnonzero(seen & self.graph.is_task).tolist()) - {*nodes}

    # How nodes are called

    def pid(self, node: int) -> int:
        """Return the PID of a task; 0 for another node, or a task that is on no list."""
        row = int(self.task_rows[node])
        return int(self.waiting.tasks.pid[row]) if row >= 0 else 0

    def pids(self, nodes: Iterable[int]) -> frozenset[int]:
        """Return the PIDs of tasks that are on a list."""
        return frozenset(pid for node in nodes if (pid := self.pid(node)))

    def comm(self, node: int) -> str:
        """Return the name of a task; printable."""
        row = int(self.task_rows[node])
        return printable(self.waiting.tasks.comm[row]) if row >= 0 else ""

    def function(self, node: int) -> str:
        """Return the function that a task sleeps in, or goes on in, without its module."""
        row = self.waiting.row(node)
        if row >= 0:
            return printable(self.waiting.waits.function[row])
        return printable(interrupted_in(self.functions(node)))

    def place(self, node: int) -> str:
        """Return the function that a task sleeps in, as the kernel prints it: with its module."""
        return self._described(node, self.function(node))

    @cached_property
    def _exited(self) -> set[int]:
        """Tasks on no list, at addresses that are those of tasks: a torn word is any address."""
        gone = set()
        for node in np.flatnonzero(self.graph.is_task & (self.task_rows < 0)).tolist():
            address = int(self.graph.address[node])
            try:
                known = slab_object_info(self.kernel.prog, address)
            except (*ABSENT, NotRecorded, ValueError, OverflowError):
                continue
            if known is None or known.address != address:
                continue
            # It may be another one's by now: objects of a cache are used again.
            with contextlib.suppress(drgn.FaultError):
                gone |= {node} if known.slab_cache.name.string_() == _TASK_CACHE else set()
        return gone

    def entry(self, node: int) -> str:
        """Return how a task came into the kernel: a system call, or a function with its module."""
        return self._described(node, printable(entered_by(self.functions(node))))

    @cached_property
    def _runnable(self) -> tuple[Stacks, dict[int, int]]:
        """Stacks of tasks that want to run and have no CPU, and the row of each node's."""
        rows, tasks = self.task_rows, self.waiting.tasks
        nodes = [
            node
            for node in self.task_nodes
            if rows[node] >= 0
            and self.waiting.row(node) < 0
            and not tasks.is_on_cpu[rows[node]]
            and not tasks.has_exited[rows[node]]
        ]
        nodes = sorted(nodes, key=lambda node: -int(self.behind.tasks[node]))[:_MAX_NAMED]
        found = runnable_stacks(self.kernel, tasks, rows[np.array(nodes, np.int64)])
        return found, {node: row for row, node in enumerate(nodes)}

    def _stack(self, node: int) -> tuple[Stacks, int]:
        """Return the stacks that have a task's, and its row among them, or -1."""
        row = self.waiting.row(node)
        if row >= 0:
            return self.waiting.waits.stacks, row
        found, rows = self._runnable
        return found, rows.get(node, -1)

    def functions(self, node: int) -> list[str]:
        """Return the functions on the stack of a task, the innermost first; empty if unknown."""
        stacks, row = self._stack(node)
        return stacks.functions(row) if row >= 0 else []

    def _described(self, node: int, function: str) -> str:
        """Return a function on the stack of a task with its module."""
        stacks, row = self._stack(node)
        if row < 0 or not stacks.modules:
            return function
        for pc in stacks.pc[stacks.frames(row)].tolist():
            if pc in stacks.modules and plain(stacks.names[pc]) == function:
                return described(function, printable(stacks.modules[pc]))
        return function

    def frames(self, node: int) -> list[tuple[int, str, str]]:
        """Return address, function and module of the frames of a task, the innermost first."""
        found, row = self._stack(node)
        if row >= 0:
            frames = [
                (pc, found.names[pc], found.modules.get(pc, ""))
                for pc in found.pc[found.frames(row)].tolist()
            ]
        elif self.task_rows[node] >= 0:
            symbols = symbols_of(self.kernel)
            running = running_frames(self.kernel, int(self.graph.address[node]))
            frames = [(pc, *symbols(inside)) for pc, inside in running]
        else:
            frames = []
        return [(pc, printable(name), printable(module)) for pc, name, module in frames]

    def first_tasks(self, root: int) -> list[int]:
        """Return the tasks that wait for a node, through objects only; most tasks behind first."""
        graph, found, todo, seen = self.graph.sure, set[int](), [root], {root}
        while todo:
            for edge in graph.preceding[todo.pop()]:
                node = int(graph.source[edge])
                if node in seen:
                    continue
                seen.add(node)
                if graph.is_task[node]:
                    found.add(node)
                else:
                    todo.append(node)
        return sorted(found, key=lambda node: (-int(self.behind.tasks[node]), node))

    @cached_property
    def stacks_shown(self) -> list[int]:
        """Tasks whose stacks tell most: those of cycles, and what others wait for."""
        of_cycles = [node for cycle in self.cycles for node in cycle.nodes]
        chosen = [node for node in (*of_cycles, *self.roots) if self.graph.is_task[node]]
        for root in self.roots[:_MAX_STACKS]:
            if not self.graph.is_task[root]:
                chosen += self.first_tasks(root)[:1]
        return list(dict.fromkeys(chosen))[:_MAX_STACKS]

    def state(self, node: int) -> str:
        """Return what a task does: ``running``, ``runnable``, D, S, stopped, frozen, exited, or
        other.
        """
        row = int(self.task_rows[node])
        if row < 0:
            return "exited" if node in self._exited else ""
        tasks = self.waiting.tasks
        if tasks.has_exited[row]:
            return "exited"
        if tasks.is_on_cpu[row]:
            return "running"
        if int(tasks.state[row]) & _STOPPED:
            return "stopped"
        if np.broadcast_to(tasks.is_frozen, len(tasks))[row]:
            return "frozen"
        if tasks.is_blocked[row]:
            return "D"
        if tasks.is_asleep[row]:
            return "S"
        is_waking = np.broadcast_to(tasks.is_waking, len(tasks))[row]
        return "runnable" if not tasks.state[row] or is_waking else "other"

    def _first_variable(self) -> int:
        """Return from where on objects may be variables."""
        try:
            return min(_CODE, int(self.kernel.prog.symbol("_text").address) - _MAX_MODULES)
        except (LookupError, NotRecorded):
            return _CODE

    @cached_property
    def _symbols(self) -> dict[int, str]:
        """Names of objects that are variables."""
        first = self._first_variable()
        static = np.flatnonzero((self.graph.address >= np.uint64(first)) & ~self.graph.is_task)
        order = static[np.argsort(-self.behind.tasks[static], kind="stable")][:_MAX_NAMED]
        names = {}
        for node in order.tolist():
            name = symbols_of(self.kernel).variable(int(self.graph.address[node]))
            if name:
                names[node] = printable(name)
        return names

    @cached_property
    def _identities(self) -> dict[int, str]:
        """What the objects that matter belong to: those in cycles, and with most tasks behind."""
        graph, count = self.graph, _MAX_IDENTIFIED
        inside = [node for cycle in self.cycles for node in cycle.nodes]
        objects = np.flatnonzero(~graph.is_task & (self.behind.tasks > 0))
        most = objects[np.argsort(-self.behind.tasks[objects], kind="stable")][:count].tolist()
        nodes = [node for node in dict.fromkeys((*inside, *most)) if not graph.is_task[node]]
        addresses = {node: int(graph.address[node]) for node in nodes[: 2 * count]}
        locks = [node for node in addresses if graph.kind[node] in _LOCKS_OF_OBJECTS]
        pages = [node for node in addresses if graph.kind[node] is NodeKind.PAGE]
        queues = [node for node in addresses if graph.kind[node] is NodeKind.WORKQUEUE]
        names: dict[int, str] = {}
        if locks:
            wanted = [addresses[node] for node in locks]
            names |= lock_names(self.kernel, self.waiting.tasks, wanted)
        if pages:
            names |= page_names(self.kernel, [addresses[node] for node in pages])
        if queues:
            names |= workqueue_names(self.kernel)
        return {
            node: names[addresses[node]]
            for node in (*locks, *pages, *queues)
            if addresses[node] in names
        }

    @cached_property
    def _workers(self) -> dict[int, str]:
        """The workqueue of each worker, by PID."""
        return worker_names(self.kernel)

    @cached_property
    def _mounts(self) -> dict[int, str]:
        """Mount points of frozen file systems."""
        blocks = super_blocks(self.kernel)
        mounts = dict(zip(blocks.address.tolist(), blocks.mount, strict=True))
        return {
            node: printable(mounts[int(self.graph.address[node])])
            for node, kind in enumerate(self.graph.kind)
            if kind is NodeKind.FREEZER and mounts.get(int(self.graph.address[node]))
        }

    def object_name(self, node: int) -> str:
        """Return how an object is called: its variable, or its address; of a process, its name."""
        if self.graph.kind[node] is NodeKind.PROCESS:
            threads = [
                int(self.graph.target[edge])
                for edge in self.graph.following[node]
                if self.graph.kind[int(self.graph.target[edge])] is NodeKind.TASK
            ]
            if threads:
                first = min(threads, key=self.pid)
                return f"{self.comm(first)} (PID {self.pid(first)})"
        if self.graph.kind[node] is NodeKind.FREEZER and node in self._mounts:
            return f"on {self._mounts[node]}"
        known = self.waiting.names.get((self.graph.kind[node], int(self.graph.address[node])))
        if known:
            return printable(known)
        if node in self._identities:
            return printable(self._identities[node])
        return self._symbols.get(node) or f"0x{int(self.graph.address[node]):x}"

    def name(self, node: int) -> str:
        """Return how a sentence calls a node."""
        if self.graph.kind[node] is NodeKind.TASK:
            pid = self.pid(node)
            if not pid:
                address = int(self.graph.address[node])
                is_known = node in self._exited
                # Its memory may belong to another one by now, which the name in it would be of.
                return f"{'an exited task' if is_known else 'a task on no list'} (0x{address:x})"
            # As ps shows it: a worker with its workqueue.
            queue = self.comm(node).startswith("kworker/") and self._workers.get(pid)
            return f"{self.comm(node)}{f'+{printable(queue)}' if queue else ''} (PID {pid})"
        return f"{self.graph.kind[node].value} {self.object_name(node)}"

    def asleep(self, node: int) -> str:
        """Return how long a task has slept; nothing where it does not, or that is unknown."""
        age = int(self.ages[node])
        return human_seconds(age / 1e9) if age >= 0 and self.state(node) in ("D", "S") else ""

    def is_program(self, nodes: Iterable[int]) -> bool:
        """Return whether no task of these is in state D: a program waits for itself."""
        return not any(self.state(node) == "D" for node in nodes)

    def has_other_process(self, node: int, waiters: Iterable[int]) -> bool:
        """Return whether any of these tasks survives if a task is killed, with its process."""
        own = self._process(node)
        return any(self._process(each) != own for each in waiters)

    def _process(self, node: int) -> int:
        """Return the PID of a task's main thread; its own where that is unknown."""
        address = int(self.graph.address[node])
        if address not in self._processes:
            task = drgn.Object(self.kernel.prog, "struct task_struct", address=address)
            try:
                self._processes[address] = int(task.tgid)
            except (*ABSENT, NotRecorded, ValueError):
                self._processes[address] = self.pid(node)
        return self._processes[address]

    @cached_property
    def _processes(self) -> dict[int, int]:
        return {}

    def is_killable(self, node: int) -> bool:
        """Return whether SIGKILL wakes up a task: it sleeps interruptibly, or killably.

        No signal ends init.
        """
        row, tasks = int(self.task_rows[node]), self.waiting.tasks
        if row < 0 or tasks.is_kthread[row] or tasks.is_on_cpu[row] or self._process(node) == 1:
            return False
        state = int(tasks.state[row])
        return bool(state & _INTERRUPTIBLE or (state & _UNINTERRUPTIBLE and state & _WAKEKILL))

    # What the kernel log says

    @cached_property
    def _lines(self) -> list[Line]:
        try:
            return records(self.kernel.prog)
        except (*ABSENT, NotRecorded, ValueError, AttributeError, TypeError, drgn.FaultError):
            return []

    @cached_property
    def oopses(self) -> list[str]:
        """The tasks that the log names after an oops, which kills them; printable."""
        found: dict[str, None] = {}
        is_near = 0
        for _, line in self._lines:
            is_near = _AFTER_OOPS if _OOPS.search(line) else is_near - 1
            if is_near > 0 and (match := _VICTIM.search(line)):
                found[f"{printable(match[2])} (PID {match[1]})"] = None
        return list(found)

    @cached_property
    def log(self) -> tuple[dict[int, int], dict[int, tuple[float, int]]]:
        """What the hung task detector said: by PID, for how many seconds it has slept; and by PID,
        when it said, in seconds since boot, which PID has the lock. The last reader of an rwsem
        may have left."""
        hung: dict[int, int] = {}
        owners: dict[int, tuple[float, int]] = {}
        for stamp, line in self._lines:
            if match := _HUNG.search(line):
                pid, seconds = int(match[2]), int(match[3])
                hung[pid] = max(seconds, hung.get(pid, 0))
            elif (match := _BLOCKER.search(line)) and match[3] != "reader" and stamp is not None:
                owners[int(match[1])] = stamp, int(match[2])
        return hung, owners
