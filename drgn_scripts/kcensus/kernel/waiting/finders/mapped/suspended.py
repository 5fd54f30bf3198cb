# SPDX-License-Identifier: LGPL-2.1-or-later
"""Suspended devices of device mapper, which keep all I/O until they are resumed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Via, kind_of, stacks
from kcensus.kernel.dm.devices import BLOCK_IO_FOR_SUSPEND, DmTarget, MappedDevice, mapped_devices
from kcensus.kernel.tasks.programs import DEVICE_MAPPER, condition
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import keep
from kcensus.kernel.waiting.finders.locks.frozen import FREEZER, FROZEN
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.results import Finding, Remedy
from kcensus.sources.capsule import NotRecorded
from kcensus.text import pasteable, printable

SUSPENDED = NodeKind("suspended device", ("struct mapped_device",))
_SUSPENDED = 1 << 1
"""DMF_SUSPENDED: the suspension is complete."""
_FROZEN = 1 << 2
"""DMF_FROZEN: the suspension has frozen the file system on the device, and the resume thaws it."""


class SuspendedDevices(Finder):
    """Finds the suspended devices below those that tasks wait for."""

    about = "suspended devices"
    kinds = (SUSPENDED,)
    modules = ("dm_mod",)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.flags: dict[int, int] = {}
        """``mapped_device.flags`` by address."""

    def find(self) -> None:
        """Add edges to suspended devices from themselves, and from the devices above them."""
        mapped = dict(mapped_disks(self))
        if not mapped:
            return
        address = np.array([device.address for device in mapped.values()], np.uint64)
        flags = self._member("struct mapped_device", "flags", address).astype(np.uint64)
        self.flags = dict(zip(address.tolist(), flags.tolist(), strict=True))
        is_suspended = (flags & np.uint64(BLOCK_IO_FOR_SUSPEND)) != 0
        kept = {
            row: mapped[row] for row, is_one in zip(mapped, is_suspended, strict=True) if is_one
        }
        for row, device in kept.items():
            self.names[SUSPENDED, device.address] = shown(self, row, device)
        rows = {row: device.address for row, device in kept.items()}
        inside = int(self._offset("struct mapped_device", "flags"))
        keep(self, SUSPENDED, rows, "mapped_device.flags", inside)
        is_frozen = dict(zip(mapped, ((flags & np.uint64(_FROZEN)) != 0).tolist(), strict=True))
        frozen = {row: each for row, each in rows.items() if is_frozen[row]}
        if frozen:
            self._keep_frozen(frozen, inside)

    def _keep_frozen(self, kept: dict[int, int], inside: int) -> None:
        """Add edges from the file systems that suspensions have frozen to the suspended devices.

        :param kept: mapped device by row of its disk
        """
        blocks = super_blocks(self.kernel)
        rows = block_devices(self.kernel).rows_of_numbers(blocks.device.astype(np.int64))
        found = [at for at, row in enumerate(rows.tolist()) if row in kept]
        device = np.array([kept[int(rows[at])] for at in found], np.uint64)
        self.build.edges(
            FROZEN,
            (FREEZER, blocks.address[np.array(found, np.int64)]),
            (SUSPENDED, device),
            "mapped_device.flags",
            place=device + np.uint64(inside),
        )

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a suspended device, with the command to resume it."""
        if kind is not SUSPENDED:
            return None
        known = {each.address: each for each in mapped_devices(self.kernel).devices}
        name = pasteable(known[address].name) if address in known else ""
        title = printable(self.names[kind, address])
        resume = Remedy(
            effect="Resume the device"
            + condition(self.kernel, self.known, DEVICE_MAPPER, "suspended", stall.tasks),
            command=f"dmsetup resume {name}",
            risk="a table that is loaded in the meantime becomes active. Use a shell whose "
            "programs are on another file system; commands of lvm may hang themselves",
        )
        is_done = bool(self.flags.get(address, 0) & _SUSPENDED)
        advice = (
            "Find the program that suspended the device (lvm, dmsetup): `dmsetup info` lists the "
            "names"
            if is_done
            else "Find the task in dm_suspend(), which still waits for the I/O below the device: "
            "`kcensus waits TARGET --table stacks --top 0`; a resume would wait behind it"
        )
        return stall.finding(
            "waits-suspended",
            title,
            f"the suspended device {title}",
            "mapped_device.flags has DMF_BLOCK_IO_FOR_SUSPEND: I/O waits for the resume"
            + ("" if is_done else "; it lacks DMF_SUSPENDED: the suspension is not complete"),
            (resume,) if name and is_done else (),
            advice,
        )


def mapped_disks(finder: Finder) -> Iterator[tuple[int, MappedDevice]]:
    """Yield the rows of the disks of device mapper, and their mapped devices."""
    disks = block_devices(finder.kernel).disks
    rows = {disk.private: row for row, disk in enumerate(disks) if kind_of(disk) is Via.DM}
    if not rows.keys() - {0}:
        return
    for device in mapped_devices(finder.kernel).devices:
        if device.address in rows:
            yield rows[device.address], device


def targets(finder: Finder, type_: str, *names: str) -> list[tuple[int, MappedDevice, DmTarget]]:
    """Return the targets of some types that have data of their own, with rows of their disks.

    :param type_: C type of the data
    :raises LookupError: the debug info lacks the type, and tasks wait for such a device
    :raises NotRecorded: the capsule lacks the type, and tasks wait for such a device
    """
    found = [
        (row, device, target)
        for row, device in mapped_disks(finder)
        for target in device.targets
        if target.type_name in names and target.private
    ]
    if not found:
        return []
    try:
        finder.kernel.prog.type(type_)
    except (LookupError, NotRecorded):
        disks = set(np.unique(finder.waits.disk[finder.known.is_blocked[finder.rows]]).tolist())
        known, every = block_devices(finder.kernel).disks, stacks(finder.kernel)
        uppers = [row for row, disk in enumerate(known) if disk.address in disks]
        awaited = set().union(*map(every.below, uppers))
        if awaited & {row for row, _, _ in found}:
            raise
        return []
    return found


def shown(finder: Finder, row: int, device: MappedDevice) -> str:
    """Return the name of a mapped device, such as ``dm-0 (home)``; not safe to print."""
    return f"{block_devices(finder.kernel).disks[row].name} ({device.name or 'unnamed'})"


FINDER = SuspendedDevices
