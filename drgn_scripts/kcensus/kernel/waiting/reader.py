# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the graph of waits from a kernel's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import drgn
import numpy as np

from kcensus.arch import name_of
from kcensus.engine.memory import Faults, Mask
from kcensus.kernel.arch.readers import readers_of
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.tasks.tasks import Tasks, tasks
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders import finders
from kcensus.kernel.waiting.graph import TASK, WAITS, Graph, NodeKind
from kcensus.kernel.waiting.sleeps import sleeps
from kcensus.kernel.waiting.timed import timed, wait_ages
from kcensus.kernel.waiting.waits import Waits


@dataclass
class Waiting:
    """The graph of a kernel, and its sources."""

    graph: Graph
    waits: Waits
    """Waits of all sleeping tasks, with the objects that finders determined."""
    tasks: Tasks
    types: dict[tuple[NodeKind, int], str] = field(default_factory=dict)
    """C types of objects."""
    names: dict[tuple[NodeKind, int], str] = field(default_factory=dict)
    """Names of objects; not safe to print."""
    states: dict[tuple[NodeKind, int], str] = field(default_factory=dict)
    """States of objects, as words that follow their names."""
    causes: dict[int, str] = field(default_factory=dict)
    """Id of the finding about what keeps a disk from serving I/O, by ``struct gendisk *``."""
    keepers: dict[int, list[tuple[NodeKind, int]]] = field(default_factory=dict)
    """Objects that keep the I/O of disks, by ``struct gendisk *``."""
    readers: dict[int, int] = field(default_factory=dict)
    """Number of readers by lock."""
    finders: Sequence[Finder] = ()
    missing: list[str] = field(default_factory=list)
    """Subjects without debug info."""
    unreadable_code: int = 0
    """Functions with machine code missing from the dump."""
    torn: int = 0
    """Lists that could not be followed to their end, except lists of waiters."""
    faults: Faults = field(default_factory=Faults)

    def row(self, node: int) -> int:
        """Return the row of a node's task in the waits, or -1."""
        return self._rows.get(int(self.graph.address[node]), -1)

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {task: row for row, task in enumerate(self.waits.task.tolist())}

    @cached_property
    def blocked(self) -> Waits:
        """The waits of the tasks in state D."""
        is_blocked = self.tasks.is_blocked[self.tasks.rows(self.waits.task)]
        return self.waits.part(np.flatnonzero(is_blocked))


@once
def waiting(kernel: Kernel) -> Waiting:
    """Return the graph of waits.

    :raises LookupError: the debug info lacks tasks
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    draft = Draft(kernel, tasks(kernel), sleeps(kernel), finders())
    draft.missing += unread_code(kernel.prog.platform)
    graph = _drawn(draft)
    since, is_least = wait_ages(kernel, draft.waits)
    return Waiting(
        graph=graph,
        waits=replace(
            draft.waits,
            object=draft.object,
            type=draft.type,
            evidence=draft.evidence,
            since_ns=since,
            is_least=is_least,
        ),
        tasks=draft.known,
        types=draft.types,
        names=draft.names,
        states=draft.states,
        causes=draft.causes,
        keepers=draft.keepers,
        readers=draft.readers,
        finders=draft.finders,
        missing=draft.missing,
        unreadable_code=draft.sites.unreadable,
        torn=draft.torn,
        faults=draft.faults,
    )


def _drawn(draft: Draft) -> Graph:
    """Let the finders of a draft add to the graph, and return the part of interest."""
    for finder in draft.finders:
        draft.attempt(finder.about, finder.note)
    for finder in draft.finders:
        draft.attempt(finder.about, finder.find)
    for finder in draft.finders:
        draft.attempt(finder.about, finder.conclude)
    blocked = draft.known.is_blocked[draft.rows]
    _add_waits(draft, blocked)
    is_timed = np.zeros(len(draft.waits), np.bool_)

    def look_at_timers() -> None:
        is_timed[:] = timed(draft.kernel, draft.known, draft.rows, draft.waits, draft.faults)

    draft.attempt("timers", look_at_timers)
    graph = replace(draft.build.graph(), timed=draft.waits.task[is_timed])
    return graph.part(_of_interest(draft, graph, blocked))


def _add_waits(draft: Draft, blocked: Mask) -> None:
    lanes = np.flatnonzero(draft.object != 0)
    kinds = [draft.kind_of(lane) for lane in lanes.tolist()]
    for lane, kind in zip(lanes.tolist(), kinds, strict=True):
        draft.types.setdefault((kind, int(draft.object[lane])), draft.type[lane])
    draft.build.edges(
        WAITS,
        (TASK, draft.waits.task[lanes]),
        (kinds, draft.object[lanes]),
        [draft.evidence[lane] for lane in lanes.tolist()],
        mode=[draft.mode[lane].value for lane in lanes.tolist()],
        frame=[draft.waits.function[lane] for lane in lanes.tolist()],
    )
    # Add tasks with an unknown object, too: others may wait for them.
    draft.build.nodes(TASK, draft.waits.task[blocked])


def _of_interest(draft: Draft, graph: Graph, blocked: Mask) -> Mask:
    """Return the nodes connected with tasks in state D, or with nodes that finders show."""
    wanted = graph.is_task & np.isin(graph.address, draft.waits.task[blocked])
    starts = np.flatnonzero(wanted).tolist()
    for finder in draft.finders:
        starts += finder.of_interest(graph)
    down = graph.reached(starts)
    return down | graph.reached(np.flatnonzero(down).tolist(), back=True)


def unread_code(platform: drgn.Platform | None) -> list[str]:
    """Return a gap's subject for machine code that :class:`CallSites` does not read."""
    readers = readers_of(platform)
    if platform is None or (readers is not None and readers.decoder is not None):
        return []
    return [f"machine code of {name_of(platform)}, which shows the holders of locks"]
