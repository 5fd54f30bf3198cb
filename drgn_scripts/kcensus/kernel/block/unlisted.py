# SPDX-License-Identifier: LGPL-2.1-or-later
"""Disks that other lists of the kernel know, but the list of all devices lacks."""

from __future__ import annotations

import contextlib

import drgn
import numpy as np
from drgn import Object

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.block.disks import MAX_DEVICES, BlockDevices, QueueKind, block_devices
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import decode
from kcensus.sources.capsule import NotRecorded


@once
def unlisted_disks(kernel: Kernel) -> list[str]:
    """Return the names of disks that :func:`block_devices` lacks; see :func:`missing_from`."""
    return missing_from(block_devices(kernel), kernel)


def missing_from(devices: BlockDevices, kernel: Kernel) -> list[str]:
    """Return the names of disks on the list of block devices' inodes, or in sets of tags, which
    are not in ``devices``; not safe to print.

    What these lists lack themselves proves nothing: older kernels make the inode of a disk when it
    is opened, and name no disk in its queue.
    """
    found = np.unique(np.concatenate([_of_inodes(kernel), _of_tag_sets(kernel, devices)]))
    known = np.array([disk.address for disk in devices.disks], np.uint64)
    disks = (
        Object(kernel.prog, "struct gendisk *", int(each))
        for each in np.setdiff1d(found[found != 0], known)
    )
    return [decode(disk.disk_name.string_()) for disk in disks if _is_device(disk)]


def _is_device(disk: Object) -> bool:
    """Return whether a disk is on the list of all devices: it was added, and not removed since."""
    with contextlib.suppress(drgn.FaultError, NotRecorded):
        return _is_listed(disk)
    return False


def _is_listed(disk: Object) -> bool:
    part = disk.part0
    device = part.bd_device if part.type_.kind == drgn.TypeKind.POINTER else part.member_("__dev")
    # Since v5.1, the node is in the private part of the device.
    holder = device if device.type_.has_member("knode_class") else device.p
    return bool(holder.knode_class.n_klist)


def is_removed(disk: Object) -> bool:
    """Return whether a disk was removed; tables of device mapper may keep it for long."""
    with contextlib.suppress(drgn.FaultError, NotRecorded):
        part = disk.part0
        is_disk = part.type_.kind != drgn.TypeKind.POINTER or part.bd_disk == disk
        return bool(disk) and is_disk and not _is_listed(disk)
    return False


def _of_inodes(kernel: Kernel) -> Words:
    """Return the ``struct gendisk`` of the block devices that have an inode; may be 0."""
    prog, memory = kernel.prog, kernel.memory
    with contextlib.suppress(LookupError, drgn.FaultError, NotRecorded):
        holder, inode = prog.type("struct bdev_inode"), prog.type("struct inode")
        head = prog["blockdev_superblock"].s_inodes.address_of_().value_()
        faults = Faults()
        heads = np.array([head], np.uint64)
        _, nodes, _ = list_members(memory, heads, faults, limit=MAX_DEVICES)
        step = drgn.offsetof(inode, "i_sb_list") + drgn.offsetof(holder, "vfs_inode")
        columns = layout(prog, holder, {"disk": "bdev.bd_disk"})
        return gather(memory, nodes - np.uint64(step), columns, faults)["disk"]
    return np.empty(0, np.uint64)


def _of_tag_sets(kernel: Kernel, devices: BlockDevices) -> Words:
    """Return the ``struct gendisk`` of all queues that share tags with known ones; may be 0."""
    prog, memory = kernel.prog, kernel.memory
    type_ = prog.type("struct request_queue")
    with contextlib.suppress(LookupError, NotRecorded):
        _, queues = devices.of_kind(QueueKind.MULTI)
        faults = Faults()
        sets = gather(memory, queues, layout(prog, type_, ["tag_set"]), faults)["tag_set"]
        inside = drgn.offsetof(prog.type("struct blk_mq_tag_set"), "tag_list")
        heads = np.unique(sets[sets != 0]) + np.uint64(inside)
        _, nodes, _ = list_members(memory, heads, faults, limit=MAX_DEVICES)
        every = nodes - np.uint64(drgn.offsetof(type_, "tag_set_list"))
        return gather(memory, every, layout(prog, type_, ["disk"]), faults)["disk"]
    return np.empty(0, np.uint64)
