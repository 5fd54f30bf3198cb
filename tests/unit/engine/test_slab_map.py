# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slab caches and the index of their slabs, on *synthetic* kernels of every era."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.freelist import FreelistCode
from kcensus.engine.slub.slabs import ScanReport, SlabMap, Slabs, UnsupportedAllocator
from tests.unit.fakekernel import DIRECT_MAP, ERAS, PAGE, VMEMMAP, FakeKernel, Slab, add_types

every_era = pytest.mark.parametrize("era", ERAS)


def slab_map(kernel: FakeKernel, chunk_bytes: int = 4 << 20) -> SlabMap:
    return SlabMap(Memory(kernel.prog, chunk_bytes))


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Fail a test that would never end."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Caches


@every_era
def test_caches_are_read_as_they_are(era: str) -> None:
    k = FakeKernel(era)
    k.cache("plain", 192)
    k.cache("padded", 1000, 1024, 3, offset=496, left_pad=16)
    k.cache("café", 8)
    found = slab_map(k).caches
    assert [cache.id for cache in found] == [0, 1, 2]
    for cache, truth in zip(found, k.caches, strict=True):
        assert cache.address == truth.address
        assert cache.object_size == truth.object_size
        assert cache.slot_size == truth.slot_size
        assert cache.order == truth.order
        assert cache.objects_per_slab == (PAGE << truth.order) // truth.slot_size
        assert cache.free_offset == truth.offset
        assert cache.left_pad == truth.left_pad
        assert cache.secret == truth.secret
    assert [cache.name for cache in found] == [truth.name for truth in k.caches]
    assert (found[0].secret != 0) == k.era.hardened


def test_a_name_that_is_no_utf8_is_escaped() -> None:
    k = FakeKernel()
    cache = k.cache("x", 8)
    k.set(cache.object.name, k.string(b"caf\xe9"))
    assert slab_map(k).caches[0].name == "caf\\xe9"


def test_a_name_that_cannot_be_read_is_a_question_mark() -> None:
    k = FakeKernel()
    first, second = k.cache("first", 8), k.cache("second", 16)
    place = k.alloc("char", 16, alone=True)
    k.set(first.object.name, place.address_)
    k.drop(place.address_)
    k.set(second.object.name, 0)
    assert [cache.name for cache in slab_map(k).caches] == ["?", "?"]


def test_a_kernel_without_slub_is_refused() -> None:
    k = FakeKernel()
    k.cache("some", 64)
    members = {"struct kmem_cache": (256, "24 unsigned int size\n64 struct list_head list")}
    add_types(k.prog, members, "slab allocator")
    with pytest.raises(UnsupportedAllocator, match="only the SLUB allocator"):
        slab_map(k)


def test_a_torn_list_of_caches_ends() -> None:
    k = FakeKernel()
    first, second = k.cache("first", 8), k.cache("second", 16)
    k.write_words(second.object.list.address_, first.object.list.address_)
    with deadline(10):
        found = slab_map(k)
    assert [cache.name for cache in found.caches] == ["first", "second"]
    assert found.caches_torn > 0


def test_a_tear_in_the_list_of_caches_costs_no_cache() -> None:
    # What cannot be reached from the one end is reached from the other.
    k = FakeKernel()
    caches = [k.cache(f"c{at}", 64) for at in range(5)]
    k.write_words(caches[1].object.list.address_, 0x10)
    found = slab_map(k)
    assert sorted(cache.name for cache in found.caches) == ["c0", "c1", "c2", "c3", "c4"]
    assert found.caches_torn > 0
    k.drop(caches[2].address)
    assert sorted(cache.name for cache in slab_map(k).caches) == ["c0", "c1", "c3", "c4"]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("size", 0),
        ("size", 0x7FFF_FFFF),
        ("object_size", 0),
        ("object_size", 65),
        ("offset", 12),
        ("offset", 64),
        ("red_left_pad", 64),
    ],
)
def test_a_cache_of_an_impossible_geometry_is_left_out(member: str, value: int) -> None:
    k = FakeKernel()
    torn, whole = k.cache("torn", 64), k.cache("whole", 64)
    for cache in (torn, whole):
        k.slab(cache, [3])
    k.set(torn.object.member_(member), value)
    found, report = slab_map(k), ScanReport()
    assert [cache.name for cache in found.caches] == ["whole"]
    assert found.caches_damaged == 1
    assert found.index(found.caches, report).address.tolist() == [whole.slabs[0].address]
    assert report.complete


@pytest.mark.parametrize("oo", [0, 65, 19 << 16 | 64, 0xFFFF << 16 | 1])
def test_a_cache_of_impossible_slabs_is_left_out(oo: int) -> None:
    k = FakeKernel()
    k.set(k.cache("torn", 64).object.oo.x, oo)
    k.cache("whole", 64)
    found = slab_map(k)
    assert [cache.name for cache in found.caches] == ["whole"]
    assert found.caches_damaged == 1


def test_no_caches_at_all() -> None:
    found = slab_map(FakeKernel())
    assert found.caches == []
    assert found.cache_ids(np.array([0, DIRECT_MAP], np.uint64)).tolist() == [-1, -1]


def test_no_part_of_the_page_array() -> None:
    k = FakeKernel()
    k.slab(k.cache("some", 64))
    k.settle()
    k.set(k.prog["mem_section"][0], 0)
    with pytest.raises(LookupError, match="mem_section"):
        _ = slab_map(k).survey


def test_cache_ids() -> None:
    k = FakeKernel()
    caches = [k.cache(f"c{at}", 64) for at in range(5)]
    found = slab_map(k)
    pointers = [caches[3].address, 0, caches[0].address, caches[3].address + 8, (1 << 64) - 1]
    assert found.cache_ids(np.array(pointers, np.uint64)).tolist() == [3, -1, 0, -1, -1]
    assert found.cache_ids(np.array([], np.uint64)).tolist() == []
    assert found.column("slot_size").tolist() == [64] * 5


def test_cache_ids_where_the_list_is_not_in_order_of_address() -> None:
    k = FakeKernel()
    caches = [k.cache(f"c{at}", 64) for at in range(5)]
    k.list_init(k.symbols["slab_caches"])
    listed = [caches[at] for at in (3, 0, 4, 2, 1)]
    for cache in listed:
        k.list_add_tail(cache.object.list, k.symbols["slab_caches"])
    found = slab_map(k)
    assert [cache.name for cache in found.caches] == ["c3", "c0", "c4", "c2", "c1"]
    pointers = np.array([cache.address for cache in listed], np.uint64)
    assert found.cache_ids(pointers).tolist() == [0, 1, 2, 3, 4]


# Slabs


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


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_index_of_some_caches(jobs: int) -> None:
    k = FakeKernel()
    caches = [k.cache(f"c{at}", 256) for at in range(3)]
    for at in range(60):
        k.slab(caches[at % 3])
    found, report = SlabMap(Memory(k.prog, PAGE, jobs=jobs)), ScanReport()
    wanted = [found.caches[0], found.caches[2]]
    slabs = found.index(wanted, report)
    truth = sorted(slab.address for cache in (caches[0], caches[2]) for slab in cache.slabs)
    assert slabs.address.tolist() == truth
    assert set(slabs.cache.tolist()) == {0, 2}
    assert report.complete


def test_a_hole_in_the_page_array_loses_slabs_and_says_so() -> None:
    k = FakeKernel()
    cache = k.cache("small", 256)
    slabs = [k.slab(cache) for _ in range(200)]
    k.drop(VMEMMAP + 576 * 64)
    found, report = slab_map(k), ScanReport()
    index = found.index(found.caches, report)
    lost = [slab for slab in slabs if 576 <= slab.pfn < 640]
    assert len(lost) == 64
    assert index.address.tolist() == [slab.address for slab in slabs if slab not in lost]
    assert report.memmap == {"filtered out of the dump": 1}
    assert not report.complete


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


def test_a_slab_of_a_cache_that_is_on_no_list() -> None:
    k = FakeKernel()
    slab = k.slab(k.cache("small", 256))
    k.set(slab.struct.slab_cache, DIRECT_MAP + 300 * PAGE)
    found = slab_map(k)
    assert found.survey.slabs.cache.tolist() == [-1]
    # However many objects the other caches' slabs may have.
    k.cache("large", 4096)
    assert slab_map(k).survey.slabs.cache.tolist() == [-1]
    assert len(found.index(found.caches, ScanReport())) == 0


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


def slabs_of(objects: npt.ArrayLike, cache: int = 0) -> Slabs:
    counts = np.atleast_1d(np.asarray(objects, np.uint16))
    nothing = np.zeros(len(counts), np.uint64)
    return Slabs(
        nothing, np.full(len(counts), cache, np.int32), counts, counts, nothing,
        np.zeros(len(counts), np.uint16), {},
    )  # fmt: skip


MAP = slab_map(FakeKernel())


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4096).map(lambda words: 8 * words), st.integers(0, 10), st.integers(0, 10))
def test_the_order_follows_from_the_number_of_objects(slot: int, order: int, usual: int) -> None:
    objects, normal = (PAGE << order) // slot, (PAGE << usual) // slot
    assume(1 <= objects <= 0x7FFF and 1 <= normal <= 0x7FFF)
    # The slab may be of another order than the cache's usual one.
    MAP._columns = {
        "slot_size": np.array([slot], np.uint64),
        "order": np.array([usual], np.uint64),
        "objects_per_slab": np.array([normal], np.uint64),
    }
    assert MAP.slab_pages(slabs_of([objects, normal])).tolist() == [1 << order, 1 << usual]


def test_sizes_of_many_objects_do_not_overflow() -> None:
    # 32767 objects are the most that the kernel's 15 bits hold: 28 bits of bytes.
    MAP._columns = {
        "slot_size": np.array([8192], np.uint64),
        "order": np.array([16], np.uint64),
        "objects_per_slab": np.array([1], np.uint64),
    }
    assert MAP.slab_pages(slabs_of([0x7FFF, 0, 2])).tolist() == [1 << 16, 1, 4]


# Free list pointers


@pytest.mark.parametrize("swab", [True, False])
def test_the_code_undoes_what_the_kernel_does(swab: bool) -> None:
    k = FakeKernel(replace(ERAS["6.10"], swab=swab))
    cache = k.cache("small", 64, offset=24)
    slab = k.slab(cache)
    k.link(cache, slab.object(3), slab.object(7))
    place = np.array([slab.object(3) + 24], np.uint64)
    stored = np.array([k.word(int(place[0]))], np.uint64)
    assert stored[0] != slab.object(7)
    code = FreelistCode(swab)
    assert code.decode(stored, place, np.uint64(cache.secret)).tolist() == [slab.object(7)]
    assert FreelistCode(not swab).decode(stored, place, np.uint64(cache.secret)) != slab.object(7)
    secrets = np.array([0, cache.secret], np.uint64)
    both = code.decode(np.repeat(stored, 2), np.repeat(place, 2), secrets)
    assert both.tolist() == [stored[0], slab.object(7)]


@pytest.mark.parametrize("swab", [True, False])
@pytest.mark.parametrize("chunk_bytes", [PAGE, 4 << 20])
def test_the_code_is_found_from_the_lists(swab: bool, chunk_bytes: int) -> None:
    k = FakeKernel(replace(ERAS["5.9"], swab=swab))
    cache = k.cache("small", 256, order=1)
    for at in range(80):
        k.slab(cache, range(at % 7))
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


def test_lists_of_one_object_are_enough() -> None:
    for swab in (True, False):
        k = FakeKernel(replace(ERAS["6.10"], swab=swab))
        k.slab(k.cache("small", 256), [5])
        assert slab_map(k).freelist_code == FreelistCode(swab)


def test_without_any_list_any_code_will_do() -> None:
    k = FakeKernel("6.10")
    k.slab(k.cache("small", 256))
    assert slab_map(k).freelist_code == FreelistCode()


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


# From an address to its cache


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


def test_containing_where_the_page_array_has_a_hole() -> None:
    k = FakeKernel()
    cache = k.cache("small", 192)
    slabs = [k.slab(cache) for _ in range(130)]
    k.drop(VMEMMAP + 576 * 64)
    found, faults = slab_map(k), Faults()
    addresses = np.array([slab.object(1) for slab in slabs], np.uint64)
    lost = [576 <= slab.pfn < 640 for slab in slabs]
    ids = found.containing(addresses, faults)
    assert ids.tolist() == [-1 if gone else 0 for gone in lost]
    assert faults["filtered out of the dump"] > 0


# Reports


def test_reports_add_up() -> None:
    total, part = ScanReport(), ScanReport()
    assert total.complete
    part.memmap["not mapped"] = 2
    part.slabs["not in the dump"] = 3
    part.objects_unreadable = 4
    part.objects_uncertain = 5
    part.slabs_torn = 6
    part.lists_lost = 7
    total.add(part)
    total.add(ScanReport())
    total.add(part)
    assert total.memmap == {"not mapped": 4}
    assert total.slabs == {"not in the dump": 6}
    counts = total.objects_unreadable, total.objects_uncertain, total.slabs_torn, total.lists_lost
    assert counts == (8, 10, 12, 14)


@pytest.mark.parametrize(
    "what", ["memmap", "slabs", "objects_uncertain", "slabs_torn", "lists_lost"]
)
def test_anything_lost_is_incomplete(what: str) -> None:
    report = ScanReport()
    setattr(report, what, Faults({"not mapped": 1}) if what in ("memmap", "slabs") else 1)
    assert not report.complete
