# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about the requests of a kernel and the tasks behind them, with remedies."""

from __future__ import annotations

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.findings.device import exhausted, frozen, overdue, stuck
from kcensus.analyses.iosched.kernel.findings.scheduler import starved
from kcensus.analyses.iosched.kernel.tasks import blocked
from kcensus.results import Finding


def findings(figures: Figures) -> list[Finding]:
    """Return all findings, the most severe first."""
    kinds = (frozen, stuck, overdue, starved, exhausted)
    found = [each for row in figures.with_requests for kind in kinds for each in kind(figures, row)]
    ids = {finding.id for finding in found}
    return sorted([*found, *blocked(figures, ids)], key=lambda finding: -finding.severity)
