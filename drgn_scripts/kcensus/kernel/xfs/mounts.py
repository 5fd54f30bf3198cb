# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mounted XFS file systems: their devices, and the waiters for their logs."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.chase import Damage, collect, pointer_step
from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.rows import Addressed
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.locking.waiters import (
    Waiters,
    completion_waiters,
    queue_waiters,
    semaphore_waiters,
)
from kcensus.kernel.vfs.super_blocks import super_blocks

_MAX_TICKETS = 1 << 22
_MAX_ICLOGS = 256
"""Most log buffers; XLOG_MAX_ICLOGS is 8."""
_TARGETS = {"data": "m_ddev_targp", "log": "m_logdev_targp", "realtime": "m_rtdev_targp"}


@dataclass(frozen=True)
class Mounts(Addressed):
    """XFS file systems as columns."""

    address: Words
    target: dict[str, Words]
    """``struct xfs_buftarg *`` of the ``data``, ``log`` and ``realtime`` devices; 0 for none."""
    log: Words
    """``struct xlog *``."""
    log_device: Numbers
    """``dev_t`` of the log's device, as the kernel packs it; -1 if unknown."""
    log_bdev: Words
    """``struct block_device *`` of the log's device."""
    ail: Words
    """``struct xfs_ail *``, the active item list."""
    damaged: int = 0
    """Torn lists of super blocks, and unreadable mounts and types."""
    faults: Faults = field(default_factory=Faults)

    @property
    def targets(self) -> Words:
        """All targets, ascending."""
        every = np.concatenate([*self.target.values()])
        return np.unique(every[every != 0])


@dataclass(frozen=True)
class LogWaiters:
    """Tasks that wait for a log, as columns."""

    task: Words
    mount: Numbers
    """Row in :func:`mounts`."""
    object: Words
    """The ``xlog_ticket``, ``xlog_in_core``, ``xlog``, ``xfs_cil`` or ``xfs_ail`` waited on."""
    member: list[str]
    """Type and member of the queue, such as ``xlog.l_reserve_head``."""
    torn: int = 0
    faults: Faults = field(default_factory=Faults)


@once
def mounts(kernel: Kernel) -> Mounts:
    """Return all XFS file systems.

    :raises LookupError: one is mounted, and there is no debug info of XFS
    """
    memory, prog = kernel.memory, kernel.prog
    blocks = super_blocks(kernel)
    faults = Faults(blocks.faults)
    # A file system with an unreadable type may be XFS.
    damaged = blocks.damaged + sum(type_.partition(".")[0] == "?" for type_ in blocks.type)
    rows = np.array([row for row, type_ in enumerate(blocks.type) if type_ == "xfs"], np.int64)
    if not len(rows):
        # A module that is not loaded need not have debug info.
        none = np.empty(0, np.uint64)
        targets, device = dict.fromkeys(_TARGETS, none), np.empty(0, np.int64)
        return Mounts(none, targets, none, device, none, none, damaged, faults)
    members = layout(prog, "struct xfs_mount", {**_TARGETS, "log_address": "m_log", "ail": "m_ail"})
    info = layout(prog, "struct super_block", ["s_fs_info"])
    address = gather(memory, blocks.address[rows], info, faults)["s_fs_info"]
    # While a file system is being mounted or unmounted, it lacks s_fs_info and a root.
    damaged += int(np.count_nonzero((address == 0) & (blocks.root[rows] != 0)))
    address = address[address != 0]
    read = gather(memory, address, members, faults)
    target = layout(prog, "struct xfs_buftarg", {"device": "bt_dev", "bdev": "bt_bdev"})
    log_target = gather(memory, read["log"], target, faults)
    return Mounts(
        address=address,
        target={name: read[name] for name in _TARGETS},
        log=read["log_address"],
        log_device=np.where(log_target.readable, log_target["device"].astype(np.int64), -1),
        log_bdev=log_target["bdev"],
        ail=read["ail"],
        damaged=int(np.count_nonzero(~read.readable)) + damaged,
        faults=faults,
    )


@once
def log_waiters(kernel: Kernel) -> LogWaiters:
    """Return all tasks that wait for space in a log, for its buffers, or for it to be written.

    :raises LookupError: see :func:`mounts`
    """
    return _LogReader(kernel, mounts(kernel)).read()


class _LogReader:
    def __init__(self, kernel: Kernel, known: Mounts) -> None:
        self.kernel, self.known, self.faults = kernel, known, Faults()
        none, numbers = np.empty(0, np.uint64), np.empty(0, np.int64)
        self.parts: list[tuple[Words, Numbers, Words, str]] = [(none, numbers, none, "")]
        """Tasks, rows of their mounts, objects of their waits, and members of these."""
        self.torn = 0

    def read(self) -> LogWaiters:
        if len(self.known):
            self._logs()
        tasks, rows, objects, members = zip(*self.parts, strict=True)
        return LogWaiters(
            task=np.concatenate(tasks),
            mount=np.concatenate(rows),
            object=np.concatenate(objects),
            member=np.repeat(members, [len(task) for task in tasks]).tolist(),
            torn=self.torn,
            faults=self.faults,
        )

    def _logs(self) -> None:
        every = np.flatnonzero(self.known.log)
        log = self.known.log[every]
        for head in ("l_reserve_head", "l_write_head"):
            self._tickets(every, log, head)
        self._queues("struct xlog", "l_flush_wait", every, log)
        # Since Linux kernel commit 57e809561118 ("xfs: Rename xa_ elements to ail_") (in v4.17).
        for queue in ("ail_empty", "xa_empty"):
            self._queues("struct xfs_ail", queue, every, self.known.ail[every])
        columns = self._gather(log, "struct xlog", {"iclog": "l_iclog", "cil": "l_cilp"})
        for queue in ("xc_push_wait", "xc_commit_wait", "xc_start_wait"):
            self._queues("struct xfs_cil", queue, every, columns["cil"])
        row, iclog = self._iclogs(columns["iclog"])
        for queue in ("ic_force_wait", "ic_write_wait", "ic_sema"):
            self._queues("struct xlog_in_core", queue, every[row], iclog)

    def _gather(self, addresses: Words, type_name: str, members: dict[str, str]) -> Gathered:
        columns = layout(self.kernel.prog, type_name, members)
        return gather(self.kernel.memory, addresses, columns, self.faults)

    def _tickets(self, rows: Numbers, log: Words, head: str) -> None:
        """Add the tasks on a list of tickets, which wait for space."""
        prog, verify = self.kernel.prog, not self.kernel.live
        offset = layout(prog, "struct xlog", {"next": f"{head}.waiters.next"}).fields["next"].offset
        heads = log + np.uint64(offset)
        lane, node, torn = list_members(
            self.kernel.memory, heads, self.faults, limit=_MAX_TICKETS, verify=verify
        )
        ticket = node - np.uint64(drgn.offsetof(prog.type("struct xlog_ticket"), "t_queue"))
        task = self._gather(ticket, "struct xlog_ticket", {"task": "t_task"})["task"]
        self.parts.append((task, rows[lane], ticket, f"xlog.{head}"))
        self.torn += len(torn)

    def _queues(self, type_name: str, member: str, rows: Numbers, objects: Words) -> None:
        if not self.kernel.prog.type(type_name).has_member(member):
            return
        waiters = member_waiters(self.kernel, type_name, member, objects, self.faults)
        name = f"{type_name.removeprefix('struct ')}.{member}"
        self.parts.append((waiters.task, rows[waiters.lane], objects[waiters.lane], name))
        self.torn += len(waiters.torn)

    def _iclogs(self, first: Words) -> tuple[Numbers, Words]:
        """Return the log buffers, which form a ring, with the rows of their logs."""
        link = layout(self.kernel.prog, "struct xlog_in_core", ["ic_next"])
        following = gather(self.kernel.memory, first, link, self.faults)
        damage = Damage()
        step = pointer_step(self.kernel.memory, link, "ic_next", self.faults)
        starts = following["ic_next"]
        lane, node = collect(starts, step, limit=_MAX_ICLOGS, damage=damage, ends=first)
        self.torn += damage.lists + int((~following.readable).sum())
        own = np.flatnonzero(following.readable)
        return np.concatenate([own, lane]), np.concatenate([first[own], node])


def member_waiters(
    kernel: Kernel, type_name: str, member: str, objects: Words, faults: Faults
) -> Waiters:
    """Return the waiters on a semaphore, completion or wait queue in some objects.

    :raises LookupError: the debug info lacks a type or the member
    """
    type_ = kernel.prog.type(type_name)
    places = objects + np.uint64(drgn.offsetof(type_, member))
    readers = {"struct semaphore": semaphore_waiters, "struct completion": completion_waiters}
    read = readers.get(type_.member(member).type.type_name(), queue_waiters)
    return read(kernel, places, faults)
