# SPDX-License-Identifier: LGPL-2.1-or-later
"""Suspended devices of device mapper, which keep all I/O until they are resumed."""

from __future__ import annotations

import shlex

import numpy as np

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Via, kind_of, stacks
from kcensus.kernel.dm.devices import BLOCK_IO_FOR_SUSPEND, mapped_devices
from kcensus.kernel.waiting.finder import Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.results import Danger, Finding, Remedy, Severity
from kcensus.text import printable

SUSPENDED = NodeKind("suspended device", ("struct mapped_device",))
KEPT = EdgeKind("kept by", "keeps the I/O of")


class SuspendedDevices(Finder):
    """Finds the suspended devices below those that tasks wait for."""

    about = "suspended devices"
    kinds = (SUSPENDED,)
    modules = ("dm_mod",)

    def find(self) -> None:
        """Add edges to suspended devices from themselves, and from the devices above them."""
        disks = block_devices(self.kernel).disks
        mapped = {
            row: disk.private
            for row, disk in enumerate(disks)
            if kind_of(disk) is Via.DM and disk.private
        }
        if not mapped:
            return
        address = np.array(list(mapped.values()), np.uint64)
        flags = self._member("struct mapped_device", "flags", address).astype(np.uint64)
        is_suspended = (flags & np.uint64(BLOCK_IO_FOR_SUSPEND)) != 0
        kept = {row for row, found in zip(mapped, is_suspended.tolist(), strict=True) if found}
        if not kept:
            return
        known = mapped_devices(self.kernel).devices
        names = {device.address: device.name for device in known}
        below = stacks(self.kernel)
        for row in kept:
            name = names.get(mapped[row], "")
            self.names[SUSPENDED, mapped[row]] = f"{disks[row].name} ({name or 'unnamed'})"
        pairs = [
            (upper, row) for upper in range(len(disks)) for row in sorted(below.below(upper) & kept)
        ]
        uppers = np.array([disks[upper].address for upper, _ in pairs], np.uint64)
        lowers = np.array([mapped[row] for _, row in pairs], np.uint64)
        place = lowers + self._offset("struct mapped_device", "flags")
        self.build.edges(
            KEPT, (DEVICE, uppers), (SUSPENDED, lowers), "mapped_device.flags", place=place
        )

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a suspended device, with the command to resume it."""
        if kind is not SUSPENDED:
            return None
        known = {each.address: each for each in mapped_devices(self.kernel).devices}
        name = known[address].name if address in known else ""
        shown = printable(self.names[kind, address])
        severity = stall.severity()
        resume = Remedy(
            effect="Resume the device once the tool that suspended it has ended (lvm, dmsetup, a "
            "snapshot)",
            command=f"dmsetup resume {shlex.quote(name)}",
            risk="a table that is loaded in the meantime becomes active",
            undo=f"dmsetup suspend {shlex.quote(name)}",
        )
        is_plain = bool(name) and printable(name) == name
        return Finding(
            id=f"waits-suspended:{shown}",
            severity=severity,
            danger=Danger.STALL if severity >= Severity.WARNING else Danger.NONE,
            tasks=stall.tasks,
            title=stall.title(f"the suspended device {shown}"),
            evidence="mapped_device.flags has DMF_BLOCK_IO_FOR_SUSPEND: I/O waits for the resume",
            figures=stall.figures,
            remedies=(resume,) if is_plain else (),
            no_remedy=""
            if is_plain
            else "Find the program that suspended the device (lvm, dmsetup): `dmsetup info` lists "
            "the names",
        )


FINDER = SuspendedDevices
