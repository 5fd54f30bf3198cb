# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records: what a store keeps of a report.

These are all numbers of its summaries; of tables that declare :attr:`TableSpec.series`, these
amounts of the largest rows; severity and bytes of each finding; and per analysis, whether it
failed, how many gaps it has and how many checks differ.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kcensus.analyses import Analysis
from kcensus.render.plain import SCHEMA as DOCUMENTS
from kcensus.render.plain import installed_version
from kcensus.reports import Report
from kcensus.results import CheckStatus, Machine, Result, Unit
from kcensus.results.largest import largest
from kcensus.results.tables import Table, TableSpec
from kcensus.store.layout import ORDER, SCHEMA, bounded_host, bounded_subject
from kcensus.text import printable

_MAX_ROWS = 100
"""Of each table; the largest."""
_MAX_EXACT = 1 << 63
_EARLIEST = datetime.datetime(1970, 1, 2, tzinfo=datetime.timezone.utc).timestamp()
# pandas counts nanoseconds of 64 bits, which end in 2262. Not the time of recording: it would make
# the identity of a record depend on the clock of the machine that records it.
_LATEST = datetime.datetime(2200, 1, 1, tzinfo=datetime.timezone.utc).timestamp()


@dataclass(frozen=True)
class Record:
    """One report as rows of a store."""

    id: str
    host: str
    time: datetime.datetime
    """UTC."""
    rows: pa.Table
    """Of :data:`~kcensus.store.layout.SCHEMA`, in the order of :data:`ORDER`."""


class _Number(NamedTuple):
    analysis: str
    part: str
    subject: str
    metric: str
    unit: str
    value: float | None
    exact: int | None


def record(
    report: Report, wanted: Sequence[Analysis], now: float, *, is_saved: bool = False
) -> Record:
    """Return what a store keeps of a report.

    A record is identified by host, boot, time and kernel of the dump, schema, analyses, and which
    of them have a result. Where the time is unknown, also by its numbers; and by ``now`` if the
    kernel ran, since equal numbers are then of another moment.

    :param wanted: the analyses that were asked for; one without a result has failed
    :param now: seconds since 1970, the time of a record whose dump has none
    :param is_saved: whether the report is from a document, which is the same whenever it is read
    """
    machine = report.head.machine or Machine()
    found = [number for analysis in wanted for number in _numbers(report, analysis)]
    found.sort(key=lambda each: [getattr(each, name) for name in ORDER[:4]])
    time, uptime = _plausible(machine.time), _plausible(machine.uptime_seconds, 0)
    results = [each.name for each in wanted if each.name in report.results]
    host = bounded_host(printable(machine.host))
    boot = printable(machine.boot) or _boot_time(time, uptime)
    names = [each.name for each in wanted]
    what: Any = [host, boot, time, machine.build_id, DOCUMENTS, names, results]
    if time is None:
        what.append([tuple(each) for each in found])
        if report.head.live and not is_saved:
            what.append(now)
    identifier = hashlib.sha256(repr(what).encode("utf-8", "backslashreplace")).hexdigest()[:24]
    taken = datetime.datetime.fromtimestamp(now if time is None else time, datetime.timezone.utc)
    constants = {
        "record": identifier,
        "time": taken,
        "clock": "recorder" if time is None else "machine",
        "boot": boot,
        "uptime_seconds": uptime,
        "ram_bytes": _exact(machine.ram_bytes),
        "release": printable(machine.kernel or report.head.kernel),
        "build_id": printable(machine.build_id),
        "live": report.head.live,
        "kcensus": installed_version(),
        "schema": DOCUMENTS,
    }
    columns = {name: [value] * len(found) for name, value in constants.items()}
    columns |= {name: [getattr(each, name) for each in found] for name in _Number._fields}
    return Record(identifier, host, taken, pa.table(columns, SCHEMA))


def _numbers(report: Report, analysis: Analysis) -> Iterator[_Number]:
    """Yield all numbers of one analysis."""
    result = report.results.get(analysis.name)
    quality = {"failed": int(result is None)}
    if result is not None:
        quality["gaps"] = len(result.gaps)
        quality["checks_differ"] = sum(
            check.status is CheckStatus.DIFFER for check in result.checks
        )
        yield from _summary(result)
        yield from _findings(result)
        specs = {spec.name: spec for spec in analysis.tables() if spec.series}
        for name, table in result.tables.items():
            if name in specs:
                yield from _series(analysis.name, specs[name], table)
    for metric, count in quality.items():
        yield _number(analysis.name, "quality", "", metric, Unit.COUNT, count)


def _summary(result: Result) -> Iterator[_Number]:
    for key, figure in result.summary.items():
        if isinstance(figure.value, (int, float)) or figure.value is None:
            yield _number(result.analysis, "summary", "", key, figure.unit, figure.value)


def _findings(result: Result) -> Iterator[_Number]:
    for finding in result.findings:
        subject = bounded_subject(printable(finding.id))
        severity = int(finding.severity)
        yield _number(result.analysis, "findings", subject, "severity", Unit.NONE, severity)
        if finding.holds is not None:
            yield _number(
                result.analysis, "findings", subject, "holds_bytes", Unit.BYTES, finding.holds
            )


def _series(analysis: str, spec: TableSpec, table: Table) -> Iterator[_Number]:
    """Yield the amounts of the largest rows of a table; those of the same name are added."""
    found = largest(spec, table, _MAX_ROWS, _subject)
    for subject, values in found.rows:
        for metric, value in zip(found.metrics, values, strict=True):
            yield _number(analysis, spec.name, subject, metric, table.columns[metric].unit, value)


def _subject(key: tuple[str, ...]) -> str:
    """Return the name of a row."""
    return bounded_subject(": ".join(key))


def _number(analysis: str, part: str, subject: str, metric: str, unit: Unit, value: Any) -> _Number:
    exact = _exact(value)
    number = _finite(exact if exact is not None else value)
    return _Number(analysis, part, subject, printable(metric), unit.value, number, exact)


def _exact(value: Any) -> int | None:
    """Return an integer of 64 bits; None for any other value."""
    if not isinstance(value, (numbers.Integral, np.bool_)):
        return None
    number = int(value)
    return number if -_MAX_EXACT <= number < _MAX_EXACT else None


def _finite(value: Any) -> float | None:
    """Return a finite number; None for any other value."""
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    return None


def _plausible(seconds: float | None, least: float = _EARLIEST) -> float | None:
    """Return the time of a dump; None where it is unknown, or memory says nonsense."""
    return seconds if seconds is not None and least <= seconds < _LATEST else None


def _boot_time(time: float | None, uptime: float | None) -> str:
    """Return the minute of the boot, which identifies it where nothing better is known."""
    if time is None or uptime is None or _plausible(time - uptime) is None:
        return ""
    booted = datetime.datetime.fromtimestamp(time - uptime, datetime.timezone.utc)
    return f"{booted:%Y-%m-%dT%H:%MZ}"
