# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ids of memory cgroups in the per-memcg lists, and the kernel's own registry of ids."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.gather import gather_arrays
from kcensus.engine.layout import word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.kernel.idr import xarray_entries
from kcensus.kernel.memcg.memcgs import Memcgs
from kcensus.kernel.names import integer

MAX_IDS = 65535
"""MEM_CGROUP_ID_MAX: memcg_nr_cache_ids does not grow further."""
REGISTRIES = (
    # Since Linux kernel commit e77786b4682e ("memcg: introduce private id API for in-kernel users")
    # (in v7.0).
    "mem_cgroup_private_ids",
    # Since Linux kernel commit 07222371912c ("memcg: replace memcg ID idr with xarray") (in v6.12).
    "mem_cgroup_ids",
    # Since Linux kernel commit 73f576c04b94 ("mm: memcontrol: fix cgroup creation failure after
    # many small jobs") (in v4.7).
    "mem_cgroup_idr",
)
_BITMAP_WORDS = 16
"""An ``ida_bitmap`` has 1024 bits."""


@dataclass(frozen=True)
class MemcgIds:
    """Ids of memory cgroups in list_lrus."""

    row: Numbers
    """Row of the memory cgroup with each id, or -1; shape (ids,)."""
    cache_ids: int | None
    """``memcg_nr_cache_ids``; None where the kernel has none (5.18 and later)."""
    ours: int
    """Memory cgroups that should be registered, by the walk of the cgroup tree."""
    registered: int | None
    """Memory cgroups in the kernel's registry; None if unreadable."""
    registry: str
    offline: int = 0
    """Registered memory cgroups that are offline: their swapped pages keep the id."""
    damaged: int = 0
    faults: Faults = field(default_factory=Faults)

    @property
    def in_use(self) -> Mask:
        """Whether a memory cgroup has each id; shape (ids,)."""
        return self.row >= 0

    @property
    def highest(self) -> int:
        """The highest id in use, or -1."""
        return int(np.flatnonzero(self.in_use).max(initial=-1))


def memcg_ids(memory: Memory, groups: Memcgs, has_xarray: bool) -> MemcgIds:
    """Return the ids of memory cgroups in list_lrus.

    Since Linux kernel commit f9c69d6346bc ("mm: memcontrol: reuse memory cgroup ID for kmem ID")
    (in v5.18), these are the ids of swap; before, they have a registry of their own.

    :param has_xarray: whether the list_lrus have XArrays (5.18 and later)
    """
    own = groups.has_id & (groups.kmemcg_id >= 0) & (groups.kmemcg_id <= MAX_IDS)
    rows = np.flatnonzero(own)
    if has_xarray:
        return _registered(memory, groups, rows)
    faults = Faults()
    count = integer(memory.prog, "memcg_nr_cache_ids", faults) or 0
    size = min(max(count, 0), MAX_IDS)
    row = np.full(size, -1)
    rows = rows[groups.kmemcg_id[rows] < size]
    row[groups.kmemcg_id[rows]] = rows
    return MemcgIds(
        row,
        size,
        ours=int((row >= 0).sum()),
        registered=_ida_count(memory, "memcg_cache_ida", faults),
        registry="memcg_cache_ida",
        damaged=int(count != size),
        faults=faults,
    )


def _registered(memory: Memory, groups: Memcgs, rows: Numbers) -> MemcgIds:
    """Return ids from the kernel's registry, or from ``rows`` of memory cgroups without one."""
    row = np.full(MAX_IDS + 1, -1)
    faults = Faults()
    for name in REGISTRIES:
        try:
            registry = memory.prog[name]
            array = registry.idr_rt if registry.type_.has_member("idr_rt") else registry
            index, pointer, damaged = xarray_entries(memory, array, faults)
        except (LookupError, AttributeError, drgn.FaultError):
            continue
        group = groups.rows(pointer)
        has_id = np.isin(pointer, groups.address[groups.has_id])
        # kmemcg_id of an offline memory cgroup may have passed to another one; the registry
        # decides.
        valid = has_id & (index <= MAX_IDS)
        row[index[valid].astype(np.int64)] = group[valid]
        # The root has an id, but its lists are not in the XArray.
        row[row == 0] = -1
        return MemcgIds(
            row,
            None,
            ours=int(groups.has_id.sum()),
            registered=len(index),
            registry=name,
            offline=int(((group >= 0) & ~has_id).sum()),
            damaged=damaged,
            faults=faults,
        )
    row[groups.kmemcg_id[rows]] = rows
    return MemcgIds(row, None, len(rows), None, "", faults=faults)


def _ida_count(memory: Memory, name: str, faults: Faults) -> int | None:
    try:
        ida = memory.prog[name]
        entry, is_value, damaged = _ida_entries(memory, ida, faults)
    except (LookupError, AttributeError, drgn.FaultError):
        return None
    word = word_dtype(memory.prog)
    words, readable = gather_arrays(memory, entry[~is_value], _BITMAP_WORDS, word, faults)
    if damaged or not readable.all():
        return None
    # The bits of the lowest ids are stored in the entry itself, above its tag.
    tag = np.uint64(1 if hasattr(ida, "xa") else 2)
    bits = np.concatenate([entry[is_value] >> tag, words.ravel().astype(np.uint64)])
    return int(np.unpackbits(bits.view(np.uint8)).sum())


def _ida_entries(memory: Memory, ida: drgn.Object, faults: Faults) -> tuple[Words, Mask, int]:
    """Return the bitmaps of an IDA, which of them are values rather than pointers, and damage.

    Since Linux kernel commit f32f004cddf8 ("ida: Convert to XArray") (in v4.20), it is an XArray;
    before, a radix tree with inverted tags. The 65,535 ids of memory cgroups fit into one node.
    """
    if hasattr(ida, "xa"):
        _, entry, damaged = xarray_entries(memory, ida.xa, faults)
        return entry, (entry & np.uint64(1)) != 0, damaged
    head, damaged = int(ida.ida_rt.rnode), 0
    entry = np.array([head], np.uint64)
    if head & 3 == 1:
        node = drgn.Object(memory.prog, "struct radix_tree_node", address=head - 1)
        damaged = int(node.shift) != 0
        offset = drgn.offsetof(node.type_, "slots")
        word, length = word_dtype(memory.prog), node.type_.member("slots").type.length
        start = np.array([head - 1 + offset], np.uint64)
        slots, readable = gather_arrays(memory, start, length, word, faults)
        entry, damaged = slots.ravel().astype(np.uint64), int(damaged or not readable.all())
    entry = entry[entry != 0]
    return entry, (entry & np.uint64(2)) != 0, damaged
