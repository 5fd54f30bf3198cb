# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mutated BTF, from a fixed seed: ``pytest --fuzz-cases 10000`` opens twice as many sections."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SEED = 28
MAX_BYTES = 500 << 20


@pytest.mark.slow
def test_mutated_sections_are_refused_or_usable(pytestconfig: pytest.Config) -> None:
    cases = 2 * max(pytestconfig.getoption("--fuzz-cases"), 100)
    command = [sys.executable, "-m", "tests.unit.sources.btf.fuzz_btf", str(SEED), "0", str(cases)]
    # Standard error is pytest's own, and shows tracebacks.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, f"case {last} of seed {SEED}: status {done.returncode}"
    tally = json.loads(last)
    assert tally["refused"] + tally["opened"] == cases
    # Both outcomes are frequent.
    assert min(tally["refused"], tally["opened"]) > cases // 10
    assert tally["peak_bytes"] < MAX_BYTES
