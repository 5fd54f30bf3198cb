# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slabs of *synthetic* kernels against the counters of these kernels."""

from __future__ import annotations

import pytest

from kcensus.analyses.slab import checks as slab_checks
from kcensus.results import CheckStatus
from tests.unit import fakekernel
from tests.unit.analyses.slab.making import World, all_agree, analyse, check, gaps, world
from tests.unit.fakekernel import ERAS, FakeKernel


@pytest.mark.ends
@pytest.mark.parametrize("era", ERAS)
def test_all_checks_agree(era: str) -> None:
    result = analyse(world(era).k)
    checks = [
        each
        for each in result.checks
        # No cgroup has been charged, whether or not the era has statistics.
        if each.status is not CheckStatus.ABSENT and each.name != "charged slab objects"
    ]
    assert [(each.name, each.ours, each.counter) for each in checks] == [
        ("nr_slabs, all caches", 8, 8),
        ("total_objects, all caches", 139, 139),
        ("SReclaimable (meminfo, vmstat)", 3, 3),
        ("SUnreclaim (meminfo, vmstat)", 8, 8),
    ]
    assert all_agree(result)
    assert not result.gaps


def test_a_wrong_counter_shows_with_its_cache() -> None:
    k = world().k
    k.set(k.node(k.caches[1], 0).nr_slabs.counter, 3)
    k.set(k.node(k.caches[2], 1).total_objects.counter, 4)
    result = analyse(k)
    wrong = {each.name: each.difference for each in result.checks if each.difference}
    assert wrong == {
        "nr_slabs, all caches": 2,
        "nr_slabs, filp": 2,
        "total_objects, all caches": -1,
        "total_objects, big": -1,
    }
    assert check(result, "nr_slabs, filp").status is CheckStatus.DIFFER


def test_many_wrong_counters_are_summed_up() -> None:
    k = FakeKernel()
    for at in range(14):
        k.slab(k.cache(f"c{at:02}", 64))
    k.settle()
    for at, cache in enumerate(k.caches[:13]):
        k.set(k.node(cache, 0).nr_slabs.counter, 101 + at)
    names = [each.name for each in analyse(k).checks if each.name.startswith("nr_slabs")]
    # The worst first.
    assert names == [
        "nr_slabs, all caches",
        *(f"nr_slabs, c{at:02}" for at in range(12, 2, -1)),
        "nr_slabs, 3 more caches that differ",
    ]
    assert check(analyse(k), "nr_slabs, 3 more caches that differ").difference == 100 + 101 + 102


def test_wrong_page_counters_differ(made: World) -> None:
    for item, pages in ((1, 100), (2, 1)):
        counter = made.k.symbols["node_data"][0].vm_stat[item].counter
        made.k.set(counter, int(counter) + pages)
    result = analyse(made.k)
    for name, pages in (("SReclaimable", 100), ("SUnreclaim", 1)):
        found = check(result, f"{name} (meminfo, vmstat)")
        assert (found.difference, found.status) == (pages, CheckStatus.DIFFER)


@pytest.mark.parametrize(("counted", "status"), [(12, "EXPLAINED"), (11, "DIFFER")])
def test_large_kmallocs_explain_what_they_explain(counted: int, status: str) -> None:
    k = world().k
    for order in (2, 3):
        k.large_kmalloc(order)
    counter = k.symbols["node_data"][1].vm_stat[2].counter
    k.set(counter, int(counter) + counted)
    found = check(analyse(k), "SUnreclaim (meminfo, vmstat)")
    assert found.status is CheckStatus[status]
    assert found.explained == 12


@pytest.mark.ends
@pytest.mark.parametrize("era", ["4.18", "5.17"])
@pytest.mark.parametrize(
    ("counted", "status"),
    [(0, "AGREE"), (12, "EXPLAINED"), (268, "EXPLAINED"), (269, "DIFFER"), (-1, "DIFFER")],
)
def test_where_large_kmallocs_have_no_mark_their_pages_are_bounded(
    era: str, counted: int, status: str
) -> None:
    k = world(era).k
    for order in (2, 3):
        k.large_kmalloc(order)
    # On an LRU list, reserved, mapped: not of kmalloc().
    for bit in (5, 12):
        page = k.page(k.pages(1))
        k.set(page.flags, int(page.flags) | 1 << bit)
    k.set(k.page(k.pages(1)).mapping, fakekernel.DIRECT_MAP)
    counter = k.symbols["node_data"][0].vm_stat[2].counter
    k.set(counter, int(counter) + counted)
    found = check(analyse(k), "SUnreclaim (meminfo, vmstat)")
    assert found.status is CheckStatus[status]
    # Eight compound pages of order 5 lie between the slabs.
    assert found.at_most == (12 + 8 * 32 if counted > 0 else None)


def test_vectors_on_a_zeroed_page_differ_from_what_is_charged(
    charged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = check(analyse(charged.k), "charged slab objects").ours
    assert ours == 14 * 200 + 3 * 264 + 5 * 712
    monkeypatch.setattr(slab_checks, "charged_bytes", lambda _kernel: ours)
    assert check(analyse(charged.k), "charged slab objects").status is CheckStatus.AGREE
    charged.k.write(charged.slabs["k0"].object(1), bytes(21 * 16))
    found = check(analyse(charged.k), "charged slab objects")
    assert found.difference == 10 * 200
    assert found.status is CheckStatus.DIFFER


def test_counters_that_cannot_be_read_are_not_zero() -> None:
    k = world().k
    node = k.alloc("struct kmem_cache_node", alone=True)
    k.set(k.caches[0].object.node[0], node)
    k.drop(node.address_)
    result = analyse(k)
    # The cache is left out of what is compared, and that is said.
    assert all_agree(result)
    assert gaps(result) == {"counters of slab caches": 1}
    assert [(each.ours, each.counter) for each in result.checks[:2]] == [(5, 5), (76, 76)]
