# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that spin for a spinlock on their CPU, and tasks that may hold it.

A spinlock does not name its holder. A task that runs on another CPU with the lock's address in its
registers or on its stack may hold it: a hint, not more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import drgn
import numpy as np

from kcensus.engine.layout import word_dtype
from kcensus.engine.memory import Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.frames import SPINS, has_dwarf, is_at_vector, running_trace, spins
from kcensus.kernel.waiting.graph import HELD, TASK, WAITS, Graph, NodeKind
from kcensus.results import Gap

SPINLOCK = NodeKind("spinlock", ("struct qspinlock", "struct raw_spinlock"), is_lock=True)
_MAX_RUNNING = 64
"""Most running tasks to look at, the longest running first."""
_LOCKED = 0xFF
"""_Q_LOCKED_MASK: the byte of a qspinlock that is not 0 while it is held."""
_ARGUMENT = "lock"
"""Name of the argument of the functions that spin."""


class Spinning(Finder):
    """Finds the spinlocks that running tasks spin for."""

    about = "spinlocks"
    kinds = (SPINLOCK,)
    _nameless = 0
    """Tasks that spin for an unknown spinlock."""
    _at_vector = 0
    """Tasks that may spin: an exception has just come in."""

    def find(self) -> None:
        """Add edges from spinning tasks to their lock, and to tasks that may hold it."""
        if not self.known.is_blocked.any():
            return
        running = np.flatnonzero(self.known.is_on_cpu & ~self.known.has_exited)
        longest = running[np.argsort(-self.known.arrived_ns[running], kind="stable")]
        traces = {
            row: trace
            for row in longest[:_MAX_RUNNING].tolist()
            if (trace := running_trace(self.kernel, int(self.known.address[row]))) is not None
        }
        if not traces and not has_dwarf(self.kernel):
            addresses = self.known.address[longest[:_MAX_RUNNING]].tolist()
            self._nameless = sum(spins(self.kernel, task) for task in addresses)
        self._at_vector = sum(
            is_at_vector([str(frame.name) for frame in islice(trace, 1)])
            for trace in traces.values()
        )
        spinning = {row: lock for row, trace in traces.items() if (lock := _lock(trace))}
        if not spinning:
            return
        for row, lock in spinning.items():
            self.build.edges(
                WAITS,
                (TASK, self.known.address[[row]]),
                (SPINLOCK, np.array([lock], np.uint64)),
                "argument of the function that spins",
                strength=Strength.DERIVED,
            )
        for lock in sorted({*spinning.values()}):
            self.types[SPINLOCK, lock] = "struct qspinlock"
            others = [row for row in traces if spinning.get(row) != lock]
            rows = [row for row in others if self._mentions_lock(row, traces[row], lock)]
            self.build.edges(
                HELD,
                (SPINLOCK, np.full(len(rows), lock, np.uint64)),
                (TASK, self.known.address[rows]),
                "address in registers or on the stack",
                strength=Strength.POSSIBLE,
            )

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield the tasks whose spinlock is unknown."""
        if self._nameless:
            why = "arguments of functions are known with the vmlinux's debug info only (-s)"
            effect = "the locks that tasks spin for, and their holders, are missing"
            yield Gap("spinlocks", why, self._nameless, effect)
        if self._at_vector:
            why = "an exception had just come in; their address is in a register that dumps lack"
            effect = "locks that these running tasks spin for, and their holders, may be missing"
            yield Gap("interrupted functions", why, self._at_vector, effect)

    def _mentions_lock(self, row: int, trace: drgn.StackTrace, lock: int) -> bool:
        try:
            registers = trace[0].registers()
        except DAMAGED:
            return False
        return lock in registers.values() or lock in self._stack(row, trace).tolist()

    def _stack(self, row: int, trace: drgn.StackTrace) -> Words:
        """Return the words of a running task's stack from its stack pointer on."""
        low, size = int(self.known.stack[row]), self.waits.stacks.size
        try:
            start = max(int(trace[0].sp), low)
            if not low <= start < low + size:
                return np.empty(0, np.uint64)
            content = self.kernel.prog.read(start & ~7, low + size - (start & ~7))
        except DAMAGED:
            return np.empty(0, np.uint64)
        return np.frombuffer(content, word_dtype(self.kernel.prog)).astype(np.uint64)


def _lock(trace: drgn.StackTrace) -> int:
    """Return the address of the held spinlock that a task spins for, or 0."""
    try:
        # An interrupt may have come in between.
        frame = next((frame for frame in trace if frame.name in SPINS), None)
        lock = frame[_ARGUMENT] if frame is not None else None
        is_held = lock is not None and int(lock.val.counter) & _LOCKED
        return int(lock) if lock is not None and is_held else 0
    except DAMAGED:
        return 0


FINDER = Spinning
