# SPDX-License-Identifier: LGPL-2.1-or-later
"""Block devices that the I/O of tasks goes to, and the devices that they are stacked on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Stacks, Via, kind_of, stacks
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.places import places_of_devices
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import SERVED, EdgeKind, NodeKind
from kcensus.kernel.waiting.joined import held, joined

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
    is_passed_on=True,
    advice="No request of the devices below is known: see whether the device is suspended, such as "
    "with `dmsetup info`, and its waiters' stacks: `kcensus waits TARGET --table stacks --top 0`",
)
"""A device of device mapper, md or loop."""
STACKED = EdgeKind("stacked on", "is below", is_wait=False)
KEPT = EdgeKind("kept by", "keeps the I/O of")

_PAGE_IO = frozenset(
    {"wait_on_page_writeback", "folio_wait_writeback", "folio_wait_writeback_killable"}
    | {"__filemap_fdatawait_range", "filemap_fdatawait_range", "filemap_fdatawait_keep_errors"}
    | {"filemap_read", "filemap_get_pages", "filemap_update_page", "filemap_fault"}
    | {"generic_file_read_iter", "generic_file_buffered_read", "do_generic_file_read"}
    | {"do_read_cache_page", "do_read_cache_folio", "read_cache_page", "read_cache_folio"}
)
"""Functions that wait until a page is written back or read, not only for its lock."""
_BUFFER_IO = frozenset({"__wait_on_buffer", "bit_wait_io"})


class Devices(Finder):
    """Finds the devices of I/O whose requests are unknown, and the devices below them."""

    about = "block devices"
    kinds = (DISK, DEVICE)

    def find(self) -> None:
        """Add edges from pages, buffers and direct I/O to the devices that they are on."""
        disk, under_io = self.waits.disk, self._having(_PAGE_IO)
        pages = self._waiting(WaitKind.FOLIO)
        # Another task may have locked a page.
        possible = np.setdiff1d(pages, under_io)
        proof = "page.mapping"
        to_devices(self, possible, disk[possible], proof, strength=Strength.POSSIBLE)
        pages = np.intersect1d(pages, under_io)
        to_devices(self, pages, disk[pages], proof)
        direct = self._waiting(WaitKind.REQUEST)
        to_devices(self, direct, disk[direct], "kiocb.ki_filp")
        # Where __wait_on_buffer() is inlined, another function waits for the bit of a buffer.
        heads = np.intersect1d(self._having(_BUFFER_IO), self._of_type("unsigned long"))
        if len(heads):
            buffers = self.object[heads] - self._offset("struct buffer_head", "b_state")
            devices = self._member("struct buffer_head", "b_bdev", buffers, is_guess=True)
            devices = np.where(self._is_known(devices), devices, 0)
            places = places_of_devices(self.kernel, devices, self.faults)
            to_devices(self, heads, places.disk, "buffer_head.b_bdev")

    def _is_known(self, devices: Words) -> Mask:
        """Return a mask of the block devices that are on the kernel's lists."""
        if not self.kernel.prog.type("struct block_device").has_member("bd_part"):
            return block_devices(self.kernel).partitions.rows(devices) >= 0
        # Until v5.10, a partition is a struct hd_struct, which the block device points to.
        part = self._member("struct block_device", "bd_part", devices, is_guess=True)
        return block_devices(self.kernel).partitions.rows(part) >= 0

    def _waiting(self, kind: WaitKind) -> Numbers:
        is_one = np.array([each is kind for each in self.waits.kind], np.bool_)
        return np.flatnonzero(is_one & (self.object != 0))


def to_devices(
    finder: Finder,
    lanes: Numbers,
    disks: Words,
    evidence: str,
    *,
    strength: Strength = Strength.DERIVED,
) -> None:
    """Add edges from the objects of tasks without a known request or bio to their devices.

    :param disks: ``struct gendisk *`` of each object, or 0
    """
    lanes, disks = lanes[disks != 0], disks[disks != 0]
    if not len(lanes):
        return
    known = {disk.address: row for row, disk in enumerate(block_devices(finder.kernel).disks)}
    rows = np.array([known.get(disk, -1) for disk in disks.tolist()], np.int64)
    known_io = np.concatenate([joined(finder.kernel).wait, held(finder.kernel).wait])
    kept = (rows >= 0) & ~np.isin(lanes, known_io)
    lanes, rows = lanes[kept], rows[kept]
    kinds = [finder.draft.kind_of(lane) for lane in lanes.tolist()]
    source = kinds, finder.object[lanes]
    finder.build.edges(SERVED, source, nodes_of(finder, rows), evidence, strength=strength)


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


def keep(
    finder: Finder, kind: NodeKind, kept: Mapping[int, int], evidence: str, place: int = 0
) -> None:
    """Add edges to the objects that keep I/O, from their devices and from those above them.

    I/O of a device above has no request of its own: it is below this device, on some way down.

    :param kept: address of the object, by row of its disk
    :param place: offset of the member in the object that proves it
    """
    known = stacks(finder.kernel)
    pairs = [(upper, row) for row in kept for upper in sorted(above(known, row))]
    if not pairs:
        return
    disks = block_devices(finder.kernel).disks
    finder.draft.keeping.update(disks[upper].address for upper, _ in pairs)
    for upper, row in pairs:
        finder.draft.keepers.setdefault(disks[upper].address, []).append((kind, kept[row]))
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


def above(known: Stacks, row: int) -> set[int]:
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


FINDER = Devices
