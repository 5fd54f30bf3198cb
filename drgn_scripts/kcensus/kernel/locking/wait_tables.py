# SPDX-License-Identifier: LGPL-2.1-or-later
"""The hashed wait queues: who waits for a bit of a page or folio, or of any other word.

A page has no room for a wait queue, nor has a buffer head or an inode for one per bit. Their
waiters are in two tables of queues, each with the address of what it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.gather import gather, plausible
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.locking.waiters import entry_link, queue_waiters, queues_type

_MAX_QUEUES = 1 << 16
"""Both tables have 256 queues."""


@dataclass(frozen=True)
class BitWaiters:
    """Waiters in the tables, as columns."""

    task: Words
    """``struct task_struct *``; not one for a waiter that is called back instead of woken up."""
    object: Words
    """The ``struct folio *`` or ``struct page *``, or the address of the word."""
    is_page: Mask
    table: list[str]
    """The table that each is in."""
    torn: int = 0
    """Queues that could not be followed to their end."""
    missing: list[str] = field(default_factory=list)
    """Tables whose waiters the debug info lacks."""
    faults: Faults = field(default_factory=Faults)


@once
def bit_waiters(kernel: Kernel) -> BitWaiters:
    """Return all waiters of both tables.

    :raises LookupError: the debug info lacks a type
    """
    faults, torn = Faults(), 0
    tasks, objects, names, pages = [], [], list[str](), []
    missing: list[str] = []
    # Since Linux kernel commit 9dcb8b685fc3 ("mm: remove per-zone hashtable of bitlock waitqueues")
    # (in v4.9), the tables are these variables; since v5.16 (commit not verified), that of pages
    # has the name of folios.
    for table, is_page in (
        ("folio_wait_table", True),
        ("page_wait_table", True),
        ("bit_wait_table", False),
    ):
        try:
            queues = _queues(kernel.prog, table)
        except LookupError:
            continue
        try:
            type_name, entry, paths = _PAGE if is_page else _bit_type(kernel.prog)
            type_ = kernel.prog.type(type_name)
        except LookupError:
            missing.append(table)
            continue
        waiters = queue_waiters(kernel, queues, faults)
        place = drgn.offsetof(type_, entry) + entry_link(kernel.prog)
        columns = gather(
            kernel.memory,
            waiters.node - np.uint64(place),
            layout(kernel.prog, type_, paths),
            faults,
        )
        # Tasks that wait have such a structure. What else is there, such as waiters of cachefiles,
        # has no task.
        is_sound = columns.readable & plausible(columns["object"], 1)
        tasks.append(waiters.task[is_sound])
        objects.append(columns["object"][is_sound])
        pages.append(np.full(int(is_sound.sum()), is_page))
        names += [table] * int(is_sound.sum())
        torn += len(np.union1d(waiters.torn, waiters.lane[~is_sound]))
    empty = np.empty(0, np.uint64)
    return BitWaiters(
        task=np.concatenate([*tasks, empty]),
        object=np.concatenate([*objects, empty]),
        is_page=np.concatenate([*pages, np.empty(0, np.bool_)]),
        table=names,
        torn=torn,
        missing=missing,
        faults=faults,
    )


# Since v5.16 (commit not verified), `page` is `folio`.
_PAGE: tuple[str, str, dict[str, Path]] = (
    "struct wait_page_queue",
    "wait",
    {"object": ("folio", "page")},
)


def _bit_type(prog: drgn.Program) -> tuple[str, str, dict[str, Path]]:
    """Return the structure of waiters for bits, its entry in the queue, and its members."""
    members: dict[str, Path] = {"object": "key.flags"}
    # Since v4.13 (commit not verified), types and members have these names.
    for name, entry in (
        ("struct wait_bit_queue_entry", "wq_entry"),
        ("struct wait_bit_queue", "wait"),
    ):
        try:
            prog.type(name)
        except LookupError:
            continue
        return name, entry, members
    raise LookupError("the debug info has no struct wait_bit_queue_entry")


def _queues(prog: drgn.Program, name: str) -> Words:
    """Return the addresses of the queues in a table.

    :raises LookupError: the kernel has no such table
    """
    table = prog[name]
    length = table.type_.length or 0
    if table.address_ is None or not 0 < length <= _MAX_QUEUES:
        raise LookupError(f"{name} is not a table of wait queues")
    stride = drgn.sizeof(queues_type(prog))
    return np.uint64(table.address_) + np.arange(length, dtype=np.uint64) * np.uint64(stride)
