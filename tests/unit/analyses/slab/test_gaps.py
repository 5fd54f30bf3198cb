# SPDX-License-Identifier: LGPL-2.1-or-later
"""Damaged slabs, caches and lists of *synthetic* kernels become gaps."""

from __future__ import annotations

import pytest

from kcensus.analyses import AnalysisError
from kcensus.analyses.slab.figures import NO_MEMCG, UNKNOWN_MEMCG
from kcensus.results import CheckStatus
from tests.running import rows
from tests.unit import fakekernel
from tests.unit.analyses.slab.making import (
    UNLISTED,
    World,
    all_agree,
    analyse,
    check,
    gaps,
    values,
    world,
)
from tests.unit.fakekernel import PAGE, FakeKernel, Memcg


def test_memory_cgroups_of_an_unknown_layout(
    charged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(*_: object) -> None:
        raise LookupError("struct x has no member \x1b")

    monkeypatch.setattr("kcensus.kernel.memcg.memcgs._walk", walk)
    (gap,) = (each for each in analyse(charged.k).gaps if "memory cgroups" in each.what)
    assert "layout" in gap.reason
    assert r"no member \x1b" in gap.reason


def test_a_hole_in_the_page_array(charged: World) -> None:
    filp = charged.k.caches[1]
    for _ in range(200):
        charged.k.slab(filp)
    charged.k.settle()
    # A page of the array describes 64 pages.
    first = filp.slabs[100].pfn // 64 * 64
    charged.k.drop(fakekernel.VMEMMAP + first * 64)
    result = analyse(charged.k)
    assert gaps(result) == {"struct page array: pages": 1, **UNLISTED}
    assert result.gaps[0].reason == "filtered out of the dump"
    assert check(result, "nr_slabs, filp").difference == 64
    assert check(result, "total_objects, filp").difference == 64 * 16


def test_an_unreadable_vector(charged: World) -> None:
    place = charged.k.charge(charged.slabs["f1"], {0: charged.groups["a"]})
    charged.k.drop(place)
    result = analyse(charged.k)
    assert gaps(result) == {"obj_cgroup vectors": 1}
    # The synthetic array of struct page has nothing about the vector's page.
    assert "filtered out of the dump" in result.gaps[0].reason
    assert NO_MEMCG in result.gaps[0].effect
    assert values(result)["objects_charged"] == 21


def test_a_cache_whose_structure_is_damaged(made: World) -> None:
    made.k.set(made.k.caches[3].object.size, 0)
    result = analyse(made.k)
    assert gaps(result) == {"slab caches": 1, "slabs": 1}
    (reason,) = (gap.reason for gap in result.gaps if gap.what == "slabs")
    assert "slab_caches" in reason


def test_an_unreadable_objcg(charged: World) -> None:
    k = charged.k
    lost = Memcg(k.root.object, k.alloc("struct obj_cgroup", alone=True), "")
    k.set(lost.objcg.memcg, k.root.object)
    k.charge(charged.slabs["b1"], {0: lost, 3: lost})
    before = dict(rows(analyse(k), "memcgs", "memcg", "objects"))
    k.drop(lost.objcg.address_)
    result = analyse(k)
    after = dict(rows(result, "memcgs", "memcg", "objects"))
    assert after[UNKNOWN_MEMCG] == before[UNKNOWN_MEMCG] + 2 == 3
    # The row alone would not tell that it is the dump that lacks something.
    assert gaps(result) == {"obj_cgroups": 1, **UNLISTED}


def test_more_charged_than_allocated(charged: World) -> None:
    # A vector that still names the owners of objects that were all freed.
    charged.k.charge(charged.slabs["d2"], dict.fromkeys(range(21), charged.groups["a"]))
    result = analyse(charged.k)
    states = dict(rows(result, "memcgs", "memcg", "objects"))
    assert states["/a"] == 3 + 2 + 21
    assert states[NO_MEMCG] == 25 + 19 + 2
    # 14 and 21 dentries are charged, of 34.
    assert gaps(result) == {"objects": 1, **UNLISTED}


def test_a_torn_list_of_a_cpu() -> None:
    made = world("6.10")
    made.k.link(made.k.caches[0], made.slabs["d0"].object(1), made.slabs["d0"].object(0))
    result = analyse(made.k)
    assert gaps(result) == {"freelists of CPUs, or sheaves": 1}
    # It goes round between the two: nothing is lost but the certainty.
    assert values(result)["objects_active"] == 88


@pytest.mark.parametrize("era", ["6.10", "7.0"])
def test_parked_objects_whose_slab_is_gone(era: str) -> None:
    made = world(era)
    for _ in range(100):
        made.k.slab(made.k.caches[1])
    late = made.k.caches[1].slabs[-1]
    if made.k.era.cpu_slab:
        made.k.cpu_slab(late, 0, [3, 4, 5])
    else:
        made.k.cpu_sheaf(late.cache, 0, "main", made.k.sheaf([(late, 3), (late, 4), (late, 5)]))
    made.k.set(made.k.page(late.pfn)._mapcount.counter, -1)
    result = analyse(made.k)
    assert gaps(result) == {"free objects of CPUs or sheaves": 3}


def test_an_object_that_is_parked_twice() -> None:
    made = world("7.0")
    slab = made.slabs["d0"]
    for cpu, slots in enumerate(((3, 4), (4,))):
        sheaf = made.k.sheaf([(slab, slot) for slot in slots])
        made.k.cpu_sheaf(slab.cache, cpu, "main", sheaf)
        # While it exchanges its sheaves, a CPU has one twice.
        made.k.cpu_sheaf(slab.cache, cpu, "spare", sheaf)
        assert gaps(analyse(made.k)) == ({"freelists of CPUs, or sheaves": 1} if cpu else {})


def test_a_cpu_without_a_main_sheaf() -> None:
    made = world("7.0")
    cache = made.slabs["d0"].cache.object
    made.k.set(made.k.per_cpu("struct slub_percpu_sheaves", int(cache.cpu_sheaves), 1).main, 0)
    assert gaps(analyse(made.k)) == {"freelists of CPUs, or sheaves": 1}


def test_torn_memory_cgroups(charged: World) -> None:
    charged.k.write_words(charged.groups["a"].object.css.sibling.address_, 0x10)
    result = analyse(charged.k)
    assert gaps(result)["lists or pages of memory cgroups"] >= 1
    states = dict(rows(result, "memcgs", "memcg", "objects"))
    assert states["/a"] == 5
    # b is behind the tear, and found from the other end of the list.
    assert states["/b"] == 16
    assert states[UNKNOWN_MEMCG] == 1


@pytest.mark.ends
@pytest.mark.parametrize(
    ("objects", "inuse"),
    [(21, 0xFFFF), (21, 100), (1, 21), (0, 0), (0, 5), (0x7FFF, 21), (0x7FFF, 0xFFFF)],
)
def test_torn_counters_of_one_slab_cost_no_other_cache(objects: int, inuse: int) -> None:
    made = world()
    torn = made.slabs["d1"]
    made.k.set(torn.struct.objects, objects)
    made.k.set(torn.struct.inuse, inuse)
    result = analyse(made.k)
    found = dict(rows(result, "caches", "cache", "objects_active"))
    assert {name: found[name] for name in ("filp", "big", "kmalloc-256")} == {
        "filp": 28, "big": 24, "kmalloc-256": 2
    }  # fmt: skip
    assert values(result)["slab_bytes"] == 10 * PAGE
    assert gaps(result) == {"slabs": 1}


def test_more_parked_objects_than_a_slab_has_in_use() -> None:
    made = world("7.0")
    slab = made.slabs["f0"]
    made.k.cpu_sheaf(slab.cache, 0, "main", made.k.sheaf([(slab, at) for at in range(12)]))
    made.k.set(slab.struct.inuse, 0)
    result = analyse(made.k)
    found = dict(rows(result, "caches", "cache", "objects_active"))
    assert found == {"big": 24, "dentry": 34, "filp": 16, "kmalloc-256": 2}
    assert gaps(result) == {"slabs": 1}


def test_a_parked_pointer_into_another_caches_slab_frees_nothing_there() -> None:
    made = world("7.0")
    slab = made.slabs["f1"]
    made.k.cpu_sheaf(made.k.caches[0], 0, "main", made.k.sheaf([(slab, 3)]))
    # 768 bytes into the slab, where either cache has the start of a slot.
    result = analyse(made.k)
    assert values(result)["objects_active"] == 88
    assert gaps(result) == {"free objects of CPUs or sheaves": 1}


def test_an_object_in_the_sheaves_of_two_caches() -> None:
    made = world("7.0")
    slab = made.slabs["f1"]
    for each in made.k.caches[0], slab.cache:
        made.k.cpu_sheaf(each, 0, "main", made.k.sheaf([(slab, 3)]))
    assert gaps(analyse(made.k))["freelists of CPUs, or sheaves"] == 1


def test_a_torn_list_of_caches(made: World) -> None:
    for at in (1, 2):
        made.k.drop(made.k.caches[at].address)
    result = analyse(made.k)
    assert gaps(result)["slab_caches list"] > 0
    assert gaps(result)["slabs"] == 4
    found = dict(rows(result, "caches", "cache", "objects_active"))
    assert found == {"dentry": 34, "kmalloc-256": 2}


@pytest.mark.parametrize("online", [1, 0, 0x83])
def test_damage_to_the_mask_of_online_nodes_is_betrayed(online: int) -> None:
    made = world()
    mask = made.k.symbols["node_states"][int(made.k.prog["N_ONLINE"])]
    made.k.set(mask.bits[0], online)
    result = analyse(made.k)
    pages = [each for each in result.checks if "meminfo" in each.name]
    assert gaps(result) or any(each.status is not CheckStatus.AGREE for each in pages)
    assert values(result)["slabs"] in (5, 8)


def test_a_page_of_a_node_that_is_not_there(made: World) -> None:
    made.k.set(made.k.page(made.slabs["f1"].pfn).flags, 5 << 61)
    assert values(analyse(made.k))["objects_active"] in (88, 88 - 16)


@pytest.mark.parametrize("era", ["5.17", "6.10", "6.18", "7.0", "7.3"])
def test_pages_of_kfence_are_no_slabs(era: str) -> None:
    # 0ce20dd84089 (5.12): a pool whose every other page passes for a slab of one object, so that
    # kfree() takes it. SLUB knows nothing of them; inuse and freelist are never set.
    made = world(era)
    k = made.k
    pool = k.pages(0)
    for _ in range(7):
        k.pages(0)
    k.variable("__kfence_pool", "char *", fakekernel.DIRECT_MAP + pool * PAGE)
    # Not used yet, in use, and free again: the last two look the same.
    for number, cache in ((2, None), (4, k.caches[0]), (6, k.caches[1])):
        slab = k.mark_slab(pool + number)
        metadata = k.alloc("struct obj_cgroup")
        k.set(slab.member_(k.era.vector), metadata.address_ | 1)
        if cache is not None:
            k.set(slab.slab_cache, cache.object)
            k.set(slab.objects, 1)
    result = analyse(k)
    assert gaps(result) == {}
    assert (values(result)["slabs"], values(result)["objects_total"]) == (8, 139)
    assert all_agree(result)


def test_a_kernel_whose_memory_model_is_unknown() -> None:
    k = world().k
    for name in ("mem_section", "vmemmap"):
        del k.symbols[name]
    with pytest.raises(AnalysisError, match="memory model"):
        analyse(k)
    # An allocator that is neither SLUB nor a SLAB of today.
    k = FakeKernel()
    k.cache("some", 64)
    members = {"struct kmem_cache": (256, "24 unsigned int size\n64 struct list_head list")}
    fakekernel.add_types(k.prog, members, "slab allocator")
    with pytest.raises(AnalysisError, match="SLOB, or SLAB"):
        analyse(k)


def test_a_kernel_without_memory_cgroups(made: World) -> None:
    del made.k.symbols["root_mem_cgroup"]
    result = analyse(made.k)
    assert rows(result, "memcgs", "memcg", "objects") == [(NO_MEMCG, 88)]
    assert values(result)["memcgs_online"] == 0


def test_a_kernel_without_a_single_slab() -> None:
    k = FakeKernel()
    k.cache("some", 64)
    k.settle()
    result = analyse(k)
    assert (values(result)["slab_bytes"], values(result)["utilization"]) == (0, 0.0)
    assert rows(result, "caches", "cache", "utilization") == [("some", 0.0)]
    assert rows(result, "fill", "share") == [(0.0,)] * 6
    assert not result.findings
