# SPDX-License-Identifier: LGPL-2.1-or-later
"""Columns of the tables in the store of a fleet, and the rows of a report in them."""

from __future__ import annotations

import datetime
import math
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from kcensus.fleets.causes import features
from kcensus.reports import Report
from kcensus.results import Severity
from kcensus.store.records import exact
from kcensus.text import bounded, printable

VERSION = 1
"""Version of the tables: raised when a column is renamed or removed, or its meaning changes."""
_MAX_TEXT = 2000
_MAX_GAPS = 1000
DEBUGINFOD = "debuginfod"
"""Stands among paths of debug info where its servers were asked."""
_OF_EACH = {
    "day": (pa.string(), "Day of time, in UTC: 2026-01-31."),
    "attempt": (pa.string(), "Identifies the row of targets that this row belongs to."),
    "host": (pa.string(), "Host; a pseudonym in redacted capsules; with the boot if nameless."),
}
COLUMNS = {
    "targets": {
        **_OF_EACH,
        "target": (pa.string(), "Absolute path, or name of a bundled capsule."),
        "state": (
            pa.string(),
            "done, incomplete (an analysis failed), failed, duplicate, or gone (no file).",
        ),
        "step": (
            pa.string(),
            "Step that failed: content, open, types, analyse, time, killed, worker.",
        ),
        "error": (pa.string(), "First lines of the error."),
        "duplicate_of": (pa.string(), "Attempt with the same content; empty otherwise."),
        "time": (pa.timestamp("us", "UTC"), "Time of the dump, or of the run if unknown."),
        "boot": (pa.string(), "Identifies the boot."),
        "release": (pa.string(), "Release of the kernel."),
        "build_id": (pa.string(), "Build ID of the vmlinux."),
        "types": (pa.string(), "Sources of types: DWARF, type pack, BTF; totals only: none."),
        "tried": (pa.string(), "Sources of types that the dump lacks; unusable files of them."),
        "format": (pa.string(), "Format of the dump; empty if unknown."),
        "ram_bytes": (pa.int64(), "Memory of the machine; null if unknown."),
        "panic": (pa.string(), "Panic message; empty without a panic."),
        "record": (pa.string(), "Identifies the numbers in the table figures."),
        "sha256": (pa.string(), "Digest of the content."),
        "digest": (pa.string(), "whole, or sampled (of a large file)."),
        "size_bytes": (pa.int64(), "Size of the file."),
        "modified_ns": (pa.int64(), "Time of its last change, since 1970."),
        "started": (pa.timestamp("us", "UTC"), "Begin of the run."),
        "seconds": (pa.float64(), "Duration of the run of this target."),
        "cpu_seconds": (pa.float64(), "CPU time of its process."),
        "peak_bytes": (pa.int64(), "Most resident memory of its process."),
        "retries": (pa.int64(), "Attempts that ended with their worker."),
        "worker": (pa.string(), "Worker that ran it."),
        "kcensus": (pa.string(), "Version of kcensus."),
        "schema": (pa.int32(), "Version of these tables."),
        "analyses": (pa.string(), "Analyses that ran, separated by commas."),
        "memory_limit": (pa.int64(), "Most private memory of its process that was allowed."),
        "debug_info": (pa.string(), "Paths of -s, separated by colons; debuginfod if allowed."),
    },
    "findings": {
        **_OF_EACH,
        "analysis": (pa.string(), "Name of the analysis."),
        "finding": (pa.string(), "Identifier: kind, or kind:subject."),
        "kind": (pa.string(), "Kind of the finding."),
        "severity": (pa.string(), "info, notice, warning, critical."),
        "title": (pa.string(), "One sentence."),
        "holds_bytes": (pa.int64(), "Memory of the subject; null if it is not about memory."),
        "returns_bytes": (pa.int64(), "Memory that the best remedy gives back; null if none does."),
        "patch": (pa.string(), "Patch that fixes it, in the catalogue; empty if none does."),
        "part_of": (pa.string(), "Finding that explains this one; empty on the top level."),
    },
    "checks": {
        **_OF_EACH,
        "analysis": (pa.string(), "Name of the analysis."),
        "check": (pa.string(), "Name of the check."),
        "status": (pa.string(), "agree, differ, explained, absent."),
        "ours": (pa.int64(), "Our figure."),
        "counter": (pa.int64(), "The kernel's number."),
        "source": (pa.string(), "Place of the counter."),
    },
    "gaps": {
        **_OF_EACH,
        "analysis": (pa.string(), "Name of the analysis."),
        "what": (pa.string(), "Missing data."),
        "reason": (pa.string(), "Reason."),
        "count": (pa.int64(), "Number of missing parts."),
        "effect": (pa.string(), "Affected figures."),
    },
    "patches": {
        **_OF_EACH,
        "release": (pa.string(), "Release of the kernel."),
        "patch": (pa.string(), "Identifier in the catalogue."),
        "kind": (pa.string(), "Kind of the patch."),
        "state": (pa.string(), "present, absent, partial, not applicable, undetermined."),
        "cost_bytes": (
            pa.float64(),
            "Memory that its absence costs here; negative if the patch would take more than it "
            "returns, null if unknown.",
        ),
        "cost_seconds": (pa.float64(), "Longest wait that its absence costs; null if unknown."),
    },
    "features": {
        **_OF_EACH,
        "kind": (pa.string(), "deadlock, panic, finding, awaited, stack, or patch."),
        "feature": (pa.string(), "What targets of one cause have in common."),
        "weight": (pa.float64(), "Weight in the comparison of targets."),
        "tasks": (pa.int64(), "Number of tasks; null if it is not about tasks."),
    },
}
"""Type and meaning of each column, by table and name."""
SCHEMAS = {
    table: pa.schema([(name, kind) for name, (kind, _) in columns.items()])
    for table, columns in COLUMNS.items()
}


def report_rows(report: Report, common: Mapping[str, str]) -> dict[str, pa.Table]:
    """Return the rows of a report by table, other than ``targets``.

    :param common: day, attempt and host
    """
    patches = report.results.get("patches")
    rows: dict[str, Iterable[Mapping[str, Any]]] = {
        "findings": (
            {
                "analysis": name,
                "finding": each.id,
                "kind": each.kind,
                "severity": each.severity.name.lower(),
                "title": each.title,
                "holds_bytes": each.holds,
                "returns_bytes": each.returns,
                "patch": each.patch,
                "part_of": each.part_of,
            }
            for name, each in report.findings
        ),
        "checks": (
            {
                "analysis": name,
                "check": each.name,
                "status": each.status.value,
                "ours": each.ours,
                "counter": each.counter,
                "source": each.source,
            }
            for name, result in report.results.items()
            for each in result.checks
        ),
        "gaps": (
            {
                "analysis": name,
                "what": each.what,
                "reason": each.reason,
                "count": each.count,
                "effect": each.effect,
            }
            for name, result in report.results.items()
            for each in result.gaps[:_MAX_GAPS]
        ),
        "patches": (
            {"release": report.head.kernel, **{str(key): value for key, value in row.items()}}
            for row in (
                patches.tables["patches"]
                .frame[["patch", "kind", "state", "cost_bytes", "cost_seconds"]]
                .to_dict("records")
                if patches
                else ()
            )
        ),
        "features": (each._asdict() for each in features(report)),
    }
    return {table: arrow(table, found, common) for table, found in rows.items()}


def arrow(table: str, rows: Iterable[Mapping[str, Any]], common: Mapping[str, Any]) -> pa.Table:
    """Return rows as an Arrow table of :data:`SCHEMAS`.

    Texts are printable and bounded; a number that its column cannot hold is null.
    """
    plain = [{**common, **row} for row in rows]
    return pa.table(
        {
            name: pa.array([_value(row.get(name), kind) for row in plain], kind)
            for name, (kind, _) in COLUMNS[table].items()
        }
    )


def of_gone(paths: Iterable[str], version: str) -> pa.Table:
    """Return rows of ``targets`` for paths that have no file any more."""
    now = utc(time.time())
    common = {
        "state": "gone", "started": now, "time": now, "day": f"{now:%Y-%m-%d}",
        "kcensus": version, "schema": VERSION,
    }  # fmt: skip
    return arrow(
        "targets", [{"attempt": uuid.uuid4().hex, "target": path} for path in paths], common
    )


def _value(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return stored(str(value)) if value is not None else ""
    if pa.types.is_integer(kind):
        return exact(value)
    return _float(value) if pa.types.is_floating(kind) else value


def _float(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, OverflowError):  # None, NA of pandas; a huge integer
        return None
    return None if math.isnan(number) else number


def stored(name: str) -> str:
    """Return a text as it stands in the tables: printable, and bounded."""
    return bounded(printable(name), _MAX_TEXT)


def utc(seconds: float) -> datetime.datetime:
    """Return a time in UTC, from seconds since 1970."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def rank(severity: str) -> int:
    """Return the order of a severity."""
    return int(Severity[severity.upper()])
