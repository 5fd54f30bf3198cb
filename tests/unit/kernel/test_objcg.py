# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who slab objects are charged to, in every era of a *synthetic* kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drgn import Object

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.slabs import ScanReport, SlabMap, Slabs
from kcensus.kernel.kernel import VECTOR_MEMBERS, Kernel
from kcensus.kernel.memcg.objcg import OwnerVectors
from kcensus.kernel.memcg.slab_charges import charged_bytes
from tests.unit.fakekernel import ERAS, Era, FakeKernel, Memcg, Slab, add_types, table

pytestmark = pytest.mark.ends

VECTOR_ERAS = [
    *(era for era in ERAS.values() if era.vector),
    *(replace(ERAS[name], codetag=True) for name in ("6.10", "7.0", "7.3")),
]
vector_era = pytest.mark.parametrize(
    "era", VECTOR_ERAS, ids=[era.name + "+tags" * era.codetag for era in VECTOR_ERAS]
)


def reader(kernel: FakeKernel) -> tuple[OwnerVectors, Slabs]:
    slab_map = SlabMap(Memory(kernel.prog), VECTOR_MEMBERS)
    return OwnerVectors(slab_map), slab_map.index(slab_map.caches, ScanReport())


def owners(kernel: FakeKernel) -> tuple[list[tuple[int, int]], int, Faults]:
    """(address of the slab, obj_cgroup) of every charged object, and what was unreadable."""
    vectors, slabs = reader(kernel)
    faults = Faults()
    found, unreadable = vectors.read(slabs, vectors.find(slabs), faults)
    rows = zip(slabs.address[found.slab].tolist(), found.objcg.tolist(), strict=True)
    return sorted(rows), unreadable, faults


def charged(*charges: tuple[Slab, dict[int, Memcg]]) -> list[tuple[int, int]]:
    return sorted(
        (slab.address, group.objcg.address_) for slab, slots in charges for group in slots.values()
    )


@vector_era
def test_owners_are_those_charged(era: Era) -> None:
    k = FakeKernel(era)
    a, b = k.memcg("a", k.root), k.memcg("b", k.root)
    small, large = k.cache("small", 192), k.cache("large", 512, order=2)
    one, two, big, _ = k.slab(small, [4]), k.slab(small), k.slab(large), k.slab(large)
    # First and last slot among them.
    charges = [(one, {0: a, 3: b, 20: a}), (two, dict.fromkeys(range(21), b)), (big, {0: b, 31: a})]
    for slab, slots in charges:
        k.charge(slab, slots)
    assert owners(k) == (charged(*charges), 0, Faults())
    assert len(owners(k)[0]) == 26


@vector_era
def test_no_slabs_no_vectors_and_no_owners(era: Era) -> None:
    k = FakeKernel(era)
    cache = k.cache("small", 192)
    assert owners(k) == ([], 0, Faults())
    k.slab(cache)
    assert owners(k) == ([], 0, Faults())
    k.charge(k.slab(cache), {})
    vectors, slabs = reader(k)
    found = vectors.find(slabs)
    assert (found.slab.tolist(), found.stride.tolist()) == ([1], [16 if era.codetag else 8])
    assert owners(k) == ([], 0, Faults())


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("era", ["7.0", "7.3"])
def test_vectors_inside_the_objects(era: str, tags: bool) -> None:
    k = FakeKernel(replace(ERAS[era], codetag=tags))
    a, b = k.memcg("a", k.root), k.memcg("b", k.root)
    cache = k.cache("padded", 600, 640, 1)
    slab, plain = k.slab(cache), k.slab(cache)
    slots = {0: a, 7: b, slab.objects - 1: a}
    k.charge(slab, slots, in_object=608)
    k.charge(plain, {1: b})
    found = owners(k)
    assert found == (charged((slab, slots), (plain, {1: b})), 0, Faults())
    vectors, slabs = reader(k)
    assert vectors.find(slabs).stride.tolist() == [640, 16 if tags else 8]


def test_since_7_3_a_vector_may_be_for_something_else() -> None:
    k = FakeKernel("7.3")
    a = k.memcg("a", k.root)
    slab, other = (k.slab(k.cache("small", 192)) for _ in range(2))
    for each in (slab, other):
        k.charge(each, {2: a})
    k.set(other.struct.obj_exts_needs_objcg, 0)
    assert owners(k)[0] == charged((slab, {2: a}))


@pytest.mark.parametrize("era", ["6.10", "7.0", "7.3"])
def test_a_vector_that_could_not_be_allocated(era: str) -> None:
    # OBJEXTS_ALLOC_FAIL is 4 at first and 1 later: no bits of an address.
    k = FakeKernel(era)
    cache = k.cache("small", 192)
    for value in (1, 4):
        slab = k.slab(cache)
        k.set(slab.struct.obj_exts, value)
        if era == "7.3":
            k.set(slab.struct.obj_exts_needs_objcg, 1)
    assert owners(k) == ([], 0, Faults())


@pytest.mark.parametrize(("era", "flags"), [("5.9", 1), ("5.17", 3), ("6.10", 7), ("7.0", 7)])
def test_flag_bits_are_not_of_the_address(era: str, flags: int) -> None:
    k = FakeKernel(era)
    a = k.memcg("a", k.root)
    slab = k.slab(k.cache("small", 192))
    place = k.charge(slab, {20: a})
    k.set(slab.struct.member_(k.era.vector), place | flags)
    assert owners(k)[0] == charged((slab, {20: a}))
    if era < "6":  # there may be a mem_cgroup in its place
        k.set(slab.struct.member_(k.era.vector), k.root.object)
        assert owners(k) == ([], 0, Faults())


@vector_era
def test_an_unreadable_vector_is_counted_and_costs_no_other(era: Era) -> None:
    k = FakeKernel(era)
    a = k.memcg("a", k.root)
    cache = k.cache("small", 192)
    gone, kept = k.slab(cache), k.slab(cache)
    k.drop(k.charge(gone, {1: a}))
    k.charge(kept, {2: a})
    assert owners(k) == (charged((kept, {2: a})), 1, {"filtered out of the dump": 1})


def test_a_wild_vector_is_unreadable() -> None:
    k = FakeKernel("7.0")
    slab = k.slab(k.cache("small", 192))
    for word in (0x1001, (1 << 64) - 7, 0xDEAD_0000_0000_0101):
        k.set(slab.struct.obj_exts, word)
        for stride in (0, 8, 0xFFFFFFFF):
            k.set(slab.struct.stride, stride)
            assert owners(k)[:2] == ([], 1)


@vector_era
def test_an_objcg_belongs_to_a_memory_cgroup_at_a_time(era: Era) -> None:
    k = FakeKernel(era)
    a, b = k.memcg("a", k.root), k.memcg("b", k.root)
    # b went away: its objcg was handed to the root.
    k.set(b.objcg.memcg, k.root.object)
    vectors, _ = reader(k)
    objcgs = [a.objcg.address_, b.objcg.address_, 0x10, a.objcg.address_]
    group, root = a.object.address_, k.root.object.address_
    assert vectors.memcg(np.array(objcgs, np.uint64), Faults()).tolist() == [group, root, 0, group]


@pytest.mark.parametrize(
    ("era", "base", "lacks"),
    [
        ("4.18", "", "vector"),
        ("4.19", "", "vector"),
        # Memory allocation profiling alone has vectors, too.
        ("6.10", "struct slabobj_ext 8 : 0 unsigned long ref", "objcg"),
    ],
)
def test_before_5_9_and_without_memory_cgroups_there_are_no_owners(
    era: str, base: str, lacks: str
) -> None:
    k = FakeKernel(era, base=base)
    k.cache("small", 192)
    with pytest.raises(LookupError, match=f"no {lacks}"):
        reader(k)


def lineage(kernel: FakeKernel) -> tuple[list[int], list[int]]:
    roots, memcg = SlabMap(Memory(kernel.prog)).lineage
    return roots.tolist(), memcg.tolist()


@pytest.mark.parametrize("era", ["4.18", "4.19"])
def test_child_caches_name_their_root_and_their_group(era: str) -> None:
    k = FakeKernel(era)
    a, b = k.memcg("a", k.root), k.memcg("b", k.root)
    other, root = k.cache("other", 64), k.cache("root", 64)
    k.cache("root(2:a)", 64, root=root, memcg=a)
    k.cache("root(3:b)", 64, root=root, memcg=b)
    k.cache("other(3:b)", 64, root=other, memcg=b)
    # One whose root is on no list, and one that names itself.
    lost = k.cache("lost", 64)
    k.set(lost.object.memcg_params.root_cache, 0xFFFF_8880_0001_0000)
    own = k.cache("own", 64)
    k.fill(own.object.memcg_params, root_cache=own.object, memcg=a.object)
    own_a, own_b = a.object.address_, b.object.address_
    assert lineage(k) == ([0, 1, 1, 1, 0, 5, 6], [0, 0, own_a, own_b, own_b, 0, 0])
    # Since 5.9 there are none.
    k = FakeKernel("5.9")
    _ = k.cache("one", 64), k.cache("two", 64)
    assert lineage(k) == ([0, 1], [0, 0])


_OLD_PARAMETERS = """
struct memcg_cache_params 24
    0 _Bool is_root_cache; 8 struct kmem_cache * root_cache; 16 struct mem_cgroup * memcg
"""


def test_until_4_10_a_flag_tells_roots_whose_words_mean_something_else() -> None:
    k = FakeKernel("4.18", base=_OLD_PARAMETERS)
    a = k.memcg("a", k.root)
    root, other = k.cache("root", 64), k.cache("other", 64)
    k.cache("root(2:a)", 64, root=root, memcg=a)
    # A root's array of children is where a child has the pointer to its root.
    for each, word in ((root, other), (other, root)):
        k.fill(each.object.memcg_params, is_root_cache=1, root_cache=word.object, memcg=a.object)
    assert lineage(k) == ([0, 1, 0], [0, 0, a.object.address_])


def test_before_4_0_the_parameters_are_behind_a_pointer() -> None:
    size, members = table(ERAS["4.18"])["struct kmem_cache"]
    members = members.replace("memcg_cache_params memcg", "memcg_cache_params * memcg")
    k = FakeKernel("4.18", base={"struct kmem_cache": (size, members)})
    a = k.memcg("a", k.root)
    k.cache("root", 64)
    child, lost = k.cache("root(2:a)", 64), k.cache("lost", 64)
    for cache in (child, lost):
        k.set(cache.object.memcg_params, k.alloc("struct memcg_cache_params", alone=True))
        k.fill(cache.object.memcg_params, root_cache=k.caches[0].object, memcg=a.object)
    k.drop(int(lost.object.memcg_params))
    # A root without children has no parameters.
    assert lineage(k) == ([0, 0, 2], [0, a.object.address_, 0])


_STATISTICS = """
struct memcg_vmstats 64 : 0 long [4] state; 32 long [4] state_pending
struct memcg_vmstats_percpu 64 : 0 long [4] state; 32 long [4] state_prev
struct mem_cgroup 512
    16 int kmemcg_id; 128 struct cgroup_subsys_state css
    400 struct mem_cgroup_per_node * [0] nodeinfo; 24 struct memcg_vmstats_percpu * vmstats_percpu
"""
STATISTICS = {
    "5.9": """
    32 atomic_long_t [4] vmstats
struct memcg_vmstats_percpu 32 : 0 long [4] stat
""",
    "5.17": "    32 struct memcg_vmstats vmstats",
    "6.10": """
    32 struct memcg_vmstats * vmstats
struct memcg_stock_pcp 8 : 0 int nr_slab_reclaimable_b; 4 int nr_slab_unreclaimable_b
""",
}


def statistics(era: str) -> tuple[FakeKernel, list[Object]]:
    """Return a kernel with all kinds of statistics: 1,515 bytes; and its two memory cgroups."""
    k = FakeKernel(replace(ERAS[era], sample=""))
    k.memcg("a", k.root)
    add_types(k.prog, _STATISTICS + STATISTICS[era], "statistics")
    groups = []
    for at, group in enumerate((k.root, k.memcgs[-1])):
        memcg = Object(k.prog, "struct mem_cgroup", address=group.object.address_)
        groups.append(memcg)
        percpu = k.percpu_of("struct memcg_vmstats_percpu")
        k.set(memcg.vmstats_percpu, percpu)
        own = [k.per_cpu("struct memcg_vmstats_percpu", percpu, cpu) for cpu in range(2)]
        if era == "6.10":
            k.set(memcg.vmstats, k.alloc("struct memcg_vmstats"))
        # Not the root's alone: the statistics of a are part of the root's.
        total = 77 if at else 600
        for item in (1, 2):
            if era == "5.9":
                k.set(memcg.vmstats[item].counter, total)
                for stats in own:
                    k.set(stats.stat[item], 40 if at else -1)
                continue
            k.set(memcg.vmstats.state[item], total)
            k.set(memcg.vmstats.state_pending[item], 30 if at else 0)
            for cpu, stats in enumerate(own):
                k.set(stats.state[item], 500 + 24 * at * cpu)
                k.set(stats.state_prev[item], 500)
    if era == "6.10":
        stock = k.percpu_of("struct memcg_stock_pcp")
        k.symbols["memcg_stock"] = Object(k.prog, "struct memcg_stock_pcp", address=stock)
        k.set(k.per_cpu("struct memcg_stock_pcp", stock, 1).nr_slab_unreclaimable_b, -9)
    return k, groups


_TOTALS = {"5.9": 2 * (600 - 2 + 80), "5.17": 2 * (600 + 30 + 24), "6.10": 2 * (600 + 30 + 24) - 9}


@pytest.mark.parametrize("era", _TOTALS)
def test_what_the_kernel_has_charged(era: str) -> None:
    k, groups = statistics(era)
    assert charged_bytes(Kernel(k.prog)) == _TOTALS[era]
    k.drop(k.per_cpu("char", int(groups[1].vmstats_percpu), 1).address_)
    assert charged_bytes(Kernel(k.prog)) is None


def test_indexes_of_statistics() -> None:
    k, _ = statistics("6.10")
    for type_, values in (("signed char", (0, 2, 3, 0)), ("unsigned char", (255, 2, 1, 255))):
        k.variable("mem_cgroup_stats_index", f"{type_} [4]")
        k.write(k.symbols["mem_cgroup_stats_index"].address_, bytes(values))
        assert charged_bytes(Kernel(k.prog)) == _TOTALS["6.10"]
    # Without any statistics.
    assert charged_bytes(Kernel(FakeKernel("6.1").prog)) is None
