# SPDX-License-Identifier: LGPL-2.1-or-later
"""Threads that wait for the core dump of their process, and its writer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import HELD, TASK, Graph, NodeKind

COREDUMP = NodeKind("coredump", ("struct core_state",))
_DUMPED = frozenset({"coredump_task_exit", "exit_mm", "do_exit"})
"""Functions in which the other threads of a process wait for its core dump."""
DUMPING = frozenset({"do_coredump", "vfs_coredump"})


class CoreDumps(Finder):
    """Finds the threads that wait for a core dump, and its writer."""

    about = "core dumps"
    kinds = (COREDUMP,)

    def note(self) -> None:
        """Find the threads that wait for the core dump of their process."""
        lanes = self._lanes(_DUMPED, None)
        if not len(lanes):
            return
        tasks = self.waits.task[lanes]
        # Since Linux kernel commit 0258b5fd7c71 ("coredump: Limit coredumps to a single thread
        # group") (in v5.16), the state is in signal_struct; before, in mm_struct.
        owner, name = "signal", "struct signal_struct"
        if not self.kernel.prog.type(name).has_member("core_state"):
            owner, name = "mm", "struct mm_struct"
        owners = self._member("struct task_struct", owner, tasks)
        states = self._member(name, "core_state", owners, is_guess=True)
        read = self._read("struct core_state", states, {"task": "dumper.task"}, is_guess=True)
        kept = np.flatnonzero((states != 0) & read.readable & (read["task"] != tasks))
        proof = f"{name.removeprefix('struct ')}.core_state"
        for index in kept.tolist():
            self._note(int(lanes[index]), int(states[index]), "struct core_state", proof)
        states, dumpers = states[kept], read["task"][kept]
        evidence = "core_state.dumper"
        self.build.edges(HELD, (COREDUMP, states), (TASK, dumpers), evidence, place=states)

    def of_interest(self, graph: Graph) -> Iterable[int]:
        """Return the threads that write core dumps."""
        dumping = self.waits.task[self._having(DUMPING)]
        return np.flatnonzero(graph.is_task & np.isin(graph.address, dumping)).tolist()


FINDER = CoreDumps
