# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records of reports: numbers of summaries, findings and checks, and the largest rows of tables.

Rows are recorded of tables with :attr:`TableSpec.series`; of findings, severity and bytes; per
analysis, whether it failed, and its numbers of gaps and of differing checks; and of the machine,
the RAM by use.
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
from kcensus.render.plain import installed_version
from kcensus.reports import Report
from kcensus.results import MEMORY_USES, CheckStatus, Machine, Unit
from kcensus.results.largest import largest
from kcensus.store.ceilings import AVAILABLE, MACHINE
from kcensus.store.layout import ORDER, SCHEMA, UNNAMED, bounded_host, bounded_subject
from kcensus.text import printable

_VERSION = 2
"""Version of the metrics: raised when one is renamed or removed, or its meaning changes. The first
two were those of the JSON documents, whose third has the same metrics."""
_MAX_ROWS = 100
"""Largest rows of each table to record."""
_MAX_EXACT = 1 << 63
_EARLIEST = datetime.datetime(1970, 1, 2, tzinfo=datetime.timezone.utc).timestamp()
# pandas counts nanoseconds of 64 bits, which end in 2262. The time of recording would make the
# identity of a record depend on the clock of the machine that records it.
_LATEST = datetime.datetime(2200, 1, 1, tzinfo=datetime.timezone.utc).timestamp()


@dataclass(frozen=True)
class Record:
    """One report as rows of a store."""

    id: str
    host: str
    time: datetime.datetime
    """Time of the record, UTC."""
    has_time: bool
    """Whether it is the time of the dump, not of its recording."""
    rows: pa.Table
    """Rows of :data:`~kcensus.store.layout.SCHEMA`, in the order of :data:`ORDER`."""


class _Number(NamedTuple):
    analysis: str
    part: str
    subject: str
    metric: str
    unit: str
    value: float | None
    exact: int | None


def record(
    report: Report,
    wanted: Sequence[Analysis],
    now: float,
    *,
    is_saved: bool = False,
    name: str = "",
) -> Record:
    """Return the record of a report.

    It is identified by host, boot, time and kernel of the dump, version of the metrics, analyses,
    and which of them have a result. If the time is unknown, also by its numbers; and by ``now`` if
    the kernel ran, since equal numbers are then of another moment.

    :param wanted: the analyses; one without a result has failed
    :param now: seconds since 1970, the time of a record if the dump has none
    :param is_saved: whether the report is from a document, which never changes
    :param name: of the host, if the dump does not have the name of one
    """
    machine = report.head.machine or Machine()
    found = [number for analysis in wanted for number in _numbers(report, analysis)]
    found.sort(key=_order)
    time, uptime = _plausible(machine.time), _plausible(machine.uptime_seconds, 0)
    results = [each.name for each in wanted if each.name in report.results]
    host = bounded_host(printable(machine.host))
    if name and host in UNNAMED:
        host = bounded_host(printable(name))
    boot = printable(machine.boot) or _boot_time(time, uptime)
    names = [each.name for each in wanted]
    what: Any = [host, boot, time, machine.build_id, _VERSION, names, results]
    if time is None:
        what.append([tuple(each) for each in found])
        if report.head.live and not is_saved:
            what.append(now)
    identifier = hashlib.sha256(repr(what).encode("utf-8", "backslashreplace")).hexdigest()[:24]
    # Not a part of the identity, so that a dump of an older store is not recorded twice.
    found = sorted([*found, *_memory(machine)], key=_order)
    taken = datetime.datetime.fromtimestamp(now if time is None else time, datetime.timezone.utc)
    constants = {
        "host": host,
        "day": f"{taken:%Y-%m-%d}",
        "record": identifier,
        "time": taken,
        "clock": "recorder" if time is None else "machine",
        "boot": boot,
        "uptime_seconds": uptime,
        "ram_bytes": exact(machine.ram_bytes),
        "release": printable(machine.kernel or report.head.kernel),
        "build_id": printable(machine.build_id),
        "live": report.head.live,
        "kcensus": installed_version(),
        "schema": _VERSION,
    }
    columns = {name: [value] * len(found) for name, value in constants.items()}
    columns |= {name: [getattr(each, name) for each in found] for name in _Number._fields}
    return Record(identifier, host, taken, time is not None, pa.table(columns, SCHEMA))


def _numbers(report: Report, analysis: Analysis) -> Iterator[_Number]:
    def number(part: str, subject: str, metric: str, unit: Unit, value: Any) -> _Number:
        whole = exact(value)
        known = value if whole is None else whole
        is_finite = isinstance(known, numbers.Real) and math.isfinite(known)
        finite = float(known) if is_finite else None
        key = analysis.name, part, subject, printable(metric)
        return _Number(*key, unit.value, finite, whole)

    result = report.results.get(analysis.name)
    yield number("quality", "", "failed", Unit.COUNT, int(result is None))
    if result is None:
        return
    differ = sum(check.status is CheckStatus.DIFFER for check in result.checks)
    yield number("quality", "", "gaps", Unit.COUNT, len(result.gaps))
    yield number("quality", "", "checks_differ", Unit.COUNT, differ)
    for key, figure in result.summary.items():
        if isinstance(figure.value, (int, float)) or figure.value is None:
            yield number("summary", "", key, figure.unit, figure.value)
    for finding in result.findings:
        subject = bounded_subject(printable(finding.id))
        yield number("findings", subject, "severity", Unit.NONE, int(finding.severity))
        if finding.holds is not None:
            yield number("findings", subject, "holds_bytes", Unit.BYTES, finding.holds)
    for spec in analysis.tables():
        table = result.tables.get(spec.name) if spec.series else None
        if table is not None:
            found = largest(spec, table, _MAX_ROWS, lambda key: bounded_subject(": ".join(key)))
            for subject, values in found.rows:
                for metric, value in zip(found.metrics, values, strict=True):
                    yield number(spec.name, subject, metric, table.columns[metric].unit, value)


def _order(number: _Number) -> list[str]:
    return [getattr(number, name) for name in ORDER[:4]]


def _memory(machine: Machine) -> Iterator[_Number]:
    """Yield the RAM of a machine by use; nothing if a counter of the kernel is unknown."""
    ram, known = exact(machine.ram_bytes), {}
    for use in MEMORY_USES:
        if (size := exact(machine.memory.get(use))) is not None:
            known[use] = size
    if not ram or not known.keys() >= {*AVAILABLE}:
        return
    available = min(sum(known[use] for use in AVAILABLE), ram)
    for name, size in {**known, "available": available, "used": ram - available}.items():
        yield _Number(MACHINE, "summary", "", f"{name}_bytes", Unit.BYTES.value, float(size), size)


def exact(value: Any) -> int | None:
    """Return an integer of 64 bits; None for any other value."""
    is_exact = isinstance(value, (numbers.Integral, np.bool_))
    return int(value) if is_exact and -_MAX_EXACT <= int(value) < _MAX_EXACT else None


def _plausible(seconds: float | None, least: float = _EARLIEST) -> float | None:
    """Return the time of a dump; None if unknown or impossible."""
    return seconds if seconds is not None and least <= seconds < _LATEST else None


def _boot_time(time: float | None, uptime: float | None) -> str:
    """Return the minute of the boot, which identifies it if nothing better is known."""
    if time is None or uptime is None or _plausible(time - uptime) is None:
        return ""
    booted = datetime.datetime.fromtimestamp(time - uptime, datetime.timezone.utc)
    return f"{booted:%Y-%m-%dT%H:%MZ}"
