# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the requests of a kernel, and the tasks that sleep, mean; and what to do about them."""

from __future__ import annotations

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.findings.device import exhausted, frozen, overdue, stuck
from kcensus.analyses.iosched.kernel.findings.scheduler import starved
from kcensus.analyses.iosched.kernel.findings.tasks import blocked
from kcensus.analyses.iosched.kernel.sleepers import Sleepers
from kcensus.results import Finding


def findings(figures: Figures, sleepers: Sleepers) -> list[Finding]:
    """Return what to act on; of findings that are equally severe, what goes on now comes first."""
    found = [
        finding
        for row in figures.with_requests
        for finding in (
            *frozen(figures, sleepers, row),
            *stuck(figures, sleepers, row),
            *overdue(figures, sleepers, row),
            *starved(figures, sleepers, row),
            *exhausted(figures, row),
        )
    ]
    every = [*found, *blocked(figures, sleepers)]
    return sorted(every, key=lambda finding: -finding.severity)
