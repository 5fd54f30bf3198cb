# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bulk reads of a program's memory that survive unreadable pages."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import pfn_to_virt

CHUNK_BYTES = 4 << 20
"""Default unit of bulk reads: it stays in the processor's cache while columns are cut from it."""

Bytes: TypeAlias = npt.NDArray[np.uint8]
Mask: TypeAlias = npt.NDArray[np.bool_]
Words: TypeAlias = npt.NDArray[np.uint64]


class Faults(Counter[str]):
    """How many pages could not be read, by reason."""

    def note(self, error: Exception, pages: int = 1) -> None:
        """Count ``pages`` unreadable because of ``error``."""
        self[reason(error)] += pages


def reason(error: Exception) -> str:
    """Why a read failed, in the words of somebody who did not write the reader.

    drgn tells the reasons apart only in its messages.
    """
    text = str(error).lower()
    if "excluded" in text or "not saved" in text:
        return "filtered out of the dump"
    if "short read" in text or "end of file" in text or "truncated" in text:
        return "beyond the end of a truncated dump"
    if "memory segment" in text:
        return "not in the dump"
    if "not mapped" in text or "translat" in text:
        return "not mapped"
    return "unreadable"


class Memory:
    """Reads pages of a program in bulk.

    :param prog: program of a Linux kernel
    :param chunk_bytes: upper bound of one bulk read; peak memory is a small multiple of it
    """

    def __init__(self, prog: drgn.Program, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.prog = prog
        self.page_shift = int(prog["PAGE_SHIFT"])
        self.page_size = 1 << self.page_shift
        self.chunk_bytes = max(chunk_bytes, self.page_size)
        self._direct_map = self._find_direct_map()

    def _find_direct_map(self) -> range:
        """Virtual addresses that are read by their physical address instead.

        That saves the walk through the page tables, half of the time of reading one page, and on
        a compressed dump the decompression of the tables.
        """
        start = int(pfn_to_virt(self.prog, 0))
        direct = range(start, int(pfn_to_virt(self.prog, self.prog["max_pfn"])))
        # Not every source of memory knows physical addresses, so try with a page that every dump
        # has: that of some task.
        try:
            probe = int(self.prog["init_task"].tasks.next)
            known = self.prog.read(probe, 8)
            if probe in direct and self.prog.read(probe - start, 8, physical=True) == known:
                return direct
        except (LookupError, drgn.FaultError, ValueError):
            pass
        return range(0)

    @property
    def chunk_pages(self) -> int:
        """Pages in one bulk read."""
        return self.chunk_bytes >> self.page_shift

    def _read(self, address: int, size: int) -> bytes:
        direct = address in self._direct_map
        place = address - self._direct_map.start if direct else address
        data: bytes = self.prog.read(place, size, physical=direct)
        return data

    def word(self, address: int) -> int:
        """Read one ``unsigned long``.

        :raises drgn.FaultError: it cannot be read, or the address cannot be the kernel's
        """
        if not 1 << 63 <= address < (1 << 64) - 8:
            raise drgn.FaultError("not a kernel address", address)
        if address in self._direct_map:
            return int(self.prog.read_word(address - self._direct_map.start, physical=True))
        return int(self.prog.read_word(address))

    def span(self, address: int, pages: int, faults: Faults) -> tuple[Bytes, Mask | None]:
        """Read ``pages`` pages from the page-aligned virtual ``address``.

        :return: the bytes, and a mask of the readable pages (None: all of them). Unreadable pages
            are zeros, and counted in ``faults``.
        """
        try:
            data = self._read(address, pages << self.page_shift)
        except (drgn.FaultError, ValueError) as error:
            buffer = np.zeros(pages << self.page_shift, np.uint8)
            readable = np.zeros(pages, np.bool_)
            self._salvage(address, pages, buffer, readable, error, faults)
            return buffer, readable
        return np.frombuffer(data, np.uint8), None

    def _salvage(
        self,
        address: int,
        pages: int,
        buffer: Bytes,
        readable: Mask,
        error: Exception,
        faults: Faults,
    ) -> None:
        """Read what can be read of a span that failed as a whole, by halving it."""
        if pages == 1:
            faults.note(error)
            return
        half = pages // 2
        for start, count in ((0, half), (half, pages - half)):
            low, high = start << self.page_shift, (start + count) << self.page_shift
            try:
                data = self._read(address + low, high - low)
            except (drgn.FaultError, ValueError) as part_error:
                self._salvage(
                    address + low,
                    count,
                    buffer[low:high],
                    readable[start : start + count],
                    part_error,
                    faults,
                )
            else:
                buffer[low:high] = np.frombuffer(data, np.uint8)
                readable[start : start + count] = True

    def pages(self, addresses: Words, faults: Faults) -> tuple[Bytes, Mask | None]:
        """Read the pages at ``addresses``, which are page-aligned and ascending.

        Neighbours are read together, and lie together in the result, so that something that
        straddles two of them can be cut from it.

        :return: ``len(addresses) * page_size`` bytes, and a mask as :meth:`span` returns it
        """
        breaks = np.flatnonzero(np.diff(addresses) != self.page_size) + 1
        starts = [0, *breaks.tolist()]
        ends = [*breaks.tolist(), len(addresses)]
        if len(starts) == 1:
            return self.span(int(addresses[0]), len(addresses), faults)
        buffer = np.empty(len(addresses) << self.page_shift, np.uint8)
        readable: Mask | None = None
        for start, end in zip(starts, ends, strict=True):
            data, ok = self.span(int(addresses[start]), end - start, faults)
            buffer[start << self.page_shift : end << self.page_shift] = data
            if ok is not None:
                if readable is None:
                    readable = np.ones(len(addresses), np.bool_)
                readable[start:end] = ok
        return buffer, readable
