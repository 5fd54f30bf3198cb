# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hash chains of *synthetic* censuses, held against a walk of one dentry at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.analyses.dentries.census import (
    BUSY,
    DENTRY,
    FOREIGN,
    HASHED,
    NEGATIVE,
    NO_SLOT,
    REFERENCED,
)
from kcensus.analyses.dentries.chains import IN_A_ROW, _Part, _Walk

UNREFERENCED = DENTRY | HASHED | NEGATIVE
STATES = (
    UNREFERENCED,
    UNREFERENCED,
    UNREFERENCED | REFERENCED,
    UNREFERENCED | BUSY,
    DENTRY | HASHED,
)


def walked(
    state: Sequence[int], following: Sequence[int], heads: Sequence[int]
) -> tuple[_Walk, _Part]:
    census: Any = SimpleNamespace(
        hash_link=8,
        slots=range(len(state)),
        state=np.array(state, np.uint16),
        next=np.array(following, np.int32),
    )
    walk = _Walk(census)
    return walk, walk.walk(np.array(heads, np.int32))


def rows_of(states: Sequence[int]) -> list[int]:
    """Number of each in its row of unreferenced negatives."""
    found: list[int] = []
    for state in states:
        found.append((found[-1] if found else 0) + 1 if state == UNREFERENCED else 0)
    return found


@pytest.mark.parametrize("buckets", [16, 400])
@pytest.mark.parametrize("longest", [3, 40])
def test_chains_of_any_length(buckets: int, longest: int) -> None:
    """Whether they are walked together or, the last of them, alone."""
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
    walk, part = walked(state, following, heads)
    assert (walk.chained, walk.cut) == (len(state), 0)
    assert part.lengths.tolist() == np.bincount(lengths).tolist()
    negative, trimmed, rows = np.zeros(max(lengths) + 1), set(), []
    for chain in chains:
        states = [state[node] for node in chain]
        negative[len(chain)] += sum(one & NEGATIVE != 0 for one in states)
        numbers = rows_of(states)
        rows.append(max(numbers, default=0))
        trimmed |= {node for node, at in zip(chain, numbers, strict=True) if at > IN_A_ROW}
    assert part.negative.tolist() == negative.tolist()
    assert part.rows.tolist() == np.bincount(rows).tolist()
    assert set(np.flatnonzero(walk.trimmed).tolist()) == trimmed
    fewer = 0
    for start in range(0, buckets, 16):
        strung = [state[node] for chain in chains[start : start + 16] for node in chain]
        fewer += sum(at > IN_A_ROW for at in rows_of(strung))
    assert part.trimmed_fewer == fewer


@pytest.mark.parametrize("more", [0, 100])
def test_chains_that_meet_after_equally_many_steps(more: int) -> None:
    """What they share is counted once, in one of them; ``more`` chains decide how it is walked."""
    following = [2, 2, 3, 4, NO_SLOT] + [NO_SLOT] * more
    state = [UNREFERENCED] * len(following)
    walk, part = walked(state, following, [0, 1, *range(5, 5 + more)])
    assert (walk.chained, walk.cut) == (len(state), 1)
    assert part.lengths.tolist() == [0, 1 + more, 0, 0, 1]
    assert np.count_nonzero(walk.trimmed) == 1


@pytest.mark.parametrize("more", [0, 100])
@pytest.mark.parametrize("end", [FOREIGN, 1, 3])
def test_a_chain_that_leads_away_or_back(more: int, end: int) -> None:
    following = [1, 2, 3, end] + [NO_SLOT] * more
    state = [UNREFERENCED] * len(following)
    walk, part = walked(state, following, [0, *range(4, 4 + more)])
    assert (walk.chained, walk.cut, len(part.lengths)) == (len(state), 1, 5)


def test_a_chain_as_long_as_memory_ends_soon() -> None:
    """Names can be made up so that they hash alike, and damage can string everything together."""
    count = 500_000
    state = [UNREFERENCED] * count
    start = time.process_time()
    walk, part = walked(state, [*range(1, count), 0], [0])
    assert time.process_time() - start < 5, "a bulk step for each would take twenty"
    assert (walk.chained, walk.cut) == (count, 1)
    assert np.count_nonzero(walk.trimmed) == count - IN_A_ROW
    assert (part.longest_chain, part.longest_row) == (count, count)
    assert part.longest.iloc[0].to_dict() == {
        "bucket": 0,
        "length": count,
        "negative": count,
        "row": count,
    }
