# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests, disks and free tags that tasks wait for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import State, requests
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.graph import SERVED, TASK, WAITS, Graph, NodeKind
from kcensus.kernel.waiting.joined import joined
from kcensus.results import Gap

REQUEST = NodeKind("request", is_io=True)
DISK = NodeKind(
    "disk",
    is_io=True,
    advice="Look for the cause in the scheduler or the device: `kcensus iosched TARGET`",
)
IO = NodeKind("I/O", waits=(WaitKind.REQUEST,), is_io=True)
"""I/O submitted by the task itself."""
TAGS = NodeKind("tags", waits=(WaitKind.TAG,), is_io=True)
"""A free request of a queue."""
_IN_IO = frozenset({WaitKind.REQUEST, WaitKind.FOLIO, WaitKind.BIT, WaitKind.XFS_BUF, WaitKind.LOG})
_STATES = {State.INSERTED: ", not dispatched", State.DISPATCHED: ", in the driver"}


class Requests(Finder):
    """Finds the requests, disks and free tags that tasks wait for."""

    about = "requests"
    kinds = (REQUEST, DISK, IO, TAGS)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.lost = 0
        """Requests and bios of block devices that are torn, or contradict their tags."""

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield the damaged requests and bios."""
        yield Gap(
            "requests and bios",
            "torn, or contradict their tags",
            self.lost,
            "tasks that wait for submitted I/O have no request",
        )

    def _tags(self) -> None:
        """Note the disks of awaited free tags."""
        is_tag = np.array([kind is WaitKind.TAG for kind in self.waits.kind], np.bool_)
        lanes = np.flatnonzero(is_tag & (self.object != 0) & (self.waits.disk != 0))
        if not len(lanes):
            return
        free, disks = (TAGS, self.object[lanes]), (DISK, self.waits.disk[lanes])
        self.build.edges(SERVED, free, disks, "sbitmap_queue of its tags")
        for disk in block_devices(self.kernel).disks:
            self._name(DISK, disk.address, "struct gendisk", disk.name)

    def find(self) -> None:
        """Add edges to the requests of block devices that must complete first."""
        self.draft.attempt("tags", self._tags)
        in_io = np.array([each in _IN_IO for each in self.waits.kind], np.bool_)
        if not (in_io & self.known.is_blocked[self.rows]).any():
            return
        found, known = requests(self.kernel), bios(self.kernel)
        disks = block_devices(self.kernel).disks
        gendisks = np.array([disk.address for disk in disks] or [0], np.uint64)
        joins = joined(self.kernel, self.waits)
        self.draft.faults += joins.faults + found.faults + known.faults
        self.lost = sum(found.damage.values()) + known.torn
        strength = np.where(joins.is_proven, int(Strength.PROVEN), int(Strength.POSSIBLE))
        address = found.address[joins.request]
        for has_object in (True, False):
            rows = np.flatnonzero((self.object[joins.wait] != 0) == has_object)
            lanes = joins.wait[rows]
            kinds = [self.draft.kind_of(lane) for lane in lanes.tolist()]
            self.build.edges(
                SERVED if has_object else WAITS,
                (kinds, self.object[lanes]) if has_object else (TASK, self.waits.task[lanes]),
                (REQUEST, address[rows]),
                [joins.evidence[row] for row in rows.tolist()],
                strength=strength[rows],
            )
        rows = np.unique(joins.request)
        owners = DISK, gendisks[found.disk[rows]]
        self.build.edges(SERVED, (REQUEST, found.address[rows]), owners, "request.q")
        for row in rows.tolist():
            disk, sector = disks[int(found.disk[row])], int(found.sector[row])
            place = f"{disk.name} at sector {sector:,}" if sector >= 0 else disk.name
            name = f"{place}{_STATES.get(State(found.state[row]), '')}"
            self._name(REQUEST, int(found.address[row]), "struct request", name)
            self._name(DISK, disk.address, "struct gendisk", disk.name)

    def _name(self, kind: NodeKind, address: int, type_: str, name: str) -> None:
        self.types[kind, address], self.names[kind, address] = type_, name


FINDER = Requests
