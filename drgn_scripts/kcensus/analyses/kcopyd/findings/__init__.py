# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about kcopyd and the kernel log, and their remedies."""

from __future__ import annotations

from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.findings.log import log_findings
from kcensus.analyses.kcopyd.findings.memory import memory_findings, page_wait
from kcensus.analyses.kcopyd.findings.snapshots import unusable, waiters
from kcensus.analyses.kcopyd.findings.stalls import callbacks, stall
from kcensus.results import Finding

__all__ = ["findings", "log_findings"]


def findings(figures: Figures) -> list[Finding]:
    """Return all findings, the most severe first."""
    stalls = [stall(figures, pool) for pool in figures.stalled]
    stalled_cpus = {
        str(pool.cpu): each.id
        for pool, each in zip(figures.stalled, stalls, strict=True)
        if pool.cpu >= 0
    }
    unsorted = [
        *stalls,
        *memory_findings(figures),
        *([] if stalls else callbacks(figures)),
        *waiters(figures),
        *unusable(figures),
        *page_wait(figures),
        *log_findings(figures.log, stalled_cpus, is_file=figures.is_log_file),
    ]
    return sorted(unsorted, key=lambda finding: -finding.severity)
