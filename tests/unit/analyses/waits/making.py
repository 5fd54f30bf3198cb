# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures of *synthetic* graphs, as if they had been read from a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings import findings as told_by
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.waiting import reader
from kcensus.kernel.waiting.finders.locks.locks import MUTEX
from kcensus.kernel.waiting.graph import HELD, TASK, WAITS, Builder, NodeKind
from kcensus.kernel.waiting.reader import Waiting
from kcensus.results import Finding
from tests.unit.fakekernel import FakeKernel
from tests.unit.kernel.waiting.making import waits_of
from tests.unit.readers import set_read

_TASKS, _LOCKS = 0xFFFF_8881_0000_0000, 0xFFFF_8882_0000_0000
_FUNCTION = 0xFFFF_FFFF_8100_0000


@dataclass
class Scene:
    """Tasks by number, and mutexes by number."""

    count: int
    waits: dict[int, int] = field(default_factory=dict)
    """The mutex that each task waits for."""
    held: dict[int, tuple[int, Strength]] = field(default_factory=dict)
    """The task that holds each mutex, and how sure that is."""
    names: dict[int, str] = field(default_factory=dict)
    functions: dict[int, str] = field(default_factory=dict)
    """The function that a task sleeps in."""
    interruptible: set[int] = field(default_factory=set)
    exited: set[int] = field(default_factory=set)
    also: dict[int, int] = field(default_factory=dict)
    """A second task that holds a mutex."""
    kind: NodeKind = MUTEX
    """What there is instead of mutexes."""

    def figures(self) -> Figures:
        kernel = Kernel(FakeKernel().prog)
        found = self._waiting()
        set_read(kernel, reader.waiting, found)
        return Figures(kernel)

    def _waiting(self) -> Waiting:
        number = np.arange(self.count)
        address = np.uint64(_TASKS) + np.uint64(8192) * number.astype(np.uint64)
        none, zero = np.full(self.count, -1), np.zeros(self.count, np.uint64)
        flags = np.zeros(self.count, np.bool_)
        asleep = np.array([n in self.waits for n in number.tolist()], np.bool_)
        state = np.where(asleep, np.uint64(2), np.uint64(0))
        state[sorted(self.interruptible)] = 1
        tasks = Tasks(
            address=address,
            pid=100 + number,
            comm=[self.names.get(n, f"task-{n}") for n in number.tolist()],
            state=state,
            is_on_cpu=flags,
            is_kthread=flags,
            has_exited=np.isin(number, sorted(self.exited)),
            cpu=number * 0,
            off_cpu_ns=(1 + number) * 10**9,
            arrived_ns=none,
            stack=zero,
            sp=zero,
            blocker=zero,
            blocked_on=zero,
            pi_blocked_on=zero,
            counted=self.count,
        )
        rows = np.flatnonzero(state != 0)
        locks = np.array([self._lock(self.waits[n]) for n in rows.tolist()], np.uint64)
        names = [self.functions.get(n, "mutex_user") for n in rows.tolist()]
        codes = {name: _FUNCTION + at for at, name in enumerate(dict.fromkeys(names))}
        stacks = Stacks(
            lane=np.arange(len(rows)),
            pc=np.array([codes[name] for name in names], np.uint64),
            sp=zero[: len(rows)],
            is_cut=flags[: len(rows)],
            names={code: name for name, code in codes.items()},
            size=16384,
        )
        waits = replace(
            waits_of(address[rows], tasks.pid[rows], names, stacks),
            comm=[tasks.comm[n] for n in rows.tolist()],
            kind=[WaitKind.LOCK] * len(rows),
            object=locks,
            type=["struct mutex"] * len(rows),
            since_ns=tasks.off_cpu_ns[rows],
            is_least=np.zeros(len(rows), np.bool_),
        )
        build, waiter, lock = Builder(), (TASK, waits.task), (self.kind, locks)
        build.edges(WAITS, waiter, lock, strength=Strength.PROVEN, evidence="mutex.wait_list")
        held = [(n, *holder) for n, holder in sorted(self.held.items())]
        held += [(n, task, Strength.PROVEN) for n, task in sorted(self.also.items())]
        build.edges(
            HELD,
            (self.kind, np.array([self._lock(n) for n, _, _ in held], np.uint64)),
            (TASK, address[[task for _, task, _ in held]]),
            strength=np.array([int(strength) for _, _, strength in held]),
            evidence="mutex.owner",
        )
        return Waiting(build.graph(), waits, tasks)

    @staticmethod
    def _lock(number: int) -> int:
        return _LOCKS + 64 * number


def findings(figures: Figures) -> list[Finding]:
    return [each.finding for each in told_by(figures)]


def owned(count: int, strength: Strength = Strength.PROVEN) -> dict[int, tuple[int, Strength]]:
    """Each mutex, held by the task of its number."""
    return {number: (number, strength) for number in range(count)}
