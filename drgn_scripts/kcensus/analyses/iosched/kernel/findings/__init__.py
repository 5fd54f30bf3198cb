# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about the requests of a kernel and the tasks behind them, with remedies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kcensus.analyses.iosched.degrees import SILENT
from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.findings.device import exhausted, frozen, overdue, stuck
from kcensus.analyses.iosched.kernel.findings.scheduler import starved
from kcensus.analyses.iosched.kernel.tasks import blocked
from kcensus.analyses.remedies import with_types_first
from kcensus.kernel.block.stacks import untyped_below
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE
from kcensus.kernel.waiting.reader import Waiting
from kcensus.results import Finding, Severity
from kcensus.results.severity import LATE


def findings(figures: Figures) -> list[Finding]:
    """Return all findings, the most severe first, and of one disk those about its device."""
    found = [each for row in figures.with_requests for each in _of_disk(figures, row)]
    ids = {finding.id for finding in found}
    return sorted([*found, *blocked(figures, ids)], key=lambda finding: -finding.severity)


def _of_disk(figures: Figures, row: int) -> list[Finding]:
    """Return the findings about a disk.

    No scheduler and no remedy against it helps requests of a device that does not answer: it is as
    severe as the starvation behind it. What keeps the device from answering, such as its server,
    explains all of them.
    """
    kinds = (frozen, stuck, overdue, starved, exhausted)
    found = [each for kind in kinds for each in kind(figures, row)]
    if lacking := untyped_below(figures.kernel, row):
        found = [with_types_first(each, lacking) for each in found]
    disk = figures.disks[row].address
    if cause := figures.waiting.causes.get(disk, "") or _below(figures.waiting, disk):
        found = [replace(each, part_of=each.part_of or cause) for each in found]
    if figures.silent_ns(row) / 1e9 < SILENT:
        return found
    worst = max((each.severity for each in found if each.kind == "requests-starved"), default=0)
    return [
        replace(each, severity=Severity(max(each.severity, worst)))
        if each.kind == "requests-stuck"
        else each
        for each in found
    ]


def _below(waiting: Waiting, disk: int) -> str:
    """Return the id of the finding about what a device waits for itself; empty for none."""
    graph = waiting.graph.sure
    node = graph.index.get((DEVICE, disk), -1)
    if node < 0:
        return ""
    for end in np.flatnonzero(graph.reached([node])).tolist():
        kind, address = graph.kind[end], int(graph.address[end])
        for finder in waiting.finders:
            if end != node and not graph.following[end] and kind in finder.kinds:
                found = finder.finding(kind, address, Stall(frozenset(), 1, LATE))
                if found is not None and not found.is_generic:
                    return found.id
    return ""
