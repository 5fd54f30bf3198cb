# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ``struct page`` array of a *synthetic* kernel, and the synthetic kernel itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drgn.helpers.linux import slab as helpers
from drgn.helpers.linux.mm import compound_head
from hypothesis import given
from hypothesis import strategies as st

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.pages import PageMap
from kcensus.engine.slub.slabs import SlabMap
from kcensus.kernel.slab.counters import reclaimable
from tests.unit.fakekernel import DIRECT_MAP, ERAS, PAGE, RANGES, VMEMMAP, FakeKernel

pytestmark = pytest.mark.ends

every_era = pytest.mark.parametrize("era", ERAS)
KERNEL = FakeKernel()


def page_map(kernel: FakeKernel, chunk_bytes: int = 4 << 20) -> PageMap:
    return PageMap(Memory(kernel.prog, chunk_bytes))


@every_era
def test_drgn_finds_the_objects_that_the_model_says_are_allocated(era: str) -> None:
    k = FakeKernel(era)
    small, large = k.cache("small", 192), k.cache("large", 900, 1024, 3, left_pad=16, offset=64)
    slabs = [k.slab(small, [3, 1, 5]), k.slab(small), k.slab(small, range(21))]
    slabs += [k.slab(large, [0, 4, 31]), k.slab(large, [2], order=0)]
    if k.era.cpu_slab:
        k.cpu_slab(slabs[0], 1, [2, 4])
    if k.era.sheaves:
        k.cpu_sheaf(large, 0, "main", k.sheaf([(slabs[3], 1), (slabs[3], 2)]))
        k.list_add_tail(k.sheaf([(slabs[3], 7)]).barn_list, k.barn(large, 1).sheaves_full)
    k.settle()
    caches = list(helpers.for_each_slab_cache(k.prog))
    assert [cache.name.string_() for cache in caches] == [b"small", b"large"]
    for cache, truth in zip(caches, k.caches, strict=True):
        found = helpers.slab_cache_for_each_allocated_object(cache, "struct page")
        assert sorted(each.value_() for each in found) == truth.allocated()
        usage = helpers.slab_cache_usage(cache)
        assert usage.num_slabs == len(truth.slabs)
        assert usage.num_objs == sum(slab.objects for slab in truth.slabs)


@every_era
def test_ranges_leave_the_hole_out(era: str) -> None:
    pages = page_map(FakeKernel(era))
    assert pages.ranges == list(RANGES)
    assert pages.pages == sum(end - start for start, end in RANGES)
    assert (pages.base, pages.direct_map, pages.struct_size) == (VMEMMAP, DIRECT_MAP, 64)


@given(
    st.integers(1, 1 << 20),
    st.sampled_from([56, 64, 80]),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 3000)), max_size=4),
)
def test_chunks_cover_every_page_once_and_cut_at_powers_of_two(
    chunk_bytes: int, size: int, gaps: list[tuple[int, int]]
) -> None:
    pages, at = page_map(KERNEL), 0
    pages.ranges, pages.struct_size = [], size
    for gap, length in gaps:
        pages.ranges.append((at + gap, at + gap + length))
        at += gap + length
    pages.memory.chunk_bytes = chunk_bytes
    spans = pages.chunk_spans()
    covered = [pfn for start, count in spans for pfn in range(start, start + count)]
    assert covered == [pfn for start, end in pages.ranges for pfn in range(start, end)]
    largest = max(chunk_bytes // size, 1)
    align = max(1 << bit for bit in range(21) if 1 << bit <= largest)
    for start, count in spans:
        assert 0 < count <= align
        assert start // align == (start + count - 1) // align


@pytest.mark.parametrize("chunk_bytes", [PAGE, 3 * PAGE, 1 << 20])
def test_chunks_hold_what_the_array_holds(chunk_bytes: int) -> None:
    k = FakeKernel()
    k.pages(3, node=1)
    pages, faults = page_map(k, chunk_bytes), Faults()
    spans = pages.chunk_spans()
    assert sum(count for _, count in spans) == pages.pages
    # A chunk need not begin at a page.
    for span in [*spans, (600, 1), (600, 200), (639, 2), (1023, 1)]:
        chunk = pages.read(*span, faults)
        assert chunk.readable is None
        address = VMEMMAP + 64 * chunk.start_pfn
        data = k.ram[k.physical(address) : k.physical(address) + 64 * chunk.count]
        assert bytes(chunk.raw) == bytes(data)
        assert len(chunk.records(pages.layout, 64)) == chunk.count == span[1]
    assert not faults


@pytest.mark.parametrize(("size", "start", "page"), [(64, 600, 10), (56, 0, 1)])
def test_struct_pages_in_a_hole_of_the_array_are_masked(size: int, start: int, page: int) -> None:
    """Without CONFIG_MEMCG, they have 56 bytes, and some lie on two pages of the array."""
    k = FakeKernel()
    pages, faults = page_map(k), Faults()
    pages.struct_size = size
    hole = range(page * PAGE, (page + 1) * PAGE)
    k.drop(VMEMMAP + hole.start)
    readable = pages.read(start, 200, faults).readable
    assert readable is not None
    assert readable.tolist() == [
        (pfn + 1) * size <= hole.start or pfn * size >= hole.stop
        for pfn in range(start, start + 200)
    ]
    assert faults == {"filtered out of the dump": 1}


def test_valid() -> None:
    pages = page_map(FakeKernel())
    asked = np.array([-1, 0, 1023, 1024, 2047, 2048, 4095, 4096, 1 << 51])
    assert pages.valid(asked).tolist() == [
        False, True, True, False, False, True, True, False, False
    ]  # fmt: skip
    pages.ranges = []
    assert not pages.valid(asked).any()
    # With one node, the flags are not asked.
    k = FakeKernel()
    k.set(k.symbols["node_states"][1].bits[0], 1)
    pages = page_map(k)
    assert pages.nodes == [0]
    assert pages.node(np.array([0, (1 << 64) - 1], np.uint64)).tolist() == [0, 0]


@every_era
def test_heads_and_tails(era: str) -> None:
    k = FakeKernel(era)
    single, order3, order1 = k.pages(0), k.pages(3), k.pages(1)
    pages = page_map(k)
    chunk = pages.read(single, order1 + 2 - single, Faults())
    records = chunk.records(pages.layout, 64)
    tails = {*range(order3 + 1, order3 + 8), order1 + 1}
    asked = np.arange(single, order1 + 2)
    assert pages.is_tail(records).tolist() == [pfn in tails for pfn in asked]
    heads = pages.head(asked, Faults())
    assert heads.tolist() == [
        compound_head(k.page(pfn).address_of_()).value_() for pfn in asked.tolist()
    ]
    assert heads[order3 + 5 - single] == VMEMMAP + 64 * order3
    # An unreadable page is its own head.
    lost = np.array([1 << 40])
    assert pages.head(lost, Faults()).tolist() == pages.struct_page(lost).tolist()


def test_tails_before_4_4() -> None:
    # Those have neither compound_head nor a bit of its own: PG_tail and first_page.
    k = FakeKernel("4.18")
    pfn = k.pages(2)
    for at in range(pfn, pfn + 4):
        k.set(k.page(at).compound_head, VMEMMAP + 64 * pfn)
        k.set(k.page(at).flags, 1 << 15 if at > pfn else 0)
    k.constant("PG_tail", 15)
    pages = page_map(k)
    fields = dict(pages.layout.fields)
    fields["first_page"] = fields.pop("compound")
    pages.layout = replace(pages.layout, fields=fields)
    records = pages.read(pfn, 4, Faults()).records(pages.layout, 64)
    assert pages.is_tail(records).tolist() == [False, True, True, True]
    assert pages.head(np.arange(pfn, pfn + 4), Faults()).tolist() == [VMEMMAP + 64 * pfn] * 4


@every_era
def test_slab_heads(era: str) -> None:
    k = FakeKernel(era)
    cache = k.cache("small", 192, order=2)
    k.pages(0)
    slabs = [k.slab(cache).pfn, k.slab(cache, order=0).pfn]
    k.pages(1)
    pages = page_map(k)
    records = pages.read(0, 1024, Faults()).records(pages.layout, 64)
    assert np.flatnonzero(pages.is_slab(records)).tolist() == slabs
    # A tail is not a slab, whatever its flags say.
    if not k.era.page_type:
        k.set(k.page(slabs[0] + 1).flags, 1 << 9)
        records = pages.read(0, 1024, Faults()).records(pages.layout, 64)
        assert np.flatnonzero(pages.is_slab(records)).tolist() == slabs


def test_large_kmalloc() -> None:
    k = FakeKernel()
    first = k.large_kmalloc(2)
    k.large_kmalloc(3)
    k.pages(3)
    pages = page_map(k)
    assert pages.large_kmalloc_type is not None
    records = pages.read(first, 40, Faults()).records(pages.layout, 64)
    assert pages.large_kmalloc_pages(records) == 4 + 8
    assert pages.large_kmalloc_pages(records[:0]) == 0
    # The order is in the second page of an allocation: of a head alone it is unknown.
    assert pages.large_kmalloc_pages(records[:9]) == 4
    # One that no allocation has is damage.
    k.set(k.page(first + 1).flags, 62)
    records = pages.read(first, 40, Faults()).records(pages.layout, 64)
    assert pages.large_kmalloc_pages(records) == 8
    pages = page_map(FakeKernel("5.17"))
    assert pages.large_kmalloc_type is None
    assert pages.large_kmalloc_pages(np.zeros(4, pages.layout.dtype())) == 0


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        # Before drgn shifts by it, which would take all memory there is.
        ("SECTION_SIZE_BITS", (0, 12, 40, 1 << 40), "impossible size"),
        ("__highest_present_section_nr", (1 << 25, 1 << 60, -1), "__highest_present_section_nr"),
    ],
)
def test_sections_that_no_machine_has_are_refused(
    name: str, values: tuple[int, ...], said: str
) -> None:
    k = FakeKernel()
    for value in values:
        k.constant(name, value, "long")
        with pytest.raises(LookupError, match=said):
            page_map(k)


def test_flags_beyond_any_word_take_no_memory() -> None:
    k = FakeKernel()
    k.cache("dentry", 192, reclaimable=True)
    k.constant("_SLAB_RECLAIM_ACCOUNT", 1 << 40)
    assert not reclaimable(SlabMap(Memory(k.prog))).any()
