# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare two reports: growth, figure by figure and row by row.

Rows are matched by name: by the fewest leading text columns that are unique in both tables, without
addresses and numbers of anonymous devices. The largest changes come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kcensus.explain import explanation
from kcensus.human import human, human_bytes, human_seconds, shown_time
from kcensus.render.plain import Plain, plain, plain_column
from kcensus.reports import Report, incomplete
from kcensus.results import Bound, Figure, Finding, Gap, Machine, Result, Severity, Unit, fold
from kcensus.results.severity import severity_of
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    DATA,
    NONE,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    Show,
    Table,
    TableSpec,
    make_tables,
)
from kcensus.text import printable

_AMOUNTS = (Unit.BYTES, Unit.PAGES, Unit.COUNT)
"""Units of columns that can rank rows, the preferred one first."""
_NUMBERS = (*_AMOUNTS, Unit.SECONDS, Unit.RATIO)
_OCCURRENCE = "occurrence"
_UNLIMITED = {(1 << bits) - 1 for bits in (31, 32, 63, 64)}
"""The largest values of integer types."""
_CACHES = "slab_caches"
FIRST_TABLES = ("targets", "figures", _CACHES, "slab_memcgs", "dentries_directories")
"""Tables shown first."""
_OWN_TABLES = ("targets", "figures")
_NOT_COMPARED = ("log_events", "projection", "prices")
"""Tables of other data than memory contents."""
_REMEDIES = "Show the remedies for this memory: `kcensus report AFTER`"
_MAX_DETAILS = 5
_NOT_MEMORY = ("grew:kcopyd_snapshots:", "grew:iosched_")
"""Beginnings of the ids of rows with bytes on disks, or on their way there."""
"""Rows of tables other than slab caches to name as findings."""
_ANONYMOUS = re.compile(r"0:\d+|0x[0-9a-f]+")
"""Numbers of devices without a driver, and addresses: they differ after each mount or boot."""
_SAME_RAM = 1.1
"""Most RAM of one machine with two kernels, relative to its least."""
_OWN = ("state", "before", "after", "change")
"""Columns of a comparison; a compared column of that name is shown as ``name_state``."""


def _unlike(before: Machine | None, after: Machine | None) -> Iterator[Finding]:
    """Yield the findings that the order, or the machines, are not what a comparison is about."""
    if before is None or after is None:
        return
    if before.time is not None and after.time is not None and after.time < before.time:
        age = before.time - after.time
        yield Finding(
            id="targets-swapped",
            severity=Severity.NOTICE,
            title=f"the target after is {human_seconds(age)} older than the one before: growth may "
            "have been shrinkage",
            figures={"seconds": Figure(age, Unit.SECONDS)},
            no_remedy="Give the older target first",
        )
    sizes = [each.ram_bytes or 0 for each in (before, after)]
    # Two kernels on one machine leave it slightly different amounts.
    if min(sizes) and max(sizes) > _SAME_RAM * min(sizes):
        first, second = map(human_bytes, sizes)
        yield Finding(
            id="machines-differ",
            severity=Severity.INFO,
            title=f"the machines differ: {first} of RAM before, {second} after",
            figures={
                key: Figure(size, Unit.BYTES)
                for key, size in zip(("before", "after"), sizes, strict=True)
            },
            no_remedy="Compare two dumps of one machine to see growth",
        )


def compare(before: Report, after: Report) -> Result:
    """Return the differences between two reports as one result, with growth as findings."""
    pairs = [
        (older, newer)
        for name, older in before.results.items()
        if (newer := after.results.get(name))
    ]
    sides = (before, after)
    names = [side.head.target for side in sides]
    kernels = ", then ".join(dict.fromkeys(side.head.kernel for side in sides))
    target = f"{names[0]} (before) and {names[1]} (after)"
    made = Result("diff", target, kernels, measures=False)
    made.compared = tuple(side.head.machine or Machine() for side in sides)
    if (words := after.head.placeholders.get("TARGET")) is not None:
        made.placeholders = {"AFTER": words}
    made.live = before.head.live or after.head.live
    heads = [side.head for side in sides]
    made.tables = make_tables((_TARGETS, _FIGURES), {"heads": heads, "pairs": pairs})
    changed = len(made.tables["figures"].frame)
    for older, newer in pairs:
        for name, table in older.tables.items():
            other = newer.tables.get(name)
            compared = None if other is None or name in _NOT_COMPARED else (table, other)
            changes = compare_tables(*compared) if compared else None
            if changes is not None and len(changes.frame):
                changes.title = f"{older.analysis}: {changes.title}"
                made.tables[_name(older.analysis, name)] = changes
    rows = sum(len(table.frame) for name, table in made.tables.items() if name not in _OWN_TABLES)
    growth = _growth(sides, made.tables)
    made.summary |= {
        "grown_bytes": _grown(growth),
        "figures_changed": Figure(changed, label="figures that changed"),
        "rows_changed": Figure(rows, label="table rows that changed"),
    }
    made.findings = [*_incomplete(sides), *growth]
    if sides[0].head.kernel != sides[1].head.kernel:
        title = f"the kernels differ: {sides[0].head.kernel} before, {sides[1].head.kernel} after"
        differ = Finding(
            id="kernels-differ",
            severity=Severity.INFO,
            title=title,
            no_remedy="Judge a single patch with two dumps of one workload: `kcensus validate`",
        )
        made.findings.append(differ)
    made.findings += _unlike(*(side.head.machine for side in sides))
    made.gaps = [
        Gap(f"{gap.what} in {name}", gap.reason, gap.count, gap.effect)
        for side, name in enumerate(names)
        for pair in pairs
        for gap in pair[side].gaps
    ]
    return made


def _incomplete(sides: Sequence[Report]) -> Iterator[Finding]:
    failed = [
        (name, f"{name} on {side.head.target}: {why}")
        for side in sides
        for name, why in side.errors.items()
    ]
    if failed:
        doctors = [side.doctor for side in sides if side.errors]
        yield from incomplete("diff", "comparison", failed, doctors)


def _growth(sides: Sequence[Report], tables: Mapping[str, Table]) -> list[Finding]:
    """Return growth as findings, the largest first; no byte is in two findings of the top level.

    Slab caches tell the amount; findings of both sides about the same memory tell the cause, so the
    caches are part of them. Rows of other tables are named without memory of their own.
    """
    ram = sides[1].head.machine.ram_bytes if sides[1].head.machine else None
    older = {finding.id: finding for _, finding in sides[0].findings}
    grown = []
    for name, finding in sides[1].findings:
        if name not in sides[0].results:
            continue  # the memory before is unknown
        was = older[finding.id].memory if finding.id in older else {}
        memory = _net_growth(was, finding.memory)
        severity = severity_of(sum(memory.values()), ram)
        if severity is not None and not finding.is_generic and not finding.part_of:
            known = explanation(finding.id)
            subject = f"memory of {known.subject}" if known and known.subject else finding.id
            made = _grew(finding.id, subject, severity, sum(was.values()), memory)
            if finding.id not in older:
                # Its memory before may have been too small for a finding.
                holds = human(finding.holds or 0, Unit.BYTES)
                made = replace(made, title=f"new finding {finding.id}, which holds {holds}")
            grown.append(replace(made, evidence=finding.title, no_remedy=_REMEDIES))
    for row in _largest(tables, _CACHES):
        severity = severity_of(row.change, ram)
        if severity is not None:
            memory = {f"slab:{row.name}": row.change}
            subject = f"slab cache {row.name}"
            made = _grew(f"slab:{row.name}", subject, severity, row.before, memory)
            table = "kmalloc" if row.name.startswith("kmalloc-") else "caches"
            grown.append(replace(made, is_generic=True, no_remedy=_shown("slab", table)))
    details = [
        Finding(
            id=f"grew:{name}:{row.name}",
            severity=Severity.INFO,
            title=f'{row.words} in table "{tables[name].title}" grew by '
            f"{human(row.change, Unit.BYTES)}",
            figures=_figures_of(row.before, row.change),
            no_remedy=_shown(analysis, part),
        )
        for analysis, result in sides[1].results.items()
        for part in result.tables
        if (name := _name(analysis, part)) in tables
        and "cache" not in tables[name].columns  # slab caches have them already
        for row in _largest(tables, name)[:1]
        if severity_of(row.change, ram) is not None
    ]
    details.sort(key=lambda each: -int(each.figures["change"].value or 0))
    folded = [replace(each, no_remedy="") if each.part_of else each for each in fold(grown, ram)]
    return [*folded, *details[:_MAX_DETAILS]]


def _grown(growth: Sequence[Finding]) -> Figure:
    """Return the bytes of the findings; at least those of a row, which may be in one of them."""
    held = sum(each.holds or 0 for each in growth if not each.part_of)
    rows = (
        int(each.figures["change"].value or 0)
        for each in growth
        if not each.memory and not each.id.startswith(_NOT_MEMORY)
    )
    row = max(rows, default=0)
    bound = Bound.AT_LEAST if row > held else Bound.EXACT
    return Figure(max(held, row), Unit.BYTES, "memory that grew", bound)


def _shown(analysis: str, table: str) -> str:
    return f"Show the rows of the later target: `kcensus {analysis} AFTER --table {table}`"


def _name(analysis: str, table: str) -> str:
    """Return the name of a comparison of tables."""
    return f"{analysis.replace('-', '_')}_{table}"


def _net_growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the growth by place, in total at most that of the whole.

    Other kernels have the same structures in other slab caches: moved memory is no growth.
    """
    changes = {place: after.get(place, 0) - before.get(place, 0) for place in {**before, **after}}
    moved = -sum(change for change in changes.values() if change < 0)
    net = {}
    for place, change in sorted(changes.items(), key=lambda item: -item[1]):
        taken = min(max(change, 0), moved)
        moved -= taken
        if change > taken:
            net[place] = change - taken
    return net


def _grew(
    identifier: str, subject: str, severity: Severity, before: int, memory: Mapping[str, int]
) -> Finding:
    change = sum(memory.values())
    grown, was, now = (human(size, Unit.BYTES) for size in (change, before, before + change))
    return Finding(
        id=f"grew:{identifier}",
        severity=severity,
        title=f"{subject} grew by {grown} (from {was} to {now})",
        figures=_figures_of(before, change),
        memory=memory,
    )


def _figures_of(before: int, change: int) -> dict[str, Figure]:
    sizes = {"before": before, "after": before + change, "change": change}
    return {name: Figure(size, Unit.BYTES) for name, size in sizes.items()}


class _Row(NamedTuple):
    keys: list[str]
    """Words of its columns of text; not empty."""
    before: int
    change: int

    @property
    def name(self) -> str:
        """Name in identifiers."""
        return " ".join(self.keys)

    @property
    def words(self) -> str:
        """Name in sentences: ``shrinker maps (kmalloc-1k)``."""
        first, *rest = self.keys or [""]
        return f"{first} ({', '.join(rest)})" if rest else first


def _largest(tables: Mapping[str, Table], name: str) -> list[_Row]:
    """Return the rows of a compared table with growing bytes, the largest growth first."""
    table = tables.get(name)
    if table is None or table.columns["change"].unit is not Unit.BYTES:
        return []
    frame = table.frame[table.frame["change"].astype(float) > 0]
    keys = [key for key in [*frame][: [*frame].index("state")] if key != _OCCURRENCE]
    if any(table.columns[key].unit is not Unit.TEXT for key in keys):
        return []  # a number names nothing
    return [
        _Row([printable(str(word)) for word in words if word], int(before), int(change))
        for words, before, change in zip(
            frame[keys].itertuples(index=False, name=None),
            frame["before"],
            frame["change"],
            strict=True,
        )
    ]


class _Side(NamedTuple):
    side: str
    head: Result

    @property
    def machine(self) -> Machine:
        return self.head.machine or Machine()


_TARGETS = TableSpec("targets", "Targets", {
    "side": Column(TEXT, "", ALWAYS, "before or after."),
    "target": Column(TEXT, "", ALWAYS, "Name of the target.", "head.target"),
    "host": Column(TEXT, "", WIDE, "Name of the machine.", lambda row: row.machine.host or None),
    "time": Column(TEXT, "", WIDE, "Time of the dump, in UTC.",
        lambda row: row.machine.time and shown_time(row.machine.time)),
    "uptime_seconds": Column(SECONDS, "uptime", WIDE, "Time since boot.", "machine.uptime_seconds"),
    "ram_bytes": Column(BYTES, "RAM", WIDE, "RAM of the machine.", "machine.ram_bytes"),
    "kernel": Column(TEXT, "", WIDE, "Kernel release.", "head.kernel"),
    "build_id": Column(TEXT, "", DATA, "Build ID of the vmlinux.",
        lambda row: row.machine.build_id or None),
    "taken_by": Column(TEXT, "", DATA, "Tool that took the dump.",
        lambda row: row.machine.taken_by or None),
}, "One of the two targets.",
    rows=lambda figures: [*map(_Side, ("before", "after"), figures["heads"])])  # fmt: skip
_FIGURES = TableSpec("figures", "Figures", {
    "analysis": Column(TEXT, "", ALWAYS, "Name of the analysis."),
    "figure": Column(TEXT, "key", DATA, "Key in the summary of the analysis.", "key"),
    "label": Column(TEXT, "figure", ALWAYS, "Label of the figure.",
        lambda row: _label(*row.labels) or row.key),
    "before": Column(TEXT, "", ALWAYS, "Value before.",
        lambda row: human(row.before, row.figure.unit)),
    "after": Column(TEXT, "", ALWAYS, "Value after.",
        lambda row: human(row.after, row.figure.unit)),
    "change": Column(TEXT, "", ALWAYS, "After minus before.",
        lambda row: _shown_change(row.change, row.figure.unit)),
    "before_value": Column(NONE, "", DATA, "Exact value before.", lambda row: _number(row.before)),
    "after_value": Column(NONE, "", DATA, "Exact value after.", lambda row: _number(row.after)),
    "change_value": Column(NONE, "", DATA, "Exact change.", "change"),
    "unit": Column(TEXT, "", DATA, "Unit of the values.", "figure.unit.value"),
}, "A different figure of a summary, the largest share of change first.",
    rows=lambda figures: _changes(figures["pairs"]), keeps_types=True)  # fmt: skip


class _Change(NamedTuple):
    """A figure of a summary that differs."""

    analysis: str
    key: str
    figure: Figure
    labels: tuple[str, str]
    """The labels on both sides, of which one may be empty."""
    before: Plain
    after: Plain

    @property
    def change(self) -> int | float | None:
        """The difference; None if unknown or of a limit."""
        old, new = _number(self.before), _number(self.after)
        if old is None or new is None or not _UNLIMITED.isdisjoint((old, new)):
            return None
        return new - old

    @property
    def share(self) -> float:
        """Share of the change in the larger value; 2 if unknown."""
        old, new = _number(self.before), _number(self.after)
        return abs(self.change) / max(abs(old or 0), abs(new or 0)) if self.change else 2.0


def _changes(pairs: Sequence[tuple[Result, Result]]) -> list[_Change]:
    changes = []
    for older, newer in pairs:
        for key in {**older.summary, **newer.summary}:
            sides = older.summary.get(key), newer.summary.get(key)
            before, after = (plain(side.value if side else None) for side in sides)
            if (figure := sides[0] or sides[1]) and before != after:
                first, second = (side.label if side else "" for side in sides)
                changes.append(_Change(older.analysis, key, figure, (first, second), before, after))
    return sorted(changes, key=lambda each: (-each.share, each.analysis, each.key))


def _label(before: str, after: str) -> str:
    """Return the label of both sides: ``XArrays, modelled, then measured`` if their ends differ."""
    if not before or not after or before == after:
        return before or after
    subject, _, end = after.rpartition(", ")
    is_same = subject and before.startswith(f"{subject}, ")
    return f"{before}, then {end if is_same else after}"


def _shown_change(change: float | None, unit: Unit) -> str:
    sign = "+" if (change or 0) > 0 else ""
    if unit is Unit.RATIO and change is not None:
        return f"{sign}{change * 100:.1f} points"
    return sign + human(change, unit)


def _number(value: Plain) -> int | float | None:
    return None if isinstance(value, (bool, str)) else value


def compare_tables(before: Table, after: Table) -> Table | None:
    """Return the rows that are new, gone or changed, the largest change first.

    Rows are ranked by the first column of bytes that changed in any row, else of pages or counts,
    with a preference for columns that are always shown. Rows without a change there are left out.
    None without anything to compare: no names, or no memory.
    """
    columns = {name: column for name, column in before.columns.items() if name in after.columns}
    older, newer = (table.frame[list(columns)] for table in (before, after))
    # A table without rows has no types: use the other table's.
    if older.empty:
        older = newer.head(0)
    elif newer.empty:
        newer = older.head(0)
    numeric = [
        name
        for name, column in columns.items()
        if column.unit in _NUMBERS and {older[name].dtype.kind, newer[name].dtype.kind} <= {*"iuf"}
    ]
    keys = _keys(older, newer, columns)
    # Without bytes or pages it is a histogram, or the state of an instant: hash chains, workers.
    if not any(columns[name].unit in _AMOUNTS[:2] for name in numeric) or keys is None:
        return None
    old, new = (_indexed(_named(frame, keys), keys, numeric) for frame in (older, newer))
    rows = old.index.union(new.index)
    was, now = rows.isin(old.index), rows.isin(new.index)
    old, new = old.reindex(rows, fill_value=0), new.reindex(rows, fill_value=0)
    changes = {name: _difference(old[name], new[name]) for name in numeric}
    changed = {name: _changed(old[name], new[name], change) for name, change in changes.items()}
    main = _main(columns, changed)

    names = rows.to_frame(index=False)
    shown: dict[str, tuple[Any, Column]] = {
        f"name_{key}" if key in _OWN else key: (names[key], replace(columns[key], show=Show.ALWAYS))
        for key in keys
        if key != _OCCURRENCE
    }
    if _OCCURRENCE in keys:
        shown[_OCCURRENCE] = names[_OCCURRENCE], Column(Unit.NONE, "", Show.DATA)
    heading = "row" if "state" in keys else "state"
    state = Column(TEXT, heading, Show.ALWAYS, "new, gone or changed.")
    amount, label = replace(columns[main], show=Show.ALWAYS), columns[main].heading(main)
    shown |= {
        "state": (np.where(~was, "new", np.where(~now, "gone", "changed")), state),
        "before": (old[main].to_numpy(), replace(amount, label=f"{label} before")),
        "after": (new[main].to_numpy(), replace(amount, label=f"{label} after")),
        "change": (changes[main], replace(amount, label="change")),
    }
    shown |= {
        f"{name}_change": (
            changes[name],
            Column(columns[name].unit, f"{columns[name].heading(name)} change", Show.DATA),
        )
        for name in numeric
        if name != main
    }
    table = Table.of(before.title, shown, detail=before.detail and after.detail)
    frame = table.frame[changed[main]]
    table.frame = frame.sort_values(
        "change", key=lambda change: -change.astype(float).abs(), kind="stable", ignore_index=True
    )
    return table


def _main(columns: Mapping[str, Column], changed: Mapping[str, Any]) -> str:
    """Return the amount that ranks rows: a changed one, unless none did."""
    return min(
        (name for name in changed if columns[name].unit in _AMOUNTS),
        key=lambda name: (
            not changed[name].any(),
            _AMOUNTS.index(columns[name].unit),
            list(Show).index(columns[name].show),
        ),
    )


def _keys(
    before: pd.DataFrame, after: pd.DataFrame, columns: Mapping[str, Column]
) -> list[str] | None:
    """Return the fewest leading names that are unique; with an ordinal if all together are not."""
    names = [
        name
        for name, column in columns.items()
        if (column.unit is Unit.TEXT or (column.unit is Unit.NONE and column.show is Show.ALWAYS))
        and before[name].dtype.kind == after[name].dtype.kind != "b"
        and not any(
            isinstance(value, str) and _ANONYMOUS.fullmatch(value)
            for value in (*before[name], *after[name])
        )
    ]
    for count in range(1, len(names) + 1):
        keys = names[:count]
        if not any(frame.duplicated(keys).any() for frame in (before, after)):
            return keys
    return [*names, _OCCURRENCE] if names else None


def _named(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return a table with names as in documents, from which one side may be read."""
    texts = [key for key in keys if key in frame and frame[key].dtype.kind == "O"]
    plain_texts: dict[str, Any] = {key: plain_column(frame[key]) for key in texts}
    return frame.assign(**plain_texts)


def _indexed(frame: pd.DataFrame, keys: Sequence[str], numeric: Sequence[str]) -> pd.DataFrame:
    if keys[-1] == _OCCURRENCE:
        ordinal = frame.groupby(list(keys[:-1]), dropna=False).cumcount()
        frame = frame.assign(**{_OCCURRENCE: ordinal})
    return frame.set_index(list(keys))[list(numeric)]


def _changed(before: pd.Series[Any], after: pd.Series[Any], change: Any) -> Any:
    """Return which rows differ; a value missing on one side only differs."""
    known = before.isna().to_numpy() == after.isna().to_numpy()
    return (np.nan_to_num(change.astype(float)) != 0) | ~known


def _difference(before: pd.Series[Any], after: pd.Series[Any]) -> Any:
    """Return ``after - before``; exact for integers, unsigned ones too."""
    if any(side.dtype.kind == "f" or side.hasnans for side in (before, after)):
        with np.errstate(invalid="ignore"):  # infinite on both sides: unchanged
            return after.to_numpy(float, na_value=np.nan) - before.to_numpy(float, na_value=np.nan)
    return after.to_numpy().astype(np.int64) - before.to_numpy().astype(np.int64)
