# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result for a reader: what to act on first, then the figures, then how far to trust them.

On a terminal the lines fit its width: columns of a table give way by their priority, and it is
said which. In a pipe or a file there is no colour and no width to fit, so nothing is cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from kcensus.human import human
from kcensus.render.plain import Plain, plain, plain_column
from kcensus.results import Check, CheckStatus, Figure, Finding, Gap, Result, Severity, Unit
from kcensus.results.tables import Column, Show, Table
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.reports import Report, Section

_UNBOUNDED = 1 << 16
"""Width where there is no terminal: no line of a table is ever wrapped."""
_PROSE = 100
"""Sentences are wrapped here even where there is more room."""
_INDENT = 2
_GUTTER = 2
_NARROWEST_TEXT = 16
"""Columns are dropped before names are folded into less than this, or a quarter of the width."""

_SEVERITY_STYLE = {
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTICE: "bold cyan",
    Severity.INFO: "bold",
}
_STATUS_STYLE = {CheckStatus.DIFFER: "bold yellow", CheckStatus.EXPLAINED: "bold"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Left to the command, which has one way to end for all faces.
        raise


def console_for(stream: TextIO) -> Console:
    """A console on ``stream``: as wide as the terminal, or as wide as it takes in a pipe."""
    fits = stream.isatty() or "COLUMNS" in os.environ
    return _Console(
        file=stream,
        width=None if fits else _UNBOUNDED,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def write_terminal(result: Result, console: Console, top: int = 10) -> None:
    """Print ``result``; of each table the first ``top`` rows, all of them where it is 0."""
    width = console.width
    _print(console, _header(result, width))
    if result.findings or result.measures:
        _print(console, _findings(result.findings, width))
    _write_figures(result, console, top)


def write_report(report: Report, console: Console, top: int = 10) -> None:
    """Print a report: what to act on, what each analysis took, then all their figures."""
    width = console.width
    everything = Result("report", report.target, report.kernel, report.live)
    _print(console, _header(everything, width))
    found = [replace(one, title=f"{name}: {one.title}") for name, one in report.findings]
    _print(console, _findings(found, width))
    _print(console, _sections(report.sections, width))
    for section in report.sections:
        if section.result:
            title = f"{section.name}: {section.question}"
            _print(console, Text(printable(title), style="bold reverse"))
            _write_figures(section.result, console, top)
            console.print()


def _sections(sections: Sequence[Section], width: int) -> RenderableType:
    rows = [
        (
            Text("DONE", style="green") if one.result else Text("FAILED", style="bold red"),
            [Text(f"{one.name}: {one.error or one.question} ({one.seconds:.1f} s)")],
        )
        for one in sections
    ]
    return Group(_heading("Analyses"), _tagged(rows, width))


def _write_figures(result: Result, console: Console, top: int) -> None:
    width = console.width
    if result.summary:
        _print(console, _summary(result.summary, width))
    for name, table in result.tables.items():
        if not table.detail:
            _print_table(name, table, console, top)
    details = [name for name, table in result.tables.items() if table.detail]
    if details:
        _print(
            console,
            _prose(Text(f"Also with --json, --csv, --parquet: {', '.join(details)}"), width),
        )
    if result.checks or result.measures:
        _print(console, _checks(result.checks, width))
    if result.gaps or result.measures:
        _print(console, _gaps(result.gaps, width), last=True)


def _print(console: Console, section: RenderableType, *, last: bool = False) -> None:
    if console.is_terminal:
        console.print(section)
    else:
        # Padding to the width of a terminal is of no use in a file.
        with console.capture() as capture:
            console.print(section)
        _out(console, (line.rstrip() for line in capture.get().splitlines()))
    if not last:
        console.print()


def _out(console: Console, lines: Iterable[str], style: str | None = None) -> None:
    """Print lines as they are; many at a time, since a table may have a million."""
    lines = iter(lines)
    while block := list(islice(lines, 1000)):
        console.out("\n".join(block), style=style, highlight=False)


def _prose(text: Text, width: int, indent: int = 0) -> RenderableType:
    room = max(min(width, _PROSE) - indent, 1)
    grid = Grid.grid()
    grid.add_column(max_width=room, overflow="fold")
    grid.add_row(text)
    return Padding(grid, (0, 0, 0, indent), expand=False)


def _heading(words: str) -> Text:
    return Text(printable(words), style="bold underline")


def _tagged(rows: Iterable[tuple[Text, Sequence[Text]]], width: int) -> RenderableType:
    """Tags on the left, on the right what they say, a paragraph for each."""
    rows = list(rows)
    tag_width = max((tag.cell_len for tag, _ in rows), default=0)
    grid = Grid.grid(padding=(0, _GUTTER, 0, 0))
    grid.add_column(width=tag_width, no_wrap=True)
    room = min(width, _PROSE) - _INDENT - tag_width - 2 * _GUTTER
    grid.add_column(max_width=max(room, 1), overflow="fold")
    for tag, paragraphs in rows:
        grid.add_row(tag, Text("\n").join(paragraphs))
    return Padding(grid, (0, 0, 0, _INDENT), expand=False)


def _header(result: Result, width: int) -> RenderableType:
    first = Text.assemble((printable(result.analysis), "bold"), f" on {printable(result.target)}")
    if not result.kernel:
        return _prose(first, width)
    second = Text(f"Linux {printable(result.kernel)}")
    if result.live:
        second.append(", live: its figures moved while they were read")
    return Group(_prose(first, width), _prose(second, width))


def _findings(findings: Sequence[Finding], width: int) -> RenderableType:
    if not findings:
        return Text("Findings: none")
    rows = []
    for finding in sorted(findings, key=lambda one: (-one.severity, -(one.cost_bytes or 0))):
        style = _SEVERITY_STYLE[finding.severity]
        paragraphs = [Text(printable(finding.title), style="bold")]
        if finding.evidence:
            paragraphs.append(Text(printable(finding.evidence)))
        if finding.remedy:
            paragraphs.append(Text(f"What to do: {printable(finding.remedy)}"))
        facts = []
        if finding.cost_bytes is not None:
            facts.append(f"Cost: {human(finding.cost_bytes, Unit.BYTES)}")
        if finding.patch:
            facts.append(f"Patch: {printable(finding.patch)}")
        if facts:
            paragraphs.append(Text("   ".join(facts)))
        rows.append((Text(finding.severity.name, style=style), paragraphs))
    return Group(_heading("Findings"), _tagged(rows, width))


def _summary(summary: dict[str, Figure], width: int) -> RenderableType:
    rows = [
        (
            Text(printable(figure.label or key.replace("_", " "))),
            Text(human(plain(figure.value), figure.unit)),
        )
        for key, figure in summary.items()
    ]
    widest = max(value.cell_len for _, value in rows)
    room = width - 2 * _INDENT - _GUTTER - min(widest, width // 2)
    grid = Grid.grid(padding=(0, _GUTTER, 0, 0))
    grid.add_column(overflow="fold", max_width=max(room, 1))
    grid.add_column(justify="right", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return Group(_heading("Summary"), Padding(grid, (0, 0, 0, _INDENT), expand=False))


@dataclass
class _Shown:
    """A column of a table on its way to the screen."""

    label: str
    column: Column
    cells: list[str]
    is_text: bool
    width: int = 0

    @property
    def widest_cell(self) -> int:
        return max(map(cell_len, self.cells), default=0)

    @property
    def full(self) -> int:
        """Width with the heading on one line."""
        return max(self.widest_cell, cell_len(self.label), 1)

    @property
    def compact(self) -> int:
        """Width with the heading broken at its spaces."""
        return max(self.widest_cell, *map(cell_len, self.label.split()), 1)


def _table_width(columns: Sequence[_Shown]) -> int:
    return sum(one.width + _GUTTER for one in columns) - _GUTTER


def _fit(columns: list[_Shown], room: int) -> list[_Shown]:
    """Give every column its width so that all fit into ``room``; the ones that must go."""

    def excess() -> int:
        return _table_width(columns) - room

    dropped: list[_Shown] = []
    while True:
        for one in columns:
            one.width = one.full
        if excess() <= 0:
            return dropped
        for one in columns:
            one.width = one.compact
        optional = [one for one in columns if one.column.show is not Show.ALWAYS]
        floor = max(_NARROWEST_TEXT, room // 4) if optional else 1
        while excess() > 0:
            # Once nothing may be dropped any more, numbers fold too: better than to lose digits.
            texts = [one for one in columns if one.is_text and one.width > floor]
            if not texts and not optional:
                texts = [one for one in columns if one.width > floor]
            if not texts:
                break
            max(texts, key=lambda one: one.width).width -= 1
        if excess() <= 0 or not optional:
            return dropped
        columns.remove(optional[-1])
        dropped.insert(0, optional[-1])


def _column(key: str, column: Column, values: list[Plain]) -> _Shown:
    # In a cell the heading says that these are pages.
    unit = Unit.COUNT if column.unit is Unit.PAGES else column.unit
    return _Shown(
        label=printable(column.label or key.replace("_", " ")),
        column=column,
        cells=[human(value, unit) for value in values],
        is_text=column.unit is Unit.TEXT or any(isinstance(value, str) for value in values),
    )


def _lines(columns: Sequence[_Shown], cells: Sequence[str], console: Console) -> list[str]:
    """One row of a table: a line, or more where a cell has to be folded."""
    folded = [
        [cell]
        if cell_len(cell) <= one.width
        else [line.plain.rstrip() for line in Text(cell).wrap(console, one.width, overflow="fold")]
        for one, cell in zip(columns, cells, strict=True)
    ]
    lines = []
    for parts in zip_longest(*folded, fillvalue=""):
        line = " " * _INDENT
        for one, part in zip(columns, parts, strict=True):
            space = " " * (one.width - cell_len(part))
            line += (part + space if one.is_text else space + part) + " " * _GUTTER
        lines.append(line.rstrip())
    return lines


def _print_table(name: str, table: Table, console: Console, top: int) -> None:
    total = len(table.frame)
    frame = table.frame.head(top) if top else table.frame
    columns = [
        _column(key, column, plain_column(frame[key]))
        for key, column in table.columns.items()
        if column.show is not Show.DATA
    ]
    dropped = _fit(columns, console.width - _INDENT)

    console.print(_heading(table.title or name.replace("_", " ")))
    if table.note:
        _print(console, _prose(Text(printable(table.note)), console.width, _INDENT), last=True)
    if total:
        headings = _lines(columns, [one.label for one in columns], console)
        _out(console, headings, "bold")
        if console.is_terminal:
            rule = "\u2500" if console.encoding.startswith("utf") else "-"
            _out(console, [" " * _INDENT + rule * (_table_width(columns))], "dim")
        rows = zip(*(one.cells for one in columns), strict=True)
        _out(console, chain.from_iterable(_lines(columns, row, console) for row in rows))
    else:
        _out(console, [" " * _INDENT + "(no rows)"])
    remarks = []
    if total > len(frame):
        remarks.append(f"... and {total - len(frame):,} more rows (use --top 0 or --json)")
    if dropped:
        names = ", ".join(one.label for one in dropped)
        remarks.append(f"no room for: {names} (widen the terminal, or use --json)")
    for remark in remarks:
        _print(console, _prose(Text(remark, style="dim"), console.width, _INDENT), last=True)
    console.print()


def _check_row(check: Check) -> tuple[Text, list[Text]]:
    status = check.status
    difference = human(check.difference, check.unit)
    if check.difference is not None and check.difference > 0:
        difference = f"+{difference}"
    sentence = (
        f"{printable(check.name)}: {human(check.ours, check.unit)} counted,"
        f" {human(check.counter, check.unit)} in the kernel ({difference})"
    )
    paragraphs = [Text(sentence)]
    if check.source:
        paragraphs.append(Text(f"Counter: {printable(check.source)}"))
    if check.note:
        paragraphs.append(Text(printable(check.note)))
    return Text(status.name, style=_STATUS_STYLE[status]), paragraphs


def _checks(checks: Sequence[Check], width: int) -> RenderableType:
    if not checks:
        return Text("Checks: none; no figure was held against a counter of the kernel")
    by_status: dict[CheckStatus, list[Check]] = {status: [] for status in CheckStatus}
    for check in checks:
        by_status[check.status].append(check)
    agree, absent = by_status[CheckStatus.AGREE], by_status[CheckStatus.ABSENT]
    rows = []
    if agree:
        which = "" if len(agree) > 4 else f": {'; '.join(check.name for check in agree)}"
        rows.append(
            (
                Text("AGREE", style="green"),
                [Text(f"{len(agree)} of {len(checks)} figures{printable(which)}")],
            )
        )
    rows += map(_check_row, by_status[CheckStatus.EXPLAINED] + by_status[CheckStatus.DIFFER])
    if absent:
        names = ", ".join(printable(check.name) for check in absent)
        rows.append((Text("ABSENT"), [Text(f"nothing in this kernel to check {names} against")]))
    return Group(_heading("Checks against the kernel's own counters"), _tagged(rows, width))


def _gaps(gaps: Sequence[Gap], width: int) -> RenderableType:
    if not gaps:
        return Text("Gaps: none; all that was needed could be read")
    rows = [
        (
            Text("MISSING", style="bold yellow"),
            [
                Text(f"{gap.count:,} {printable(gap.what)}: {printable(gap.reason)}"),
                Text(f"Effect: {printable(gap.effect)}"),
            ],
        )
        for gap in gaps
    ]
    return Group(_heading("Gaps"), _tagged(rows, width))
