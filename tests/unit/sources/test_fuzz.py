# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open hostile capsules, and report on kernels with damaged memory, from fixed seeds.

``pytest --fuzz-cases 10000`` opens as many capsules, reports on a hundredth of that number, and
damages a page for each 50; see fuzz_capsule.py, fuzz_report.py and lost_pages.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.samples import DIRECTORY
from tests.unit.capsules import recorded
from tests.unit.fuzzing import add_up

SEED = 20
MAX_BYTES = 1 << 30


@pytest.mark.slow
def test_corrupt_capsules_fail_cleanly(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    cases = pytestconfig.getoption("--fuzz-cases")
    capsule = recorded(tmp_path / "good.capsule", list(analyses().values()))
    total = add_up("tests.unit.fuzz_capsule", SEED, cases, max_bytes=MAX_BYTES, input_=capsule)
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
