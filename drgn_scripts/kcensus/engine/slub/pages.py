# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ``struct page`` array, in chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import for_each_valid_page_range

from kcensus.arch import MAX_MEMORY_BYTES
from kcensus.engine.gather import gather
from kcensus.engine.layout import Layout, layout, native
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words, direct_map_start
from kcensus.engine.slub.percpu import online_nodes
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.capsule.uses import Use

PageRecords: TypeAlias = npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]
"""Struct pages by column: an array of :attr:`PageMap.layout`'s dtype, or gathered columns."""

_PAGE_MEMBERS = {
    # Since Linux kernel commit 53fbef56e07d ("mm: introduce memdesc_flags_t") (in v6.18), the word
    # is inside a memdesc_flags_t.
    "flags": ("flags.f", "flags"),
    "mapcount": ("_mapcount.counter",),
}
_PAGE_OPTIONAL = {
    # Since Linux kernel commit 1d798ca3f164 ("mm: make compound_head() robust") (in v4.4), bit 0 of
    # this word marks a tail. Linux kernel commit d50569612c29 ("mm: rename the 'compound_head'
    # field in the 'struct page' to 'compound_info'") (in v7.1) renamed it.
    "compound": ("compound_info", "compound_head"),
    # Before that commit, a tail points to its head here and has PG_tail in its flags.
    "first_page": ("first_page",),
    "mapping": ("mapping",),
}


MAX_ORDER = 18
"""No configuration allows larger compound pages (1 GiB of 4 KiB pages)."""


@dataclass(frozen=True)
class PageChunk:
    """A stretch of the ``struct page`` array: ``count`` structs."""

    start_pfn: int
    raw: npt.NDArray[np.uint8]
    readable: Mask | None
    """Mask over pages of the array itself, as of :meth:`Memory.span`; None: all are readable."""
    count: int

    def records(self, layout: Layout, stride: int) -> npt.NDArray[Any]:
        """Return the structs as an array with the layout's dtype."""
        records = self.raw.view(layout.dtype(stride))
        own = records.dtype
        return records if own.isnative else records.astype(native(own))


_SECTION_BITS = range(21, 35)
"""Possible SECTION_SIZE_BITS: 27 to 30 are usual."""
_MAX_SECTIONS = MAX_MEMORY_BYTES >> 27
"""Most sections, of 128 MiB."""
_HIGHEST = "__highest_present_section_nr"


def _valid_ranges(prog: drgn.Program) -> Iterator[tuple[int, int, drgn.Object]]:
    """Yield drgn's ranges of valid page frames, up to the end of ``mem_section``.

    Before Linux kernel commit c4e1be9ec113 ("mm, sparsemem: break out of loops early") (in v4.13),
    drgn 0.3.0 takes NR_MEM_SECTIONS for the number of the last section: it follows a pointer behind
    the end of the array.
    """
    if _HIGHEST in prog or "mem_section" not in prog:
        yield from for_each_valid_page_range(prog)
        return
    roots = prog["mem_section"]
    if roots.type_.type.kind != drgn.TypeKind.POINTER:
        yield from for_each_valid_page_range(prog)
        return
    length, sections = roots.type_.length or 0, int(prog["SECTIONS_PER_ROOT"])
    end = length * sections << (int(prog["SECTION_SIZE_BITS"]) - int(prog["PAGE_SHIFT"]))
    try:
        for first, last, array in for_each_valid_page_range(prog):
            if first < end:
                yield first, min(last, end), array
    except drgn.FaultError as error:
        behind = int(roots[length])
        if not behind <= error.address < behind + sections * drgn.sizeof(roots.type_.type.type):
            raise


class PageMap:
    """Addresses of the struct pages, and the mapping between page frame numbers and addresses.

    :raises LookupError: the kernel's memory model is not supported (neither SPARSEMEM_VMEMMAP nor
        FLATMEM), or its slab pages cannot be told from others
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        prog = memory.prog
        self.layout = layout(prog, "struct page", _PAGE_MEMBERS, _PAGE_OPTIONAL)
        self.struct_size = self.layout.size
        # drgn shifts by it, and a large number would take all memory.
        if "SECTION_SIZE_BITS" in prog and int(prog["SECTION_SIZE_BITS"]) not in _SECTION_BITS:
            raise LookupError("the memory sections of this kernel have an impossible size")
        if _HIGHEST in prog and not 0 <= int(prog[_HIGHEST]) < _MAX_SECTIONS:
            raise LookupError(f"{_HIGHEST}: '{int(prog[_HIGHEST])}' is impossible")
        ranges = list(_valid_ranges(prog))
        self.ranges: list[tuple[int, int]] = [(start, end) for start, end, _ in ranges]
        """Valid page frame numbers: (first, one past the last)."""
        self.base: int = ranges[0][2].value_() if ranges else 0
        """Address of the struct page of page frame 0, present or not."""
        self.direct_map: int = direct_map_start(prog)
        """Address of page frame 0 in the direct map, present or not."""
        self.page_shift = memory.page_shift

    @cached_property
    def pages(self) -> int:
        return sum(end - start for start, end in self.ranges)

    def chunk_spans(self) -> list[tuple[int, int]]:
        """Return the array cut into bulk reads: (first page frame, count).

        Cuts are aligned so that no compound page of any order straddles two chunks.
        """
        count = max(self.memory.chunk_bytes // self.struct_size, 1)
        align = 1 << (count.bit_length() - 1)
        spans = []
        for start, end in self.ranges:
            while start < end:
                stop = min((start // align + 1) * align, end)
                spans.append((start, stop - start))
                start = stop
        return spans

    def read(self, start_pfn: int, count: int, faults: Faults) -> PageChunk:
        """Read ``count`` struct pages, beginning with page frame ``start_pfn``."""
        address = self.base + start_pfn * self.struct_size
        size = count * self.struct_size
        # The array's ends need not be page-aligned.
        low = address & ~(self.memory.page_size - 1)
        pages = -((low - address - size) // self.memory.page_size)
        raw, readable = self.memory.span(low, pages, faults, Use.NUMBER)
        skip = address - low
        mask = None
        if readable is not None:
            offsets = skip + np.arange(count) * self.struct_size
            last = (offsets + self.struct_size - 1) >> self.page_shift
            mask = readable[offsets >> self.page_shift] & readable[last]
        return PageChunk(start_pfn, raw[skip : skip + size], mask, count)

    def virt(self, pfn: Numbers) -> Words:
        """Return direct map addresses of page frames."""
        return (pfn.astype(np.uint64) << np.uint64(self.page_shift)) + np.uint64(self.direct_map)

    def pfn(self, address: Words) -> Numbers:
        """Return page frame numbers of direct map addresses; meaningless for other addresses."""
        offset = address - np.uint64(self.direct_map)
        return (offset >> np.uint64(self.page_shift)).astype(np.int64)

    def struct_page(self, pfn: Numbers) -> Words:
        """Return addresses of the struct pages of page frames."""
        return pfn.astype(np.uint64) * np.uint64(self.struct_size) + np.uint64(self.base)

    def valid(self, pfn: Numbers) -> Mask:
        """Return which page frames have a struct page."""
        # Ranges ascend, so an odd number of bounds up to a page frame means inside of one.
        bounds = np.array(self.ranges, np.int64).ravel()
        return np.asarray(np.searchsorted(bounds, pfn, side="right") % 2 == 1)

    def is_tail(self, records: PageRecords, rows: slice | Numbers = slice(None)) -> Mask:
        """Return which struct pages are tails of a compound page."""
        word, bit = self._tail_bit
        return (records[word][rows] & bit).astype(np.bool_)

    @cached_property
    def _tail_bit(self) -> tuple[str, np.uint64]:
        """The column with the bit of tail pages, and the bit."""
        if "compound" in self.layout:
            return "compound", np.uint64(1)
        return "flags", self._flag("PG_tail")

    def head(self, pfn: Numbers, faults: Faults) -> Words:
        """Return the struct page addresses of compound heads; of an unreadable page, its own."""
        own = self.struct_page(pfn)
        records = gather(self.memory, own, self.layout, faults).columns
        if "compound" not in self.layout:
            head = records["first_page"]
        elif self._compound_is_mask:
            head = own & records["compound"]
        else:
            head = records["compound"] - np.uint64(1)
        return np.where(self.is_tail(records), head, own)

    @cached_property
    def _compound_is_mask(self) -> bool:
        # Since Linux kernel commit 8c846c879e22 ("mm: rework compound_head() for power-of-2
        # sizeof(struct page)") (in v7.1), with a struct page of a power of two and HugeTLB vmemmap
        # optimization, a tail holds a mask instead of its head's address.
        power = self.struct_size & (self.struct_size - 1) == 0
        return power and self.memory.prog.type("struct zone").has_member("vmemmap_tails")

    def _flag(self, name: str) -> np.uint64:
        return np.uint64(1 << min(int(self.memory.prog.constant(name)), 63))

    @cached_property
    def _slab_value(self) -> int | None:
        # Since Linux kernel commit 46df8e73a4a3 ("mm: free up PG_slab") (in v6.10), slab pages have
        # a page type, which overlays _mapcount and which the kernel exports for makedumpfile.
        text = self.memory.prog["VMCOREINFO"].string_()
        match = re.search(rb"^NUMBER\(PAGE_SLAB_MAPCOUNT_VALUE\)=(-?\d+)$", text, re.MULTILINE)
        return int(match.group(1)) if match else None

    def is_reclaimable(self, records: PageRecords) -> Mask:
        """Return which heads are on a list of reclaim, which are of programs and files."""
        return (records["flags"] & self._flag("PG_lru")).astype(np.bool_)

    def is_slab(self, records: PageRecords) -> Mask:
        """Return which struct pages are the head of a slab."""
        if self._slab_value is not None:
            slab: Mask = records["mapcount"] == np.int32(self._slab_value)
        else:
            slab = (records["flags"] & self._flag("PG_slab")).astype(np.bool_)
        rows = np.flatnonzero(slab)
        slab[rows] = ~self.is_tail(records, rows)
        return slab

    @cached_property
    def large_kmalloc_type(self) -> np.uint32 | None:
        """Page type of a kmalloc() beyond the largest slab cache; None if the kernel has none.

        Since Linux kernel commit a6687c8ff613 ("slab: Mark large folios for debugging purposes")
        (in v6.15).
        """
        try:
            return np.uint32(self.memory.prog.constant("PGTY_large_kmalloc").value_())
        except LookupError:
            return None

    def large_kmalloc_pages(self, records: npt.NDArray[Any]) -> int | None:
        """Return the number of kmalloc() pages with a head among consecutive struct pages.

        If the kernel does not mark them, all candidates count: compound pages that are neither
        slabs nor on an LRU list nor mapped. None if the kernel's types do not suffice.
        """
        if self.large_kmalloc_type is None:
            return self._unmarked_pages(records)
        page_type = records["mapcount"].astype(np.uint32) >> np.uint32(24)
        heads = np.flatnonzero(page_type == self.large_kmalloc_type)
        heads = heads[heads + 1 < len(records)]
        # Since Linux kernel commit ebc1baf5c9b4 ("mm: free up a word in the first tail page")
        # (in v6.6), the order is the low byte of the flags of the first tail.
        orders = (records["flags"][heads + 1] & np.uint64(0xFF)).astype(np.int64)
        return int((1 << orders[orders <= MAX_ORDER]).sum())

    @cached_property
    def _other_flags(self) -> tuple[np.uint64, np.uint64] | None:
        """PG_head, and the flags missing from pages of kmalloc(); None if unknown."""
        try:
            return self._flag("PG_head"), self._flag("PG_lru") | self._flag("PG_reserved")
        except (LookupError, NotRecorded):
            return None

    def _unmarked_pages(self, records: npt.NDArray[Any]) -> int | None:
        if self._other_flags is None or "mapping" not in self.layout:
            return None
        head, others = self._other_flags
        heads = np.flatnonzero(records["flags"] & head)
        own = records[heads]
        lacks = (own["flags"] & others == 0) & (own["mapping"] == 0)
        heads = heads[lacks & ~self.is_tail(own) & ~self.is_slab(own)]
        if not len(heads):
            return 0
        # No compound page straddles two chunks, so one ends at the next page that is not its tail.
        begins = np.append(np.flatnonzero(~self.is_tail(records)), len(records))
        return int((begins[np.searchsorted(begins, heads, side="right")] - heads).sum())

    @cached_property
    def nodes(self) -> list[int]:
        """Online NUMA nodes."""
        return online_nodes(self.memory.prog)

    @cached_property
    def _node_bits(self) -> int:
        """Width of the node number at the top of ``page.flags``; 0 with only one node."""
        if len(self.nodes) < 2:
            return 0
        # With SPARSEMEM_VMEMMAP no section number is above it, and its width is the logarithm of
        # MAX_NUMNODES, which is the length of node_data (include/linux/page-flags-layout.h).
        length = self.memory.prog["node_data"].type_.length
        return int(length - 1).bit_length() if length else 0

    def node(self, flags: Words) -> npt.NDArray[np.uint16]:
        """Return the NUMA nodes of pages, from their flags."""
        if not self._node_bits:
            return np.full(len(flags), self.nodes[0] if self.nodes else 0, np.uint16)
        return (flags >> np.uint64(64 - self._node_bits)).astype(np.uint16)
