# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which lock a task waits for whose waiters form a ring without a head: since v7.1.

The lock points to its first waiter, and no waiter to the lock. So locks are looked for where a task
that waits has their address: on its stack; and in its address space, whose lock it may wait for.
"""

from __future__ import annotations

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Words
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
    found: dict[int, int] = {}
    nodes: dict[int, list[int]] = {lane: [] for lane in lock}
    for lane, node, shape in zip(
        links.lane.tolist(), links.node.tolist(), links.shape, strict=True
    ):
        if lane in nodes and shape is Shape.LOCK:
            nodes[lane].append(node)
    for lane, own in nodes.items():
        type_ = kernel.prog.type(lock[lane])
        # Since Linux kernel commits 25500ba7e77c, b9bdd4b68404 and 1ea4b473504b (in v7.1).
        if not type_.has_member("first_waiter"):
            continue
        waiter = kernel.prog.type(_WAITERS[lock[lane]])
        link = drgn.offsetof(waiter, "list")
        ring = np.array([each - link for each in _ring(kernel, own)], np.uint64)
        address = _candidates(kernel, known, rows[[lane]], size)
        members = layout(kernel.prog, type_, ["first_waiter"])
        first = gather(kernel.memory, address, members, Faults())["first_waiter"]
        # The only waiter is a ring by itself, which looks like an empty list.
        task = gather(kernel.memory, first, layout(kernel.prog, waiter, ["task"]), Faults())["task"]
        low = known.stack[rows[lane]]
        alone = (
            (first >= low) & (first < low + np.uint64(size)) & (task == known.address[rows[lane]])
        )
        # The stack has the address of the waiter, too.
        elsewhere = (address < low) | (address >= low + np.uint64(size))
        locks = np.unique(address[(np.isin(first, ring) | alone) & elsewhere])
        if len(locks) == 1:
            found[lane] = int(locks[0])
    return found


def _ring(kernel: Kernel, nodes: list[int]) -> set[int]:
    """Return all nodes of the rings that some are in."""
    seen: set[int] = set()
    for start in nodes:
        node = start
        for _ in range(_MAX_WAITERS):
            # A null pointer in a torn ring would be the first waiter of all free locks.
            if node in seen or node < _KERNEL:
                break
            seen.add(node)
            try:
                node = kernel.memory.word(node)
            except drgn.FaultError:
                break
    return seen


def _candidates(kernel: Kernel, known: Tasks, row: Numbers, size: int) -> Words:
    """Return what may be the address of a lock: words on the stack, and the lock of the memory."""
    parts = [np.empty(0, np.uint64)]
    for _, _, words in stack_words(kernel.memory, known, row, size, Faults()):
        parts.append(words[words >= np.uint64(_KERNEL)])
    prog = kernel.prog
    mm, _ = gather_words(
        kernel.memory,
        known.address[row] + np.uint64(drgn.offsetof(prog.type("struct task_struct"), "mm")),
        word_dtype(prog),
        Faults(),
    )
    inside = np.uint64(drgn.offsetof(prog.type("struct mm_struct"), "mmap_lock"))
    return np.unique(np.concatenate([*parts, mm[mm != 0] + inside]))
