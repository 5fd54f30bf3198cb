# SPDX-License-Identifier: LGPL-2.1-or-later
"""Disks on top of others: the lower disks whose requests a stacked disk waits for."""

from __future__ import annotations

import contextlib
import re
import stat
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import drgn
import numpy as np
from drgn import Object, cast

from kcensus.engine.memory import Faults
from kcensus.engine.zeros import present
from kcensus.human import listed
from kcensus.kernel.block.disks import BlockDevices, Disk, block_devices
from kcensus.kernel.block.unlisted import is_removed
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.vfs.files import file_paths
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable

_MAX_LOWER = 1 << 16
"""Most devices of one table or array."""


class Via(Enum):
    """Kinds of stacking of disks: how their names begin, the member with the lower devices, and the
    module that has its type."""

    DM = "dm-", "dm_table.devices", "dm_mod"
    MD = "md", "mddev.disks", "md_mod"
    LOOP = "loop", "loop_device.lo_backing_file", "loop"

    def __init__(self, prefix: str, member: str, module: str) -> None:
        self.prefix, self.member, self.module = prefix, member, module


_DRIVERS = (
    (Via.DM.prefix, re.compile(r"dm_\w+")),
    (Via.MD.prefix, re.compile(r"md_mod|raid\w+")),
    (Via.LOOP.prefix, re.compile(r"loop")),
    ("nbd", re.compile(r"nbd")),
    *((name, re.compile(r"\w*scsi\w*")) for name in ("sd", "sr")),
)
"""Modules that serve disks, by the first letters of the disks' names."""


@dataclass(frozen=True)
class Edge:
    """A disk on top of another one, or of a partition of it."""

    upper: int
    """Row of the disk."""
    lower: int
    """Row of the disk below it."""
    partition: int
    """Number of the partition of ``lower``; 0 for the whole disk."""
    via: Via


@dataclass
class Stacks:
    """All edges between disks; a row is that of ``disks()``."""

    edges: tuple[Edge, ...]
    """By ``upper``."""
    unknown: dict[int, str] = field(default_factory=dict)
    """Stacked disks with unknown lower disks, and the part missing from the debug info or the dump;
    not safe to print."""
    faults: Faults = field(default_factory=Faults)

    @cached_property
    def _lower(self) -> dict[int, list[int]]:
        """Rows directly below each stacked disk."""
        lower: dict[int, list[int]] = defaultdict(list)
        for edge in self.edges:
            lower[edge.upper].append(edge.lower)
        return dict(lower)

    def lower(self, upper: int) -> list[int]:
        """Return the rows directly below a disk."""
        return self._lower.get(upper, [])

    def below(self, upper: int) -> frozenset[int]:
        """Return all disks below a disk, itself included; loops of edges end."""
        seen, stack = {upper}, [upper]
        while stack:
            for row in self._lower.get(stack.pop(), ()):
                if row not in seen:
                    seen.add(row)
                    stack.append(row)
        return frozenset(seen)

    def bottom(self, upper: int) -> frozenset[int]:
        """Return the disks at the bottom of a stack: without a disk below them."""
        return frozenset(row for row in self.below(upper) if row not in self._lower)


def mounted_on(kernel: Kernel, disk: int, *, most: int = 2) -> str:
    """Return where the file systems on a disk, and on disks stacked on it, are mounted.

    Such as ``mounted on /, /srv and 3 more``, printable; empty without any.

    :param disk: its row
    """
    found = []
    with contextlib.suppress(*DAMAGED):
        blocks, every = super_blocks(kernel), stacks(kernel)
        rows = block_devices(kernel).rows_of_numbers(blocks.device.astype(np.int64))
        for mount, row in zip(blocks.mount, rows.tolist(), strict=True):
            if mount and row >= 0 and disk in every.below(row):
                found.append(printable(mount))
    shortest = sorted(found, key=lambda each: (len(each), each))
    return f"mounted on {listed(shortest, most)}" * bool(found)


@once
def stacks(kernel: Kernel) -> Stacks:
    """Return the stacking of disks by device mapper, md and loop devices.

    :raises LookupError: the debug info lacks block devices
    """
    devices = block_devices(kernel)
    edges: set[Edge] = set()
    unknown: dict[int, str] = {}
    faults = Faults()
    for row, disk in enumerate(devices.disks):
        kind = kind_of(disk)
        if kind is None or not disk.private:
            continue
        try:
            lower = _READERS[kind](kernel, disk, devices, faults)
        except (LookupError, NotRecorded) as error:
            unknown[row] = str(error)
        except drgn.FaultError as error:
            faults.note(error)
            unknown[row] = "the memory of its driver"
        else:
            edges.update(Edge(row, under, part, kind) for under, part in lower)
    order = sorted(edges, key=lambda edge: (edge.upper, edge.lower, edge.partition))
    return Stacks(tuple(order), unknown, faults)


def untyped_below(kernel: Kernel, disk: int) -> list[str]:
    """Return the modules without types that serve a disk, or the known disks below it.

    Empty where the disks are unknown.

    :param disk: its row
    """
    found = set[str]()
    with contextlib.suppress(*DAMAGED):
        disks = block_devices(kernel).disks if kernel.untyped_modules else ()
        for row in stacks(kernel).below(disk) if disks else ():
            own = [of for start, of in _DRIVERS if disks[row].name.startswith(start)]
            found |= {name for name in kernel.untyped_modules for of in own if of.fullmatch(name)}
    return sorted(found)


def kind_of(disk: Disk) -> Via | None:
    """Return the driver that stacks a disk on others; None for other drivers."""
    # Names are the drivers' own; /dev/md_dNN and mdN/… are md, too.
    return next((kind for kind in Via if disk.name.startswith(kind.prefix)), None)


_Lower = list[tuple[int, int]]
"""Row of a disk, and number of its partition."""


def _row(devices: BlockDevices, bdev: Object) -> _Lower:
    if not bdev:
        return []
    address = int(bdev.value_())
    # Until v5.10, a partition is a struct hd_struct, which the block device points to.
    part = int(bdev.bd_part) if bdev.type_.type.has_member("bd_part") else address
    row = int(devices.partitions.rows(np.array([part], np.uint64))[0])
    if row < 0 or devices.partitions.disk[row] < 0:
        return []
    return [(int(devices.partitions.disk[row]), int(devices.partitions.number[row]))]


def _below(
    kernel: Kernel, devices: BlockDevices, bdevs: Iterable[Object], faults: Faults
) -> _Lower:
    """Return the disks that a driver names; unless removed, each is on the kernel's list."""
    found: _Lower = []
    for bdev in bdevs:
        row = _row(devices, bdev)
        # On a running kernel, disks come and go between the readings.
        if not row and not kernel.live and not (bdev and is_removed(bdev.bd_disk)):
            faults["a disk below another one is on no list"] += 1
        found += row
    return found


def _dm(kernel: Kernel, disk: Disk, devices: BlockDevices, faults: Faults) -> _Lower:
    mapped = Object(kernel.prog, "struct mapped_device *", value=disk.private)
    table = cast("struct dm_table *", present(mapped[0]).map)
    if not table:
        return []
    listed = _listed(kernel, table.devices, "struct dm_dev_internal", "list", faults)
    return _below(kernel, devices, (each.dm_dev.bdev for each in listed), faults)


def _md(kernel: Kernel, disk: Disk, devices: BlockDevices, faults: Faults) -> _Lower:
    array = Object(kernel.prog, "struct mddev *", value=disk.private)
    listed = _listed(kernel, present(array[0]).disks, "struct md_rdev", "same_set", faults)
    return _below(kernel, devices, (each.bdev for each in listed), faults)


def _listed(
    kernel: Kernel, head: Object, type_name: str, link: str, faults: Faults
) -> list[Object]:
    node, start = kernel.prog.type(type_name), np.array([head.address_of_().value_()], np.uint64)
    _, nodes, torn = list_members(kernel.memory, start, faults, limit=_MAX_LOWER)
    if len(torn):
        faults[f"a list of {type_name} is torn"] += 1
    addresses = (nodes - np.uint64(drgn.offsetof(node, link))).tolist()
    return [Object(kernel.prog, node, address=address) for address in addresses]


def _loop(kernel: Kernel, disk: Disk, devices: BlockDevices, faults: Faults) -> _Lower:
    """Return the disk of the file system of a loop device's file, or the device itself.

    A file on tmpfs, NFS or another file system without a block device is on none.

    :raises LookupError: the disk is not on the kernel's list
    """
    loop = Object(kernel.prog, "struct loop_device *", value=disk.private)
    file = present(loop[0]).lo_backing_file
    if not file:
        return []
    inode = file.f_mapping.host
    if stat.S_ISBLK(int(inode.i_mode)):
        found = _by_number(devices, int(inode.i_rdev))
    else:
        is_known = super_blocks(kernel).rows(np.array([int(inode.i_sb)], np.uint64))[0] >= 0
        if is_known and not inode.i_sb.s_bdev:
            return []
        found = _row(devices, inode.i_sb.s_bdev) if is_known else []
    if not found:
        address = int(inode)
        paths = file_paths(kernel, np.array([address], np.uint64), faults)
        raise LookupError(f"the disk of its file {paths.get(address, f'{address:#x}')}")
    return found


def _by_number(devices: BlockDevices, number: int) -> _Lower:
    parts = devices.partitions
    rows = np.flatnonzero((parts.device == number) & (parts.disk >= 0)).tolist() if number else []
    return [(int(parts.disk[row]), int(parts.number[row])) for row in rows[:1]]


_READERS = {Via.DM: _dm, Via.MD: _md, Via.LOOP: _loop}
