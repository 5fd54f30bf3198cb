# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report on a screen: findings, a line per analysis, and how far to trust them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from kcensus.render.screen import Screen
from kcensus.render.terminal import (
    print_figures,
    print_findings,
    print_header,
    shown_difference,
    shown_figure,
)
from kcensus.reports import Report, Section
from kcensus.results import CheckStatus, Result, matters
from kcensus.text import printable

_MAX_HEADLINE = 3
"""Figures in the line of an analysis."""
_MORE = """\
--full adds evidence, and the figures and tables of all analyses
`kcensus ANALYSIS` instead of `kcensus report` shows one analysis"""


def write_report(report: Report, console: Console, top: int = 10, full: bool = False) -> None:
    """Print a report.

    :param top: findings, and rows of each table; all where it is 0
    :param full: also print the evidence of findings, and the figures and tables of all analyses
    """
    screen = Screen(console)
    print_header(Result("report", report.target, report.kernel, report.live), screen)
    _print_findings(report, screen, 0 if full else top, full)
    if full:
        _print_durations(report, screen)
        for section in report.sections:
            if section.result:
                screen.heading(f"{section.name}: {section.question}", "bold reverse")
                screen.blank()
                print_figures(section.result, screen, top)
                screen.blank()
        return
    screen.heading("Analyses")
    screen.tagged((Text(section.name), [_headline(section, screen)]) for section in report.sections)
    screen.blank()
    screen.tagged(
        [
            (Text("Checks"), [_checks(report)]),
            (Text("Gaps"), [_gaps(report)]),
            (Text("More"), [Text(_MORE)]),
        ]
    )


def _print_findings(report: Report, screen: Screen, top: int, evidence: bool) -> None:
    named = report.findings
    findings = [replace(finding, title=f"{name}: {finding.title}") for name, finding in named]
    if not any(matters(finding, report.ram_bytes) for finding in findings):
        screen.prose(Text(_health(report), style="bold"))
        screen.blank()
    if findings:
        shown = findings[:top] if top else findings
        brief = () if evidence else [one for one in shown if not matters(one, report.ram_bytes)]
        print_findings(shown, screen, evidence=evidence, brief=brief)
        if len(shown) < len(findings):
            screen.prose(f"... and {len(findings) - len(shown)} more findings (use --top 0)")
            screen.blank()


def _health(report: Report) -> str:
    """Return one line that says that nothing serious was found, and how far to trust that."""
    statuses, gaps = _statuses(report), sum(len(one.gaps) for one in report.results.values())
    subject = "Nothing serious found" if report.findings else "Nothing found"
    faults = []
    if report.errors:
        faults.append(f"{_count(len(report.errors), 'analysis', 'analyses')} failed")
    if differing := statuses[CheckStatus.DIFFER]:
        faults.append(
            f"{differing} of {_count(statuses.total(), 'check')}"
            f" {'differs' if differing == 1 else 'differ'}"
        )
    if gaps:
        faults.append(_count(gaps, "gap"))
    if faults:
        return f"{subject}, but {', '.join(faults)} (see below)."
    agree = statuses[CheckStatus.AGREE] + statuses[CheckStatus.EXPLAINED]
    return f"{subject}: {_count(agree, 'check')} {'agrees' if agree == 1 else 'agree'}, no gaps."


def _print_durations(report: Report, screen: Screen) -> None:
    rows = []
    for section in report.sections:
        tag = Text("DONE", "green") if section.result else Text("FAILED", "bold red")
        words = section.error or section.question
        rows.append((tag, [Text(f"{section.name}: {words} ({section.seconds:.1f} s)")]))
    screen.heading("Analyses")
    screen.tagged(rows)
    screen.blank()


def _headline(section: Section, screen: Screen) -> Text:
    """Return the figures that tell most, or what went wrong."""
    if section.result is None:
        return Text.assemble(("FAILED", "bold red"), f" {section.error}")
    summary = section.result.summary
    keys = [key for key in section.headline if key in summary] or list(summary)
    figures = [" ".join(shown_figure(key, summary[key])) for key in keys[:_MAX_HEADLINE]]
    return Text((" · " if screen.is_unicode else " | ").join(figures))


def _checks(report: Report) -> Text:
    statuses = _statuses(report)
    parts = [
        f"{statuses[status]} {words}"
        for status, words in (
            (CheckStatus.AGREE, "agree"),
            (CheckStatus.EXPLAINED, "explained"),
            (CheckStatus.ABSENT, "without a counter in this kernel"),
        )
        if statuses[status]
    ]
    differing = [
        f"{name}: {printable(check.name)} {shown_difference(check)}"
        for name, result in report.results.items()
        for check in result.checks
        if check.status is CheckStatus.DIFFER
    ]
    text = Text(", ".join(parts) or ("" if differing else "none"))
    if differing:
        text.append(f"{', ' if parts else ''}{len(differing)} DIFFER", "bold yellow")
        text.append(f" ({'; '.join(differing)})")
    return text


def _gaps(report: Report) -> Text:
    gaps = [
        f"{name}: {gap.count:,} {printable(gap.what)}"
        for name, result in report.results.items()
        for gap in result.gaps
    ]
    if not gaps:
        return Text("none")
    return Text.assemble((f"{len(gaps)} MISSING", "bold yellow"), f" ({_some(gaps)})")


def _some(texts: Sequence[str], limit: int = 5) -> str:
    """Return the texts, or the first of them and how many more there are."""
    more = len(texts) - limit
    return "; ".join(texts[:limit]) + (f"; and {more} more" if more > 0 else "")


def _statuses(report: Report) -> Counter[CheckStatus]:
    return Counter(check.status for result in report.results.values() for check in result.checks)


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
