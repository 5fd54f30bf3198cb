# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of waiters with sleeping tasks on them, found from their stacks.

A task that waits on a queue, a completion or a lock has a small structure on its stack that is
linked into the list of all waiters. The ring of links leads to the head of the list, a member of
the awaited object. A word that only looks like such a structure is not in a ring.

Waiters outside of stacks, such as those of epoll, look like a head from one side; both ways lead to
the true head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

import drgn
import numpy as np

from kcensus.arch import POINTERS
from kcensus.engine.chase import Damage, Lanes, chase
from kcensus.engine.gather import gather, gather_arrays, gather_words, plausible
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Guess, Mask, Memory, Numbers, Words
from kcensus.engine.rows import rows_of
from kcensus.engine.tags import untagged
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.waiters import entry_link, entry_type
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.sources.capsule.uses import Use

_MAX_WAITERS = 1 << 16
"""Most waiters to pass on the way to a head, besides the given tasks."""
_MAX_BYTES = 1 << 23
"""Most bytes of stacks to read at a time."""


class Shape(Enum):
    """Shapes of waiters on the stacks of tasks."""

    QUEUE = "wait queue"
    """``struct wait_queue_entry``."""
    SIMPLE = "simple wait queue"
    """``struct swait_queue``: waiters for a completion, since Linux kernel commit a5c6234e1028
    ("completion: Use simple wait queues") (in v5.7)."""
    LOCK = "lock"
    """``struct mutex_waiter``, ``rwsem_waiter`` or ``semaphore_waiter``, which are alike, or the
    struct that the caller names."""


@dataclass(frozen=True)
class Queued:
    """Links of tasks in lists of waiters, as columns; a task may be on several."""

    lane: Lanes
    """Index of the task in the given rows, ascending."""
    node: Words
    """Address of the ``list_head`` in the structure on the stack."""
    head: Words
    """Address of the list's head; 0 if unknown, since others than tasks wait there, too, or since
    waiters form a ring without a head: locks, since v7.1."""
    shape: list[Shape]
    torn: int = 0
    """Links whose ring could not be followed to its head."""
    faults: Faults = field(default_factory=Faults)


def queued(
    kernel: Kernel, known: Tasks, rows: Numbers, waiter: tuple[str, str, str] | None = None
) -> Queued:
    """Return the lists of waiters with tasks on them.

    :param rows: of the tasks; they must not be on a CPU
    :param waiter: a struct of waiters and its members for task and ``list_head``, to look for
        instead of the known shapes
    :raises LookupError: the debug info lacks a type
    """
    return _Search(kernel, known, rows, waiter).run()


class _Search:
    def __init__(
        self, kernel: Kernel, known: Tasks, rows: Numbers, waiter: tuple[str, str, str] | None
    ) -> None:
        self.memory: Memory = kernel.memory
        self.known, self.rows, self.faults = known, rows, Faults()
        self.size = int(kernel.prog["THREAD_SIZE"])
        self.word = word_dtype(kernel.prog)
        self.shapes = [_shape(kernel.prog, Shape.LOCK, *waiter)] if waiter else _shapes(kernel.prog)
        self.distance = np.array([task - link for _, task, link in self.shapes]).view(np.uint64)
        """Bytes from the ``list_head`` to the task in each shape."""
        self.links = layout(kernel.prog, "struct list_head", ["next", "prev"])

    def run(self) -> Queued:
        lane, at = own_mentions(self.memory, self.known, self.rows, self.size, self.faults)
        shape = np.repeat(np.arange(len(self.shapes)), len(lane))
        lane, node = np.tile(lane, len(self.shapes)), np.tile(at, len(self.shapes))
        node = node - self.distance[shape]
        ring = np.flatnonzero(self._is_linked(node) & self._on_stack(node, self.rows[lane]))
        lane, node, shape = lane[ring], node[ring], shape[ring]
        order = np.lexsort((node, lane))
        order = order[~self._is_head(node, shape)[order]]
        lane, node, shape = lane[order], node[order], shape[order]
        head, torn = self._heads(node, shape)
        kinds = [self.shapes[number][0] for number in shape.tolist()]
        return Queued(lane, node, head, kinds, torn, self.faults)

    def _on_stack(self, addresses: Words, rows: Numbers) -> Mask:
        low = self.known.stack[rows]
        return (addresses >= low) & (addresses < low + np.uint64(self.size))

    def _is_linked(self, node: Words) -> Mask:
        """Return which addresses hold a ``list_head`` in a ring with others."""
        here = gather(self.memory, node, self.links, Guess())
        rows = np.flatnonzero(here.readable & (here["next"] != node))
        for way, back in ("next", "prev"), ("prev", "next"):
            beside = gather(self.memory, here[way][rows], self.links, Guess())
            rows = rows[beside.readable & (beside[back] == node[rows])]
        linked = np.zeros(len(node), np.bool_)
        linked[rows] = True
        return linked

    def _is_head(self, node: Words, shape: Numbers) -> Mask:
        """Return which nodes look like waiters for a lock, but are next to waiters on a queue.

        These are heads: ``struct wq_barrier``, on the stack of a task that flushes work, has the
        task right behind its completion.
        """
        is_lock = np.array([each[0] is Shape.LOCK for each in self.shapes], np.bool_)[shape]
        queues = np.sort(node[~is_lock])
        here = gather(self.memory, node, self.links, Faults())
        beside = (rows_of(queues, here[way]) >= 0 for way in ("next", "prev"))
        return is_lock & np.logical_or(*beside)

    def _heads(self, node: Words, shape: Numbers) -> tuple[Words, int]:
        """Return the head of each node's list, and the number of unknown heads."""
        ahead, torn = self._ends(node, shape, "next")
        behind, torn_too = self._ends(node, shape, "prev")
        return np.where(ahead == behind, ahead, np.uint64(0)), max(torn, torn_too)

    def _ends(self, node: Words, shape: Numbers, way: str) -> tuple[Words, int]:
        """Return the first node without a task, one way along each list; 0 for a ring of tasks."""
        following = gather(self.memory, node, self.links, self.faults)[way]
        # Most neighbors in a list are nodes themselves: jump over them, ever further.
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

    def _walk(self, start: Words, shape: Numbers, way: str, before: Words) -> tuple[Words, int]:
        """Return the first nodes from ``start`` on that are not on the stack of their task.

        :param before: the node before each, where a ring ends with 0
        """
        distance, damage = self.distance[shape], Damage()
        head = np.zeros(len(start), np.uint64)

        def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
            owner, _ = gather_words(self.memory, nodes + distance[lanes], self.word, Guess())
            row = self.known.rows(untagged(owner, self.memory.tag))
            waits = (row >= 0) & self._on_stack(nodes, np.maximum(row, 0))
            read = gather(self.memory, nodes, self.links, self.faults)
            head[lanes[~waits]] = nodes[~waits]
            return np.where(waits, read[way], np.uint64(0)), read.readable

        for _ in chase(start, step, limit=_MAX_WAITERS, damage=damage, ends=before):
            pass
        head[damage.lanes()] = 0
        return head, damage.lists


def stack_words(
    memory: Memory, known: Tasks, rows: Numbers, size: int, faults: Faults
) -> Iterator[tuple[Lanes, Words, Words]]:
    """Yield the words on the stacks of tasks, in chunks of stacks of which as many are read.

    :param rows: of the tasks
    :param size: bytes of a stack
    :return: an iterator of (indexes in ``rows``, addresses of the first words, words); the words
        have shape (stacks, words), and are 0 if unreadable, or below the stack pointer
    """
    page = np.uint64(memory.page_size)
    # A page may have several stacks.
    start = np.maximum(known.sp[rows] & ~(page - np.uint64(1)), known.stack[rows])
    top = known.stack[rows] + np.uint64(size)
    sound = (known.sp[rows] >= known.stack[rows]) & (known.sp[rows] < top)
    used = np.where(sound, (top - start) // np.uint64(8), 0).astype(np.int64)
    for words in np.unique(used[used > 0]).tolist():
        lanes = np.flatnonzero(used == words)
        chunk = max(_MAX_BYTES // (words * 8), 1)
        for cut in range(0, len(lanes), chunk):
            some = lanes[cut : cut + chunk]
            word = word_dtype(memory.prog)
            values, _ = gather_arrays(memory, start[some], words, word, faults, None)
            unused = (known.sp[rows[some]] - start[some]) // np.uint64(8)
            values[np.arange(words, dtype=np.uint64) < unused[:, None]] = 0
            values = untagged(values, memory.tag)
            # Any register is saved on a stack; of the words, only pointers are of use.
            row, column = np.nonzero(values >= np.uint64(POINTERS))
            place = start[some][row] + np.uint64(8) * column.astype(np.uint64)
            memory.note(place, 8, Use.UNKNOWN)
            yield some, start[some], values


def picked_words(
    memory: Memory,
    known: Tasks,
    rows: Numbers,
    size: int,
    faults: Faults,
    pick: Callable[[Words, Lanes], Mask] | None = None,
) -> Iterator[tuple[Lanes, Words, Words]]:
    """Yield index in ``rows``, word and address of some words on stacks, in chunks.

    :param pick: returns a mask of the words and indexes of a chunk of :func:`stack_words`; by
        default, of the words that can be addresses in the kernel
    """
    for some, start, words in stack_words(memory, known, rows, size, faults):
        picked = pick(words, some) if pick is not None else plausible(memory, words, 8)
        row, column = np.nonzero(picked)
        yield some[row], words[row, column], start[row] + np.uint64(8) * column.astype(np.uint64)


def own_mentions(
    memory: Memory, known: Tasks, rows: Numbers, size: int, faults: Faults
) -> tuple[Lanes, Words]:
    """Return index in ``rows`` and place of each task's address on its own stack."""
    task = known.address[rows][:, None]
    found = [(np.empty(0, np.int64), task[:0, 0], task[:0, 0])]
    found += picked_words(
        memory, known, rows, size, faults, lambda words, some: words == task[some]
    )
    lane, _, place = (np.concatenate(part) for part in zip(*found, strict=True))
    return lane, place


def _shapes(prog: drgn.Program) -> list[tuple[Shape, int, int]]:
    """Return each shape with the offsets of its task and of its ``list_head``."""
    entry = layout(prog, entry_type(prog), ["private"])
    shapes = [(Shape.QUEUE, entry.fields["private"].offset, entry_link(prog))]
    for shape, name, link in (
        (Shape.SIMPLE, "struct swait_queue", "task_list"),
        (Shape.LOCK, "struct mutex_waiter", "list"),
        (Shape.LOCK, "struct rwsem_waiter", "list"),
        (Shape.LOCK, "struct semaphore_waiter", "list"),
    ):
        with suppress(LookupError):
            shapes.append(_shape(prog, shape, name, "task", link))
    return [*dict.fromkeys(shapes)]


def _shape(
    prog: drgn.Program, shape: Shape, name: str, task: str, link: str
) -> tuple[Shape, int, int]:
    type_ = prog.type(name)
    return shape, drgn.offsetof(type_, task), drgn.offsetof(type_, link)
