# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results as one HTML page without fonts, pictures or links to other files of its own.

Jinja makes every text printable, then escapes it. The content security policy of the page allows
its one style sheet and its one script by their hashes, and nothing else. Without the script, the
page lacks buttons: to sort, to filter, to copy.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kcensus.analyses import analyses
from kcensus.charts import charts, picture
from kcensus.human import human, human_ratio, shown_time
from kcensus.render.directory import replacing
from kcensus.render.graphs.svg import legend
from kcensus.render.graphs.svg import svg as graph_svg
from kcensus.render.html.findings import (
    cards,
    explanations,
    parts,
    patches,
    places,
    severities,
    terms,
)
from kcensus.render.html.links import links
from kcensus.render.html.svg import stack, svg, swatch
from kcensus.render.html.tables import figures, first_tables, shown_tables, tiles
from kcensus.render.html.text import anchor, breakable, code, inert
from kcensus.render.plain import (
    SCHEMA,
    installed_version,
    machine_facts,
    memory_facts,
    notes,
    remarks,
    shown_figure,
)
from kcensus.reports import Report, Section
from kcensus.results import CheckStatus, Finding, Machine, Result, Unit, matters, rank

_NO_HOST = ("", "(none)")
"""Unknown, or what a kernel is called until ``sethostname()``."""
_PRINTED_ROWS = 25
"""Rows of a table on paper; ``page.css`` has the number, too."""
_CELL_ROWS, _CELL_TEXT = 20, 160
"""Rows of a table in a notebook, and characters of a text in it."""

Findings: TypeAlias = Sequence[tuple[str, Finding]]
"""Findings with the names of their analyses; empty where there is one."""


def write_html(result: Result, path: Path) -> list[Path]:
    """Write ``result`` to ``path`` and return the files written."""
    return _write(result, *_alone(result), path)


def write_report_html(report: Report, path: Path) -> list[Path]:
    """Write a report to ``path`` and return the files written."""
    return _write(report.head, report.findings, report.sections, path)


def cell_html(result: Result, first: Sequence[str]) -> str:
    """Return a result as a part of another page, such as a notebook; without scripts and ids.

    :param first: tables to show; the others are named
    """
    return _cell(result, *_alone(result), first)


def report_cell_html(report: Report) -> str:
    """Return findings and headlines of a report as a part of another page."""
    return _cell(report.head, report.findings, report.sections, ())


def _alone(result: Result) -> tuple[Findings, list[Section]]:
    """Return the findings of one result, and the section that it is in."""
    findings = [("", finding) for finding in sorted(result.findings, key=rank)]
    known = analyses().get(result.analysis)
    question, headline = (known.question, known.headline) if known else ("", ())
    return findings, [Section(result.analysis, question, result, headline=headline)]


def _write(head: Result, findings: Findings, sections: Sequence[Section], path: Path) -> list[Path]:
    style, script = _file("page.css"), _file("page.js")
    explained = explanations(findings)
    page = _render(
        "page.html",
        _context(head, findings, sections),
        is_page=True,
        facts=_machine_facts(head),
        severities=severities(findings),
        anything_matters=any(matters(finding) for _, finding in findings),
        # Neither holds a name from a dump; both are to be left as they are.
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        figures=figures,
        first_tables=first_tables,
        printed_rows=_PRINTED_ROWS,
        shown_figure=shown_figure,
        explanations=explained,
        terms=terms(explained),
    )
    with replacing(path) as new:
        new.write_text(page, encoding="utf-8", newline="\n")
    return [path]


def _cell(
    head: Result, findings: Findings, sections: Sequence[Section], first: Sequence[str]
) -> str:
    shown = [pair for pair in findings if matters(pair[1])] if len(sections) > 1 else findings
    return _render(
        "cell.html",
        _context(head, shown, sections),
        is_page=False,
        facts=machine_facts(head),
        style=Markup(_file("cell.css")),
        max_rows=_CELL_ROWS,
        max_text=_CELL_TEXT,
        shown_first=first or tuple(sections[0].result.tables if sections[0].result else ()),
        explanations={},
        minor=[pair for pair in findings if pair not in shown and not pair[1].part_of],
    )


def _context(head: Result, findings: Findings, sections: Sequence[Section]) -> dict[str, object]:
    """Return what templates need in any case."""
    return {
        "head": head,
        "title": _title(head),
        "ram_bytes": head.machine.ram_bytes if head.machine else None,
        "cards": cards(findings),
        "parts": parts(findings),
        "trust": _trust(sections),
        "sections": sections,
        "patches": patches(findings),
        "Unit": Unit,
        "anchor": anchor,
        "breakable": breakable,
        "charts": charts,
        "graph_legend": lambda: [(Markup(mark), words) for mark, words in legend()],
        "graph_svg": lambda panel: Markup(graph_svg(panel)),
        "headline": tiles,
        "human": human,
        "human_ratio": human_ratio,
        "links": links,
        "remarks": lambda check: "; ".join(remarks(check)),
        "newline": Markup("\n"),
        "picture": picture,
        "places": places,
        "shown_tables": shown_tables,
        "stack": lambda parts: Markup(stack(parts)),
        "svg": lambda chart: Markup(svg(chart)),
        "swatch": lambda color: Markup(swatch(color)),
        "code": code,
    }


def _render(template: str, context: Mapping[str, object], **more: object) -> str:
    environment = Environment(
        loader=PackageLoader("kcensus.render", "html"),
        autoescape=True,
        finalize=inert,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**context, **more)


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash of an inline element as a content security policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _title(head: Result) -> str:
    host = head.machine.host if head.machine else ""
    file = re.sub(r"\S*/(\S+/\S+)", r"\1", head.target)
    return f"kcensus {head.analysis} on {file if host in _NO_HOST else host}"


def _machine_facts(head: Result) -> list[tuple[str, str]]:
    """Return what is known of the machine, the dump and kcensus."""
    if head.compared:
        return machine_facts(head)
    machine = head.machine or Machine()
    time = (shown_time(machine.time) or "") if machine.time is not None else ""
    numbers = (
        ("Uptime", machine.uptime_seconds, Unit.SECONDS),
        ("RAM", machine.ram_bytes, Unit.BYTES),
        ("CPUs online", machine.cpus, Unit.COUNT),
        ("NUMA nodes", machine.nodes, Unit.COUNT),
    )
    facts = [
        ("Host", machine.host),
        (
            "Read at" if head.live else "Dumped at",
            re.sub(r"T(.*?)(\.\d+)?\+00:00", r" \1 UTC", time),
        ),
        *((name, "" if value is None else human(value, unit)) for name, value, unit in numbers),
        ("Memory", ", ".join(memory_facts(machine))),
        ("Kernel", machine.kernel or head.kernel),
        ("Build", machine.version),
        ("Build ID", machine.build_id),
        ("Dumped by", machine.taken_by),
        *((name, ", ".join(facts)) for name, facts in notes(machine).items()),
        ("Target", head.target),
        ("kcensus", f"{installed_version()}, schema {SCHEMA}"),
    ]
    return [(name, value) for name, value in facts if value]


def _trust(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Return how far to trust the page: the checks, the gaps, the analyses that failed."""
    results = [section.result for section in sections if section.result]
    statuses = Counter(check.status for result in results for check in result.checks)
    gaps = sum(len(result.gaps) for result in results)
    failed = [section.name for section in sections if not section.result]
    checks = ", ".join(
        f"{statuses[status]} {words}"
        for status, words in (
            (CheckStatus.AGREE, "agree"),
            (CheckStatus.EXPLAINED, "explained"),
            (CheckStatus.DIFFER, "differ"),
            (CheckStatus.ABSENT, "without a counter"),
        )
        if statuses[status]
    )
    facts = [("Checks", checks or "none")]
    facts.append(("Gaps", f"{gaps:,}" if gaps else "none"))
    return facts + ([("Failed analyses", ", ".join(failed))] if failed else [])
