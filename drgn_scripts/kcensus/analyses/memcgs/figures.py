# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory cgroups of one kernel: their memory, their references, and the effect of remedies."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import numpy as np

from kcensus.engine.memory import Faults, Mask, Numbers
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.charges import SHMEM, charges, lru_pages
from kcensus.kernel.memcg.memcgs import Memcgs, memcgs
from kcensus.kernel.memcg.pins import WRITEBACK, no_pins, pins
from kcensus.kernel.memcg.structures import no_structures, structures
from kcensus.kernel.mm.footprint import Footprint
from kcensus.sources.capsule import NotRecorded

T = TypeVar("T")


class Figures:
    """Figures of memory cgroups, shape (memcgs,)."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.groups = memcgs(kernel)
        self.offline: Mask = ~self.groups.online
        self.page_size = kernel.memory.page_size
        self.footprint = Footprint(kernel.slab_map, Faults())
        self.lru_pages_before = lru_pages(kernel, Faults()) if kernel.live else None
        """Pages on LRU lists of offline memcgs before pages were read, on a running kernel."""
        self.charges = charges(kernel)
        self.not_recorded: list[str] = []
        """Data missing from a capsule that was recorded for other analyses."""
        self.structures = self._or_unknown(
            lambda: structures(kernel, self.footprint), no_structures
        )
        self.pins = self._or_unknown(lambda: pins(kernel, self.charges), no_pins)
        self.bytes: Numbers = np.where(
            self.offline, self.structures.bytes + self.charged[:, : SHMEM + 1].sum(axis=1), 0
        )
        """Bytes of offline memcgs: structures, per-CPU areas, page cache and shmem."""

    def _or_unknown(self, read: Callable[[], T], unknown: Callable[[Memcgs], T]) -> T:
        try:
            return read()
        except NotRecorded as error:
            self.not_recorded.append(str(error))
            return unknown(self.groups)

    def offline_sum(self, values: Numbers) -> int:
        """Return the sum over the offline memory cgroups."""
        return int(values[self.offline].sum())

    @property
    def charged(self) -> Numbers:
        """Bytes of charged pages, shape (memcgs, kinds)."""
        return self.charges.pages * self.page_size

    def pages_bytes(self, kind: int) -> int:
        """Return the bytes of the pages of one kind that are charged to offline memcgs."""
        return int(self.charged[:, kind].sum())

    @cached_property
    def ancestor(self) -> Numbers:
        """Row of the nearest online ancestor of each memcg; -1 for the root."""
        nearest = self.groups.parent.copy()
        for row in range(1, len(nearest)):  # parents come first
            if self.offline[nearest[row]]:
                nearest[row] = nearest[nearest[row]]
        return nearest

    def released(self, removed: Numbers) -> Mask:
        """Return which offline memcgs are freed with ``removed`` references, children included."""
        refs, parent = self.pins.refs.tolist(), self.groups.parent.tolist()
        left = [known - gone for known, gone in zip(refs, removed.tolist(), strict=True)]
        goes = np.zeros(len(refs), np.bool_)
        for row in np.flatnonzero(self.offline)[::-1].tolist():  # children come first
            if refs[row] >= 0 and left[row] <= 0:
                goes[row] = True
                left[parent[row]] -= 1
        return goes

    def dropped_bytes(self, *, inodes: bool, below: Mask | None = None) -> int:
        """Return the bytes freed with the clean page cache, including structures of memcgs.

        :param inodes: whether inodes without pages go as well, and the references of writeback
        :param below: the memory cgroups in question; all by default
        """
        chosen = np.ones_like(self.offline) if below is None else below
        removed = self.charges.clean_refs + (self.pins.held[WRITEBACK] if inodes else 0)
        goes = self.released(np.where(chosen, removed, 0))
        pages = int(self.charges.clean[chosen].sum()) * self.page_size
        return pages + int(self.structures.bytes[goes].sum())

    def removed_bytes(self, rows: Mask) -> int:
        """Return the bytes freed with files of the sample, including structures of memcgs."""
        files = self.pins.files[rows]
        memcg = files["memcg"].to_numpy(np.int64)
        removed = np.bincount(memcg, files["refs"], len(self.groups)).astype(np.int64)
        pages = int(files["pages"].sum()) * self.page_size
        return pages + int(self.structures.bytes[self.released(removed)].sum())

    @cached_property
    def removable(self) -> Mask:
        """Mask of the sampled files that have a name in a tmpfs of init's mount namespace."""
        files = self.pins.files
        return (
            (files["kind"] == "shmem")
            & files["at_home"].astype(np.bool_)
            & files["named"]
            & ~files["deleted"].astype(np.bool_)
        ).to_numpy(np.bool_)
