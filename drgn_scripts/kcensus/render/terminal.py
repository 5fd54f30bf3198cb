# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result on a screen: what to act on first, then the figures, then how far to trust them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kcensus.human import human
from kcensus.render.plain import (
    gap_subject,
    has_content,
    is_zero,
    machine_facts,
    patch_text,
    remarks,
    remedy_facts,
    shown_figure,
)
from kcensus.render.screen import Screen
from kcensus.render.screen.table import print_table
from kcensus.results import (
    Check,
    CheckStatus,
    Danger,
    Finding,
    Gap,
    Remedy,
    Result,
    Severity,
    Unit,
    matters,
    parts_of,
    rank,
)
from kcensus.text import printable

_MAX_NAMED = 4
"""More checks that agree are counted, not named."""
_MAX_PARTS = 3
"""Symptoms that a short report names of each finding."""
_FIRST = 3
"""Figures of a summary that are shown even if they are 0: they tell most."""
_MAX_ZEROS = 3
"""More of the other figures that are 0 are counted, not shown."""
SEVERITY_STYLE = {
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTICE: "bold cyan",
    Severity.INFO: "bold",
}
_COMMAND = re.compile(r"(echo|sysctl|u?mount|rm|rmdir|dmsetup|modprobe|sed|systemctl) ")
"""Start of a command, where a remedy may also have a sentence."""
_TAG_WIDTH = max(len(severity.name) for severity in Severity)


def write_terminal(
    result: Result,
    console: Console,
    top: int = 10,
    tables: Sequence[str] = (),
    first: Sequence[str] = (),
    *,
    every: bool = False,
) -> None:
    """Print ``result``.

    :param top: rows of each table; all where it is 0
    :param tables: names of the tables to print
    :param first: names of the tables to print where ``tables`` is empty, without the detailed
        ones; all where this is empty too
    :param every: print all tables and figures, also those that say nothing
    """
    screen = Screen(console)
    print_header(result, screen)
    if result.findings:
        findings = sorted(result.findings, key=rank)
        print_findings([("", finding) for finding in findings], screen)
    elif result.measures:
        screen.prose("Findings: none")
        screen.blank()
    print_figures(result, screen, top, tables, first, every=every)


def print_header(result: Result, screen: Screen) -> None:
    """Print which analysis of which machine this is."""
    screen.prose(
        Text.assemble((printable(result.analysis), "bold"), f" on {printable(result.target)}")
    )
    screen.tagged((Text(name), [Text(facts)]) for name, facts in machine_facts(result))
    screen.blank()


def print_findings(
    named: Sequence[tuple[str, Finding]], screen: Screen, top: int = 0, *, short: bool = False
) -> None:
    """Print findings in the given order, each with the ones that are part of it.

    :param named: findings, with the names of their analyses or nothing
    :param top: how many to print; all where it is 0
    :param short: leave out evidence, further remedies, and all but the title of lesser findings
    """
    findings = [finding for _, finding in named]
    ids = {finding.id for finding in findings}
    # Of a saved report, one analysis may be shown without the one whose finding leads.
    leaders = [(name, finding) for name, finding in named if finding.part_of not in ids]
    screen.heading("Findings")
    for name, finding in leaders[: top or None]:
        _print_finding(name, finding, parts_of(finding, findings), screen, short)
    if top and len(leaders) > top:
        screen.prose(f"... and {len(leaders) - top} more findings (use --top 0)")
    screen.blank()


def _print_finding(
    name: str, finding: Finding, parts: Sequence[Finding], screen: Screen, short: bool
) -> None:
    def prose(*paragraphs: str) -> None:
        texts = [Text(printable(words)) for words in paragraphs if words]
        if texts:
            screen.tagged([(Text(), texts)], _TAG_WIDTH)

    severity = finding.severity
    prefix = f"{name}: " if name and finding.danger is not Danger.INCOMPLETE else ""
    title = Text(printable(f"{prefix}{finding.title}"), style="bold")
    tag = "ALSO" if finding.part_of else severity.name
    screen.tagged([(Text(tag, SEVERITY_STYLE[severity]), [title])], _TAG_WIDTH)
    if short and not matters(finding):
        prose(f"kcensus explain {finding.kind}")
        return
    if not short:
        prose(*(f"#{number} {line}" for number, line in enumerate(finding.story, 1)))
        prose(finding.evidence)
    shown = finding.remedies[:1] if short else finding.remedies
    for remedy in shown:
        prose(_effect(remedy))
        screen.commands(remedy.command.splitlines(), _TAG_WIDTH)
        facts = remedy_facts(remedy)
        undo = [f"Undo: {remedy.undo}"] if _COMMAND.match(remedy.undo) else []
        prose(_joined([fact for fact in facts if printable("".join(undo)) != fact], screen))
        screen.commands(undo, _TAG_WIDTH, None)
    if finding.no_remedy:
        prose(f"No remedy: {finding.no_remedy}." if not shown else f"{finding.no_remedy}.")
    more = len(finding.remedies) - len(shown)
    about = (
        f"Holds: {human(finding.holds, Unit.BYTES)}" if finding.holds else "",
        f"kcensus explain {finding.kind}" if matters(finding) or finding.holds else "",
        patch_text(finding) if finding.patch_is_fix or not short else "",
        f"{more} more {'remedy' if more == 1 else 'remedies'}: --full" if more else "",
    )
    named = parts[:_MAX_PARTS] if short else ()
    unnamed = f"; and {len(parts) - len(named)} more" if len(parts) > len(named) else ""
    prose(
        _joined(about, screen),
        f"Also explains: {'; '.join(map(_part, named))}{unnamed}" if named else "",
    )
    if not short:
        for part in parts:
            _print_finding("", part, (), screen, short)


def _effect(remedy: Remedy) -> str:
    return remedy.effect.rstrip(".") + (":" if remedy.command else ".")


def _part(finding: Finding) -> str:
    return finding.id + (f" ({human(finding.holds, Unit.BYTES)})" if finding.holds else "")


def _joined(facts: Sequence[str], screen: Screen) -> str:
    return (" · " if screen.is_unicode else " | ").join(filter(None, facts))


def print_figures(
    result: Result,
    screen: Screen,
    top: int,
    tables: Sequence[str] = (),
    first: Sequence[str] = (),
    *,
    every: bool = False,
) -> None:
    """Print the figures of a result, its checks and its gaps; parameters as above."""
    if result.nothing and not every:
        screen.prose(printable(result.nothing))
        screen.blank()
    else:
        _print_summary(result, screen, every)
    if every:
        tables = tuple(result.tables)
    contents = {name for name, table in result.tables.items() if has_content(table)}
    usual = [name for name in first or result.tables if name in result.tables]
    names = tables or [
        name for name in usual if name in contents and not result.tables[name].detail
    ]
    for name in names:
        if name in result.tables:
            print_table(name, result.tables[name], screen, top)
        else:
            screen.prose(f"Table {name}: not part of this result")
            screen.blank()
    others = [name for name in result.tables if name not in names]
    unknown = [name for name in others if not result.tables[name].is_known]
    for heading, rest in (
        (
            "More tables (--table NAME, --all, --json)",
            [name for name in others if name in contents and name not in unknown],
        ),
        (
            "Empty or zero (--all)",
            [name for name in others if name not in contents and name not in unknown],
        ),
        ("Unknown (see Gaps)", unknown),
    ):
        if rest:
            screen.prose(f"{heading}: {', '.join(rest)}")
            screen.blank()
    if result.checks:
        screen.section("Checks against the kernel's own counters", _checks(result.checks))
    elif result.measures and not result.nothing:
        screen.prose("Checks: none; no figure was cross-checked against a counter of the kernel")
        screen.blank()
    if result.gaps:
        screen.heading("Gaps")
        screen.tagged(map(_gap, result.gaps))
    elif result.measures:
        screen.prose("Gaps: none; everything needed was readable")


def _print_summary(result: Result, screen: Screen, every: bool) -> None:
    figures = result.summary
    zeros = [key for key in [*figures][_FIRST:] if is_zero(figures[key])]
    if every or len(zeros) <= _MAX_ZEROS:
        zeros = []
    shown = [shown_figure(key, figure) for key, figure in figures.items() if key not in zeros]
    if shown:
        screen.heading("Summary")
        screen.pairs(shown)
    if zeros:
        screen.prose(f"{len(zeros)} {'other ' * bool(shown)}figures are 0 (--all shows them)")
    if figures:
        screen.blank()


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
            *remarks(check),
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
    sentences = f"{gap_subject(gap.what, gap.count)}: {gap.reason}", f"Effect: {gap.effect}"
    return Text("MISSING", "bold yellow"), [Text(printable(words)) for words in sentences]
