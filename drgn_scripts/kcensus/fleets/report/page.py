# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report on a fleet as a page to send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kcensus.fleets.report import Report
from kcensus.render.html import write_html
from kcensus.render.html.tables import shown_tables
from kcensus.render.plain import installed_version

_MAX_CAUSES = 100
_FEW = 5
"""Most reasons of failures to show above the causes without a click."""


def write_page(report: Report, path: Path) -> None:
    """Write the page.

    :raises OutputError: the file cannot be written
    """
    result = report.result
    tables = {name: report.brief(name) for name in result.tables if name != "causes"}
    shown = {each.name: each for each in shown_tables(replace(result, tables=tables))}
    write_html(
        result,
        path,
        "fleet.html",
        facts=[*filter(all, report.facts), ("kcensus", installed_version())],
        failures=shown.pop("failures", None),
        few=_FEW,
        tables=[*shown.values()],
        causes=report.causes[:_MAX_CAUSES],
        number_of_causes=len(report.causes),
        number_of_hosts=report.hosts,
        number_of_reports=len(report.fleet.reports),
        show_command=report.show_command,
    )
