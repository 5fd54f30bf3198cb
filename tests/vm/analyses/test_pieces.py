# SPDX-License-Identifier: LGPL-2.1-or-later
"""Analyses of real dumps in small chunks, and in two processes."""

from __future__ import annotations

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from tests.lab import build
from tests.vm.cases import analyzed, assert_same, opened


@pytest.mark.newest
@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("dentries", "mixed"),
        ("kcopyd", "kcopyd-waiting"),
        ("list-lru", "list-lru"),
        ("memcgs", "memcgs-dying"),
        ("slab", "mixed"),
    ],
)
def test_small_chunks_and_two_processes_give_the_same(
    kernel: str, name: str, scenario: str
) -> None:
    target = opened(build(kernel, scenario))
    expected = analyzed(target, name)
    for jobs, chunk_bytes in ((1, 64 << 10), (2, 1 << 20)):
        context = Context.of(target, jobs=jobs, chunk_bytes=chunk_bytes)
        assert_same(context.run(analyses()[name]), expected)
