# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mutated BTF, from a fixed seed: ``pytest --fuzz-cases 10000`` opens twice as many sections."""

from __future__ import annotations

import pytest

from tests.unit.fuzzing import add_up

SEED = 28
MAX_BYTES = 500 << 20


@pytest.mark.slow
def test_mutated_sections_are_refused_or_usable(pytestconfig: pytest.Config) -> None:
    cases = 2 * max(pytestconfig.getoption("--fuzz-cases"), 100)
    total = add_up("tests.unit.sources.btf.fuzz_btf", SEED, cases, max_bytes=MAX_BYTES)
    # Both outcomes are frequent.
    assert min(total["refused"], total["opened"]) > cases // 10
