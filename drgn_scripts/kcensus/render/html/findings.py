# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings on the page: cards, and their explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kcensus import explain
from kcensus.catalogue.model import Patch
from kcensus.charts import COLORS
from kcensus.explain import Explanation, Term
from kcensus.render.html.links import catalogue
from kcensus.render.html.text import anchor
from kcensus.results import Finding, parts_of

_PAGE_TERMS = ("check", "gap", "holds", "returns")
"""Terms of the page itself."""


@dataclass(frozen=True)
class Card:
    """A finding on the page."""

    analysis: str
    finding: Finding
    anchor: str


def cards(findings: Sequence[tuple[str, Finding]]) -> list[Card]:
    """Return the findings of the top level."""
    ids = {finding.id for _, finding in findings}
    return [
        Card(analysis, finding, anchor("finding", finding.id))
        for analysis, finding in findings
        if finding.part_of not in ids
    ]


def parts(findings: Sequence[tuple[str, Finding]]) -> dict[str, list[Card]]:
    """Return the findings below each one of the top level, by its id."""
    owners = {finding.id: analysis for analysis, finding in findings}
    every = [finding for _, finding in findings]
    return {
        top.id: [Card(owners[part.id], part, anchor("finding", part.id)) for part in below]
        for top in every
        if (below := parts_of(top, every))
    }


def severities(findings: Sequence[tuple[str, Finding]]) -> list[tuple[str, int]]:
    """Return the severities that occur and how many findings of the top level have each."""
    counts = Counter(card.finding.severity for card in cards(findings))
    return [(severity.name.lower(), counts[severity]) for severity in sorted(counts, reverse=True)]


def places(finding: Finding) -> list[tuple[str, int, str]]:
    """Return where the memory of a finding is: name, bytes and color, the largest first."""
    ordered = sorted(finding.memory.items(), key=lambda place: -place[1])
    most = len(COLORS) if len(ordered) <= len(COLORS) else len(COLORS) - 1
    rest = ordered[most:]
    if rest:
        ordered[most:] = [(f"{len(rest)} other places", sum(size for _, size in rest))]
    return [(name, size, color) for (name, size), color in zip(ordered, COLORS, strict=False)]


def patches(findings: Sequence[tuple[str, Finding]]) -> dict[str, Patch]:
    """Return the patches that findings name, as far as the catalogue has them."""
    names = {finding.patch for _, finding in findings} - {""}
    return {name: catalogue()[name] for name in names if name in catalogue()}


def explanations(findings: Sequence[tuple[str, Finding]]) -> dict[str, Explanation]:
    """Return the explanations of the findings, by kind, in the order of the findings."""
    known = {finding.kind: explain.explanation(finding.kind) for _, finding in findings}
    return {kind: explanation for kind, explanation in known.items() if explanation}


def terms(explanations: Mapping[str, Explanation]) -> list[Term]:
    """Return the terms that explanations and the page itself use, in alphabetical order."""
    words = {*_PAGE_TERMS, *(word for each in explanations.values() for word in each.terms)}
    known = {term.name: term for term in map(explain.term, words) if term}
    return sorted(known.values(), key=lambda term: term.name.lower())
