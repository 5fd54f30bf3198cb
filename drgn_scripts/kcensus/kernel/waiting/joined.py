# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests that tasks wait for, found through the pointers of their bios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.rows import spread
from kcensus.kernel.block.bios import Bios, bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.throttles import throttles
from kcensus.kernel.block.requests import requests
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import MISSING
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finders import finders
from kcensus.kernel.waiting.sleeps import sleeps
from kcensus.kernel.waiting.waits import Waits

_PRIVATE, _TASK = "bio.bi_private", "bio.bi_private: task"
_PAGE = "bio_vec.bv_page"
SAME_SECTORS = "same sectors"
"""Evidence of a likely join: no pointer leads from the request to the object."""
_SECTOR = 512
_MAX_PAIRS = 1 << 20
"""Most pairs per kind of evidence. An object has a few requests, of damaged bios more."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class RequestPlaces:
    """Places of requests, as columns: one row for each request with bios."""

    disk: Words
    """``struct gendisk *``."""
    sector: Numbers
    """First sector; -1 for none."""
    sectors: Numbers


@dataclass(frozen=True)
class Joins:
    """Pairs of a wait and a request that must complete before its end, by wait and request."""

    wait: Numbers
    """Row in the waits."""
    request: Numbers
    """Row of the request."""
    is_proven: npt.NDArray[np.bool_]
    """Whether pointers lead from the request to the task; else only device and sectors agree."""
    evidence: list[str]
    """The last pointer, or :data:`SAME_SECTORS`."""
    dropped: int = 0
    """Pairs beyond the bound: their tasks have other requests with the same object."""
    faults: Faults = field(default_factory=Faults)

    def __len__(self) -> int:
        return len(self.wait)


@once
def joined(kernel: Kernel) -> Joins:
    """Return the requests that sleeping tasks wait for: rows of :func:`sleeps` and requests.

    :raises LookupError: the debug info lacks a type or member of requests or bios
    """
    every = requests(kernel)
    gendisks = np.array([disk.address for disk in block_devices(kernel).disks] or [0], np.uint64)
    places = RequestPlaces(gendisks[every.disk], every.sector, every.bytes // _SECTOR)
    return joined_with(kernel, sleeps(kernel), bios(kernel), places, _members())


@once
def held(kernel: Kernel) -> Joins:
    """Return the bios behind limits of block cgroups that sleeping tasks wait for.

    :return: rows of :func:`sleeps`, and of :attr:`Throttles.chain` in place of requests; none
        where the kernel has no such limits, or they are unreadable
    """
    try:
        known = throttles(kernel)
    except MISSING:
        return Joins(_NONE, _NONE, np.zeros(0, np.bool_), [])
    nowhere = np.full(len(known.chain), -1)
    places = RequestPlaces(np.zeros(len(nowhere), np.uint64), nowhere, nowhere)
    return joined_with(kernel, sleeps(kernel), known.bios, places, _members())


def _members() -> dict[str, tuple[str, ...]]:
    return {type_: names for finder in finders() for type_, names in finder.bios.items()}


def joined_with(
    kernel: Kernel,
    waits: Waits,
    bios: Bios,
    requests: RequestPlaces,
    members: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Joins:
    """Return the requests among ``requests`` that tasks wait for.

    :param bios: bios of all requests of interest
    :param requests: places of these requests
    :param members: bios of objects, as in :attr:`Finder.bios`
    """
    return _Joiner(kernel, waits, bios, requests).run(members)


class _Joiner:
    def __init__(self, kernel: Kernel, waits: Waits, bios: Bios, requests: RequestPlaces) -> None:
        self.kernel, self.waits, self.bios, self.requests = kernel, waits, bios, requests
        self.faults = Faults()
        self.evidence: list[str] = []
        self.pairs = [(_NONE, _NONE, _NONE)]
        """Waits, requests, and indexes of the evidence."""
        self.dropped = 0

    def run(self, members: Mapping[str, tuple[str, ...]]) -> Joins:
        waits, bios = self.waits, self.bios
        is_known = waits.object != 0
        is_page = np.array([kind is WaitKind.FOLIO for kind in waits.kind], np.bool_)
        pages, others = np.flatnonzero(is_known & is_page), np.flatnonzero(is_known & ~is_page)
        # Buffers of XFS, buffer heads, direct I/O, and completions on the stack of
        # submit_bio_wait().
        private, request = bios.origin_private, bios.request
        self._by_address(others, waits.object[others], private, request, _PRIVATE)
        # Synchronous reads and writes of block devices up to v5.18 have the task in bi_private.
        every = np.arange(len(waits))
        self._by_address(every, waits.task, private, request, _TASK)
        for type_, names in members.items():
            self._inside(type_, names)
        # A kernel before v5.16 waits for a page, a newer one for a folio.
        page_request = request[bios.page_bio]
        for column in (bios.page, bios.folio):
            self._by_address(pages, waits.object[pages], column, page_request, _PAGE)
        proven = np.unique(np.concatenate([wait for wait, _, _ in self.pairs]))
        placed = np.flatnonzero((waits.sector >= 0) & (waits.sectors > 0))
        self._same_sectors(np.setdiff1d(placed, proven))
        wait, request, proof = (np.concatenate(part) for part in zip(*self.pairs, strict=True))
        # A request may have several bios and segments with the same object.
        key = wait * max(len(self.requests.disk), int(request.max(initial=0)) + 1) + request
        first = np.unique(key, return_index=True)[1]
        proof = proof[first]
        evidence = [self.evidence[code] for code in proof.tolist()]
        is_proven = np.array([each != SAME_SECTORS for each in evidence], np.bool_)
        return Joins(wait[first], request[first], is_proven, evidence, self.dropped, self.faults)

    def _add(self, wait: Numbers, request: Numbers, evidence: str) -> None:
        self.pairs.append((wait, request, np.full(len(wait), len(self.evidence))))
        self.evidence.append(evidence)

    def _by_address(
        self, rows: Numbers, objects: Words, column: Words, request: Numbers, evidence: str
    ) -> None:
        """Join waits with the requests that have the same address in a column."""
        # A request has many pages and bios; keep one row per request and object of a wait.
        asked = np.flatnonzero(np.isin(column, objects))
        order = np.lexsort((request[asked], column[asked]))
        column, request = column[asked][order], request[asked][order]
        is_new = np.ones(len(column), np.bool_)
        is_new[1:] = (column[1:] != column[:-1]) | (request[1:] != request[:-1])
        column, request = column[is_new], request[is_new]
        first = np.searchsorted(column, objects, "left")
        last = np.searchsorted(column, objects, "right")
        row, place = self._ranges(first, last)
        self._add(rows[row], request[place], evidence)

    def _ranges(self, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Return the numbers in ranges and the rows of their ranges, at most ``_MAX_PAIRS``."""
        count = np.maximum(last - first, 0)
        total = int(count.sum())
        if total > _MAX_PAIRS:
            # With many tasks behind many requests of one object, each task keeps some.
            count = np.minimum(count, max(_MAX_PAIRS // len(count), 1))
            self.dropped += total - int(count.sum())
        row, offset = spread(count)
        return row, first[row] + offset

    def _inside(self, type_: str, names: tuple[str, ...]) -> None:
        """Join tasks with the bios that are members of their object, or named by a member.

        :param names: of the member, in various kernels
        """
        waits, bios = self.waits, self.bios
        is_one = np.array([each == type_ for each in waits.type], np.bool_)
        rows = np.flatnonzero((waits.object != 0) & is_one)
        if not len(rows):
            return
        evidence = f"{type_.removeprefix('struct ')}.{names[0]}"
        objects, whole = waits.object[rows], self.kernel.prog.type(type_)
        name = next(filter(whole.has_member, names))
        if whole.member(name).type.kind == drgn.TypeKind.POINTER:
            pointer = layout(self.kernel.prog, whole, {"origin": name})
            origin = gather(self.kernel.memory, objects, pointer, self.faults)["origin"]
            rows, origin = rows[origin != 0], origin[origin != 0]
            self._by_address(rows, origin, bios.origin_private, bios.request, evidence)
            return
        starts = np.unique(objects)
        within = np.searchsorted(starts, bios.origin, "right") - 1
        start = starts[np.maximum(within, 0)]
        inside = (within >= 0) & (bios.origin - start < np.uint64(drgn.sizeof(whole)))
        self._by_address(rows, objects, start[inside], bios.request[inside], evidence)

    def _same_sectors(self, rows: Numbers) -> None:
        """Join waits with the requests on the same disk whose sectors overlap."""
        waits, requests = self.waits, self.requests
        for disk in np.unique(waits.disk[rows][waits.disk[rows] != 0]).tolist():
            lanes = rows[waits.disk[rows] == disk]
            request = np.flatnonzero((requests.disk == disk) & (requests.sector >= 0))
            request = request[requests.sectors[request] > 0]
            request = request[np.argsort(requests.sector[request], kind="stable")]
            begin = requests.sector[request]
            # Highest end of the requests up to each one: earlier ones cannot overlap.
            reach = np.maximum.accumulate(begin + requests.sectors[request])
            start, end = waits.sector[lanes], waits.sector[lanes] + waits.sectors[lanes]
            first = np.searchsorted(reach, start, "right")
            last = np.searchsorted(begin, end, "left")
            lane, place = self._ranges(first, last)
            overlaps = begin[place] + requests.sectors[request[place]] > start[lane]
            self._add(lanes[lane[overlaps]], request[place[overlaps]], SAME_SECTORS)
