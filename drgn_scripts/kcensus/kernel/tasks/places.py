# SPDX-License-Identifier: LGPL-2.1-or-later
"""The disks of devices, partitions and files."""

from __future__ import annotations

import stat
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.kernel.kernel import Kernel


@dataclass(frozen=True)
class Places:
    """Disks as columns."""

    disk: Words
    """``struct gendisk *``; 0 if unknown."""
    start: Numbers
    """First sector of the device on its disk; -1 if unknown."""
    device: Numbers
    """``dev_t``, as the kernel packs it; -1 if unknown."""


def places_of_devices(kernel: Kernel, devices: Words, faults: Faults) -> Places:
    """Return the disk of each ``struct block_device *``, and the start of the device on it.

    :raises LookupError: the debug info lacks block devices
    """
    memory, prog = kernel.memory, kernel.prog
    # Since Linux kernel commit 0d02129e76ed ("block: merge struct block_device and struct
    # hd_struct") (in v5.11), the start of a partition is in struct block_device.
    members = layout(
        prog,
        "struct block_device",
        {"disk": "bd_disk", "device": "bd_dev"},
        {"start": "bd_start_sect", "part": "bd_part"},
    )
    read = gather(memory, devices, members, faults)
    known = read.readable & (read["disk"] != 0)
    if "start" in members:
        start = read["start"].astype(np.int64)
    else:
        part = layout(prog, "struct hd_struct", ["start_sect"])
        parts = gather(memory, read["part"], part, faults)
        start = parts["start_sect"].astype(np.int64)
        known &= parts.readable
    return Places(
        disk=read["disk"],
        start=np.where(known, start, -1),
        device=np.where(known, read["device"].astype(np.int64), -1),
    )


def places_of_inodes(kernel: Kernel, inodes: Words, faults: Faults) -> Places:
    """Return the disk of each file; for a node of a block device, its ``i_rdev`` alone.

    :raises LookupError: the debug info lacks a type
    """
    memory, prog = kernel.memory, kernel.prog
    members = layout(prog, "struct inode", ["i_mode", "i_rdev", "i_sb"])
    read = gather(memory, inodes, members, faults)
    is_block = stat_is_block(read["i_mode"])
    block = layout(prog, "struct super_block", ["s_dev", "s_bdev"])
    super_block = gather(memory, read["i_sb"], block, faults)
    places = places_of_devices(kernel, super_block["s_bdev"], faults)
    device = np.where(is_block, read["i_rdev"], super_block["s_dev"]).astype(np.int64)
    return Places(
        disk=np.where(is_block, np.uint64(0), places.disk),
        start=np.where(is_block, -1, places.start),
        device=np.where(read.readable, device, -1),
    )


def stat_is_block(mode: npt.NDArray[np.uint16]) -> Mask:
    """Return which modes belong to block devices."""
    return np.asarray((mode & 0o170000) == stat.S_IFBLK)
