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
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from markupsafe import Markup

from kcensus.analyses.drawings import charts
from kcensus.charts.forecast import forecasts
from kcensus.human import human, human_ratio
from kcensus.outputs import replacing
from kcensus.render.graphs.forecast import svg as forecast_svg
from kcensus.render.graphs.svg import legend
from kcensus.render.graphs.svg import svg as graph_svg
from kcensus.render.html import cards
from kcensus.render.html.svg import stack, svg, swatch
from kcensus.render.html.tables import figures, first_tables, nonzero_tiles, shown_tables, tiles
from kcensus.render.html.text import anchor, breakable, code, rendered
from kcensus.render.placeholders import addressed
from kcensus.render.plain import NO_HOST, machine_facts, remarks, remedy_facts, shown_figure
from kcensus.render.reply.missing import missing, missing_words
from kcensus.reports import Report, Section
from kcensus.results import CheckStatus, Finding, Result, Unit, matters, rank
from kcensus.results.findings import leaders
from kcensus.results.graphs import picture_of

_FOLDER = ("kcensus.render", "html")
_PRINTED_ROWS = 12
"""Rows of a table on paper; ``page.css`` has the number, too."""
_CELL_ROWS, _CELL_TEXT = 20, 160
"""Rows of a table in a notebook, and characters of a text in it."""

Findings: TypeAlias = Sequence[tuple[str, Finding]]
"""Findings with the names of their analyses; the names are empty if there is one analysis."""


def write_html(
    subject: Result | Report,
    path: Path,
    template: str = "page.html",
    *,
    brief: bool = False,
    **more: object,
) -> list[Path]:
    """Write a result or a report to ``path`` and return the files written, as :func:`page_html`."""
    page = page_html(subject, template, brief=brief, **more)
    with replacing(path) as new:
        new.write_text(page, encoding="utf-8", newline="\n")
    return [path]


def page_html(
    subject: Result | Report, template: str = "page.html", *, brief: bool = False, **more: object
) -> str:
    """Return a result or a report as a page.

    :param template: a file in this folder that extends ``page.html``
    :param brief: show findings and their explanations alone
    :param more: what the template needs
    """
    head, findings, sections = _parts(subject)
    style, script = _file("page.css"), _file("page.js")
    sections, quiet = _by_urgency(findings, sections)
    explained = cards.explanations(leaders(findings) if brief else findings)
    context = _context(head, findings, sections) | {
        "is_page": True,
        "is_brief": brief,
        "quiet": quiet,
        "facts": [*machine_facts(head), *([] if head.compared else [("Target", head.target)])],
        "severities": cards.severities(findings),
        "anything_matters": any(matters(finding) for _, finding in findings),
        # Neither contains a name from a dump; both must stay as they are.
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "figures": figures,
        "first_tables": first_tables,
        "printed_rows": _PRINTED_ROWS,
        "shown_figure": shown_figure,
        "explanations": explained,
        "terms": cards.terms(explained),
    }
    return rendered(*_FOLDER, template, **{**context, **more})


def cell_html(subject: Result | Report, first: Sequence[str] = ()) -> str:
    """Return a result, or findings and headlines of a report, as a part of another page.

    It has neither scripts nor ids, so that it fits into a notebook.

    :param first: tables of the result to show; the others are named
    """
    head, findings, sections = _parts(subject)
    shown = [pair for pair in findings if matters(pair[1])] if len(sections) > 1 else findings
    return rendered(
        *_FOLDER,
        "cell.html",
        **_context(head, shown, sections),
        is_page=False,
        facts=machine_facts(head),
        style=Markup(_file("cell.css")),
        max_rows=_CELL_ROWS,
        max_text=_CELL_TEXT,
        nonzero=nonzero_tiles,
        shown_first=first or tuple(sections[0].result.tables if sections[0].result else ()),
        explanations={},
        minor=[pair for pair in findings if pair not in shown and not pair[1].part_of],
    )


def _parts(subject: Result | Report) -> tuple[Result, Findings, list[Section]]:
    if isinstance(subject, Report):
        findings = addressed(subject.findings, subject.head.placeholders)
        return subject.head, findings, subject.sections
    named = [("", finding) for finding in sorted(subject.findings, key=rank)]
    findings = addressed(named, subject.placeholders)
    return subject, findings, [Section(subject.analysis, subject)]


def _by_urgency(
    findings: Findings, sections: Sequence[Section]
) -> tuple[list[Section], frozenset[str]]:
    """Return the sections in the order of their findings, and the names of those without any.

    A failed analysis comes first, and one that is alone is never without content.
    """
    order = {name: at for at, (name, _) in reversed([*enumerate(findings)])}
    places = {
        section.name: order.get(section.name, len(findings)) if section.result else -1
        for section in sections
    }
    quiet = {name for name, place in places.items() if place == len(findings)}
    ordered = sorted(sections, key=lambda section: places[section.name])
    return ordered, frozenset(quiet if len(sections) > 1 else ())


def _context(head: Result, findings: Findings, sections: Sequence[Section]) -> dict[str, object]:
    return {
        "head": head,
        "is_brief": False,
        "title": _title(head),
        "ram_bytes": head.machine.ram_bytes if head.machine else None,
        "cards": leaders(findings),
        "parts": cards.parts(findings),
        "trust": _trust(sections),
        "missing_words": missing_words(_results(sections)),
        "sections": sections,
        "patches": cards.patches(findings),
        "Unit": Unit,
        "anchor": anchor,
        "breakable": breakable,
        "charts": charts,
        "forecasts": forecasts,
        "forecast_svg": lambda forecast: Markup(forecast_svg(forecast)),
        "graph_legend": lambda: [(Markup(mark), words) for mark, words in legend()],
        "graph_svg": lambda panel: Markup(graph_svg(panel)),
        "headline": tiles,
        "human": human,
        "human_ratio": human_ratio,
        "links": cards.links,
        "remedy_facts": remedy_facts,
        "remarks": lambda check: "; ".join(remarks(check)),
        "newline": Markup("\n"),
        "picture": picture_of,
        "places": cards.places,
        "shown_tables": shown_tables,
        "stack": stack,
        "svg": svg,
        "swatch": swatch,
        "code": code,
    }


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _title(head: Result) -> str:
    host = head.machine.host if head.machine else ""
    file = re.sub(r"\S*/(\S+/\S+)", r"\1", head.target)
    return f"kcensus {head.analysis} on {file if host in ('', NO_HOST) else host}"


def _results(sections: Sequence[Section]) -> dict[str, Result]:
    return {section.name: section.result for section in sections if section.result}


def _trust(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Return the counts of checks, gaps and failed analyses."""
    results = _results(sections)
    statuses = Counter(check.status for result in results.values() for check in result.checks)
    gaps = len(missing(results))
    failed = [section.name for section in sections if not section.result]
    words = {
        CheckStatus.AGREE: "agree",
        CheckStatus.EXPLAINED: "explained",
        CheckStatus.DIFFER: "differ",
        CheckStatus.ABSENT: "without a counter",
    }
    checks = ", ".join(f"{statuses[key]} {words[key]}" for key in words if statuses[key])
    facts = [("Checks", checks or "none"), ("Gaps", f"{gaps:,}" if gaps else "none")]
    return facts + ([("Failed analyses", ", ".join(failed))] if failed else [])
