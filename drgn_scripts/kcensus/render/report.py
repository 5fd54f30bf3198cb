# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report on a screen: findings, a line per analysis, and how far to trust them."""

from __future__ import annotations

import re
from collections import Counter

from rich.console import Console
from rich.text import Text

from kcensus.human import counted, listed
from kcensus.render import terminal
from kcensus.render.plain import plain, shown_figure
from kcensus.render.reply.missing import Missing, missing
from kcensus.render.screen import Screen
from kcensus.reports import Report, Section
from kcensus.results import Bound, CheckStatus, matters
from kcensus.text import printable

_MAX_HEADLINE = 3
"""Most figures in the line of an analysis."""
_MAX_GAPS = 5
"""Most gaps to name; more are counted."""
_INSTALL = re.compile("install it with `([^`]+)`")
_MORE = "--full adds evidence, further remedies, and the figures and tables of all analyses"
_MORE_LIVE = """\
This kernel runs on: --json run.json keeps this report; `kcensus report run.json --full` adds its
evidence, further remedies, gaps, and the figures and tables of all analyses"""
_ONE = "`kcensus ANALYSIS` instead of `kcensus report` shows one analysis"


def write_report(
    report: Report, console: Console, top: int = 10, full: bool = False, every: bool = False
) -> None:
    """Print a report.

    :param top: most findings, and rows of each table; 0 for all
    :param full: also print evidence and further remedies of findings, and the figures and tables of
        all analyses
    :param every: as full, and show all figures and tables, including zeros
    """
    full = full or every
    screen = Screen(console)
    terminal.print_header(report.head, screen)
    findings = report.findings
    if not any(matters(finding) for _, finding in findings):
        screen.prose(Text(_health(report), style="bold"))
        screen.blank()
    if findings:
        terminal.print_findings(
            findings, screen, 0 if full else top, short=not full, head=report.head
        )
    if full:
        screen.section("Analyses", map(_duration, report.sections))
        for section in report.sections:
            if section.result:
                screen.heading(f"{section.name}: {section.question}", "bold reverse")
                screen.blank()
                terminal.print_figures(section.result, screen, top, every=every)
                screen.blank()
        return
    lines = [
        (Text(section.name), [_headline(section, report, screen)]) for section in report.sections
    ]
    screen.section("Analyses", lines)
    words = f"{_MORE_LIVE if report.head.live else _MORE}\n{_ONE}"
    if report.capsule:
        command = printable(report.capsule)
        words += f"\n`{command}` extracts what the analyses need, small enough to send"
    trust = {"Checks": _checks(report), "Gaps": _gaps(report), "More": Text(words)}
    screen.tagged((Text(tag), [words]) for tag, words in trust.items())


def _health(report: Report) -> str:
    statuses, gaps = _statuses(report), len(missing(report.results))
    subject = "Nothing serious found" if report.findings else "Nothing found"
    is_panic = report.head.machine is not None and report.head.machine.is_panic
    panic = " The panic itself is not analysed." * is_panic
    differing, checks = statuses[CheckStatus.DIFFER], statuses.total()
    faults = {
        f"{counted(len(report.errors), 'analysis', plural='analyses')} failed": report.errors,
        f"{differing} of {counted(checks, 'check')} differ{'s' * (differing == 1)}": differing,
        counted(gaps, "gap"): gaps,
    }
    if any(faults.values()):
        words = ", ".join(fault for fault, is_there in faults.items() if is_there)
        return f"{subject}, but {words} (see below).{panic}"
    agree, explained = statuses[CheckStatus.AGREE], statuses[CheckStatus.EXPLAINED]
    differ = f", {explained} differ{'s' * (explained == 1)} as explained" if explained else ""
    return f"{subject}: {counted(agree, 'check', 'agree')}{differ}, no gaps.{panic}"


def _duration(section: Section) -> tuple[Text, list[Text]]:
    tag = Text("DONE", "green") if section.result else Text("FAILED", "bold red")
    words = section.error or section.question
    seconds = f" ({section.seconds:.1f} s)" if section.seconds else ""  # 0: read from a document
    return tag, [Text(f"{section.name}: {words}{seconds}")]


def _headline(section: Section, report: Report, screen: Screen) -> Text:
    if section.result is None:
        return Text.assemble(("FAILED", "bold red"), f" {section.error}")
    if section.result.nothing:
        return Text(printable(section.result.nothing))
    summary = section.result.summary
    keys = section.headline_keys(_MAX_HEADLINE)
    # A single 0 says it.
    figures = [
        " ".join(shown_figure(key, summary[key]))
        for key in keys
        if key == keys[0] or plain(summary[key].value) != 0 or summary[key].bound is not Bound.EXACT
    ]
    if section.name == "patches" and report.findings:
        absent = section.result.summary.get("absent")
        has_cause = any(finding.patch for _, finding in report.findings)
        if absent is not None and absent.value and not has_cause:
            figures.append("none tied to a finding")
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
        f"{name}: {printable(check.name)} {terminal.shown_difference(check)}"
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
    parts = missing(report.results)
    if not parts:
        return Text("none")
    every = (gap for result in report.results.values() for gap in result.gaps)
    packages = dict.fromkeys(word for gap in every for word in _INSTALL.findall(gap.reason))
    named = f" ({listed([_part(each) for each in parts], _MAX_GAPS, '; ')})"
    install = "".join(f"; install with `{printable(command)}`" for command in packages)
    return Text.assemble((f"{len(parts)} MISSING", "bold yellow"), named, install)


def _part(part: Missing) -> str:
    names = ", ".join(part.analyses)
    return f"{part.subject}: affects {names}" if part.is_debug_info else f"{names}: {part.subject}"


def _statuses(report: Report) -> Counter[CheckStatus]:
    return Counter(check.status for result in report.results.values() for check in result.checks)
