# SPDX-License-Identifier: LGPL-2.1-or-later
"""An index of the slabs of a kernel, made from the ``struct page`` array.

SLUB is supported, and SLAB with the layout of v3.18 and later. Linux kernel commits c9929f0e344a
("mm/slob: remove CONFIG_SLOB") (in v6.4) and 16a1d968358a ("mm/slab: remove mm/slab.c and
slab_def.h") (in v6.8) removed all but SLUB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.slab import get_slab_cache_aliases

from kcensus.engine.gather import gather
from kcensus.engine.layout import Layout, LayoutError, Path, layout
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words, add_counts
from kcensus.engine.rows import rows_of
from kcensus.engine.slub.kmem_caches import SlabCache, slab_caches
from kcensus.engine.slub.pages import PageChunk, PageMap
from kcensus.engine.slub.percpu import node_ids
from kcensus.engine.tags import untagged
from kcensus.sources.capsule import NotRecorded

_SLAB_MEMBERS: dict[str, Path] = {"cache": "slab_cache", "freelist": "freelist"}
_SLUB: dict[str, Path] = {"inuse": "inuse", "objects": "objects"}
_SLAB: dict[str, Path] = {"inuse": "active", "first": "s_mem"}
"""Further members with one of the allocators; up to v5.16, struct page has those of all."""


class UnsupportedAllocator(LookupError):
    """The kernel's slab allocator is SLOB, or SLAB of an old kernel."""


@dataclass(frozen=True)
class Slabs:
    """Slabs as columns, one row each, in ascending order of address."""

    address: Words
    """Address of the first byte, in the direct map."""
    cache: npt.NDArray[np.int32]
    """Index in :attr:`SlabMap.caches`; -1 for a cache that is not on the kernel's list."""
    objects: npt.NDArray[np.uint16]
    inuse: npt.NDArray[np.uint16]
    """Objects in use by the kernel's count, with those in a CPU's free list or in a sheaf."""
    freelist: Words
    """The first free object, with SLUB; the array of the numbers of free ones, with SLAB."""
    node: npt.NDArray[np.uint16]
    extra: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.address)

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> Slabs:
        columns = {name: getattr(self, name)[rows] for name in _SLAB_COLUMNS}
        return Slabs(**columns, extra={name: column[rows] for name, column in self.extra.items()})

    @staticmethod
    def concatenate(parts: Sequence[Slabs]) -> Slabs:
        """Return all rows of ``parts``, at least one of which exists."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _SLAB_COLUMNS
        }
        extra = parts[0].extra
        extra = {name: np.concatenate([part.extra[name] for part in parts]) for name in extra}
        return Slabs(**columns, extra=extra)


_SLAB_COLUMNS = ("address", "cache", "objects", "inuse", "freelist", "node")


@dataclass(frozen=True)
class Survey:
    """The result of a pass over the ``struct page`` array, or over a stretch of it."""

    slabs: Slabs
    invalid: Numbers
    """Number of slabs left out for impossible counters, by cache id + 1."""
    large_kmalloc_pages: int | None
    """Pages of kmalloc() beyond the slab caches: marked pages, else the most possible; None if
    unknown."""
    memmap: Faults
    watched: list[Any] = field(default_factory=list)
    """The results of the watcher for each stretch, in order."""


@dataclass(frozen=True)
class FreelistCode:
    """Encoding of the pointers between free objects of the slab caches.

    Without CONFIG_SLAB_FREELIST_HARDENED, a pointer is stored as it is. With it, since Linux kernel
    commit 2482ddec670f ("mm: add SLUB free list pointer obfuscation") (in v4.14), it is XORed with
    ``kmem_cache.random`` and with its own address. Since Linux kernel commit 1ad53d9fa3f6 ("slub:
    improve bit diffusion for freelist ptr obfuscation") (in v5.7 and stable branches), the bytes of
    the address are swapped first. No type distinguishes the two.
    """

    swab: bool = True
    tag: int = 0
    """Bits of pointers that may hold a tag."""

    def decode(self, stored: Words, place: Words, secret: Words | np.uint64) -> Words:
        """Return the next free object, given the words ``stored`` in memory at ``place``."""
        mixed = place.byteswap() if self.swab else place
        return untagged(np.where(secret == 0, stored, stored ^ secret ^ mixed), self.tag)


Watcher: TypeAlias = Callable[[PageChunk], Any]
"""Function called with each stretch of the ``struct page`` array in the same pass, in worker
processes, so its result must be picklable."""


@dataclass
class ScanReport:
    """Unreadable or inconsistent memory of a scan."""

    memmap: Faults = field(default_factory=Faults)
    """Pages of the ``struct page`` array."""
    slabs: Faults = field(default_factory=Faults)
    objects_unreadable: int = 0
    """Slots on unreadable pages."""
    objects_uncertain: int = 0
    """Free objects that count as allocated, since the torn free list of their slab does not tell
    them apart."""
    slabs_torn: int = 0
    """Slabs with a free list that does not end, or does not match the slab's count."""
    slabs_invalid: int = 0
    """Slabs with impossible counters, which are left out."""
    slabs_missing: int = 0
    """Slabs that the kernel counts, but that a readable ``struct page`` array lacks."""
    lists_lost: int = 0
    """Free lists of CPUs, sheaves or barns that could not be followed to their end; their objects
    count as allocated."""

    def add(self, other: ScanReport) -> None:
        """Add the counts of another report."""
        add_counts(self, other)

    @property
    def complete(self) -> bool:
        """Whether nothing was missed."""
        lost = self.objects_uncertain + self.slabs_torn + self.slabs_invalid + self.lists_lost
        return not (self.memmap or self.slabs or lost or self.slabs_missing)


class SlabMap:
    """The slab allocator of one kernel.

    :raises UnsupportedAllocator: it is SLOB, or SLAB with the layout of a kernel before v3.18
    """

    def __init__(
        self,
        memory: Memory,
        extra: Mapping[str, Path] | None = None,
        *,
        shared: bool = True,
        live: bool = False,
        watcher: Callable[[PageMap], Watcher | None] | None = None,
    ) -> None:
        """Prepare the map; slabs are read at the first use.

        :param extra: further members of ``struct slab`` for :attr:`Slabs.extra`, if present
        :param shared: whether to keep the survey for further calls of :meth:`index`
        :param live: whether the kernel runs, so that its counters are not of the same moment
        :param watcher: makes a watcher of the pass over the ``struct page`` array, or None
        """
        self._watcher = watcher
        self.memory = memory
        self.shared = shared
        self.live = live
        self.prog = memory.prog
        self.is_slab = _is_slab(self.prog)
        """Whether it is SLAB rather than SLUB."""
        self.pages = PageMap(memory)
        members = _SLAB_MEMBERS | (_SLAB if self.is_slab else _SLUB)
        self.layout = layout(self.prog, _slab_type(self.prog), members, extra)
        self._extra = [name for name in extra or {} if name in self.layout]
        self.faults = Faults()
        """Unreadable pages of the caches' own structures."""
        self.caches, self.caches_torn, self.caches_damaged = slab_caches(memory, self.faults)
        self.parked_of: dict[int, tuple[Words, int]] = {}
        """Results of :func:`parked` by cache: addresses, and number of lost lists."""
        self._columns: dict[str, Words] = {}
        self._cache_order = np.argsort(self.column("address"))

    def cache_ids(self, pointers: Words) -> npt.NDArray[np.int32]:
        """Return indexes in :attr:`caches` of ``struct kmem_cache`` pointers, -1 if unknown."""
        return rows_of(self.column("address"), pointers, self._cache_order).astype(np.int32)

    @cached_property
    def survey(self) -> Survey:
        """All slabs, from one pass over the ``struct page`` array; some 50 bytes a slab."""
        spans = self.pages.chunk_spans()
        if not spans:
            raise LookupError("the struct page array has no section: mem_section is damaged")
        watch = self._watcher(self.pages) if self._watcher is not None else None
        parts = list(
            self.memory.each(
                "struct page array", lambda task: self._look(spans[task], watch), len(spans)
            )
        )
        faults = Faults()
        for part in parts:
            faults.update(part.memmap)
        large = [part.large_kmalloc_pages for part in parts]
        return Survey(
            Slabs.concatenate([part.slabs for part in parts]),
            np.sum([part.invalid for part in parts], axis=0),
            None if None in large else sum(pages or 0 for pages in large),
            faults,
            [each for part in parts for each in part.watched],
        )

    def _look(self, span: tuple[int, int], watch: Watcher | None) -> Survey:
        memmap = Faults()
        chunk = self.pages.read(*span, memmap)
        pages = chunk.records(self.pages.layout, self.pages.struct_size)
        is_slab = self.pages.is_slab(pages)
        if chunk.readable is not None:
            is_slab &= chunk.readable
        rows = np.flatnonzero(is_slab)
        records = chunk.records(self.layout, self.pages.struct_size)[rows]

        def column(name: str) -> npt.NDArray[Any]:
            return self.layout.decode(name, records[name])

        address, cache = self.pages.virt(rows + chunk.start_pfn), self.cache_ids(records["cache"])
        extra = {name: column(name) for name in self._extra}
        if self.is_slab:
            extra["pad"] = self._pads(records["first"] - address, cache)
        slabs = Slabs(
            address=address,
            cache=cache,
            objects=self._objects(column, cache),
            inuse=np.minimum(column("inuse"), 0xFFFF).astype(np.uint16),
            freelist=records["freelist"],
            node=self.pages.node(pages["flags"][rows]),
            extra=extra,
        )
        if self._kfence_pool:
            slabs = slabs[~self._is_kfence(slabs)]
        valid = self._valid(slabs)
        invalid = np.bincount(slabs.cache[~valid] + 1, minlength=len(self.caches) + 1)
        large = self.pages.large_kmalloc_pages(pages)
        watched = [] if watch is None else [watch(chunk)]
        return Survey(slabs[valid], invalid, large, memmap, watched)

    def _objects(
        self, column: Callable[[str], npt.NDArray[Any]], cache: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.uint16]:
        """Return the slots of each slab."""
        if not self.is_slab:
            return column("objects").astype(np.uint16)
        if not self.caches:
            return np.ones(len(cache), np.uint16)
        return self.column("objects_per_slab").astype(np.uint16)[cache]

    def _pads(self, distance: Words, cache: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
        """Return where objects begin in slabs of SLAB; :data:`_NO_PAD` if that is impossible.

        Slabs of a cache begin at different colours.

        :param distance: from the begin of a slab to its first slot
        """
        if not self.caches:
            return np.zeros(len(distance), np.uint32)
        used = (self.column("objects_per_slab") * self.column("slot_size"))[cache]
        end = np.uint64(self.memory.page_size) << self.column("order")[cache]
        fits = (distance <= end) & (distance + used <= end)
        pad = distance + self.column("left_pad")[cache]
        return np.where(fits | (cache < 0), pad, np.uint64(_NO_PAD)).astype(np.uint32)

    def pad(self, slabs: Slabs, rows: slice | Numbers = slice(None)) -> Words:
        """Return the bytes before the first object of slabs."""
        if self.is_slab:
            return np.asarray(slabs.extra["pad"][rows]).astype(np.uint64)
        return self.column("left_pad")[slabs.cache[rows]]

    @cached_property
    def _kfence_pool(self) -> int:
        return int(self.prog["__kfence_pool"]) if "__kfence_pool" in self.prog else 0

    def outside_kfence(self, addresses: Words) -> Mask:
        """Return which addresses cannot be objects of KFENCE."""
        outside: Mask = (addresses - np.uint64(self._kfence_pool)) >= _KFENCE_BYTES
        return outside if self._kfence_pool else np.ones(len(addresses), np.bool_)

    def _is_kfence(self, slabs: Slabs) -> Mask:
        # Since Linux kernel commit 0ce20dd84089 ("mm: add Kernel Electric-Fence infrastructure")
        # (in v5.12), every other page of a pool looks like a slab of one object to kfree(). It has
        # neither a count nor a freelist; an empty slab has a freelist.
        bare: Mask = (slabs.inuse == 0) & (slabs.freelist == 0)
        if not self.is_slab:  # there, each slab has as many objects as its cache says
            bare &= slabs.objects <= 1
        bare &= slabs.address >= np.uint64(self._kfence_pool)
        return bare

    def _valid(self, slabs: Slabs) -> Mask:
        """Return which slabs have possible counters: others would make sizes unbounded."""
        valid = (slabs.objects > 0) & (slabs.inuse <= slabs.objects)
        if self.caches:
            most = self.column("most_objects")[slabs.cache]
            valid &= (slabs.objects <= most) | (slabs.cache < 0)
        if self.is_slab:
            valid &= slabs.extra["pad"] != _NO_PAD
        return valid & (slabs.node <= max(self.pages.nodes, default=0))

    def index(
        self, wanted: Sequence[SlabCache], report: ScanReport, *, in_use: bool = False
    ) -> Slabs:
        """Return all slabs of some caches, or those with objects in use, ascending.

        :param report: takes note of slabs of these caches that are left out
        """
        # One more entry for the unknown cache, -1.
        is_wanted = np.zeros(len(self.caches) + 1, np.bool_)
        is_wanted[[cache.id for cache in wanted]] = True
        report.memmap.update(self.survey.memmap)
        report.slabs_invalid += int(self.survey.invalid[1:][is_wanted[:-1]].sum())
        slabs = self.survey.slabs
        chosen = is_wanted[slabs.cache]
        if not report.memmap:
            found = np.bincount(slabs.cache[chosen], minlength=len(self.caches))
            counted = self.counted(wanted)
            report.slabs_missing += int((counted - found - self.survey.invalid[1:]).clip(0).sum())
        if not self.shared:
            _ = self.freelist_code  # needs the survey
            del self.survey
        return slabs[chosen & (slabs.inuse > 0) if in_use else chosen]

    def counted(self, caches: Sequence[SlabCache]) -> Numbers:
        """Return the kernel's numbers of slabs by id, of some caches; -1 if unknown."""
        counted = np.full(len(self.caches), -1)
        if self.live:
            return counted
        try:
            # SLUB has it only with CONFIG_SLUB_DEBUG.
            member = layout(self.prog, "struct kmem_cache_node", {"count": NR_SLABS})
            nodes, ids, unknown = self.per_node("node", caches, Faults())
        except (LookupError, NotRecorded):
            return counted
        read = gather(self.memory, nodes, member, Faults())
        counted[ids] = 0
        np.add.at(counted, ids, read["count"].astype(np.int64))
        counted[unknown] = counted[ids[~read.readable]] = -1
        return counted

    def slab_pages(self, slabs: Slabs) -> Numbers:
        """Return pages of each slab."""
        # The order follows from the number of objects: a slab of the next smaller order would hold
        # at most half of them. So no tail page is read, with an order field that often moved.
        pages = np.left_shift(1, self.column("order").astype(np.int64))[slabs.cache]
        usual = self.column("objects_per_slab").astype(np.uint16)[slabs.cache]
        smaller = np.flatnonzero(slabs.objects != usual)
        if len(smaller):
            slot = self.column("slot_size").astype(np.int64)[slabs.cache[smaller]]
            need = -(-(slabs.objects[smaller] * slot) >> self.memory.page_shift)
            pages[smaller] = 1 << np.ceil(np.log2(np.maximum(need, 1))).astype(np.int64)
        return pages

    @cached_property
    def freelist_code(self) -> FreelistCode:
        """Encoding of hardened free list pointers, tried on the lists of this kernel."""
        # The right one leads to a free object of the same slab or to the end of the list.
        hardened = self.column("secret") != 0
        if not hardened.any():
            return FreelistCode(tag=self.memory.tag)
        slabs = self.survey.slabs
        rows = np.flatnonzero((slabs.freelist != 0) & (slabs.cache >= 0))
        slabs = slabs[rows[hardened[slabs.cache[rows]]][:_SAMPLE]]
        size = self.slab_pages(slabs).astype(np.uint64) << np.uint64(self.memory.page_shift)

        def votes(code: FreelistCode) -> int:
            following, readable = self.next_free(code, slabs.freelist, slabs.cache)
            inside = (following >= slabs.address) & (following < slabs.address + size)
            return int((readable & ((following == 0) | inside)).sum())

        codes = [FreelistCode(swab, self.memory.tag) for swab in (True, False)]
        return max(codes, key=votes)

    def next_free(
        self, code: FreelistCode, objects: Words, cache: npt.NDArray[np.int32]
    ) -> tuple[Words, Mask]:
        """Return the next free objects after free ``objects``, and a mask of the readable ones."""
        place = objects + self.column("free_offset")[cache]
        # What is free may be zero; a list that ends too early contradicts the slab's counters.
        read = gather(self.memory, place, self.word, Faults(), may_be_zero=True)
        return code.decode(read["word"], place, self.column("secret")[cache]), read.readable

    @cached_property
    def word(self) -> Layout:
        """An ``unsigned long`` by itself."""
        word = self.pointer.fields["word"]
        return replace(self.pointer, fields={"word": replace(word, tag=0)})

    @cached_property
    def pointer(self) -> Layout:
        """A pointer by itself, as ``word``."""
        return layout(self.prog, "struct list_head", {"word": "next"})

    def column(self, name: str) -> Words:
        """Return a number of every cache, such as ``slot_size``, as an array over cache ids."""
        if name not in self._columns:
            values = [getattr(cache, name) for cache in self.caches]
            self._columns[name] = np.array(values, np.uint64)
        return self._columns[name]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Names of merged caches, and the resulting cache of each.

        Empty without CONFIG_SYSFS, or if the tree of names is torn. Not safe to print.
        """
        try:
            aliases = get_slab_cache_aliases(self.prog)
        except (LookupError, drgn.FaultError, RecursionError):
            return {}
        # drgn has surrogates for bytes that are not UTF-8.

        def valid(name: str) -> str:
            return os.fsencode(name).decode(errors="backslashreplace")

        return {valid(alias): valid(name) for alias, name in aliases.items()}

    @cached_property
    def lineage(self) -> tuple[Numbers, Words]:
        """The root cache and the memory cgroup of each cache.

        Before Linux kernel commit 9855609bde03 ("mm: memcg/slab: use a single set of kmem_caches
        for all accounted allocations") (in v5.9), each memory cgroup had child caches of its own,
        with pointers to both in ``memcg_params``.

        :return: per cache the id of its root cache, itself for a root; and the address of its
            ``struct mem_cgroup``, 0 for a root
        """
        roots = np.arange(len(self.caches))
        owners = np.zeros(len(self.caches), np.uint64)
        type_ = self.prog.type("struct kmem_cache")
        if not type_.has_member("memcg_params"):
            return roots, owners
        places = self.column("address") + np.uint64(drgn.offsetof(type_, "memcg_params"))
        params = type_.member("memcg_params").type
        # Since Linux kernel commit f7ce3190c4a3 ("slab: embed memcg_cache_params to kmem_cache")
        # (in v4.0), it is embedded.
        if params.kind == drgn.TypeKind.POINTER:
            params = params.type
            places = gather(self.memory, places, self.word, self.faults)["word"]
        members = {"root": "root_cache", "memcg": "memcg"}
        try:
            # Before Linux kernel commit 9eeadc8b6e0e ("slab: reorganize memcg_cache_params") (in
            # v4.11), is_root_cache tells the meaning of the other members.
            links = layout(self.prog, params, members, {"is_root": "is_root_cache"})
        except LayoutError:
            return roots, owners
        read = gather(self.memory, places, links, self.faults)
        found = self.cache_ids(read["root"])
        child = read.readable & (found >= 0) & (found != roots)
        if "is_root" in links:
            child &= read["is_root"] == 0
        roots[child] = found[child]
        owners[child] = read["memcg"][child]
        return roots, owners

    def per_node(
        self, name: str, caches: Sequence[SlabCache], faults: Faults
    ) -> tuple[Words, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the ``node`` (``kmem_cache_node``) or ``barn`` of each cache on each NUMA node.

        :return: addresses of the existing structures, ids of their caches, and ids of the caches
            with an unknown one
        """
        type_ = self.prog.type("struct kmem_cache")
        nodes = node_ids(self.prog)
        ids = np.array([cache.id for cache in caches], np.int32)
        # Since Linux kernel commit 5ba6bc27b1f9 ("slab: decouple pointer to barn from
        # kmem_cache_node") (in v7.1), the pointers to node and barn are side by side; before, the
        # kmem_cache_node has the pointer to the barn.
        together = type_.has_member("per_node")
        path = f"per_node[{{}}].{name}" if together else "node[{}]"
        first, second = (drgn.offsetof(type_, path.format(node)) for node in (0, 1))
        steps = np.arange(nodes, dtype=np.uint64) * np.uint64(second - first) + np.uint64(first)
        places = (self.column("address")[ids][:, None] + steps[None, :]).ravel()
        read = gather(self.memory, places, self.pointer, faults)
        pointers, lost = read["word"], ~read.readable
        owners = np.repeat(ids, nodes)
        if name == "barn" and not together:
            member = layout(self.prog, "struct kmem_cache_node", ["barn"])
            barns = gather(self.memory, pointers, member, faults)
            lost |= (pointers != 0) & ~barns.readable
            pointers = barns["barn"]
        return pointers[pointers != 0], owners[pointers != 0], owners[lost]

    def containing(self, addresses: Words, faults: Faults) -> npt.NDArray[np.int32]:
        """Return the index in :attr:`caches` of each address's cache, or -1."""
        pfn = self.pages.pfn(addresses)
        at = np.flatnonzero(self.pages.valid(pfn))
        found = np.full(len(addresses), -1, np.int32)
        heads = self.pages.head(pfn[at], faults)
        page = gather(self.memory, heads, self.pages.layout, faults)
        slab = gather(self.memory, heads, self.layout, faults)
        slabs = page.readable & slab.readable & self.pages.is_slab(page.columns)
        found[at[slabs]] = self.cache_ids(slab["cache"][slabs])
        return found


def _is_slab(prog: drgn.Program) -> bool:
    """Return whether the allocator is SLAB rather than SLUB.

    :raises UnsupportedAllocator: it is neither, or too old
    """
    cache = prog.type("struct kmem_cache")
    if cache.has_member("oo"):
        return False
    # Since Linux kernel commit bf0dea23a9c0 ("mm/slab: use percpu allocator for cpu cache")
    # (in v3.18).
    if cache.has_member("cpu_cache") and _slab_type(prog).has_member("s_mem"):
        return True
    raise UnsupportedAllocator(
        "this kernel uses SLOB, or SLAB as it was before 3.18, whose objects cannot be told; "
        "`kcensus waits` and `kcensus iosched` work on it"
    )


def _slab_type(prog: drgn.Program) -> drgn.Type:
    # Since Linux kernel commit d122019bf061 ("mm: Split slab into its own type") (in v5.17),
    # struct slab is a type of its own, which still overlays struct page.
    try:
        type_ = prog.type("struct slab")
    except LookupError:
        return prog.type("struct page")
    # SLAB of old kernels had a type of that name, of which it allocated objects.
    return type_ if type_.has_member("slab_cache") else prog.type("struct page")


NR_SLABS = ("nr_slabs.counter", "total_slabs")
"""Member of ``kmem_cache_node`` that counts slabs. SLAB has it since Linux kernel commit
bf00bd345804 ("mm, slab: maintain total slab count instead of active count") (in v4.10)."""
_NO_PAD = 0xFFFFFFFF
_KFENCE_BYTES = np.uint64(1 << 29)
"""Of the largest pool: CONFIG_KFENCE_NUM_OBJECTS is 65,535 at most, of two pages each."""
_SAMPLE = 64
"""Free lists to sample for :attr:`SlabMap.freelist_code`."""
