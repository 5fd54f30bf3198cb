# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages charged to offline memory cgroups, and their mappings.

The kernel's counters per memory cgroup move to its parent and are folded late, so the pass over the
``struct page`` array, which looks for slabs, counts pages.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.gather import gather
from kcensus.engine.layout import element_paths, layout
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import factorized
from kcensus.engine.slub.pages import PageChunk, PageMap
from kcensus.engine.slub.slabs import Watcher
from kcensus.kernel.kernel import Kernel, once, reads_pages
from kcensus.kernel.memcg.memcgs import PER_NODE, Memcgs, memcgs, per_node
from kcensus.sources.capsule import NotRecorded

FILE, SHMEM, ANON, KERNEL = range(4)
KINDS = ("page cache", "shmem", "anonymous", "kernel")
_FLAGS = np.uint64(3)
"""``enum page_memcg_data_flags``: bit 0 of an owner marks a slab's vector, bit 1 kernel pages."""
_ANON, _MOVABLE = np.uint64(1), np.uint64(2)
"""PAGE_MAPPING_ANON and PAGE_MAPPING_MOVABLE: bits of ``page.mapping``."""
_CLEAN, _ON_LRU = 4, 8
"""Bits of a class above the kind."""
_MAX_ROWS = 4096
"""Most rows for one stretch of the array; beyond, mappings are sampled."""
_SAMPLED = 16
"""Mappings with most pages to keep per memory cgroup."""
_COLUMNS = ("memcg", "class", "mapping", "pages", "refs")
_NOTHING = pd.DataFrame(columns=_COLUMNS, dtype=np.int64).astype({"mapping": np.uint64})


@dataclass(frozen=True)
class Charges:
    """Pages charged to memory cgroups; zeros for online ones."""

    pages: Numbers
    """Number of pages, shape (memcgs, 4), by :data:`KINDS`."""
    refs: Numbers
    """References of these pages to the memory cgroup, of the same shape. One per page; since Linux
    kernel commit 1a3e1f40962c ("mm: memcontrol: decouple reference counting from page accounting")
    (in v5.9), one per compound page."""
    clean: Numbers
    """Page cache that ``drop_caches`` drops: not dirty, mapped or locked; shape (memcgs,)."""
    clean_refs: Numbers
    on_lru: Numbers
    """Pages on an LRU list; other pages are in batches of CPUs, isolated, or the kernel's."""
    is_complete: bool
    """Whether the ``struct page`` array was read."""
    mappings: pd.DataFrame
    """A sample: ``memcg`` (row), ``kind``, ``mapping`` (``struct address_space *``), ``pages``,
    ``refs``."""


@reads_pages
def watcher(kernel: Kernel, pages: PageMap) -> Watcher | None:
    """Return the finder of pages of offline memory cgroups; None if there can be none."""
    try:
        groups = memcgs(kernel)
        return None if groups.online.all() else _Watcher(kernel.memory, groups, pages).look
    except (LookupError, NotRecorded):
        return None


@once
def charges(kernel: Kernel) -> Charges:
    """Return the pages charged to offline memory cgroups."""
    groups, parts = memcgs(kernel), kernel.seen(watcher)
    count = len(groups)
    found = pd.concat([_NOTHING, *parts])
    row, class_ = (found[name].to_numpy(np.int64) for name in ("memcg", "class"))

    def sums(rows: Mask, name: str = "pages") -> Numbers:
        return np.bincount(row[rows], found[name].to_numpy()[rows], count).astype(np.int64)

    kind = class_ & 3
    sample = found[found["mapping"] != 0]
    sample = sample.assign(kind=sample["class"].astype(np.int64) & 3)
    kinds = [kind == each for each in range(len(KINDS))]
    is_clean = class_ & _CLEAN != 0
    return Charges(
        pages=np.stack([sums(rows) for rows in kinds], axis=1),
        refs=np.stack([sums(rows, "refs") for rows in kinds], axis=1),
        clean=sums(is_clean),
        clean_refs=sums(is_clean, "refs"),
        on_lru=sums(class_ & _ON_LRU != 0),
        is_complete=bool(parts) or bool(groups.online.all()),
        mappings=_largest(_summed(sample, "memcg", "kind", "mapping")),
    )


def lru_pages(kernel: Kernel, faults: Faults) -> int | None:
    """Return the kernel's count of pages on LRU lists of offline memory cgroups, or None."""
    groups, prog = memcgs(kernel), kernel.prog
    total, found = 0, False
    _, nodes, _ = per_node(kernel.memory, groups, np.flatnonzero(~groups.online), faults)
    # Since Linux kernel commit ec1c86b25f4b ("mm: multi-gen LRU: groundwork") (in v6.1), the
    # multi-generational LRU has a count of its own.
    for path in ("lru_zone_size", "lruvec.lrugen.nr_pages"):
        try:
            names = element_paths(prog.type(PER_NODE), path)
            members = layout(prog, PER_NODE, names)
        except LookupError:
            continue
        found = True
        read = gather(kernel.memory, nodes, members, faults)
        for name in names:
            # A count can be below zero for a moment.
            total += int(read[name].view(np.int64).clip(0).sum())
    return total if found else None


def _summed(pages: pd.DataFrame, *keys: str) -> pd.DataFrame:
    return pages.groupby([*keys])[["pages", "refs"]].sum().reset_index()


def _largest(mappings: pd.DataFrame) -> pd.DataFrame:
    ordered = mappings.sort_values(["memcg", "pages"], ascending=[True, False], kind="stable")
    return ordered[ordered.groupby("memcg").cumcount() < _SAMPLED].reset_index(drop=True)


class _Watcher:
    def __init__(self, memory: Memory, groups: Memcgs, pages: PageMap) -> None:
        self.memory = memory
        self.pages = pages
        self.groups = groups
        self.offline = np.append(~groups.online, False)
        """Whether each row is offline; False for -1, no memory cgroup."""
        prog = memory.prog
        # Since Linux kernel commit 87944e2992bd ("mm: Introduce page memcg flags") (in v5.11), the
        # owner is in memcg_data.
        owner = {"owner": ("memcg_data", "mem_cgroup")}
        self.layout = layout(prog, "struct page", owner | {"mapping": "mapping"})
        # Since Linux kernel commit bf4f059954dc ("mm: memcg/slab: obj_cgroup API") (in v5.9), of
        # the series that gave a compound page one reference.
        self.objcg = None
        with contextlib.suppress(LookupError):
            self.objcg = layout(prog, "struct obj_cgroup", ["memcg"])
        names = ("swapbacked", "dirty", "writeback", "lru", "unevictable")
        self.flags = {
            name: np.uint64(1 << min(int(prog.constant(f"PG_{name}")), 63)) for name in names
        }

    def look(self, chunk: PageChunk) -> pd.DataFrame:
        """Return pages by memory cgroup, class and mapping; 0 for mappings beyond the sample."""
        records = chunk.records(self.layout, self.pages.struct_size)
        rows = np.flatnonzero(records["owner"] > _FLAGS)
        owner = records["owner"][rows]
        code, words = factorized(owner)
        row_of_word = self._rows(words)
        rows, row = rows[self.offline[row_of_word[code]]], row_of_word[code]
        owner, row = owner[self.offline[row]], row[self.offline[row]]
        if not len(rows):
            return _NOTHING
        common = chunk.records(self.pages.layout, self.pages.struct_size)
        tail = self.pages.is_tail(common)
        keep = ~tail[rows] & ~self.pages.is_slab(common[rows])
        if chunk.readable is not None:
            keep &= chunk.readable[rows]
        rows, owner, row = rows[keep], owner[keep], row[keep]
        # A compound page ends where the next one, or a single page, begins.
        starts = np.append(np.flatnonzero(~tail), chunk.count)
        size = starts[np.searchsorted(starts, rows, side="right")] - rows
        mapping = records["mapping"][rows]
        class_ = self._classes(owner, mapping, common[rows])
        has_mapping = (class_ & 3 <= SHMEM) & (mapping != 0)
        refs = size if self.objcg is None else np.ones_like(size)
        mapping = np.where(has_mapping, mapping & ~_FLAGS, np.uint64(0))
        columns = {"memcg": row, "class": class_, "mapping": mapping, "pages": size, "refs": refs}
        found = _summed(pd.DataFrame(columns), "memcg", "class", "mapping")
        if len(found) <= _MAX_ROWS:
            return found
        most = found.sort_values("pages").groupby("memcg").tail(_SAMPLED).index
        found.loc[~found.index.isin(most), "mapping"] = np.uint64(0)
        return _summed(found, "memcg", "class", "mapping")

    def _rows(self, words: Words) -> Numbers:
        """Return the row of the memory cgroup of each owner word, or -1.

        The kernel's pages belong to an ``obj_cgroup`` since Linux kernel commit b4e0b68fbd9d ("mm:
        memcontrol: use obj_cgroup APIs to charge kmem pages") (in v5.13), all others since v7.1
        (commit not verified).
        """
        pointer = words & ~_FLAGS
        row = self.groups.rows(pointer)
        row[words & np.uint64(1) != 0] = -1
        others = np.flatnonzero((row < 0) & (words & np.uint64(1) == 0))
        if self.objcg is not None and len(others):
            read = gather(self.memory, pointer[others], self.objcg, Faults())
            row[others] = np.where(read.readable, self.groups.rows(read["memcg"]), -1)
        return row

    def _classes(self, owner: Words, mapping: Words, common: npt.NDArray[Any]) -> Numbers:
        flags = common["flags"]

        def has(*names: str) -> Mask:
            bits = sum((self.flags[name] for name in names), np.uint64(0))
            return np.asarray((flags & bits) != 0)

        anon = (mapping & _ANON) != 0
        of_kernel = (owner & np.uint64(2) != 0) | (~anon & (mapping & _MOVABLE != 0))
        # Until v5.12, only this tells kernel pages from pages being truncated.
        of_kernel |= (mapping == 0) & ~has("lru", "swapbacked")
        kind = np.select([of_kernel, anon, has("swapbacked")], [KERNEL, ANON, SHMEM], FILE)
        clean = (kind == FILE) & ~has("dirty", "writeback", "unevictable")
        clean &= common["mapcount"] < 0
        return np.asarray(kind + _CLEAN * clean + _ON_LRU * has("lru"))
