# SPDX-License-Identifier: LGPL-2.1-or-later
"""The hashed wait queues: waiters for a bit of a page or folio, or of any other word.

A page has no room for a wait queue, nor has a buffer head or an inode for one per bit. Their
waiters are in two tables of queues, each with the address of its object.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.gather import gather, plausible
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.locking.waiters import entry_link, queue_waiters, queues_type

_PAGE_ENTRIES = {"struct wait_page_queue": "wait"}
"""Structures of waiters, and their entry in the queue; since v5.16 (commit not verified), the
member `page` is called `folio`."""
_BIT_ENTRIES = {"struct wait_bit_queue_entry": "wq_entry", "struct wait_bit_queue": "wait"}
"""The first name is used since v4.13 (commit not verified)."""
_MAX_QUEUES = 1 << 16
"""Both tables have 256 queues."""


@dataclass(frozen=True)
class BitWaiters:
    """Waiters in the tables, as columns."""

    task: Words
    """``struct task_struct *``; another pointer for a waiter with a callback."""
    object: Words
    """The ``struct folio *`` or ``struct page *``, or the address of the word."""
    is_page: Mask
    table: list[str]
    """The table of each waiter."""
    torn: int = 0
    """Queues that could not be followed to their end."""
    missing: list[str] = field(default_factory=list)
    """Tables without debug info of their waiters."""
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
    # (in v4.9), the tables are these variables; since v5.16 (commit not verified), the table of
    # pages is named after folios.
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
            type_, entry = _entry(kernel.prog, _PAGE_ENTRIES if is_page else _BIT_ENTRIES)
        except LookupError:
            missing.append(table)
            continue
        waiters = queue_waiters(kernel, queues, faults)
        place = drgn.offsetof(type_, entry) + entry_link(kernel.prog)
        columns = gather(
            kernel.memory,
            waiters.node - np.uint64(place),
            layout(kernel.prog, type_, {"object": ("folio", "page", "key.flags")}),
            faults,
        )
        # Waiting tasks have such a structure. Other entries, such as waiters of cachefiles, have no
        # task.
        is_sound = columns.readable & plausible(kernel.memory, columns["object"], 1)
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


def _entry(prog: drgn.Program, names: Mapping[str, str]) -> tuple[drgn.Type, str]:
    """Return this kernel's structure of waiters, and its entry in the queue.

    :raises LookupError: the debug info has none of them
    """
    for name, entry in names.items():
        with contextlib.suppress(LookupError):
            return prog.type(name), entry
    raise LookupError(f"the debug info has no {' or '.join(names)}")


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
