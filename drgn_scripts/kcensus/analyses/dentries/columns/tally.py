# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sums over dentries, in parts that can be merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.analyses.dentries.columns.bits import STATES
from kcensus.analyses.dentries.name_patterns import Families, merged
from kcensus.engine.memory import Faults, Mask, Numbers, Words


@dataclass(frozen=True)
class Sums:
    """Dentries added up by a key: super block, memory cgroup or directory."""

    key: npt.NDArray[Any]
    """Ascending where parts have been merged."""
    values: Numbers
    """Shape (4, keys): dentries, negative ones, unused negative ones, and bytes of the external
    names of negative ones."""

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, rows: Mask | Numbers) -> Sums:
        return Sums(self.key[rows], self.values[:, rows])

    def columns(self, slot_size: int) -> dict[str, Numbers]:
        """Return the sums as columns of tables; bytes are slots and external names."""
        dentries, negative, unused, name_bytes = self.values
        return {
            "dentries": dentries,
            "negative": negative,
            "negative_unused": unused,
            "negative_bytes": negative * slot_size + name_bytes,
        }

    def by_row(self, row: Numbers, size: int) -> Sums:
        """Add up keys of the same row, which is below ``size``; rows without a key are 0."""
        columns = [np.bincount(row, column, size) for column in self.values]
        return Sums(np.arange(size), np.stack(columns).astype(np.int64))

    @staticmethod
    def merged(parts: Sequence[Sums]) -> Sums:
        """Add up equal keys of several parts."""
        keys, row = np.unique(np.concatenate([part.key for part in parts]), return_inverse=True)
        sums = Sums(row, np.concatenate([part.values for part in parts], axis=1))
        return replace(sums.by_row(row, len(keys)), key=keys)


@dataclass
class Tally:
    """Sums over pieces of memory."""

    by_state: Numbers = field(default_factory=lambda: np.zeros(len(STATES), np.int64))
    """Dentries by combination of bits."""
    sums: dict[str, Sums] = field(default_factory=dict)
    """Sums by ``super_block`` (address), ``directory`` (slot of the parent or :data:`FOREIGN`; only
    dentries on a list of children), and ``owner`` (``struct obj_cgroup *``, or in kernels without
    it ``struct mem_cgroup *``; 0 for uncharged dentries), and ``owner_on_lru`` (of dentries on
    LRU lists)."""
    families: dict[int, Families] = field(default_factory=dict)
    """Names of negative dentries by their number of words. Sums: all names, names of unused
    dentries, and bytes of external names."""
    names_unreadable: Numbers = field(default_factory=lambda: np.zeros(3, np.int64))
    """Names that could not be read; sums as in :attr:`families`."""
    name_bytes: Counter[int] = field(default_factory=Counter)
    """Bytes of external names of negative dentries, by the number of the cache in the slab map."""
    unused_name_bytes: int = 0
    """Bytes of external names of unused negative dentries."""
    all_name_bytes: int = 0
    """Bytes of the slots that hold external names of any dentries."""
    outside: Words | None = None
    """Pointers to external names; None without any."""
    nameless: int = 0
    """Dentries whose name is NULL."""
    without_inode: int = 0
    """Dentries whose flags tell the type of an inode, without one."""
    vectors_unreadable: int = 0
    faults: Faults = field(default_factory=Faults)

    @property
    def rows(self) -> int:
        """Numbers of sums and families: a measure of their memory."""
        return sum(map(len, self.sums.values())) + sum(map(len, self.families.values()))

    @staticmethod
    def merged(parts: Sequence[Tally]) -> Tally:
        """Add up several parts."""
        total = Tally()
        for part in parts:
            total.by_state += part.by_state
            total.names_unreadable += part.names_unreadable
            total.name_bytes.update(part.name_bytes)
            total.unused_name_bytes += part.unused_name_bytes
            total.all_name_bytes += part.all_name_bytes
            total.nameless += part.nameless
            total.without_inode += part.without_inode
            total.vectors_unreadable += part.vectors_unreadable
            total.faults.update(part.faults)
        outside = [part.outside for part in parts if part.outside is not None]
        total.outside = np.concatenate(outside) if outside else None
        for key in {key for part in parts for key in part.sums}:
            total.sums[key] = Sums.merged([part.sums[key] for part in parts if key in part.sums])
        for words in sorted({words for part in parts for words in part.families}):
            some = [part.families[words] for part in parts if words in part.families]
            total.families[words] = merged(some)
        return total
