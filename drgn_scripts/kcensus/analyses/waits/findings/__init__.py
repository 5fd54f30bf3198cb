# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about waiting tasks: deadlocks, stalls outside of them, hung tasks of the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.choice import stalls
from kcensus.analyses.waits.findings.deadlocks import deadlocks
from kcensus.analyses.waits.findings.reported import hung_tasks
from kcensus.analyses.waits.findings.told import Told


def findings(figures: Figures) -> list[Told]:
    """Return all findings, each with its nodes, and with an id of its own."""
    causes = [*deadlocks(figures), *stalls(figures)]
    seen: Counter[str] = Counter()
    found = []
    for each in (*causes, *hung_tasks(figures, causes)):
        seen[each.finding.id] += 1
        # Such as two sessions of one target.
        if (number := seen[each.finding.id]) > 1:
            each = replace(each, finding=replace(each.finding, id=f"{each.finding.id}#{number}"))
        found.append(each)
    return found
