# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which lock a task waits for whose waiters form a ring without a head: since v7.1.

The lock points to its first waiter, and no waiter to the lock. So locks are looked for where a task
that waits has their address: on its stack; and in its address space, whose lock it may wait for.
"""

from __future__ import annotations

from collections.abc import Iterator

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.queued import Queued, Shape, stack_words
from kcensus.kernel.tasks.tasks import Tasks

Numbers = npt.NDArray[np.int64]

_MAX_WAITERS = 1 << 16
"""Of a ring."""
_KERNEL = 1 << 63
"""From here on are the kernel's addresses."""
_WAITERS = {
    "struct mutex": "struct mutex_waiter",
    "struct rw_semaphore": "struct rwsem_waiter",
    "struct semaphore": "struct semaphore_waiter",
}


def locks_of_rings(
    kernel: Kernel, known: Tasks, rows: Numbers, links: Queued, lock: dict[int, str], size: int
) -> dict[int, int]:
    """Return the locks that tasks wait for, by their index in ``rows``.

    :param rows: of the tasks
    :param links: the lists of waiters that they are on
    :param lock: by index of a task, the C type of the lock that it waits for
    :param size: bytes of a stack
    :raises LookupError: the debug info lacks a type
    """
    nodes: dict[int, list[int]] = {lane: [] for lane in lock}
    for lane, node, shape in zip(
        links.lane.tolist(), links.node.tolist(), links.shape, strict=True
    ):
        if lane in nodes and shape is Shape.LOCK:
            nodes[lane].append(node)
    found: dict[int, int] = {}
    for name in sorted(set(lock.values())):
        # Since Linux kernel commits 25500ba7e77c, b9bdd4b68404 and 1ea4b473504b (in v7.1).
        if kernel.prog.type(name).has_member("first_waiter"):
            lanes = [lane for lane in nodes if lock[lane] == name]
            search = _Search(kernel, known, rows[lanes], name, size)
            locks = search.locks(_Rings(kernel, [nodes[lane] for lane in lanes]))
            found |= {lanes[task]: address for task, address in locks.items()}
    return found


class _Rings:
    """The rings that some tasks are in, each walked once.

    :param nodes: by task, the nodes on its stack
    """

    def __init__(self, kernel: Kernel, nodes: list[list[int]]) -> None:
        self._memory = kernel.memory
        self._after: dict[int, int] = {}
        self._number: dict[int, int] = {}
        self._torn: dict[int, Words] = {}
        """By task, the nodes that its own lead to, where that is no way back."""
        pairs = []
        for task, own in enumerate(nodes):
            for node in own:
                if node not in self._number:
                    way, is_ring = self._walk(node)
                    if not is_ring:
                        known = self._torn.get(task, np.empty(0, np.uint64))
                        self._torn[task] = np.union1d(known, np.array(way, np.uint64))
                        continue
                    self._number |= dict.fromkeys(way, node)
                pairs.append((task, self._number[node]))
        number = {node: index for index, node in enumerate(sorted({ring for _, ring in pairs}))}
        self._count = len(number)
        self._nodes = np.array(sorted(self._number), np.uint64)
        numbers = [number[self._number[node]] for node in self._nodes.tolist()]
        self._numbers = np.array(numbers, np.int64)
        codes = {task * self._count + number[ring] for task, ring in pairs}
        self._codes = np.array(sorted(codes), np.int64)

    def _walk(self, start: int) -> tuple[list[int], bool]:
        """Return the nodes that one leads to, and whether they lead back to it."""
        way, seen, node = list[int](), set[int](), start
        # A null pointer in a torn ring would be the first waiter of all free locks.
        while node not in seen and node >= _KERNEL and len(way) < _MAX_WAITERS:
            way.append(node)
            seen.add(node)
            if node not in self._after:
                try:
                    self._after[node] = self._memory.word(node)
                except drgn.FaultError:
                    self._after[node] = 0
            node = self._after[node]
        return way, node == start and bool(way)

    def have(self, task: Numbers, node: Words) -> Mask:
        """Return which nodes are in a ring with one of the task's own."""
        place = np.minimum(np.searchsorted(self._nodes, node), max(len(self._nodes) - 1, 0))
        found = np.zeros(len(node), np.bool_)
        if len(self._nodes):
            code = task * self._count + self._numbers[place]
            found = (self._nodes[place] == node) & np.isin(code, self._codes)
        for torn, way in self._torn.items():
            found |= (task == torn) & np.isin(node, way)
        return found


class _Search:
    """Locks of a type whose first waiter is in a ring with that of a task.

    :param rows: of the tasks
    """

    def __init__(self, kernel: Kernel, known: Tasks, rows: Numbers, name: str, size: int) -> None:
        prog = kernel.prog
        self._kernel, self._known, self._rows, self._size = kernel, known, rows, size
        waiter = prog.type(_WAITERS[name])
        self._link = np.uint64(drgn.offsetof(waiter, "list"))
        self._members = layout(prog, name, ["first_waiter"])
        self._task = layout(prog, waiter, ["task"])

    def locks(self, rings: _Rings) -> dict[int, int]:
        """Return the lock of each task for which there is only one."""
        locks: dict[int, set[int]] = {}
        for task, address in self._candidates():
            first = gather(self._kernel.memory, address, self._members, Faults())["first_waiter"]
            some = np.flatnonzero(first >= np.uint64(_KERNEL))
            task, address, first = task[some], address[some], first[some]
            owner = gather(self._kernel.memory, first, self._task, Faults())["task"]
            low = self._known.stack[self._rows[task]]
            top = low + np.uint64(self._size)
            # The only waiter is a ring by itself, which looks like an empty list.
            alone = (first >= low) & (first < top)
            alone &= owner == self._known.address[self._rows[task]]
            # The stack has the address of the waiter, too.
            elsewhere = (address < low) | (address >= top)
            kept = (rings.have(task, first + self._link) | alone) & elsewhere
            for each, lock in zip(task[kept].tolist(), address[kept].tolist(), strict=True):
                locks.setdefault(each, set()).add(lock)
        return {task: min(some) for task, some in locks.items() if len(some) == 1}

    def _candidates(self) -> Iterator[tuple[Numbers, Words]]:
        """Yield what may be the address of a lock, with the index of the task that has it.

        That are words on its stack, and the lock of its memory.
        """
        memory, prog = self._kernel.memory, self._kernel.prog
        for some, _, words in stack_words(memory, self._known, self._rows, self._size, Faults()):
            task, column = np.nonzero(words >= np.uint64(_KERNEL))
            yield some[task], words[task, column]
        inside = np.uint64(drgn.offsetof(prog.type("struct task_struct"), "mm"))
        places = self._known.address[self._rows] + inside
        mm, _ = gather_words(memory, places, word_dtype(prog), Faults())
        lock = np.uint64(drgn.offsetof(prog.type("struct mm_struct"), "mmap_lock"))
        task = np.flatnonzero(mm)
        yield task, mm[task] + lock
