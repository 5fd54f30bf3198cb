# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results as one HTML page without fonts, pictures or links to other files of its own.

Jinja makes every text printable, then escapes it. The content security policy of the page allows
its one style sheet and its one script by their hashes, and nothing else. Without the script, the
page lacks buttons: to sort, to filter, to copy.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kcensus.analyses import analyses
from kcensus.catalogue import load
from kcensus.catalogue.model import Patch
from kcensus.human import human, human_ratio, shown_time
from kcensus.render.directory import replacing
from kcensus.render.html.charts import COLORS, charts, stack, svg
from kcensus.render.plain import (
    SCHEMA,
    Plain,
    installed_version,
    label,
    plain_column,
    shown_figure,
)
from kcensus.reports import Report, Section
from kcensus.results import CheckStatus, Finding, Machine, Result, Unit, matters, parts_of, rank
from kcensus.results.tables import Column, Show, Table
from kcensus.text import printable

_MAX_ROWS = 100
"""Rows of a table on the page; JSON, CSV and Parquet have all."""
_MAX_HEADLINE = 4
_MAX_LINKS = 3
"""Links to commits of a series; more are counted."""
_MAX_WORD = 24
"""Longer words, such as paths, may be broken after a separator."""
_MAX_PIECE = 40
"""Longer pieces of words may be broken anywhere."""
_SHORT_CELL, _LONG_CELL = 32, 60
"""Characters up to which a column of text has one line, and from which on it has several words in
a line."""
_PAGE_TERMS = ("check", "gap", "holds", "returns")
_NO_HOST = ("", "(none)")
"""Unknown, or what a kernel is called until ``sethostname()``."""
_PRINTED_ROWS = 25
"""Rows of a table on paper; ``page.css`` has the number, too."""


def write_html(result: Result, path: Path) -> list[Path]:
    """Write ``result`` to ``path`` and return the files written."""
    findings = [("", finding) for finding in sorted(result.findings, key=rank)]
    known = analyses().get(result.analysis)
    question, headline = (known.question, known.headline) if known else ("", ())
    section = Section(result.analysis, question, result, headline=headline)
    return _write(result, findings, [section], path)


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
        loader=PackageLoader("kcensus.render", "html"),
        autoescape=True,
        finalize=_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (
        (Path(__file__).parent / name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    explanations = _explanations(findings)
    page = environment.get_template("page.html").render(
        head=head,
        title=_title(head),
        facts=_machine_facts(head),
        ram_bytes=head.machine.ram_bytes if head.machine else None,
        cards=_cards(findings),
        parts=_parts(findings),
        severities=_severities(findings),
        anything_matters=any(matters(finding) for _, finding in findings),
        trust=_trust(sections),
        sections=sections,
        patches=_patches(findings),
        # Neither holds a name from a dump; both are to be left as they are.
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        Unit=Unit,
        anchor=_anchor,
        breakable=_breakable,
        charts=charts,
        figures=_figures,
        first_tables=_first_tables,
        human=human,
        human_ratio=human_ratio,
        links=_links,
        newline=Markup("\n"),
        printed_rows=_PRINTED_ROWS,
        places=_places,
        shown_figure=shown_figure,
        shown_tables=_shown_tables,
        stack=lambda parts: Markup(stack(parts)),
        svg=lambda chart: Markup(svg(chart)),
        explanations=explanations,
        terms=_terms(explanations),
        code=_code,
    )
    with replacing(path) as part:
        part.write_text(page, encoding="utf-8", newline="\n")
    return [path]


def _hash(text: str) -> str:
    """Return the hash of an inline element as a content security policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _text(value: object) -> object:
    """Make a text printable before Jinja escapes it; :class:`Markup` is both already."""
    is_raw = isinstance(value, str) and not isinstance(value, Markup)
    return printable(str(value)) if is_raw else value


def _readable(time: str) -> str:
    """Return a time of ISO 8601 in UTC as ``2026-01-31 12:00:00 UTC``."""
    return re.sub(r"T([\d:]+).*", r" \1 UTC", time)


def _title(head: Result) -> str:
    host = head.machine.host if head.machine else ""
    file = re.sub(r"\S*/(\S+/\S+)", r"\1", head.target)
    return f"kcensus {head.analysis} on {file if host in _NO_HOST else host}"


def _machine_facts(head: Result) -> list[tuple[str, str]]:
    """Return what is known of the machine, the dump and kcensus."""
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
        ("Kernel", machine.kernel or head.kernel),
        ("Build", machine.version),
        ("Build ID", machine.build_id),
        ("Dumped by", machine.taken_by),
        ("Target", head.target),
        ("kcensus", f"{installed_version()}, schema {SCHEMA}"),
    ]
    return [(name, value) for name, value in facts if value]


@dataclass(frozen=True)
class _Card:
    """A finding on the page."""

    analysis: str
    finding: Finding
    anchor: str


def _cards(findings: Sequence[tuple[str, Finding]]) -> list[_Card]:
    """Return the findings of the top level."""
    ids = {finding.id for _, finding in findings}
    return [
        _Card(analysis, finding, _anchor("finding", finding.id))
        for analysis, finding in findings
        if finding.part_of not in ids
    ]


def _parts(findings: Sequence[tuple[str, Finding]]) -> dict[str, list[_Card]]:
    """Return the findings below each one of the top level, by its id."""
    owners = {finding.id: analysis for analysis, finding in findings}
    every = [finding for _, finding in findings]
    return {
        top.id: [_Card(owners[part.id], part, _anchor("finding", part.id)) for part in parts]
        for top in every
        if (parts := parts_of(top, every))
    }


def _anchor(kind: str, name: str) -> str:
    """Return an id of an element; characters that neither ids nor links may have are hashed."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    digest = hashlib.sha256(printable(name).encode()).hexdigest()[:6]
    return f"{kind}-{plain}" if plain == name.replace(":", "-") else f"{kind}-{plain}-{digest}"


def _severities(findings: Sequence[tuple[str, Finding]]) -> list[tuple[str, int]]:
    """Return the severities that occur and how many findings of the top level have each."""
    counts = Counter(card.finding.severity for card in _cards(findings))
    return [(severity.name.lower(), counts[severity]) for severity in sorted(counts, reverse=True)]


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


@functools.cache
def _catalogue() -> Mapping[str, Patch]:
    return load().patches


def _patch_links() -> dict[str, str]:
    """Return the address of the first link of each patch that has any."""
    links = {name: _links(patch)[0] for name, patch in _catalogue().items()}
    return {name: addresses[0][1] for name, addresses in links.items() if addresses}


def _patches(findings: Sequence[tuple[str, Finding]]) -> dict[str, Patch]:
    """Return the patches that findings name, as far as the catalogue has them."""
    names = {finding.patch for _, finding in findings} - {""}
    return {name: _catalogue()[name] for name in names if name in _catalogue()}


def _links(patch: Patch) -> tuple[list[tuple[str, str]], int]:
    """Return words and address of links to the commits of a patch, or to its latest posting.

    :return: the links, and how many more commits there are
    """
    commits = [commit for commit in patch.commits if commit.hash]
    links = [
        (f"commit {commit.hash[:12]}", f"https://git.kernel.org/linus/{quote(commit.hash)}")
        for commit in commits[:_MAX_LINKS]
    ]
    postings = [posting for posting in patch.postings if posting.message_id]
    if not links and postings:
        latest = max(postings, key=lambda posting: posting.date)
        address = f"https://lore.kernel.org/all/{quote(latest.message_id, safe='@')}/"
        links = [(f"posting of {latest.date}", address)]
    return links, max(len(commits) - _MAX_LINKS, 0)


def _explain() -> Any:
    """Return the module that explains findings and terms; None where there is none."""
    return import_module("kcensus.explain") if find_spec("kcensus.explain") else None


def _explanations(findings: Sequence[tuple[str, Finding]]) -> dict[str, Any]:
    """Return the explanations of the findings, by kind, in the order of the findings."""
    kinds = dict.fromkeys(finding.kind for _, finding in findings)
    known = {kind: explain.explanation(kind) for kind in kinds} if (explain := _explain()) else {}
    return {kind: explanation for kind, explanation in known.items() if explanation}


def _terms(explanations: Mapping[str, Any]) -> dict[str, Any]:
    """Return the terms that explanations and the page itself use, in alphabetical order."""
    if not (explain := _explain()):
        return {}
    words = {*_PAGE_TERMS, *(word for each in explanations.values() for word in each.terms)}
    known = {term.name: term for term in map(explain.term, words) if term}
    return dict(sorted(known.items(), key=lambda item: item[0].lower()))


def _code(text: str) -> Markup:
    """Return a text of kcensus itself, words between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def _places(finding: Finding) -> list[tuple[str, int, str]]:
    """Return where the memory of a finding is: name, bytes and color, the largest first."""
    ordered = sorted(finding.memory.items(), key=lambda place: -place[1])
    most = len(COLORS) if len(ordered) <= len(COLORS) else len(COLORS) - 1
    rest = ordered[most:]
    if rest:
        ordered[most:] = [(f"{len(rest)} other places", sum(size for _, size in rest))]
    return [(name, size, color) for (name, size), color in zip(ordered, COLORS, strict=False)]


def _figures(section: Section) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the figures of the tiles of a section, and the others."""
    summary = section.result.summary if section.result else {}
    keys = [key for key in section.headline if key in summary] or list(summary)
    tiles = keys[:_MAX_HEADLINE]
    others = [key for key in summary if key not in tiles]
    return (
        [shown_figure(key, summary[key]) for key in tiles],
        [shown_figure(key, summary[key]) for key in others],
    )


def _first_tables(result: Result) -> Sequence[str]:
    """Return the tables that are open at first."""
    known = analyses().get(result.analysis)
    return known.first_tables if known and known.first_tables else tuple(result.tables)


@dataclass(frozen=True)
class _Shown:
    """A table as the page has it."""

    name: str
    title: str
    note: str
    total: int
    columns: Sequence[tuple[Column, str, str]]
    """Declaration, heading and class of each."""
    rows: Sequence[Sequence[tuple[str | Markup, str]]]
    """Text of each cell, and the number to sort by; empty where that is the text."""


def _shown_tables(result: Result) -> Iterator[_Shown]:
    """Yield the tables that have rows and are not too long for a screen."""
    for name, table in result.tables.items():
        if len(table.frame) and not table.detail:
            yield _shown_table(name, table)


def _shown_table(name: str, table: Table) -> _Shown:
    frame = table.frame.head(_MAX_ROWS)
    columns, cells = [], []
    for key, column in table.columns.items():
        values = plain_column(frame[key])
        is_empty = all(value is None or value == "" for value in values)
        if column.show is Show.DATA or (is_empty and column.show is not Show.ALWAYS):
            continue
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        style = "short" if longest <= _SHORT_CELL else "prose" if longest > _LONG_CELL else ""
        if not any(isinstance(value, str) for value in values):
            style = "n"
        columns.append((column, label(key, column.label), style))
        links = _patch_links() if key == "patch" else {}
        cells.append([_cell(value, column.unit, links) for value in values])
    title = label(name, table.title)
    rows = list(zip(*cells, strict=True))
    return _Shown(name, title, table.note, len(table.frame), columns, rows)


def _cell(value: Plain, unit: Unit, links: Mapping[str, str]) -> tuple[str | Markup, str]:
    text = human(value, unit)
    if isinstance(value, str):
        link = Markup('<a href="{}" rel="noreferrer">{}</a>')
        shown = _breakable(text)
        return link.format(links[value], shown) if value in links else shown, ""
    number = int(value) if isinstance(value, bool) else value
    return text, "" if number is None or text == str(number) else str(number)


def _breakable(text: str) -> Markup:
    """Return a text whose long words may be broken."""
    words = re.split(r"( +)", printable(text))
    return Markup().join(_pieces(word) if len(word) > _MAX_WORD else word for word in words)


def _pieces(word: str) -> Markup:
    pattern = rf"[^/,:;=@_-]{{1,{_MAX_PIECE}}}[/,:;=@_-]*|[/,:;=@_-]+"
    return Markup("<wbr>").join(re.findall(pattern, word))
