# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which memory cgroup has which id in the per-memcg lists, and the kernel's own registry of ids."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather_arrays
from kcensus.engine.layout import word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.xarray import XArrayWalk
from kcensus.kernel.memcg.memcgs import Memcgs

MAX_IDS = 65535
"""MEM_CGROUP_ID_MAX: memcg_nr_cache_ids grows no further."""
REGISTRIES = (
    "mem_cgroup_private_ids",  # 7.0
    "mem_cgroup_ids",  # 6.12
    "mem_cgroup_idr",  # 5.18, for these ids; other ids since 4.7
)
_BITMAP_WORDS = 16
"""An ``ida_bitmap`` has 1024 bits."""


@dataclass(frozen=True)
class MemcgIds:
    """Ids of memory cgroups."""

    row: npt.NDArray[np.int64]
    """By id: the row of the memory cgroup that is online and has it, -1 for none."""
    cache_ids: int | None
    """``memcg_nr_cache_ids``; None since 5.18."""
    ours: int
    """How many memory cgroups should be registered, from the walk of the cgroup tree."""
    registered: int | None
    """How many the kernel has registered; None where its registry cannot be read."""
    registry: str
    """Name of the kernel's variable."""
    offline: int = 0
    """How many of those are offline: their swapped pages keep the id."""
    damaged: int = 0
    faults: Faults = field(default_factory=Faults)

    @property
    def live(self) -> Mask:
        """By id: whether an online memory cgroup has it."""
        live: Mask = self.row >= 0
        return live

    @property
    def highest(self) -> int:
        """The highest id that an online memory cgroup has; -1 if none has one."""
        return int(np.flatnonzero(self.live).max(initial=-1))


def memcg_ids(memory: Memory, groups: Memcgs, has_xarray: bool) -> MemcgIds:
    """The ids by which list_lrus know memory cgroups.

    :param has_xarray: the list_lrus have XArrays, whose index is the id that swap uses as well
        (f9c69d6346bc, 5.18); before, ids have a registry of their own
    """
    own = groups.online & (groups.kmemcg_id >= 0)
    rows = np.flatnonzero(own)
    if has_xarray:
        return _registered(memory, groups, rows)
    faults = Faults()
    try:
        said = int(memory.prog["memcg_nr_cache_ids"])
    except LookupError:
        said = 0
    except drgn.FaultError as error:
        faults.note(error)
        said = 0
    count = min(max(said, 0), MAX_IDS)
    row = np.full(count, -1)
    rows = rows[groups.kmemcg_id[rows] < len(row)]
    row[groups.kmemcg_id[rows]] = rows
    registered = _ida_count(memory, "memcg_cache_ida", faults)
    ours = int((row >= 0).sum())
    damaged = int(count != said)
    return MemcgIds(row, count, ours, registered, "memcg_cache_ida", damaged=damaged, faults=faults)


def _registered(memory: Memory, groups: Memcgs, rows: npt.NDArray[np.int64]) -> MemcgIds:
    row = np.full(MAX_IDS + 1, -1)
    faults = Faults()
    for name in REGISTRIES:
        try:
            registry = memory.prog[name]
            walk = XArrayWalk(memory, faults)
            array = registry.idr_rt if registry.type_.has_member("idr_rt") else registry
            head = np.array([array.xa_head.value_()], np.uint64)
        except (LookupError, AttributeError, drgn.FaultError):
            continue
        index, pointer = _entries(walk, head)
        known = groups.rows(pointer)
        found = known >= 0
        online = np.zeros(len(known), np.bool_)
        online[found] = groups.online[known[found]]
        # The number of one that is offline may be another's by now, so the registry has the word.
        fits = online & (index <= MAX_IDS)
        row[index[fits].astype(np.int64)] = known[fits]
        # The root has a number, too, but its list is not in the XArray.
        row[row == 0] = -1
        damaged = walk.damage.unreadable + walk.damage.torn
        offline = int((found & ~online).sum())
        ours = int(groups.online.sum())
        return MemcgIds(row, None, ours, len(index), name, offline, damaged, faults)
    row[groups.kmemcg_id[rows]] = rows
    return MemcgIds(row, None, len(rows), None, "", faults=faults)


def _entries(walk: XArrayWalk, head: Words) -> tuple[Words, Words]:
    blocks = list(walk.blocks(head))
    none = np.empty(0, np.uint64)
    index = np.concatenate([none, *(block.index for block in blocks)])
    return index, np.concatenate([none, *(block.entry for block in blocks)])


def _ida_count(memory: Memory, name: str, faults: Faults) -> int | None:
    """How many ids an IDA has given out; None where it is not made of an XArray (before 4.20)."""
    try:
        array = memory.prog[name].xa
        walk = XArrayWalk(memory, faults)
        head = np.array([array.xa_head.value_()], np.uint64)
    except (LookupError, AttributeError, drgn.FaultError):
        return None
    _, entry = _entries(walk, head)
    # A value has the bits of the lowest ids in itself.
    value = (entry & np.uint64(1)).astype(np.bool_)
    word = word_dtype(memory.prog)
    words, readable = gather_arrays(memory, entry[~value], _BITMAP_WORDS, word, faults)
    if not readable.all() or walk.damage.unreadable or walk.damage.torn:
        return None
    bits = np.concatenate([entry[value] >> np.uint64(1), words.ravel().astype(np.uint64)])
    return int(np.unpackbits(bits.view(np.uint8)).sum())
