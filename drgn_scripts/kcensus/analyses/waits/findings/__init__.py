# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about waiting tasks: deadlocks, then stalls outside of them."""

from __future__ import annotations

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.choice import stalls
from kcensus.analyses.waits.findings.deadlocks import deadlocks
from kcensus.analyses.waits.findings.told import Told


def findings(figures: Figures) -> list[Told]:
    """Return all findings, each with its nodes."""
    return [*deadlocks(figures), *stalls(figures)]
