# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hash chains of *synthetic* censuses, against a walk of one dentry at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from kcensus.analyses.dentries.chains import Chains
from kcensus.analyses.dentries.columns import bits as marks
from kcensus.analyses.dentries.columns.bits import DENTRY, FOREIGN, HASHED, NEGATIVE, NO_SLOT
from kcensus.analyses.dentries.walks import IN_A_ROW, ORDER_BASE, mix
from kcensus.engine.memory import Memory
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel

UNREFERENCED = DENTRY | HASHED | NEGATIVE
STATES = (
    UNREFERENCED,
    UNREFERENCED,
    UNREFERENCED | marks.REFERENCED,
    UNREFERENCED | marks.BUSY,
    DENTRY | HASHED,
)


def walked(state: Sequence[int], following: Sequence[int], heads: Sequence[int]) -> Chains:
    """Walk chains; the external name of slot n has 8 * n bytes."""
    marked = np.array(state, np.uint16)
    marked[marked != 0] |= marks.EXTERNAL
    census: Any = SimpleNamespace(
        hash_link=8,
        slots=SimpleNamespace(dtype=np.dtype(np.int32)),
        links=marks.links_of(np.array(following, np.int32), marked, np.int32),
        name_slot=np.arange(len(state), dtype=np.int32),
    )
    chains = Chains(census)
    chains.add(np.array(heads, np.int32))
    return chains


def counts(histogram: npt.NDArray[np.int64]) -> list[int]:
    """Return a histogram up to its last entry that is not 0."""
    counted: list[int] = np.trim_zeros(histogram, "b").tolist()
    return counted


def runs_of(states: Sequence[int]) -> list[int]:
    """Return the number of each in its run of unreferenced negatives."""
    found: list[int] = []
    for state in states:
        found.append((found[-1] if found else 0) + 1 if state == UNREFERENCED else 0)
    return found


def in_order(parts: Sequence[Sequence[bool]]) -> list[Sequence[bool]]:
    """Return chains of unreferenced dentries in the order of a table with fewer buckets."""
    seen, keys = Counter[tuple[int, int]](), []
    for part in parts:
        number = sum(pow(ORDER_BASE, place, 1 << 64) for place, each in enumerate(part) if each)
        number %= 1 << 64
        seen[number, len(part)] += 1
        rank = seen[number, len(part)] - 1
        (key,) = mix(*np.array([[number], [len(part)], [rank]], np.uint64)).tolist()
        keys.append(key)
    return [part for _, part in sorted(zip(keys, parts, strict=True), key=lambda pair: pair[0])]


@pytest.mark.parametrize("buckets", [16, 400])
@pytest.mark.parametrize("longest", [3, 40])
def test_chains_of_any_length(buckets: int, longest: int) -> None:
    """The last of them can be much longer than the others."""
    random = np.random.default_rng(buckets + longest)
    lengths = random.integers(0, longest, buckets).tolist()
    lengths[5] = 3 * longest
    state = random.choice(STATES, sum(lengths), p=[0.4, 0.4, 0.1, 0.05, 0.05]).tolist()
    order = random.permutation(len(state)).tolist()
    following, heads, chains = [NO_SLOT] * len(state), [], []
    for length in lengths:
        chain, order = order[:length], order[length:]
        heads.append(chain[0] if chain else NO_SLOT)
        for one, other in pairwise(chain):
            following[one] = other
        chains.append(chain)
    walk = walked(state, following, heads)
    assert (walk.chained, walk.cut, walk.buckets) == (len(state), 0, buckets)
    assert counts(walk.lengths) == np.bincount(lengths).tolist()
    negative, trimmed, runs = np.zeros(max(lengths) + 1, np.int64), set(), []
    for chain in chains:
        states = [state[node] for node in chain]
        negative[len(chain)] += sum(one & NEGATIVE != 0 for one in states)
        numbers = runs_of(states)
        runs.append(max(numbers, default=0))
        trimmed |= {node for node, at in zip(chain, numbers, strict=True) if at > IN_A_ROW}
    assert counts(walk.negative) == counts(negative)
    assert counts(walk.runs) == np.bincount(runs).tolist()
    assert (walk.trimmed, walk.trimmed_name_bytes) == (len(trimmed), 8 * sum(trimmed))
    negatives = [sum(state[node] & NEGATIVE != 0 for node in chain) for chain in chains]
    order = sorted(range(buckets), key=lambda at: (-lengths[at], -runs[at], -negatives[at], at))[
        :20
    ]
    assert walk.longest["bucket"].tolist() == [at for at in order if lengths[at]]
    fewer = 0
    for start in range(0, buckets, 16):
        parts = [[state[node] == UNREFERENCED for node in each] for each in chains[start:][:16]]
        strung = [UNREFERENCED if each else 0 for part in in_order(parts) for each in part]
        fewer += sum(at > IN_A_ROW for at in runs_of(strung))
    assert walk.trimmed_fewer == fewer


@pytest.mark.parametrize("more", [0, 100])
@pytest.mark.parametrize("end", [NO_SLOT, FOREIGN])
def test_chains_that_meet_after_equally_many_steps(more: int, end: int) -> None:
    """What they share is counted once, in the first of them."""
    following = [2, 2, 3, 4, end] + [NO_SLOT] * more
    walk = walked([UNREFERENCED] * len(following), following, [0, 1, *range(5, 5 + more)])
    assert (walk.chained, walk.cut) == (len(following), 1 + (end == FOREIGN))
    assert counts(walk.lengths) == [0, 1 + more, 0, 0, 1]
    assert walk.trimmed == 1


def test_chains_that_meet_after_different_steps() -> None:
    """What they share is counted once, in the one that reaches it first."""
    walk = walked([UNREFERENCED] * 5, [1, 2, 3, NO_SLOT, 2], [0, 4])
    assert (walk.chained, walk.cut) == (5, 1)
    assert counts(walk.lengths) == [0, 0, 1, 1]


@pytest.mark.parametrize("more", [0, 100])
@pytest.mark.parametrize("end", [FOREIGN, 1, 3])
def test_a_chain_that_leads_elsewhere_or_back(more: int, end: int) -> None:
    following = [1, 2, 3, end] + [NO_SLOT] * more
    walk = walked([UNREFERENCED] * len(following), following, [0, *range(4, 4 + more)])
    assert (walk.chained, walk.cut, walk.longest_chain) == (len(following), 1, 4)


def test_heads_that_are_not_dentries() -> None:
    walk = walked([UNREFERENCED, 0, UNREFERENCED], [1, 2, NO_SLOT], [FOREIGN, 1, NO_SLOT, 0, 0])
    assert (walk.chained, walk.cut) == (1, 4)
    assert counts(walk.lengths) == [4, 1]


def test_no_dentry_in_any_chain() -> None:
    walk = walked([], [], [NO_SLOT, FOREIGN])
    assert (walk.chained, walk.cut, walk.longest_chain, walk.buckets) == (0, 1, 0, 2)


def test_an_unreadable_page_of_a_table_costs_its_own_buckets_alone() -> None:
    # Small tables are allocated in the middle of a page.
    kernel, census = FakeKernel(), cast(Any, walked([], [], [NO_SLOT]).census)
    census.slots_of = lambda heads, _: np.full(len(heads), NO_SLOT, np.int32)
    table = DIRECT_MAP + 320 * PAGE + 1728
    kernel.drop(DIRECT_MAP + 321 * PAGE)
    chains = Chains(census).read(Memory(kernel.prog), table, 1024)
    assert (chains.buckets, chains.buckets_unreadable) == (1024, PAGE // 8)


@pytest.mark.slow
def test_a_chain_as_long_as_memory_ends_soon() -> None:
    """Names can be made to hash alike, and damage can string all chains together."""
    count = 500_000
    start = time.process_time()
    walk = walked([UNREFERENCED] * count, [*range(1, count), 0], [0])
    assert time.process_time() - start < 5, "a bulk step for each would take twenty"
    assert (walk.chained, walk.cut, walk.trimmed) == (count, 1, count - IN_A_ROW)
    assert (walk.longest_chain, walk.longest_run) == (count, count)
    alike = dict.fromkeys(("length", "negative", "run"), count)
    assert walk.longest.iloc[0].to_dict() == {"bucket": 0, **alike}
