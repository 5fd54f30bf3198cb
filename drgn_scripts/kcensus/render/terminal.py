# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result on a screen: what to act on first, then the figures, then how far to trust them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kcensus.human import human
from kcensus.render.plain import remedy_text, shown_figure
from kcensus.render.screen import Screen
from kcensus.render.screen.table import print_table
from kcensus.results import (
    Check,
    CheckStatus,
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


def write_terminal(
    result: Result,
    console: Console,
    top: int = 10,
    tables: Sequence[str] = (),
    first: Sequence[str] = (),
) -> None:
    """Print ``result``.

    :param top: rows of each table; all where it is 0
    :param tables: names of the tables to print
    :param first: names of the tables to print where ``tables`` is empty, without the detailed
        ones; all where this is empty too
    """
    screen = Screen(console)
    print_header(result, screen)
    if result.findings:
        print_findings(sorted(result.findings, key=rank), screen)
    elif result.measures:
        screen.prose("Findings: none")
        screen.blank()
    print_figures(result, screen, top, tables, first)


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
    rows = []
    for finding in findings:
        remedy = remedy_text(finding)
        more = (
            finding.evidence if evidence else "",
            f"What to do: {remedy}" if remedy else "",
            "   ".join(_facts(finding)),
        )
        paragraphs = [Text(printable(finding.title), style="bold")]
        if finding not in brief:
            paragraphs += [Text(printable(words)) for words in more if words]
        rows.append((Text(finding.severity.name, _SEVERITY_STYLE[finding.severity]), paragraphs))
    screen.section("Findings", rows)


def _facts(finding: Finding) -> Iterator[str]:
    """Yield what a finding holds, and its patch."""
    if finding.holds:
        yield f"Holds: {human(finding.holds, Unit.BYTES)}"
    if finding.patch:
        kind = "Fixed by" if finding.patch_is_fix else "Patch"
        yield f"{kind}: {finding.patch}" + (
            f" ({finding.patch_status})" if finding.patch_status else ""
        )


def print_figures(
    result: Result,
    screen: Screen,
    top: int,
    tables: Sequence[str] = (),
    first: Sequence[str] = (),
) -> None:
    """Print the figures of a result, its checks and its gaps; parameters as above."""
    if result.summary:
        screen.heading("Summary")
        screen.pairs([shown_figure(key, figure) for key, figure in result.summary.items()])
        screen.blank()
    detailed = [name for name, table in result.tables.items() if table.detail]
    names = tables or [name for name in first or result.tables if name not in detailed]
    for name in names:
        if name in result.tables:
            print_table(name, result.tables[name], screen, top)
        else:
            screen.prose(f"Table {name}: not part of this result")
            screen.blank()
    others = [name for name in result.tables if name not in names]
    if others:
        screen.prose(f"More tables (--table NAME, --all, --json): {', '.join(others)}")
        screen.blank()
    if result.checks:
        screen.section("Checks against the kernel's own counters", _checks(result.checks))
    elif result.measures:
        screen.prose("Checks: none; no figure was cross-checked against a counter of the kernel")
        screen.blank()
    if result.gaps:
        screen.heading("Gaps")
        screen.tagged(map(_gap, result.gaps))
    elif result.measures:
        screen.prose("Gaps: none; everything needed was readable")


def shown_difference(check: Check) -> str:
    """Return the difference of a check with its sign."""
    sign = "+" if check.difference is not None and check.difference > 0 else ""
    return sign + human(check.difference, check.unit)


def _checks(checks: Sequence[Check]) -> Iterator[tuple[Text, list[Text]]]:
    """Yield a tag and paragraphs for those that agree, each that does not, and absent counters."""
    agree, explained, differ, absent = (
        [check for check in checks if check.status is status]
        for status in (
            CheckStatus.AGREE,
            CheckStatus.EXPLAINED,
            CheckStatus.DIFFER,
            CheckStatus.ABSENT,
        )
    )
    if agree:
        few = len(agree) <= _MAX_NAMED
        names = f": {'; '.join(check.name for check in agree)}" if few else ""
        sentence = printable(f"{len(agree)} of {len(checks)} figures{names}")
        yield Text("AGREE", style="green"), [Text(sentence)]
    for check in explained + differ:
        paragraphs = (
            f"{check.name}: {human(check.ours, check.unit)} counted,"
            f" {human(check.counter, check.unit)} in the kernel ({shown_difference(check)})",
            f"Counter: {check.source}" if check.source else "",
            check.note,
        )
        style = "bold yellow" if check.status is CheckStatus.DIFFER else "bold"
        yield (
            Text(check.status.name, style),
            [Text(printable(words)) for words in paragraphs if words],
        )
    if absent:
        names = ", ".join(check.name for check in absent)
        yield Text("ABSENT"), [Text(printable(f"this kernel has no counter for: {names}"))]


def _gap(gap: Gap) -> tuple[Text, list[Text]]:
    sentences = f"{gap.count:,} {gap.what}: {gap.reason}", f"Effect: {gap.effect}"
    return Text("MISSING", "bold yellow"), [Text(printable(words)) for words in sentences]
