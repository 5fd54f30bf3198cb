# SPDX-License-Identifier: LGPL-2.1-or-later
"""Histories with given series, as ``kcensus.history()`` returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from deltalake import write_deltalake

from kcensus.store import dataset
from kcensus.store.layout import SCHEMA

Key = tuple[str, str, str, str, str]
"""Analysis, part, metric, subject, unit."""

SLAB: Key = ("slab", "summary", "slab_bytes", "", "bytes")
DENTRY: Key = ("slab", "caches", "bytes", "dentry", "bytes")
NEGATIVE: Key = ("dentries", "summary", "negative", "", "count")
MEMCG_IDS: Key = ("list-lru", "summary", "ids_in_use", "", "count")
GIB = 1 << 30


def history(
    series: Mapping[Key, npt.ArrayLike],
    *,
    step: float = 300.0,
    host: str = "db1",
    boots: Sequence[str] = (),
    start: str = "2026-01-01T00:00Z",
    ram_bytes: int = 8 * GIB,
) -> pd.DataFrame:
    """Return the history of a host; series are equally long, a NaN is a missing row.

    :param step: seconds between records
    :param boots: of each record; a boot begins 60 s before its first one
    """
    count = len(np.asarray(next(iter(series.values()))))
    names = list(boots) or ["3f1c"] * count
    uptime, uptimes = 0.0, []
    for row in range(count):
        uptime = 60.0 if row == 0 or names[row] != names[row - 1] else uptime + step
        uptimes.append(uptime)
    times = pd.Timestamp(start) + pd.to_timedelta(np.arange(count) * step, unit="s")
    record: dict[str, Any] = {
        "host": host,
        "record": [f"{host}-{row}" for row in range(count)],
        "time": times,
        "boot": names,
        "uptime_seconds": uptimes,
        "ram_bytes": ram_bytes,
        "release": "6.1.0",
    }
    kinds = ("analysis", "part", "metric", "subject", "unit")
    frames = [
        pd.DataFrame(record | dict(zip(kinds, key, strict=True)) | {"value": np.asarray(values)})
        for key, values in series.items()
    ]
    return pd.concat(frames, ignore_index=True).dropna(subset="value")


def write_store(path: Path, rows: pd.DataFrame) -> Path:
    """Write a history as a store that ``kcensus record`` could have made."""
    dataset.prepare(path)
    rest: dict[str, Any] = {
        "clock": "machine", "build_id": "", "kcensus": "1", "schema": 2, "exact": None,
    }  # fmt: skip
    quality: dict[str, Any] = {
        "part": "quality", "metric": "failed", "subject": "", "unit": "count",
    }  # fmt: skip
    failed = rows.drop_duplicates("record").assign(**quality, value=0.0)
    rows = pd.concat([rows, failed]).assign(live=rows.get("live", pd.Series([True])).iloc[0])
    day = rows["time"].dt.strftime("%Y-%m-%d")
    filled = rows.assign(**rest, day=day)[SCHEMA.names]
    write_deltalake(path, pa.Table.from_pandas(filled, SCHEMA, preserve_index=False), mode="append")
    return path
