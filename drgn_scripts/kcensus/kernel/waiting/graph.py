# SPDX-License-Identifier: LGPL-2.1-or-later
"""A graph of who waits for whom, as columns.

An edge leads from a task to what it waits for, and from that to each task that holds it. A lock
that several tasks hold is free when all of them have let it go; a pipe is readable when any of
those who have its other end open writes: such a node is *any*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Mask, Words
from kcensus.kernel.locking.owners import Strength

Numbers = npt.NDArray[np.int64]


class NodeKind(Enum):
    """What a node is."""

    TASK = "task"
    MUTEX = "mutex"
    RWSEM = "rwsem"
    RWSEM_QUEUE = "queue of rwsem"
    """Where readers wait although readers have it: behind writers that wait."""
    PERCPU_RWSEM = "percpu_rwsem"
    PERCPU_READERS = "readers of percpu_rwsem"
    """What a writer waits for that already keeps new readers out."""
    RT_MUTEX = "rt_mutex"
    SEMAPHORE = "semaphore"
    COMPLETION = "completion"
    PAGE = "page"
    PIPE = "pipe"
    PROCESS = "process"
    """Threads that share open files."""
    WORK = "work"
    """A work item that runs."""
    WORKQUEUE = "workqueue"
    """Whose work items a task flushes."""
    FREEZER = "frozen file system"
    AREA = "area of memory map"
    BUFFER = "buffer"
    """Its lock."""
    BUFFER_IO = "I/O of buffer"
    """What the holder of its lock waits for: that, or that the log no longer pins it."""
    LOG = "log"
    LOG_SPACE = "log space"
    """Room for one more transaction."""
    TRANSACTION = "transaction"
    """Of a journal: what the handles are of that have to be closed."""
    IO = "I/O"
    """That the task itself submitted."""
    TAGS = "tags"
    """A free request of a queue."""
    REQUEST = "request"
    DISK = "disk"
    FUSE = "fuse request"
    COREDUMP = "coredump"
    BIT = "bit"
    GRACE_PERIOD = "RCU grace period"
    CPU = "CPU"
    FUTEX = "futex"
    QUEUE = "wait queue"
    OTHER = "other"


ANY = frozenset(
    {
        NodeKind.PIPE,
        NodeKind.PROCESS,
        NodeKind.FUSE,
        NodeKind.COMPLETION,
        NodeKind.BIT,
        NodeKind.LOG_SPACE,
    }
)
"""Nodes for which it is enough that one of the nodes behind them makes progress."""
LOCKS = frozenset(
    {
        NodeKind.MUTEX,
        NodeKind.RWSEM,
        NodeKind.PERCPU_RWSEM,
        NodeKind.PERCPU_READERS,
        NodeKind.RT_MUTEX,
        NodeKind.SEMAPHORE,
        NodeKind.BUFFER,
        NodeKind.BIT,
    }
)
"""Nodes that some task holds, whether or not it is known."""
_CODES = {kind: code for code, kind in enumerate(NodeKind)}
_KINDS = tuple(NodeKind)


class EdgeKind(Enum):
    """What an edge says."""

    WAITS = "waits for"
    HELD = "held by"
    OTHER_END = "other end open in"
    IDLE_END = "other end also open in"
    """In a process that does something else, and may have it only because its parent had it."""
    THREAD = "thread"
    RUN_BY = "run by"
    COMPLETED_BY = "completed by"
    REFERENCED = "referenced by"
    FROZEN = "frozen by"
    QUEUED = "behind"
    SERVED = "served by"
    HELD_UP = "held up by"
    RUNS = "runs"
    """A CPU, its task."""


@dataclass(frozen=True)
class Graph:
    """Nodes and edges as columns."""

    kind: list[NodeKind]
    address: Words
    source: Numbers
    """Node that each edge leads from."""
    target: Numbers
    edge: list[EdgeKind]
    mode: list[str]
    """``read`` or ``write``, where the lock tells these apart."""
    strength: Numbers
    """:class:`Strength`."""
    evidence: list[str]
    """Member, or function, that the edge is known by."""
    place: Words
    """Address of that member; 0 for none."""
    frame: list[str]
    """The function on the stack of the task, where one says it."""
    timed: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    """Addresses of tasks that a timer wakes up, whatever happens to what they wait for."""

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def is_task(self) -> Mask:
        """Which nodes are tasks."""
        return np.array([kind is NodeKind.TASK for kind in self.kind], np.bool_)

    @cached_property
    def is_timed(self) -> Mask:
        """Which nodes are tasks that a timer wakes up."""
        return self.is_task & np.isin(self.address, self.timed)

    @cached_property
    def is_any(self) -> Mask:
        """Which nodes need only one of the nodes behind them."""
        return np.array([kind in ANY for kind in self.kind], np.bool_)

    @cached_property
    def following(self) -> list[list[int]]:
        """Per node, the edges that lead from it."""
        return _lists(self.source, len(self))

    @cached_property
    def preceding(self) -> list[list[int]]:
        """Per node, the edges that lead to it."""
        return _lists(self.target, len(self))

    @cached_property
    def index(self) -> dict[tuple[NodeKind, int], int]:
        """The node of each kind and address."""
        pairs = zip(self.kind, self.address.tolist(), strict=True)
        return {pair: node for node, pair in enumerate(pairs)}

    def reached(self, nodes: Iterable[int], *, back: bool = False) -> Mask:
        """Return which nodes edges lead to from some nodes, these included.

        :param back: follow edges against their direction
        """
        edges, ends = (
            (self.preceding, self.source.tolist())
            if back
            else (self.following, self.target.tolist())
        )
        seen = np.zeros(len(self), np.bool_)
        stack = list(nodes)
        seen[stack] = True
        while stack:
            for edge in edges[stack.pop()]:
                end = ends[edge]
                if not seen[end]:
                    seen[end] = True
                    stack.append(end)
        return seen

    @cached_property
    def sure(self) -> Graph:
        """The same nodes with the edges that are more than possible."""
        return self._of(np.flatnonzero(self.strength > int(Strength.POSSIBLE)))

    def _of(self, edges: Numbers) -> Graph:
        """Return the graph with some of its edges, by row."""
        rows = edges.tolist()
        return Graph(
            kind=self.kind,
            address=self.address,
            source=self.source[edges],
            target=self.target[edges],
            edge=[self.edge[row] for row in rows],
            mode=[self.mode[row] for row in rows],
            strength=self.strength[edges],
            evidence=[self.evidence[row] for row in rows],
            place=self.place[edges],
            frame=[self.frame[row] for row in rows],
            timed=self.timed,
        )

    def part(self, kept: Mask) -> Graph:
        """Return the graph of some nodes, and of the edges between them."""
        number = np.cumsum(kept) - 1
        found = self._of(np.flatnonzero(kept[self.source] & kept[self.target]))
        return replace(
            found,
            kind=[kind for kind, stays in zip(self.kind, kept.tolist(), strict=True) if stays],
            address=self.address[kept],
            source=number[found.source],
            target=number[found.target],
        )


def _lists(nodes: Numbers, count: int) -> list[list[int]]:
    """Return per node the rows in which it is."""
    order = np.argsort(nodes, kind="stable")
    starts = np.searchsorted(nodes[order], np.arange(count + 1))
    rows = order.tolist()
    return [
        rows[start:end]
        for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]


@dataclass
class Builder:
    """A graph in the making: edges are added many at a time."""

    _sources: list[tuple[Numbers, Words]] = field(default_factory=list)
    _targets: list[tuple[Numbers, Words]] = field(default_factory=list)
    _alone: list[tuple[Numbers, Words]] = field(default_factory=list)
    _edge: list[EdgeKind] = field(default_factory=list)
    _mode: list[str] = field(default_factory=list)
    _evidence: list[str] = field(default_factory=list)
    _frame: list[str] = field(default_factory=list)
    _strength: list[Numbers] = field(default_factory=list)
    _place: list[Words] = field(default_factory=list)

    def nodes(self, kind: NodeKind, address: Words) -> None:
        """Add nodes that may have no edges."""
        self._alone.append((np.full(len(address), _CODES[kind]), address))

    def edges(
        self,
        edge: EdgeKind,
        source: tuple[NodeKind | Sequence[NodeKind], Words],
        target: tuple[NodeKind | Sequence[NodeKind], Words],
        *,
        strength: Strength | Numbers,
        evidence: str | Sequence[str],
        mode: str | Sequence[str] = "",
        place: Words | None = None,
        frame: str | Sequence[str] = "",
    ) -> None:
        """Add edges.

        :param source: kind of all nodes or of each, and their addresses
        """
        count = len(source[1])
        self._sources.append((_codes(source[0], count), source[1].astype(np.uint64)))
        self._targets.append((_codes(target[0], count), target[1].astype(np.uint64)))
        self._edge += [edge] * count
        self._mode += [mode] * count if isinstance(mode, str) else list(mode)
        self._evidence += [evidence] * count if isinstance(evidence, str) else list(evidence)
        self._frame += [frame] * count if isinstance(frame, str) else list(frame)
        is_one = isinstance(strength, Strength)
        self._strength.append(np.full(count, int(strength)) if is_one else np.asarray(strength))
        self._place.append(np.zeros(count, np.uint64) if place is None else place)

    def graph(self) -> Graph:
        """Return the graph; of equal edges, the strongest stays."""
        empty = np.empty(0, np.int64), np.empty(0, np.uint64)
        parts = [empty, *self._sources, *self._targets, *self._alone]
        code = np.concatenate([part[0] for part in parts])
        address = np.concatenate([part[1] for part in parts])
        pairs = np.empty(len(code), [("code", np.int64), ("address", np.uint64)])
        pairs["code"], pairs["address"] = code, address
        unique, node = np.unique(pairs, return_inverse=True)
        count = len(self._edge)
        source, target = node[:count].astype(np.int64), node[count : 2 * count].astype(np.int64)
        strength = np.concatenate([empty[0], *self._strength])
        kinds = np.array([_EDGE_CODES[edge] for edge in self._edge], np.int64)
        order = np.lexsort((np.arange(count), -strength, kinds, target, source))
        first = np.ones(count, np.bool_)
        for column in (source, target, kinds):
            ordered = column[order]
            first[1:] &= ordered[1:] == ordered[:-1]
        first[1:] = ~first[1:]
        kept = np.sort(order[first]) if count else order
        rows = kept.tolist()
        return Graph(
            kind=[_KINDS[each] for each in unique["code"].tolist()],
            address=unique["address"].copy(),
            source=source[kept],
            target=target[kept],
            edge=[self._edge[row] for row in rows],
            mode=[self._mode[row] for row in rows],
            strength=strength[kept],
            evidence=[self._evidence[row] for row in rows],
            place=np.concatenate([empty[1], *self._place])[kept],
            frame=[self._frame[row] for row in rows],
        )


_EDGE_CODES = {edge: code for code, edge in enumerate(EdgeKind)}


def _codes(kind: NodeKind | Sequence[NodeKind], count: int) -> Numbers:
    if isinstance(kind, NodeKind):
        return np.full(count, _CODES[kind])
    return np.array([_CODES[each] for each in kind], np.int64)
