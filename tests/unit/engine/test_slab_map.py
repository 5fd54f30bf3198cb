# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slab caches and the index of their slabs, on *synthetic* kernels of every era."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.slabs import FreelistCode, ScanReport, SlabMap, Slabs
from kcensus.engine.slub.slots import Slots
from tests.unit.fakekernel import DIRECT_MAP, ERAS, PAGE, VMEMMAP, FakeKernel, Slab

pytestmark = pytest.mark.ends

every_era = pytest.mark.parametrize("era", ERAS)


def slab_map(kernel: FakeKernel, chunk_bytes: int = 4 << 20) -> SlabMap:
    return SlabMap(Memory(kernel.prog, chunk_bytes))


@every_era
def test_caches_are_read_as_they_are(era: str) -> None:
    k = FakeKernel(era)
    k.cache("plain", 192)
    k.cache("padded", 1000, 1024, 3, offset=496, left_pad=16)
    k.cache("café", 8)
    found = slab_map(k).caches
    assert [cache.id for cache in found] == [0, 1, 2]
    for cache, truth in zip(found, k.caches, strict=True):
        for name in ("address", "object_size", "slot_size", "order", "left_pad", "secret"):
            assert getattr(cache, name) == getattr(truth, name)
        assert cache.objects_per_slab == (PAGE << truth.order) // truth.slot_size
        assert cache.free_offset == truth.offset
    assert [cache.name for cache in found] == [truth.name for truth in k.caches]
    assert (found[0].secret != 0) == k.era.hardened


def test_names_that_cannot_be_read_or_are_no_utf8() -> None:
    k = FakeKernel()
    first, second, third = (k.cache(name, 8) for name in ("first", "second", "third"))
    place = k.alloc("char", 16, alone=True)
    k.set(first.object.name, place.address_)
    k.drop(place.address_)
    k.set(second.object.name, 0)
    k.set(third.object.name, k.string(b"caf\xe9"))
    assert [cache.name for cache in slab_map(k).caches] == ["?", "?", "caf\\xe9"]


@pytest.mark.parametrize("is_circle", [False, True])
def test_a_tear_in_the_list_of_caches_costs_no_cache(is_circle: bool) -> None:
    # What cannot be reached from the one end is reached from the other.
    k = FakeKernel()
    caches = [k.cache(f"c{at}", 64) for at in range(5)]
    following = caches[0].object.list.address_ if is_circle else 0x10
    k.write_words(caches[1].object.list.address_, following)
    found = slab_map(k)
    assert sorted(cache.name for cache in found.caches) == ["c0", "c1", "c2", "c3", "c4"]
    assert found.caches_torn > 0
    k.drop(caches[2].address)
    assert sorted(cache.name for cache in slab_map(k).caches) == ["c0", "c1", "c3", "c4"]


def test_a_cache_without_its_name_is_damage() -> None:
    k = FakeKernel()
    lost, _ = k.cache("kmalloc-64", 64), k.cache("whole", 64)
    k.write(int(lost.object.name.value_()), bytes(11))
    found = slab_map(k)
    assert [cache.name for cache in found.caches] == ["?", "whole"]
    assert found.caches_damaged == 1


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *(("size", 0), ("size", 0x7FFF_FFFF), ("object_size", 0), ("object_size", 65)),
        *(("offset", 12), ("offset", 64), ("red_left_pad", 64)),
        *(("oo", objects) for objects in (0, 65, 19 << 16 | 64, 0xFFFF << 16 | 1)),
    ],
)
def test_a_cache_of_an_impossible_geometry_is_left_out(member: str, value: int) -> None:
    k = FakeKernel()
    torn, whole = k.cache("torn", 64), k.cache("whole", 64)
    for cache in (torn, whole):
        k.slab(cache, [3])
    k.set(torn.object.oo.x if member == "oo" else torn.object.member_(member), value)
    found, report = slab_map(k), ScanReport()
    assert [cache.name for cache in found.caches] == ["whole"]
    assert found.caches_damaged == 1
    assert found.index(found.caches, report).address.tolist() == [whole.slabs[0].address]
    assert report.complete


def test_no_part_of_the_page_array() -> None:
    k = FakeKernel()
    k.slab(k.cache("some", 64))
    k.settle()
    k.set(k.prog["mem_section"][0], 0)
    with pytest.raises(LookupError, match="mem_section"):
        _ = slab_map(k).survey
    # A slab of a cache that is on no list.
    k = FakeKernel()
    k.set(k.slab(k.cache("small", 256)).struct.slab_cache, DIRECT_MAP + 300 * PAGE)
    found = slab_map(k)
    assert found.survey.slabs.cache.tolist() == [-1]
    # However many objects the other caches' slabs may have.
    k.cache("large", 4096)
    assert slab_map(k).survey.slabs.cache.tolist() == [-1]
    assert len(found.index(found.caches, ScanReport())) == 0


def test_cache_ids() -> None:
    nothing = slab_map(FakeKernel())
    assert nothing.caches == []
    assert nothing.cache_ids(np.array([0, DIRECT_MAP], np.uint64)).tolist() == [-1, -1]
    k = FakeKernel()
    caches = [k.cache(f"c{at}", 64) for at in range(5)]
    found = slab_map(k)
    pointers = [caches[3].address, 0, caches[0].address, caches[3].address + 8, (1 << 64) - 1]
    assert found.cache_ids(np.array(pointers, np.uint64)).tolist() == [3, -1, 0, -1, -1]
    assert found.cache_ids(np.array([], np.uint64)).tolist() == []
    assert found.column("slot_size").tolist() == [64] * 5
    # The list need not be in order of address.
    k.list_init(k.symbols["slab_caches"])
    listed = [caches[at] for at in (3, 0, 4, 2, 1)]
    for cache in listed:
        k.list_add_tail(cache.object.list, k.symbols["slab_caches"])
    found = slab_map(k)
    assert [cache.name for cache in found.caches] == ["c3", "c0", "c4", "c2", "c1"]
    addresses = np.array([cache.address for cache in listed], np.uint64)
    assert found.cache_ids(addresses).tolist() == [0, 1, 2, 3, 4]


@every_era
@pytest.mark.parametrize("chunk_bytes", [PAGE, 4 << 20])
def test_slabs_are_what_the_model_says(era: str, chunk_bytes: int) -> None:
    k = FakeKernel(era)
    small, large = k.cache("small", 192), k.cache("large", 2048, order=3)
    for node in (0, 1):
        k.slab(small, [1, 2, 3], node=node)
        k.slab(large, node=node)
        k.slab(large, [1], order=0, node=node)
        k.pages(2, node)
    found = slab_map(k, chunk_bytes)
    slabs = found.survey.slabs
    assert not found.survey.memmap
    assert not found.survey.invalid.any()
    truth: list[Slab] = sorted(small.slabs + large.slabs, key=lambda slab: slab.pfn)
    assert slabs.address.tolist() == [slab.address for slab in truth]
    assert slabs.cache.tolist() == [k.caches.index(slab.cache) for slab in truth]
    assert slabs.objects.tolist() == [slab.objects for slab in truth]
    assert slabs.inuse.tolist() == [slab.objects - len(slab.free) for slab in truth]
    assert slabs.node.tolist() == [slab.node for slab in truth]
    assert (slabs.freelist != 0).tolist() == [bool(slab.free) for slab in truth]
    assert found.slab_pages(slabs).tolist() == [1 << slab.order for slab in truth]
    assert len(slabs) == 6
    assert slabs.extra == {}


def test_a_hole_in_the_page_array_loses_slabs_and_says_so() -> None:
    k = FakeKernel()
    cache = k.cache("small", 256)
    slabs = [k.slab(cache) for _ in range(200)]
    k.drop(VMEMMAP + 576 * 64)
    found, report, faults = slab_map(k), ScanReport(), Faults()
    index = found.index(found.caches, report)
    lost = [slab for slab in slabs if 576 <= slab.pfn < 640]
    assert len(lost) == 64
    assert index.address.tolist() == [slab.address for slab in slabs if slab not in lost]
    assert report.memmap == {"filtered out of the dump": 1}
    assert not report.complete
    addresses = np.array([slab.object(1) for slab in slabs], np.uint64)
    ids = [-1 if slab in lost else 0 for slab in slabs]
    assert found.containing(addresses, faults).tolist() == ids
    assert faults["filtered out of the dump"] > 0


def test_no_slab_is_taken_from_a_struct_page_that_could_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    k = FakeKernel()
    cache = k.cache("small", 256)
    slabs = [k.slab(cache) for _ in range(4)]
    found = slab_map(k)
    chunk = found.pages.read(slabs[0].pfn, 4, Faults())
    half = replace(chunk, readable=np.array([True, False, True, False]))
    monkeypatch.setattr(found.pages, "read", lambda *span: half)
    monkeypatch.setattr(found.pages, "chunk_spans", lambda: [(slabs[0].pfn, 4)])
    rows = found.survey.slabs
    assert rows.address.tolist() == [slabs[0].address, slabs[2].address]


def test_rows_can_be_chosen() -> None:
    k = FakeKernel()
    cache = k.cache("small", 256)
    for at in range(4):
        k.slab(cache, range(at))
    found = SlabMap(Memory(k.prog), {"owners": ("obj_exts",), "absent": ("nothing",)})
    slabs = found.index(found.caches, ScanReport())
    assert list(slabs.extra) == ["owners"]
    some = slabs[np.array([3, 1])]
    assert some.inuse.tolist() == [13, 15]
    assert some.address.tolist() == slabs.address[[3, 1]].tolist()
    assert len(some.extra["owners"]) == 2
    assert slabs[slabs.inuse > 14].inuse.tolist() == [16, 15]


MAP = slab_map(FakeKernel())


def pages_of(slot: int, order: int, usual: int, objects: list[int]) -> list[int]:
    figures = {"slot_size": slot, "order": order, "objects_per_slab": usual}
    MAP._columns = {name: np.array([figure], np.uint64) for name, figure in figures.items()}
    counts = np.array(objects, np.uint16)
    nothing = np.zeros(len(counts), np.uint64)
    caches = np.zeros(len(counts), np.int32)
    slabs = Slabs(nothing, caches, counts, counts, nothing, nothing.astype(np.uint16), {})
    pages: list[int] = MAP.slab_pages(slabs).tolist()
    return pages


@given(st.integers(1, 4096).map(lambda words: 8 * words), st.integers(0, 10), st.integers(0, 10))
def test_the_order_follows_from_the_number_of_objects(slot: int, order: int, usual: int) -> None:
    objects, normal = (PAGE << order) // slot, (PAGE << usual) // slot
    assume(1 <= objects <= 0x7FFF and 1 <= normal <= 0x7FFF)
    # The slab may be of another order than the cache's usual one.
    assert pages_of(slot, usual, normal, [objects, normal]) == [1 << order, 1 << usual]


def test_sizes_of_many_objects_do_not_overflow() -> None:
    # 32767 objects are the most that the kernel's 15 bits hold: 28 bits of bytes.
    assert pages_of(8192, 16, 1, [0x7FFF, 0, 2]) == [1 << 16, 1, 4]


@pytest.mark.parametrize("swab", [True, False])
@pytest.mark.parametrize("chunk_bytes", [PAGE, 4 << 20])
@pytest.mark.parametrize("frees", [[range(at % 7) for at in range(80)], [[5]]], ids=len)
def test_the_code_is_found_from_the_lists(
    swab: bool, chunk_bytes: int, frees: list[list[int]]
) -> None:
    k = FakeKernel(replace(ERAS["5.9"], swab=swab))
    cache = k.cache("small", 256, order=1)
    for free in frees:
        k.slab(cache, free)
    assert slab_map(k, chunk_bytes).freelist_code == FreelistCode(swab)


@pytest.mark.parametrize("swab", [True, False])
def test_a_few_torn_lists_do_not_change_the_verdict(swab: bool) -> None:
    k = FakeKernel(replace(ERAS["6.10"], swab=swab))
    cache = k.cache("small", 256)
    slabs = [k.slab(cache, [1, 2, 3]) for _ in range(9)]
    for slab in slabs[:4]:
        k.write(slab.object(1), b"\xa5" * 256)
    k.drop(slabs[4].address)
    assert slab_map(k).freelist_code == FreelistCode(swab)


@every_era
def test_next_free(era: str) -> None:
    k = FakeKernel(era)
    one, two = k.cache("one", 64), k.cache("two", 128, offset=56)
    first, second = k.slab(one, [5, 2]), k.slab(two, [0, 9])
    hole = k.slab(two, [3])
    k.drop(hole.address)
    found = slab_map(k)
    objects = [first.object(5), first.object(2), second.object(0), hole.object(3)]
    following, readable = found.next_free(
        FreelistCode(k.era.swab), np.array(objects, np.uint64), np.array([0, 0, 1, 1], np.int32)
    )
    assert following[:3].tolist() == [first.object(2), 0, second.object(9)]
    assert readable.tolist() == [True, True, True, False]


@every_era
def test_containing(era: str) -> None:
    k = FakeKernel(era)
    small, large = k.cache("small", 192), k.cache("large", 1000, 1024, 3)
    one, big = k.slab(small), k.slab(large)
    other, compound = k.pages(0), k.pages(2)
    gone = k.slab(small)
    k.set(gone.struct.slab_cache, 0)
    # What a page's words were when it was a slab may still be there.
    for pfn in (other, compound):
        k.write_words(VMEMMAP + 64 * pfn + 24, small.address)
    answers = {
        one.object(3) + 17: 0,
        one.address: 0,
        big.address: 1,
        big.object(31) + 999: 1,
        big.address + 7 * PAGE + 4095: 1,
        DIRECT_MAP + other * PAGE: -1,
        DIRECT_MAP + (compound + 1) * PAGE: -1,
        gone.object(0): -1,
        DIRECT_MAP + 1500 * PAGE: -1,
        VMEMMAP: -1,
        0: -1,
        (1 << 64) - 1: -1,
        one.object(5): 0,
    }
    found = slab_map(k)
    faults = Faults()
    addresses = np.array([*answers], np.uint64)
    assert found.containing(addresses, faults).tolist() == [*answers.values()]
    assert not faults
    assert found.containing(np.array([], np.uint64), faults).tolist() == []


def test_reports_add_up_and_anything_lost_is_incomplete() -> None:
    names = ("objects_unreadable", "objects_uncertain", "slabs_torn", "lists_lost")
    parts = [ScanReport() for _ in names]
    for at, (name, part) in enumerate(zip(names, parts, strict=True), 4):
        setattr(part, name, at)
    parts += [ScanReport(memmap=Faults({"lost": 2})), ScanReport(slabs=Faults({"lost": 3}))]
    assert [part.complete for part in parts] == [True] + [False] * 5
    total = ScanReport()
    assert total.complete
    for part in [*parts, *parts, ScanReport()]:
        total.add(part)
    assert [getattr(total, name) for name in names] == [8, 10, 12, 14]
    assert (total.memmap, total.slabs) == ({"lost": 4}, {"lost": 6})


@pytest.mark.parametrize("apart", [1, 10_000])
def test_an_address_outside_of_all_slabs_has_no_slot(apart: int) -> None:
    """Near slabs have a table from pages to slabs; slabs that lie far apart have none."""
    k = FakeKernel(next(iter(ERAS)))
    k.cache("plain", 192)
    found = slab_map(k)
    cache = next(each for each in found.caches if each.name == "plain")
    start = np.uint64(DIRECT_MAP)
    address = start + np.array([0, apart * PAGE], np.uint64)
    none, few = np.zeros(2, np.uint64), np.full(2, 21, np.uint16)
    caches = np.full(2, found.caches.index(cache), np.int32)
    slots = Slots(found, Slabs(address, caches, few, few, none, few, {}))
    assert (slots._table is None) == (apart > 1)
    behind = np.array([PAGE * (apart + 5) + 192, PAGE * max(apart // 2, 3)], np.uint64)
    inside = np.array([0, 192, apart * PAGE, apart * PAGE + 192], np.uint64)
    assert slots.of(start + inside).tolist() == [0, 1, 21, 22]
    assert slots.of(start + behind).tolist() == [-1, -1]
