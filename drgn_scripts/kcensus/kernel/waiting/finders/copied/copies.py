# SPDX-License-Identifier: LGPL-2.1-or-later
"""Copies of dm-snapshot that writes to an origin wait for, the limit of copies, and COW devices.

A write to an origin waits for the copies of its chunk, these for the COW devices of the snapshots,
and these for what keeps them: the chain ends there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kcensus.engine.memory import Words
from kcensus.human import counted
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.stacks import Via, kind_of, stacks
from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.dm.snapshots import TARGETS, snapshots
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Draft, Stall
from kcensus.kernel.waiting.finders.copied.metadata import Metadata
from kcensus.kernel.waiting.finders.io.devices import DEVICE, above, nodes_of
from kcensus.kernel.waiting.finders.io.requests import REQUEST, serve_requests
from kcensus.kernel.waiting.finders.mapped.suspended import mapped_disks, shown, targets
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.kernel.waiting.joined import held, joined
from kcensus.results import Figure, Finding
from kcensus.results.severity import HUNG, LATE
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable

COPIES = NodeKind("copies", is_any=True, is_io=True)
"""Copies in flight to the snapshots of an origin."""
LIMIT = NodeKind("copy limit", ("struct dm_snapshot",))
"""One of :data:`_LIMITS`."""
DELAYED = EdgeKind("delayed by", "delays the writes to")
COPIED = EdgeKind("copied to", "takes")
_LIMITS = "in_progress_wait", "cow_count"
"""Members of a snapshot that a write waits for when too many copies are in flight."""
_PLACES = "struct wait_queue_head", "struct __wait_queue_head", "struct semaphore"
_ORIGIN, _SNAPSHOT = "snapshot-origin", "struct dm_snapshot"
_READS = frozenset({"vfs_read", "vfs_readv", "do_iter_read", "vfs_iocb_iter_read", "io_read"})
_READS |= {"aio_read", "generic_file_splice_read", "filemap_fault", "filemap_read"}
_READS |= {"generic_file_read_iter", "generic_file_buffered_read", "do_generic_file_read"}
"""Functions that read files and block devices."""
_MANY = 10
"""Least tasks of a warning, unless one is hung."""


@dataclass(frozen=True)
class _Snapshot:
    address: int
    origin: int
    """``struct gendisk *`` of the origin's device, or 0."""
    cow: int
    """``struct gendisk *`` of the COW device, or 0."""
    copies: int
    """Copies in flight."""


class Copies(Metadata):
    """Finds the copies that writes to the origins of snapshots wait for."""

    about = "copies of snapshots"
    kinds = (COPIES, LIMIT)
    modules = ("dm_mod", "dm_snapshot")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.copies: dict[int, int] = {}
        """Copies in flight, by origin."""
        self.unproven: list[tuple[NodeKind, int, int]] = []
        """Copies or their limit, and rows of the disks that they may wait for."""

    def note(self) -> None:
        """Note the snapshots whose copies are too many for the tasks that wait."""
        lanes = self._of_type(*_PLACES)
        disks = block_devices(self.kernel).disks if len(lanes) else ()
        if not any(kind_of(disk) is Via.DM for disk in disks):
            return
        known = {
            target.private: device.name
            for device in mapped_devices(self.kernel).devices
            for target in device.targets
            if target.type_name in TARGETS
        }
        if not known:
            return
        # Since Linux kernel commit b21555786f18 ("dm snapshot: rework COW throttling to fix
        # deadlock") (in v5.4, and stable), in_progress_wait; before, a semaphore.
        members = [name for name in _LIMITS if self.kernel.prog.type(_SNAPSHOT).has_member(name)]
        if not members:
            return
        inside = int(self._offset(_SNAPSHOT, members[0]))
        for lane in lanes.tolist():
            snapshot = int(self.object[lane]) - inside
            if snapshot in known:
                self._note(lane, snapshot, _SNAPSHOT, f"dm_snapshot.{members[0]}")
                self.draft.kind[lane] = LIMIT
                self.names[LIMIT, snapshot] = f"of snapshot {known[snapshot] or 'unnamed'}"

    def find(self) -> None:
        """Add edges from origins to the copies in flight to their snapshots, and to COW devices.

        A write to a chunk without a copy waits until the chunk is in the snapshot. Copies, and the
        limit of copies, wait for the COW devices.

        :raises LookupError: the debug info lacks a type of dm-snapshot
        """
        try:
            own = self._snapshots()
        except NotRecorded:
            own = self._without_devices()
        if not own:
            return
        if len(self._waiting()) and any(each.cow for each in own):
            stores = zip(self._stores(own).tolist(), (each.cow for each in own), strict=True)
            known = {store: cow for store, cow in stores if store}
            self._to_metadata(known, "dm_snapshot.cow", frozenset({"dm_snapshot"}))
        disks, below = block_devices(self.kernel).disks, stacks(self.kernel)
        is_limit = np.array([kind is LIMIT for kind in self.draft.kind], np.bool_)
        limits = {*self.object[is_limit].tolist()}
        for each in own:
            if each.copies and each.address in limits:
                self._to_cows(LIMIT, each.address, [each])
        for row, origin in mapped_disks(self):
            if not any(target.type_name == _ORIGIN for target in origin.targets):
                continue
            lower = {disks[each].address for each in below.lower(row)}
            copied = [each for each in own if each.copies and each.origin in lower]
            if not copied:
                continue
            count = sum(each.copies for each in copied)
            self.copies[origin.address] = count
            self.names[COPIES, origin.address] = f"to snapshots of {shown(self, row, origin)}"
            self._delay(row, origin.address)
            self._to_cows(COPIES, origin.address, copied)

    def _delay(self, row: int, origin: int) -> None:
        """Add edges to the copies from an origin, and from what tasks wait for that write to it.

        :param row: of the origin's disk
        """
        disks = block_devices(self.kernel).disks
        over = [disks[upper].address for upper in above(stacks(self.kernel), row)]
        tasks = np.flatnonzero(np.isin(self.waits.disk, np.array(over, np.uint64)))
        # The others wait for a known request or bio, and not for the device as such.
        known_io = np.concatenate([joined(self.kernel).wait, held(self.kernel).wait])
        tasks = np.setdiff1d(tasks[self.object[tasks] != 0], known_io)
        readers = np.intersect1d(tasks, self._having(_READS))
        strength = Strength.DERIVED
        if len(readers):
            # Reads wait for no copies, but share the node of the device.
            strength = Strength.POSSIBLE
            writers = np.setdiff1d(tasks, readers)
            self.build.edges(
                DELAYED,
                ([self.draft.kind_of(lane) for lane in writers.tolist()], self.object[writers]),
                (COPIES, np.full(len(writers), origin, np.uint64)),
                "dm_snapshot.in_progress",
                strength=Strength.DERIVED,
            )
        self.build.edges(
            DELAYED,
            (DEVICE, np.array([disks[row].address], np.uint64)),
            (COPIES, np.array([origin], np.uint64)),
            "dm_snapshot.in_progress",
            strength=strength,
        )

    def conclude(self) -> None:
        """Add edges to the COW devices of copies without a request.

        They may read the origin, or wait for memory, unless something keeps the I/O of the COW.
        """
        disks = block_devices(self.kernel).disks
        for kind, address, row in self.unproven:
            is_kept = disks[row].address in self.draft.keeping
            self.build.edges(
                COPIED,
                (kind, np.array([address], np.uint64)),
                nodes_of(self, np.array([row], np.int64)),
                "dm_snapshot.cow",
                strength=Strength.DERIVED if is_kept else Strength.POSSIBLE,
            )

    @cached_property
    def _rows(self) -> dict[int, int]:
        """Row of each disk by its address."""
        return {disk.address: row for row, disk in enumerate(block_devices(self.kernel).disks)}

    def _snapshots(self) -> list[_Snapshot]:
        """Return the snapshots, with their copies in flight."""
        found = [target.private for _, _, target in targets(self, _SNAPSHOT, *TARGETS)]
        if not found:
            return []
        members = {"origin": "origin", "cow": "cow", "pending": "pending_exceptions_count.counter"}
        if self.kernel.prog.type(_SNAPSHOT).has_member("in_progress"):
            members["in_progress"] = "in_progress"
        read = self._read(_SNAPSHOT, np.array(found, np.uint64), members)
        copies = read["pending"]
        if "in_progress" in members:
            copies = np.where(read["in_progress"] > 0, read["in_progress"], copies)
        columns = self._disks(read["origin"]), self._disks(read["cow"]), np.maximum(copies, 0)
        return [
            _Snapshot(address, *values)
            for address, *values in zip(found, *(each.tolist() for each in columns), strict=True)
        ]

    def _without_devices(self) -> list[_Snapshot]:
        """Return the snapshots of a capsule of an older version, which lacks COW devices."""
        disks = {disk.name: disk.address for disk in block_devices(self.kernel).disks}
        known = snapshots(self.kernel.memory, mapped_devices(self.kernel).devices).all
        return [
            _Snapshot(
                each.address, disks.get(each.origin_disk, 0), 0, each.in_flight or each.pending
            )
            for each in known
        ]

    def _to_cows(self, kind: NodeKind, address: int, own: list[_Snapshot]) -> None:
        """Add edges to the requests of the copies to snapshots, or else note the COW devices."""
        own = [each for each in own if each.cow]
        if not own:
            return
        known = self._own_io()
        client = self._member(_SNAPSHOT, "kcopyd_client", _addresses(own))
        clients = self._member("struct dm_kcopyd_client", "io_client", client)
        store = self._stores(own)
        # Exceptions are written by a client of their own, if there is a store on the disk.
        stored = self._member("struct pstore", "io_client", store, is_guess=True)
        rows = set[int]()
        for each, *mine in zip(own, clients.tolist(), stored.tolist(), strict=True):
            is_own = (known.client != 0) & np.isin(known.client, np.array(mine, np.uint64))
            rows.update(known.request[is_own].tolist())
            if not is_own.any():
                self.unproven.append((kind, address, self._rows[each.cow]))
        if rows:
            row, proof = np.array(sorted(rows), np.int64), "io.client"
            target = REQUEST, requests(self.kernel).address[row]
            source = kind, np.full(len(row), address, np.uint64)
            self.build.edges(COPIED, source, target, proof, strength=Strength.DERIVED)
            serve_requests(self, row)

    def _stores(self, own: list[_Snapshot]) -> Words:
        """Return the data of each snapshot's store of exceptions, or 0 where it is damaged."""
        known = _addresses(own)
        store = self._member(_SNAPSHOT, "store", known)
        read = self._read("struct dm_exception_store", store, ["snap", "context"])
        return np.where(read["snap"] == known, read["context"], np.uint64(0))

    def hint(self, kind: NodeKind, address: int) -> str:
        """Return the number of copies, for the finding about the COW device."""
        return self._copies(address) if kind is COPIES and address in self.copies else ""

    def _copies(self, origin: int) -> str:
        """Return the number of copies, and of what; not safe to print."""
        count = counted(self.copies[origin], "copy", plural="copies")
        return f"{count} {self.names[COPIES, origin]}"

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about writes to an origin, which copies or their limit delay."""
        if kind not in (COPIES, LIMIT):
            return None
        is_limit, name = kind is LIMIT, self.names[kind, address]
        subject = name.removeprefix("of snapshot " if is_limit else "to snapshots of ")
        found = stall.finding(
            "waits-copies",
            printable(subject),
            printable(f"the copy limit {name}" if is_limit else self._copies(address)),
            "a write to an origin waits until its old content is in all snapshots"
            + ", of which each has a limit of copies in flight" * is_limit,
            advice="`kcensus kcopyd TARGET --table snapshots` has their COW devices",
            severity=stall.severity(LATE if stall.count >= _MANY else HUNG),
            figures={} if is_limit else {"copies": Figure(self.copies[address])},
        )
        return replace(
            found,
            is_generic=True,
            part_of=f"dm-snapshot-waiters:{subject}" if is_limit else "kcopyd-unthrottled",
        )


def _addresses(own: list[_Snapshot]) -> Words:
    return np.array([each.address for each in own], np.uint64)


FINDER = Copies
