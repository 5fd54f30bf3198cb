# SPDX-License-Identifier: LGPL-2.1-or-later
"""What targets of one cause have in common, whatever their hosts, devices, tasks and addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from kcensus.reports import Report
from kcensus.results import Finding, Severity, matters

_NUMBER = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+")
_PLACE = re.compile(r"\+0x[0-9a-f]+(/0x[0-9a-f]+)?")
"""Offset in a function, and its size: they differ between builds of a kernel."""
_WEIGHTS = {Severity.CRITICAL: 3.0, Severity.WARNING: 2.0, Severity.NOTICE: 0.5}
_DEADLOCK, _PANIC, _STACK = 6.0, 6.0, 1.0
_MAX_STACKS = 8
"""Most kinds of stacks; the ones with the most tasks."""
_MIN_ASLEEP = 10.0
"""Seconds in state D from which on a stack tells something."""


class Feature(NamedTuple):
    kind: str
    """``deadlock``, ``panic``, ``finding`` or ``stack``."""
    feature: str
    weight: float
    tasks: int | None = None


def features(report: Report) -> Iterator[Feature]:
    """Yield the features of a report; each is equal on all machines with the cause."""
    machine = report.head.machine
    if machine is not None and machine.is_panic:
        yield Feature("panic", general(machine.taken_by), _PANIC)
    for name, finding in report.findings:
        if matters(finding) and name != "report":
            yield Feature("finding", _finding(finding), _WEIGHTS[finding.severity])
    if waits := report.results.get("waits"):
        if cycles := waits.tables.get("cycles"):
            for _, rows in cycles.frame.groupby("cycle"):
                columns = (rows[name] for name in ("waits_for", "mode", "function"))
                edges = sorted(
                    {
                        " ".join(filter(None, (general(waits_for), mode, function)))
                        for waits_for, mode, function in zip(*columns, strict=True)
                    }
                )
                yield Feature("deadlock", "; ".join(edges), _DEADLOCK, len(rows))
        if tasks := waits.tables.get("tasks"):
            stuck = tasks.frame[
                tasks.frame["state"].str.startswith("D") & (tasks.frame["asleep"] >= _MIN_ASLEEP)
            ]
            count = Counter(zip(stuck["entry"], stuck["function"], strict=True))
            for (entry, function), number in count.most_common(_MAX_STACKS):
                ways = [general(each) for each in (entry, function) if each]
                yield Feature("stack", " → ".join(ways), _STACK, number)


def _finding(finding: Finding) -> str:
    """Return the kind of a finding, with its subject if that is a name of the kernel's code.

    Names of slab caches are; those of devices, directories and tasks are the machine's own.
    """
    _, _, subject = finding.id.partition(":")
    return finding.id if f"slab:{subject}" in finding.memory else finding.kind


def general(text: str) -> str:
    """Return a text without what differs between machines: numbers, addresses, offsets."""
    return " ".join(_NUMBER.sub("N", _PLACE.sub("", text)).split())
