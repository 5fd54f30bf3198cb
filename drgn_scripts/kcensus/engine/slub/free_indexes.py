# SPDX-License-Identifier: LGPL-2.1-or-later
"""The free objects of slabs of SLAB: an array of the numbers of slots, one array per slab.

It is in the slab (since v4.6 at its end, before at its beginning), in an object of kmalloc(), or in
one of the slab's own free objects: since Linux kernel commit b03a017bebc4 ("mm/slab: introduce new
slab management type, OBJFREELIST_SLAB") (in v4.6), a slab without free objects has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import drgn
import numpy as np

from kcensus.engine.gather import gather_arrays
from kcensus.engine.layout import number_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.slub.slabs import Slabs
from kcensus.sources.capsule.uses import Use


@dataclass(frozen=True)
class FreeSlots:
    """Free slots of some slabs with equally many slots."""

    is_free: Mask
    """Shape (slabs, slots)."""
    is_torn: Mask
    """Slabs whose array is unreadable, or has a number twice or of no slot."""


def index_bytes(memory: Memory) -> int:
    """Return the bytes of an element; with pages of 4 KiB, slots are numbered in one."""
    return int(drgn.sizeof(memory.prog.type("freelist_idx_t")))


def free_slots(memory: Memory, slabs: Slabs) -> FreeSlots:
    """Read the arrays of slabs with free objects."""
    size, slots = index_bytes(memory), int(slabs.objects[0]) if len(slabs) else 0
    dtype = number_dtype(memory.prog, f"u{size}")
    numbers, readable = gather_arrays(memory, slabs.freelist, slots, dtype, Faults(), use=None)
    start, length = used_part(memory, slabs)
    memory.note(start[readable], length[readable], Use.NUMBER)
    # Elements below `active` are of objects in use, and out of date.
    row, element = np.nonzero(np.arange(slots) >= slabs.inuse[:, None])
    slot = numbers[row, element].astype(np.int64)
    fits = readable[row] & (slot < slots)
    is_free = np.zeros((len(slabs), slots), np.bool_)
    is_free[row[fits], slot[fits]] = True
    return FreeSlots(is_free, is_free.sum(axis=1) != slabs.objects - slabs.inuse)


def used_part(memory: Memory, slabs: Slabs) -> tuple[Words, Numbers]:
    """Return where the numbers of free slots begin, and how many bytes they take."""
    size = index_bytes(memory)
    start = slabs.freelist + slabs.inuse.astype(np.uint64) * np.uint64(size)
    return start, (slabs.objects.astype(np.int64) - slabs.inuse) * size
