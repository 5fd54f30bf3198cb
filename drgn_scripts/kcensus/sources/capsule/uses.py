# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which bytes of memory the analyses used, of all that were read with them.

A recorder reads whole pages for most reads, because its capsule holds whole pages. Where a capsule
is redacted, only the used bytes stay; see :mod:`kcensus.redaction`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import IntEnum

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.arch import KERNEL

_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64]
_Bits = npt.NDArray[np.uint8]

_MAP_NORESERVE = 0x4000
"""Of mmap(2); Python has it since 3.11."""
_KEY = "kcensus: the bytes in use"
"""Key of :attr:`drgn.Program.cache`."""
_FEW = 8
"""Pages of a stretch up to which each is translated."""
_TABLE = 512
"""Most pages of a stretch: as many as a page table maps on most machines with pages of 4 KiB."""


def _neighbours(pages: _Words) -> list[_Words]:
    """Cut ascending pages into stretches of neighbours that one page table can map."""
    table = pages // np.uint64(_TABLE)
    ends = np.flatnonzero((np.diff(pages) != 1) | (np.diff(table) != 0)) + 1
    return np.split(pages, ends)


class Use(IntEnum):
    """What bytes were used as. Bytes used as different things are of unknown use."""

    NONE = 0
    NUMBER = 1
    """Numbers and pointers, at an address that is known to have them."""
    TEXT = 2
    UNKNOWN = 3
    """Anything: at an address that is only a guess, or read as a whole."""


class Uses:
    """Notes the use of bytes of physical memory, in two bits per byte.

    :param memory_bytes: end of physical memory
    :param page_size: bytes of a page
    :param direct_map: virtual address of physical address 0
    :param translate: returns the physical address of a virtual one outside of the direct map, and
        reads page tables with :meth:`read`
    :raises OSError: a process cannot have two bits for each byte of so much memory
    """

    def __init__(
        self, memory_bytes: int, page_size: int, direct_map: int, translate: Callable[[int], int]
    ) -> None:
        # Allocated only where they are written; a dump may be of a much larger machine. Private
        # maps would count as data of this process, which may be limited.
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        maps = [mmap.mmap(-1, memory_bytes // 8 + 8, flags=flags) for _ in range(2)]
        self._bits = [np.frombuffer(each, np.uint8) for each in maps]
        self._whole = np.frombuffer(mmap.mmap(-1, memory_bytes // page_size + 1), np.uint8)
        """Use of whole page frames, such as those of the ``struct page`` array."""
        self._end = memory_bytes
        self._page_shift = page_size.bit_length() - 1
        self._direct = direct_map
        self._translate = translate
        self._known: dict[int, int] = {}
        self._last = 0
        """Physical address of the last read."""
        self._by_size: Use | None = None
        """Use of what is read by physical address, None to decide it by the size."""

    @contextmanager
    def bulk(self, address: int, size: int) -> Iterator[None]:
        """Note nothing of a bulk read but page tables: the reader notes itself what it uses.

        :param address: virtual or physical
        """
        if address >= min(KERNEL, self._direct):
            begin, end = address >> self._page_shift, (address + size - 1) >> self._page_shift
            self._frames(np.arange(begin, end + 1, dtype=np.uint64))
        with self.reading(Use.NONE):
            yield

    @contextmanager
    def reading(self, use: Use) -> Iterator[None]:
        """Note a use of all that is read by address."""
        before, self._by_size = self._by_size, use
        try:
            yield
        finally:
            self._by_size = before

    def read(self, physical: int, count: int) -> None:
        """Note a read by physical address."""
        self._last = physical
        use = self._by_size
        if use is None:
            # drgn reads strings byte by byte, up to the NUL, and scalars as a whole.
            use = Use.TEXT if count == 1 else Use.NUMBER if count in (2, 4, 8) else Use.UNKNOWN
        if not use:
            return
        first, last = physical >> 3, (physical + count - 1) >> 3
        bits = np.full(last + 1 - first, 0xFF, np.uint8)
        bits[0] &= 0xFF << (physical & 7) & 0xFF
        bits[-1] &= 0xFF >> (7 - (physical + count - 1 & 7))
        for number, each in enumerate(self._bits):
            if use >> number & 1:
                each[first : last + 1] |= bits

    def note(self, addresses: _Words, size: int | _Numbers, use: Use) -> None:
        """Note the use of ``size`` bytes at each virtual address; unmapped ones are left out."""
        if not len(addresses):
            return
        page = np.uint64(1 << self._page_shift)
        if isinstance(size, int) and size == page and not (addresses % page).any():
            frames = self._frames(addresses >> np.uint64(self._page_shift))
            np.bitwise_or.at(self._whole, frames[frames >= 0], np.uint8(use))
            return
        sizes = np.broadcast_to(np.asarray(size, np.int64), addresses.shape)
        begin = (addresses & np.uint64(7)).astype(np.int64)
        words = addresses >> np.uint64(3)
        for step in range(int((begin + sizes).max() + 7) >> 3):
            low = np.maximum(begin - 8 * step, 0)
            high = np.minimum(begin + sizes - 8 * step, 8)
            rows = np.flatnonzero(low < high)
            bits = ((0xFF << low[rows]) & (0xFF >> (8 - high[rows]))).astype(np.uint8)
            place = self._places(words[rows] + np.uint64(step))
            known = place >= 0
            place, bits = place[known], bits[known]
            for number, each in enumerate(self._bits):
                if use >> number & 1:
                    np.bitwise_or.at(each, place, bits)

    def _places(self, words: _Words) -> _Numbers:
        """Return the physical word of virtual ones, or -1."""
        shift = np.uint64(self._page_shift - 3)
        frames = self._frames(words >> shift)
        inside = (words & np.uint64((1 << int(shift)) - 1)).astype(np.int64)
        return np.where(frames < 0, -1, (frames << np.int64(shift)) + inside)

    def _frames(self, pages: _Words) -> _Numbers:
        """Return the page frames of virtual pages, or -1, and note the use of page tables."""
        first, count = self._direct >> self._page_shift, self._end >> self._page_shift
        frames: _Numbers = (pages - np.uint64(first)).view(np.int64)
        elsewhere = (frames < 0) | (frames >= count)
        if elsewhere.any():
            distinct, rows = np.unique(pages[elsewhere], return_inverse=True)
            with self.reading(Use.NUMBER):
                known = np.concatenate([*map(self._translated, _neighbours(distinct))])
            frames[elsewhere] = known[rows]
        return frames

    def _translated(self, pages: _Words) -> _Numbers:
        """Return the page frames of neighbouring virtual pages of one page middle directory."""
        if len(pages) > _FEW:
            # The struct page array is mapped by large pages: one entry of a table for all.
            frame, entry = self._walked(int(pages[0]))
            if frame >= 0 and self._walked(int(pages[-1])) == (frame + len(pages) - 1, entry):
                return frame + np.arange(len(pages))
        return np.array([self._frame(page) for page in pages.tolist()], np.int64)

    def _frame(self, page: int) -> int:
        if page not in self._known:
            self._known[page], _ = self._walked(page)
        return self._known[page]

    def _walked(self, page: int) -> tuple[int, int]:
        """Return the frame of a page, or -1, and the place of the entry that maps it."""
        frame = -1
        with suppress(drgn.FaultError, ValueError, OverflowError):
            frame = self._translate(page << self._page_shift) >> self._page_shift
        return frame if frame < self._end >> self._page_shift else -1, self._last

    def of(self, physical: int, count: int) -> _Bits:
        """Return the :class:`Use` of ``count`` bytes from ``physical`` on, 0 for none.

        Both are multiples of 8; memory beyond the end has no use.
        """
        span = slice(physical >> 3, (physical + count) >> 3)
        number, text = (np.unpackbits(each[span], bitorder="little") for each in self._bits)
        use = np.pad(number | text << 1, (0, count - len(number)))
        frames = np.arange(physical, physical + count) >> self._page_shift
        whole: _Bits = self._whole[np.minimum(frames, len(self._whole) - 1)]
        return use | whole


def keep_uses(prog: drgn.Program, uses: Uses) -> None:
    """Have the readers of a program note which bytes they use."""
    prog.cache[_KEY] = uses


def reading_numbers(prog: drgn.Program) -> AbstractContextManager[None]:
    """Note that what is read by address is numbers, also where its size is one of text."""
    uses = uses_of(prog)
    return nullcontext() if uses is None else uses.reading(Use.NUMBER)


def reading_nothing(prog: drgn.Program) -> AbstractContextManager[None]:
    """Note no use of what is read by address, such as of what is only held against zeros."""
    uses = uses_of(prog)
    return nullcontext() if uses is None else uses.reading(Use.NONE)


def uses_of(prog: drgn.Program) -> Uses | None:
    """Return where readers of a program note which bytes they use, if anywhere."""
    uses: Uses | None = prog.cache.get(_KEY)
    return uses
