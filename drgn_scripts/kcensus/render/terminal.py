# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result on a screen: what to act on first, then the figures, then how far to trust them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from kcensus.human import human
from kcensus.render.plain import plain
from kcensus.render.screen import Screen
from kcensus.render.screen.table import print_table
from kcensus.results import (
    Check,
    CheckStatus,
    Figure,
    Finding,
    Gap,
    Result,
    Severity,
    Unit,
    rank,
)
from kcensus.text import printable

_MAX_NAMED = 4
"""More checks that agree are counted, not named."""
_SEVERITY_STYLE = {
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTICE: "bold cyan",
    Severity.INFO: "bold",
}
_STATUS_STYLE = {CheckStatus.DIFFER: "bold yellow", CheckStatus.EXPLAINED: "bold"}


def write_terminal(
    result: Result, console: Console, top: int = 10, tables: Sequence[str] | None = None
) -> None:
    """Print ``result``.

    :param top: rows of each table; all where it is 0
    :param tables: names of the tables to print; all but the detailed ones where None
    """
    screen = Screen(console)
    print_header(result, screen)
    if result.findings:
        print_findings(sorted(result.findings, key=rank), screen)
    elif result.measures:
        screen.prose("Findings: none")
        screen.blank()
    print_figures(result, screen, top, tables)


def print_header(result: Result, screen: Screen) -> None:
    """Print which analysis of which target this is."""
    screen.prose(
        Text.assemble((printable(result.analysis), "bold"), f" on {printable(result.target)}")
    )
    if result.kernel:
        live = ", live: its figures changed while they were read" if result.live else ""
        screen.prose(f"Linux {printable(result.kernel)}{live}")
    screen.blank()


def print_findings(
    findings: Sequence[Finding],
    screen: Screen,
    *,
    evidence: bool = True,
    brief: Collection[Finding] = (),
) -> None:
    """Print findings in the given order.

    :param evidence: whether to print the evidence of each
    :param brief: findings of which only the title is printed
    """
    screen.heading("Findings")
    rows = []
    for finding in findings:
        paragraphs = [Text(printable(finding.title), style="bold")]
        rows.append((Text(finding.severity.name, _SEVERITY_STYLE[finding.severity]), paragraphs))
        if finding in brief:
            continue
        if finding.evidence and evidence:
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
    screen.tagged(rows)
    screen.blank()


def print_figures(
    result: Result, screen: Screen, top: int, tables: Sequence[str] | None = None
) -> None:
    """Print the figures of a result, its checks and its gaps; parameters as above."""
    if result.summary:
        _print_summary(result.summary, screen)
    if tables is None:
        tables = [name for name, table in result.tables.items() if not table.detail]
    for name in tables:
        if name in result.tables:
            print_table(name, result.tables[name], screen, top)
        else:
            screen.prose(f"Table {name}: not part of this result")
            screen.blank()
    others = [name for name in result.tables if name not in tables]
    if others:
        screen.prose(f"More tables (--table NAME, --all, --json): {', '.join(others)}")
        screen.blank()
    if result.checks or result.measures:
        _print_checks(result.checks, screen)
    if result.gaps or result.measures:
        _print_gaps(result.gaps, screen)


def shown_figure(key: str, figure: Figure) -> tuple[str, str]:
    """Return the label and the value of a figure."""
    return (
        printable(figure.label or key.replace("_", " ")),
        human(plain(figure.value), figure.unit),
    )


def shown_difference(check: Check) -> str:
    """Return the difference of a check with its sign."""
    sign = "+" if check.difference is not None and check.difference > 0 else ""
    return sign + human(check.difference, check.unit)


def _print_summary(summary: Mapping[str, Figure], screen: Screen) -> None:
    screen.heading("Summary")
    screen.pairs([shown_figure(key, figure) for key, figure in summary.items()])
    screen.blank()


def _print_checks(checks: Sequence[Check], screen: Screen) -> None:
    if not checks:
        screen.prose("Checks: none; no figure was cross-checked against a counter of the kernel")
        screen.blank()
        return
    by_status: dict[CheckStatus, list[Check]] = {status: [] for status in CheckStatus}
    for check in checks:
        by_status[check.status].append(check)
    agree, absent = by_status[CheckStatus.AGREE], by_status[CheckStatus.ABSENT]
    rows = []
    if agree:
        few = len(agree) <= _MAX_NAMED
        names = f": {'; '.join(printable(check.name) for check in agree)}" if few else ""
        sentence = f"{len(agree)} of {len(checks)} figures{names}"
        rows.append((Text("AGREE", style="green"), [Text(sentence)]))
    rows += map(_check_row, by_status[CheckStatus.EXPLAINED] + by_status[CheckStatus.DIFFER])
    if absent:
        names = ", ".join(printable(check.name) for check in absent)
        rows.append((Text("ABSENT"), [Text(f"this kernel has no counter for: {names}")]))
    screen.heading("Checks against the kernel's own counters")
    screen.tagged(rows)
    screen.blank()


def _check_row(check: Check) -> tuple[Text, list[Text]]:
    paragraphs = [
        f"{printable(check.name)}: {human(check.ours, check.unit)} counted,"
        f" {human(check.counter, check.unit)} in the kernel ({shown_difference(check)})"
    ]
    if check.source:
        paragraphs.append(f"Counter: {printable(check.source)}")
    if check.note:
        paragraphs.append(printable(check.note))
    tag = Text(check.status.name, style=_STATUS_STYLE[check.status])
    return tag, list(map(Text, paragraphs))


def _print_gaps(gaps: Sequence[Gap], screen: Screen) -> None:
    if not gaps:
        screen.prose("Gaps: none; everything needed was readable")
        return
    screen.heading("Gaps")
    screen.tagged(
        (
            Text("MISSING", style="bold yellow"),
            [
                Text(f"{gap.count:,} {printable(gap.what)}: {printable(gap.reason)}"),
                Text(f"Effect: {printable(gap.effect)}"),
            ],
        )
        for gap in gaps
    )
