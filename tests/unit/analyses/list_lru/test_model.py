# SPDX-License-Identifier: LGPL-2.1-or-later
"""The model of what per-memcg lists cost, by hand and against slow counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcensus.analyses import ParamError
from kcensus.analyses.list_lru import model
from kcensus.kernel.mm.footprint import Allocator
from tests.running import on, runner
from tests.unit.fakekernel import FakeKernel

run = runner("list-lru")


def evaluated(text: str) -> tuple[model.Population, list[model.Cost]]:
    of = model.what_if(text)
    return of, [model.cost(stage, of, Allocator()) for stage in model.Stage]


def test_ids_stand_for_the_fewest_memory_cgroups() -> None:
    of, costs = evaluated("nodes=4,ids=24574,mounts=952")
    assert (of.memcgs, of.lrus) == (12287, 2 * 952)
    assert costs[0].lists == model.formula(4, 24574, 2 * 952)


def test_ids_double() -> None:
    assert [model.nr_cache_ids(count) for count in (0, 1, 4, 5, 10, 11)] == [0, 4, 4, 10, 10, 22]
    assert model.nr_cache_ids(10_000) == 12_286
    assert model.nr_cache_ids(12_286) == 12_286
    assert model.nr_cache_ids(12_287) == 24_574
    assert model.nr_cache_ids(1_000_000) == 65_535


@given(st.integers(1, 65_535))
def test_fewest_cgroups_for_so_many_ids(memcgs: int) -> None:
    ids = model.nr_cache_ids(memcgs)
    fewest = model.memcgs_at_once(ids)
    assert fewest <= memcgs <= ids
    assert model.nr_cache_ids(fewest) == ids
    assert model.nr_cache_ids(fewest - 1) < ids


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        *((1, 8), (24, 32), (32, 32), (33, 64), (65, 96), (97, 128), (129, 192), (193, 256)),
        *((8192, 8192), (8193, 16384), (16385, 32768), (98312, 131072), (131073, 262144)),
    ],
)
def test_sizes(asked: int, size: int) -> None:
    assert Allocator().size(asked) == size


def test_smallest_objects_of_arm64() -> None:
    """Up to 6.4 no kmalloc() takes less than 128 bytes there."""
    allocator = Allocator((128, 256, 512, 1024, 2048, 4096, 8192))
    of = model.Population(nodes=1, ids=100, lrus=1)
    assert model.cost(model.Stage.ARRAYS, of, allocator).lists == 100 * 128


def test_stages_by_hand() -> None:
    of = model.Population(nodes=3, ids=22, lrus=5, pairs=7, xa_nodes=4, others=2)
    costs = {stage: model.cost(stage, of, Allocator(), xa_node_bytes=576) for stage in model.Stage}
    found = {stage: (each.pointers, each.lists) for stage, each in costs.items()}
    assert found == {
        # 16 + 8 * 22 bytes for each node; 24 for each id.
        model.Stage.ARRAYS: (5 * 3 * 192, 5 * 3 * 22 * 32),
        # 3 * 24 bytes for each id.
        model.Stage.PER_MEMCG: (5 * 192, 5 * 22 * 96),
        model.Stage.ON_DEMAND: (5 * 192, 7 * 96),
        model.Stage.XARRAY: (4 * 576, 7 * 96),
    }
    assert {each.node_arrays for each in costs.values()} == {7 * 192}
    assert costs[model.Stage.ON_DEMAND].total == 7 * 192 + 5 * 192 + 7 * 96
    assert [stage for stage in model.Stage if not stage.patch] == [model.Stage.ARRAYS]


def slow_xa_nodes(indexes: set[int]) -> int:
    """Count the nodes one by one, from the root down."""
    if not indexes or max(indexes) == 0:
        return 0
    shift = 0
    while max(indexes) >> (shift + 6):
        shift += 6

    def below(inside: set[int], shift: int) -> int:
        if shift == 0:
            return 1
        slots: dict[int, set[int]] = {}
        for index in inside:
            slots.setdefault(index >> shift, set()).add(index & ((1 << shift) - 1))
        return 1 + sum(below(rest, shift - 6) for rest in slots.values())

    return below(indexes, shift)


@given(st.lists(st.sets(st.integers(0, 65_535) | st.integers(0, 130), max_size=9), max_size=5))
def test_nodes_of_xarrays(arrays: list[set[int]]) -> None:
    lane = [at for at, indexes in enumerate(arrays) for _ in indexes]
    index = [each for indexes in arrays for each in indexes]
    found = model.xa_nodes(np.array(lane, np.int64), np.array(index, np.uint64))
    assert found == sum(map(slow_xa_nodes, arrays))


def test_pairs() -> None:
    of, costs = evaluated("nodes=2,memcgs=1000,mounts=1000,pairs=1000")
    assert of.pairs == 2000
    # One id in each XArray: a node for a low one, two for one from 64 on.
    assert 2000 <= of.xa_nodes <= 4000
    assert costs[2].lists == 2000 * 64
    assert costs[3].lists == 2000 * 64


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unknown part"),
        ("nodes=2", "mounts=N is missing"),
        ("memcgs=3,mounts=4", "nodes=N is missing"),
        ("nodes=2,mounts=4", "memcgs=N is missing"),
        ("nodes=2,memcgs=3,mounts=4,cpus=5", "unknown part 'cpus=5'"),
        ("nodes=2,memcgs=3,mounts=x", "an integer from 1"),
        ("nodes=2,memcgs=-3,mounts=4", "an integer from 1"),
        ("nodes=0,memcgs=3,mounts=4", "an integer from 1"),
        ("nodes=2,memcgs=70000,mounts=4", "from 1 to 65,535"),
        ("nodes=2,ids=70000,mounts=4", "from 1 to 65,535"),
        ("nodes=2,memcgs=3,mounts=4,pairs=13", "more than memcgs times mounts"),
    ],
)
def test_descriptions_that_are_none(text: str, why: str) -> None:
    with pytest.raises(ParamError, match=why):
        model.what_if(text)


def test_result_of_a_model() -> None:
    context = on(FakeKernel().prog)
    result = run(context, what_if="nodes=2, memcgs=10000, mounts=10000")
    of, costs = evaluated("nodes=2,memcgs=10000,mounts=10000")
    summary = {name: figure.value for name, figure in result.summary.items()}
    assert summary["nr_cache_ids"] == 12286
    assert summary["formula_bytes"] == model.formula(of.nodes, of.ids, of.lrus)
    assert summary["projected_patch7_bytes"] == costs[1].total
    assert summary["projected_ondemand_bytes"] == costs[2].total
    assert summary["projected_xarray_bytes"] == costs[3].total
    frame = result.tables["projection"].frame
    assert frame["bytes"].tolist() == [found.total for found in costs]
    # Less than in the first row.
    assert frame["saved_bytes"].tolist() == [costs[0].total - found.total for found in costs]
    assert result.tables["left_out"].frame["what"].tolist() == list(model.LEFT_OUT)
