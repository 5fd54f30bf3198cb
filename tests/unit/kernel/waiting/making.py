# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks of *synthetic* kernels, as if they had been read, and what they sleep in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.tasks import Tasks, tasks
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders import finders
from kcensus.kernel.waiting.graph import EdgeKind, Graph, NodeKind
from kcensus.kernel.waiting.objects.queues import queue_owner
from kcensus.kernel.waiting.sleeps import sleeps
from kcensus.kernel.waiting.waits import Waits
from tests.unit.fakekernel import FakeKernel
from tests.unit.readers import set_read

F = TypeVar("F", bound=Finder)

SIZE = 4096
"""Of a stack."""
_FUNCTION = 0xFFFF_FFFF_8100_0000


def words(*values: int) -> Words:
    return np.array(values, np.uint64)


def blocked(kernel: Kernel) -> Waits:
    """What the tasks in state D wait for, before finders know more."""
    found = sleeps(kernel)
    every = tasks(kernel)
    return found.part(np.flatnonzero(every.is_blocked[every.rows(found.task)]))


def waits_of(
    tasks: Words, pid: npt.NDArray[np.int64], functions: Sequence[str], stacks: Stacks
) -> Waits:
    count = len(tasks)
    none, zero = np.full(count, -1), words(*[0] * count)
    return Waits(
        task=tasks,
        pid=pid,
        comm=["task"] * count,
        function=list(functions),
        entry=["read"] * count,
        kind=[WaitKind.OTHER] * count,
        object=zero.copy(),
        type=[""] * count,
        evidence=[""] * count,
        holder=zero,
        device=none,
        disk=zero.copy(),
        sector=none.copy(),
        sectors=none.copy(),
        inode=zero,
        offset=none,
        since_ns=none.copy(),
        is_least=np.zeros(count, np.bool_),
        stacks=stacks,
    )


class Sleepers:
    """Tasks that sleep, each with a stack of one page.

    :param functions: the innermost function of each task
    """

    def __init__(self, types: str, *functions: str) -> None:
        self.k = FakeKernel("6.10", types)
        self.k.constant("THREAD_SIZE", SIZE)
        self.kernel = Kernel(self.k.prog)
        self.functions = functions
        count = len(functions)
        self.task = [int(self.k.alloc("struct task_struct").address_) for _ in functions]
        self.stack = [int(self.k.alloc(f"char [{SIZE}]", alone=True).address_) for _ in functions]
        none, zero, flags = np.full(count, -1), words(*[0] * count), np.zeros(count, np.bool_)
        self.known = Tasks(
            address=words(*self.task),
            pid=100 + np.arange(count),
            comm=["task"] * count,
            state=zero + np.uint64(2),
            is_on_cpu=flags,
            is_kthread=flags,
            has_exited=flags,
            cpu=none,
            off_cpu_ns=none,
            arrived_ns=none,
            stack=words(*self.stack),
            sp=words(*self.stack) + np.uint64(64),
            blocker=zero,
            blocked_on=zero,
            pi_blocked_on=zero,
        )
        self.remember(tasks, self.known)
        codes = _FUNCTION + np.arange(count, dtype=np.uint64)
        names = dict(zip(codes.tolist(), functions, strict=True))
        stacks = Stacks(np.arange(count), codes, self.known.sp, flags, names, SIZE)
        self.waits = waits_of(self.known.address, self.known.pid, functions, stacks)
        self.faults = Faults()

    def remember(self, reader: Callable[[Kernel], Any], value: Any) -> None:
        set_read(self.kernel, reader, value)

    def wait(self, lane: int, address: int, type_: str) -> None:
        self.waits.object[lane], self.waits.type[lane] = address, type_

    def put(self, lane: int, *values: int, place: int = 1024) -> None:
        self.k.write_words(self.stack[lane] + place, *values)

    def ring(self, *links: int) -> None:
        for at, link in enumerate(links):
            after, before = links[(at + 1) % len(links)], links[at - 1]
            self.k.write_words(link, after, before)

    def _leave_queues(self, finder: type[Finder]) -> None:
        """Replace wait queues by the objects that they are members of, as the reader does."""
        types = ("struct wait_queue_head", "struct __wait_queue_head")
        for lane, function in enumerate(self.functions):
            if function in finder.queues and self.waits.type[lane] in types:
                queue = int(self.waits.object[lane])
                owner = queue_owner(self.k.prog, finder.queues[function], queue)
                assert owner is not None
                self.wait(lane, *owner[:2])

    def run(self, finder: type[F]) -> tuple[Graph, F]:
        """Let a finder note and find what tasks wait for; return its graph, and itself."""
        draft = Draft(self.kernel, self.known, self.waits, {*finders(), finder})
        draft.faults = self.faults
        draft.object, draft.type = self.waits.object, self.waits.type
        draft.evidence = self.waits.evidence
        self._leave_queues(finder)
        found = finder(draft)
        found.note()
        found.find()
        found.conclude()
        return draft.build.graph(), found


def links(graph: Graph) -> set[tuple[NodeKind, int, EdgeKind, int, int]]:
    """The edges of a graph: kind and address of the source, kind, target, and strength."""
    ends = zip(graph.source.tolist(), graph.target.tolist(), strict=True)
    return {
        (graph.kind[source], int(graph.address[source]), edge, int(graph.address[target]), strength)
        for (source, target), edge, strength in zip(
            ends, graph.edge, graph.strength.tolist(), strict=True
        )
    }


def edges(graph: Graph) -> Sequence[tuple[int, EdgeKind, int]]:
    ends = graph.address[graph.source].tolist(), graph.edge, graph.address[graph.target].tolist()
    return list(zip(*ends, strict=True))
