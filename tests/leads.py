# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where findings lead: what they tell to look at exists, says more, and does not lead back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from kcensus.analyses import analyses
from kcensus.reports import Report
from kcensus.results import Finding

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
            wrong = _wrong(report, owner, command)
            if wrong:
                yield f"{finding.id}: `{command}` {wrong}"


def references(finding: Finding) -> list[str]:
    """Return the commands of kcensus that a finding tells to run."""
    texts = [finding.title, finding.evidence, *finding.story, finding.no_remedy]
    for remedy in finding.remedies:
        texts += [remedy.effect, remedy.risk]
    lines = [line for remedy in finding.remedies for line in remedy.command.splitlines()]
    return [
        *(command for text in texts for command in _REFERENCE.findall(text)),
        *(line for line in lines if line.startswith("kcensus ")),
    ]


def _wrong(report: Report, owner: str, command: str) -> str:
    """Return why a command says nothing more; empty if it does."""
    _, name, *words = shlex.split(command)
    if name not in analyses() or "--debug" in words:
        return ""
    if "TARGET" not in words:
        return "has no target, and so is of the running kernel"
    if name not in report.results:
        return "has no result"
    if "--table" in words:
        table = report.results[name].tables.get(words[words.index("--table") + 1])
        return "" if table is not None and len(table.frame) else "is an empty table"
    others = [each for of, each in report.findings if of == name and not each.part_of]
    if name == owner or not others:
        return "has no finding that says more"
    back = [each for each in others if owner in {c.split()[1] for c in references(each)}]
    return "" if len(back) < len(others) else "leads back here"
