# SPDX-License-Identifier: LGPL-2.1-or-later
"""Copies of dm-snapshot that writes to an origin wait for, and the limit of copies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from kcensus.human import counted
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Via, kind_of, stacks
from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.dm.snapshots import TARGETS, snapshots
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.results import Figure, Finding
from kcensus.results.severity import HUNG, LATE
from kcensus.text import printable

COPIES = NodeKind("copies", is_any=True, is_io=True)
"""Copies in flight to the snapshots of an origin."""
LIMIT = NodeKind("copy limit", ("struct dm_snapshot",))
"""One of :data:`_LIMITS`."""
DELAYED = EdgeKind("delayed by", "delays the writes to")
_LIMITS = "in_progress_wait", "cow_count"
"""Members of a snapshot that a write waits for when too many copies are in flight."""
_PLACES = "struct wait_queue_head", "struct __wait_queue_head", "struct semaphore"
_ORIGIN, _SNAPSHOT = "snapshot-origin", "struct dm_snapshot"
_MANY = 10
"""Least tasks of a warning, unless one is hung."""


class Copies(Finder):
    """Finds the copies that writes to the origins of snapshots wait for."""

    about = "copies of snapshots"
    kinds = (COPIES, LIMIT)
    modules = ("dm_mod", "dm_snapshot")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.copies: dict[int, int] = {}
        """Copies in flight, by origin."""

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
        """Add edges from origins that tasks wait for to the copies in flight to their snapshots.

        A write to a chunk without a copy waits until the chunk is in the snapshot.

        :raises LookupError: the debug info lacks a type of dm-snapshot
        """
        disks, below = block_devices(self.kernel).disks, stacks(self.kernel)
        awaited = {int(disk) for disk in np.unique(self.waits.disk).tolist() if disk}
        found = [row for row, disk in enumerate(disks) if disk.address in awaited]
        every = set().union(*map(below.below, found))
        wanted = {row for row in every if kind_of(disks[row]) is Via.DM}
        if not wanted:
            return
        mapped = {device.address: device for device in mapped_devices(self.kernel).devices}
        origins = {
            row: mapped[disks[row].private]
            for row in sorted(wanted)
            if disks[row].private in mapped
            and any(target.type_name == _ORIGIN for target in mapped[disks[row].private].targets)
        }
        if not origins:
            return
        copies: Counter[str] = Counter()
        for snapshot in snapshots(self.kernel.memory, mapped.values()).all:
            copies[snapshot.origin_disk] += snapshot.in_flight or snapshot.pending
        for row, origin in origins.items():
            count = sum(copies[disks[lower].name] for lower in below.lower(row))
            if not count:
                continue
            name = f"{counted(count, 'copy', plural='copies')} to snapshots of {disks[row].name}"
            self.copies[origin.address] = count
            self.names[COPIES, origin.address] = f"{name} ({origin.name or 'unnamed'})"
            self.build.edges(
                DELAYED,
                (DEVICE, np.array([disks[row].address], np.uint64)),
                (COPIES, np.array([origin.address], np.uint64)),
                "dm_snapshot.in_progress",
                strength=Strength.DERIVED,
            )

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about writes to an origin, which copies or their limit delay."""
        if kind not in (COPIES, LIMIT):
            return None
        is_limit, name = kind is LIMIT, self.names[kind, address]
        subject = name.partition(" snapshot " if is_limit else " snapshots of ")[2]
        found = stall.finding(
            "waits-copies",
            printable(subject),
            f"the copy limit {printable(name)}" if is_limit else printable(name),
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


FINDER = Copies
