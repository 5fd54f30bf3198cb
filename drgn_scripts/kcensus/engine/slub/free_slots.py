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

_Columns: TypeAlias = tuple[Words, npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class FreeSlots:
    """Free slots as columns, in ascending order of address."""

    address: Words
    size: npt.NDArray[np.int64]
    """Bytes."""
    link: npt.NDArray[np.int64]
    """Offset in the slot of the pointer to the next free one, -1 for a slot that has none."""


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

    def look(view: View, _report: ScanReport) -> _Columns:
        free = ~view.allocated & view.readable[:, None]
        address, cache = view.address()[free], view.cache
        following = slab_map.freelist_code.decode(
            view.column("link")[free],
            address + np.uint64(cache.free_offset),
            np.uint64(cache.secret),
        )
        # What is parked in a sheaf has no pointer but remains of what it was.
        start = view.slabs.address[np.nonzero(free)[0]]
        size = view.shape[1] * cache.slot_size + cache.left_pad
        linked = (following == 0) | ((following >= start) & (following < start + np.uint64(size)))
        link = np.where(linked, cache.free_offset, -1)
        return address, np.full(len(address), cache.slot_size), link

    word = slab_map.word.fields["word"]
    none = np.empty(0, np.int64)
    parts: list[_Columns] = [(np.empty(0, np.uint64), none, none)]
    # Caches differ here only in the offset of the pointer, so there are few kinds of them.
    offsets = slab_map.column("free_offset")[slabs.cache]
    for offset in np.unique(offsets).tolist():
        link = Layout("free object", offset + 8, {"link": replace(word, offset=offset)})
        parts += visit(slab_map, slabs[offsets == offset], link, look, report)
    address, size, links = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(address)
    return FreeSlots(address[order], size[order], links[order])
