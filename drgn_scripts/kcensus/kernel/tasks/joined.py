# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which requests the tasks in state D wait for, through what their bios point to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.engine.rows import rows_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.waits import Waits

Numbers = npt.NDArray[np.int64]

_PRIVATE, _TASK, _PAGE, _BIO = (
    "bio.bi_private",
    "bio.bi_private: task",
    "bio_vec.bv_page",
    "xlog_in_core.ic_bio",
)
SAME_SECTORS = "same sectors"
"""Evidence of a join that is only likely: no pointer leads from the request to the object."""


class BioColumns(Protocol):
    """The bios of requests, as columns, with what they point to; ``kernel.block.bios`` has them."""

    @property
    def request(self) -> Numbers:
        """Row of the request of each bio."""

    @property
    def origin(self) -> Words:
        """The bio that each was cloned or split from: its submitter waits for that one."""

    @property
    def origin_private(self) -> Words:
        """``bi_private`` of that one."""

    @property
    def page_bio(self) -> Numbers:
        """Row of the bio of each page."""

    @property
    def page(self) -> Words:
        """``struct page *``."""

    @property
    def folio(self) -> Words:
        """Head of the folio of each page."""


@dataclass(frozen=True)
class RequestPlaces:
    """Where requests are, as columns: one row for each request that bios refer to."""

    disk: Words
    """``struct gendisk *``."""
    sector: Numbers
    """First sector; -1 for none."""
    sectors: Numbers


@dataclass(frozen=True)
class Joins:
    """Pairs of a wait and a request that must complete before it ends, by wait and request."""

    wait: Numbers
    """Row in the waits."""
    request: Numbers
    """Row of the request."""
    is_proven: npt.NDArray[np.bool_]
    """Whether pointers lead from the request to the task; else device and sectors are the same."""
    evidence: list[str]
    """The last pointer, or :data:`SAME_SECTORS`."""

    def __len__(self) -> int:
        return len(self.wait)


def joined(kernel: Kernel, waits: Waits, bios: BioColumns, requests: RequestPlaces) -> Joins:
    """Return which requests the tasks wait for.

    :param bios: of all requests of interest
    :param requests: the requests that they refer to
    """
    faults = Faults()
    known = np.flatnonzero(waits.object)
    kinds = np.array([waits.kind[row].value for row in known.tolist()], object)
    pages = known[kinds == WaitKind.FOLIO.value]
    others = known[kinds != WaitKind.FOLIO.value]
    parts: list[tuple[Numbers, Numbers, str]] = []

    def by_address(
        rows: Numbers, objects: Words, column: Words, evidence: str, bio: Numbers | None = None
    ) -> None:
        wait, row = _equal(objects, column)
        parts.append((rows[wait], bios.request[row if bio is None else bio[row]], evidence))

    # Buffers of XFS, buffer heads, direct I/O, and completions on the stack of submit_bio_wait().
    by_address(others, waits.object[others], bios.origin_private, _PRIVATE)
    # Synchronous reads and writes of block devices up to v5.18 have the task itself there.
    every = np.arange(len(waits))
    by_address(every, waits.task, bios.origin_private, _TASK)
    logs = np.array(
        [row for row in known.tolist() if waits.type[row] == "struct xlog_in_core"], int
    )
    if len(logs):
        wait, bio = _log_bios(kernel, waits.object[logs], bios, faults)
        parts.append((logs[wait], bios.request[bio], _BIO))
    # A kernel before v5.16 waits for a page, a newer one for a folio.
    for column in (bios.page, bios.folio):
        by_address(pages, waits.object[pages], column, _PAGE, bios.page_bio)
    proven = np.unique(np.concatenate([part[0] for part in parts]))
    at = np.flatnonzero((waits.sector >= 0) & (waits.sectors > 0))
    at = np.setdiff1d(at, proven)
    parts.append((*_same_sectors(waits, at, requests), SAME_SECTORS))
    wait = np.concatenate([part[0] for part in parts]).astype(np.int64)
    request = np.concatenate([part[1] for part in parts]).astype(np.int64)
    evidence = [name for rows, _, name in parts for _ in range(len(rows))]
    # A request has several bios, and several segments, of the same object.
    pairs, first = np.unique(np.stack([wait, request], axis=1), axis=0, return_index=True)
    proof = [evidence[index] for index in first.tolist()]
    is_proven = np.array([name != SAME_SECTORS for name in proof], np.bool_)
    return Joins(pairs[:, 0], pairs[:, 1], is_proven, proof)


def rows_of_tags(kernel: Kernel, bitmaps: Words, tags: Words) -> Numbers:
    """Return which ``struct blk_mq_tags`` bitmaps of tags belong to: rows of ``tags``, or -1.

    Tasks that wait for a tag wait for a ``struct sbitmap_queue``.

    :param tags: addresses, each once
    :raises LookupError: the debug info lacks blk-mq
    """
    rows = np.full(len(bitmaps), -1)
    type_ = kernel.prog.type("struct blk_mq_tags")
    for member in ("bitmap_tags", "breserved_tags"):
        if type_.member(member).type.kind == drgn.TypeKind.POINTER:
            # From v5.10 to v5.15 (commits not verified), it may be one that queues share.
            column = gather(kernel.memory, tags, layout(kernel.prog, type_, [member]), Faults())
            own = column[member]
        else:
            own = tags + np.uint64(drgn.offsetof(type_, member))
        found = rows_of(own, bitmaps, np.argsort(own))
        rows = np.where(rows < 0, found, rows)
    return rows


def _equal(objects: Words, column: Words) -> tuple[Numbers, Numbers]:
    """Return all pairs of a row in ``objects`` and one in ``column`` with the same address."""
    order = np.argsort(column, kind="stable")
    first = np.searchsorted(column, objects, "left", sorter=order)
    last = np.searchsorted(column, objects, "right", sorter=order)
    row, place = _ranges(first, last)
    return row, order[place]


def _ranges(first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
    """Return each number in some ranges, with the range's row."""
    count = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(count)), count)
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return row, np.repeat(first, count) + offset


def _within(objects: Words, start: Words, length: Words) -> tuple[Numbers, Numbers]:
    """Return all pairs of an object and a range of addresses that contains it."""
    order = np.argsort(objects, kind="stable")
    first = np.searchsorted(objects, start, "left", sorter=order)
    last = np.searchsorted(objects, start + length, "left", sorter=order)
    span, place = _ranges(first, last)
    return order[place], span


def _log_bios(
    kernel: Kernel, logs: Words, bios: BioColumns, faults: Faults
) -> tuple[Numbers, Numbers]:
    """Return all pairs of a log buffer and a bio that writes it."""
    type_ = kernel.prog.type("struct xlog_in_core")
    # Since Linux kernel commit 79b54d9bfcdc ("xfs: use bios directly to write log buffers") (in
    # v5.3), the bio is a member of the log buffer; before, the log buffer has an xfs_buf.
    if type_.has_member("ic_bio"):
        length = np.full(len(logs), drgn.sizeof(type_), np.uint64)
        bio, wait = _within(bios.origin, logs, length)
        return wait, bio
    read = gather(kernel.memory, logs, layout(kernel.prog, type_, ["ic_bp"]), faults)
    return _equal(read["ic_bp"], bios.origin_private)


def _same_sectors(waits: Waits, rows: Numbers, requests: RequestPlaces) -> tuple[Numbers, Numbers]:
    """Return all pairs of a wait and a request on the same disk whose sectors overlap."""
    wait, request = [], []
    for disk in np.unique(waits.disk[rows][waits.disk[rows] != 0]).tolist():
        own = rows[waits.disk[rows] == disk]
        others = np.flatnonzero((requests.disk == disk) & (requests.sector >= 0))
        start = waits.sector[own][:, None]
        end = start + waits.sectors[own][:, None]
        begin = requests.sector[others][None, :]
        overlap = (begin < end) & (begin + requests.sectors[others][None, :] > start)
        left, right = np.nonzero(overlap)
        wait.append(own[left])
        request.append(others[right])
    empty = np.empty(0, np.int64)
    return np.concatenate([*wait, empty]), np.concatenate([*request, empty])
