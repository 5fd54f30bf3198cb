# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that users chose for storage, in structures that analyses of block I/O read.

They are the labels of XFS file systems and of partitions, the files of loop devices, and the paths
of cgroups that BFQ keeps for its messages. Labels in pages of a disk, such as a super block that
was read, are contents of memory like any other.
"""

from __future__ import annotations

from collections.abc import Iterator

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Bytes, Faults, Words
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.lists import list_members
from kcensus.kernel.xfs.mounts import mounts

_MAX_GROUPS = 1 << 20
"""Cgroups that one disk knows."""
MODULES = ("bfq", "loop", "xfs")
"""Modules whose debug info tells where the names are."""


def storage_names(kernel: Kernel) -> Iterator[tuple[Words, Bytes]]:
    """Yield where arrays of ``char`` with names are, and their bytes; shape (names, bytes).

    What this kernel lacks, or lacks debug info of, has no names that could be found.

    :raises LookupError: the debug info lacks block devices
    """
    for find in (_labels, _partitions, _files, _groups):
        try:
            type_name, member, addresses = find(kernel)
            columns = layout(kernel.prog, type_name, {"name": member})
        except LookupError:
            continue
        known = addresses[addresses != 0]
        read = gather(kernel.memory, known, columns, Faults())
        field = columns.fields["name"]
        places = known[read.readable] + np.uint64(field.offset)
        names = np.ascontiguousarray(read["name"][read.readable])
        yield places, names.view(np.uint8).reshape(len(places), field.dtype.itemsize)


_Found = tuple[str, Path, Words]
"""A type, its member with a name, and where such structures are."""


def _labels(kernel: Kernel) -> _Found:
    return "struct xfs_mount", "m_sb.sb_fname", mounts(kernel).address


def _partitions(kernel: Kernel) -> _Found:
    parts = block_devices(kernel).partitions.address
    # Since Linux kernel commit 0d02129e76ed ("block: merge struct block_device and struct
    # hd_struct") (in v5.11).
    try:
        pointer = layout(kernel.prog, "struct block_device", {"info": "bd_meta_info"})
    except LookupError:
        pointer = layout(kernel.prog, "struct hd_struct", ["info"])
    info = gather(kernel.memory, parts, pointer, Faults())["info"]
    return "struct partition_meta_info", "volname", info


def _files(kernel: Kernel) -> _Found:
    disks = block_devices(kernel).disks
    loops = [disk.private for disk in disks if disk.name.startswith("loop")]
    return "struct loop_device", "lo_file_name", np.array(loops, np.uint64)


def _groups(kernel: Kernel) -> _Found:
    """Return the ``struct bfq_group`` of all cgroups on all disks."""
    prog, memory = kernel.prog, kernel.memory
    group = prog.type("struct bfq_group")
    number = int(prog["blkcg_policy_bfq"].plid)
    lists = np.uint64(drgn.offsetof(prog.type("struct request_queue"), "blkg_list"))
    heads = np.array([disk.queue for disk in block_devices(kernel).disks], np.uint64) + lists
    _, nodes, _ = list_members(memory, heads, Faults(), limit=_MAX_GROUPS)
    type_ = prog.type("struct blkcg_gq")
    places = nodes - np.uint64(drgn.offsetof(type_, "q_node"))
    data = gather(memory, places, layout(prog, type_, {"data": f"pd[{number}]"}), Faults())["data"]
    return "struct bfq_group", "blkg_path", data - np.uint64(drgn.offsetof(group, "pd"))
