# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of one kind about the same tasks, which are one finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kcensus.analyses.remedies import together
from kcensus.analyses.waits.findings.told import MAX_TOLD, Told
from kcensus.human import listed


def merged(found: Iterable[Told]) -> list[Told]:
    """Return the findings, those of one kind about the same tasks as one."""
    groups: dict[tuple[str, frozenset[int]], list[Told]] = {}
    for told in found:
        one = told.finding
        groups.setdefault((one.kind if one.tasks else one.id, one.tasks), []).append(told)
    return [_one(group) for group in groups.values()]


def _one(group: Sequence[Told]) -> Told:
    """Return one finding: it counts its tasks once, and has the remedies of all."""
    first, *more = group
    if not more:
        return first
    subjects = [each.finding.id.partition(":")[2] for each in group]
    who = "the same task waits" if len(first.finding.tasks) == 1 else "the same tasks wait"
    remedies = together([each.finding.remedies for each in group])
    lines = zip(subjects, (each.finding.evidence for each in group), strict=True)
    return Told(
        replace(
            first.finding,
            severity=max(each.finding.severity for each in group),
            title=f"{first.finding.title}; {who} for {listed(subjects[1:], MAX_TOLD)}, too",
            evidence="",
            story=(
                *(f"{subject}: {evidence}" for subject, evidence in lines),
                *dict.fromkeys(line for each in group for line in each.finding.story),
            ),
            remedies=remedies,
            no_remedy="" if remedies else first.finding.no_remedy,
        ),
        [node for each in group for node in each.nodes],
        [node for each in group for node in each.further],
        [node for each in group for node in each.asleep],
    )
