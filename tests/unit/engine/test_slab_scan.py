# SPDX-License-Identifier: LGPL-2.1-or-later
"""Allocated objects as columns, on *synthetic* kernels of every era, against the model's truth."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kcensus.engine.layout import layout
from kcensus.engine.memory import Memory
from kcensus.engine.slub import parked as parked_module
from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.scan import DoesNotFit, allocated, selected
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from tests.unit import fakekernel
from tests.unit.fakekernel import DIRECT_MAP, ERAS, PAGE, Cache, FakeKernel, Slab

pytestmark = pytest.mark.ends

every_era = pytest.mark.parametrize("era", ERAS)
any_chunk = pytest.mark.parametrize("chunk_bytes", [PAGE, 40 * PAGE, 4 << 20])

# Twelve bytes into an object, where no free list pointer stands.
TYPES = """
struct thing 64
    8 unsigned int id; 12 unsigned short low:5; 13 char [5] tag; 24 struct thing * self
struct giant 200 : 0 long first; 192 long last
"""


def fake(era: str = "6.10", **changes: object) -> FakeKernel:
    kernel = FakeKernel(replace(ERAS[era], **changes))  # type: ignore[arg-type]
    fakekernel.add_types(kernel.prog, TYPES, "things")
    return kernel


def one(era: str = "6.10", *frees: list[int], order: int = 0) -> tuple[FakeKernel, Cache]:
    """Return a kernel with a cache of slots of 64 bytes, and a slab for each list of free slots."""
    kernel = fake(era)
    cache = kernel.cache("thing", 64, order=order)
    for free in frees:
        fill(kernel, kernel.slab(cache, free))
    return kernel, cache


def fill(kernel: FakeKernel, slab: Slab) -> None:
    for slot in slab.allocated():
        address = slab.object(slot)
        number = address >> 3 & 0xFFFFFFFF
        # The bits after it are no zeros.
        low = slot & 31 | 0xE0 if kernel.byte_order == "little" else (slot & 31) << 3 | 7
        kernel.write(address + 8, number.to_bytes(4, kernel.byte_order) + bytes([low]))
        kernel.write(address + 13, b"%05d" % slot)
        kernel.write_words(address + 24, address)


def expected(addresses: list[int], cache: Cache) -> dict[str, list[Any]]:
    slots = {slab.object(at): at for slab in cache.slabs for at in range(slab.objects)}
    return {
        "id": [address >> 3 & 0xFFFFFFFF for address in addresses],
        "low": [slots[address] & 31 for address in addresses],
        "tag": [b"%05d" % slots[address] for address in addresses],
        "self": addresses,
    }


def scan(
    kernel: FakeKernel, cache: Cache, *, chunk_bytes: int = 4 << 20, jobs: int = 1
) -> tuple[list[int], dict[str, list[Any]], ScanReport]:
    slab_map, report = SlabMap(Memory(kernel.prog, chunk_bytes, jobs=jobs)), ScanReport()
    columns = layout(kernel.prog, "struct thing", ["id", "low", "tag", "self"])
    wanted = [slab_map.caches[kernel.caches.index(cache)]]
    address, values = allocated(slab_map, wanted, columns, report)
    assert all(len(column) == len(address) for column in values.values())
    order = np.argsort(address)
    return (
        address[order].tolist(),
        {name: column[order].tolist() for name, column in values.items()},
        report,
    )


def check(kernel: FakeKernel, cache: Cache, **options: int) -> ScanReport:
    addresses, values, report = scan(kernel, cache, **options)
    assert addresses == cache.allocated()
    assert values == expected(addresses, cache)
    return report


def populated(era: str, offset: int = 40, **changes: object) -> tuple[FakeKernel, Cache]:
    chance = random.Random(5)
    k = fake(era, **changes)
    other = k.cache("other", 64, order=1)
    cache = k.cache("thing", 88, 104, 3, offset=offset, left_pad=8)
    slabs = []
    for at in range(24):
        order = (3, 3, 0, 1)[at % 4]
        count = (PAGE << order) // 104
        free = chance.sample(range(count), chance.choice([0, 1, count // 2, count - 1, count]))
        slabs.append(k.slab(cache, free, order=order, node=at % 2))
        k.slab(other, [1, 3])
    for slab in slabs:
        fill(k, slab)
    return k, cache


def park(k: FakeKernel, cache: Cache, where: str) -> None:
    slabs = [slab for slab in cache.slabs if len(slab.allocated()) > 30]
    if where == "cpu":
        k.cpu_slab(slabs[0], 0, slabs[0].allocated()[5:9])
        k.cpu_slab(slabs[1], 1, slabs[1].allocated()[-3:])
    else:
        for cpu, which, slab in ((0, "main", 0), (1, "main", 1), (1, "spare", 2)):
            slots = [(slabs[slab], slot) for slot in slabs[slab].allocated()[2 : 8 + cpu]]
            k.cpu_sheaf(cache, cpu, which, k.sheaf(slots))
        for node, slab in ((0, 3), (0, 4), (1, 5)):
            slots = [(slabs[slab], slot) for slot in slabs[slab].allocated()[:7]]
            k.list_add_tail(k.sheaf(slots).barn_list, k.barn(cache, node).sheaves_full)


@every_era
@any_chunk
def test_objects_are_exactly_those_allocated(era: str, chunk_bytes: int) -> None:
    k, cache = populated(era)
    if k.era.cpu_slab:
        park(k, cache, "cpu")
    if k.era.sheaves:
        park(k, cache, "sheaves")
    assert check(k, cache, chunk_bytes=chunk_bytes).complete


@pytest.mark.parametrize("offset", [0, 80, 88])
def test_free_lists_wherever_their_pointers_stand(offset: int) -> None:
    # Debugging and constructors move the pointer behind the object: the last offset.
    k, cache = populated("6.10", offset)
    park(k, cache, "cpu")
    assert check(k, cache, chunk_bytes=16 * PAGE).complete


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("slots", [(3, 7), ()])
def test_only_selected_objects_are_kept(slots: tuple[int, ...], jobs: int) -> None:
    k, cache = populated("6.10")
    park(k, cache, "cpu")
    slab_map, report = SlabMap(Memory(k.prog, 16 * PAGE, jobs=jobs)), ScanReport()
    columns = layout(k.prog, "struct thing", ["id", "low", "tag", "self"])
    wanted = [slab_map.caches[k.caches.index(cache)]]
    address, values = selected(
        slab_map, wanted, columns, lambda view: np.isin(view.column("low"), slots), report
    )
    of_slot = {slab.object(at): at & 31 for slab in cache.slabs for at in range(slab.objects)}
    order = np.argsort(address)
    kept = [each for each in cache.allocated() if of_slot[each] in slots]
    assert address[order].tolist() == kept
    assert {name: column[order].tolist() for name, column in values.items()} == expected(
        kept, cache
    )
    assert report.complete


def test_empty_slabs_are_not_read_and_a_cache_may_have_none() -> None:
    k, cache = one("6.10", [*range(64)])
    k.drop(cache.slabs[0].address)
    assert check(k, cache).complete
    k = fake()
    k.slab(k.cache("other", 64))
    assert check(k, k.cache("thing", 64)).complete


@pytest.mark.parametrize("jobs", [1, 2])
def test_several_caches_at_once(jobs: int) -> None:
    k = fake()
    first, second, third = (k.cache(name, 64) for name in ("a", "b", "c"))
    for cache in (first, second, third) * 20:
        fill(k, k.slab(cache, [3, 4]))
    slab_map = SlabMap(Memory(k.prog, PAGE, jobs=jobs))
    columns = layout(k.prog, "struct thing", ["self"])
    wanted = [slab_map.caches[0], slab_map.caches[2]]
    address, values = allocated(slab_map, wanted, columns, ScanReport())
    assert sorted(address.tolist()) == sorted(first.allocated() + third.allocated())
    assert values["self"].tolist() == address.tolist()


@every_era
@pytest.mark.parametrize("block", [1, 1 << 18])
def test_parked_objects_are_found_with_their_caches(
    era: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However few caches are looked at together.
    monkeypatch.setattr(parked_module, "_BLOCK", block)
    k, cache = populated(era)
    other = k.caches[0]
    if k.era.cpu_slab:
        park(k, cache, "cpu")
        k.cpu_slab(other.slabs[0], 0, [5, 0])
    if k.era.sheaves:
        park(k, cache, "sheaves")
        k.cpu_sheaf(other, 0, "main", k.sheaf([(other.slabs[1], 7)]))
    slab_map = SlabMap(Memory(k.prog))
    found = parked(slab_map, slab_map.caches)
    truth = sorted(
        (slab.object(slot), at)
        for at, each in enumerate(k.caches)
        for slab in each.slabs
        for slot in slab.parked
    )
    assert list(zip(found.address.tolist(), found.cache.tolist(), strict=True)) == truth
    assert len(truth) > 4
    assert found.lost == 0


def _rcu(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    """Objects that wait for RCU are allocated."""
    k.cpu_sheaf(cache, 0, "rcu_free", k.sheaf([(slab, 3), (slab, 4)]))
    slab.parked.clear()


def _twice(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    k.cpu_sheaf(cache, 0, "main", k.sheaf([(slab, 3), (slab, 4)]))
    k.cpu_sheaf(cache, 1, "main", k.sheaf([(slab, 4)]))


def _empty_sheaves(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    k.cpu_sheaf(cache, 0, "main", k.sheaf([]))
    k.list_add_tail(k.sheaf([]).barn_list, k.barn(cache, 1).sheaves_full)


def _middle_of_an_object(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    sheaf = k.sheaf([(slab, 3)])
    k.write_words(sheaf.address_ + 32, slab.object(3) + 8)
    k.cpu_sheaf(cache, 0, "main", sheaf)
    slab.parked.clear()


def _absurd_size(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    sheaf = k.sheaf([])
    k.set(sheaf.size, 0xFFFFFFFF)
    k.cpu_sheaf(cache, 0, "main", sheaf)


def _more_than_its_capacity(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    k.set(cache.object.sheaf_capacity, 4)
    k.cpu_sheaf(cache, 1, "main", k.sheaf([(slab, at) for at in range(5)]))
    slab.parked.clear()
    k.cpu_sheaf(cache, 0, "main", k.sheaf([(slab, at) for at in range(10, 14)]))


def _torn_barn(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    sheaves = [k.sheaf([(slab, slot)]) for slot in range(3)]
    for sheaf in sheaves:
        k.list_add_tail(sheaf.barn_list, k.barn(cache, 0).sheaves_full)
    k.write_words(sheaves[2].address_, sheaves[1].address_)


def _list_of_another_cache(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    """Damage, or a live kernel that changed while it was read: the list is of a slab before."""
    active = k.cpu_slab(slab, 0, [1, 2])
    slab.parked.clear()
    k.set(active.slab, k.slab(k.cache("other", 64)).struct)


def _circle(k: FakeKernel, cache: Cache, slab: Slab) -> None:
    k.cpu_slab(slab, 0, [7, 8, 9])
    k.link(cache, slab.object(9), slab.object(8))


@pytest.mark.parametrize(
    ("arrange", "era", "lost"),
    [
        (_rcu, "7.0", 0),
        (_twice, "6.18", 1),
        (_empty_sheaves, "7.3", 0),
        (_middle_of_an_object, "7.0", 0),
        (_absurd_size, "7.0", 1),
        (_more_than_its_capacity, "7.3", 1),
        (_torn_barn, "7.0", 1),
        (_list_of_another_cache, "6.10", 1),
        (_circle, "6.10", 1),
    ],
)
def test_odd_parked_objects(
    arrange: Callable[[FakeKernel, Cache, Slab], None], era: str, lost: int
) -> None:
    k, cache = one(era, [])
    (slab,) = cache.slabs
    arrange(k, cache, slab)
    fill(k, slab)
    report = check(k, cache)
    assert (report.lists_lost, report.complete) == (lost, not lost)
    slab_map = SlabMap(Memory(k.prog))
    found = parked(slab_map, slab_map.caches).address
    assert len(np.unique(found)) == len(found)


@pytest.mark.parametrize("what", ["cpu", "sheaf", "barn", "node"])
def test_what_cannot_be_read_of_the_parked_is_counted(what: str) -> None:
    k, cache = one("6.18", [])
    k.settle()
    sheaf = k.alloc("struct slab_sheaf", alone=True)
    k.cpu_sheaf(cache, 0, "main", sheaf)
    node = k.alloc("struct kmem_cache_node", alone=True)
    places = {"sheaf": sheaf, "barn": k.barn(cache, 1), "node": node}
    places["cpu"] = k.per_cpu("char", int(cache.object.cpu_sheaves), 0)
    if what == "node":
        k.set(cache.object.node[1], node)
    k.drop(places[what].address_)
    # On that page both the sheaves and the active slab of a CPU stand.
    assert check(k, cache).lists_lost == (2 if what == "cpu" else 1)


@pytest.mark.parametrize("is_active", [True, False])
def test_a_page_of_zeros_of_a_cpu_is_lost_if_a_slab_is_active_on_it(is_active: bool) -> None:
    """With child caches of memory cgroups, a CPU has pages of caches that it never used."""
    k, cache = one("4.19", [], [])
    if is_active:
        place = cache.slabs[0].struct.address_ + 40
        k.write_words(place, k.word(place) | 1 << 31)  # frozen
    for cpu in range(2):
        active = k.per_cpu("struct kmem_cache_cpu", int(cache.object.cpu_slab), cpu)
        at = k.physical(active.address_) & -PAGE
        k.ram[at : at + PAGE] = bytes(PAGE)
    assert check(k, cache).lists_lost == int(is_active)


def test_a_cpu_list_whose_slab_cannot_be_identified_is_lost() -> None:
    k, cache = one("6.10", *[[]] * 70)
    k.cpu_slab(cache.slabs[64], 0, [7, 8, 9])
    k.cpu_slab(cache.slabs[0], 1, [7, 8, 9])
    k.drop(fakekernel.VMEMMAP + 576 * 64)
    addresses, _, report = scan(k, cache)
    assert addresses == [at for at in cache.allocated() if at < DIRECT_MAP + 576 * PAGE]
    assert (report.lists_lost, report.memmap.total()) == (1, 1)


@pytest.mark.parametrize("era", ["6.10", "7.0"])
@pytest.mark.parametrize(
    ("mask", "cpus", "nodes"),
    [(1, 2, 2), (3, 1, 2), (0, 2, 2), (3, 0, 2), (3, 2, 0), (3, 2, 1 << 20), (3, 2, -1)],
)
def test_wrong_numbers_of_cpus_and_nodes_cost_nothing(
    era: str, mask: int, cpus: int, nodes: int
) -> None:
    k, cache = populated(era)
    park(k, cache, "cpu" if k.era.cpu_slab else "sheaves")
    k.set(k.symbols["__cpu_possible_mask"].bits[0], mask)
    k.constant("nr_cpu_ids", cpus)
    k.constant("nr_node_ids", nodes, "int")
    assert check(k, cache).lists_lost == 0


def test_each_cache_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    k, cache = populated("6.10")
    park(k, cache, "cpu")
    slab_map = SlabMap(Memory(k.prog))
    wanted = slab_map.caches[1:]
    first = parked(slab_map, wanted)
    monkeypatch.delattr(parked_module._Search, "cpu_freelists")
    assert parked(slab_map, wanted).address.tolist() == first.address.tolist()
    assert not len(parked(slab_map, []).address)


def test_objects_smaller_than_their_type_are_not_read() -> None:
    k, _ = populated("6.10")
    slab_map = SlabMap(Memory(k.prog))
    columns = layout(k.prog, "struct giant", ["last"])
    with pytest.raises(DoesNotFit, match=r"200 bytes.*only 64"):
        allocated(slab_map, slab_map.caches, columns, ScanReport())


TEARS: dict[str, Callable[[Slab], int]] = {
    "out of the slab": lambda slab: DIRECT_MAP + 300 * PAGE,
    "into the next slab": lambda slab: slab.object(0) + PAGE,
    "misaligned": lambda slab: slab.object(20) + 8,
    "nonsense": lambda slab: 0xDEAD_BEEF_0BAD_F00D,
    "low": lambda slab: 0x10,
    "circle": lambda slab: slab.object(5),
    "short": lambda slab: 0,
}
"""What the second free object points to, instead of the third one."""


@pytest.mark.parametrize("chunk_bytes", [PAGE, 4 << 20])
@pytest.mark.parametrize("era", ["4.18", "4.19", "6.10", "7.3"])
@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_free_list(era: str, tear: str, chunk_bytes: int) -> None:
    k, cache = one(era, *[[5, 9, 20, 33]] * 3)
    slab = cache.slabs[1]
    k.link(cache, slab.object(9), TEARS[tear](slab))
    # Behind the tear, free objects cannot be distinguished from allocated ones.
    slab.free -= {20, 33}
    addresses, _, report = scan(k, cache, chunk_bytes=chunk_bytes)
    assert addresses == cache.allocated()
    assert (report.slabs_torn, report.objects_uncertain, report.complete) == (1, 2, False)


@pytest.mark.parametrize(
    ("free", "inuse", "link", "uncertain"),
    [
        pytest.param([5, 9, 20], None, (20, 5), 0, id="it is complete and then goes round"),
        pytest.param([5, 9, 20], 63, None, 0, id="it says more than the counter"),
        pytest.param([], 60, None, 4, id="there is none, but the counter says there are free ones"),
        pytest.param([5, 9], None, None, 2, id="it begins outside of the slab"),
    ],
)
def test_a_free_list_that_is_not_what_its_slab_says(
    free: list[int], inuse: int | None, link: tuple[int, int] | None, uncertain: int
) -> None:
    k, cache = one("6.10", free, [1])
    slab, other = cache.slabs
    if inuse is None and link is None:
        k.set(slab.struct.freelist, other.object(1))
        slab.free.clear()
    if inuse is not None:
        k.set(slab.struct.inuse, inuse)
    if link is not None:
        k.link(cache, *map(slab.object, link))
    addresses, _, report = scan(k, cache)
    assert addresses == cache.allocated()
    assert (report.slabs_torn, report.objects_uncertain) == (1, uncertain)


@pytest.mark.parametrize("era", ["4.18", "6.10"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_free_list_over_an_unreadable_page(era: str, lost: int) -> None:
    k, cache = one(era, [5, 70, 9] if lost else [5, 9, 70], order=1)
    (slab,) = cache.slabs
    k.drop(slab.address + PAGE)
    slab.free -= {9} if lost else set()
    addresses, _, report = scan(k, cache)
    assert addresses == [address for address in cache.allocated() if address < slab.object(64)]
    assert (report.slabs_torn, report.objects_uncertain) == (1, lost)
    assert report.objects_unreadable == 63


def test_a_slab_of_which_nothing_can_be_read_is_not_torn() -> None:
    k, cache = one("6.10", [5, 9, 70], [1, 2], order=1)
    gone, kept = cache.slabs
    k.drop(gone.address, 2)
    addresses, _, report = scan(k, cache)
    assert addresses == [kept.object(slot) for slot in kept.allocated()]
    assert (report.slabs_torn, report.objects_uncertain, report.complete) == (0, 0, False)
    assert report.objects_unreadable >= 125


@pytest.mark.parametrize("chunk_bytes", [PAGE, 4 << 20])
@pytest.mark.parametrize("free", [[], [2, 4]], ids=["full", "partial"])
@pytest.mark.parametrize(
    ("objects", "inuse"),
    [
        *((0, 0), (0, 1), (1, 39), (38, 38), (38, 39), (39, 0xFFFF), (40, 39), (79, 1)),
        (0x7FFF, 0x7FFF),
    ],
)
def test_torn_counters_of_one_slab_cost_no_other_slab(
    objects: int, inuse: int, free: list[int], chunk_bytes: int
) -> None:
    k = fake()
    cache = k.cache("thing", 88, 104)
    slabs = [k.slab(cache, free) for _ in range(9)]
    torn = slabs[4]
    k.set(torn.struct.objects, objects)
    k.set(torn.struct.inuse, inuse)
    addresses, _, report = scan(k, cache, chunk_bytes=chunk_bytes)
    end = torn.address + PAGE
    others = [address for address in cache.allocated() if not torn.address <= address < end]
    assert [address for address in addresses if not torn.address <= address < end] == others
    if inuse > objects or objects > 39 or not objects:
        assert not report.complete


def test_slabs_from_before_the_order_was_lowered() -> None:
    # Up to 5.8 that could be done at run time; kmem_cache.max keeps the largest there was.
    k = fake("4.19")
    cache = k.cache("thing", 88, 104)
    for order, free in ((1, [3, 70]), (0, [1]), (1, [])):
        fill(k, k.slab(cache, free, order=order))
    k.set(cache.object.max.x, 1 << 16 | 78)
    assert check(k, cache).complete
    assert len(cache.allocated()) == 76 + 38 + 78
    # The slot's last bytes are padding: object 38 ends where the page ends.
    k = fake()
    cache = k.cache("thing", 64, 106 * 8, 1, left_pad=8)
    slab = k.slab(cache)
    fill(k, slab)
    k.drop(slab.address + PAGE)
    addresses, _, report = scan(k, cache)
    whole = [slot for slot in range(slab.objects) if 8 + slot * 848 + 64 <= PAGE]
    assert addresses == [slab.object(slot) for slot in whole]
    assert report.objects_unreadable == slab.objects - len(whole)


@pytest.mark.parametrize("jobs", [1, 2])
@any_chunk
def test_a_slab_that_can_be_read_in_part(chunk_bytes: int, jobs: int) -> None:
    # 78 slots of 104 bytes on two pages; slot 39 lies on both.
    k = fake()
    cache = k.cache("thing", 88, 104, 1)
    slabs = [k.slab(cache) for _ in range(5)]
    for slab in slabs:
        fill(k, slab)
    k.drop(slabs[1].address)
    k.drop(slabs[3].address + PAGE)
    addresses, values, report = scan(k, cache, chunk_bytes=chunk_bytes, jobs=jobs)
    lost = [slabs[1].object(slot) for slot in range(40)]
    lost += [slabs[3].object(slot) for slot in range(39, 78)]
    assert addresses == sorted({*cache.allocated()} - {*lost})
    assert values == expected(addresses, cache)
    assert report.objects_unreadable == len(lost)
    assert report.slabs == {"filtered out of the dump": 2}
    assert (report.slabs_torn, report.complete) == (0, False)
