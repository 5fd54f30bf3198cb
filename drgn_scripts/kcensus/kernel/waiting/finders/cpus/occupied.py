# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runnable tasks that do not get their CPU, and the tasks that occupy it."""

from __future__ import annotations

import numpy as np

from kcensus.engine.memory import Mask, Numbers
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.run_queues import run_queues
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import TASK, EdgeKind, NodeKind

CPU = NodeKind("CPU", ("struct rq",))
RUNS = EdgeKind("runs", "runs on", is_context=True)
"""From a CPU to its task."""
THROTTLED = EdgeKind("throttles", "has the first claim to", is_context=True)
"""From a CPU to its task of the highest real-time priority, which gets it back in a moment."""
STARVED = EdgeKind("needs", "keeps its CPU from")
"""From a runnable task, or work for the CPU, to the CPU that it does not get."""
_STARVED_NS = 10**9
"""Nanoseconds without the CPU after which a runnable task is starved."""
_TOLERANCE_NS = 10**7
"""Clocks of CPUs differ."""
_MAX_RT_PRIO = 100
"""MAX_RT_PRIO: lower priorities are those of real-time tasks, and come before all others."""
_MOST_RUNNABLE = 1 << 12
"""Most runnable tasks to look at."""


class Occupied(Finder):
    """Finds the tasks that occupy the CPUs of runnable tasks."""

    about = "runnable tasks"
    kinds = (CPU,)

    def find(self) -> None:
        """Add edges from each starved task to its CPU, and from that to the running task.

        A task is starved by one that has not left the CPU since, or by a real-time task of a higher
        priority, even while that is throttled.

        :raises LookupError: the debug info lacks a type
        """
        known = self.known
        queued = np.broadcast_to(known.is_queued, len(known))
        waits: Mask = queued & ~known.is_on_cpu & ~known.has_exited
        waits &= (known.state == 0) | np.broadcast_to(known.is_waking, len(known))
        starved = np.flatnonzero(waits)[:_MOST_RUNNABLE]
        if not len(starved) or known.now_ns < 0:
            return
        runnable = starved
        off = self._runnable_ns(starved)
        starved, off = starved[off >= _STARVED_NS], off[off >= _STARVED_NS]
        queues = run_queues(self.kernel)
        cpu = np.array([queues.row.get(each, -1) for each in known.cpu[starved].tolist()], np.int64)
        starved, off, cpu = starved[cpu >= 0], off[cpu >= 0], cpu[cpu >= 0]
        current = known.rows(queues.current[cpu])
        on = np.where((current >= 0) & ~queues.is_idle[cpu], known.arrived_ns[current], 0)
        # A throttling, or the deadline server, gives the CPU to others for a moment only.
        is_short = on < np.where(queues.is_throttled[cpu], off, _STARVED_NS)
        self._throttled(runnable, starved[is_short], cpu[is_short])
        sound = (current >= 0) & ~queues.is_idle[cpu]
        starved, off, cpu, current = starved[sound], off[sound], cpu[sound], current[sound]
        on = on[sound]
        before, after = self._priority(current), self._priority(starved)
        is_longer = on + _TOLERANCE_NS >= off
        is_above = (before < _MAX_RT_PRIO) & (before < after)
        self._starve(starved[is_longer], cpu[is_longer], "rq.curr, sched_info.last_arrival")
        is_above_only = is_above & ~is_longer
        self._starve(starved[is_above_only], cpu[is_above_only], "rq.curr, task.prio")
        add_cpus(self, np.unique(cpu[is_longer | is_above]))

    def _starve(self, starved: Numbers, cpu: Numbers, evidence: str) -> None:
        """Add edges from starved tasks to their CPUs.

        :param cpu: row of each CPU
        """
        self.build.edges(
            STARVED,
            (TASK, self.known.address[starved]),
            (CPU, run_queues(self.kernel).address[cpu]),
            evidence,
            strength=Strength.DERIVED,
        )

    def _throttled(self, runnable: Numbers, starved: Numbers, cpu: Numbers) -> None:
        """Add edges from starved real-time tasks to the one of the highest priority on their CPU.

        It is off the CPU for a moment, in which the CPU is idle, or runs a task without priority.

        :param cpu: row of the CPU of each starved task
        """
        known, queues = self.known, run_queues(self.kernel)
        before, after = self._priority(runnable), self._priority(starved)
        current = known.rows(queues.current)
        # Since Linux kernel commit d741f297bcea ("sched/fair: Fair server interface") and others
        # (in v6.12), a deadline server runs other tasks instead.
        is_served = ~queues.is_idle & (current >= 0)
        is_served &= self._priority(current) >= _MAX_RT_PRIO
        number = {row: each for each, row in queues.row.items()}
        for row in np.unique(cpu[(queues.is_throttled | is_served)[cpu]]).tolist():
            own = (known.cpu[runnable] == number[row]) & (before >= 0) & (before < _MAX_RT_PRIO)
            first = int(before[own].min(initial=_MAX_RT_PRIO))
            behind = starved[(cpu == row) & (after > first) & (after < _MAX_RT_PRIO)]
            if not len(behind):
                continue
            is_throttled = bool(queues.is_throttled[row])
            evidence = "rt_rq.rt_throttled, task.prio" if is_throttled else "task.on_rq, task.prio"
            self._starve(behind, np.full(len(behind), row), evidence)
            ahead = known.address[runnable[own & (before == first)]]
            address = queues.address[row]
            source = CPU, np.full(len(ahead), address)
            strength = Strength.DERIVED
            self.build.edges(THROTTLED, source, (TASK, ahead), evidence, strength=strength)
            self.names[CPU, int(address)] = f"{number[row]}{' (throttled)' * is_throttled}"
            self.types[CPU, int(address)] = "struct rq"

    def _runnable_ns(self, rows: Numbers) -> Numbers:
        """Return for how long tasks have been runnable without a CPU, or -1 if unknown."""
        task = "struct task_struct"
        if not self.kernel.prog.type(task).has_member("sched_info"):
            return np.full(len(rows), -1)
        path = "sched_info.last_queued"
        queued = self._member(task, path, self.known.address[rows]).astype(np.int64)
        return np.where(queued > 0, self.known.now_ns - queued, -1)

    def _priority(self, rows: Numbers) -> Numbers:
        read = self._member("struct task_struct", "prio", self.known.address[rows])
        return read.astype(np.int32).astype(np.int64)


def add_cpus(finder: Finder, rows: Numbers) -> Numbers:
    """Add edges from CPUs to the tasks that run on them, and name the CPUs; return the busy ones.

    :param rows: of :class:`.RunQueues`
    """
    queues = run_queues(finder.kernel)
    finder.faults.update(queues.faults)
    number = {row: each for each, row in queues.row.items()}
    for row in rows.tolist():
        state = "" if queues.is_online[row] and not queues.is_idle[row] else "idle"
        state = state if queues.is_online[row] else "offline"
        name = CPU, int(queues.address[row])
        finder.names[name] = f"{number[row]} ({state})" if state else f"{number[row]}"
        finder.types[name] = "struct rq"
    is_known = finder.known.rows(queues.current[rows]) >= 0
    busy = rows[~queues.is_idle[rows] & queues.is_online[rows] & is_known]
    finder.build.edges(
        RUNS,
        (CPU, queues.address[busy]),
        (TASK, queues.current[busy]),
        "rq.curr",
        strength=Strength.DERIVED,
        place=queues.place[busy],
    )
    return busy


FINDER = Occupied
