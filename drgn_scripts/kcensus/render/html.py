# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results as one HTML page without scripts, fonts, pictures or links to other files.

Jinja escapes every value; all text is printable before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from kcensus.human import human
from kcensus.render.directory import replacing
from kcensus.render.plain import plain, plain_column
from kcensus.reports import Report
from kcensus.results import Finding, Result, Severity, Unit, rank
from kcensus.results.tables import Show, Table
from kcensus.text import printable

_MAX_ROWS = 1000
"""Rows of a table on the page; JSON, CSV and Parquet have all."""


def write_html(result: Result, path: Path) -> list[Path]:
    """Write ``result`` to ``path`` and return the files written."""
    findings = [("", finding) for finding in sorted(result.findings, key=rank)]
    return _write(result, findings, [_section(result)], path)


def write_report_html(report: Report, path: Path) -> list[Path]:
    """Write a report to ``path`` and return the files written."""
    whole = Result("report", report.target, report.kernel, report.live)
    sections = [
        _section(section.result, section.question)
        if section.result
        else {"name": section.name, "question": section.question, "error": section.error}
        for section in report.sections
    ]
    return _write(whole, report.findings, sections, path)


def _write(
    whole: Result,
    findings: Sequence[tuple[str, Finding]],
    sections: Sequence[dict[str, Any]],
    path: Path,
) -> list[Path]:
    environment = Environment(
        loader=PackageLoader("kcensus.render", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("result.html").render(
        analysis=printable(whole.analysis),
        target=printable(whole.target),
        kernel=printable(whole.kernel),
        live=whole.live,
        measures=whole.measures,
        findings=[_finding(name, finding) for name, finding in findings],
        sections=sections,
    )
    with replacing(path) as part:
        part.write_text(page, encoding="utf-8")
    return [path]


def _finding(analysis: str, finding: Finding) -> dict[str, str]:
    return {
        "severity": Severity(finding.severity).name.lower(),
        "title": printable(f"{analysis}: {finding.title}" if analysis else finding.title),
        "evidence": printable(finding.evidence),
        "remedy": printable(finding.remedy),
        "patch": printable(finding.patch),
        "cost": "" if finding.cost_bytes is None else human(finding.cost_bytes, Unit.BYTES),
    }


def _section(result: Result, question: str = "") -> dict[str, Any]:
    return {
        "name": printable(result.analysis),
        "question": question,
        "error": "",
        "measures": result.measures,
        "summary": [
            (_label(figure.label, key), human(plain(figure.value), figure.unit))
            for key, figure in result.summary.items()
        ],
        "tables": [_table(name, table) for name, table in result.tables.items()],
        "checks": [
            {
                "status": check.status.value,
                "name": printable(check.name),
                "ours": human(check.ours, check.unit),
                "counter": human(check.counter, check.unit),
                "difference": human(check.difference, check.unit),
                "source": printable(check.source),
                "note": printable(check.note),
            }
            for check in result.checks
        ],
        "gaps": [
            {
                "what": f"{gap.count:,} {printable(gap.what)}",
                "reason": printable(gap.reason),
                "effect": printable(gap.effect),
            }
            for gap in result.gaps
        ],
    }


def _label(label: str, key: str) -> str:
    return printable(label or key.replace("_", " "))


def _table(name: str, table: Table) -> dict[str, Any]:
    frame = table.frame.head(_MAX_ROWS)
    shown = {key: column for key, column in table.columns.items() if column.show is not Show.DATA}
    cells = [
        [human(value, column.unit) for value in plain_column(frame[key])]
        for key, column in shown.items()
    ]
    return {
        "title": _label(table.title, name),
        "note": printable(table.note),
        "headings": [
            {
                "label": _label(column.label, key),
                "is_text": column.unit is Unit.TEXT,
                "help": printable(column.help),
            }
            for key, column in shown.items()
        ],
        "rows": list(zip(*cells, strict=True)),
        "total": len(table.frame),
        "more": len(table.frame) - len(frame),
    }
