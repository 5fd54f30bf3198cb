# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about dentries, and their remedies."""

from __future__ import annotations

from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.findings.negatives import crowd, negative, pinned
from kcensus.analyses.dentries.findings.watched import watches
from kcensus.results import Finding


def findings(figures: Figures) -> list[Finding]:
    """Return all findings, the main one first."""
    main = negative(figures)
    if main is None:
        return list(watches(figures, None))
    parts = crowd(figures, main), pinned(figures, main), watches(figures, main)
    return [main, *(finding for part in parts for finding in part)]
