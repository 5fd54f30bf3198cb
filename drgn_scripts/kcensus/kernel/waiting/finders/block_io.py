# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which requests and disks tasks wait for, and who has the buffers of XFS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import State, requests
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.joined import RequestPlaces, joined
from kcensus.kernel.waiting.finders.finder import Finder
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.kernel.xfs.buffers import LOCK, buffers

BUFFER_LOCK = f"xfs_buf.{LOCK}"
"""What says that a task waits for the lock of a buffer, not for its I/O."""
_IN_IO = frozenset({WaitKind.REQUEST, WaitKind.FOLIO, WaitKind.BIT, WaitKind.XFS_BUF, WaitKind.LOG})
_STATES = {State.INSERTED: ", not dispatched", State.DISPATCHED: ", in the driver"}
_SECTOR = 512


class BlockIO(Finder):
    """Finds the requests and disks that tasks wait for, and who has the buffers of XFS."""

    def __init__(self, *of_finder: Any) -> None:
        super().__init__(*of_finder)
        self.lost = 0
        """Requests of block devices and bios that are torn, or that contradict their tags."""

    def buffers(self) -> None:
        """Note who holds the locks of XFS's buffers.

        That is the task of the transaction that a buffer is in, and who waits for its I/O.
        """
        lanes = self._of_type("struct xfs_buf")
        is_lock = np.array([self.evidence[lane] == BUFFER_LOCK for lane in lanes.tolist()])
        locked, others = lanes[is_lock.astype(np.bool_)], lanes[~is_lock.astype(np.bool_)]
        known = locked[self.waits.holder[locked] != 0]
        # What the semaphore notes may be the task that began its I/O, and went on.
        every = buffers(self.kernel) if len(known) else None
        row = every.rows(self.object[known]) if every is not None else known
        has_owner = every.has_transaction[row] if every is not None else known != 0
        others = others[np.isin(self.object[others], self.object[locked])]
        owned, noted = known[has_owner], known[~has_owner]
        for lanes, holder, strength, proof in (
            (owned, self.waits.holder[owned], Strength.PROVEN, "xfs_buf.b_transp"),
            (noted, self.waits.holder[noted], Strength.POSSIBLE, "xfs_buf.b_sema.last_holder"),
            (others, self.waits.task[others], Strength.DERIVED, "waits for its I/O"),
        ):
            self.build.edges(
                EdgeKind.HELD,
                (NodeKind.BUFFER, self.object[lanes]),
                (NodeKind.TASK, holder),
                strength=strength,
                evidence=proof,
            )

    def tags(self) -> None:
        """Note the disks whose free requests tasks wait for."""
        is_tag = np.array([kind is WaitKind.TAG for kind in self.waits.kind], np.bool_)
        lanes = np.flatnonzero(is_tag & (self.object != 0) & (self.waits.disk != 0))
        if not len(lanes):
            return
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.TAGS, self.object[lanes]),
            (NodeKind.DISK, self.waits.disk[lanes]),
            strength=Strength.PROVEN,
            evidence="sbitmap_queue of its tags",
        )
        for disk in block_devices(self.kernel).disks:
            self._name(NodeKind.DISK, disk.address, "struct gendisk", disk.name)

    def requests(self, kind: Callable[[int], NodeKind]) -> None:
        """Find the requests of block devices that have to complete first.

        :param kind: returns the kind of what the task of a lane waits for
        :raises LookupError: the debug info lacks a type or member
        """
        in_io = np.array([each in _IN_IO for each in self.waits.kind], np.bool_)
        if not (in_io & self.known.is_blocked[self.rows]).any():
            return
        found, disks = requests(self.kernel), block_devices(self.kernel).disks
        gendisks = np.array([disk.address for disk in disks] or [0], np.uint64)
        places = RequestPlaces(gendisks[found.disk], found.sector, found.bytes // _SECTOR)
        known = bios(self.kernel)
        joins = joined(self.kernel, self.waits, known, places)
        self.faults += joins.faults + found.faults + known.faults
        self.lost = sum(found.damage.values()) + known.torn
        strength = np.where(joins.is_proven, int(Strength.PROVEN), int(Strength.POSSIBLE))
        address = found.address[joins.request]
        for has_object in (True, False):
            rows = np.flatnonzero((self.object[joins.wait] != 0) == has_object)
            lanes = joins.wait[rows]
            kinds = [kind(lane) for lane in lanes.tolist()]
            self.build.edges(
                EdgeKind.SERVED if has_object else EdgeKind.WAITS,
                (kinds, self.object[lanes])
                if has_object
                else (NodeKind.TASK, self.waits.task[lanes]),
                (NodeKind.REQUEST, address[rows]),
                strength=strength[rows],
                evidence=[joins.evidence[row] for row in rows.tolist()],
            )
        rows = np.unique(joins.request)
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.REQUEST, found.address[rows]),
            (NodeKind.DISK, gendisks[found.disk[rows]]),
            strength=Strength.PROVEN,
            evidence="request.q",
        )
        for row in rows.tolist():
            disk, sector = disks[int(found.disk[row])], int(found.sector[row])
            place = f"{disk.name} at sector {sector:,}" if sector >= 0 else disk.name
            name = f"{place}{_STATES.get(State(found.state[row]), '')}"
            self._name(NodeKind.REQUEST, int(found.address[row]), "struct request", name)
            self._name(NodeKind.DISK, disk.address, "struct gendisk", disk.name)

    def _name(self, kind: NodeKind, address: int, type_: str, name: str) -> None:
        self.types[kind, address], self.names[kind, address] = type_, name
