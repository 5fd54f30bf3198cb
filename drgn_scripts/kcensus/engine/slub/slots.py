# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slots of slabs by number, so that pointers between objects become indexes into columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.memory import Numbers, Words
from kcensus.engine.rows import spread
from kcensus.engine.slub.slabs import SlabMap, Slabs

_SPARSE = 16
"""Least share of slab pages, as one page in N, for which a table with an entry per page pays."""


class Slots:
    """All slots of slabs of :meth:`SlabMap.index`, numbered in ascending order of address."""

    def __init__(self, slab_map: SlabMap, slabs: Slabs) -> None:
        self.slabs = slabs
        self.first: Numbers = np.zeros(len(slabs) + 1, np.int64)
        """Number of the first slot of each slab, and the number of all slots at the end."""
        np.cumsum(slabs.objects, out=self.first[1:])
        self.dtype: np.dtype[Any] = np.dtype(np.int32 if len(self) < 1 << 31 else np.int64)
        self._slab_map = slab_map
        self._size = slab_map.column("slot_size")
        self._shift = np.uint64(slab_map.memory.page_shift)
        pages, caches = slab_map.slab_pages(slabs), pd.unique(slabs.cache)
        # Of SLUB, the pad is that of the cache.
        pads = slab_map.pad(slabs) if slab_map.is_slab else slab_map.column("left_pad")[caches]
        self._regular = all(
            len(slabs) > 0 and bool((column == column[0]).all())
            for column in (self._size[caches], pads, slabs.objects, pages)
        )
        if self._regular:
            # Pages of a slab are a power of two, and aligned to their size.
            self._within = np.uint64((int(pages[0]) << slab_map.memory.page_shift) - 1)
            self._regular = not (slabs.address & self._within).any()
        self._pages(pages)
        # Without the table, an address may lie behind the slab that is below it.
        self._regular &= self._table is not None

    def __len__(self) -> int:
        return int(self.first[-1])

    def _pages(self, pages: Numbers) -> None:
        """Make the table from pages to slabs, unless they lie too far apart for one.

        If all slabs are alike, it has the first slot of each slab in place of its row.
        """
        self._table: npt.NDArray[Any] | None = None
        self._start = np.uint64(0)
        if not len(pages):
            return
        frame = self.slabs.address >> self._shift
        self._start = frame[0]
        span = int(frame[-1] - frame[0]) + int(pages[-1])
        if span > _SPARSE * int(pages.sum()) + 4096:
            return
        frame -= self._start
        if self._regular:
            self._table = np.full(span + 1, -1 - int(self.slabs.objects[0]), self.dtype)
            for page in range(int(pages[0])):
                self._table[page:][frame.view(np.int64)] = self.first[:-1]
        else:
            self._table = np.full(span + 1, -1, np.int32)
            row, within = spread(pages)
            self._table[frame.view(np.int64)[row] + within] = row

    def of(self, addresses: Words) -> npt.NDArray[Any]:
        """Return numbers of the slots at addresses, in :attr:`dtype`; -1 where no slot begins."""
        if not len(self.slabs):
            return np.full(addresses.shape, -1, self.dtype)
        if self._table is not None:
            page = (addresses >> self._shift) - self._start
            # Addresses below the first page wrap around, and are beyond the end, too.
            np.minimum(page, np.uint64(len(self._table) - 1), out=page)
            row: npt.NDArray[Any] = self._table[page.view(np.int64)]
        else:
            row = np.searchsorted(self.slabs.address, addresses, side="right") - 1
        if self._regular:
            # Nearly always all slabs are alike, and five lookups less.
            cache = self.slabs.cache[0]
            size, distance = self._size[cache], addresses & self._within
            distance -= self._pads(np.zeros(1, np.int64))
            number = distance // size
            slot: npt.NDArray[Any] = row + number.astype(self.dtype)
            strange = number * size != distance
            strange |= (number >= self.slabs.objects[0]) | (slot < 0)
        else:
            caches = self.slabs.cache[row]
            size, distance = self._size[caches], addresses - self.slabs.address[row]
            distance -= self._pads(row)
            number = distance // size
            slot = self.first[row].astype(self.dtype) + number.astype(self.dtype)
            strange = (row < 0) | (number >= self.slabs.objects[row]) | (number * size != distance)
        if strange.any():
            slot[strange] = -1
        return slot

    def address(self, slots: npt.NDArray[Any]) -> Words:
        row = np.searchsorted(self.first, slots, side="right") - 1
        number = (slots - self.first[row]).astype(np.uint64)
        cache = self.slabs.cache[row]
        return self.slabs.address[row] + self._pads(row) + number * self._size[cache]

    def _pads(self, row: Numbers) -> Words:
        return self._slab_map.pad(self.slabs, row)
