# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report on a fleet as a page to send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kcensus.fleets.report import Report
from kcensus.fleets.report.causes import Cause
from kcensus.render.html import write_html
from kcensus.render.html.tables import ShownTable, shown_tables
from kcensus.render.plain import installed_version
from kcensus.results.tables import Show
from kcensus.text import printable

_MAX_CAUSES = 100
_MAX_DUMPS = 20
"""Most dumps of a cause."""
_ELSEWHERE = {"causes", "dumps", "failures"}
"""Tables that cards of causes, and the head, have the rows of."""


def write_page(report: Report, path: Path) -> None:
    """Write the page.

    :raises OutputError: the file cannot be written
    """
    result = report.result
    tables = {name: report.brief(name) for name in result.tables if name not in _ELSEWHERE}
    shown = {each.name: _roomy(each) for each in shown_tables(replace(result, tables=tables))}
    write_html(
        result,
        path,
        "fleet.html",
        facts=[*filter(all, report.facts), ("kcensus", installed_version())],
        title=f"Reports in the store {printable(result.target)}",
        tables=[*shown.values()],
        causes=report.causes[:_MAX_CAUSES],
        number_of_causes=len(report.causes),
        number_of_hosts=report.hosts,
        number_of_reports=len(report.fleet.reports),
        show_command=report.show_command,
        dumps=lambda cause: _dumps(report, cause),
    )


def _dumps(report: Report, cause: Cause) -> ShownTable:
    """Return the first dumps of a cause; it has one at least."""
    return _roomy(next(shown_tables(report.dumps(cause), _MAX_DUMPS)))


def _roomy(table: ShownTable) -> ShownTable:
    """Return a table whose wide columns a narrow screen leaves out."""
    columns = [
        (column, heading, f"{style} roomy".strip() if column.show is Show.WIDE else style)
        for column, heading, style in table.columns
    ]
    return replace(table, columns=columns)
