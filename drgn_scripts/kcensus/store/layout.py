# SPDX-License-Identifier: LGPL-2.1-or-later
"""Columns of a store, whose rows are single numbers of records, and the names in them."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from kcensus import samples
from kcensus.text import bounded

LOG = samples.LOG
"""Directory in a store with the log, which lists the files with rows."""
UNKNOWN_HOST = "(unknown)"
UNNAMED = (UNKNOWN_HOST, "(none)", "localhost")
"""Names of several machines."""

_MAX_HOST = 200
"""Most bytes of an encoded name; file systems take 255, with ``host=``."""
_MAX_SUBJECT = 512

COLUMNS = {
    "host": (pa.string(), "Name of the host; a pseudonym in redacted capsules."),
    "day": (pa.string(), "Day of time, in UTC: 2026-01-31."),
    "record": (pa.string(), "Identifies the record: equal for the same dump and analyses."),
    "time": (pa.timestamp("us", "UTC"), "Time of the dump, by the machine's clock."),
    "clock": (pa.string(), "machine; recorder: the time of recording, as the dump has none."),
    "boot": (pa.string(), "Identifies the boot; changes with each start of the kernel."),
    "uptime_seconds": (pa.float64(), "Time since the boot; null if unknown."),
    "ram_bytes": (pa.int64(), "RAM of the machine; null if unknown."),
    "release": (pa.string(), "Release of the kernel."),
    "build_id": (pa.string(), "Build ID of the vmlinux; empty if unknown."),
    "live": (pa.bool_(), "Whether the kernel ran while it was read."),
    "kcensus": (pa.string(), "Version of kcensus that recorded it."),
    "schema": (pa.int32(), "Version of the metrics."),
    "analysis": (pa.string(), "Name of the analysis."),
    "part": (pa.string(), "summary, findings, quality, or the name of a table."),
    "subject": (pa.string(), "Row of the table, such as a slab cache; empty in a summary."),
    "metric": (pa.string(), "Key of the summary, or column of the table."),
    "unit": (pa.string(), "bytes, count, pages, ratio, seconds, or empty."),
    "value": (pa.float64(), "The number; null if it is unknown."),
    "exact": (pa.int64(), "The number where it is an integer of 64 bits; null otherwise."),
}
"""Type and meaning of each column, by name."""
PARTITIONS = ("host", "day")
"""Columns that exist in the names of directories only."""
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ORDER = ("analysis", "metric", "subject", "part", "time")
"""Sort keys of the rows of a record: equal texts are neighbours and compress."""


FIGURES = "figures"
"""Directory in the store of a fleet that is a store of ``kcensus record``."""


def located(store: Path) -> Path:
    """Return the directory of a store; a bundled one, unless a file has its name.

    In the store of a fleet, it is that of the figures.
    """
    if not (store / LOG).is_dir() and (store / FIGURES / LOG).is_dir():
        return store / FIGURES
    bundled = samples.DIRECTORY / store
    is_bundled = store.parent == Path() and not os.path.lexists(store)
    return bundled if is_bundled and os.path.isdir(bundled / LOG) else store


def bounded_subject(name: str) -> str:
    """Return the name of a row as stored."""
    return bounded(name, _MAX_SUBJECT)


def bounded_host(name: str) -> str:
    """Return the name of a host as stored, short enough for a directory.

    :param name: printable, so without the lone surrogates that :func:`quote` rejects
    """
    length = len(name)
    while len(quote(bounded(name, length), safe="")) > _MAX_HOST:
        length = length * 3 // 4
    return bounded(name, length) or UNKNOWN_HOST
