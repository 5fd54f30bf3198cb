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
        self._block = functools.lru_cache(_MAX_CACHED_BYTES // (BLOCK_PAGES * page_size))(
            functools.partial(reader.block, index, page_size=page_size)
        )

    def read(self, address: int, count: int) -> bytes:
        """Return physical memory.

        :raises drgn.FaultError: a page is not in the capsule, for one of ``REASONS``
        :raises BadCapsule: the pages are corrupt
        """
        size, index = self._size, self._index
        pieces = []
        end = address + count
        while address < end:
            frame, within = divmod(address, size)
            run = int(np.searchsorted(index.first, frame, side="right")) - 1
            offset = frame - int(index.first[run]) if run >= 0 else 0
            if run < 0 or offset >= index.pages[run]:
                raise drgn.FaultError(UNRECORDED, frame * size)
            if status := int(index.status[run]):
                raise drgn.FaultError(REASONS[status - 1], frame * size)
            block, page = divmod(int(index.positions[run]) + offset, BLOCK_PAGES)
            pages = min(int(index.pages[run]) - offset, BLOCK_PAGES - page)
            length = min(pages * size - within, end - address)
            start = page * size + within
            pieces.append(self._block(block)[start : start + length])
            address += length
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
