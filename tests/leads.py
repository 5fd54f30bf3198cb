# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where findings lead: what they tell to look at exists, says more, and does not lead back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pandas as pd

from kcensus.analyses import analyses
from kcensus.reports import Report
from kcensus.results import Finding

_WAITERS = re.compile(r"\b(?:waiting|longest|[Tt]asks behind[^:]*): (.*)")
_NAMED = re.compile(r"\(PID (\d+)|(?:^|, )[\w/+-]+:(\d+)\b")
"""Tasks in sentences: ``cp (PID 12)``, ``cp:12, mv:13``."""
_REFERENCE = re.compile(r"`(kcensus [^`]*)`")


def dead_ends(report: Report) -> Iterator[str]:
    """Yield what is wrong with the next steps that the findings of a report name."""
    ids = {finding.id for _, finding in report.findings}
    for owner, finding in report.findings:
        if finding.part_of:
            if finding.part_of not in ids:
                yield f"{finding.id}: is a part of {finding.part_of}, which does not exist"
        elif not (finding.remedies or finding.no_remedy):
            yield f"{finding.id}: names nothing to do"
        for command in references(finding):
            wrong = _wrong(report, owner, finding, command)
            if wrong:
                yield f"{finding.id}: `{command}` {wrong}"
        if not finding.tasks and (named := _blocked(report, finding)):
            yield f"{finding.id}: names tasks {sorted(named)}, but is about none"
        if finding.is_generic and not finding.part_of:
            yield from (
                f"{finding.id}: {other.id} has the cause of its waits"
                for _, other in report.findings
                if not (other.is_generic or other.part_of)
                and other.severity >= finding.severity
                and 2 * len(finding.tasks & other.tasks) >= len(finding.tasks) > 0
            )


def references(finding: Finding) -> list[str]:
    """Return the commands of kcensus that a finding tells to run."""
    texts = [finding.title, finding.evidence, *finding.story, finding.no_remedy]
    for remedy in finding.remedies:
        texts += [remedy.effect, remedy.command, remedy.risk, remedy.undo]
    return [command for text in texts for command in _REFERENCE.findall(text)]


def _says_more(finding: Finding, name: str, frame: pd.DataFrame) -> bool:
    """Return whether a table has the finding's tasks, and who holds what they wait for."""
    if not finding.tasks or "pid" not in frame:
        return len(frame) > 0
    rows = frame[frame["pid"].isin(finding.tasks)]
    return bool((rows["held_by"] != "").any()) if name == "tasks" else len(rows) > 0


def _blocked(report: Report, finding: Finding) -> set[int]:
    """Return the tasks in state D that a finding names as waiters."""
    known = report.results["waits"].tables["tasks"].frame if "waits" in report.results else None
    if known is None:
        return set()
    blocked = set(known[known["state"] == "D"]["pid"])
    waiters = _WAITERS.findall(" ".join([finding.evidence, *finding.story]))
    named = [pair for text in waiters for pair in _NAMED.findall(text)]
    return {int(pid) for pair in named for pid in pair if pid} & blocked


def _wrong(report: Report, owner: str, finding: Finding, command: str) -> str:
    """Return why a command says nothing more; empty if it does."""
    _, name, *words = shlex.split(command)
    if name not in analyses() or "--debug" in words:
        return ""
    if "TARGET" not in words:
        return "has no target, and so is of the running kernel"
    if name not in report.results:
        return "has no result"
    if "--table" in words:
        key = words[words.index("--table") + 1]
        table = report.results[name].tables.get(key)
        says_more = table is not None and _says_more(finding, key, table.frame)
        return "" if says_more else "is an empty table, or says no more of its tasks"
    others = [each for of, each in report.findings if of == name and not each.part_of]
    if name == owner or not others:
        return "has no finding that says more"
    back = [each for each in others if owner in {c.split()[1] for c in references(each)}]
    return "" if len(back) < len(others) else "leads back here"
