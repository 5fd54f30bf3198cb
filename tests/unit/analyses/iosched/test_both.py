# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests that memory and a trace have in common."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kcensus.analyses.iosched.both import Pairs, pairs

SECOND = 10**9
DISK = 8 << 20


@pytest.mark.parametrize(
    ("allocated", "got", "rows"),
    [
        ([500.0], [1.0], []),  # one equal sector proves nothing
        ([500.0, 501.0], [1.0, 2.0], [0, 1]),
        ([500.0, 501.0, 777.0], [1.0, 2.0, 3.0], [0, 1]),
        ([500.0, 601.0, 777.0], [1.0, 2.0, 3.0], []),  # a trace of another time
    ],
)
def test_pairs_have_one_distance(allocated: list[float], got: list[float], rows: list[int]) -> None:
    found = paired(allocated, got, np.arange(len(got)) * 8)
    assert found.request.tolist() == found.bio.tolist() == rows
    assert found.offset_ns == (499 * SECOND if rows else 0)


def test_a_sector_of_several_requests() -> None:
    """The first one is still in memory, those at the same sector came before and after it."""
    found = paired([500.0, 501.0, 502.0], [1.0, 2.0, 3.0, 0.5, 1.5], np.array([0, 8, 16, 0, 0]))
    assert (found.request.tolist(), found.bio.tolist()) == ([0, 1, 2], [0, 1, 2])


def paired(allocated: list[float], got: list[float], began: npt.NDArray[np.int64]) -> Pairs:
    """Return the pairs of requests at sectors 0, 8, 16 … and of bios of a trace.

    :param allocated: seconds at which the requests were allocated
    :param got: those at which the bios got theirs
    :param began: sectors of the bios
    """
    count = len(allocated)
    sectors = np.arange(count) * 8
    requests = SimpleNamespace(
        sector=sectors,
        allocated_ns=(np.array(allocated) * SECOND).astype(np.uint64),
        disk=np.zeros(count, np.int64),
    )
    bios = SimpleNamespace(
        device=np.full(len(got), DISK),
        sector=began,
        is_lost=np.zeros(len(got), np.bool_),
        got=(np.array(got) * SECOND).astype(np.int64),
    )
    inside: Any = SimpleNamespace(requests=requests, disks=[SimpleNamespace(number=DISK)])
    traced: Any = SimpleNamespace(bios=bios, is_request=np.ones(len(got), np.bool_))
    return pairs(inside, traced)


def test_a_trace_that_goes_on_has_later_bios_at_the_same_sectors() -> None:
    requests = SimpleNamespace(
        sector=np.array([0, 8, 16]),
        allocated_ns=np.array([500, 501, 502], np.uint64) * SECOND,
        disk=np.zeros(3, np.int64),
    )
    bios = SimpleNamespace(
        device=np.full(6, DISK),
        sector=np.array([0, 8, 16, 0, 8, 16]),
        is_lost=np.zeros(6, np.bool_),
        got=np.array([1, 2, 3, 40, 35, 60]) * SECOND,
    )
    inside: Any = SimpleNamespace(requests=requests, disks=[SimpleNamespace(number=DISK)])
    traced: Any = SimpleNamespace(bios=bios, is_request=np.ones(6, np.bool_))
    found = pairs(inside, traced)
    assert (found.request.tolist(), found.bio.tolist()) == ([0, 1, 2], [0, 1, 2])
    assert found.offset_ns == 499 * SECOND
