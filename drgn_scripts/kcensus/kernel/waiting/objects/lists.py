# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects by the lists of waiters that they keep: buffers and logs of XFS, pages and bits."""

from __future__ import annotations

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.kernel.locking.wait_tables import bit_waiters
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.places import places_of_devices
from kcensus.kernel.waiting.objects.reading import Reading, page_type
from kcensus.kernel.xfs.buffers import buffer_waiters, buffers
from kcensus.kernel.xfs.mounts import log_waiters, mounts


def buffers_of_xfs(reading: Reading) -> None:
    """Note the buffers of XFS with the task on a list of waiters."""
    waiting, known = buffer_waiters(reading.kernel), buffers(reading.kernel)
    kept, lane = reading.lanes(waiting.task)
    row = waiting.buffer[kept]
    proof = [f"xfs_buf.{waiting.member[index]}" for index in kept.tolist()]
    reading.note(lane, known.address[row], WaitKind.XFS_BUF, "struct xfs_buf", proof)
    reading.torn += waiting.torn
    reading.faults += waiting.faults + known.faults
    reading.report.add(known.report)
    row = known.rows(reading.object)
    lane = np.flatnonzero(row >= 0)
    row = row[lane]
    reading.holder[lane] = known.holder[row]
    reading.device[lane] = known.device[row]
    reading.place(lane, places_of_devices(reading.kernel, known.bdev[row], reading.faults))
    start = reading.sector[lane]
    placed = (start >= 0) & (known.block[row] >= 0)
    reading.sector[lane] = np.where(placed, start + known.block[row], -1)
    reading.sectors[lane] = known.blocks[row]


def logs_of_xfs(reading: Reading) -> None:
    """Note the logs of XFS with the task on a list of waiters."""
    waiting, known = log_waiters(reading.kernel), mounts(reading.kernel)
    kept, lane = reading.lanes(waiting.task)
    members = [waiting.member[index] for index in kept.tolist()]
    in_line = "xlog.l_reserve_head", "xlog.l_write_head"
    types = [
        f"struct {'xlog_ticket' if member in in_line else member.partition('.')[0]}"
        for member in members
    ]
    reading.note(lane, waiting.object[kept], WaitKind.LOG, types, members)
    reading.torn += waiting.torn + known.damaged
    reading.faults += waiting.faults + known.faults
    # A task that is on another object's list as well keeps the place of that object.
    noted = reading.object[lane] == waiting.object[kept]
    lane, row = lane[noted], waiting.mount[kept][noted]
    reading.device[lane] = known.log_device[row]
    reading.place(lane, places_of_devices(reading.kernel, known.log_bdev[row], reading.faults))
    reading.sector[lane] = -1


def pages_and_bits(reading: Reading) -> None:
    """Note the pages and bits of tasks on hashed wait queues."""
    waiting = bit_waiters(reading.kernel)
    reading.missing += waiting.missing
    kept, lane = reading.lanes(waiting.task)
    is_page = waiting.is_page[kept]
    for mask, kind, type_ in (
        (is_page, WaitKind.FOLIO, page_type(reading.kernel.prog)),
        (~is_page, WaitKind.BIT, "unsigned long"),
    ):
        some = np.flatnonzero(mask)
        proof = [waiting.table[index] for index in kept[some].tolist()]
        reading.note(lane[some], waiting.object[kept[some]], kind, type_, proof)
    reading.torn += waiting.torn
    reading.faults += waiting.faults
    pages = lane[is_page]
    pages = pages[reading.object[pages] == waiting.object[kept[is_page]]]
    members = {"mapping": "mapping", "index": ("index", "__folio_index")}
    page = layout(reading.kernel.prog, page_type(reading.kernel.prog), members)
    read = gather(reading.kernel.memory, reading.object[pages], page, reading.faults)
    # The lowest bits mark anonymous or movable pages.
    has_file = (read["mapping"] != 0) & ((read["mapping"] & np.uint64(3)) == 0)
    host = layout(reading.kernel.prog, "struct address_space", ["host"])
    where = np.where(has_file, read["mapping"], np.uint64(0))
    inode = gather(reading.kernel.memory, where, host, reading.faults)["host"]
    size = int(reading.kernel.prog["PAGE_SIZE"])
    position = read["index"].astype(np.int64) * size
    reading.place_files(pages, inode, np.where(inode != 0, position, -1))
