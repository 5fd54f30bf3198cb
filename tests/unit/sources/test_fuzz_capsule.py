# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open thousands of corrupt and hostile capsules; see fuzz_capsule.py.

``pytest --fuzz-cases 10000`` sets their number. The seed is fixed, so failures are reproducible.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from tests.unit.capsules import recorded

SEED = 20
MAX_BYTES = 1 << 30


def test_corrupt_capsules_fail_cleanly(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    cases = pytestconfig.getoption("--fuzz-cases")
    capsule = recorded(tmp_path / "good.capsule", list(analyses().values()))
    processes = min(len(os.sched_getaffinity(0)), 8)
    bounds = [cases * number // processes for number in range(processes + 1)]
    running = []
    for first, end in pairwise(bounds):
        command = [sys.executable, "-m", "tests.unit.fuzz_capsule", str(capsule), str(SEED)]
        out = (tmp_path / f"{first}.out").open("w+")
        # Standard error is pytest's own, and shows tracebacks.
        running.append(
            (subprocess.Popen([*command, str(first), str(end)], stdout=out), first, end, out)
        )
    total: dict[str, int] = {}
    for process, first, end, out in running:
        status = process.wait()
        out.seek(0)
        last = out.read().splitlines()[-1]
        assert status == 0, f"case {last} of seed {SEED} ended the process with {status}"
        tally = json.loads(last)
        assert tally["refused"] + tally["opened"] == end - first
        assert tally.pop("peak_bytes") < MAX_BYTES
        for what, times in tally.items():
            total[what] = total.get(what, 0) + times
    # Both outcomes are frequent.
    assert total["refused"] > cases // 5
    assert total["opened"] > cases // 5
    assert total["analysed"] > cases // 200
