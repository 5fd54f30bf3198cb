# SPDX-License-Identifier: LGPL-2.1-or-later
"""Block devices that the I/O of tasks goes to, and the devices that they are stacked on."""

from __future__ import annotations

import numpy as np

from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import kind_of, stacks
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.places import places_of_devices
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import BIT, SERVED, EdgeKind, NodeKind
from kcensus.kernel.waiting.joined import joined

DISK = NodeKind(
    "disk",
    is_io=True,
    is_device=True,
    advice="`kcensus iosched TARGET` says whether the scheduler or the device is late",
)
DEVICE = NodeKind(
    "device",
    is_io=True,
    is_device=True,
    advice="No request of the devices below is known: see whether the device is suspended, such as "
    "with `dmsetup info`, and the stacks of its waiters: `kcensus waits TARGET --table stacks`",
)
"""A device of device mapper, md or loop."""
STACKED = EdgeKind("stacked on", "is below", is_wait=False)

_PAGE_IO = frozenset(
    {"wait_on_page_writeback", "folio_wait_writeback", "folio_wait_writeback_killable"}
    | {"__filemap_fdatawait_range", "filemap_fdatawait_range", "filemap_fdatawait_keep_errors"}
    | {"filemap_read", "filemap_get_pages", "filemap_update_page", "filemap_fault"}
    | {"generic_file_read_iter", "generic_file_buffered_read", "do_generic_file_read"}
    | {"do_read_cache_page", "do_read_cache_folio", "read_cache_page", "read_cache_folio"}
)
"""Functions that wait until a page is written back or read, not only for its lock."""
_XFS_IO = "xfs_buf.b_iowait"


class Devices(Finder):
    """Finds the devices of I/O whose requests are unknown, and the devices below them."""

    about = "block devices"
    kinds = (DISK, DEVICE)

    def find(self) -> None:
        """Add edges from objects to the devices that they are on."""
        lanes = np.flatnonzero(self._in_io())
        if not len(lanes):
            return
        lanes = np.setdiff1d(lanes, joined(self.kernel).wait)
        known = {disk.address: row for row, disk in enumerate(block_devices(self.kernel).disks)}
        rows = np.array([known.get(disk, -1) for disk in self._disks(lanes).tolist()], np.int64)
        lanes, rows = lanes[rows >= 0], rows[rows >= 0]
        # Another task may have locked a page.
        is_page = [self.waits.kind[lane] is WaitKind.FOLIO for lane in lanes.tolist()]
        is_lock = np.array(is_page, np.bool_) & ~np.isin(lanes, self._having(_PAGE_IO))
        self.build.edges(
            SERVED,
            ([self.draft.kind_of(lane) for lane in lanes.tolist()], self.object[lanes]),
            nodes_of(self, rows),
            [self._evidence(lane) for lane in lanes.tolist()],
            strength=np.where(is_lock, int(Strength.POSSIBLE), int(Strength.DERIVED)),
        )

    def _disks(self, lanes: Numbers) -> Words:
        """Return the disk of the object of each task, or 0."""
        disks = self.waits.disk[lanes]
        heads = [lane for lane, each in enumerate(lanes) if self._is_buffer_head(int(each))]
        if heads:
            buffers = self.object[lanes[heads]] - self._offset("struct buffer_head", "b_state")
            devices = self._member("struct buffer_head", "b_bdev", buffers, is_guess=True)
            disks[heads] = places_of_devices(self.kernel, devices, self.faults).disk
        return disks

    def _in_io(self) -> Mask:
        """Return which tasks wait for I/O, by the kinds of their waits."""
        found = [
            kind in (WaitKind.FOLIO, WaitKind.REQUEST)
            or self.evidence[lane] == _XFS_IO
            or self._is_buffer_head(lane)
            for lane, kind in enumerate(self.waits.kind)
        ]
        return np.asarray(np.array(found, np.bool_) & (self.object != 0))

    def _is_buffer_head(self, lane: int) -> bool:
        """Return whether a task waits for the I/O of a ``struct buffer_head``."""
        return self.waits.function[lane] == "__wait_on_buffer" and self.draft.kind_of(lane) is BIT

    def _evidence(self, lane: int) -> str:
        if self.evidence[lane] == _XFS_IO:
            return "xfs_buf.b_target"
        if self._is_buffer_head(lane):
            return "buffer_head.b_bdev"
        return "page.mapping" if self.waits.kind[lane] is WaitKind.FOLIO else "kiocb.ki_filp"


def nodes_of(finder: Finder, rows: Numbers) -> tuple[list[NodeKind], Words]:
    """Return kinds and addresses of block devices; add the devices that they are stacked on.

    :param rows: of the disks
    """
    devices = block_devices(finder.kernel).disks
    kinds = {row: _named(finder, row) for row in np.unique(rows).tolist()}
    if DEVICE in kinds.values():
        _add_lower(finder, {row for row, kind in kinds.items() if kind is DEVICE})
    address = np.array([devices[row].address for row in rows.tolist()], np.uint64)
    return [kinds[row] for row in rows.tolist()], address


def _named(finder: Finder, row: int) -> NodeKind:
    disk = block_devices(finder.kernel).disks[row]
    kind = DISK if kind_of(disk) is None else DEVICE
    finder.types[kind, disk.address] = "struct gendisk"
    finder.names[kind, disk.address] = disk.name
    return kind


def _add_lower(finder: Finder, upper: set[int]) -> None:
    devices, known = block_devices(finder.kernel).disks, stacks(finder.kernel)
    wanted = set().union(*(known.below(row) for row in upper))
    edges = [edge for edge in known.edges if edge.upper in wanted]
    source, target = [
        (
            [_named(finder, row) for row in rows],
            np.array([devices[row].address for row in rows], np.uint64),
        )
        for rows in ([edge.upper for edge in edges], [edge.lower for edge in edges])
    ]
    finder.build.edges(STACKED, source, target, [edge.via.member for edge in edges])


FINDER = Devices
