# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about waiting tasks: deadlocks, stalls outside of them, hung tasks of the log."""

from __future__ import annotations

from dataclasses import replace

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.choice import stalls
from kcensus.analyses.waits.findings.deadlocks import deadlocks
from kcensus.analyses.waits.findings.reported import hung_tasks
from kcensus.analyses.waits.findings.told import Told


def findings(figures: Figures) -> list[Told]:
    """Return all findings, each with its nodes, and with an id of its own."""
    causes = [*deadlocks(figures), *stalls(figures)]
    found: dict[str, Told] = {}
    for each in (*causes, *hung_tasks(figures, causes)):
        own = each.finding.id
        # Two objects may have the same name, such as that of two name spaces.
        if own in found:
            own = f"{own}:{figures.graph.address[each.nodes[0]]:x}"
        found[own] = replace(each, finding=replace(each.finding, id=own))
    return [*found.values()]
