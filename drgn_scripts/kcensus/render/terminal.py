# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result on a screen: findings, then the figures, then checks and gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kcensus import results
from kcensus.human import counted, human, listed
from kcensus.render import plain
from kcensus.render.placeholders import addressed
from kcensus.render.screen import Screen
from kcensus.render.screen.table import print_table
from kcensus.results.findings import leaders
from kcensus.results.tables import Show
from kcensus.text import printable

_MAX_NAMED = 4
"""Most checks that agree to name; more are counted."""
_MAX_PARTS = 3
"""Most symptoms of each finding in a short report."""
_FIRST = 3
"""Most telling figures of a summary, which are shown even if they are 0."""
_MAX_ZEROS = 3
"""Most zeros among the other figures to show; more are counted."""
_REPLACED = (
    "Do not run this as it is: its names are pseudonyms (redacted capsule). `kcensus report` on "
    "the original dump has the command with the real names."
)
SEVERITY_STYLE = {
    results.Severity.CRITICAL: "bold red",
    results.Severity.WARNING: "bold yellow",
    results.Severity.NOTICE: "bold cyan",
    results.Severity.INFO: "bold",
}
_TAG_WIDTH = max(len(severity.name) for severity in results.Severity)


def write_terminal(
    result: results.Result,
    console: Console,
    top: int = 10,
    tables: Sequence[str] = (),
    first: Sequence[str] = (),
    *,
    every: bool = False,
) -> None:
    """Print ``result``.

    :param top: rows of each table; 0 for all
    :param tables: names of the tables to print
    :param first: names of the tables to print if ``tables`` is empty, without the detailed ones;
        all if this is empty too
    :param every: print all tables and figures, including empty ones and zeros
    """
    screen = Screen(console)
    print_header(result, screen)
    if result.findings:
        findings = sorted(result.findings, key=results.rank)
        named = [("", finding) for finding in findings]
        print_findings(named, screen, head=result)
    elif result.measures:
        screen.prose(f"Findings: none{' in the readable part (see Gaps)' if result.gaps else ''}")
        screen.blank()
    print_figures(result, screen, top, tables, first, every=every)


def print_header(result: results.Result, screen: Screen) -> None:
    """Print the analysis and the machine of a result."""
    screen.prose(
        Text.assemble((printable(result.analysis), "bold"), f" on {printable(result.target)}")
    )
    screen.tagged((Text(name), [Text(facts)]) for name, facts in plain.machine_facts(result))
    screen.blank()


def print_findings(
    named: Sequence[tuple[str, results.Finding]],
    screen: Screen,
    top: int = 0,
    *,
    short: bool = False,
    head: results.Result,
) -> None:
    """Print findings in the given order, each with its parts.

    :param named: findings, with the names of their analyses or nothing
    :param top: most findings to print; 0 for all
    :param short: leave out evidence, further remedies, and all but the title of lesser findings
    :param head: of the same target
    """
    named = addressed(named, head.placeholders)
    findings = [finding for _, finding in named]
    leading = leaders(named)
    has_pseudonyms = (head.machine or results.Machine()).has_pseudonyms
    screen.heading("Findings")
    for name, finding in leading[: top or None]:
        parts = results.parts_of(finding, findings)
        _print_finding(name, finding, parts, screen, short, has_pseudonyms)
    if top and len(leading) > top:
        screen.prose(f"... and {counted(len(leading) - top, 'more finding')} (use --top 0)")
    screen.blank()


def _print_finding(
    name: str,
    finding: results.Finding,
    parts: Sequence[results.Finding],
    screen: Screen,
    short: bool,
    has_pseudonyms: bool,
) -> None:
    def prose(*paragraphs: str) -> None:
        texts = [Text(printable(words)) for words in paragraphs if words]
        if texts:
            screen.tagged([(Text(), texts)], _TAG_WIDTH)

    severity = finding.severity
    prefix = f"{name}: " if name and finding.danger is not results.Danger.INCOMPLETE else ""
    title = Text(printable(f"{prefix}{finding.title}"), style="bold")
    tag = "ALSO" if finding.part_of else severity.name
    screen.tagged([(Text(tag, SEVERITY_STYLE[severity]), [title])], _TAG_WIDTH)
    if short and not results.matters(finding):
        prose(f"kcensus explain {finding.kind}")
        return
    if not short:
        prose(*(f"#{number} {line}" for number, line in enumerate(finding.story, 1)))
        prose(finding.evidence)
    shown = finding.remedies[:1] if short else finding.remedies
    for remedy in shown:
        is_machines = bool(remedy.command) and not remedy.command.startswith("kcensus ")
        warning = _REPLACED if has_pseudonyms and is_machines else ""
        prose(remedy.effect.rstrip(".") + (":" if remedy.command and not warning else "."), warning)
        screen.commands(remedy.command.splitlines(), _TAG_WIDTH)
        facts = plain.remedy_facts(remedy, finding.holds)
        prose(_joined([f"{name}: {fact}" for name, fact in facts.items()], screen))
        screen.commands([f"Undo: {line}" for line in remedy.undo.splitlines()], _TAG_WIDTH, None)
    if finding.no_remedy:
        prose(f"{'' if shown else 'Next: '}{finding.no_remedy}.")
    more = len(finding.remedies) - len(shown)
    about = (
        f"Holds: {human(finding.holds, results.Unit.BYTES)}" if finding.holds else "",
        f"kcensus explain {finding.kind}" if results.matters(finding) or finding.holds else "",
        plain.patch_text(finding) if finding.patch_is_fix or not short else "",
        f"{counted(more, 'more remedy', plural='more remedies')}: --full" if more else "",
    )
    named = listed([_part(each) for each in parts], _MAX_PARTS, "; ") if short else ""
    prose(_joined(about, screen), f"Also explains: {named}" if named else "")
    if not short:
        for part in parts:
            _print_finding("", part, (), screen, short, has_pseudonyms)


def _part(finding: results.Finding) -> str:
    """Return the id of a part of a finding, and its bytes or tasks as in its own title."""
    size = human(finding.holds, results.Unit.BYTES) if finding.holds else ""
    if not size and (tasks := finding.figures.get("tasks")) and tasks.value:
        size = counted(int(tasks.value), "task")
    return f"{finding.id} ({size})" if size else finding.id


def _joined(facts: Sequence[str], screen: Screen) -> str:
    return (" · " if screen.is_unicode else " | ").join(filter(None, facts))


def print_figures(
    result: results.Result,
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
    contents = {name for name, table in result.tables.items() if plain.has_content(table)}
    usual = [name for name in first or result.tables if name in contents]
    names = tables or [name for name in usual if not result.tables[name].detail]
    for name in names:
        if name in result.tables:
            print_table(name, result.tables[name], screen, top)
        else:
            screen.prose(f"Table {name}: not part of this result")
            screen.blank()
    others: dict[str, list[str]] = {
        "More tables (--table NAME, --all, --json)": [],
        "Empty or zero (--all)": [],
        "Unknown (see Gaps)": [],
    }
    more, empty, unknown = others.values()
    for name, table in result.tables.items():
        columns = table.columns.values()
        if name not in names and any(column.show is not Show.DATA for column in columns):
            place = unknown if not table.is_known else more if name in contents else empty
            place.append(name)
    for heading, rest in others.items():
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


def _print_summary(result: results.Result, screen: Screen, every: bool) -> None:
    figures = result.summary
    zeros = [key for key in [*figures][_FIRST:] if plain.is_zero(figures[key])]
    if every or len(zeros) <= _MAX_ZEROS:
        zeros = []
    unknown = [key for key, each in figures.items() if plain.plain(each.value) is None]
    unknown = [] if every else unknown
    hidden = {*zeros, *unknown}
    shown = [plain.shown_figure(key, figures[key]) for key in figures if key not in hidden]
    if shown:
        screen.heading("Summary")
        screen.pairs(shown)
    others = {"are 0": zeros, "are unknown": unknown}
    counts = [f"{len(keys)} {value}" for value, keys in others.items() if keys]
    if counts:
        screen.prose(f"Other figures: {', '.join(counts)} (--all shows them)")
    if figures:
        screen.blank()


def shown_difference(check: results.Check) -> str:
    """Return the difference of a check with its sign."""
    sign = "+" if check.difference is not None and check.difference > 0 else ""
    return sign + human(check.difference, check.unit)


def _checks(checks: Sequence[results.Check]) -> Iterator[tuple[Text, list[Text]]]:
    statuses = [results.CheckStatus[name] for name in ("AGREE", "EXPLAINED", "DIFFER", "ABSENT")]
    agree, explained, differ, absent = (
        [check for check in checks if check.status is status] for status in statuses
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
            *plain.remarks(check),
        )
        style = "bold yellow" if check.status is results.CheckStatus.DIFFER else "bold"
        yield (
            Text(check.status.name, style),
            [Text(printable(words)) for words in paragraphs if words],
        )
    if absent:
        names = ", ".join(check.name for check in absent)
        yield Text("ABSENT"), [Text(printable(f"this kernel has no counter for: {names}"))]


def _gap(gap: results.Gap) -> tuple[Text, list[Text]]:
    sentences = f"{plain.gap_subject(gap.what, gap.count)}: {gap.reason}", f"Effect: {gap.effect}"
    return Text("MISSING", "bold yellow"), [Text(printable(words)) for words in sentences]
