# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the graph of who waits for whom from a kernel's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Faults, Words
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.locking.owners import LOCK_TYPES, Strength
from kcensus.kernel.tasks.functions import WaitKind, plain
from kcensus.kernel.tasks.tasks import Tasks, tasks
from kcensus.kernel.tasks.waits import Waits, sleeps
from kcensus.kernel.timers.timed import timed
from kcensus.kernel.waiting.finders.block_io import BUFFER_LOCK, BlockIO
from kcensus.kernel.waiting.finders.completers import Completers
from kcensus.kernel.waiting.finders.finder import KINDS, Finder
from kcensus.kernel.waiting.finders.futexes import Futexes
from kcensus.kernel.waiting.finders.locks import Locks
from kcensus.kernel.waiting.finders.logs import Logs
from kcensus.kernel.waiting.finders.pages import Pages
from kcensus.kernel.waiting.finders.pipe_ends import PipeEnds
from kcensus.kernel.waiting.finders.rcu import GracePeriods
from kcensus.kernel.waiting.finders.special import Special
from kcensus.kernel.waiting.graph import Builder, EdgeKind, Graph, NodeKind

F = TypeVar("F", bound=Finder)

_BY_WAIT = {
    WaitKind.LOG: NodeKind.LOG,
    WaitKind.TAG: NodeKind.TAGS,
    WaitKind.REQUEST: NodeKind.IO,
}
_DRAINING = ("percpu_rw_semaphore.writer", "percpu_rw_semaphore.write_waitq")
"""What says that a writer has the lock, and waits for the readers to leave."""


@dataclass
class Waiting:
    """The graph of a kernel, and what it was made of."""

    graph: Graph
    waits: Waits
    """Of all sleeping tasks."""
    tasks: Tasks
    objects: Words
    """What each of them waits for; 0 where that could not be determined."""
    types: dict[tuple[NodeKind, int], str] = field(default_factory=dict)
    """C types of objects."""
    names: dict[tuple[NodeKind, int], str] = field(default_factory=dict)
    """Of objects that have any; not safe to print."""
    readers: dict[int, int] = field(default_factory=dict)
    """By lock: how many readers hold it."""
    connections: dict[int, int] = field(default_factory=dict)
    """By FUSE request: the number of its connection, as /sys/fs/fuse/connections names it."""
    missing: list[str] = field(default_factory=list)
    """What could not be looked at for lack of debug info."""
    unseen_ends: int = 0
    """Open files of pipes that are in no descriptor table: in flight, the kernel's, or lost."""
    lost_requests: int = 0
    """Requests of block devices and bios that are torn, or that contradict their tags."""
    unreadable_code: int = 0
    """Functions whose machine code is not in the dump."""
    unread_futexes: int = 0
    """Futexes whose owner the memory of their program may name, which is not in the dump."""
    torn: int = 0
    """Lists that could not be followed to their end, besides those of waiters."""
    faults: Faults = field(default_factory=Faults)

    def row(self, node: int) -> int:
        """Return the row of a node's task in the waits, or -1."""
        return self._rows.get(int(self.graph.address[node]), -1)

    def __post_init__(self) -> None:
        self._rows = {task: row for row, task in enumerate(self.waits.task.tolist())}


@once
def waiting(kernel: Kernel) -> Waiting:
    """Return who waits for whom.

    :raises LookupError: the debug info lacks tasks
    :raises drgn.FaultError: the head of the list of tasks is not in the dump
    """
    return _Reader(kernel).read()


class _Reader:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.known, self.waits = kernel, tasks(kernel), sleeps(kernel)
        self.rows = self.known.rows(self.waits.task)
        self.build, self.faults = Builder(), Faults()
        self.object = self.waits.object.copy()
        self.type = list(self.waits.type)
        self.evidence = list(self.waits.evidence)
        self.types: dict[tuple[NodeKind, int], str] = {}
        self.names: dict[tuple[NodeKind, int], str] = {}
        self.missing = list(self.waits.missing)
        self.missing += unread_code(kernel.prog.platform)
        self.timed = np.empty(0, np.uint64)
        """Tasks that a timer wakes up."""
        self.blocked = self.known.is_blocked[self.rows]
        self.finders: list[Finder] = []
        self.locks = self._finder(Locks)

    def read(self) -> Waiting:
        locks, special, logs = self.locks, self._finder(Special), self._finder(Logs)
        futexes, pipe_ends = self._finder(Futexes), self._finder(PipeEnds)
        completers, block_io = self._finder(Completers), self._finder(BlockIO)
        for what, work in (
            ("pages", self._finder(Pages).find),
            ("core dumps", special.core_dumps),
            ("children of vfork", special.children),
            ("work items", special.works),
            ("frozen file systems", lambda: locks.frozen.update(special.frozen())),
            ("FUSE requests", special.fuse_requests),
            ("areas of memory maps", special.areas),
            ("journals", special.journals),
            ("transactions of journals", logs.journals),
            ("logs of XFS", logs.logs),
            ("grace periods of RCU", self._finder(GracePeriods).find),
            ("futexes", futexes.find),
            ("locks", partial(locks.find, self._attempt)),
            ("pipes", pipe_ends.find),
            ("completions", partial(completers.find, locks.sites, self._kind)),
        ):
            self._attempt(what, work)
        self._waits()
        block_io.buffers()
        self._attempt("requests", partial(block_io.requests, self._kind))
        self._attempt("tags", block_io.tags)
        self._attempt("timers", self._timers)
        graph = replace(self.build.graph(), timed=self.timed)
        graph = graph.part(self._of_interest(graph))
        pipes = [node for node, kind in enumerate(graph.kind) if kind is NodeKind.PIPE]
        return Waiting(
            graph=graph,
            waits=self.waits,
            tasks=self.known,
            objects=self.object,
            types=self.types,
            names=self.names,
            readers=locks.readers,
            connections=special.connections,
            missing=self.missing,
            unseen_ends=sum(pipe_ends.unseen.get(int(graph.address[pipe]), 0) for pipe in pipes),
            lost_requests=block_io.lost,
            unreadable_code=locks.sites.unreadable,
            unread_futexes=futexes.unread,
            torn=sum(finder.torn for finder in self.finders),
            faults=self.faults,
        )

    def _timers(self) -> None:
        mask = timed(self.kernel, self.known, self.rows, self.waits, self.faults)
        self.timed = self.waits.task[mask]

    def _finder(self, kind: type[F]) -> F:
        """Return one that looks for what tasks wait for, and notes it here."""
        finder = kind(self.kernel, self.known, self.waits, self.rows, self.build, self.faults)
        finder.object, finder.type, finder.evidence = self.object, self.type, self.evidence
        finder.types, finder.names = self.types, self.names
        self.finders.append(finder)
        return finder

    def _attempt(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (LookupError, UnsupportedAllocator):
            self.missing.append(what)
        except drgn.FaultError as error:
            self.faults.note(error)
            self.missing.append(what)

    def _kind(self, lane: int) -> NodeKind:
        if lane in self.locks.behind_writers:
            return NodeKind.RWSEM_QUEUE
        if self.evidence[lane] in _DRAINING:
            return NodeKind.PERCPU_READERS
        if self.type[lane] == "struct xfs_buf" and self.evidence[lane] != BUFFER_LOCK:
            return NodeKind.BUFFER_IO
        if self.type[lane] == "struct xlog" and self.evidence[lane].endswith("_head"):
            return NodeKind.LOG_SPACE
        kind = KINDS.get(self.type[lane])
        if kind in (None, NodeKind.QUEUE, NodeKind.COMPLETION, NodeKind.BIT):
            kind = _BY_WAIT.get(self.waits.kind[lane], kind)
        return kind or NodeKind.OTHER

    def _waits(self) -> None:
        lanes = np.flatnonzero(self.object != 0)
        kinds = [self._kind(lane) for lane in lanes.tolist()]
        for lane, kind in zip(lanes.tolist(), kinds, strict=True):
            self.types.setdefault((kind, int(self.object[lane])), self.type[lane])
        self.build.edges(
            EdgeKind.WAITS,
            (NodeKind.TASK, self.waits.task[lanes]),
            (kinds, self.object[lanes]),
            strength=Strength.PROVEN,
            evidence=[self.evidence[lane] for lane in lanes.tolist()],
            mode=[self.locks.mode(lane).value for lane in lanes.tolist()],
            frame=[self.waits.function[lane] for lane in lanes.tolist()],
        )
        # Tasks of which it is not known, too: who waits for them waits for that.
        self.build.nodes(NodeKind.TASK, self.waits.task[self.blocked])

    def _of_interest(self, graph: Graph) -> npt.NDArray[np.bool_]:
        """Return which nodes tasks in state D, behind locks or in a core dump belong to.

        Thousands of tasks sleep for the next event, which is what they are for.
        """
        dumps = [
            bool(
                {"do_coredump", "vfs_coredump"} & set(map(plain, self.waits.stacks.functions(lane)))
            )
            for lane in range(len(self.waits))
        ]
        wanted = self.blocked | np.array(dumps, np.bool_)
        blocked = set(self.waits.task[wanted].tolist())
        locks = {kind for type_, kind in KINDS.items() if type_ in LOCK_TYPES} | {
            NodeKind.WORK,
            NodeKind.PERCPU_READERS,
        }
        held = np.zeros(len(graph), np.bool_)
        sources = np.flatnonzero(np.array([kind in locks for kind in graph.kind], np.bool_))
        held[sources] = True
        # Most futexes are not locks, or of no known kind.
        futexes = [
            node
            for node, kind in enumerate(graph.kind)
            if kind is NodeKind.FUTEX and graph.following[node]
        ]
        held[futexes] = True
        held |= np.array(
            [
                kind is NodeKind.TASK and address in blocked
                for kind, address in zip(graph.kind, graph.address.tolist(), strict=True)
            ],
            np.bool_,
        )
        down = graph.reached(np.flatnonzero(held).tolist())
        return down | graph.reached(np.flatnonzero(down).tolist(), back=True)


def unread_code(platform: drgn.Platform | None) -> list[str]:
    """Return what to say of machine code that :class:`CallSites` does not read."""
    if platform is None or platform.arch is drgn.Architecture.X86_64:
        return []
    return [f"machine code of {platform.arch.name.lower()}, which shows who holds locks"]
