# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which lists of waiters sleeping tasks are on, found from their stacks.

A task that waits on a queue, a completion or a lock has a small structure on its stack that is
linked into the list of all waiters. The ring of links leads to the head of the list, and the head
is a member of what is waited on. A word that only looks like such a structure is not in a ring.
Waiters that are not on the stack of a task, such as those of epoll, look like a head from one side;
a head is what both ways along the ring lead to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Damage, Lanes, chase
from kcensus.engine.gather import gather, gather_arrays, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.rows import rows_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.waiters import entry_link, entry_type
from kcensus.kernel.tasks.tasks import Tasks

_MAX_WAITERS = 1 << 16
"""Waiters to pass on the way to a head, besides the tasks that were asked for."""
_MAX_BYTES = 1 << 23
"""Of stacks to look at together."""


class Shape(Enum):
    """What a task has on its stack."""

    QUEUE = "wait queue"
    """``struct wait_queue_entry``."""
    SIMPLE = "simple wait queue"
    """``struct swait_queue``: since Linux kernel commit a5c6234e1028 ("completion: Use simple wait
    queues") (in v5.7), waiters for a completion have it."""
    LOCK = "lock"
    """``struct mutex_waiter``, ``rwsem_waiter`` or ``semaphore_waiter``, which are alike."""


@dataclass(frozen=True)
class Queued:
    """Links of tasks in lists of waiters, as columns; a task may be on several."""

    lane: Lanes
    """Index of the task in what was asked for, ascending."""
    node: Words
    """Address of the ``list_head`` in the structure on the stack."""
    head: Words
    """Address of the ``list_head`` that the list belongs to; 0 where it is unknown, as others than
    tasks wait there, too, and where waiters form a ring without a head: locks, since v7.1."""
    shape: list[Shape]
    torn: int = 0
    """Links whose ring could not be followed to its head."""
    faults: Faults = field(default_factory=Faults)


def queued(kernel: Kernel, known: Tasks, rows: npt.NDArray[np.int64]) -> Queued:
    """Return the lists of waiters that tasks are on.

    :param rows: of the tasks; they must not be on a CPU
    :raises LookupError: the debug info lacks a type
    """
    return _Search(kernel, known, rows).run()


class _Search:
    def __init__(self, kernel: Kernel, known: Tasks, rows: npt.NDArray[np.int64]) -> None:
        self.memory: Memory = kernel.memory
        self.known, self.rows, self.faults = known, rows, Faults()
        self.size = int(kernel.prog["THREAD_SIZE"])
        self.word = word_dtype(kernel.prog)
        self.shapes = _shapes(kernel.prog)
        self.links = layout(kernel.prog, "struct list_head", ["next", "prev"])

    def run(self) -> Queued:
        lane, at = self._mentions()
        lanes, nodes, shapes = [], [], []
        for number, (_, task, link) in enumerate(self.shapes):
            node = at + np.uint64((link - task) % (1 << 64))
            ring = np.flatnonzero(self._is_linked(node) & self._on_stack(node, self.rows[lane]))
            lanes.append(lane[ring])
            nodes.append(node[ring])
            shapes.append(np.full(len(ring), number))
        lane, node = np.concatenate(lanes), np.concatenate(nodes)
        shape = np.concatenate(shapes)
        order = np.lexsort((node, lane))
        order = order[~self._is_head(node, shape)[order]]
        lane, node, shape = lane[order], node[order], shape[order]
        head, torn = self._heads(node, shape)
        kinds = [self.shapes[number][0] for number in shape.tolist()]
        return Queued(lane, node, head, kinds, torn, self.faults)

    def _mentions(self) -> tuple[Lanes, Words]:
        """Return where the address of each task is on its own stack."""
        lanes, places = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for lane, start, words in self._stacks():
            row, column = np.nonzero(words == self.known.address[self.rows[lane]][:, None])
            lanes.append(lane[row])
            places.append(start[row] + np.uint64(8) * column.astype(np.uint64))
        return np.concatenate(lanes), np.concatenate(places)

    def _stacks(self) -> Iterator[tuple[Lanes, Words, Words]]:
        """Yield the stacks that are in use, as (lanes, addresses, words)."""
        yield from stack_words(self.memory, self.known, self.rows, self.size, self.faults)

    def _on_stack(self, addresses: Words, rows: npt.NDArray[np.int64]) -> Mask:
        low = self.known.stack[rows]
        inside: Mask = (addresses >= low) & (addresses < low + np.uint64(self.size))
        return inside

    def _is_linked(self, node: Words) -> Mask:
        """Return which addresses hold a ``list_head`` that is in a ring with others."""
        here = gather(self.memory, node, self.links, Faults())
        after = gather(self.memory, here["next"], self.links, Faults())
        before = gather(self.memory, here["prev"], self.links, Faults())
        linked: Mask = here.readable & after.readable & before.readable & (here["next"] != node)
        linked &= (after["prev"] == node) & (before["next"] == node)
        return linked

    def _is_head(self, node: Words, shape: npt.NDArray[np.int64]) -> Mask:
        """Return which nodes look like waiters for a lock, but are next to those of a queue.

        They are heads: ``struct wq_barrier``, on the stack of a task that flushes work, has the
        task right behind its completion.
        """
        is_lock = np.array([each[0] is Shape.LOCK for each in self.shapes], np.bool_)[shape]
        queues = np.sort(node[~is_lock])
        here = gather(self.memory, node, self.links, Faults())
        beside = (rows_of(queues, here[way]) >= 0 for way in ("next", "prev"))
        return np.asarray(is_lock & np.logical_or(*beside))

    def _heads(self, node: Words, shape: npt.NDArray[np.int64]) -> tuple[Words, int]:
        """Return the head of each node's list, and how many could not be found."""
        (ahead, torn), (behind, torn_too) = (
            self._ends(node, shape, way) for way in ("next", "prev")
        )
        return np.where(ahead == behind, ahead, np.uint64(0)), max(torn, torn_too)

    def _ends(self, node: Words, shape: npt.NDArray[np.int64], way: str) -> tuple[Words, int]:
        """Return what is no task's, one way along each node's list; 0 for a ring of tasks."""
        following = gather(self.memory, node, self.links, self.faults)[way]
        # Most neighbours in a list are nodes themselves: jump over them, ever further.
        order = np.argsort(node)
        after = rows_of(node, following, order)
        last = np.where(after < 0, np.arange(len(node)), after)
        for _ in range(len(node).bit_length()):
            last = last[last]
        is_ring = after[last] >= 0
        ends = np.flatnonzero(after < 0)
        found, torn = self._walk(following[ends], shape[ends], way, node[ends])
        end = np.zeros(len(node), np.uint64)
        end[ends] = found
        return np.where(is_ring, np.uint64(0), end[last]), torn

    def _walk(
        self, start: Words, shape: npt.NDArray[np.int64], way: str, before: Words
    ) -> tuple[Words, int]:
        """Return the first nodes from ``start`` on that are not on the stack of their task.

        :param before: the node before each: 0 for a ring that leads back to it
        """
        task = np.array([each[1] for each in self.shapes], np.int64)
        link = np.array([each[2] for each in self.shapes], np.int64)
        distance = (task - link)[shape].view(np.uint64)
        damage = Damage()
        head = np.zeros(len(start), np.uint64)

        def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
            owner, _ = gather_words(self.memory, nodes + distance[lanes], self.word, Faults())
            row = self.known.rows(owner)
            waits = (row >= 0) & self._on_stack(nodes, np.maximum(row, 0))
            read = gather(self.memory, nodes, self.links, self.faults)
            head[lanes[~waits]] = nodes[~waits]
            return np.where(waits, read[way], np.uint64(0)), read.readable

        for _ in chase(start, step, limit=_MAX_WAITERS, damage=damage, ends=before):
            pass
        head[damage.lanes()] = 0
        return head, damage.lists


def stack_words(
    memory: Memory, known: Tasks, rows: npt.NDArray[np.int64], size: int, faults: Faults
) -> Iterator[tuple[Lanes, Words, Words]]:
    """Yield what tasks have on their stacks, in chunks of stacks of which equally much is in use.

    :param rows: of the tasks
    :param size: bytes of a stack
    :return: an iterator of (indexes in ``rows``, addresses of the first words, words); the words
        have shape (stacks, words), and are 0 where they could not be read, and below the stack
        pointer
    """
    page = np.uint64(memory.page_size)
    start = known.sp[rows] & ~(page - np.uint64(1))
    top = known.stack[rows] + np.uint64(size)
    sound = (known.sp[rows] >= known.stack[rows]) & (known.sp[rows] < top)
    pages = np.where(sound, ((top - start) // page).astype(np.int64), 0)
    for count in np.unique(pages[pages > 0]).tolist():
        lanes = np.flatnonzero(pages == count)
        words = count * memory.page_size // 8
        chunk = max(_MAX_BYTES // (count * memory.page_size), 1)
        for cut in range(0, len(lanes), chunk):
            some = lanes[cut : cut + chunk]
            values, _ = gather_arrays(memory, start[some], words, word_dtype(memory.prog), faults)
            unused = (known.sp[rows[some]] - start[some]) // np.uint64(8)
            values[np.arange(words, dtype=np.uint64) < unused[:, None]] = 0
            yield some, start[some], values


def _shapes(prog: drgn.Program) -> list[tuple[Shape, int, int]]:
    """Return each shape with where the task and where the ``list_head`` is in it."""
    entry = layout(prog, entry_type(prog), ["private"])
    shapes = [(Shape.QUEUE, entry.fields["private"].offset, entry_link(prog))]
    for shape, name, link in (
        (Shape.SIMPLE, "struct swait_queue", "task_list"),
        (Shape.LOCK, "struct mutex_waiter", "list"),
        (Shape.LOCK, "struct rwsem_waiter", "list"),
        (Shape.LOCK, "struct semaphore_waiter", "list"),
    ):
        try:
            type_ = prog.type(name)
            places = shape, drgn.offsetof(type_, "task"), drgn.offsetof(type_, link)
        except LookupError:
            continue
        if places not in shapes:
            shapes.append(places)
    return shapes
