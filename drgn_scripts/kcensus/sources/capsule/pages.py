# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory of a capsule."""

from __future__ import annotations

import functools

import drgn
import numpy as np

from kcensus.sources.capsule.container import BLOCK_PAGES, Reader
from kcensus.sources.faults import REASONS, UNRECORDED

_MAX_CACHED_BYTES = 64 << 20


class PageStore:
    """Reads physical memory from a capsule.

    :param page_size: bytes; a power of two
    :raises BadCapsule: the index of pages is corrupt
    """

    def __init__(self, reader: Reader, page_size: int) -> None:
        self._index = index = reader.index(page_size)
        self._size = page_size
        stored = np.where(index.status == 0, index.pages, 0)
        self._position = np.concatenate([[0], np.cumsum(stored)])
        """Position of the first page of each run among the stored pages."""
        self._block = functools.lru_cache(_MAX_CACHED_BYTES // (BLOCK_PAGES * page_size))(
            functools.partial(reader.block, index, page_size=page_size)
        )

    def read(self, address: int, count: int) -> bytes:
        """Return physical memory.

        :raises drgn.FaultError: a page is not in the capsule, for one of ``REASONS``
        :raises BadCapsule: the pages are corrupt
        """
        size = self._size
        pieces = []
        end = address + count
        while address < end:
            frame, within = divmod(address, size)
            position, pages = self._locate(frame)
            block, page = divmod(position, BLOCK_PAGES)
            pages = min(pages, BLOCK_PAGES - page)
            length = min(pages * size - within, end - address)
            start = page * size + within
            pieces.append(self._block(block)[start : start + length])
            address += length
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _locate(self, frame: int) -> tuple[int, int]:
        """Return the position of ``frame`` among the stored pages, and how many pages of its run
        begin there."""
        index = self._index
        run = int(np.searchsorted(index.first, frame, side="right")) - 1
        offset = frame - int(index.first[run]) if run >= 0 else 0
        if run < 0 or offset >= index.pages[run]:
            raise drgn.FaultError(UNRECORDED, frame * self._size)
        if status := int(index.status[run]):
            raise drgn.FaultError(REASONS[status - 1], frame * self._size)
        return int(self._position[run]) + offset, int(index.pages[run]) - offset
