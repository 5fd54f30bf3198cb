# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes records without a kernel."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from deltalake import DeltaTable

from kcensus.analyses import Analysis
from kcensus.reports import Report, Section
from kcensus.results import Figure, Machine, Result, Unit
from kcensus.results.tables import Column, Show, TableSpec
from kcensus.store.records import Record, record

NOON = 1_700_049_600.0
"""2023-11-15T12:00:00Z."""
DAY = 86400

CACHES = TableSpec(
    "caches",
    "Slab caches",
    {
        "cache": Column(Unit.TEXT, "cache", Show.ALWAYS),
        "bytes": Column(Unit.BYTES, "bytes", Show.ALWAYS),
        "order": Column(Unit.NONE, "order"),
    },
    "A slab cache.",
    key=("cache",),
    series=("bytes",),
)
TABLES = (CACHES,)
ANALYSIS = Analysis("made", "what is made up?", f"{__name__}:run", specs=f"{__name__}:TABLES")


def ask(query: str, directory: Path) -> pd.DataFrame:
    """Return what DuckDB answers to a query of a store, which it knows as ``store``."""
    import duckdb  # prints warnings when the process ends

    store = DeltaTable(directory).to_pyarrow_dataset()
    assert store.schema  # DuckDB finds it by name
    rows = duckdb.sql(query)
    assert rows is not None
    return pd.DataFrame(rows.df())


def result(used: int = 4096, caches: dict[str, int] | None = None) -> Result:
    sizes = {"dentry": 8192, "inode": 4096} if caches is None else caches
    names = pd.Series([*sizes], dtype=object)  # lone surrogates
    rows = pd.DataFrame({"cache": names, "bytes": [*sizes.values()], "order": 0})
    return Result(
        "made",
        "vmcore",
        "6.1.0",
        summary={"used_bytes": Figure(used, Unit.BYTES)},
        tables={"caches": CACHES.of(rows)},
    )


def report(
    host: str = "web1",
    time: float | None = NOON,
    boot: str = "b1",
    *,
    of: Result | None = None,
    error: str = "",
) -> Report:
    """Make a report with one analysis, which has failed if there is an error."""
    machine = Machine(host, time, 60.0, 1 << 30, kernel="6.1.0", build_id="ab", boot=boot)
    made = None if error else of or result()
    head = Result("report", "vmcore", "6.1.0", machine=machine)
    return Report(head, [Section("made", made, error)])


def entry(host: str = "web1", time: float | None = NOON, used: int = 4096) -> Record:
    return record(report(host, time, of=result(used)), [ANALYSIS], NOON + 5)
