# SPDX-License-Identifier: LGPL-2.1-or-later
"""Owners of locks and pages: a process, a file system, a file, a disk or a snapshot.

The owner of a lock is at its address less the offset of a member. That counts only if the owner is
on a list of the kernel, or is proven by its own pointers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import drgn
import numpy as np

from kcensus.engine.chase import circular
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.kernel.block.disks import Disk, block_devices
from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.dm.snapshots import snapshots
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import ABSENT
from kcensus.kernel.tasks.places import places_of_inodes, stat_is_block
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.vfs.files import file_paths
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.workqueues import workqueues
from kcensus.sources.capsule import NotRecorded
from kcensus.text import task_name

_UNKNOWN = (*ABSENT, NotRecorded, UnsupportedAllocator, AttributeError, ValueError, TypeError)
_MEMBERS = {
    "struct super_block": (
        "s_umount s_vfs_rename_mutex s_writers.rw_sem[0] s_writers.rw_sem[1] s_writers.rw_sem[2]"
    ),
    # Since Linux kernel commit da1c55f1b272 ("mmap locking API: rename mmap_sem to mmap_lock") (in
    # v5.8), mmap_lock.
    "struct mm_struct": "mmap_lock mmap_sem",
    # Since Linux kernel commit f7cfd871ae0c ("exec: Transform exec_update_mutex into a
    # rw_semaphore") (in v5.11), exec_update_lock.
    "struct signal_struct": "cred_guard_mutex exec_update_lock exec_update_mutex",
    "struct block_device": "bd_mutex bd_fsfreeze_mutex",
    "struct gendisk": "open_mutex",
    "struct request_queue": "sysfs_lock limits_lock elevator_lock",
    "struct workqueue_struct": "mutex",
    "struct dm_snapshot": "lock cow_count",
    # Since Linux kernel commit 9902af79c01a ("parallel lookups: actual switch to rwsem") (in v4.7),
    # i_rwsem.
    "struct inode": (
        "i_rwsem i_mutex i_data.invalidate_lock i_data.i_mmap_rwsem i_data.i_mmap_mutex"
    ),
}
"""Locks of objects, by type."""
_MAX_DEVICES = 1 << 20
_LEVELS = {
    "s_writers.rw_sem[0]": "s_writers (write)",
    "s_writers.rw_sem[1]": "s_writers (page faults)",
    "s_writers.rw_sem[2]": "s_writers (internal)",
}
_ANONYMOUS = 1
"""Lowest bits of ``page.mapping`` of anonymous memory: PAGE_MAPPING_ANON alone."""

Owners = Iterator[tuple[int, str]]


def lock_names(kernel: Kernel, tasks: Tasks, locks: Sequence[int]) -> dict[int, str]:
    """Return the names of locks, such as ``mmap_lock of java (PID 12)``; not safe to print.

    Locks without a known owner are left out.
    """
    names: dict[int, str] = {}
    wanted = set(locks)
    for type_, owners in _owners(kernel, tasks).items():
        try:
            offsets = _offsets(kernel, type_)
            for address, name in owners():
                for offset, member in offsets.items():
                    if address + offset in wanted:
                        names.setdefault(address + offset, f"{member} of {name}")
        except _UNKNOWN:
            continue
    with contextlib.suppress(*_UNKNOWN):
        names |= _of_inodes(kernel, np.array(sorted(wanted - set(names)), np.uint64))
    return names


def page_names(kernel: Kernel, pages: Sequence[int]) -> dict[int, str]:
    """Return the file of each page, or "anonymous"; not safe to print."""
    try:
        return _of_pages(kernel, np.array(sorted(set(pages)), np.uint64))
    except _UNKNOWN:
        return {}


def worker_names(kernel: Kernel) -> dict[int, str]:
    """Return the workqueue of each busy worker's work, by PID; not safe to print."""
    try:
        known = workqueues(kernel)
    except _UNKNOWN:
        return {}
    running = known.items[known.items["state"] == "in-flight"]
    pairs = zip(running["pid"].tolist(), running["wq"].tolist(), strict=True)
    return {pid: known.names[wq] for pid, wq in pairs if pid and known.names.get(wq)}


def _offsets(kernel: Kernel, type_: str) -> dict[int, str]:
    found: dict[int, str] = {}
    struct = kernel.prog.type(type_)
    for path in _MEMBERS[type_].split():
        with contextlib.suppress(LookupError, TypeError):
            # RHEL 8 has mm_struct.mmap_sem besides mmap_lock, in a union: the first name counts.
            found.setdefault(
                drgn.offsetof(struct, path), _LEVELS.get(path, path.rpartition(".")[2])
            )
    return found


def _owners(kernel: Kernel, tasks: Tasks) -> dict[str, Callable[[], Owners]]:
    def disks() -> Sequence[Disk]:
        return block_devices(kernel).disks

    return {
        "struct super_block": lambda: _super_blocks(kernel),
        "struct mm_struct": lambda: _of_tasks(tasks, "mm"),
        "struct signal_struct": lambda: _of_tasks(tasks, "signal"),
        "struct block_device": lambda: _listed_devices(kernel),
        "struct gendisk": lambda: ((disk.address, disk.name) for disk in disks()),
        "struct request_queue": lambda: ((disk.queue, disk.name) for disk in disks()),
        "struct workqueue_struct": lambda: (
            (address, f"workqueue {name}") for address, name in workqueues(kernel).names.items()
        ),
        "struct dm_snapshot": lambda: (
            (each.address, f"snapshot {each.device.name}")
            for each in snapshots(
                kernel.memory, mapped_devices(kernel).devices, live=kernel.live
            ).all
        ),
    }


def _listed_devices(kernel: Kernel) -> Owners:
    """Yield the block devices of kernels with a list of all, ``all_bdevs``.

    These kernels have ``bd_mutex``; later ones have ``gendisk.open_mutex`` in its place.
    """
    prog, faults = kernel.prog, Faults()
    head = int(prog["all_bdevs"].address_of_())
    nodes, _ = circular(kernel.memory, head, faults, limit=_MAX_DEVICES)
    devices = nodes - np.uint64(drgn.offsetof(prog.type("struct block_device"), "bd_list"))
    numbers = layout(prog, "struct block_device", {"number": "bd_dev"})
    read = gather(kernel.memory, devices, numbers, faults)
    known = devices[read.readable].tolist()
    for address, number in zip(known, read["number"][read.readable].tolist(), strict=True):
        yield address, _device(kernel, number)


def _device(kernel: Kernel, number: int) -> str:
    names = {disk.number: disk.name for disk in block_devices(kernel).disks}
    return names.get(number, f"{number >> 20}:{number & 0xFFFFF}")


def _super_blocks(kernel: Kernel) -> Owners:
    blocks = super_blocks(kernel)
    for row, address in enumerate(blocks.address.tolist()):
        name = f"on {blocks.mount[row]}" if blocks.mount[row] else blocks.id[row]
        yield address, f"{blocks.type[row]} {name}"


def _of_tasks(tasks: Tasks, member: str) -> Owners:
    """Yield the targets of a pointer of tasks, with the name of the lowest PID: the main thread."""
    to = tasks.owned[member]
    order = np.argsort(tasks.pid, kind="stable")
    targets, first = np.unique(to[order], return_index=True)
    for target, row in zip(targets.tolist(), order[first].tolist(), strict=True):
        if target:
            yield target, task_name(tasks.comm[row], tasks.pid[row])


def _of_inodes(kernel: Kernel, locks: Words) -> dict[int, str]:
    """Return the names of the locks of inodes.

    An inode has a known super block, and its page cache points back to it.
    """
    names: dict[int, str] = {}
    for offset, member in _offsets(kernel, "struct inode").items():
        inodes = np.where(locks > offset, locks - np.uint64(offset), np.uint64(0))
        proven = _proven_inodes(kernel, inodes)
        texts = _files(kernel, inodes[proven])
        for lock, inode in zip(locks[proven].tolist(), inodes[proven].tolist(), strict=True):
            if inode in texts:
                names[lock] = f"{member} of {texts[inode]}"
    return names


def _proven_inodes(kernel: Kernel, inodes: Words) -> Mask:
    members = layout(kernel.prog, "struct inode", {"block": "i_sb", "host": "i_data.host"})
    read = gather(kernel.memory, inodes, members, Faults())
    proven = read.readable & (inodes != 0) & (read["host"] == inodes)
    return np.asarray(proven & (super_blocks(kernel).rows(read["block"]) >= 0))


def _files(kernel: Kernel, inodes: Words) -> dict[int, str]:
    """Return the path of each file, and the disk of each block device's inode."""
    texts = file_paths(kernel, inodes, Faults())
    where = places_of_inodes(kernel, inodes, Faults())
    members = layout(kernel.prog, "struct inode", {"mode": "i_mode"})
    is_block = stat_is_block(gather(kernel.memory, inodes, members, Faults())["mode"])
    for row in np.flatnonzero(is_block).tolist():
        number, inode = int(where.device[row]), int(inodes[row])
        if inode in texts and number >= 0:
            texts[inode] = f"block device {_device(kernel, number)}"
    return texts


def _of_pages(kernel: Kernel, pages: Words) -> dict[int, str]:
    prog, memory, faults = kernel.prog, kernel.memory, Faults()
    mapping = gather(memory, pages, layout(prog, "struct page", ["mapping"]), faults)["mapping"]
    flags = mapping & np.uint64(3)
    data = np.uint64(drgn.offsetof(prog.type("struct inode"), "i_data"))
    is_file = (mapping > data) & (flags == 0)
    inodes = np.where(is_file, mapping - data, np.uint64(0))
    proven = _proven_inodes(kernel, inodes)
    texts = _files(kernel, inodes[proven])
    names = {
        page: f"of {texts[inode]}"
        for page, inode in zip(pages[proven].tolist(), inodes[proven].tolist(), strict=True)
        if inode in texts
    }
    # The root of a tree of anonymous memory is its own root.
    root = layout(prog, "struct anon_vma", ["root"])
    areas = np.where(flags == _ANONYMOUS, mapping & ~np.uint64(3), np.uint64(0))
    roots = gather(memory, areas, root, faults)["root"]
    own = gather(memory, roots, root, faults)["root"]
    is_anonymous = (areas != 0) & (roots != 0) & (own == roots)
    return names | {page: f"0x{page:x} (anonymous)" for page in pages[is_anonymous].tolist()}
