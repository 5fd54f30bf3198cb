# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dentries in hash chains that a key chooses."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.analyses.dentries.walks import FEWER
from kcensus.kernel.kernel import Kernel
from kcensus.redaction.buckets import exchanged, moved_dentries, shuffled
from tests.unit.analyses.dentries.scenes import census, populated

_KEY = bytes(range(64))
_FIGURES = ("buckets", "longest_chain", "longest_negative_run", "patched_negative", "patched_bytes")


def random() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=1))


@pytest.mark.parametrize("count", [1, 4, FEWER, 1 << 12])
def test_neighbors_go_elsewhere_together(count: int) -> None:
    order = shuffled(count, random())
    assert sorted(order.tolist()) == list(range(count))
    groups = order.reshape(-1, min(FEWER, count)) // FEWER
    assert (groups == groups[:, :1]).all()
    if count > FEWER:
        assert (order == np.arange(count)).mean() < 0.1


def test_only_rows_of_one_kind_are_exchanged() -> None:
    kinds = np.repeat([3, 1, 2, 1], [500, 400, 1, 600])
    found = exchanged(kinds, random())
    assert sorted(found.tolist()) == list(range(len(kinds)))
    assert (kinds[found] == kinds).all()
    assert (found == np.arange(len(kinds))).mean() < 0.05


def test_figures_stay_and_chains_are_others() -> None:
    dcache, _ = populated()
    k = dcache.machine
    names = (*_FIGURES, "patched_negative_fewer_buckets")
    before = census(dcache)
    table = int(k.prog["dentry_hashtable"])
    was = [k.word(table + 8 * number) for number in range(64)]
    for physical, rows in moved_dentries(Kernel(k.prog), _KEY):
        for place, row in zip(physical.tolist(), rows, strict=True):
            k.ram[place : place + len(row)] = row.tobytes()
    after = census(dcache)
    assert [k.word(table + 8 * number) for number in range(64)] != was
    assert [after.summary[name].value for name in names] == [
        before.summary[name].value for name in names
    ]
    assert after.gaps == before.gaps
    chains = [result.tables["chains"].frame.to_dict() for result in (before, after)]
    assert chains[0] == chains[1]
