# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report on a fleet on a screen: what was read, the causes, then figures to act on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from kcensus.fleets.report import Report
from kcensus.fleets.report.causes import Cause
from kcensus.human import counted
from kcensus.render.screen import GUTTER, INDENT, Screen
from kcensus.render.screen.table import print_table
from kcensus.render.terminal import SEVERITY_STYLE
from kcensus.results import Result, Severity
from kcensus.text import printable

_FULL = 3
"""One of so many causes is shown with all lines, the first ones."""
_TAG = max(len(each.name) for each in Severity)
_MORE = "--html FILE writes a page to send, --json all rows, --table NAME shows one table"


def write_fleet(report: Report, console: Console, top: int = 10) -> None:
    """Print a report on a fleet.

    :param top: most causes, and twice the rows of each table; 0 for all
    """
    screen = Screen(console)
    result = report.result
    screen.prose(_headline(result))
    screen.tagged((Text(name), [Text(printable(words))]) for name, words in report.facts)
    screen.blank()
    _causes(report, screen, top)
    for gap in result.gaps:
        words = f"{gap.count:,} {gap.what}: {gap.reason}; {gap.effect}"
        screen.tagged([(Text("MISSING", "bold yellow"), [Text(printable(words))])], _TAG)
    for name in ("missing_patches", "outliers", "growth"):
        table = report.brief(name)
        if len(table.frame):
            print_table(name, table, screen, -(-top // 2))
    if len(report.fleet.reports):
        screen.prose(_MORE)


def write_dumps(report: Report, cause: Cause, console: Console, top: int = 10) -> None:
    """Print the dumps of a cause.

    :param top: rows of the table; 0 for all
    """
    screen, result = Screen(console), report.dumps(cause)
    screen.prose(_headline(result))
    screen.blank()
    _cause(cause, report, screen, is_full=True)
    screen.tagged([(Text(), [Text(printable(f"Most have: {cause.features}"))])], _TAG)
    if cause.explanation:
        screen.commands([f"kcensus explain {cause.explanation.kind}"], _TAG)
    screen.blank()
    for name, table in result.tables.items():
        print_table(name, table, screen, top)
    for gap in result.gaps:
        screen.prose(f"{gap.what.capitalize()}: {gap.count:,} more, {gap.reason}; {gap.effect}")


def write_tables(result: Result, console: Console, names: Sequence[str], top: int = 10) -> None:
    """Print some tables of a result, and nothing else.

    :param top: rows of each; 0 for all
    """
    screen = Screen(console)
    for name in names:
        print_table(name, result.tables[name], screen, top)


def _headline(result: Result) -> Text:
    return Text.assemble(("Reports", "bold"), f" in the store {printable(result.target)}")


def _causes(report: Report, screen: Screen, top: int) -> None:
    causes = report.causes
    if not causes:
        if len(report.fleet.reports) and not report.result.gaps:
            screen.prose(Text("Causes: none; nothing was found in any dump", "bold"))
            screen.blank()
        return
    shown = causes[: top or None]
    screen.heading(f"Causes ({len(causes):,})")
    for number, each in enumerate(shown):
        _cause(each, report, screen, is_full=not top or number < -(-top // _FULL))
    if len(causes) > len(shown):
        rest = causes[len(shown) :]
        dumps = counted(sum(each.dumps for each in rest), "dump")
        screen.prose(f"... and {len(rest):,} more causes of {dumps} (--top 0, or --table causes)")
    screen.prose("The dumps of a cause, and what differs in some:")
    screen.commands([report.show_command(causes[0])], 0)
    screen.blank()


def _cause(cause: Cause, report: Report, screen: Screen, *, is_full: bool) -> None:
    def prose(*lines: str, style: str = "") -> None:
        screen.tagged([(Text(), [Text(printable(words), style) for words in lines])], _TAG)

    def short(words: str) -> None:
        line = Text(printable(words))
        line.truncate(screen.prose_width - INDENT - _TAG - 2 * GUTTER, overflow="ellipsis")
        screen.tagged([(Text(), [line])], _TAG)

    tag = Text(cause.severity.name, SEVERITY_STYLE[cause.severity])
    extent = f"{cause.id}: {cause.extent(report.hosts)}"
    screen.tagged([(tag, [Text(printable(cause.title), "bold"), Text(printable(extent))])], _TAG)
    if cause.hosts > 1:
        short(f"Hosts: {cause.named_hosts}")
    (prose if is_full else short)(cause.shown_example)
    if is_full and cause.differing:
        prose(cause.differing)
    if cause.command:
        screen.commands([cause.command], _TAG)
    else:
        prose(f"Open {cause.opening}")
