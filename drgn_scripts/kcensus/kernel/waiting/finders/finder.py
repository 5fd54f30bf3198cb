# SPDX-License-Identifier: LGPL-2.1-or-later
"""What all that look for what tasks wait for share: the tasks, their stacks, and the graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.tasks.waits import Waits
from kcensus.kernel.waiting.graph import Builder, NodeKind

Numbers = npt.NDArray[np.int64]


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

    def _note(self, lane: int, address: int, type_: str, evidence: str) -> None:
        self.object[lane], self.type[lane], self.evidence[lane] = address, type_, evidence
