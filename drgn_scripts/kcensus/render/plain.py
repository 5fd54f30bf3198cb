# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as tables of plain Python values.

JSON, CSV and Parquet share this, so that they hold the same values under the same names.
"""

from __future__ import annotations

import enum
import functools
import importlib.metadata
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcensus import results
from kcensus.human import human, shown_time
from kcensus.results.tables import Column, Show, Table
from kcensus.text import printable

if TYPE_CHECKING:
    import pandas as pd

    from kcensus.reports import Report

SCHEMA = 3
"""Version of the documents: raised when a key is renamed or removed, or its meaning changes."""

_PANIC = "kcensus does not analyse panics: use crash `log` and `bt`, or drgn"
_USUAL_TYPES = ("", "DWARF")
_PSEUDONYMS = "names are pseudonyms (redacted capsule)"
Plain = int | float | str | bool | None

_ROWS_AT_ONCE = 1 << 16
NO_HOST = "(none)"
"""Name of a host that was never set."""
_LEAST_USE = 0.02
"""Least share of RAM of a use of memory to name."""
_PRESSURES = {
    "memory": ("memory", "memory_some", 0.1),
    "io": ("I/O", "io_full", 0.1),
    "cpu": ("a CPU", "cpu_some", 0.5),
}
"""Label of each resource, the share of time that decides, and the least one to name: with one task
that reads all the time, ``io_some`` is 100 %."""
_AMOUNTS = (results.Unit.BYTES, results.Unit.COUNT, results.Unit.PAGES, results.Unit.SECONDS)
"""Units of numbers whose 0 means absence."""

_COMPARED, _SIZES = ("ours", "counter", "moved", "difference"), ("holds_bytes", "returns_bytes")
_TEXTS = ("severity", "danger", "title", "evidence")
_PATCH = ("patch", "patch_status", "patch_is_fix", "patch_packages")
_PARTS = {
    "checks": ("name", *_COMPARED, "status", "unit", "source", "note"),
    "findings": ("id", *_TEXTS, *_SIZES, "part_of", *_PATCH, "remedies"),
    "gaps": ("what", "reason", "count", "effect"),
}
"""Attributes of checks, findings and gaps, in the order of their columns."""
_REMEDY = ("effect", "command", "risk", "undo", "until", "returns_bytes", "is_upper_bound")
_FINDING_PARTS = {
    "finding_figures": ("finding", "figure", "value", "unit"),
    "finding_memory": ("finding", "place", "bytes"),
    "remedies": ("finding", *_REMEDY),
}
"""Columns of the tables of findings' parts, with the id of the finding."""
_UNITS = {
    **dict.fromkeys((*_COMPARED, "patch_is_fix", "is_upper_bound", "value"), results.Unit.NONE),
    **dict.fromkeys((*_SIZES, "bytes"), results.Unit.BYTES),
    "count": results.Unit.COUNT,
}
"""Units of the columns that are not text."""
_NO_IDENTIFIER = -1
"""Figure without a unit that stands for no identifier, such as the highest id of none."""


def plain(value: Any) -> Plain:
    """Return a value for JSON.

    None, NaN, NaT, NA and infinities become None, severities their lower-case names, other enums
    their values; text is escaped by :func:`~kcensus.text.printable`.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, bytes)):
        return printable(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, enum.Enum):
        return value.name.lower() if isinstance(value, results.Severity) else plain(value.value)
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "item"):  # a NumPy scalar
        return plain(value.item())
    text = str(value)  # dates and the like
    return None if text in ("NaT", "<NA>") else printable(text)


def plain_column(series: pd.Series[Any]) -> list[Plain]:
    """Return all values of a column, each converted by :func:`plain`."""
    if series.dtype.kind in "mM":
        return [plain(value) for value in series]
    values = series.tolist()
    if series.dtype.kind in "iub" and not series.hasnans:
        return values
    # A million rows have a few thousand different names.
    text = functools.cache(printable)
    return [text(value) if isinstance(value, str) else plain(value) for value in values]


def shown_column(series: pd.Series[Any], column: Column) -> list[Plain]:
    """Return all values of a column for a screen: None for unknown ones."""
    values = plain_column(series)
    return [None if value in column.unknown else value for value in values]


def is_shown(column: Column, values: Iterable[Plain]) -> bool:
    """Return whether a screen has a column: not one for data, nor an optional one of blanks."""
    has_values = any(value is not None and value != "" for value in values)
    return column.show is Show.ALWAYS or (column.show is Show.WIDE and has_values)


def rows(table: Table) -> Iterator[tuple[Plain, ...]]:
    """Yield the rows of a table, converted in chunks: a result may have millions.

    Addresses are hexadecimal strings: spreadsheets, jq 1.6 and JavaScript round such numbers.
    """
    frame = table.frame
    for start in range(0, len(frame), _ROWS_AT_ONCE):
        part = frame.iloc[start : start + _ROWS_AT_ONCE]
        columns = (plain_column(part[name]) for name in frame.columns)
        units = (table.columns[name].unit for name in frame.columns)
        yield from zip(*map(_in_unit, columns, units), strict=True)


def value_of(figure: results.Figure | results.Gauge) -> Plain:
    """Return the value of a figure: an address is a hexadecimal string."""
    return _in_unit([plain(figure.value)], figure.unit)[0]


def _in_unit(values: Sequence[Plain], unit: results.Unit) -> Sequence[Plain]:
    if unit is not results.Unit.ADDRESS:
        return values
    return [f"{value:#x}" if type(value) is int else value for value in values]


@functools.cache
def installed_version(package: str = "kcensus") -> str:
    """Return the version of kcensus, or of a library; ``unknown`` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def identity(result: results.Result) -> dict[str, Plain]:
    """Return the fields that identify a result."""
    return {
        "analysis": printable(result.analysis),
        "target": printable(result.target),
        "kernel": printable(result.kernel),
        "live": result.live,
    }


def origin(result: results.Result) -> dict[str, Plain]:
    """Return the fields of every result in CSV and Parquet: identity, machine, versions."""
    machine = machine_document(result.machine) or {}
    parts = {name: machine.pop(name, {}) for name in ("memory", "pressure", "load")}
    return {
        **identity(result),
        **{f"machine_{name}": value for name, value in machine.items()},
        **{f"machine_{part}_{key}": each for part in parts for key, each in parts[part].items()},
        "kcensus": installed_version(),
        "schema": SCHEMA,
    }


def label(key: str, words: str) -> str:
    """Return the words for a screen, or the words of the key without any."""
    return printable(words or key.replace("_", " "))


def shown_figure(key: str, figure: results.Figure) -> tuple[str, str]:
    """Return the label and the value of a figure for a screen."""
    value = plain(figure.value)
    if figure.unit is results.Unit.NONE and value == _NO_IDENTIFIER:
        value = None
    if figure.bound is results.Bound.AT_LEAST and value == 0:
        return label(key, figure.label), "none found"
    bound = "" if value is None or figure.bound is results.Bound.EXACT else f"{figure.bound.value} "
    return label(key, figure.label), bound + human(value, figure.unit)


def finding_document(finding: results.Finding) -> dict[str, Any]:
    """Return a finding for JSON: with its figures, its memory and its remedies as data."""
    fields: dict[str, Any] = {name: plain(_attribute(finding, name)) for name in _PARTS["findings"]}
    if not fields["patch_packages"]:
        del fields["patch_packages"]
    fields["figures"] = {
        printable(key): {"value": value_of(figure), "unit": figure.unit.value}
        for key, figure in finding.figures.items()
    }
    fields["memory"] = {printable(place): size for place, size in finding.memory.items()}
    if finding.users:
        fields["users"] = {printable(place): printable(of) for place, of in finding.users.items()}
    fields["remedies"] = [
        {
            "command": [printable(line) for line in remedy.command.splitlines()],
            **{name: plain(_attribute(remedy, name)) for name in _REMEDY if name != "command"},
        }
        for remedy in finding.remedies
    ]
    fields["no_remedy"] = plain(finding.no_remedy)
    fields["evidence"] = plain(finding.evidence)
    fields["story"] = [printable(line) for line in finding.story]
    return fields


def machine_document(machine: results.Machine | None) -> dict[str, Any] | None:
    """Return the machine of a result for JSON, with null for unknown values."""
    if machine is None:
        return None
    fields: dict[str, Any] = {
        name: {printable(key): plain(each) for key, each in value.items()}
        if isinstance(value, Mapping)
        else plain(value)
        for name, value in vars(machine).items()
    }
    if machine.time is not None:
        fields["time"] = shown_time(machine.time)
    return {name: None if value == "" else value for name, value in fields.items()}


def machine_facts(result: results.Result) -> list[tuple[str, str]]:
    """Return the subject of a result as labelled lines: the machine, its kernel, the dump."""
    if result.compared:
        sides = zip(("Before", "After"), result.compared, strict=True)
        return [
            *(
                (side, "; ".join(text for name, text in machine_facts(one) if name != "kcensus"))
                for side, each in sides
                for one in [replace(result, machine=each, compared=())]
            ),
            ("kcensus", f"{installed_version()}, JSON schema {SCHEMA}"),
        ]
    machine = result.machine or results.Machine()
    kernel = machine.kernel or result.kernel
    page = machine.page_size_bytes
    sizes = (
        ("", "" if machine.host == NO_HOST else machine.host),
        ("", machine.architecture),
        (" KiB pages", page and f"{page / 1024:g}"),
        (" RAM", machine.ram_bytes and human(machine.ram_bytes, results.Unit.BYTES)),
        (" CPU" if machine.cpus == 1 else " CPUs", machine.cpus),
        (" NUMA node" if machine.nodes == 1 else " NUMA nodes", machine.nodes),
    )
    uptime = machine.uptime_seconds
    taken = shown_time(machine.time) if machine.time is not None else None
    lines = {
        "Machine": [f"{value}{unit}" for unit, value in sizes if value]
        + ([] if uptime is None else [f"up {human(uptime, results.Unit.SECONDS)}"])
        + _load_facts(machine),
        "Memory": memory_facts(machine),
        "Pressure": _pressure_facts(machine),
        "Kernel": [
            f"Linux {kernel} {machine.version}".rstrip() if kernel else "",
            f"build ID {machine.build_id}" if machine.build_id else "",
            f"types from {machine.types}" if machine.types not in _USUAL_TYPES else "",
        ],
        ("Live" if result.live else "Dump"): [
            taken.replace("T", " ").replace("+00:00", " UTC") if taken else "",
            "figures changed while they were read" if result.live else machine.taken_by,
        ],
        "Panic": [_PANIC * machine.is_panic],
        "Names": [_PSEUDONYMS * machine.has_pseudonyms],
        "Records": [result.provenance],
        "Times": [result.counted],
        "kcensus": [installed_version(), f"JSON schema {SCHEMA}"] if result.machine else [],
    }
    shown = {name: ", ".join(map(printable, filter(None, facts))) for name, facts in lines.items()}
    return [(name, facts) for name, facts in shown.items() if facts]


def memory_facts(machine: results.Machine) -> list[str]:
    """Return the main uses of RAM, the largest first."""
    least = (machine.ram_bytes or 0) * _LEAST_USE
    uses = sorted(machine.memory.items(), key=lambda use: -use[1])
    return [
        f"{human(size, results.Unit.BYTES)} {results.MEMORY_USES.get(name, name)}"
        for name, size in uses
        if size >= least
    ]


def _load_facts(machine: results.Machine) -> list[str]:
    loads = " ".join(f"{each:.2f}" for each in machine.load.values())
    return [f"load {loads}"] if loads else []


def _pressure_facts(machine: results.Machine) -> list[str]:
    """Return the resources that tasks were stalled for, where that is more than usual."""
    known = {key: human(each, results.Unit.RATIO) for key, each in machine.pressure.items()}
    return [
        f"some task lacked {label} {known.get(f'{name}_some', '?')} of the last 10 s"
        + (f" (all tasks {known[f'{name}_full']})" if f"{name}_full" in known else "")
        for name, (label, deciding, least) in _PRESSURES.items()
        if machine.pressure.get(deciding, 0.0) >= least
    ]


def remarks(check: results.Check) -> list[str]:
    """Return the note of a check, and the drift of its counter."""
    return [words for words in (check.note, _drift(check)) if words]


def _drift(check: results.Check) -> str:
    """Return the drift of a counter while a running kernel was read; empty without one."""
    if not check.moved:
        return ""
    sign = "+" if check.moved > 0 else ""
    moved = f"the counter moved by {sign}{human(check.moved, check.unit)} while it was read"
    if check.status is not results.CheckStatus.DIFFER:
        return moved
    size, side = human(abs(check.beyond), check.unit), "above" if check.beyond > 0 else "below"
    return f"{moved}; our count is {size} {side} all of its values"


def has_content(table: Table) -> bool:
    """Return whether a table says anything: it has rows, and not all of its amounts are 0.

    Columns of amounts that some rows lack are a remark; the rows are the content.
    """
    amounts = [
        table.frame[name]
        for name, column in table.columns.items()
        if column.unit in _AMOUNTS and table.frame[name].dtype.kind in "iufb"
    ]
    known = [amount for amount in amounts if not amount.isna().any()]
    return len(table.frame) > 0 and (not known or any(bool(each.any()) for each in amounts))


def is_zero(figure: results.Figure) -> bool:
    """Return whether a figure is certainly an amount of nothing."""
    is_exact = figure.bound is results.Bound.EXACT
    return is_exact and figure.unit in _AMOUNTS and plain(figure.value) == 0


def gap_subject(what: str, count: int) -> str:
    """Return the subject of a gap, with its count; a count of one is left out before a plural."""
    return what if count == 1 else f"{count:,} {what}"


def remedy_facts(remedy: results.Remedy, holds: int | None) -> dict[str, str]:
    """Return the effect of a remedy in bytes, its risk, and the end of the effect, by their names.

    :param holds: bytes of its finding; None if it is not about memory
    """
    returns = "nothing at once" if holds else ""
    if remedy.returns:
        at_most = "up to " if remedy.is_upper_bound else ""
        returns = at_most + human(remedy.returns, results.Unit.BYTES)
    facts = {"Returns": returns, "Risk": remedy.risk, "Until": remedy.until}
    return {name: printable(fact) for name, fact in facts.items() if fact}


_VERDICTS = {"patch-confirmed", "patch-contradicted", "patch-inconclusive"}
"""Kinds of findings about a patch, which fixes nothing in them."""


def patch_text(finding: results.Finding) -> str:
    """Return the patch of a finding and its fate; empty without one."""
    if not finding.patch:
        return ""
    status = finding.patch_status or "not in the catalogue"
    if not finding.patch_is_fix:
        return printable(f"Proposed: {finding.patch} ({status})")
    about = "; ".join(filter(None, (status, finding.patch_packages)))
    is_judged = finding.kind in _VERDICTS
    return printable(f"{'Patch' if is_judged else 'Fixed by'}: {finding.patch} ({about})")


def remedy_text(finding: results.Finding) -> str:
    """Return all remedies of a finding, or the reason why there is none, as sentences."""
    sentences = []
    for remedy in finding.remedies:
        command = " && ".join(remedy.command.splitlines())
        sentences.append(f"Run `{command}`: {remedy.effect}" if command else remedy.effect)
        facts = remedy_facts(remedy, finding.holds)
        sentences += [f"{name}: {fact}" for name, fact in facts.items()]
        sentences.append(f"Undo: `{printable(remedy.undo)}`" if remedy.undo else "")
    sentences.append(finding.no_remedy)
    return " ".join(f"{sentence.rstrip('.')}." for sentence in sentences if sentence)


def _attribute(item: Any, name: str) -> Any:
    if name == "command":
        # printable() would escape the line breaks.
        return "; ".join(item.command.splitlines())
    if name == "remedies":
        return remedy_text(item)
    if name == "evidence":
        return "; ".join(part for part in (item.evidence, *item.story) if part)
    return getattr(item, name.removesuffix("_bytes"))


def tables(result: results.Result) -> dict[str, Table]:
    """Return the tables of a result by name, then its checks, findings and gaps as tables.

    :raises ValueError: a table has a name that is reserved, or not usable as a file name and key
    """
    for name in result.tables:
        reserved = name in ("summary", *_PARTS, *_FINDING_PARTS)
        if reserved or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"{name!r} cannot name a table")
    every = dict(result.tables)
    for part, names in _PARTS.items():
        values = [[_attribute(item, name) for name in names] for item in getattr(result, part)]
        every[part] = _table(names, values)
    return every


def directories(
    subject: results.Result | Report, directory: Path
) -> Iterator[tuple[Path, results.Result, dict[str, Table]]]:
    """Yield the directory of a result with its tables.

    A report has a directory with all findings, and in it one for each result. A result that
    measures nothing has checks, gaps, findings and their parts only where there are some.
    """
    if isinstance(subject, results.Result):
        every = tables(subject) | _finding_tables(subject)
        yield (
            directory,
            subject,
            {
                name: table
                for name, table in every.items()
                if subject.measures or name in subject.tables or len(table.frame)
            },
        )
        return
    whole = replace(subject.head, findings=[finding for _, finding in subject.findings])
    yield directory, whole, {"findings": tables(whole)["findings"], **_finding_tables(whole)}
    for name, result in subject.results.items():
        yield from directories(result, directory / name)


def _finding_tables(result: results.Result) -> dict[str, Table]:
    """Return the nested parts of findings as tables: their figures, memory and remedies."""
    values: dict[str, list[list[Any]]] = {part: [] for part in _FINDING_PARTS}
    for finding in result.findings:
        for key, figure in finding.figures.items():
            values["finding_figures"].append([finding.id, key, figure.value, figure.unit])
        for place, size in finding.memory.items():
            values["finding_memory"].append([finding.id, place, size])
        for remedy in finding.remedies:
            values["remedies"].append([finding.id, *(_attribute(remedy, name) for name in _REMEDY)])
    return {part: _table(names, values[part]) for part, names in _FINDING_PARTS.items()}


def _table(names: Sequence[str], values: Sequence[Sequence[Any]]) -> Table:
    import pandas as pd

    # dtype=object: a missing counter must not turn its neighbours into floats.
    frame = pd.DataFrame(values, columns=pd.Index(names), dtype=object)
    return Table(frame, {name: Column(_UNITS.get(name, results.Unit.TEXT)) for name in names})
