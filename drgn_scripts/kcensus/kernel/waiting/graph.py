# SPDX-License-Identifier: LGPL-2.1-or-later
"""A graph of waits between tasks, as columns.

An edge leads from a task to the object of its wait, and from that to each task that holds it. A
lock with several holders is free when all of them have released it; a pipe is readable when any
task with the other end open writes: such a node is *any*. This module has the kinds shared by
several finders; each finder declares its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind


@dataclass(frozen=True, eq=False)
class NodeKind:
    """The kind of a node. Each finder declares the kinds of its own objects, once."""

    value: str
    """The name in tables and sentences."""
    types: tuple[str, ...] = ()
    """C types of the objects."""
    waits: tuple[WaitKind, ...] = ()
    """Waits for a queue, completion or bit of unknown type that mean this kind."""
    is_any: bool = False
    """Whether the progress of one of the nodes behind it is enough."""
    is_lock: bool = False
    """Whether a task holds the object, known or not."""
    is_io: bool = False
    """Whether a device ends the wait, which takes long if the device is faulty."""
    is_device: bool = False
    """Whether it is a block device, for sentences about I/O."""
    tells_device: bool = False
    """Whether its name has that of its device."""
    is_passed_on: bool = False
    """Whether a thread of the kernel only passes the I/O on, and is not what is late."""
    is_event: bool = False
    """Whether the object, without a known holder, is an event for idle threads."""
    is_in_log: bool = False
    """Whether the hung task detector names the holder in the kernel log."""
    queue_of: NodeKind | None = None
    """Kind of the lock at the same address, if this is the queue for it."""
    shows_sleepers: bool = False
    """Whether its waiters belong to the graph in state S, too."""
    shows_stopped: bool = False
    """Whether its waiters in state S do, if a task that it waits for is stopped or frozen."""
    ignores_signals: bool = False
    """Whether no signal wakes up its waiters, so that its finder has the remedies."""
    advice: str = ""
    """Next step if no task that holds the object can be ended."""


@dataclass(frozen=True, eq=False)
class EdgeKind:
    """The meaning of an edge."""

    value: str
    """The name in tables: the relation of the source to the target."""
    verb: str = "holds"
    """Verb of the target for the source."""
    is_idle: bool = False
    """Whether the edge counts only if its source has no other edge."""
    is_context: bool = False
    """Whether sentences about the edge also need the edges to its source."""
    is_wait: bool = True
    """Whether the source waits for the target; else the edge says where the source is."""
    is_passage: bool = False
    """Whether the target only does the work of its source: if it waits for a device, that is late,
    not the target."""
    advice: str = ""
    """Next step where the target cannot be ended."""


TASK = NodeKind("task")
PROCESS = NodeKind("process", is_any=True)
"""Threads that share open files."""
COMPLETION = NodeKind("completion", ("struct completion",), is_any=True)
BIT = NodeKind("bit", ("unsigned long",), is_any=True, is_lock=True)
QUEUE = NodeKind("wait queue", ("struct wait_queue_head", "struct __wait_queue_head"))
OTHER = NodeKind("other")
GENERIC = (COMPLETION, BIT, QUEUE)
"""Kinds of objects that serve any purpose."""

WAITS = EdgeKind("waits for")
HELD = EdgeKind("held by")
THREAD = EdgeKind("thread")
COMPLETED_BY = EdgeKind("completed by", "must complete")
QUEUED = EdgeKind("behind", "is ahead in the")
RUN_BY = EdgeKind("run by", "runs")
SERVED = EdgeKind("served by", "must serve")


@dataclass(frozen=True)
class Graph:
    """Nodes and edges as columns."""

    kind: list[NodeKind]
    address: Words
    source: Numbers
    """Start node of each edge."""
    target: Numbers
    edge: list[EdgeKind]
    mode: list[str]
    """``read`` or ``write``, for locks with both modes."""
    strength: Numbers
    """:class:`Strength`."""
    evidence: list[str]
    """Member or function that proves the edge."""
    place: Words
    """Address of the member; 0 for none."""
    frame: list[str]
    """Function on the stack of the task that proves the edge, if any."""
    timed: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    """Addresses of tasks that a timer wakes up, whatever happens to their object."""

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def is_task(self) -> Mask:
        """Mask of the nodes that are tasks."""
        return np.array([kind is TASK for kind in self.kind], np.bool_)

    @cached_property
    def is_timed(self) -> Mask:
        """Mask of the tasks that a timer wakes up."""
        return self.is_task & np.isin(self.address, self.timed)

    @cached_property
    def is_any(self) -> Mask:
        """Mask of the nodes that need only one of the nodes behind them."""
        return np.array([kind.is_any for kind in self.kind], np.bool_)

    @cached_property
    def following(self) -> list[list[int]]:
        """Edges from each node."""
        return _lists(self.source, len(self))

    @cached_property
    def preceding(self) -> list[list[int]]:
        """Edges to each node."""
        return _lists(self.target, len(self))

    @cached_property
    def index(self) -> dict[tuple[NodeKind, int], int]:
        """Node by kind and address."""
        pairs = zip(self.kind, self.address.tolist(), strict=True)
        return {pair: node for node, pair in enumerate(pairs)}

    def reached(
        self, nodes: Iterable[int], *, back: bool = False, but: Container[int] = ()
    ) -> Mask:
        """Return a mask of nodes, and of all nodes reachable from them.

        :param back: follow edges against their direction
        :param but: nodes to leave out, with what is only behind them
        """
        edges, ends = (self.preceding, self._sources) if back else (self.following, self._targets)
        seen = np.zeros(len(self), np.bool_)
        stack = [node for node in nodes if node not in but]
        seen[stack] = True
        while stack:
            for edge in edges[stack.pop()]:
                end = ends[edge]
                if not seen[end] and end not in but:
                    seen[end] = True
                    stack.append(end)
        return seen

    def waiters(self, node: int, is_passed: Callable[[int], bool]) -> dict[int, tuple[int, int]]:
        """Return the nearest nodes that surely wait for a node, and how they do.

        :param is_passed: which nodes only lead on to others
        :return: the edge from each node, and the weakest strength on its way
        """
        found: dict[int, tuple[int, int]] = {}
        todo = deque((edge, int(Strength.PROVEN)) for edge in self.preceding[node])
        passed = {node}
        while todo:
            edge, strength = todo.popleft()
            source, strength = self._sources[edge], min(strength, int(self.strength[edge]))
            if not self.is_sure[edge] or source in passed:
                continue
            if is_passed(source):
                passed.add(source)
                todo += [(before, strength) for before in self.preceding[source]]
            else:
                found.setdefault(source, (edge, strength))
        return found

    @cached_property
    def _sources(self) -> list[int]:
        return list(map(int, self.source))

    @cached_property
    def _targets(self) -> list[int]:
        return list(map(int, self.target))

    @cached_property
    def is_sure(self) -> Mask:
        """Mask of the edges that are derived or proven waits."""
        is_wait = np.array([edge.is_wait for edge in self.edge], np.bool_)
        return (self.strength > int(Strength.POSSIBLE)) & is_wait

    @cached_property
    def sure(self) -> Graph:
        """The same nodes with the derived and proven waits only."""
        return self._of(np.flatnonzero(self.is_sure))

    def _of(self, edges: Numbers) -> Graph:
        rows = edges.tolist()
        return replace(
            self,
            source=self.source[edges],
            target=self.target[edges],
            edge=[self.edge[row] for row in rows],
            mode=[self.mode[row] for row in rows],
            strength=self.strength[edges],
            evidence=[self.evidence[row] for row in rows],
            place=self.place[edges],
            frame=[self.frame[row] for row in rows],
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
    """Return the rows of each node."""
    order = np.argsort(nodes, kind="stable")
    starts = np.searchsorted(nodes[order], np.arange(count + 1))
    rows = order.tolist()
    return [rows[start:end] for start, end in pairwise(starts.tolist())]


@dataclass
class Builder:
    """A graph in the making, which takes many edges at a time."""

    _sources: list[tuple[Numbers, Words]] = field(default_factory=list)
    _targets: list[tuple[Numbers, Words]] = field(default_factory=list)
    _alone: list[tuple[Numbers, Words]] = field(default_factory=list)
    _edge: list[EdgeKind] = field(default_factory=list)
    _mode: list[str] = field(default_factory=list)
    _evidence: list[str] = field(default_factory=list)
    _frame: list[str] = field(default_factory=list)
    _strength: list[Numbers] = field(default_factory=list)
    _place: list[Words] = field(default_factory=list)
    _kinds: dict[NodeKind, int] = field(default_factory=dict)

    def nodes(self, kind: NodeKind, address: Words) -> None:
        """Add nodes that may have no edges."""
        self._alone.append((self._codes(kind, len(address)), address))

    def edges(
        self,
        edge: EdgeKind,
        source: tuple[NodeKind | Sequence[NodeKind], Words],
        target: tuple[NodeKind | Sequence[NodeKind], Words],
        evidence: str | Sequence[str],
        *,
        strength: Strength | Numbers = Strength.PROVEN,
        mode: str | Sequence[str] = "",
        place: Words | None = None,
        frame: str | Sequence[str] = "",
    ) -> None:
        """Add edges.

        :param source: kind of all nodes or of each, and their addresses
        """
        count = len(source[1])
        self._sources.append((self._codes(source[0], count), source[1].astype(np.uint64)))
        self._targets.append((self._codes(target[0], count), target[1].astype(np.uint64)))
        self._edge += [edge] * count
        self._mode += [mode] * count if isinstance(mode, str) else list(mode)
        self._evidence += [evidence] * count if isinstance(evidence, str) else list(evidence)
        self._frame += [frame] * count if isinstance(frame, str) else list(frame)
        is_one = isinstance(strength, Strength)
        self._strength.append(np.full(count, int(strength)) if is_one else np.asarray(strength))
        self._place.append(np.zeros(count, np.uint64) if place is None else place)

    def _codes(self, kind: NodeKind | Sequence[NodeKind], count: int) -> Numbers:
        kinds = [kind] if isinstance(kind, NodeKind) else kind
        codes = [self._kinds.setdefault(each, len(self._kinds)) for each in kinds]
        return np.resize(np.array(codes, np.int64), count)

    def graph(self) -> Graph:
        """Return the graph, with the strongest of equal edges.

        Nodes are in the order of kind and address, tasks first; edges to tasks come before others.
        """
        empty = np.empty(0, np.int64), np.empty(0, np.uint64)
        parts = [empty, *self._sources, *self._targets, *self._alone]
        known = sorted(self._kinds, key=lambda kind: (kind is not TASK, kind.value))
        rank = np.argsort([self._kinds[kind] for kind in known])
        pairs = np.empty(
            sum(len(part[0]) for part in parts), [("code", np.int64), ("address", np.uint64)]
        )
        pairs["code"] = rank[np.concatenate([part[0] for part in parts])]
        pairs["address"] = np.concatenate([part[1] for part in parts])
        unique, node = np.unique(pairs, return_inverse=True)
        count = len(self._edge)
        source, target = node[:count].astype(np.int64), node[count : 2 * count].astype(np.int64)
        strength = np.concatenate([empty[0], *self._strength])
        names = sorted({edge.value for edge in self._edge})
        kinds = np.array([names.index(edge.value) for edge in self._edge], np.int64)
        # Stable: the first of equally strong edges stays.
        order = np.argsort(-strength, kind="stable")
        key = (source * len(unique) + target) * len(names) + kinds
        _, first = np.unique(key[order], return_index=True)
        kept = np.sort(order[first])
        is_task = np.array([kind is TASK for kind in known], np.bool_)[unique["code"]]
        kept = kept[np.argsort(~is_task[target[kept]], kind="stable")]
        rows = kept.tolist()
        return Graph(
            kind=[known[code] for code in unique["code"].tolist()],
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
