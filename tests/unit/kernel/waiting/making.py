# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks of *synthetic* kernels, as if they had been read, and what they sleep in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.tasks import Tasks, tasks
from kcensus.kernel.tasks.waits import Waits
from kcensus.kernel.waiting.finders.special import Special
from kcensus.kernel.waiting.graph import Builder, EdgeKind, Graph
from tests.unit.fakekernel import FakeKernel, add_types
from tests.unit.fakekernel.types import Table

SIZE = 4096
"""Of a stack."""
_FUNCTION = 0xFFFF_FFFF_8100_0000


def words(*values: int) -> Words:
    return np.array(values, np.uint64)


class Sleepers:
    """Tasks that sleep, each with a stack of one page.

    :param functions: the innermost function of each task
    """

    def __init__(self, types: Table, *functions: str) -> None:
        self.k = FakeKernel("6.10")
        add_types(self.k.prog, types, "sleepers")
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
        self.waits = Waits(
            task=self.known.address,
            pid=self.known.pid,
            comm=self.known.comm,
            function=list(functions),
            entry=["read"] * count,
            kind=[WaitKind.OTHER] * count,
            object=zero.copy(),
            type=[""] * count,
            evidence=[""] * count,
            holder=zero,
            device=none,
            disk=zero,
            sector=none,
            sectors=none,
            inode=zero,
            offset=none,
            since_ns=none,
            stacks=Stacks(
                lane=np.arange(count),
                pc=codes,
                sp=self.known.sp,
                is_cut=flags,
                names=dict(zip(codes.tolist(), functions, strict=True)),
                size=SIZE,
            ),
        )
        self.faults = Faults()

    def remember(self, reader: Callable[[Kernel], Any], value: Any) -> None:
        """Make a reader return a value."""
        self.kernel._read[reader.__wrapped__] = value  # type: ignore[attr-defined]  # of functools

    def wait(self, lane: int, address: int, type_: str) -> None:
        """Make a task wait for an object."""
        self.waits.object[lane], self.waits.type[lane] = address, type_

    def put(self, lane: int, *values: int, place: int = 1024) -> None:
        """Write words to the stack of a task."""
        self.k.write_words(self.stack[lane] + place, *values)

    def special(self, run: Callable[[Special], object]) -> Graph:
        """Let a part of the reader find what tasks wait for, and return its graph."""
        build, rows = Builder(), np.arange(len(self.task))
        run(Special(self.kernel, self.known, self.waits, rows, build, self.faults))
        return build.graph()


def edges(graph: Graph) -> Sequence[tuple[int, EdgeKind, int]]:
    """The edges of a graph, as addresses of both ends and a kind."""
    return [
        (int(graph.address[source]), edge, int(graph.address[target]))
        for source, edge, target in zip(
            graph.source.tolist(), graph.edge, graph.target.tolist(), strict=True
        )
    ]
