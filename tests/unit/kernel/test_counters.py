# SPDX-License-Identifier: LGPL-2.1-or-later
"""The counters that a *synthetic* kernel keeps itself."""

from __future__ import annotations

import pytest

from kcensus.engine.gather import IMPOSSIBLE_COUNT
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.slabs import SlabMap
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.kernel.slab.counters import NodeCounters, node_counters, reclaimable
from tests.unit.fakekernel import ERAS, FakeKernel

every_era = pytest.mark.parametrize("era", ERAS)


def populated(era: str) -> FakeKernel:
    k = FakeKernel(era)
    inodes, files = k.cache("inodes", 600, order=2, reclaimable=True), k.cache("files", 256)
    for at in range(7):
        k.slab(inodes, node=at % 2)
    k.slab(inodes, order=0, node=1)
    for _ in range(3):
        k.slab(files)
    k.cache("unused", 64, reclaimable=True)
    k.settle()
    return k


def counters(k: FakeKernel, faults: Faults | None = None) -> NodeCounters:
    found = node_counters(SlabMap(Memory(k.prog)), Faults() if faults is None else faults)
    assert found is not None
    return found


def test_nodes_without_counters_and_negative_counts() -> None:
    k = populated("6.10")
    k.set(k.node(k.caches[1], 1).nr_slabs.counter, -2)  # for a moment
    assert counters(k).sums["nr_slabs"].tolist() == [8, 1, 0]
    k.set(k.caches[0].object.node[1], 0)  # a node without memory
    found = counters(k)
    assert found.sums["nr_slabs"].tolist() == [4, 1, 0]
    assert found.readable.all()
    # Without CONFIG_SLUB_DEBUG, there are none.
    k = FakeKernel("6.10", base="struct kmem_cache_node 64 : 8 struct list_head partial")
    k.cache("small", 64)
    assert node_counters(SlabMap(Memory(k.prog)), Faults()) is None


@pytest.mark.parametrize("name", ["nr_slabs", "total_objects"])
def test_a_count_of_more_than_fits_into_ram_is_unreadable(name: str) -> None:
    k = populated("6.1")
    k.set(getattr(k.node(k.caches[1], 1), name).counter, 8020951663743903073)
    faults = Faults()
    found = counters(k, faults)
    assert found.readable.tolist() == [True, False, True]
    assert abs(found.sums[name]).max() < 1 << 30
    assert faults == {IMPOSSIBLE_COUNT: 1}


@every_era
def test_reclaimable_is_a_flag_of_the_cache(era: str) -> None:
    k = populated(era)
    assert reclaimable(SlabMap(Memory(k.prog))).tolist() == [True, False, True]
    k.set(k.caches[1].object.flags, ~0)
    k.set(k.caches[0].object.flags, ~(1 << 5 if k.era.page_type else 0x20000))
    assert reclaimable(SlabMap(Memory(k.prog))).tolist() == [False, True, True]


@every_era
def test_a_counter_of_a_node_includes_what_cpus_have_not_folded(era: str) -> None:
    prog = populated(era).prog
    names = "NR_SLAB_RECLAIMABLE_B", "NR_SLAB_RECLAIMABLE"
    assert node_page_state(prog, *names) == 7 * 4 + 1
    assert node_page_state(prog, *reversed(names)) == 7 * 4 + 1
    assert node_page_state(prog, "NR_SLAB_UNRECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE") == 3
    assert node_page_state(prog, "NR_NOTHING") is None


def test_counters_that_the_dump_lacks_are_absent() -> None:
    k = populated("6.10")
    k.drop(k.per_cpu("char", 0, 1).address_)
    assert node_page_state(k.prog, "NR_SLAB_RECLAIMABLE_B") is None
    # Before 4.13, they are of zones.
    k = populated("4.18")
    k.enum("zone_stat_item", ["NR_FREE_PAGES", "NR_SLAB_RECLAIMABLE"])
    assert node_page_state(k.prog, "NR_SLAB_RECLAIMABLE_B", "NR_SLAB_RECLAIMABLE") is None
