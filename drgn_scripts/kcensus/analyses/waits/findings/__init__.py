# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about waiting tasks: deadlocks, stalls outside of them, hung tasks of the log."""

from __future__ import annotations

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.choice import stalls
from kcensus.analyses.waits.findings.deadlocks import deadlocks
from kcensus.analyses.waits.findings.reported import hung_tasks
from kcensus.analyses.waits.findings.told import Told


def findings(figures: Figures) -> list[Told]:
    """Return all findings, each with its nodes."""
    causes = [*deadlocks(figures), *stalls(figures)]
    return [*causes, *hung_tasks(figures, causes)]
