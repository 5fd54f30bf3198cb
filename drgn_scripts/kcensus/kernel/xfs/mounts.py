# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mounted XFS file systems: their devices, and who waits for their log."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Damage, collect, pointer_step
from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
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
"""On one head: PID_MAX_LIMIT."""
_MAX_ICLOGS = 256
"""XLOG_MAX_ICLOGS is 8."""
_TARGETS = {"data": "m_ddev_targp", "log": "m_logdev_targp", "realtime": "m_rtdev_targp"}


@dataclass(frozen=True)
class Mounts:
    """XFS file systems as columns."""

    address: Words
    """Of the ``struct xfs_mount``."""
    target: dict[str, Words]
    """``struct xfs_buftarg *`` of the ``data``, ``log`` and ``realtime`` devices; 0 for none."""
    log: Words
    """``struct xlog *``."""
    log_device: npt.NDArray[np.int64]
    """``dev_t`` of the device that the log is on, as the kernel packs it; -1 if unknown."""
    log_bdev: Words
    """``struct block_device *`` of that device."""
    ail: Words
    """``struct xfs_ail *``, the active item list."""
    damaged: int = 0
    """Lists of super blocks that could not be followed to their end, and unreadable mounts and
    types."""
    faults: Faults = field(default_factory=Faults)

    def __len__(self) -> int:
        return len(self.address)

    @property
    def targets(self) -> Words:
        """All targets, ascending."""
        every = np.concatenate([*self.target.values()])
        found: Words = np.unique(every[every != 0])
        return found


@dataclass(frozen=True)
class LogWaiters:
    """Tasks that wait for a log, as columns."""

    task: Words
    mount: npt.NDArray[np.int64]
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
    # A file system whose type cannot be read may be one of them.
    damaged = blocks.damaged + sum(type_.partition(".")[0] == "?" for type_ in blocks.type)
    rows = np.array([row for row, type_ in enumerate(blocks.type) if type_ == "xfs"], np.int64)
    if not len(rows):
        # There need not be debug info of a module that is not loaded.
        none = np.empty(0, np.uint64)
        targets, device = dict.fromkeys(_TARGETS, none), np.empty(0, np.int64)
        return Mounts(none, targets, none, device, none, none, damaged, faults)
    members = layout(prog, "struct xfs_mount", {**_TARGETS, "log_address": "m_log", "ail": "m_ail"})
    info = layout(prog, "struct super_block", ["s_fs_info"])
    address = gather(memory, blocks.address[rows], info, faults)["s_fs_info"]
    # While a file system is being mounted or unmounted, it is missing, and its root is, too.
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
    reader = _LogReader(kernel, mounts(kernel))
    return reader.read()


class _LogReader:
    def __init__(self, kernel: Kernel, known: Mounts) -> None:
        self.kernel, self.known, self.faults = kernel, known, Faults()
        self.tasks: list[Words] = []
        self.rows: list[npt.NDArray[np.int64]] = []
        self.objects: list[Words] = []
        self.members: list[str] = []
        self.torn = 0

    def read(self) -> LogWaiters:
        known = self.known
        if not len(known):
            none = np.empty(0, np.uint64)
            return LogWaiters(none, np.empty(0, np.int64), none, [])
        every = np.flatnonzero(known.log)
        log = known.log[every]
        for head in ("l_reserve_head", "l_write_head"):
            self._tickets(every, log, head)
        self._queues("struct xlog", "l_flush_wait", every, log)
        # Since Linux kernel commit 57e809561118 ("xfs: Rename xa_ elements to ail_") (in v4.17).
        for queue in ("ail_empty", "xa_empty"):
            self._queues("struct xfs_ail", queue, every, known.ail[every])
        columns = self._gather(log, "struct xlog", {"iclog": "l_iclog", "cil": "l_cilp"})
        for queue in ("xc_push_wait", "xc_commit_wait", "xc_start_wait"):
            self._queues("struct xfs_cil", queue, every, columns["cil"])
        row, iclog = self._iclogs(columns["iclog"])
        for queue in ("ic_force_wait", "ic_write_wait", "ic_sema"):
            self._queues("struct xlog_in_core", queue, every[row], iclog)
        return LogWaiters(
            task=np.concatenate([*self.tasks, np.empty(0, np.uint64)]),
            mount=np.concatenate([*self.rows, np.empty(0, np.int64)]),
            object=np.concatenate([*self.objects, np.empty(0, np.uint64)]),
            member=self.members,
            torn=self.torn,
            faults=self.faults,
        )

    def _gather(self, addresses: Words, type_name: str, members: dict[str, str]) -> Gathered:
        columns = layout(self.kernel.prog, type_name, members)
        return gather(self.kernel.memory, addresses, columns, self.faults)

    def _add(
        self, task: Words, row: npt.NDArray[np.int64], object_: Words, member: str, torn: int
    ) -> None:
        self.tasks.append(task)
        self.rows.append(row)
        self.objects.append(object_)
        self.members += [member] * len(task)
        self.torn += torn

    def _tickets(self, rows: npt.NDArray[np.int64], log: Words, head: str) -> None:
        """Add the tasks that wait for space: they are on a list of tickets."""
        prog = self.kernel.prog
        offset = layout(prog, "struct xlog", {"next": f"{head}.waiters.next"}).fields["next"].offset
        lane, node, torn = list_members(
            self.kernel.memory,
            log + np.uint64(offset),
            self.faults,
            limit=_MAX_TICKETS,
            verify=not self.kernel.live,
        )
        ticket = node - np.uint64(drgn.offsetof(prog.type("struct xlog_ticket"), "t_queue"))
        task = self._gather(ticket, "struct xlog_ticket", {"task": "t_task"})["task"]
        self._add(task, rows[lane], ticket, f"xlog.{head}", len(torn))

    def _queues(
        self, type_name: str, member: str, rows: npt.NDArray[np.int64], objects: Words
    ) -> None:
        """Add the tasks that wait on a member of some objects, where the kernel has it."""
        type_ = self.kernel.prog.type(type_name)
        if not type_.has_member(member):
            return
        kind = type_.member(member).type.type_name()
        waiters: Waiters = {
            "struct semaphore": semaphore_waiters,
            "struct completion": completion_waiters,
        }.get(kind, queue_waiters)(
            self.kernel, objects + np.uint64(drgn.offsetof(type_, member)), self.faults
        )
        name = f"{type_name.removeprefix('struct ')}.{member}"
        lane = waiters.lane
        self._add(waiters.task, rows[lane], objects[lane], name, len(waiters.torn))

    def _iclogs(self, first: Words) -> tuple[npt.NDArray[np.int64], Words]:
        """Return the log buffers, which form a ring, with the rows of their logs."""
        link = layout(self.kernel.prog, "struct xlog_in_core", ["ic_next"])
        following = gather(self.kernel.memory, first, link, self.faults)
        damage = Damage()
        step = pointer_step(self.kernel.memory, link, "ic_next", self.faults)
        lane, node = collect(
            following["ic_next"], step, limit=_MAX_ICLOGS, damage=damage, ends=first
        )
        self.torn += damage.lists + int((~following.readable).sum())
        own = np.flatnonzero(following.readable)
        return np.concatenate([own, lane]), np.concatenate([first[own], node])
