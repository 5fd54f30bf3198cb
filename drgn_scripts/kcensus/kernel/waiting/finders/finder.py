# SPDX-License-Identifier: LGPL-2.1-or-later
"""What all that look for what tasks wait for share: the tasks, their stacks, and the graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.queued import stack_words
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.tasks.waits import Waits
from kcensus.kernel.waiting.graph import Builder, NodeKind

Numbers = npt.NDArray[np.int64]

KINDS = {
    "struct mutex": NodeKind.MUTEX,
    "struct rw_semaphore": NodeKind.RWSEM,
    "struct percpu_rw_semaphore": NodeKind.PERCPU_RWSEM,
    "struct rt_mutex": NodeKind.RT_MUTEX,
    "struct rt_mutex_base": NodeKind.RT_MUTEX,
    "struct semaphore": NodeKind.SEMAPHORE,
    "struct completion": NodeKind.COMPLETION,
    "struct page": NodeKind.PAGE,
    "struct folio": NodeKind.PAGE,
    "struct pipe_inode_info": NodeKind.PIPE,
    "struct work_struct": NodeKind.WORK,
    "struct core_state": NodeKind.COREDUMP,
    "struct vm_area_struct": NodeKind.AREA,
    "struct workqueue_struct": NodeKind.WORKQUEUE,
    "struct wq_flusher": NodeKind.WORKQUEUE,
    "struct journal_s": NodeKind.LOG,
    "struct xfs_buf": NodeKind.BUFFER,
    "struct fuse_req": NodeKind.FUSE,
    "struct rcu_state": NodeKind.GRACE_PERIOD,
    "struct rcu_node": NodeKind.GRACE_PERIOD,
    "struct futex_q": NodeKind.FUTEX,
    "struct transaction_s": NodeKind.TRANSACTION,
    "unsigned long": NodeKind.BIT,
    "struct wait_queue_head": NodeKind.QUEUE,
    "struct __wait_queue_head": NodeKind.QUEUE,
}
"""Nodes by the C type of what tasks wait for."""


class Finder:
    """Adds nodes and edges to a graph, and says what tasks wait for.

    :param known: all tasks
    :param waits: those that sleep; a *lane* is a row of it
    :param rows: row among all tasks of each lane
    """

    def __init__(
        self,
        kernel: Kernel,
        known: Tasks,
        waits: Waits,
        rows: Numbers,
        build: Builder,
        faults: Faults,
    ) -> None:
        self.kernel, self.known, self.waits, self.rows = kernel, known, waits, rows
        self.build, self.faults = build, faults
        self.object: Words = waits.object
        self.type: list[str] = waits.type
        self.evidence: list[str] = waits.evidence
        self.names: dict[tuple[NodeKind, int], str] = {}
        """Of objects that have any; not safe to print."""
        self.types: dict[tuple[NodeKind, int], str] = {}
        """C types of objects that no task waits for itself."""
        self.torn = 0
        """Lists that could not be followed to their end."""

    def _lanes(self, functions: frozenset[str], type_: str | None) -> Numbers:
        """Return the tasks that sleep in some functions, for an object of a type, or none."""
        return np.array(
            [
                lane
                for lane, function in enumerate(self.waits.function)
                if function in functions
                and (self.type[lane] == type_ if type_ else not self.object[lane])
            ],
            np.int64,
        )

    def _having(self, functions: frozenset[str]) -> Numbers:
        """Return the tasks that have any of some functions on their stack, ascending."""
        stacks = self.waits.stacks
        places = [pc for pc, name in stacks.names.items() if plain(name) in functions]
        is_one = np.isin(stacks.pc, np.array(places, np.uint64))
        lanes: Numbers = np.unique(stacks.lane[is_one])
        return lanes

    def _of_type(self, *types: str) -> Numbers:
        """Return the tasks that wait for objects of some types."""
        wanted = [type_ in types for type_ in self.type]
        return np.flatnonzero(np.array(wanted, np.bool_) & (self.object != 0))

    def _mentions(self, addresses: Words) -> list[tuple[int, int, int]]:
        """Return where addresses are on stacks: task, address, and place; each once per task."""
        wanted, seen = np.sort(addresses), dict[tuple[int, int], int]()
        if not len(wanted) or not self.waits.stacks.size:
            return []
        for some, start, words in stack_words(
            self.kernel.memory, self.known, self.rows, self.waits.stacks.size, self.faults
        ):
            row, column = np.nonzero(np.isin(words, wanted))
            places = start[row] + np.uint64(8) * column.astype(np.uint64)
            for lane, address, place in zip(
                some[row].tolist(), words[row, column].tolist(), places.tolist(), strict=True
            ):
                seen.setdefault((lane, address), place)
        return [(lane, address, place) for (lane, address), place in seen.items()]

    def _frame_at(self, lane: int, place: int) -> str:
        """Return the function whose frame an address on a stack is in."""
        stacks = self.waits.stacks
        rows = stacks.frames(lane)
        inner = int(np.searchsorted(stacks.sp[rows], np.uint64(place), "right")) - 1
        names = stacks.functions(lane)
        return names[inner] if 0 <= inner < len(names) else ""

    def _note(self, lane: int, address: int, type_: str, evidence: str) -> None:
        self.object[lane], self.type[lane], self.evidence[lane] = address, type_, evidence
