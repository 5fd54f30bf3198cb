# SPDX-License-Identifier: LGPL-2.1-or-later
"""Devices that keep I/O instead of passing it on to the devices below them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Stacks, Via, kind_of, stacks
from kcensus.kernel.dm.devices import DmTarget, MappedDevice, mapped_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.finders.io.devices import nodes_of
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind

KEPT = EdgeKind("kept by", "keeps the I/O of")


def keep(
    finder: Finder, kind: NodeKind, kept: Mapping[int, int], evidence: str, place: int = 0
) -> None:
    """Add edges to the objects that keep I/O, from their devices and from those above them.

    I/O of a device above has no request of its own: it is below this device, on some way down.

    :param kept: address of the object, by row of its disk
    :param place: offset of the member in the object that proves it
    """
    known = stacks(finder.kernel)
    pairs = [(upper, row) for row in kept for upper in sorted(_above(known, row))]
    if not pairs:
        return
    uppers = np.array([upper for upper, _ in pairs], np.int64)
    lowers = np.array([kept[row] for _, row in pairs], np.uint64)
    is_own = np.array([upper == row for upper, row in pairs], np.bool_)
    finder.build.edges(
        KEPT,
        nodes_of(finder, uppers),
        (kind, lowers),
        evidence,
        strength=np.where(is_own, int(Strength.PROVEN), int(Strength.DERIVED)),
        place=lowers + np.uint64(place),
    )


def _above(known: Stacks, row: int) -> set[int]:
    """Return a disk, and the rows above it up to loop devices, which have their own workers."""
    uppers: dict[int, list[int]] = defaultdict(list)
    for edge in known.edges:
        if edge.via is not Via.LOOP:
            uppers[edge.lower].append(edge.upper)
    seen, todo = {row}, [row]
    while todo:
        more = [upper for upper in uppers[todo.pop()] if upper not in seen]
        seen.update(more)
        todo += more
    return seen


def mapped_disks(finder: Finder) -> Iterator[tuple[int, MappedDevice]]:
    """Yield the rows of the disks of device mapper, and their mapped devices."""
    disks = block_devices(finder.kernel).disks
    rows = {disk.private: row for row, disk in enumerate(disks) if kind_of(disk) is Via.DM}
    if not rows.keys() - {0}:
        return
    for device in mapped_devices(finder.kernel).devices:
        if device.address in rows:
            yield rows[device.address], device


def targets(finder: Finder, *names: str) -> Iterator[tuple[int, MappedDevice, DmTarget]]:
    """Yield the targets of some types that have data of their own, with rows of their disks."""
    for row, device in mapped_disks(finder):
        for target in device.targets:
            if target.type_name in names and target.private:
                yield row, device, target


def shown(finder: Finder, row: int, device: MappedDevice) -> str:
    """Return the name of a mapped device, such as ``dm-0 (home)``; not safe to print."""
    return f"{block_devices(finder.kernel).disks[row].name} ({device.name or 'unnamed'})"
