# SPDX-License-Identifier: LGPL-2.1-or-later
"""Flushers: writeback of the dirty pages of a device, one for each memory cgroup that has some."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.gather import gather, gather_words
from kcensus.engine.layout import Layout, layout, number_dtype
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.rows import Addressed, rows_of
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import decode_array

_BDI, _FLUSHER = "struct backing_dev_info", "struct bdi_writeback"
_MAX_FLUSHERS = 1 << 20
"""Most flushers: one for each device and memory cgroup that writes to it."""

_MAX_PARTS = 1 << 20
"""Most per-CPU parts of counters to read."""


@dataclass(frozen=True)
class Flushers(Addressed):
    """All flushers as columns."""

    address: Words
    """``struct bdi_writeback``."""
    bdi: Words
    """``struct backing_dev_info``."""
    device: list[str]
    """Name of the bdi: ``253:0``, or what a file system without a disk chose. Not safe to print."""
    disk: Numbers
    """Row of the disk; -1 without one."""
    work: Words
    """``struct work_struct`` that writes the pages."""
    torn: int = 0
    """Lists that could not be followed to their end, and flushers that contradict them."""
    faults: Faults = field(default_factory=Faults)


@once
def flushers(kernel: Kernel) -> Flushers:
    """Return all flushers.

    Since Linux kernel commit 839a8e8660b6 ("writeback: replace custom worker pool implementation
    with unbound workqueue") (in v3.10), a work item of a flusher writes the pages.

    :raises LookupError: the debug info lacks flushers
    :raises drgn.FaultError: the head of the list of devices is unreadable
    """
    prog, memory, faults = kernel.prog, kernel.memory, Faults()
    head = np.array([int(prog["bdi_list"].address_of_())], np.uint64)
    _, node, torn = list_members(memory, head, faults, limit=_MAX_FLUSHERS, verify=not kernel.live)
    lost = len(torn)
    bdi = node - np.uint64(_offset(prog, _BDI, "bdi_list"))
    names = layout(prog, _BDI, {}, {"name": "dev_name"})
    read = gather(memory, bdi, names, faults)
    bdi_names = (
        [decode_array(name) for name in read["name"]] if "name" in names else [""] * len(bdi)
    )
    # Since Linux kernel commit b817525a4a80 ("writeback: bdi_writeback iteration must not skip
    # dying ones") (in v4.3), a list has all flushers of a device, several since v4.2.
    lane, address = np.arange(len(bdi)), bdi + np.uint64(_offset(prog, _BDI, "wb"))
    if prog.type(_BDI).has_member("wb_list"):
        heads = bdi + np.uint64(_offset(prog, _BDI, "wb_list"))
        lane, node, torn = list_members(
            memory, heads, faults, limit=_MAX_FLUSHERS, total=_MAX_FLUSHERS, verify=not kernel.live
        )
        lost += len(torn)
        address = node - np.uint64(_offset(prog, _FLUSHER, "bdi_node"))
    back = gather(memory, address, layout(prog, _FLUSHER, ["bdi"]), faults)
    sound = back.readable & (back["bdi"] == bdi[lane])
    lost += int(np.count_nonzero(~sound))
    lane, address = lane[sound], address[sound]
    return Flushers(
        address=address,
        bdi=bdi[lane],
        device=[bdi_names[row] for row in lane.tolist()],
        disk=_disks(kernel, bdi, faults)[lane],
        work=address + np.uint64(_offset(prog, _FLUSHER, "dwork.work")),
        torn=lost,
        faults=faults,
    )


def _disks(kernel: Kernel, bdi: Words, faults: Faults) -> Numbers:
    """Return the row of the disk of each bdi, or -1."""
    prog, disks = kernel.prog, block_devices(kernel).disks
    # Since Linux kernel commit edb0872f44ec ("block: move the bdi from the request_queue to the
    # gendisk") (in v5.15), a disk has the bdi.
    if prog.type("struct gendisk").has_member("bdi"):
        type_, name = "struct gendisk", "bdi"
        holders = np.array([disk.address for disk in disks], np.uint64)
    else:
        type_, name = "struct request_queue", "backing_dev_info"
        holders = np.array([disk.queue for disk in disks], np.uint64)
    if prog.type(type_).member(name).type.kind != drgn.TypeKind.POINTER:
        # Until Linux kernel commit d03f6cdc1fc4 ("block: Dynamically allocate and refcount
        # backing_dev_info") (in v4.11), it is a part of the queue.
        own = np.where(holders != 0, holders + np.uint64(_offset(prog, type_, name)), np.uint64(0))
    else:
        own = gather(kernel.memory, holders, layout(prog, type_, {"bdi": name}), faults)["bdi"]
    rows = np.flatnonzero(own)
    rows = rows[np.unique(own[rows], return_index=True)[1]]
    found = rows_of(own[rows], bdi)
    return np.where(found >= 0, np.append(rows, -1)[found], -1)


def dirty_pages(kernel: Kernel, flushers: Words, faults: Faults) -> tuple[Numbers, Numbers]:
    """Return the dirty pages of flushers, and their pages under writeback.

    With many flushers and CPUs, the parts that CPUs have are left out: some hundred pages each.

    :raises LookupError: the debug info lacks these counters
    """
    prog, memory = kernel.prog, kernel.memory
    owners, dirty, written = flushers, *_counters(prog)
    # Until v4.1 (commit not verified), counters are members of the device.
    if dirty.type_name == _BDI:
        owners = flushers - np.uint64(_offset(prog, _BDI, "wb"))
    offsets = cpu_offsets(prog)
    found = []
    for counter in (dirty, written):
        read = gather(memory, owners, counter, faults)
        count = read["count"].astype(np.int64)
        if len(flushers) * len(offsets) <= _MAX_PARTS:
            places = read["parts"][:, None] + offsets[None, :]
            parts, readable = gather_words(memory, places.ravel(), number_dtype(prog, "i4"), faults)
            count += np.where(readable, parts, 0).reshape(places.shape).sum(1)
        found.append(np.maximum(count, 0))
    return found[0], found[1]


def _counters(prog: drgn.Program) -> list[Layout]:
    """Return where the counters of dirty and of written pages are, each a percpu_counter."""
    type_, member, names = _FLUSHER, "stat", ("WB_RECLAIMABLE", "WB_WRITEBACK")
    if not prog.type(_FLUSHER).has_member(member):
        type_, member, names = _BDI, "bdi_stat", ("BDI_RECLAIMABLE", "BDI_WRITEBACK")
    places = [f"{member}[{int(prog.constant(name))}]" for name in names]
    return [
        layout(prog, type_, {"count": f"{place}.count", "parts": f"{place}.counters"})
        for place in places
    ]


def _offset(prog: drgn.Program, type_: str, path: str) -> int:
    return int(drgn.offsetof(prog.type(type_), path))
