# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slabs and objects of SLAB, on *synthetic* kernels, against the model's truth."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport, SlabMap, UnsupportedAllocator
from kcensus.engine.slub.slots import Slots
from kcensus.kernel.slab.counters import node_counters
from tests.unit.fakekernel import PAGE, Cache, FakeKernel, add_types
from tests.unit.fakekernel.slab import ColouredSlab, SlabKernel

TYPES = "struct thing 96 : 16 struct thing * self"


def scan(k: SlabKernel, cache: Cache, chunk_bytes: int = 4 << 20) -> tuple[list[int], ScanReport]:
    add_types(k.prog, TYPES, "things")
    for slab in cache.slabs:
        for slot in slab.allocated():
            k.write_words(slab.object(slot) + 16, slab.object(slot))
    slab_map, report = SlabMap(Memory(k.prog, chunk_bytes)), ScanReport()
    columns = layout(k.prog, "struct thing", ["self"])
    wanted = [slab_map.caches[k.caches.index(cache)]]
    address, values = allocated(slab_map, wanted, columns, report)
    if not report.objects_uncertain:
        assert (values["self"] == address).all()
    return np.sort(address).tolist(), report


def populated(era: str = "5.17", left_pad: int = 0) -> tuple[SlabKernel, Cache]:
    chance, k = random.Random(5), SlabKernel(era)
    k.slab(k.cache("other", 64, spare=1), [3])
    cache = k.cache("thing", 96, 112, 1, left_pad=left_pad, spare=3)
    slots = int(cache.object.num)
    for at in range(24):
        free = chance.sample(range(slots), chance.choice([0, 1, 9, slots // 2, slots - 1, slots]))
        where = ("behind", "outside", "inside")[at % 3]
        k.slab(cache, free, node=at % 2, colour=64 * (at % 4), where=where)
    return k, cache


def park(k: SlabKernel, cache: Cache) -> None:
    full = [slab for slab in cache.slabs if len(slab.allocated()) > 20]
    near = [slab for slab in full if slab.node == 0]
    far = next(slab for slab in full if slab.node == 1)
    k.array(k.cpu_array(cache, 0), [(slab, slab.allocated()[4]) for slab in near])
    k.array(k.cpu_array(cache, 1), [(far, slot) for slot in far.allocated()[:3]])
    k.array(k.shared_array(cache, 0), [(near[0], slot) for slot in near[0].allocated()[7:12]])
    k.array(k.alien_array(cache, 0, 1), [(far, slot) for slot in far.allocated()[-4:]])


@pytest.mark.parametrize("era", ["5.9", "5.17"])
@pytest.mark.parametrize("left_pad", [0, 16])
@pytest.mark.parametrize("chunk_bytes", [PAGE, 4 << 20])
def test_objects_are_exactly_those_allocated(era: str, left_pad: int, chunk_bytes: int) -> None:
    k, cache = populated(era, left_pad)
    park(k, cache)
    found, report = scan(k, cache, chunk_bytes=chunk_bytes)
    assert found == cache.allocated()
    assert report.complete


def test_slots_are_numbered_past_the_colour_of_each_slab() -> None:
    k, cache = populated()
    slab_map = SlabMap(Memory(k.prog))
    slots = Slots(slab_map, slab_map.index([slab_map.caches[1]], ScanReport()))
    ordered = sorted(cache.slabs, key=lambda slab: slab.address)
    every = np.array([slab.object(at) for slab in ordered for at in range(slab.objects)], "u8")
    assert slots.of(every).tolist() == list(range(len(every)))
    assert (slots.of(every + np.uint64(8)) == -1).all()
    assert (slots.address(np.arange(len(every))) == every).all()


def test_counters_are_those_of_the_slabs() -> None:
    k, cache = populated()
    k.settle()
    counters = node_counters(SlabMap(Memory(k.prog)), Faults())
    assert counters is not None
    free = sum(len(slab.free) for slab in cache.slabs)
    sums = {name: column.tolist() for name, column in counters.sums.items()}
    assert sums == {"total_slabs": [1, 24], "free_objects": [1, free]}
    k.set(k.node(cache, 1).total_slabs, 14)
    slab_map, report = SlabMap(Memory(k.prog)), ScanReport()
    slab_map.index(slab_map.caches, report)
    assert report.slabs_missing == 2


def damaged(k: SlabKernel, cache: Cache) -> ColouredSlab:
    slab = k.slab(cache, [5, 1, 2])
    assert isinstance(slab, ColouredSlab)
    return slab


@pytest.mark.parametrize("numbers", [[5, 5, 2], [200, 1, 2]])
def test_a_number_twice_or_of_no_slot_is_a_tear(numbers: list[int]) -> None:
    k, cache = SlabKernel(), None
    cache = k.cache("thing", 96, spare=1)
    slab = damaged(k, cache)
    k.write(int(slab.struct.freelist) + slab.objects - 3, bytes(numbers))
    found, report = scan(k, cache)
    assert (report.slabs_torn, report.objects_uncertain) == (1, 1)
    assert {*cache.allocated()} < {*found}


def test_an_array_of_numbers_that_the_dump_lacks_is_a_tear() -> None:
    k = SlabKernel()
    cache = k.cache("thing", 96, spare=1)
    slab = k.slab(cache, [5, 1], where="outside")
    k.drop(int(slab.struct.freelist))
    found, report = scan(k, cache)
    assert (report.slabs_torn, report.objects_uncertain, len(found)) == (1, 2, slab.objects)


@pytest.mark.parametrize("member", ["s_mem", "active"])
def test_an_impossible_slab_is_left_out(member: str) -> None:
    k = SlabKernel()
    cache = k.cache("thing", 96, spare=1)
    slab = k.slab(cache, [5, 1])
    value = {"s_mem": slab.address + 1024, "active": slab.objects + 1}[member]
    k.set(slab.struct.member_(member), value)
    found, report = scan(k, cache)
    assert (report.slabs_invalid, found) == (1, [])


@pytest.mark.parametrize("where", ["cpu", "shared", "alien"])
def test_an_impossible_array_is_lost(where: str) -> None:
    k, cache = populated()
    park(k, cache)
    node = k.node(cache, 0)
    array = {"cpu": k.cpu_array(cache, 0), "shared": node.shared[0], "alien": node.alien[1].ac}[
        where
    ]
    k.set(array.avail, 17)
    slab_map = SlabMap(Memory(k.prog))
    assert parked(slab_map, slab_map.caches).lost == 1


def test_a_slab_of_no_cache_is_kept_apart() -> None:
    k = SlabKernel()
    cache = k.cache("thing", 96, spare=1)
    k.set(k.slab(cache, [2]).struct.slab_cache, 0)
    survey = SlabMap(Memory(k.prog)).survey
    assert (survey.slabs.cache.tolist(), survey.invalid.tolist()) == ([-1], [0, 0])


@pytest.mark.parametrize(
    "types",
    [
        "struct kmem_cache 64 : 0 struct array_cache * [4] array; 40 struct list_head list",
        "struct kmem_cache 64 : 0 unsigned int object_size; 8 struct list_head list",
    ],
)
def test_slob_and_old_slab_are_refused(types: str) -> None:
    k = FakeKernel("5.17")
    add_types(k.prog, types, "old")
    with pytest.raises(UnsupportedAllocator):
        SlabMap(Memory(k.prog))
