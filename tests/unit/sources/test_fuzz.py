# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open hostile capsules, and report on kernels with damaged memory, from fixed seeds.

``pytest --fuzz-cases 10000`` opens as many capsules, reports on a hundredth of that number, and
damages a page for each 50; see fuzz_capsule.py, fuzz_report.py and lost_pages.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.samples import DIRECTORY
from tests.unit.capsules import recorded

SEED = 20
MAX_BYTES = 1 << 30


@pytest.mark.slow
def test_corrupt_capsules_fail_cleanly(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    cases = pytestconfig.getoption("--fuzz-cases")
    capsule = recorded(tmp_path / "good.capsule", list(analyses().values()))
    processes = min(len(os.sched_getaffinity(0)), 8)
    bounds = [cases * number // processes for number in range(processes + 1)]

    def tally_of(first: int, end: int) -> Counter[str]:
        command = [sys.executable, "-m", "tests.unit.fuzz_capsule", str(capsule), str(SEED)]
        # Standard error is pytest's own, and shows tracebacks.
        done = subprocess.run(
            [*command, str(first), str(end)], stdout=subprocess.PIPE, text=True, check=False
        )
        last = done.stdout.splitlines()[-1]
        assert done.returncode == 0, f"case {last} of seed {SEED}: status {done.returncode}"
        tally = Counter(json.loads(last))
        assert tally["refused"] + tally["opened"] == end - first
        assert tally.pop("peak_bytes") < MAX_BYTES
        return tally

    with ThreadPoolExecutor(processes) as pool:
        total = sum(pool.map(tally_of, bounds, bounds[1:]), Counter[str]())
    # Both outcomes are frequent.
    assert total["refused"] > cases // 5
    assert total["opened"] > cases // 5
    assert total["analysed"] > cases // 200


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["sample", "sample-after", "sample-io"])
def test_damaged_kernels_are_reported_cleanly(sample: str, pytestconfig: pytest.Config) -> None:
    """Within limits of time, memory and lines, too."""
    capsule = str(DIRECTORY / f"{sample}.capsule")
    cases = max(pytestconfig.getoption("--fuzz-cases") // 300, 1)
    command = [sys.executable, "-m", "tests.unit.fuzz_report", capsule, *("3", "0", str(cases))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zero", "pointers"])
def test_no_figure_changes_in_silence(kind: str, pytestconfig: pytest.Config) -> None:
    capsule, most = DIRECTORY / "sample-io.capsule", pytestconfig.getoption("--fuzz-cases")
    cases = max(most // 50, 2)  # 0 is all pages
    command = [sys.executable, "-m", "tests.unit.lost_pages", str(capsule), kind, str(cases), "9"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    tally = json.loads(done.stdout.splitlines()[-1])
    assert tally["cases"] >= cases
    assert tally["silent"] <= 0.003 * tally["cases"], done.stdout
    assert tally["silent in the summary"] == 0, done.stdout
