# SPDX-License-Identifier: LGPL-2.1-or-later
"""Report on capsules of a real kernel whose memory is damaged; see fuzz_report.py.

``pytest --fuzz-cases 10000`` reports on a hundredth of that number. The seed is fixed, so failures
are reproducible.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from kcensus.samples import DIRECTORY

SEED = 3
_CAPSULE = DIRECTORY / "sample-after.capsule"


def test_damaged_kernels_are_reported_cleanly(pytestconfig: pytest.Config) -> None:
    cases = pytestconfig.getoption("--fuzz-cases") // 100
    command = [sys.executable, "-m", "tests.unit.fuzz_report", str(_CAPSULE)]
    done = subprocess.run(
        [*command, str(SEED), "0", str(cases)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
