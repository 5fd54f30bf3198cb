# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results as one HTML page without scripts, fonts, pictures or links to other files.

Jinja makes every text printable, then escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from kcensus.human import human
from kcensus.render.directory import replacing
from kcensus.render.plain import label, plain_column, remedy_text, shown_figure
from kcensus.reports import Report, Section
from kcensus.results import Finding, Result, Unit, rank
from kcensus.results.tables import Column, Show, Table
from kcensus.text import printable

_MAX_ROWS = 1000
"""Rows of a table on the page; JSON, CSV and Parquet have all."""


def write_html(result: Result, path: Path) -> list[Path]:
    """Write ``result`` to ``path`` and return the files written."""
    findings = [("", finding) for finding in sorted(result.findings, key=rank)]
    return _write(result, findings, [Section(result.analysis, "", result)], path)


def write_report_html(report: Report, path: Path) -> list[Path]:
    """Write a report to ``path`` and return the files written."""
    return _write(report.head, report.findings, report.sections, path)


def _write(
    head: Result,
    findings: Sequence[tuple[str, Finding]],
    sections: Sequence[Section],
    path: Path,
) -> list[Path]:
    environment = Environment(
        loader=PackageLoader("kcensus.render", "templates"),
        autoescape=True,
        finalize=lambda value: printable(value) if isinstance(value, str) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["human"] = human
    page = environment.get_template("result.html").render(
        head=head,
        findings=findings,
        sections=sections,
        Unit=Unit,
        label=label,
        remedy_text=remedy_text,
        shown_figure=shown_figure,
        shown_table=_shown_table,
    )
    with replacing(path) as part:
        part.write_text(page, encoding="utf-8")
    return [path]


def _shown_table(table: Table) -> tuple[dict[str, Column], list[tuple[str, ...]]]:
    """Return the columns on the page, and the cells of the first rows."""
    frame = table.frame.head(_MAX_ROWS)
    columns = {key: column for key, column in table.columns.items() if column.show is not Show.DATA}
    cells = (
        [human(value, column.unit) for value in plain_column(frame[key])]
        for key, column in columns.items()
    )
    return columns, list(zip(*cells, strict=True))
