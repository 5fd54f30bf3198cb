# SPDX-License-Identifier: LGPL-2.1-or-later
"""XFS's metadata buffers with waiters, as columns; their waiters and holders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.rows import Addressed
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import View, selected
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.xfs.mounts import member_waiters, mounts

# Purposes of a wait for a buffer.
LOCK, IO, UNPIN = "b_sema", "b_iowait", "b_waiters"
_IO_FLAGS = 0x3
"""XBF_READ and XBF_WRITE."""
_FIRST_WAITERS = {
    # The members are explained in kcensus.kernel.locking.waiters.
    LOCK: ("b_sema.first_waiter", "b_sema.wait_list.next"),
    IO: ("b_iowait.wait.task_list.next", "b_iowait.wait.head.next"),
    UNPIN: ("b_waiters.head.next", "b_waiters.task_list.next"),
}


@dataclass(frozen=True)
class Buffers(Addressed):
    """Buffers of mounted file systems with a waiter, as columns by ascending address."""

    address: Words
    block: Numbers
    """First 512-byte block on the device (``xfs_daddr_t``), or -1."""
    blocks: Numbers
    """Length in blocks of 512 bytes, of the first map only."""
    target: Words
    bdev: Words
    device: Numbers
    """``dev_t`` as the kernel packs it, 12 bits of major and 20 of minor; -1 if unknown."""
    holder: Words
    """The task of the transaction that has it locked (``b_transp->t_ticket->t_task``); without one,
    ``b_sema.last_holder``; else 0: its I/O, or a reading task, holds it.

    Since Linux kernel commit 194a9b9e843b ("hung_task: show the blocker task if the task is hung on
    semaphore") (in v6.16), with CONFIG_DETECT_HUNG_TASK_BLOCKER, semaphores have a last holder."""
    has_transaction: Mask
    in_io: Mask
    """Whether the buffer is being read or written."""
    references: Numbers
    """References of tasks, the waiters' included; -1 if unknown."""
    faults: Faults = field(default_factory=Faults)
    report: ScanReport = field(default_factory=ScanReport)


@dataclass(frozen=True)
class BufferWaiters:
    """Tasks that sleep on buffers, as columns."""

    task: Words
    buffer: Numbers
    member: list[str]
    """:data:`LOCK`, :data:`IO` or :data:`UNPIN`: the queue in the buffer with the task."""
    torn: int = 0
    faults: Faults = field(default_factory=Faults)


@once
def buffers(kernel: Kernel) -> Buffers:
    """Return the awaited buffers of all mounted file systems.

    :raises LookupError: XFS is mounted, and there is no debug info of it, or no slab cache of
        buffers
    """
    prog, faults, report = kernel.prog, Faults(), ScanReport()
    if not len(mounts(kernel)):
        none, numbers = np.empty(0, np.uint64), np.empty(0, np.int64)
        mask = numbers != 0
        return Buffers(none, numbers, numbers, none, none, numbers, none, mask, mask, numbers)
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
        "flags": "b_flags",
        "lru": "b_lru.next",
    }
    members |= _FIRST_WAITERS
    optional: dict[str, Path] = {
        "last_holder": "b_sema.last_holder",
        "references": ("b_hold.counter", "b_hold", "b_lockref.count"),
        # Since v4.20 or so (commit not verified), it is not called b_fspriv.
        "item": ("b_log_item", "b_fspriv"),
    }
    caches = find_caches(kernel.slab_map, "struct xfs_buf")
    wanted = layout(prog, type_, members, optional)
    every, columns = selected(kernel.slab_map, caches, wanted, _has_waiter, report)
    # Other objects belong to merged caches, or to a file system that is being unmounted.
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
    # xfs_buf_get_maps() lets b_maps point to the buffer's own map only if one is enough.
    own_map = np.uint64(drgn.offsetof(type_, "__b_map"))
    several = np.flatnonzero(columns["maps"] != address + own_map)
    first_map = layout(prog, type_.member("__b_map").type, ["bm_bn", "bm_len"])
    first = gather(kernel.memory, columns["maps"][several], first_map, faults)
    has_map = first.readable & (first["bm_len"] > 0)
    block[several] = np.where(has_map, first["bm_bn"], -1)
    blocks[several] = np.where(has_map, first["bm_len"], 0)
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
        has_transaction=owner != 0,
        in_io=(columns["flags"].astype(np.int64) & _IO_FLAGS) != 0,
        references=_references(columns, address + np.uint64(wanted.fields["lru"].offset)),
        faults=faults,
        report=report,
    )


def _references(columns: Mapping[str, npt.NDArray[Any]], lru: Words) -> Numbers:
    """Return the references of tasks to buffers; -1 if unknown.

    A buffer's item in the log has a reference. So has the list of unused buffers, up to v6.19 or so
    (commit not verified).

    :param lru: address of the link of each in that list
    """
    if "references" not in columns or "item" not in columns:
        return np.full(len(lru), -1)
    count: Numbers = columns["references"].astype(np.int64) - (columns["item"] != 0)
    return np.where(columns["lru"] == lru, count, -1)


def _has_waiter(view: View) -> Mask:
    """Return the slots with an initialized (not zero) list that does not lead to its head."""
    address, found = view.address(), np.zeros(view.shape, np.bool_)
    for name in _FIRST_WAITERS:
        first, head = view.column(name), np.uint64(view.columns.fields[name].offset)
        found |= (first != 0) & (first != address + head)
    return found


@once
def buffer_waiters(kernel: Kernel) -> BufferWaiters:
    """Return all tasks that sleep on buffers: for their lock, for I/O, or until they are unpinned.

    :raises LookupError: see :func:`buffers`
    """
    known, faults = buffers(kernel), Faults()
    if not len(known):
        return BufferWaiters(np.empty(0, np.uint64), np.empty(0, np.int64), [], faults=faults)
    parts = {
        member: member_waiters(kernel, "struct xfs_buf", member, known.address, faults)
        for member in _FIRST_WAITERS
    }
    return BufferWaiters(
        task=np.concatenate([part.task for part in parts.values()]),
        buffer=np.concatenate([part.lane for part in parts.values()]),
        member=[name for name, part in parts.items() for _ in range(len(part.task))],
        torn=sum(len(part.torn) for part in parts.values()),
        faults=faults,
    )
