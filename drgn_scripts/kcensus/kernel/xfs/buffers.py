# SPDX-License-Identifier: LGPL-2.1-or-later
"""XFS's metadata buffers that tasks sleep on, as columns; who sleeps on them, and who holds them.

A file server has millions of buffers, and few with a waiter: only these are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import Path, layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.rows import rows_of
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import View, selected
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.locking.waiters import (
    Waiters,
    completion_waiters,
    queue_waiters,
    semaphore_waiters,
)
from kcensus.kernel.xfs.mounts import mounts

# What a task does with a buffer that it waits for.
LOCK, IO, UNPIN = "b_sema", "b_iowait", "b_waiters"
_FIRST_WAITERS = {
    # The members are explained in kcensus.kernel.locking.waiters.
    LOCK: ("b_sema.first_waiter", "b_sema.wait_list.next"),
    IO: ("b_iowait.wait.task_list.next", "b_iowait.wait.head.next"),
    UNPIN: ("b_waiters.head.next", "b_waiters.task_list.next"),
}


@dataclass(frozen=True)
class Buffers:
    """Buffers of mounted file systems with a waiter, as columns by ascending address."""

    address: Words
    block: npt.NDArray[np.int64]
    """First 512-byte block on the device (``xfs_daddr_t``); -1 for buffers that have none."""
    blocks: npt.NDArray[np.int64]
    """Length from there on in blocks of 512 bytes; a buffer of several maps goes on elsewhere."""
    target: Words
    """``struct xfs_buftarg *``."""
    bdev: Words
    """``struct block_device *``."""
    device: npt.NDArray[np.int64]
    """``dev_t`` as the kernel packs it, 12 bits of major and 20 of minor; -1 if unknown."""
    holder: Words
    """The task that runs the transaction that has it locked (``b_transp->t_ticket->t_task``);
    without a transaction, the one that took the lock last, where semaphores note it; else 0. A
    buffer that is locked without a transaction is held by its I/O, or by a task that only reads it.

    Since Linux kernel commit 194a9b9e843b ("hung_task: show the blocker task if the task is hung on
    semaphore") (in v6.16), with CONFIG_DETECT_HUNG_TASK_BLOCKER, semaphores note it."""
    faults: Faults = field(default_factory=Faults)
    report: ScanReport = field(default_factory=ScanReport)

    def __len__(self) -> int:
        return len(self.address)

    def rows(self, addresses: Words) -> npt.NDArray[np.int64]:
        """Return the row of each ``struct xfs_buf *``, or -1."""
        return rows_of(self.address, addresses)


@dataclass(frozen=True)
class BufferWaiters:
    """Tasks that sleep on buffers, as columns."""

    task: Words
    buffer: npt.NDArray[np.int64]
    """Row of the buffer."""
    member: list[str]
    """:data:`LOCK`, :data:`IO` or :data:`UNPIN`: the queue in the buffer that the task is on."""
    torn: int = 0
    faults: Faults = field(default_factory=Faults)


@once
def buffers(kernel: Kernel) -> Buffers:
    """Return the buffers of all mounted file systems that a task waits for.

    :raises LookupError: XFS is mounted, and there is no debug info of it, or no slab cache of
        buffers
    """
    prog, faults, report = kernel.prog, Faults(), ScanReport()
    if not len(mounts(kernel)):
        return _no_buffers()
    type_ = prog.type("struct xfs_buf")
    members: dict[str, Path] = {
        # Since Linux kernel commit 4c7f65aea7b7 ("xfs: rename buffer cache index variable b_bn")
        # (in v5.15). The first map also has the block of buffers that are not cached.
        "block": ("__b_map.bm_bn", "b_rhash_key", "b_bn"),
        "blocks": "__b_map.bm_len",
        "maps": "b_maps",
        "target": "b_target",
        "transaction": "b_transp",
        "count": "b_sema.count",
    }
    members |= _FIRST_WAITERS
    optional = {"last_holder": "b_sema.last_holder"}
    caches = find_caches(kernel.slab_map, "struct xfs_buf")
    wanted = layout(prog, type_, members, optional)
    every, columns = selected(kernel.slab_map, caches, wanted, _has_waiter, report)
    # The rest are of caches that were merged, or of a file system that is being unmounted.
    own = np.flatnonzero(np.isin(columns["target"], mounts(kernel).targets))
    order = own[np.argsort(every[own])]
    address = every[order]
    columns = {name: column[order] for name, column in columns.items()}
    targets, target = np.unique(columns["target"], return_inverse=True)
    known = layout(prog, "struct xfs_buftarg", {"device": "bt_dev", "bdev": "bt_bdev"})
    mount = gather(kernel.memory, targets, known, faults)
    ticket = layout(prog, "struct xfs_trans", ["t_ticket"])
    task = layout(prog, "struct xlog_ticket", ["t_task"])
    tickets = gather(kernel.memory, columns["transaction"], ticket, faults)["t_ticket"]
    owner = gather(kernel.memory, tickets, task, faults)["t_task"]
    block, blocks = columns["block"].astype(np.int64), columns["blocks"].astype(np.int64)
    # xfs_buf_get_maps() lets b_maps point to the buffer's own map only where that is enough.
    own_map = np.uint64(drgn.offsetof(type_, "__b_map"))
    several = np.flatnonzero(columns["maps"] != address + own_map)
    block[several], blocks[several] = _first_maps(kernel, type_, columns["maps"][several], faults)
    is_locked = columns["count"] == 0
    last = columns.get("last_holder", np.zeros(len(address), np.uint64))
    device = np.where(mount.readable, mount["device"].astype(np.int64), -1)
    return Buffers(
        address=address,
        block=block,
        blocks=blocks,
        target=columns["target"],
        bdev=mount["bdev"][target],
        device=device[target],
        holder=np.where((owner == 0) & is_locked, last, owner),
        faults=faults,
        report=report,
    )


def _has_waiter(view: View) -> Mask:
    """Return which slots of slabs of buffers have a waiter: where a list is not empty.

    An empty list leads to its own head, and one that was never initialized is zero.
    """
    address, found = view.address(), np.zeros(view.shape, np.bool_)
    for name in _FIRST_WAITERS:
        first, head = view.column(name), np.uint64(view.columns.fields[name].offset)
        found |= (first != 0) & (first != address + head)
    return found


def _no_buffers() -> Buffers:
    none, numbers = np.empty(0, np.uint64), np.empty(0, np.int64)
    return Buffers(
        address=none,
        block=numbers,
        blocks=numbers,
        target=none,
        bdev=none,
        device=numbers,
        holder=none,
    )


def _first_maps(
    kernel: Kernel, type_: drgn.Type, maps: Words, faults: Faults
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return first block and length of the first map in each of some arrays; -1 and 0 where it is
    unreadable.

    :param type_: ``struct xfs_buf``
    :param maps: addresses of ``struct xfs_buf_map``
    """
    start = drgn.offsetof(type_, "__b_map")
    word = word_dtype(kernel.prog)
    columns = []
    for member, dtype in (("bm_bn", "i8"), ("bm_len", "i4")):
        place = maps + np.uint64(drgn.offsetof(type_, f"__b_map.{member}") - start)
        number = np.dtype(dtype).newbyteorder(word.byteorder)
        values, readable = gather_arrays(
            kernel.memory, np.where(maps != 0, place, np.uint64(0)), 1, number, faults
        )
        columns.append((values[:, 0].astype(np.int64), readable & (maps != 0)))
    (block, has_block), (blocks, has_length) = columns
    known = has_block & has_length & (blocks > 0)
    return np.where(known, block, -1), np.where(known, blocks, 0)


@once
def buffer_waiters(kernel: Kernel) -> BufferWaiters:
    """Return all tasks that sleep on buffers: for their lock, for I/O, or until they are unpinned.

    :raises LookupError: see :func:`buffers`
    """
    known, faults = buffers(kernel), Faults()
    if not len(known):
        none = np.empty(0, np.uint64)
        return BufferWaiters(none, np.empty(0, np.int64), [], faults=faults)
    type_ = kernel.prog.type("struct xfs_buf")

    def queue(member: str) -> Words:
        place: Words = known.address + np.uint64(drgn.offsetof(type_, member))
        return place

    parts: dict[str, Waiters] = {
        LOCK: semaphore_waiters(kernel, queue(LOCK), faults),
        IO: completion_waiters(kernel, queue(IO), faults),
        UNPIN: queue_waiters(kernel, queue(UNPIN), faults),
    }
    return BufferWaiters(
        task=np.concatenate([part.task for part in parts.values()]),
        buffer=np.concatenate([part.lane for part in parts.values()]),
        member=[name for name, part in parts.items() for _ in range(len(part.task))],
        torn=sum(len(part.torn) for part in parts.values()),
        faults=faults,
    )
