# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings on the page: cards, their explanations, and links from patches to their commits."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from kcensus import explain
from kcensus.catalogue import load
from kcensus.catalogue.model import Patch
from kcensus.charts import COLORS
from kcensus.explain import Explanation, Term
from kcensus.results import Finding
from kcensus.results.findings import leaders

_PAGE_TERMS = ("check", "gap", "holds", "returns")
"""Terms of the page itself."""
_MAX_LINKS = 3
"""Most links to commits of a series; more are counted."""


def parts(findings: Sequence[tuple[str, Finding]]) -> dict[str, list[tuple[str, Finding]]]:
    """Return the findings below each one of the top level, by its id."""
    below: dict[str, list[tuple[str, Finding]]] = {finding.id: [] for _, finding in findings}
    for analysis, finding in findings:
        if finding.part_of in below:
            below[finding.part_of].append((analysis, finding))
    return below


def severities(findings: Sequence[tuple[str, Finding]]) -> list[tuple[str, int]]:
    """Return the severities of findings of the top level, with their numbers."""
    counts = Counter(finding.severity for _, finding in leaders(findings))
    return [(severity.name.lower(), counts[severity]) for severity in sorted(counts, reverse=True)]


def places(finding: Finding) -> list[tuple[str, int, str]]:
    """Return the places of a finding's memory: name, bytes and color, the largest first."""
    named = {
        f"{of} (in {place})" if (of := finding.users.get(place)) else place: size
        for place, size in finding.memory.items()
    }
    ordered = sorted(named.items(), key=lambda place: -place[1])
    most = len(COLORS) if len(ordered) <= len(COLORS) else len(COLORS) - 1
    rest = ordered[most:]
    if rest:
        ordered[most:] = [(f"{len(rest)} other places", sum(size for _, size in rest))]
    return [(name, size, color) for (name, size), color in zip(ordered, COLORS, strict=False)]


def patches(findings: Sequence[tuple[str, Finding]]) -> dict[str, Patch]:
    """Return the patches in findings, as far as the catalogue has them."""
    names = {finding.patch for _, finding in findings} - {""}
    return {name: catalogue()[name] for name in names if name in catalogue()}


def explanations(findings: Sequence[tuple[str, Finding]]) -> dict[str, Explanation]:
    """Return the explanations of the findings, by kind, in the order of the findings."""
    known = {finding.kind: explain.explanation(finding.kind) for _, finding in findings}
    return {kind: explanation for kind, explanation in known.items() if explanation}


def terms(explanations: Mapping[str, Explanation]) -> list[Term]:
    """Return the terms in explanations and of the page itself, in alphabetical order."""
    words = {*_PAGE_TERMS, *(word for each in explanations.values() for word in each.terms)}
    known = {term.name: term for term in map(explain.term, words) if term}
    return sorted(known.values(), key=lambda term: term.name.lower())


@functools.cache
def catalogue() -> Mapping[str, Patch]:
    return load().patches


def first_links() -> dict[str, str]:
    """Return the address of the first link of each patch with links."""
    known = {name: links(patch)[0] for name, patch in catalogue().items()}
    return {name: addresses[0][1] for name, addresses in known.items() if addresses}


def links(patch: Patch) -> tuple[list[tuple[str, str]], int]:
    """Return words and address of links to the commits of a patch, or to its latest posting.

    :return: the links, and the number of further commits
    """
    commits = [commit for commit in patch.commits if commit.hash]
    shown = [
        (f"commit {commit.hash[:12]}", f"https://git.kernel.org/linus/{quote(commit.hash)}")
        for commit in commits[:_MAX_LINKS]
    ]
    postings = [posting for posting in patch.postings if posting.message_id]
    if not shown and postings:
        latest = max(postings, key=lambda posting: posting.date)
        address = f"https://lore.kernel.org/all/{quote(latest.message_id, safe='@')}/"
        shown = [(f"posting of {latest.date}", address)]
    return shown, max(len(commits) - _MAX_LINKS, 0)
