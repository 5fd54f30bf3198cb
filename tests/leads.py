# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where findings lead: the commands that they name exist, say more, and do not lead back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from kcensus import explain
from kcensus.analyses import Analysis, analyses
from kcensus.catalogue import load
from kcensus.commands import commands
from kcensus.reports import Report
from kcensus.results import Finding, Result

_WAITERS = re.compile(r"\b(?:waiting|longest|[Tt]asks behind[^:]*): (.*)")
_NAMED = re.compile(r"\(PID (\d+)|(?:^|, )[\w/+-]+:(\d+)\b")
"""Tasks in sentences: ``cp (PID 12)``, ``cp:12, mv:13``."""
_REFERENCE = re.compile(r"`(kcensus [^`]*)`")
_TARGETS = {"TARGET", "AFTER"}
"""Placeholders of a target in sentences."""
_WITHOUT_TARGET = {"explain", "record", "trend", "notebook", "completion", "validate"}
"""Commands that need no target, or say themselves which."""


def dead_ends(report: Report) -> Iterator[str]:
    """Yield the broken next steps in the findings of a report."""
    yield from broken(report.findings, report.results)


def broken(named: Sequence[tuple[str, Finding]], results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the broken next steps in findings.

    :param named: findings, each with the name of its analysis, or of the command
    :param results: results of the target that the findings lead to
    """
    ids = {finding.id for _, finding in named}
    for owner, finding in named:
        if finding.part_of:
            if finding.part_of not in ids:
                yield f"{finding.id}: is a part of {finding.part_of}, which does not exist"
        elif not (finding.remedies or finding.no_remedy):
            yield f"{finding.id}: names nothing to do"
        if explain.explanation(finding.id) is None:
            yield f"{finding.id}: has no explanation"
        for command in references(finding):
            wrong = _wrong(command, owner, finding, named, results)
            if wrong:
                yield f"{finding.id}: `{command}` {wrong}"
        if not finding.tasks and (blocked := _blocked(results, finding)):
            yield f"{finding.id}: names tasks {sorted(blocked)}, but is about none"
        if finding.is_generic and not finding.part_of:
            yield from (
                f"{finding.id}: {other.id} has the cause of its waits"
                for _, other in named
                if not (other.is_generic or other.part_of)
                and other.severity >= finding.severity
                and 2 * len(finding.tasks & other.tasks) >= len(finding.tasks) > 0
            )


def references(finding: Finding) -> list[str]:
    """Return the commands of kcensus in a finding."""
    texts = [finding.title, finding.evidence, *finding.story, finding.no_remedy]
    for remedy in finding.remedies:
        texts += [remedy.effect, remedy.risk]
    lines = [line for remedy in finding.remedies for line in remedy.command.splitlines()]
    return [
        *(command for text in texts for command in _REFERENCE.findall(text)),
        *(line for line in lines if line.startswith("kcensus ")),
    ]


def _says_more(finding: Finding, name: str, frame: pd.DataFrame) -> bool:
    """Return whether a table has the finding's tasks, and who holds what they wait for."""
    if not finding.tasks or "pid" not in frame:
        return True
    rows = frame[frame["pid"].isin(finding.tasks)]
    return bool((rows["held_by"] != "").any()) if name == "tasks" else len(rows) > 0


def _blocked(results: Mapping[str, Result], finding: Finding) -> set[int]:
    """Return the tasks in state D that a finding names as waiters."""
    known = results["waits"].tables["tasks"].frame if "waits" in results else None
    if known is None:
        return set()
    blocked = set(known[known["state"] == "D"]["pid"])
    waiters = _WAITERS.findall(" ".join([finding.evidence, *finding.story]))
    named = [pair for text in waiters for pair in _NAMED.findall(text)]
    return {int(pid) for pair in named for pid in pair if pid} & blocked


def _wrong(
    command: str,
    owner: str,
    finding: Finding,
    named: Sequence[tuple[str, Finding]],
    results: Mapping[str, Result],
) -> str:
    """Return why a command says nothing more; empty if it does."""
    _, name, *words = shlex.split(command)
    if name not in {*analyses(), *commands()}:
        return "is not a command"
    if name == "explain":
        is_known = explain.explanation(words[0]) or explain.term(words[0])
        return "" if is_known else "explains nothing"
    if name == "patches" and words[:1] == ["show"]:
        return "" if words[1] in load().patches else "shows no patch"
    if name == "report" and owner in results:
        return "leads back here"
    has_target = not _TARGETS.isdisjoint(words) or "--trace" in words or "--log" in words
    # A store is of another machine, on which commands need no target.
    if not has_target and name not in _WITHOUT_TARGET and owner != "trend":
        return "has no target, and so is of the running kernel"
    if name not in analyses() or "--debug" in words:
        return ""
    return _wrong_analysis(analyses()[name], words, owner, finding, named, results)


def _wrong_analysis(
    analysis: Analysis,
    words: Sequence[str],
    owner: str,
    finding: Finding,
    named: Sequence[tuple[str, Finding]],
    results: Mapping[str, Result],
) -> str:
    result = results.get(analysis.name)
    if "--table" in words:
        table = words[words.index("--table") + 1]
        if table not in {spec.name for spec in analysis.tables()}:
            return "names no table"
        content = result.tables.get(table) if result else None
        if content is None:
            # A trace is not a part of a report.
            return "" if "--trace" in words else "has no result"
        if content.frame.empty:
            return "is an empty table"
        return "" if _says_more(finding, table, content.frame) else "says no more of its tasks"
    if result is None:
        return "has no result"
    others = [each for of, each in named if of == analysis.name and not each.part_of]
    if analysis.name == owner or not others:
        return "has no finding that says more"
    back = [each for each in others if owner in {line.split()[1] for line in references(each)}]
    return "" if len(back) < len(others) else "leads back here"
