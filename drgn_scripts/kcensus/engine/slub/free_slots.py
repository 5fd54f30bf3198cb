# SPDX-License-Identifier: LGPL-2.1-or-later
"""Free slots of slabs: memory without an owner, with remains of what was there before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kcensus.engine.layout import Layout
from kcensus.engine.memory import Mask, Words
from kcensus.engine.slub.scan import View, visit
from kcensus.engine.slub.slabs import ScanReport, SlabMap


@dataclass(frozen=True)
class FreeSlots:
    """Free slots as columns, in ascending order of address."""

    address: Words
    size: npt.NDArray[np.int64]
    """Bytes."""
    link: npt.NDArray[np.int64]
    """Offset in the slot of the pointer to the next free one, -1 for a slot that has none."""

    def __len__(self) -> int:
        return len(self.address)


def free_slots(slab_map: SlabMap, frames: Mask, report: ScanReport) -> FreeSlots:
    """Return the free slots of all slabs that lie, at least partly, on some pages.

    :param frames: true for the page frames wanted; what is beyond its end is not
    :param report: takes note of what could not be read; slots of which it is not known whether
        they are free are not among the free ones
    """
    slabs = slab_map.index(slab_map.caches, report)
    first = slab_map.pages.pfn(slabs.address)
    wanted = np.concatenate([[0], np.cumsum(frames)])
    last = np.minimum(first + slab_map.slab_pages(slabs), len(frames))
    slabs = slabs[wanted[last] != wanted[np.minimum(first, len(frames))]]
    found: list[_Columns] = []
    # Caches differ here only in the offset of the pointer, so there are few kinds of them.
    offsets = slab_map.column("free_offset")[slabs.cache]
    for offset in np.unique(offsets).tolist():
        search = _Search(slab_map, int(offset))
        found += visit(
            slab_map,
            slabs[offsets == offset],
            search.columns,
            search.free,
            report,
        )
    if not found:
        none = np.empty(0, np.int64)
        return FreeSlots(np.empty(0, np.uint64), none, none)
    address, size, link = (np.concatenate([part[column] for part in found]) for column in range(3))
    order = np.argsort(address)
    return FreeSlots(address[order], size[order], link[order])


_Columns: TypeAlias = tuple[Words, npt.NDArray[np.int64], npt.NDArray[np.int64]]


class _Search:
    """Looks at slabs of caches whose free objects have their pointer at the same offset."""

    def __init__(self, slab_map: SlabMap, offset: int) -> None:
        self.slab_map = slab_map
        self.offset = offset
        word = slab_map.word.fields["word"]
        self.columns = Layout("free object", offset + 8, {"link": replace(word, offset=offset)})

    def free(self, view: View, _report: ScanReport) -> _Columns:
        """Return what :class:`FreeSlots` has, for some slabs."""
        free = ~view.allocated & view.readable[:, None]
        row = np.nonzero(free)[0]
        address = view.address()[free]
        cache = self.slab_map.caches[view.slabs.cache[0]] if len(view.slabs) else None
        if cache is None or not len(row):
            return address, np.empty(0, np.int64), np.empty(0, np.int64)
        following = self.slab_map.freelist_code.decode(
            view.column("link")[free],
            address + np.uint64(self.offset),
            np.uint64(cache.secret),
        )
        # What is parked in a sheaf has no pointer but remains of what it was.
        start = view.slabs.address[row]
        size = int(view.slabs.objects[0]) * cache.slot_size + cache.left_pad
        linked = (following == 0) | ((following >= start) & (following < start + np.uint64(size)))
        return (
            address,
            np.full(len(row), cache.slot_size),
            np.where(linked, self.offset, -1),
        )
