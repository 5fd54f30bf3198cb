# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories, files and columns of a store.

::

    STORE/_store.json                                  format of the store
    STORE/host=NAME/day=2026-01-31/120000-ID.parquet   one record
    STORE/host=NAME/day=2026-01-31/block-288-ID.parquet   288 records, merged
    STORE/host=NAME/.lock                              held by a writer
    STORE/host=NAME/.record                            a record being written
    STORE/host=NAME/.compact/                          a day being merged

Names of hosts come from kernel memory, so they are percent-encoded; readers of such datasets
(Arrow, pandas, DuckDB, Spark) decode them. The pattern ``STORE/host=*/day=*/*.parquet`` matches
complete files only.

A row is one number of one record. Hosts and days are in the names of directories only.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from kcensus.samples import DIRECTORY
from kcensus.text import bounded

FORMAT = 1
"""Version of what this module describes: raised when a column is renamed or changes its meaning."""
MARKER = "_store.json"
LOCK, PART, STAGING = ".lock", ".record", ".compact"
PATTERN = "host=*/day=*/*.parquet"
"""All files of a store, for readers that take a pattern."""
UNKNOWN_HOST = "(unknown)"

_MAX_HOST = 200
"""Bytes of an encoded name; file systems take 255 with ``host=``."""
_MAX_SUBJECT = 512

COLUMNS = {
    "host": (pa.string(), "Name of the host; a pseudonym in redacted capsules."),
    "day": (pa.string(), "Day of time, in UTC: 2026-01-31."),
    "record": (pa.string(), "Identifies the record: the same dump and analyses have the same."),
    "time": (pa.timestamp("us", "UTC"), "Of the dump, by the clock of the machine."),
    "clock": (pa.string(), "machine; recorder: the dump has no time, so it is that of recording."),
    "boot": (pa.string(), "Identifies the boot; it changes where the kernel started again."),
    "uptime_seconds": (pa.float64(), "Since that boot; null if unknown."),
    "ram_bytes": (pa.int64(), "RAM of the machine; null if unknown."),
    "release": (pa.string(), "Release of the kernel."),
    "build_id": (pa.string(), "Of the vmlinux; empty if unknown."),
    "live": (pa.bool_(), "Whether the kernel ran while it was read."),
    "kcensus": (pa.string(), "Version of kcensus that recorded it."),
    "schema": (pa.int32(), "Schema of JSON documents of that version, which has all metrics."),
    "analysis": (pa.string(), "Name of the analysis."),
    "part": (pa.string(), "summary, findings, quality, or the name of a table."),
    "subject": (pa.string(), "Row of the table, such as a slab cache; empty in a summary."),
    "metric": (pa.string(), "Key of the summary, or column of the table."),
    "unit": (pa.string(), "bytes, count, pages, ratio, seconds, or empty."),
    "value": (pa.float64(), "The number; null if it is unknown."),
    "exact": (pa.int64(), "The number where it is an integer of 64 bits; null otherwise."),
}
"""By name: type, and what it holds."""
PARTITIONS = pa.schema([(name, COLUMNS[name][0]) for name in ("host", "day")])
SCHEMA = pa.schema(
    [pa.field(name, kind) for name, (kind, _) in COLUMNS.items() if name not in PARTITIONS.names],
    {"kcensus.store": str(FORMAT)},
)
"""Of each file."""
WHOLE = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
"""Of a store: all columns."""
ORDER = ("analysis", "metric", "subject", "part", "time")
"""Blocks are sorted by these, so that reading one series skips most of a file."""


def located(store: Path) -> Path:
    """Return the directory of a store; that of a bundled one, unless a file has its name."""
    bundled = DIRECTORY / store
    is_bundled = store.parent == Path() and not os.path.lexists(store)
    return bundled if is_bundled and os.path.isfile(bundled / MARKER) else store


def bounded_subject(name: str) -> str:
    """Return the name of a row, as it is stored."""
    return bounded(name, _MAX_SUBJECT)


def bounded_host(name: str) -> str:
    """Return the name of a host, as it is stored, so that a directory can have it."""
    length = len(name)
    while len(_encoded(bounded(name, length))) > _MAX_HOST:
        length = length * 3 // 4
    return bounded(name, length) or UNKNOWN_HOST


def host_directory(store: Path, host: str) -> Path:
    """Return the directory of a host, by its name as it is stored."""
    return store / f"host={_encoded(host)}"


def day_directory(store: Path, host: str, time: datetime.datetime) -> Path:
    """Return the directory of a day of a host; ``time`` is in UTC."""
    return host_directory(store, host) / f"day={time:%Y-%m-%d}"


def _encoded(name: str) -> str:
    # Only lone surrogates cannot be encoded, and printable() has escaped them.
    return quote(name, safe="")
