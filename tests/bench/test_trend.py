# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the trend of a long series takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.bench.timing import cost, report
from tests.unit.store.histories import SLAB, history, write_store

_POINTS = 100_000
_MAX_SECONDS = 5.0
"""Of CPU time, from the command line to the exit: what else the machine does is not in it."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A year of records every five minutes, each with one figure, in one file per day."""
    random = np.random.default_rng(0)
    rows = history({SLAB: 1e9 + 1e4 * np.arange(_POINTS) + random.normal(0, 1e6, _POINTS)})
    return write_store(tmp_path_factory.mktemp("trend") / "store", rows)


def test_a_hundred_thousand_points_of_one_host(store: Path, slack: float) -> None:
    words = [sys.executable, "-m", "kcensus", "trend", str(store), "--json"]
    shown: list[str] = []
    seconds = cost(lambda: shown.append(subprocess.check_output(words, text=True))).cpu
    assert f'"records": {_POINTS}' in shown[0]
    report(f"trend, {_POINTS:,} points", seconds=seconds)
    assert seconds <= _MAX_SECONDS * slack
