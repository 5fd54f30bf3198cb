# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the trend of a long series takes."""

from __future__ import annotations

import datetime
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from kcensus.store import dataset, layout
from tests.bench.timing import report
from tests.unit.store.histories import SLAB, history

_POINTS = 100_000
_DAY = 288
_MAX_SECONDS = 5.0
"""Of CPU time, from the command line to the exit: what else the machine does is not in it."""


def _cpu_seconds() -> float:
    """Return what the children of this process have taken until now."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A year of records every five minutes, each with one figure, in one file per day."""
    path = tmp_path_factory.mktemp("trend") / "store"
    dataset.prepare(path)
    random = np.random.default_rng(0)
    rows = history({SLAB: 1e9 + 1e4 * np.arange(_POINTS) + random.normal(0, 1e6, _POINTS)})
    rows = rows.assign(
        clock="machine", build_id="", live=True, kcensus="1", schema=2, exact=None
    )  # fmt: skip
    table = pa.Table.from_pandas(rows[layout.SCHEMA.names], layout.SCHEMA, preserve_index=False)
    for first in range(0, _POINTS, _DAY):
        day: datetime.datetime = rows["time"].iloc[first].to_pydatetime()
        directory = layout.day_directory(path, "db1", day)
        directory.mkdir(parents=True)
        part = table.slice(first, _DAY)
        parquet.write_table(part, directory / f"block-{len(part)}-0.parquet", store_schema=False)
    return path


def test_a_hundred_thousand_points_of_one_host(store: Path, slack: float) -> None:
    start = _cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "kcensus", "trend", str(store), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = _cpu_seconds() - start
    assert f'"records": {_POINTS}' in done.stdout
    report(f"trend, {_POINTS:,} points", seconds=seconds)
    assert seconds <= _MAX_SECONDS * slack
